"""The report of `enkbayes reproduce`: one HTML page with every result and picture, and the same in Markdown."""

from __future__ import annotations

import base64
import math
import re
import struct
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from enkbayes.evaluation.report.page import render
from enkbayes.reproduction.findings import IN_PART, NOT_REPRODUCED, REPRODUCED, Cell, Table
from enkbayes.reproduction.results import RESULT, Picture, Result

TONES = {REPRODUCED: "good", IN_PART: "usable", NOT_REPRODUCED: "bad"}
NO_VERDICT, NO_TONE = "no claims", "none"
SMOKE = "smoke size: fewer repetitions and smaller networks than in the paper, so its numbers are not comparable"
LONG_TABLE = 30  # rows; longer tables are collapsed
HALF_WIDTH = 700  # pixels; narrower pictures may be placed side by side
WIDE_RATIO = 2.0  # width over height; on a phone, wider pictures scroll so that their labels stay readable
LINE = 120  # characters of a line of Markdown
NOTHING, MINUS, TIMES = "\u2013", "\u2212", "\u00d7"  # a dash in an empty cell, and the signs of numbers
PNG = b"\x89PNG\r\n\x1a\n"
LIKE_A_NUMBER = re.compile(r"[-+<>=~\u2212\u00b1\u2248]*\s*[\d.][-+\d\s.,;()\[\]/%e\u2212\u00b1\u00d7\u2013]*")
SUPERSCRIPTS = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")


@dataclass(frozen=True)
class Column:
    """A column as displayed: its name, whether it is right-aligned, and the text of its cells."""

    name: str
    right: bool
    cells: tuple[str, ...]


def report_page(
    results: Sequence[Result], out: Path, *, command: str = "", missing: Mapping[str, str] | None = None
) -> str:
    """Return the report on all results as HTML; the pictures are read from out/<name>.

    `missing` maps the name of an experiment that could not be run to the reason. The page contains its pictures and
    needs no network and no other file.

    >>> page = report_page([], Path(), missing={"cifar": "CIFAR-10 could not be downloaded."})
    >>> page.startswith("<!doctype html>"), "CIFAR-10 could not be downloaded." in page
    (True, True)
    """
    sections = [_section(result, out) for result in results]
    absent = [
        {"name": name, "anchor": anchor(name), "why": why, "verdict": "not run", "tone": NO_TONE}
        for name, why in (missing or {}).items()
    ]
    return render(
        "paper.html.j2",
        sections=sections,
        missing=absent,
        facts=_facts(results),
        totals=_totals([claim.verdict for result in results for claim in result.claims], len(absent)),
        smoke=_smoke(results),
        versions=" · ".join(f"{name} {found}" for name, found in _versions(results).items()),
        command=command,
    )


def anchor(name: str) -> str:
    """Return the anchor of an experiment's section.

    >>> anchor("moons"), anchor("two moons/7")
    ('experiment-moons', 'experiment-two-moons-7')
    """
    return "experiment-" + re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)


def duration(seconds: float) -> str:
    """Return a duration in words.

    >>> duration(0.21), duration(12.4), duration(200), duration(7510)
    ('0.2 s', '12 s', '3 min 20 s', '2 h 5 min')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def column(name: str, cells: Sequence[Cell]) -> Column:
    """Return a column with numbers rounded to about four digits; numbers of similar size get equally many decimals.

    >>> column("NLL", [0.912345, 0.0521]).cells, column("rows", [0.5, 20000.0]).cells
    (('0.9123', '0.0521'), ('0.500', '20,000'))
    >>> column("particles", [50, 10000]).cells, column("method", ["MAP", "HMC"]).right
    (('50', '10,000'), False)
    """
    plain: list[Any] = [cell.item() if isinstance(cell, np.generic) else cell for cell in cells]
    numbers = [cell for cell in plain if _is_number(cell)]
    decimals = _decimals([float(number) for number in numbers]) if any(map(_is_fraction, numbers)) else 0
    stated = [cell for cell in plain if isinstance(cell, str) and cell.strip()]
    right = bool(numbers or stated) and all(LIKE_A_NUMBER.fullmatch(cell.strip()) for cell in stated)
    return Column(name, right, tuple(_words(cell, decimals) for cell in plain))


def _words(cell: Any, decimals: int | None) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if not _is_number(cell):
        return cell if isinstance(cell, str) and cell.strip() else NOTHING
    if decimals is None:
        return _alone(float(cell))
    comma = "," if abs(cell) >= 10_000 else ""  # years and small counts are easier to read without
    return _minus(f"{float(cell) or 0.0:{comma}.{decimals}f}" if _is_fraction(cell) or decimals else f"{cell:{comma}}")


def _alone(number: float) -> str:
    """Return a number with three digits, for a column whose numbers differ much in size."""
    if number == 0:
        return "0"
    if not 1e-4 <= abs(number) < 1e6:
        digits, power = f"{number:.2e}".split("e")
        return _minus(digits) + f" {TIMES} 10" + str(int(power)).translate(SUPERSCRIPTS)
    comma = "," if abs(number) >= 10_000 else ""
    return _minus(f"{number:{comma}.{max(0, 2 - math.floor(math.log10(abs(number))))}f}")


def _decimals(numbers: Sequence[float]) -> int | None:
    """Return the number of decimals for all numbers, or None if each needs its own."""
    sizes = [abs(number) for number in numbers if number]
    if not sizes:
        return 0
    largest, smallest = max(sizes), min(sizes)
    if largest >= 1e6 or smallest < 1e-4 or largest > 1e3 * smallest:
        return None
    decimals = max(0, 3 - math.floor(math.log10(largest)))
    while decimals and all(f"{number:.{decimals}f}".endswith("0") for number in numbers):
        decimals -= 1
    return decimals


def _minus(words: str) -> str:
    return words.replace("-", MINUS)


def _is_number(cell: Any) -> TypeGuard[float]:
    return isinstance(cell, Real) and not isinstance(cell, bool) and math.isfinite(cell)


def _is_fraction(number: float) -> bool:
    return not isinstance(number, Integral)


def _section(result: Result, out: Path) -> dict[str, Any]:
    """Return the values that the template needs for a result."""
    files = [RESULT, *(f"{table.name}.csv" for table in result.tables), *(shown.file for shown in result.pictures)]
    judged = bool(result.claims)
    return {
        "name": result.name,
        "anchor": anchor(result.name),
        "title": result.title,
        "about": [part for part in result.about.split("\n\n") if part.strip()],
        "verdict": result.verdict if judged else NO_VERDICT,
        "tone": TONES[result.verdict] if judged else NO_TONE,
        "counts": _counts([claim.verdict for claim in result.claims]),
        "smoke": SMOKE if result.size == "smoke" else "",
        "run": [
            f"{result.size} size",
            result.made.replace("T", " "),
            duration(result.seconds),
            f"settings {result.key[:12]}",
        ],
        "claims": [{"said": claim, "tone": TONES[claim.verdict]} for claim in result.claims],
        "pictures": [_picture(shown, out / result.name) for shown in result.pictures],
        "tables": [_table(table) for table in result.tables],
        "notes": result.notes,
        "settings": result.settings,
        "ours": sum(setting.source == "ours" for setting in result.settings),
        "files": [f"{result.name}/{file}" for file in files],
    }


def _picture(shown: Picture, folder: Path) -> dict[str, Any]:
    """Return a picture embedded in the page, with its size in pixels so that the layout is stable while loading."""
    path = folder / shown.file
    again = f"delete the folder {folder} and run enkbayes reproduce again"
    if not path.is_file():
        raise FileNotFoundError(f"the picture {path} of the report is missing; {again}")
    data = path.read_bytes()
    if len(data) < 24 or not data.startswith(PNG):
        raise ValueError(f"the picture {path} of the report is not a PNG file; {again}")
    width, height = struct.unpack(">II", data[16:24])
    return {
        "source": "data:image/png;base64," + base64.b64encode(data).decode(),
        "alt": shown.alt,
        "caption": shown.caption,
        "width": width,
        "height": height,
        "half": width <= HALF_WIDTH,
        "wide": width > WIDE_RATIO * height,
    }


def _table(table: Table) -> dict[str, Any]:
    columns = [column(name, [row[i] for row in table.rows]) for i, name in enumerate(table.columns)]
    return {
        "caption": table.caption,
        "columns": columns,
        "rows": range(len(table.rows)),
        "folded": len(table.rows) > LONG_TABLE,
    }


def _counts(verdicts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the number of claims with each verdict that occurs."""
    found = Counter(verdicts)
    return [{"number": found[verdict], "words": verdict, "tone": TONES[verdict]} for verdict in TONES if found[verdict]]


def _totals(verdicts: Sequence[str], missing: int) -> list[dict[str, Any]]:
    found = Counter(verdicts)
    totals = [
        {"number": found[verdict], "words": f"claim{'s' * (found[verdict] != 1)} {verdict}", "tone": tone}
        for verdict, tone in TONES.items()
    ]
    absent = {"number": missing, "words": f"experiment{'s' * (missing != 1)} not run", "tone": NO_TONE}
    return [*totals, absent] if missing else totals


def _smoke(results: Sequence[Result]) -> str:
    small = sum(result.size == "smoke" for result in results)
    if not small:
        return ""
    which = "Every experiment" if small == len(results) else f"{small} of {len(results)} experiments"
    return f"{which} ran at {SMOKE}."


def _facts(results: Sequence[Result]) -> dict[str, str]:
    if not results:
        return {}
    return {
        "size": " and ".join(sorted({result.size for result in results})),
        "date": _dates(results),
        "experiments": str(len(results)),
        "claims": str(sum(len(result.claims) for result in results)),
        "computing time": duration(sum(result.seconds for result in results)),
    }


def _dates(results: Sequence[Result]) -> str:
    days = sorted({result.made[:10] for result in results})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _versions(results: Sequence[Result]) -> dict[str, str]:
    """Return the version of each library; where results differ, every version that was used."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        for name, version in result.versions.items():
            found.setdefault(name, {})[version] = None
    return {name: " / ".join(versions) for name, versions in found.items()}


def summary(results: Sequence[Result], *, command: str = "", missing: Mapping[str, str] | None = None) -> str:
    """Return the report as Markdown: a table of verdicts, then the claims and pictures of each experiment.

    >>> summary([], command="enkbayes reproduce all").splitlines()[0]
    '# The paper, reproduced'
    """
    lines = ["# The paper, reproduced", ""]
    lines += [f"This page was written by `{command}`.", ""] if command else []
    lines += ["Each item below states a claim of the paper with its verdict, and then what we measured.", ""]
    if results:
        versions = ", ".join(f"{name} {found}" for name, found in _versions(results).items())
        lines += [*_filled(f"Size: {results[0].size}. Date: {_dates(results)}. Versions: {versions}."), ""]
        lines += ["| experiment | verdict | claims that hold |", "|---|---|---|"]
    for result in results:
        held = sum(claim.verdict == REPRODUCED for claim in result.claims)
        lines.append(f"| [{result.title}](#{result.name}) | {result.verdict} | {held} of {len(result.claims)} |")
    if missing:
        lines += ["", *(line for name, why in missing.items() for line in _item(f"**{name}** was not run: {why}"))]
    for result in results:
        lines += ["", f'<a id="{result.name}"></a>', "", f"## {result.title}", "", *_filled(result.about)]
        for claim in result.claims:
            lines += ["", *_item(f"**{claim.verdict.capitalize()}.** {claim.paper}")]
            lines += ["", *_filled(f"Measured here: {claim.found}", indent="  ")]
            lines += ["", *_filled(f"Reason: {claim.why}", indent="  ")] if claim.why else []
        for picture in result.pictures:
            lines += ["", *_filled(f"![{picture.alt}]({result.name}/{picture.file})"), "", *_filled(picture.caption)]
        for note in result.notes:
            lines += ["", *_item(f"Note: {note}")]
    return "\n".join(lines) + "\n"


def _item(words: str) -> list[str]:
    """Return the lines of a list item."""
    first, *rest = _filled(words, indent="  ")
    return [f"- {first.lstrip()}", *rest]


def _filled(words: str, indent: str = "") -> list[str]:
    """Return words in lines of at most 120 characters. No line begins with a sign that Markdown gives a meaning.

    >>> _filled("J > D", indent="  "), len(_filled("word " * 50))
    (['  J > D'], 3)
    """
    glued = re.sub(r" ([-+*=<>#±]+) ", "\0\\1\0", words)
    lines = textwrap.wrap(
        glued, LINE, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]
