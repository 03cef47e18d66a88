"""The site: every public name has an entry in the reference, and every page has a place."""

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("write_pages", DOCS / "api/write_pages.py")
write_pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(write_pages)


@pytest.mark.parametrize("stem", write_pages.PAGES)
def test_the_reference_lists_every_public_name(stem):
    written = (DOCS / f"api/{stem}.md").read_text(encoding="utf-8")
    assert written == write_pages.page(stem, write_pages.PAGES[stem]), "run python docs/api/write_pages.py"


@pytest.mark.parametrize("stem", write_pages.PAGES)
def test_public_names_have_docstrings_with_an_example_that_runs(stem):
    for module in write_pages.PAGES[stem]:
        loaded = importlib.import_module(module)
        docs = {name: getattr(loaded, name).__doc__ or "" for name in write_pages.public_names(module)}
        assert not [name for name, text in docs.items() if ">>> " not in text]  # pytest runs all of them


@pytest.mark.parametrize("stem", write_pages.PAGES)
def test_no_public_name_is_missing(stem):
    text = write_pages.page(stem, write_pages.PAGES[stem])
    listed = set(re.findall(r"^(?:   |\.\. autodata:: )(\w+)$", text, re.MULTILINE))
    front = importlib.import_module("enkbayes").__all__
    for module in write_pages.PAGES[stem]:
        names = {name for name in importlib.import_module(module).__all__ if not name.startswith("__")}
        assert names - listed <= (set() if stem == "enkbayes" else set(front))


def test_every_page_is_in_a_table_of_contents():
    folders = ("*.md", *(f"{part}/*.md" for part in ("how_to", "coming_from", "understand", "results", "develop")))
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for pattern in folders for path in DOCS.glob(pattern)}
    texts = [(DOCS / f"{page}.md").read_text(encoding="utf-8") for page in sorted(pages)]
    trees = "".join(tree for text in texts for tree in re.findall(r"```\{toctree\}(.*?)```", text, re.DOTALL))
    assert pages - {"index"} <= set(trees.replace("<", " ").replace(">", " ").split())  # a page, or Title <page>


def test_the_first_steps_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in (DOCS / "start.md").read_text(encoding="utf-8").split("```python\n")[1:]:
        exec(compile(code.split("```")[0], "start.md", "exec"), names)
    assert 0.5 < names["decided"].mean() <= 1
    assert capsys.readouterr().out
