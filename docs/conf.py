"""Sphinx: the documentation site. `make docs` builds it into docs/_build/html, with warnings as errors."""

from __future__ import annotations

import warnings

from sphinx.application import Sphinx

from enkbayes import __version__

project, author = "enkbayes", "The enkbayes developers"
version = release = __version__
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_templates", "sg_execution_times.rst", "gallery/sg_execution_times.rst"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = [
    "myst.header",
    "myst.xref_missing",  # links to files of the repository, which a test checks
    "ref.term",
    "ref.ref",  # terms and labels of scikit-learn's documentation, in methods inherited from it
]

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
default_role = "literal"  # single backticks in docstrings are code
smartquotes = False  # "auto" in a docstring is a value of an argument
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples/guide",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",  # the others need data or libraries of their own: make gallery draws them
    "abort_on_example_error": True,
    "within_subsection_order": "ExampleTitleSortKey",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 1e6,
    "reset_modules": ("matplotlib",),
    "plot_gallery": "True",
}

linkcheck_retries = 2
linkcheck_timeout = 20

html_theme = "pydata_sphinx_theme"
html_title = "enkbayes"
html_static_path = ["_static"]
html_css_files = ["enkbayes.css"]
html_favicon = "_static/mark.svg"
html_theme_options = {
    "logo": {"text": "enkbayes", "image_light": "_static/mark.svg", "image_dark": "_static/mark-dark.svg"},
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 9,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
}
html_sidebars = {page: [] for page in ("index", "start", "troubleshooting", "search", "genindex")}
html_copy_source = False
copyright = author  # noqa: A001 (the name that Sphinx reads)

warnings.filterwarnings("ignore", category=DeprecationWarning)


def plain_bars(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Keep |x| of docstrings a formula; reStructuredText takes it for a substitution."""
    lines[:] = [line if line.lstrip().startswith((">>>", "...")) else line.replace("|", "\\|") for line in lines]


def setup(app: Sphinx) -> None:
    """Connect `plain_bars`."""
    app.connect("autodoc-process-docstring", plain_bars)
