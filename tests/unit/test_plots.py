"""Plots draw what they are given, on the axes they are given."""

import numpy as np
import pytest

from enkbayes import plots

figure = pytest.importorskip("matplotlib.figure")


@pytest.fixture
def ax():
    return figure.Figure().subplots()


def test_functions_return_their_axes_and_the_boundary_is_where_p_is_one_half(ax):
    at, edges = plots.grid(np.array([1.0, 2.0]), 3.0, points=61)
    proba = 1 / (1 + np.exp(-(at[:, 0] - 1.5)))
    assert plots.confidence_map(ax, proba, edges) is ax
    boundary = ax.collections[1].get_paths()[0].vertices
    np.testing.assert_allclose(boundary[:, 0], 1.5, atol=1e-2)
    assert ax.get_xlim() == (-2.0, 4.0)
    assert plots.classes_scatter(ax, at[:10], np.arange(10) % 2) is ax
    assert plots.frame(ax, edges) is ax


def test_a_map_without_boundary_draws_none(ax):
    _, edges = plots.grid(np.zeros(2), 1.0, points=9)
    plots.confidence_map(ax, np.full(81, 0.9), edges)
    assert len(ax.collections) == 1


def test_a_column_for_each_method():
    points = np.array([[0.0, 0.0], [1.0, 1.0]])
    methods = {"a": lambda at: np.full(len(at), 0.7), "b": lambda at: np.full(len(at), 0.2)}
    drawn = plots.confidence_figure(methods, points, np.array([0, 1]), zoom=4.0)
    assert [ax.get_title() for ax in drawn.axes[:2]] == ["a", "b"]
    assert len(drawn.axes) == 5
