"""The report in Markdown, for places that show Markdown and pictures beside it: claims, verdicts, and how to repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from enkbayes.reproduction.results import Result


def summary(results: Sequence[Result], *, command: str = "", missing: Mapping[str, str] | None = None) -> str:
    """Return a page with a table of verdicts, and for each experiment its claims and pictures.

    >>> summary([], command="enkbayes reproduce all").splitlines()[0]
    '# The paper, reproduced'
    """
    lines = ["# The paper, reproduced", ""]
    if command:
        lines += [f"Made by `{command}`."]
    if results:
        versions = ", ".join(f"{name} {value}" for name, value in results[-1].versions.items())
        dates = sorted({result.made for result in results})
        lines += [f"Size {results[0].size}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}; {versions}.", ""]
        lines += ["| experiment | verdict | claims that hold |", "|---|---|---|"]
    for result in results:
        held = sum(claim.verdict == "reproduced" for claim in result.claims)
        lines.append(f"| [{result.title}](#{result.name}) | {result.verdict} | {held} of {len(result.claims)} |")
    for name, why in (missing or {}).items():
        lines.append(f"| {name} | not run: {_cell(why)} | |")
    for result in results:
        lines += ["", f'<a id="{result.name}"></a>', "", f"## {result.title}", "", result.about, ""]
        lines += ["| the paper says | found here | verdict |", "|---|---|---|"]
        for claim in result.claims:
            found = claim.found if not claim.why else f"{claim.found} {claim.why}"
            lines.append(f"| {_cell(claim.paper)} | {_cell(found)} | {claim.verdict} |")
        for picture in result.pictures:
            lines += ["", f"![{picture.alt}]({result.name}/{picture.file})", "", picture.caption]
        lines += [f"\n- {note}" for note in result.notes]
    return "\n".join(lines) + "\n"


def _cell(words: str) -> str:
    r"""Return words that do not end a cell of a table.

    >>> print(_cell("a | b"))
    a \| b
    """
    return words.replace("|", "\\|").replace("\n", " ")
