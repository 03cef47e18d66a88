"""Documentation, docstrings, comments, messages and names use the field's vocabulary, and Markdown lines are short."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTH = 120
INSTEAD = {
    r"strange(r|st|ly|ness)?": "out-of-distribution, OOD score",
    r"laws?": "distribution",
    r"(un)?settl(e|es|ed|ing)": "converge",
    r"pieces?": "chunk",
    r"strips?": "chunk",
    r"datum": "row, observation",
    r"told": "a sentence that says who does what",
    r"furthest": "most advanced",
    r"aftercare": "the name of the method",
    r"keepers?": "CheckpointWriter",
    r"committees?": "NetworkEnsemble",
    r"known rows?": "in-distribution rows",
    r"data (say|speak|see)": "the data determine, constrain or inform",
    r"ha(s|ve) a say": "the data inform",
    r"who (looks|asks)": "a sentence whose subject is the user or the function",
    r"anew": "again",
    r"weighed": "weighted",
    r"go(es)? on (with|from)": "continue",
    r"from afar": "from a distance",
    r"for certain": "certainly",
    r"(data|files?|features|columns) lack": "a sentence about what is missing",
    r"not to be trusted are|usable are": "the subject before the verb",
}
"""Expressions that the project does not use, as patterns, and what to write in their place."""

ALLOWED = (
    r"tests/laws",  # a law there is a property that every sampler and likelihood must have
    r"laws? of (large numbers|total variance|total expectation)",
    r"power laws?",
)
"""Legitimate uses, removed from a text before it is checked."""


def name(path):
    return path.relative_to(ROOT).as_posix()


def files(*patterns):
    """Return the files of the repository that match."""
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


PAGES = files("*.md", "docs/**/*.md")
SOURCES = files("src/**/*.py", "benchmarks/*.py", "examples/*.py")


def wrong(text):
    """Return the expressions of a text that are not to be used, each with what to write instead."""
    for pattern in ALLOWED:
        text = re.sub(pattern, "", text)
    found = []
    for pattern, instead in INSTEAD.items():
        matches = re.finditer(rf"\b({pattern})\b", text, re.IGNORECASE)
        found += [f"{match[0]!r}: write {instead}" for match in matches]
    return found


def prose(text):
    """Yield the lines of Markdown that are prose, numbered from 1, without the targets of links."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            code = not code
        elif not code and not line.startswith(("|", "    ", "{")):
            yield number, re.sub(r"\]\([^)]*\)|https?://\S+", "", line)


def words(source):
    """Yield the names, strings and comments of Python source, with the words of a name apart."""
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and (before, token.string) != (".", "strip"):  # the method of a str
            parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", token.string)
            yield token.start[0], " ".join(part.lower() for part in parts)
        elif token.type == tokenize.COMMENT or tokenize.tok_name[token.type] in {"STRING", "FSTRING_MIDDLE"}:
            yield token.start[0], " ".join(token.string.split())
        before = token.string


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_lines_of_markdown_are_short(path):
    long = [number for number, line in prose(path.read_text(encoding="utf-8")) if len(line) > WIDTH]
    assert not long, f"lines {long} have more than {WIDTH} characters"


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_pages_use_the_vocabulary_of_the_field(path):
    text = path.read_text(encoding="utf-8")
    if path.name == "CHANGELOG.md":
        text = re.sub(r"^\| `[^|]*\|", "", text, flags=re.MULTILINE)  # names that no longer exist
    assert not wrong(text)


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_code_uses_the_vocabulary_of_the_field(path):
    found = [(line, bad) for line, text in words(path.read_text(encoding="utf-8")) for bad in wrong(text)]
    assert not found


def test_no_document_is_cited_that_is_not_in_the_repository():
    cited = re.compile(r"\b(METHOD|DESIGN|PREDICTIVE|ANCHORS)(\.md|'s| \d)")
    paths = [*PAGES, *SOURCES, *files("tests/**/*.py", "Makefile", "pyproject.toml")]
    assert not [name(path) for path in paths if cited.search(path.read_text(encoding="utf-8"))]


def test_expressions_are_found_in_text_and_names():
    assert wrong("Strange rows have settled; see tests/laws.") == [
        "'Strange': write out-of-distribution, OOD score",
        "'settled': write converge",
    ]
    assert not wrong("the method of moments converges by the law of large numbers")
    code = 'class LogitLaw:\n    def by_piece(self):  # a strip\n        return " told ".strip()\n'
    assert [line for line, text in words(code) if wrong(text)] == [1, 2, 2, 3]


def test_prose_has_neither_tables_nor_code():
    text = "One.\n\n| a | b |\n\n```\ncode\n```\n\n    indented\n\nTwo [three](https://a.example/long).\n"
    assert [line for _, line in prose(text) if line] == ["One.", "Two [three."]
