"""The map of equations covers every number of the paper once, and its proofs run."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/understand/equations.md").read_text(encoding="utf-8")
LAST = 50  # numbered equations of the paper, appendix included


def rows():
    return [row.strip("| ").split(" | ") for row in PAGE.splitlines() if re.match(r"\| \d", row)]


def test_every_numbered_equation_is_mapped_once():
    numbers = []
    for row in rows():
        labels = re.sub(r"\([^)]*\)", "", row[0])
        numbers += [int(n) for n in re.findall(r"\d+", labels)]
    assert sorted(numbers) == list(range(1, LAST + 1))


def test_every_equation_has_a_function_or_says_that_nothing_is_computed():
    for row in rows():
        assert re.search(r"`[\w.]+` in `[\w/]+\.py`", row[2]) or row[2].startswith("none: "), row
    assert sum(row[2].startswith("none: ") for row in rows()) <= 3


def test_every_misprint_that_is_marked_is_explained():
    marked = {int(n) for row in rows() for n in re.findall(r"(\d+)\*", row[0])}
    explained = PAGE.split("## Misprints")[1].split("## A bound")[0]
    lists = re.findall(r"\*\*[Ee]quations? ([\d, and]+)", explained)
    named = {int(n) for numbers in lists for n in re.findall(r"\d+", numbers)}
    assert marked == named
