"""The comparison: the same rows and prior for every method, valid intervals, and failures that do not stop others."""

import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris

import enkbayes as eb
from enkbayes.evaluation.baselines import BY_NAME, HMC, MAP, Ensemble
from enkbayes.evaluation.compare import Comparison, Estimate, Split, compare, standardised_splits, stratified_rows
from enkbayes.evaluation.metrics import predictive_distance, score

ROOT = Path(__file__).parents[2]
MEAN_FIELD = Ensemble("mean-field", eb.MeanField())


@dataclass(frozen=True)
class Spy:
    """A method that records its arguments and predicts given probabilities."""

    name: str = "spy"
    error: Exception | None = None
    fail_on: tuple[int, ...] = ()
    says: str = ""
    seen: list = field(default_factory=list, compare=False)

    def fit(self, problem, *, seed=0, progress=False):
        self.seen.append((problem, seed))
        if self.error is not None and (not self.fail_on or len(self.seen) - 1 in self.fail_on):
            raise self.error
        if self.says:
            warnings.warn(self.says, UserWarning, stacklevel=1)
        return MAP().fit(problem, seed=seed)


def iris_splits(repeats=1, **options):
    x, y = load_iris(return_X_y=True)
    return standardised_splits(x, y, repeats=repeats, **options)


def run(methods, splits=None, **options) -> Comparison:
    settings = {"classes": 3, "yardstick": MAP()} | options
    return compare(iris_splits() if splits is None else splits, methods, **settings)


def test_every_method_gets_the_same_rows_and_the_same_prior():
    spies = [Spy("a"), Spy("b")]
    found = run(spies, iris_splits(repeats=2), prior_precision=4.0, intercept_precision=0.5, seed=9)
    for one, other in zip(spies[0].seen, spies[1].seen, strict=True):
        assert one[1] == other[1]
        assert one[0] is other[0]
    (first, seed), (second, next_seed) = spies[0].seen[0], spies[0].seen[-1]
    assert (seed, next_seed) == (9, 10)
    assert not np.array_equal(first.features, second.features)
    np.testing.assert_array_equal(first.prior.cov, [0.25] * 12 + [2.0] * 3)
    assert (found.prior_precision, found.intercept_precision) == (4.0, 0.5)
    assert (found.classes, found.features, found.train_rows, found.test_rows, found.repeats) == (3, 4, 105, 45, 2)


def test_the_table_contains_the_scores_of_the_predictions():
    split = next(iris_splits())
    found = run([MEAN_FIELD, MAP()], [split], reference=Ensemble("other", eb.Equilibrium()), seed=3)
    problem = eb.Problem.create(split.train, split.train_targets, 1.0, intercept=100.0)
    posterior = MEAN_FIELD.fit(problem, seed=3)
    proba = posterior.predict_proba(split.test)
    row = found.row("mean-field")
    expected = score(proba, split.test_targets)
    for name in ("accuracy", "nll", "brier", "ece"):
        assert getattr(row, name) == Estimate(
            pytest.approx(getattr(expected, name)), pytest.approx(math.nan, nan_ok=True)
        )
    uncertainty = posterior.predict_uncertainty(split.test)
    assert row.epistemic_share.mean == pytest.approx(uncertainty.epistemic.mean() / uncertainty.total.mean())
    assert 0 < row.epistemic_share.mean < 1
    assert found.row("map").epistemic_share.mean == 0
    reference = eb.run(problem, eb.Equilibrium(), seed=1_000_006).predict_proba(split.test)
    assert row.distance.mean == pytest.approx(predictive_distance(proba, reference).mean)
    assert found.row("map").distance.mean > 3 * row.distance.mean
    assert found.reference_error.mean == 0  # Gaussian predictions are integrated, not sampled
    np.testing.assert_array_equal(found.proba["mean-field"], proba)
    np.testing.assert_array_equal(found.targets, split.test_targets)


def test_the_monte_carlo_error_of_a_sampled_reference():
    """The error of an average over J independent members falls as J^(-1/2)."""

    @dataclass(frozen=True)
    class Draws:
        members: int
        name: str = "draws"

        def fit(self, problem, *, seed=0, progress=False):
            self_members, rng = self.members, np.random.default_rng(0)

            class Predictor:
                def sample_proba(self, features):
                    p = rng.uniform(0, 1, (self_members, len(features)))
                    return np.stack([1 - p, p], axis=-1)

                def predict_proba(self, features):
                    return self.sample_proba(features).mean(0)

                def predict_uncertainty(self, features):
                    return eb.Uncertainty.of_members(self.sample_proba(features))

            return Predictor()

    x, y = load_breast_cancer(return_X_y=True)
    splits = list(standardised_splits(x[:, :2], y))
    errors = [run([], splits, classes=2, reference=Draws(j)).reference_error.mean for j in (50, 800)]
    for error, j in zip(errors, (50, 800), strict=True):
        sd = math.sqrt(1 / 12 / j)  # of the average of J uniform numbers
        assert error == pytest.approx(sd * math.sqrt(2 / math.pi), rel=0.2)


def test_a_failure_is_reported_and_the_others_still_run():
    broken = Spy("broken", error=ValueError("the data\n do not  suit me"))
    sometimes = Spy("sometimes", error=RuntimeError(), fail_on=(3,))  # a short fit is repeated three times
    found = run([broken, sometimes, MAP()], iris_splits(repeats=3))
    row = found.row("broken")
    assert (row.failures, row.failure) == (3, "the data do not suit me")
    assert math.isnan(row.accuracy.mean)
    row = found.row("sometimes")
    assert (row.failures, row.failure) == (1, "RuntimeError")
    assert row.accuracy.mean > 0.8
    assert found.row("map").failures == 0
    assert list(found.proba) == ["map"]
    assert found.proba["map"].shape == (135, 3)
    with pytest.raises(KeyError):
        run([Spy(error=KeyError("a mistake in the code is not the data's fault"))])


def test_remarks_of_methods_are_stored_once():
    found = run([Spy(says="mind  the gap")], iris_splits(repeats=2))
    assert found.rows[0].remarks == ("mind the gap",)
    judged = run([MAP()], reference=Spy(says="I am not sure"))
    assert judged.reference_remarks == ("I am not sure",)
    assert judged.reference_error.mean == 0  # a point estimate has no sampling error
    short = run([Ensemble("few", eb.Equilibrium(), particles=5)])
    assert any("directions" in remark for remark in short.rows[0].remarks)


def test_intervals_cover_the_truth_for_splits_that_share_rows():
    """The usual t-interval over overlapping splits is too narrow; the corrected one has about the right coverage.

    The truth is the accuracy of a classifier trained on so many rows, over fresh data sets. A nearest-mean rule is
    quick, and its accuracy on each split is all that matters here.
    """
    rng = np.random.default_rng(0)

    def accuracies(x, y, pairs):
        for train, test in pairs:
            w = x[train][y[train] == 1].mean(0) - x[train][y[train] == 0].mean(0)
            yield np.mean((x[test] @ w > 0) == y[test])

    def data(n):
        y = np.arange(n) % 2
        return rng.standard_normal((n, 3)) + 0.5 * (2 * y[:, None] - 1), y

    x, y = data(200_000)
    truth = np.mean(
        [next(accuracies(x, y, [(np.arange(i, i + 42), np.arange(100_000, 101_000))])) for i in range(0, 42_000, 42)]
    )
    plain = corrected = 0
    sets = 120
    for seed in range(sets):
        x, y = data(60)
        values = list(accuracies(x, y, stratified_rows(y, 0.3, 10, seed)))
        plain += abs(np.mean(values) - truth) < Estimate.of(values, 0.0).half_width
        corrected += abs(np.mean(values) - truth) < Estimate.of(values, 18 / 42).half_width
    assert plain / sets < 0.75
    assert 0.9 < corrected / sets <= 1


def test_one_split_has_no_interval_and_no_values_no_mean():
    assert math.isnan(Estimate.of([0.3], 0.5).half_width)
    assert math.isnan(Estimate.of([], 0.5).mean)


def test_splits_are_stratified_disjoint_and_scaled_by_their_training_rows():
    x, y = load_breast_cancer(return_X_y=True)
    pairs = stratified_rows(y, 0.25, repeats=3, seed=1)
    for train, test in pairs:
        assert sorted([*train, *test]) == list(range(len(y)))
        assert np.mean(y[test]) == pytest.approx(np.mean(y), abs=0.01)
    assert not np.array_equal(pairs[0][1], pairs[1][1])
    again = stratified_rows(y, 0.25, repeats=3, seed=1)
    np.testing.assert_array_equal(pairs[2][0], again[2][0])
    wide = np.column_stack([x, np.ones(len(x))])
    split = next(standardised_splits(wide, y, test_size=0.25, seed=1))
    np.testing.assert_allclose(split.train[:, :-1].std(0), 1)
    np.testing.assert_array_equal(split.test[:, -1], 0)
    train, test = pairs[0]
    np.testing.assert_allclose(split.test[:, 0], (x[test, 0] - x[train, 0].mean()) / x[train, 0].std())
    np.testing.assert_array_equal(split.test_targets, y[test])


@pytest.mark.parametrize(
    ("targets", "test_size", "repeats", "words"),
    [
        ([0, 0, 0, 1], 0.5, 1, "class 1 has a single row"),
        ([0, 0, 1, 1], 1.5, 1, "the test size is 1.5"),
        ([0, 0, 1, 1], 0.1, 1, "leave 3 training and 1 test rows"),
        ([0, 0, 1, 1], 0.5, 0, "repeats is 0"),
    ],
)
def test_impossible_splits_are_refused(targets, test_size, repeats, words):
    with pytest.raises(ValueError, match=words):
        stratified_rows(np.array(targets), test_size, repeats, 0)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="no splits"):
        run([MEAN_FIELD], [])
    with pytest.raises(ValueError, match="intercept_precision is 0"):
        run([MEAN_FIELD], intercept_precision=0)
    with pytest.raises(ValueError, match="prior_precision"):
        run([MEAN_FIELD], prior_precision=-1)


def test_time_is_a_multiple_of_the_yardstick_s():
    # three short fits of the MAP, one long fit of the method
    ticks = iter(np.cumsum([0, 0.2, 0, 0.5, 0, 0.25, 0, 30]).tolist())
    split = next(iris_splits())

    @dataclass(frozen=True)
    class Constant:
        name: str

        def fit(self, problem, *, seed=0, progress=False):
            return self

        def predict_proba(self, features):
            return np.full((len(features), 3), 1 / 3)

        def predict_uncertainty(self, features):
            return eb.Uncertainty.of_members(self.predict_proba(features)[None])

    found = run([Constant("constant")], [split], yardstick=Constant("unit"), clock=lambda: next(ticks))
    assert found.rows[0].time_ratio.mean == pytest.approx(30 / 0.25)


def test_the_figure_has_one_diagram_for_each_method_that_worked():
    pytest.importorskip("matplotlib")
    from enkbayes.evaluation.compare import reliability_figure

    methods = [MAP(name=f"m{i}") for i in range(7)]
    found = run([*methods, Spy("broken", error=ValueError("no"))])
    figure = reliability_figure(found)
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert titles == [f"m{i}  (ECE {found.rows[i].ece.mean:.3f})" for i in range(7)]
    drawn = [ax for ax in figure.axes if ax.axison and ax.get_title()]
    assert [ax.get_ylabel() for ax in drawn] == ["accuracy", "", "", "", "accuracy", "", ""]
    with pytest.raises(ValueError, match="nothing to draw"):
        reliability_figure(run([Spy("broken", error=ValueError("no"))]))


def test_equilibrium_is_much_closer_to_nuts_than_laplace():
    """The distance to NUTS is less than a third of that of Laplace, on a subset of the breast cancer data."""
    pytest.importorskip("numpyro")
    x, y = load_breast_cancer(return_X_y=True)
    split = Split(
        *(
            part
            for rows in (slice(0, 150), slice(150, 250))
            for part in ((x[rows, :6] - x[:, :6].mean(0)) / x[:, :6].std(0), y[rows])
        )
    )
    methods = [BY_NAME["equilibrium"](), BY_NAME["laplace"]()]
    reference = HMC(samples=1500, chains=4, warmup=150)
    found = compare([split], methods, classes=2, yardstick=MAP(), reference=reference)
    near, far = (found.row(name).distance.mean for name in ("equilibrium", "laplace"))
    assert near < far / 3
    assert found.reference_error.mean < far / 5


def test_the_python_of_the_documentation_runs():
    text = (ROOT / "docs/how_to/compare.md").read_text(encoding="utf-8")
    names: dict = {}
    exec(compile(text.split("```python\n")[1].split("```")[0], "compare.md", "exec"), names)
    rows = {name: names["found"].row(name).distance for name in ("equilibrium", "laplace")}
    assert rows["equilibrium"].mean < rows["laplace"].mean / 3
