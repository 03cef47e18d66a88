"""The gallery draws every kind of figure from real fits; here with little work."""

import importlib.util
import inspect
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from enkbayes.evaluation import metrics, plots

pytest.importorskip("matplotlib")
SCRIPT = Path(__file__).parents[2] / "examples" / "gallery.py"


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("gallery", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gallery"] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gallery"]


def test_every_panel_is_drawn_and_labelled(gallery, tmp_path):
    page = gallery.page(replace(gallery.SMALL, resolution=15, repeats=1))
    panels = [ax for ax in page.axes if ax.get_title()]
    assert [ax.get_title() for ax in panels] == list(gallery.PANELS)
    for ax in panels:
        assert ax.lines or ax.patches or ax.collections
        if ax.get_title() != "methods" and "map" not in ax.get_title():
            assert ax.get_xlabel(), ax.get_title()
            assert ax.get_ylabel(), ax.get_title()
            assert ax.get_legend() is not None, ax.get_title()
    page.savefig(tmp_path / "page.png", dpi=20)
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_no_plot_is_left_out(gallery):
    source = inspect.getsource(gallery)
    parts = {
        "confidence_map",
        "classes_scatter",
        "data_grid",
        "frame",
        "score_histogram",
        "spread_trace",
    }  # used by others
    others = {"confidence_figure", "require_matplotlib", "look", "colour", "Look"}  # they draw on no axes
    for name in set(plots.__all__) - parts - others:
        assert f"plots.{name}" in source or not callable(getattr(plots, name)), name


def test_the_page_of_the_documentation_is_small_and_names_everything():
    docs = SCRIPT.parents[1] / "docs"
    assert 50_000 < (docs / "figures.png").stat().st_size < 200_000
    text = (docs / "how_to/figures.md").read_text()
    for module in (plots, metrics):
        for name in module.__all__:
            if inspect.isfunction(getattr(module, name)):
                assert f"`{name}" in text or f"plots.{name}(" in text, name


def test_the_script_writes_a_file_for_each_panel(gallery, tmp_path):
    few = {title: gallery.PANELS[title] for title in ("reliability, breast cancer", "methods")}
    gallery.main(["--small", "--out", str(tmp_path / "new" / "folder")], panels=few)
    written = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert written == ["gallery.png", "methods.png", "reliability_breast_cancer.png"]
