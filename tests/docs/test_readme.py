"""The README: short, with snippets that run, links that work on PyPI, and a table that the script writes."""

import re
import tomllib
from pathlib import Path

import pytest
import readme_table

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def snippets(language):
    return [part.split("```")[0] for part in TEXT.split(f"```{language}\n")[1:]]


def test_it_has_at_most_150_lines_and_snippets_of_at_most_8():
    assert len(TEXT.splitlines()) <= 150
    assert len(snippets("python")) == 2
    assert all(len(code.splitlines()) <= 8 for code in [*snippets("python"), *snippets("sh")])


@pytest.mark.parametrize("number", [0, 1], ids=["scikit-learn", "PyTorch"])
def test_the_snippets_run(number):
    code, names = snippets("python")[number], {}
    if "torch" in code:
        pytest.importorskip("torch")
    exec(compile(code, "README.md", "exec"), names)
    if "torch" in code:
        assert names["head"](names["torch"].randn(5, 2)).shape == (5, 2)
    else:
        assert names["clf"].trust_.sentence
        assert str(names["clf"].summary()).startswith("coefficient")


@pytest.mark.parametrize("page", readme_table.PAGES, ids=lambda path: path.name)
def test_the_table_is_the_one_that_the_script_writes(page):
    assert page.read_text(encoding="utf-8") == readme_table.filled(page), "run python benchmarks/readme_table.py"


def test_every_link_is_absolute_and_leads_to_a_file_of_the_repository():
    home = PROJECT["urls"]["Repository"]
    assert f"{home}/blob/main/" == readme_table.SITE
    raw = home.replace("github.com", "raw.githubusercontent.com") + "/main/"
    ours = 0
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXT):
        assert target.startswith("https://"), target
        for start in (readme_table.SITE, raw):
            if target.startswith(start):
                assert (ROOT / target.removeprefix(start)).is_file(), target
                ours += 1
    assert ours > 10


def test_the_citation_is_that_of_the_citation_file():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for said in re.findall(r"(?:title|eprint) += \{(.*)\}", TEXT):
        assert said in text
