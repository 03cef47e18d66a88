"""Rendering: templates, and pictures embedded in the page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from enkbayes.evaluation.plots import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """An SVG as a data URL, and its description for screen readers.

    >>> Picture("data:image/svg+xml;base64,", "nothing").alt
    'nothing'
    """

    source: str
    alt: str


def require_report() -> Any:
    """Return jinja2; raise an ImportError with the remedy if a library for reports is missing.

    >>> require_report().Template("{{ rows }} rows").render(rows=3)
    '3 rows'
    """
    try:
        import jinja2

        require_matplotlib()
    except ImportError:
        raise ImportError(
            "reports need matplotlib and jinja2; install them with: pip install 'enkbayes[plots]'"
        ) from None
    return jinja2


def picture(figure: Figure, alt: str) -> Picture:
    """Return a figure for embedding in a page, with transparent background.

    >>> figure = require_matplotlib().Figure(figsize=(1, 1))
    >>> picture(figure, "nothing").source.startswith("data:image/svg+xml;base64,")
    True
    """
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context({"svg.hashsalt": "enkbayes"}):  # equal figures give equal files
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return Picture("data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode(), alt)


def render(template: str, **values: Any) -> str:
    """Render a template of this package; every value is escaped.

    >>> try:
    ...     render("no_such_page.html.jinja")
    ... except require_report().TemplateNotFound as error:
    ...     print(error)
    no_such_page.html.jinja
    """
    jinja2 = require_report()
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("enkbayes.evaluation.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return str(environment.get_template(template).render(**values))
