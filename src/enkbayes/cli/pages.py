"""HTML files that commands write."""

from __future__ import annotations

from pathlib import Path


def check_page(path: Path | None, what: str) -> None:
    """Raise, before any work is done, if a page could not be written."""
    if path is None:
        return
    from enkbayes.evaluation.report import require_report
    from enkbayes.storage.files import check_writable

    if path.suffix != ".html":
        raise ValueError(f"the {what} is {path}; expected a name that ends in .html")
    check_writable(path)
    require_report()


def write_page(path: Path, page: str) -> None:
    """Write a page, all or nothing."""
    from enkbayes.storage.files import replacing

    with replacing(path) as draft:
        draft.write_text(page, encoding="utf-8")
