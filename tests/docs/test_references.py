"""Links, files and names in the documentation exist."""

import ast
import importlib
import re
from pathlib import Path

import pytest
from typer.main import get_command

import enkbayes as eb
from enkbayes.cli import app

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/enkbayes"
PARTS = ("", "how_to", "coming_from", "understand", "results", "develop", "paper")
PAGES = sorted([*ROOT.glob("*.md"), *(path for part in PARTS for path in (ROOT / "docs" / part).glob("*.md"))])

HOSTS = {"arxiv.org", "keepachangelog.com", "pytorch-ood.readthedocs.io"}
"""Other sites that pages link to."""


def name(path):
    return path.relative_to(ROOT).as_posix()


def anchors(page):
    """Return the anchors of a page: its own, and those that Markdown makes of headings."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    own = set(re.findall(r'<a id="(\w+)">', text))
    return own | {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def current(page):
    """Return a page; of the changelog without the first column of its tables, which names what no longer exists."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^\|[^|]*\|", "", text, flags=re.MULTILINE) if page.name == "CHANGELOG.md" else text


def defined(path, dotted):
    """Return whether a Python file defines a name; `Class.method` names a method."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    for part in dotted.split("."):
        found = [node for node in nodes if getattr(node, "name", None) == part]
        if not found:
            return False
        nodes = found[0].body
    return True


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            file, _, anchor = target.partition("#")
            there = page.parent / file if file else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), target


def test_every_site_that_is_linked_is_one_of_those_that_make_links_follows():
    """Links to other sites are not followed here: they have the right form, and those of the README are on the site."""
    ours = "https://github.com/enkbayes/enkbayes", "https://raw.githubusercontent.com/enkbayes/enkbayes"
    others = {page: set(re.findall(r"https?://[^)\s>`'\"]+", page.read_text(encoding="utf-8"))) for page in PAGES}
    others = {page: {link for link in links if not link.startswith(ours)} for page, links in others.items()}
    assert {link.split("/")[2] for links in others.values() for link in links} == HOSTS
    assert not [link for links in others.values() for link in links if not link.startswith("https://")]
    included = "CHANGELOG.md", "CONTRIBUTING.md"  # by pages of docs/develop
    site = {link for page, links in others.items() if page.parent != ROOT or page.name in included for link in links}
    assert set().union(*others.values()) <= site


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_are_named_exist(page):
    for word in re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|md|json|jinja))`", current(page)):
        assert any((folder / word).exists() for folder in (ROOT, PACKAGE, page.parent)), word


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_that_are_used_exist(page):
    text = current(page)
    for word in set(re.findall(r"\beb\.[A-Za-z_]\w*", text)):
        assert hasattr(eb, word.removeprefix("eb.")), word
    for module, names in re.findall(r"^from (enkbayes[\w.]*) import ([\w, ]+)", text, re.MULTILINE):
        for each in names.split(","):
            importable(f"{module}.{each.strip()}")
    for word in re.findall(r"`(enkbayes(?:\.\w+)+)`", text):
        importable(word)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_on_a_page_is_python(page):
    for part in page.read_text(encoding="utf-8").split("```python\n")[1:]:
        ast.parse(part.split("```")[0], filename=page.name)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_of_the_commands_exist(page):
    commands = get_command(app).commands
    for command, rest in re.findall(r"enkbayes ([a-z]+)\b((?:[^`\n#]|\\\n)*)", page.read_text(encoding="utf-8")):
        if command in commands:
            known = {option for each in commands[command].params for option in each.opts}
            assert set(re.findall(r"--[a-z][a-z-]*", rest)) <= {*known, "--help"}, (command, rest)


def importable(dotted):
    """Import a module, or the module in front of a name and then the name."""
    module, _, last = dotted.rpartition(".")
    if not hasattr(importlib.import_module(module), last):
        importlib.import_module(dotted)


def test_the_map_of_equations_names_what_the_files_define():
    text = (ROOT / "docs/understand/equations.md").read_text(encoding="utf-8")
    found = re.findall(r"`([\w.]+)` in `([\w/]+\.py)`", text)
    assert len(found) > 15
    for dotted, path in found:
        assert defined(PACKAGE / path, dotted), f"{dotted} in {path}"
