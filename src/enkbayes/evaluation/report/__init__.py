"""Reports: self-contained HTML pages for light and dark mode, phones and screen readers."""

from enkbayes.evaluation.report.page import Picture, picture, render, require_report
from enkbayes.evaluation.report.review import review_page
from enkbayes.evaluation.report.trust import trust_page

__all__ = ["Picture", "picture", "render", "require_report", "review_page", "trust_page"]
