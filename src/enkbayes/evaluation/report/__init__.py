"""Reports: self-contained HTML pages, readable in light and dark, on a phone and by a screen reader."""

from enkbayes.evaluation.report.page import Picture, picture, render, require_report
from enkbayes.evaluation.report.trust import trust_page

__all__ = ["Picture", "picture", "render", "require_report", "trust_page"]
