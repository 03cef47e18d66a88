"""The Python of every how-to page, every explanation and every page for developers runs."""

import pytest
from pages import DOCS, run_page

RUN = [path for pattern in ("how_to/*.md", "understand/*.md", "develop/*.md") for path in sorted(DOCS.glob(pattern))]
RUN.append(DOCS / "equations.md")


@pytest.mark.parametrize("page", RUN, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_the_page_runs(page, tmp_path, monkeypatch):
    names = run_page(page, tmp_path, monkeypatch)
    assert len(names) > 2 or "```python" not in page.read_text(encoding="utf-8")
