"""Plots show the given data on the given axes."""

import inspect
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
import scipy.stats
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.preprocessing import StandardScaler

import enkbayes as eb
from enkbayes.evaluation import metrics, plots
from enkbayes.inference.summary import Summary

figure = pytest.importorskip("matplotlib.figure")

METHODS = [
    *("mle", "map", "temperature", "deep-ensemble", "laplace", "laplace-probit", "hmc", "aldi", "eks"),
    *("particle-flow", "svgd", "equilibrium", "mean-field", "homotopy", "trotter", "tamed-homotopy", "stochastic"),
]


@pytest.fixture
def ax():
    return figure.Figure().subplots()


@pytest.fixture(scope="module")
def problem():
    features, labels = load_breast_cancer(return_X_y=True)
    return eb.Problem.create(StandardScaler().fit_transform(features)[:100, :5], labels[:100], intercept=10.0)


@pytest.fixture(scope="module")
def posterior(problem):
    return eb.run(problem)


@pytest.fixture(scope="module")
def iris():
    features, labels = load_iris(return_X_y=True)
    features = StandardScaler().fit_transform(features)[:, 2:]
    return features, labels, eb.run(eb.Problem.create(features, labels, 5.0, intercept=5.0), eb.Homotopy())


def names(ax):
    return ax.get_legend_handles_labels()[1]


# --- looks ---


def test_every_method_has_its_own_colour_and_marker():
    assert sorted(plots.LOOKS) == sorted(METHODS) == sorted(plots.METHOD_COLORS)
    assert len({look.marker for look in plots.LOOKS.values()}) == len(METHODS)
    assert len(set(plots.METHOD_COLORS.values())) == len(METHODS)
    assert plots.look("somebody's method") == plots.look("somebody's method")
    assert plots.look("somebody's method") not in plots.LOOKS.values()


# simulated protanopia, deuteranopia and tritanopia in linear RGB (Machado, Oliveira and Fernandes 2009)
BLINDNESS = np.array(
    [
        np.eye(3),
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    ]
)
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def seen(colour):
    """CIELAB coordinates (4, 3) of a colour with normal vision and with three kinds of colour blindness."""
    from matplotlib.colors import to_rgb

    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = np.clip(BLINDNESS @ linear, 0, 1) @ TO_XYZ.T / [0.95047, 1, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)


def test_colours_can_be_distinguished_with_colour_blindness():
    for (a, one), (b, two) in combinations(plots.LOOKS.items(), 2):
        apart = np.min(np.linalg.norm(seen(one.colour) - seen(two.colour), axis=1))
        assert apart > (16 if one.line == two.line else 13), (a, b, apart)
    for name, look in plots.LOOKS.items():
        assert seen(look.colour)[0, 0] < 77, f"{name} is too pale for white paper"


def test_a_method_has_the_same_colour_in_every_figure(problem, posterior):
    from matplotlib.colors import same_color

    proba, targets = [0.9, 0.8, 0.4], [1, 1, 0]
    trace = plots.Trace.of(eb.iterate(problem))
    curve = metrics.confidence_by_distance(proba, [0.0, 1.0, 2.0], bins=2)
    drawings = [
        lambda ax: plots.reliability_diagram(ax, proba, targets, name="laplace"),
        lambda ax: plots.residual_trace(ax, trace, name="laplace"),
        lambda ax: plots.spread_trace(ax, trace, name="laplace"),
        lambda ax: plots.confidence_distance(ax, curve, name="laplace"),
        lambda ax: plots.size_sweep(ax, [10, 20], [0.2, 0.1], name="laplace"),
        lambda ax: plots.marginal_posterior(ax, posterior, 0, name="laplace"),
        lambda ax: plots.marginal_draws(ax, posterior.theta[:, 0], name="laplace"),
    ]
    for draw in drawings:
        ax = figure.Figure().subplots()
        assert draw(ax) is ax
        (line,) = (line for line in ax.lines if line.get_label().startswith("laplace"))
        assert same_color(line.get_color(), plots.colour("laplace"))
        assert ax.get_xlabel() or draw in drawings[-2:]  # the caller labels the parameter
        assert ax.get_ylabel()


# --- calibration ---


def test_reliability_diagram_shows_the_bins(ax):
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.ones(4), 300)
    targets = rng.integers(0, 4, 300)
    bins = metrics.reliability(proba, targets, bins=8)
    full = bins.count > 0
    assert plots.reliability_diagram(ax, proba, targets, name="map", bins=8) is ax
    diagonal, line = ax.lines
    np.testing.assert_array_equal(diagonal.get_xydata(), [[0, 0], [1, 1]])
    np.testing.assert_array_equal(line.get_xdata(), bins.confidence[full])
    np.testing.assert_array_equal(line.get_ydata(), bins.accuracy[full])
    np.testing.assert_allclose([p[:, 1] for p in ax.collections[0].get_segments()], bins.interval[:, full].T)
    (counts_axes,) = ax.child_axes
    counts = counts_axes.patches[0].get_data()
    np.testing.assert_array_equal(counts.values, bins.count)
    np.testing.assert_array_equal(counts.edges, bins.edges)
    assert names(ax) == ["calibrated", f"map (ECE {bins.ece:.3f})"]
    assert (ax.get_xlabel(), ax.get_ylabel(), counts_axes.get_ylabel()) == ("confidence", "accuracy", "rows")
    assert ax.get_xlim()[0] < 0.25 < ax.get_xlim()[0] + 0.05


def test_two_methods_share_diagonal_and_counts_axes(ax):
    many, few = np.full(500, 0.9), np.full(20, 0.6)
    plots.reliability_diagram(ax, many, np.ones(500), name="mle", label="trained", adaptive=True)
    plots.reliability_diagram(ax, few, np.ones(20), name="hmc")
    assert names(ax) == ["calibrated", "trained (ECE 0.100)", "hmc (ECE 0.400)"]
    (counts_axes,) = ax.child_axes
    assert counts_axes.get_ylim()[1] > 500  # the larger of the two counts is visible


def test_histograms_show_shares(ax):
    rng = np.random.default_rng(0)
    inside, outside = rng.dirichlet([5, 1, 1], 200), rng.dirichlet([2, 2, 2], 70)
    assert plots.ood_histogram(ax, inside, outside, bins=10) is ax
    edges = np.linspace(1 / 3, 1, 11)
    for patch, proba in zip((ax.patches[0], ax.patches[2]), (inside, outside), strict=True):
        shares = patch.get_data().values
        np.testing.assert_allclose(shares, np.histogram(proba.max(axis=1), edges)[0] / len(proba))
        assert shares.sum() == pytest.approx(1)
    auroc = metrics.ood_score(inside, outside).auroc
    assert names(ax) == ["in distribution", f"out of distribution (AUROC {auroc:.3f})"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("confidence", "share of rows")
    assert ax.get_ylim()[0] == 0


# --- runs ---


def test_traces_show_residual_and_trace_of_the_covariance(problem, ax):
    states = []
    eb.run(problem, callback=states.append)
    trace = plots.Trace.of(states)
    assert trace.spread == pytest.approx([np.trace(state.ensemble.cov) for state in states])
    assert plots.convergence_trace(ax, trace) is ax
    finite = np.isfinite(trace.residual)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), trace.residual[finite])
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), np.array([state.steps for state in states])[finite])
    left, right = ax.figure.axes
    np.testing.assert_array_equal(right.lines[0].get_ydata(), trace.spread)
    assert (left.get_ylabel(), right.get_ylabel()) == ("residual (natural-gradient norm)", "trace of P")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["residual (left)", "trace of P (right)"]


def test_a_homotopy_has_no_residual_unless_the_problem_is_given(problem, ax):
    states = list(eb.iterate(problem, eb.Homotopy(steps=5)))
    plots.convergence_trace(ax, plots.Trace.of(states), name="homotopy")
    assert len(ax.figure.axes) == 1
    assert ax.get_ylabel() == "trace of P"
    residual = plots.Trace.of(states, problem).residual
    assert residual[0] == pytest.approx(problem.potential_moments(states[0].ensemble).residual)
    assert residual[-1] < residual[0]
    with pytest.raises(ValueError, match="no states"):
        plots.Trace.of(iter(()))


def test_the_axis_of_a_wide_spread_is_logarithmic(ax):
    steps = np.arange(3)
    plots.spread_trace(ax, plots.Trace(steps, np.full(3, np.nan), np.array([3.0, 2.0, 1.0])), name="homotopy")
    assert ax.get_yscale() == "linear"
    plots.spread_trace(ax, plots.Trace(steps, np.full(3, np.nan), np.array([500.0, 2.0, 1.0])), name="trotter")
    assert ax.get_yscale() == "log"


# --- marginals ---


def test_the_marginal_of_a_gaussian_is_exact(posterior, ax):
    assert plots.marginal_posterior(ax, posterior, 2) is ax
    x, density = ax.lines[0].get_data()
    normal = scipy.stats.norm(posterior.mean[2], posterior.cov[2, 2] ** 0.5)
    np.testing.assert_allclose(density, normal.pdf(x))
    assert (ax.get_ylabel(), names(ax)) == ("density", ["equilibrium"])


def test_draws_have_a_density_and_weights_move_it(ax):
    draws = np.random.default_rng(0).normal(3.0, 2.0, 2000)
    plots.marginal_draws(ax, draws, filled=True)
    plots.marginal_draws(ax, draws, weights=draws > 3.0, name="aldi")
    for line, mean in zip(ax.lines, (draws.mean(), draws[draws > 3.0].mean()), strict=True):
        x, density = line.get_data()
        assert np.trapezoid(density, x) == pytest.approx(1, abs=0.01)
        assert np.trapezoid(density * x, x) == pytest.approx(mean, abs=0.05)
        assert density.max() < ax.get_ylim()[1]
    assert len(ax.collections) == 1
    with pytest.raises(ValueError, match="at least two"):
        plots.marginal_draws(ax, np.ones(5))


def test_a_posterior_without_a_gaussian_shows_its_particles(problem, ax):
    noisy = eb.run(problem, eb.StochasticSampler(ds=0.05), particles=50)
    assert not noisy.gaussian
    plots.marginal_posterior(ax, noisy, 0, name="stochastic")
    x, density = ax.lines[0].get_data()
    assert np.trapezoid(density * x, x) == pytest.approx(noisy.theta[:, 0].mean(), abs=1e-3)


# --- curves ---


def test_confidence_against_distance_has_bands_and_an_ideal(ax):
    proba = np.array([[0.9, 0.1], [0.7, 0.3], [1.0, 0.0], [0.5, 0.5], [0.6, 0.4]])
    curve = metrics.confidence_by_distance(proba, [0.5, 0.6, 0.7, 2.5, 2.9], bins=[0.0, 1.0, 2.0, 3.0])
    assert plots.confidence_distance(ax, curve, name="hmc") is ax
    ideal, line = ax.lines
    assert list(ideal.get_ydata()) == [0.5, 0.5]
    assert ideal.get_linestyle() == "--"
    np.testing.assert_array_equal(line.get_xdata(), [0.5, 2.5])  # the empty bin is not drawn
    np.testing.assert_allclose(line.get_ydata(), [np.mean([0.9, 0.7, 1.0]), 0.55])
    band = ax.collections[0].get_paths()[0].vertices
    sd = np.std([0.9, 0.7, 1.0])
    assert band[:, 1].max() == pytest.approx(min(1.0, line.get_ydata()[0] + sd))
    assert band[band[:, 0] == 0.5, 1].min() == pytest.approx(line.get_ydata()[0] - sd)
    assert band[:, 1].min() == pytest.approx(0.5)
    plots.confidence_distance(ax, curve, name="mle")
    assert names(ax) == ["ideal far away (0.5)", "hmc", "mle"]
    assert ax.get_xlabel() == "distance to the nearest training point"


def test_a_sweep_shows_medians_quantiles_and_the_rate(ax):
    sizes, values = np.array([20, 80, 320]), np.random.default_rng(0).uniform(0.1, 1, (3, 11))
    assert plots.size_sweep(ax, sizes, values, ylabel="distance", rate=True) is ax
    line, rate = ax.lines
    np.testing.assert_array_equal(line.get_xdata(), sizes)
    np.testing.assert_allclose(line.get_ydata(), np.median(values, axis=1))
    np.testing.assert_allclose(rate.get_ydata(), np.median(values[0]) / np.array([1, 2, 4]))
    band = ax.collections[0].get_paths()[0].vertices
    assert band[band[:, 0] == 20, 1].min() == pytest.approx(np.quantile(values[0], 0.1))
    assert band[band[:, 0] == 20, 1].max() == pytest.approx(np.quantile(values[0], 0.9))
    plots.size_sweep(ax, [40], [0.3], name="homotopy", ylabel="distance")
    assert [text.get_text() for text in ax.get_xticklabels()] == ["20", "40", "80", "320"]
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_ylabel()) == ("log", "log", "distance")
    with pytest.raises(ValueError, match=r"sizes have shape \(2,\) and values \(1,\)"):
        plots.size_sweep(ax, [1, 2], [1.0])


# --- maps ---


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


def test_boundaries_of_three_classes_are_where_the_two_likeliest_are_equal(ax, iris):
    points, labels, posterior = iris
    plots.data_map(ax, posterior.predict_proba, points, labels, resolution=80)
    filled, *lines = ax.collections[:-3]  # the last three are the classes
    np.testing.assert_allclose(filled.levels, np.linspace(1 / 3, 1, 11))
    assert len(lines) == 3
    for line in lines:
        for path in line.get_paths():
            top = np.sort(posterior.predict_proba(path.vertices), axis=1)
            np.testing.assert_allclose(top[:, -1], top[:, -2], atol=0.02)
    for k, scatter in enumerate(ax.collections[-3:]):
        np.testing.assert_array_equal(scatter.get_offsets(), points[labels == k])
    assert names(ax) == ["class 0", "class 1", "class 2"]


def test_a_zoomed_out_map_frames_the_near_one(iris):
    points, labels, posterior = iris
    near, far = figure.Figure().subplots(1, 2)
    plots.data_map(near, posterior.predict_proba, points, labels, resolution=20)
    plots.data_map(far, posterior.predict_proba, points, labels, zoom=8.0, resolution=20)
    assert len(near.lines) == 0
    np.testing.assert_allclose([far.lines[0].get_xdata().min(), far.lines[0].get_xdata().max()], near.get_xlim())
    assert np.diff(far.get_xlim()) == pytest.approx(8 * np.diff(near.get_xlim()))
    with pytest.raises(ValueError, match="maps show two dimensions"):
        plots.data_map(near, posterior.predict_proba, np.ones((4, 3)), np.zeros(4))
    with pytest.raises(ValueError, match="square grid"):
        plots.confidence_map(near, np.full(10, 0.5), np.array([0.0, 1.0, 0.0, 1.0]))


def test_ten_classes_differ_in_colour_or_marker(ax):
    plots.classes_scatter(ax, np.random.default_rng(0).random((10, 2)), np.arange(10))
    drawn = {(tuple(c.get_facecolor()[0]), c.get_paths()[0].vertices.tobytes()) for c in ax.collections}
    assert len(drawn) == 10


def test_a_column_for_each_method():
    points = np.array([[0.0, 0.0], [1.0, 1.0]])
    methods = {"a": lambda at: np.full(len(at), 0.7), "b": lambda at: np.full(len(at), 0.2)}
    drawn = plots.confidence_figure(methods, points, np.array([0, 1]), zoom=4.0)
    assert [ax.get_title() for ax in drawn.axes[:2]] == ["a", "b"]
    assert len(drawn.axes) == 5


# --- manners ---


def test_every_public_name_has_a_runnable_example():
    for module in (plots, metrics):
        for name in module.__all__:
            thing = getattr(module, name)
            assert not callable(thing) or ">>>" in inspect.getdoc(thing), name


def test_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"install it with: pip install 'enkbayes\[plots\]'"):
        plots.require_matplotlib()


def test_drawing_changes_no_global_state():
    script = """
import sys
import enkbayes.evaluation.plots as plots
assert "matplotlib" not in sys.modules
figure = plots.require_matplotlib()
import matplotlib
settings = lambda: {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}
before = settings()
import numpy as np
drawn = figure.Figure(layout="constrained")
left, right = drawn.subplots(1, 2)
plots.reliability_diagram(left, [0.9, 0.6], [1, 0]).legend()
plots.data_map(right, lambda at: np.full(len(at), 0.7), np.eye(2), np.array([0, 1]), zoom=2.0, resolution=10)
import io
drawn.savefig(io.BytesIO())
assert "matplotlib.pyplot" not in sys.modules
assert settings() == before
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=120)


def test_a_forest_plot_shows_the_table(ax):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 2))
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(
        X, np.asarray(["a", "b", "c"])[np.arange(90) % 3]
    )
    summary = clf.summary(level=0.8)
    plots.coefficient_plot(ax, summary, intercept=True)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["x0", "x1", "intercept"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b", "c"]
    for output, drawn in zip("abc", ax.containers, strict=True):
        rows = [row for row in summary.rows if row.output == output]
        dots, _, (bars,) = drawn
        np.testing.assert_allclose(dots.get_xdata(), [row.mean for row in rows])
        ends = np.asarray([segment[:, 0] for segment in bars.get_segments()])
        np.testing.assert_allclose(ends, [[row.low, row.high] for row in rows])
    assert "80%" in ax.get_xlabel()
    with pytest.raises(ValueError, match="summary has no rows"):
        plots.coefficient_plot(ax, Summary((), 0.9))
