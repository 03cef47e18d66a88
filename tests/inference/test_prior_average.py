"""The default prior: an average over its width."""

from functools import partial

import numpy as np
import pytest
import scipy.sparse
from scipy.special import expit, logsumexp
from sklearn.preprocessing import scale

import enkbayes as eb
from enkbayes.inference.empirical_bayes import with_variances
from enkbayes.inference.many_classes import WidthAverage
from enkbayes.inference.prior_average import (
    Component,
    PriorAverage,
    WidthGrid,
    average_over_widths,
    average_posterior,
    fixed_width,
    logit_variance,
    mixture_of,
    weigh_widths,
)
from enkbayes.inference.stacking import stacking_weights
from enkbayes.inference.trust import COMMAND

fit = partial(eb.run, particles=60)


def data(size=80, dim=6, spread=1.5, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((size, dim))
    weights = rng.standard_normal(dim) * spread / np.sqrt(dim)
    return features, (rng.random(size) < expit(features @ weights)).astype(int)


def problem(features, labels, **settings):
    return eb.Problem.create(features, labels, intercept=100.0, classes=[0, 1], **settings)


def groups(dim):
    return np.append(np.zeros(dim, dtype=int), -1)


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_weights_are_by_evidence_where_no_row_can_be_held_out(share):
    features, labels = data(1, 2)
    grid = WidthGrid(share=share)
    found = weigh_widths(problem(features, labels), groups(2), grid=grid)
    assert found.rows == 0
    assert abs(sum(found.weights) - 1) < 1e-12
    prior = np.asarray([each.prior_weight for each in found.components])
    np.testing.assert_allclose(found.weights, prior / prior.sum(), atol=0.1)  # one row says little


def test_a_mixture_of_the_widths_has_their_priors_and_weights():
    features, labels = data()
    base = problem(features, labels)
    mixture, average = average_over_widths(base, groups(6), fit)
    assert mixture.weights == average.weights
    assert abs(sum(average.weights) - 1) < 1e-12
    for width, prior in zip(average.widths, mixture.priors, strict=True):
        np.testing.assert_allclose(logit_variance(base.with_prior(prior), groups(6)), width)
        assert prior.cov[-1] == 100.0  # the intercept keeps its prior
    assert all(c.ensemble.points is mixture.components[0].ensemble.points for c in mixture.components)


def test_rows_in_any_order_and_repeated_rows_give_the_same_weights():
    features, labels = data(40)
    counts = np.random.default_rng(1).integers(0, 4, 40)
    weighted = weigh_widths(problem(features, labels, weights=counts), groups(6))
    order = np.random.default_rng(2).permutation(np.repeat(np.arange(40), counts))
    repeated = weigh_widths(problem(features[order], labels[order]), groups(6))
    np.testing.assert_allclose(weighted.weights, repeated.weights, atol=1e-9)
    assert weighted.precisions == pytest.approx(repeated.precisions)


@pytest.mark.parametrize("one_hot", [False, True])
def test_the_order_of_the_features_does_not_matter(one_hot):
    """Folds that followed a random projection of the features moved probabilities by .03."""
    rng = np.random.default_rng(3)
    features, labels = data(60, 30, 3.0)
    if one_hot:
        features = np.eye(5)[rng.integers(0, 5, (60, 6))].reshape(60, 30)
    order = rng.permutation(30)
    here, there = (average_over_widths(problem(x, labels), groups(30), fit)[0] for x in (features, features[:, order]))
    np.testing.assert_allclose(there.weights, here.weights, atol=1e-4)
    np.testing.assert_allclose(there.predict_proba(features[:, order]), here.predict_proba(features), atol=1e-4)


def test_units_of_the_features_do_not_matter():
    features, labels = data(40)
    here, there = (weigh_widths(problem(s * features, labels), groups(6)) for s in (1.0, 1024.0))
    np.testing.assert_allclose(there.weights, here.weights, atol=1e-3)
    np.testing.assert_allclose(there.precisions / 1024.0**2, here.precisions, rtol=1e-6)


def test_fewer_rows_than_features_are_the_same_problem_in_the_space_of_the_rows():
    features, labels = data(20, 30, spread=3.0)
    features = scale(features)  # otherwise the one group is centred, and several are not
    narrow = WidthGrid(widths=(0.3, 3.0, 30.0), tol=1e-6, tol_folds=1e-6, steps=200, steps_folds=200)
    two_groups = np.append(np.repeat([0, 1], 15), -1)  # two equal groups are one, and fitted in all directions
    reduced = weigh_widths(problem(features, labels), groups(30), grid=narrow)
    full = weigh_widths(problem(features, labels), two_groups, grid=narrow)
    np.testing.assert_allclose(full.weights, reduced.weights, atol=1e-3)
    sparse = weigh_widths(problem(scipy.sparse.csr_array(features), labels), groups(30), grid=narrow)
    np.testing.assert_allclose(sparse.weights, reduced.weights, atol=1e-3)


def test_wide_signals_get_wide_priors_and_noise_gets_narrow_ones():
    def typical(spread):
        found = weigh_widths(problem(*data(300, 6, spread)), groups(6))
        return np.exp(np.asarray(found.weights) @ np.log(found.widths))

    assert typical(0.0) < 0.3
    assert typical(6.0) > 5.0


def test_separable_data_have_a_finite_average():
    features, _ = data(60)
    mixture, average = average_over_widths(problem(features, features[:, 0] > 0), groups(6), fit)
    assert mixture.info.converged
    assert np.all(np.isfinite(mixture.predict_proba(features)))
    assert average.widths[-1] > 30


def test_three_classes():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 3))
    labels = np.argmax(features + 0.5 * rng.gumbel(size=(60, 3)), axis=1)
    base = eb.Problem.create(features, labels, intercept=100.0)
    mixture, average = average_over_widths(base, np.repeat([0, 0, 0, -1], 3), fit)
    assert mixture.predict_proba(features).shape == (60, 3)
    assert average.rows == 60


def test_many_classes_are_averaged_over_point_estimates():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((160, 3))
    labels = np.argmax(features @ (3 * rng.standard_normal((3, 14))) + rng.gumbel(size=(160, 14)), axis=1)
    base = eb.Problem.create(features, labels, intercept=100.0)
    mixture, average = average_posterior(base, np.repeat([0, 0, 0, -1], base.likelihood.outputs), fit)
    assert "best point estimate" in average.message
    assert average.weights == mixture.weights
    assert mixture.theta.shape == (200, base.dim)


def test_rows_elsewhere_get_a_single_width_and_a_warning():
    features, labels = data()
    streamed = eb.Problem.stream([(features[:40], labels[:40]), (features[40:], labels[40:])], intercept=100.0)
    with pytest.warns(UserWarning, match="one prior width, logit variance 3, because the rows are in several places"):
        mixture, average = average_posterior(streamed, groups(6), fit)
    expected = fixed_width(problem(features, labels), groups(6), "")
    assert average.precisions == pytest.approx(expected.precisions, rel=0.1)  # which are centred
    assert mixture.weights == (1.0,)


def test_stacking_weights_maximise_their_objective():
    rng = np.random.default_rng(0)
    proba, around, counts = rng.random((50, 4)), rng.dirichlet(np.ones(4)), rng.integers(1, 3, 50)
    found = stacking_weights(np.log(proba).T, counts, 2.0, around, steps=300, enough=0.0)

    def objective(w):
        return counts @ np.log(proba @ w) + 2.0 * around @ np.log(w)

    others = [0.9 * found + 0.1 * rng.dirichlet(np.ones(4)) for _ in range(50)]
    assert objective(found) >= max(map(objective, others)) - 1e-6


def test_by_evidence_it_is_the_hierarchical_model():
    """With huge pseudo-counts the weights are those of the half-Cauchy prior times evidence; against a fine grid."""
    features, labels = data(25, 2)
    base, labelled = problem(features, labels), groups(2)
    mixture, _ = average_over_widths(base, labelled, fit, grid=WidthGrid(pseudo_rows=1e9, share=0.0, hopeless=1e9))
    sd = np.exp(np.linspace(np.log(0.1), np.log(60), 60))
    unit = logit_variance(base, labelled)
    problems = [with_variances(base, labelled, [s**2 / unit]) for s in sd]
    posteriors = [eb.run(p, particles=60) for p in problems]
    logs = [eb.log_evidence(p, q).value for p, q in zip(problems, posteriors, strict=True)]
    logs = np.asarray(logs) + np.log(sd / (1 + (sd / WidthGrid().scale) ** 2))
    weights = np.exp(logs - logsumexp(logs))
    fresh = np.random.default_rng(1).standard_normal((100, 2))
    fine = sum(w * q.predict_proba(fresh) for w, q in zip(weights, posteriors, strict=True))
    assert np.abs(mixture.predict_proba(fresh) - fine).mean() < 0.005


def test_what_held_out_rows_have_scaled_is_not_compared_with_a_posterior():
    features = np.random.default_rng(0).standard_normal((60, 30))
    labels = np.arange(60) % 20
    base = eb.Problem.create(features, labels, intercept=100.0)
    mixture, _ = average_posterior(base, np.repeat([0] * 30 + [-1], 20), fit)
    trust = eb.assess(base, mixture)
    assert trust.verdict == "usable"
    assert "held-out rows chose the scale" in trust.reason
    assert "use --prior-precision with a number" in trust.advised(COMMAND).advice
    assert trust.advised(COMMAND).reason == trust.reason
    assert str(eb.log_evidence(base, mixture)).startswith("not known")
    with pytest.warns(UserWarning, match="polish leaves this average as it is"):
        assert eb.polish(base, mixture, 3) is mixture


@pytest.mark.parametrize(("noise", "verdict"), [(0.5, "good"), (50.0, "do not trust")])
def test_predictions_of_what_held_out_rows_have_scaled_are_judged(noise, verdict):
    rng = np.random.default_rng(1)
    features = rng.standard_normal((150, 3))
    labels = np.argmax(features + noise * rng.standard_normal((150, 3)), axis=1)
    base = eb.Problem.create(features, labels, intercept=100.0)
    judged = eb.assess(base, WidthAverage().posterior(base), predictions=True).predictions
    assert (judged.verdict, judged.rows) == (verdict, 150)
    assert "5-fold cross-validation" in judged.reason


def apart(size, rng, dim=60, distance=3.0):
    """Return rows of two Gaussian classes that are far apart, in a direction that shares in all features."""
    labels = rng.integers(0, 2, size)
    return rng.standard_normal((size, dim)) + (2 * labels - 1)[:, None] * distance / np.sqrt(dim), labels


def test_classes_that_are_almost_separable_get_a_sharper_average_which_predicts_better():
    rng = np.random.default_rng(0)
    base, (features, labels) = problem(*apart(80, rng)), apart(2000, rng)
    mixture, average = average_over_widths(base, groups(60), fit)
    kept, _ = average_over_widths(base, groups(60), fit, grid=WidthGrid(decisive=np.inf, relative=np.inf))
    assert mixture.held_out
    assert {each.spread for each in average.components if each.sharper} <= {share for share, *_ in WidthGrid().sharp}
    assert min(each.spread for each in average.components) < 1
    assert "times the posterior's" in average.message
    assert not kept.held_out
    loss, before = (-np.log(m.predict_proba(features)[np.arange(2000), labels]).mean() for m in (mixture, kept))
    assert loss < 0.7 * before
    assert mixture.components[0].mean.shape == (61,)


def test_sharper_gaussians_are_around_the_mean_or_the_most_probable_weights():
    base = problem(*data(60, 4, 3.0))
    kinds = ((1.0, False), (0.3, False), (0.1, True))
    parts = tuple(Component(2.0, (0.5,), 1 / 3, 1 / 3, spread=s, around_mode=m) for s, m in kinds)
    average = PriorAverage(parts, rows=60, message="")
    whole, sharp, at_mode = mixture_of(base, groups(4), average, fit).components
    np.testing.assert_allclose(sharp.mean, whole.mean)
    np.testing.assert_allclose(sharp.cov, 0.3 * whole.cov)
    np.testing.assert_allclose(at_mode.cov, 0.1 * whole.cov)
    likely = eb.run(with_variances(base, groups(4), (0.5,)), eb.MeanField()).mean  # the mean is more extreme
    assert np.linalg.norm(at_mode.mean[:4]) < np.linalg.norm(likely[:4])


def test_inside_the_space_of_the_rows_a_gaussian_keeps_its_covariance_and_outside_hardly_any():
    features, labels = data(12, 30, 3.0)
    base = problem(features, labels)
    parts = tuple(Component(9.0, (0.3,), 0.5, 0.5, inside=inside) for inside in (False, True))
    average = PriorAverage(parts, rows=12, message="")
    whole, inside = mixture_of(base, groups(30), average, fit).components
    outside = np.linalg.svd(features)[2][12:]
    before, after = (np.einsum("ij,jk,ik->i", outside, c.cov[:30, :30], outside) for c in (whole, inside))
    np.testing.assert_allclose(before, 0.3, rtol=1e-2)
    np.testing.assert_allclose(after, 1e-4 * before, rtol=1e-6)
    for x in (features, features[:3] + 5 * features[3:6]):  # in the space of the rows
        np.testing.assert_allclose(inside.predict_proba(x), whole.predict_proba(x), atol=1e-6)


def test_wide_data_are_predicted_better_without_the_prior_outside_the_rows():
    rng = np.random.default_rng(5)
    (features, labels), (fresh, truth) = apart(60, rng, 300, 4.0), apart(2000, rng, 300, 4.0)
    base = problem(features, labels)
    mixture, average = average_over_widths(base, groups(300), fit)
    kept, _ = average_over_widths(
        base, groups(300), fit, grid=WidthGrid(sharp=((0.3, False, False), (0.1, True, False)))
    )
    assert any(each.inside for each in average.components)
    loss, before = (-np.log(m.predict_proba(fresh)[np.arange(2000), truth]).mean() for m in (mixture, kept))
    assert loss < before


@pytest.mark.parametrize("seed", range(3))
def test_where_the_prior_is_right_the_average_is_one_of_posteriors(seed):
    mixture, average = average_over_widths(problem(*data(120, 10, 3.0, seed)), groups(10), fit)
    assert not mixture.held_out
    assert not any(each.sharper for each in average.components)


def test_a_sharper_average_goes_through_files_learns_and_is_judged(tmp_path):
    rng = np.random.default_rng(0)
    clf = eb.EnsembleClassifier(random_state=0).fit(*apart(80, rng))
    assert clf.posterior_.held_out
    assert "held-out rows chose" in clf.trust_.reason
    assert "5-fold" in clf.trust_.predictions.reason or clf.trust_.predictions.verdict
    clf.save(tmp_path / "m.safetensors")
    features, labels = apart(300, rng)
    again = eb.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict_proba(features), clf.predict_proba(features))
    assert again.tuning_ == clf.tuning_
    before = clf.score(features, labels)
    assert clf.partial_fit(*apart(600, rng)).score(features, labels) >= before


def test_short_fits_are_those_of_all_parameters():
    features, labels = data(30, 50, spread=3.0)
    base = problem(features, labels)
    average = weigh_widths(base, groups(50))
    short, _ = average_posterior(base, groups(50), fit, tuning=average, particles=60, short=True)
    whole, _ = average_posterior(base, groups(50), partial(eb.run, sampler=eb.MeanField()), tuning=average)
    assert short.theta.shape == (60, 51)
    np.testing.assert_allclose(short.predict_proba(features), whole.predict_proba(features), atol=1e-5)
    np.testing.assert_allclose(short.cov, whole.cov, rtol=1e-4, atol=1e-4 * np.max(whole.cov))


@pytest.mark.parametrize(
    ("rows", "features", "classes", "posteriors"),
    [(200, 20, 3, True), (50, 400, 10, True), (600, 50, 10, True), (600, 60, 10, False), (1000, 16, 26, False)],
)
def test_a_softmax_of_ordinary_size_is_an_average_of_posteriors(rows, features, classes, posteriors):
    X = np.random.default_rng(0).standard_normal((rows, features))
    base = eb.Problem.create(X, np.arange(rows) % classes, likelihood=eb.Categorical(classes), intercept=1.0)
    assert WidthGrid().affordable(base) is posteriors
