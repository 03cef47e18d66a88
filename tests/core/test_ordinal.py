"""Ordered classes: what the cumulative-logit likelihood has in common with others, and the order of its classes."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

import enkbayes as eb
from enkbayes.inference import fit_likelihood
from enkbayes.inference.evidence import elbo

CUTPOINTS = (-2.0, -0.3, 0.1, 1.5)
ORDER = ["poor", "fair", "good"]


def graded(N=300, seed=0):
    """Features (N, 3) and grades in words, whose alphabetical order is not theirs."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((N, 3))
    score = features @ [1.5, -1.0, 0.5] + rng.logistic(size=N)
    return features, np.asarray(ORDER)[np.digitize(score, [-1.0, 1.0])]


def test_two_classes_are_bernoulli_with_a_shifted_logit():
    rng = np.random.default_rng(0)
    z, targets = 3 * rng.standard_normal((20, 4)), np.arange(20.0) % 2
    ordinal, bernoulli, c = eb.Ordinal((0.7,)), eb.Bernoulli(), 0.7
    for term in ("loss", "slope", "curvature"):
        assert getattr(ordinal, term)(z, targets) == pytest.approx(getattr(bernoulli, term)(z - c, targets), abs=1e-14)
    assert ordinal.mean(z) == pytest.approx(bernoulli.mean(z - c), abs=1e-15)
    V = rng.standard_normal((20, 3))
    assert ordinal.predictive(z[:, 0], V=V) == pytest.approx(bernoulli.predictive(z[:, 0] - c, V=V), abs=1e-15)
    features, labels = rng.standard_normal((60, 2)), rng.integers(0, 2, 60)

    one = eb.run(eb.Problem.create(features, labels, 1.0, intercept=1.0), eb.MeanField())
    prior = eb.Gaussian(np.asarray([0.0, 0.0, c]), 1.0)  # the intercept of one model is that of the other plus c
    two = eb.run(
        eb.Problem.create(features, labels, 1.0, intercept=1.0, likelihood=ordinal).with_prior(prior), eb.MeanField()
    )
    assert two.mean - prior.mean == pytest.approx(one.mean, abs=1e-7)
    assert two.cov == pytest.approx(one.cov, abs=1e-7)


def test_classes_in_reverse_order_are_the_model_with_another_sign():
    rng = np.random.default_rng(1)
    z, targets = 3 * rng.standard_normal((20, 4)), np.arange(20.0) % 5
    one, other = eb.Ordinal(CUTPOINTS), eb.Ordinal(tuple(-c for c in reversed(CUTPOINTS)))
    assert other.loss(-z, 4 - targets) == pytest.approx(one.loss(z, targets), abs=1e-13)
    assert other.slope(-z, 4 - targets) == pytest.approx(-one.slope(z, targets), abs=1e-14)
    assert other.curvature(-z, 4 - targets) == pytest.approx(one.curvature(z, targets), abs=1e-14)
    assert other.mean(-z) == pytest.approx(one.mean(z)[..., ::-1], abs=1e-15)
    V = rng.standard_normal((20, 3))
    assert other.predictive(-z[:, 0], V=V) == pytest.approx(one.predictive(z[:, 0], V=V)[:, ::-1], abs=1e-14)
    features, grades = graded()
    forward, backward = (
        eb.run(eb.Problem.create(features, grades, classes=order, likelihood=likelihood), eb.MeanField())
        for order, likelihood in ((ORDER, eb.Ordinal((-1.0, 0.5))), (ORDER[::-1], eb.Ordinal((-0.5, 1.0))))
    )
    assert backward.mean == pytest.approx(-forward.mean, abs=1e-7)
    assert backward.predict_proba(features) == pytest.approx(forward.predict_proba(features)[:, ::-1], abs=1e-7)


@pytest.mark.parametrize("sd", [0.0, 0.5, 3.0, 30.0])
@pytest.mark.parametrize("mean", [-50.0, -1.0, 0.2, 40.0])
def test_expected_probabilities_sum_to_one_and_are_never_negative(mean, sd):
    p = eb.Ordinal(CUTPOINTS).predictive(np.asarray([mean]), V=np.asarray([[sd]]))
    assert np.all(p >= 0)
    assert p.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("sd", [0.1, 0.7, 3.0])
def test_expected_probabilities_are_never_above_one(sd):
    z = np.concatenate([np.linspace(-300, 300, 999), [1e8, -1e8, 1e64]])
    p = eb.Ordinal((-1.3, 2.7)).predictive(z, V=np.full((len(z), 1), sd))
    assert p.max() <= 1
    assert p.min() >= 0
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-12)


def test_small_probabilities_are_accurate():
    """Differences of probabilities near one would lose all digits."""
    p = eb.Ordinal(CUTPOINTS).predictive(np.asarray([-36.0, 36.0]), V=np.zeros((2, 1)))
    assert p == pytest.approx(eb.Ordinal(CUTPOINTS).mean(np.asarray([-36.0, 36.0])), rel=1e-6)


def test_cutpoints_of_labels_are_those_of_the_frequencies():
    labels = np.repeat([1, 2, 5], [2, 3, 5])
    likelihood = eb.Ordinal.from_labels(labels)
    assert likelihood.mean(np.asarray(0.0)) == pytest.approx([0.2, 0.3, 0.5])
    weighted = eb.Ordinal.from_labels(["a", "b"], classes=["b", "a"], weights=[3.0, 1.0])
    assert weighted.mean(np.asarray(0.0)) == pytest.approx([0.25, 0.75])
    with pytest.raises(ValueError, match="no row has the class 3, so its cutpoints are unknown; leave it out"):
        eb.Ordinal.from_labels(labels, classes=[1, 2, 3, 5])


@pytest.mark.parametrize("cutpoints", [(), (1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (np.nan,)])
def test_cutpoints_out_of_order_are_refused(cutpoints):
    with pytest.raises(ValueError, match="expected one or more finite numbers in increasing order"):
        eb.Ordinal(cutpoints)


def test_the_order_of_classes_is_kept_everywhere(tmp_path):
    features, grades = graded()
    likelihood = eb.Ordinal.from_labels(grades, ORDER)
    chunks = [(features[i : i + 70], grades[i : i + 70]) for i in range(0, 300, 70)]
    settings = {"likelihood": likelihood, "classes": ORDER, "intercept": 10.0}
    whole = eb.run(eb.Problem.create(features, grades, 1.0, **settings))
    assert whole.classes.tolist() == ORDER
    assert np.mean(whole.classes[whole.predict_proba(features).argmax(axis=1)] == grades) > 0.5
    for problem in (
        eb.Problem.stream(chunks, 1.0, **settings),
        eb.Problem.create_sharded(features, grades, 1.0, **settings),
        eb.Problem.stream_sharded(chunks, 1.0, **settings),
    ):
        other = eb.run(problem)
        assert other.classes.tolist() == ORDER
        assert other.theta == pytest.approx(whole.theta, abs=1e-6)
    eb.save(whole, tmp_path / "p.safetensors")
    again = eb.load(tmp_path / "p.safetensors")
    assert again.likelihood == likelihood
    assert again.classes.tolist() == ORDER


def test_numbers_are_ordered_as_numbers_and_other_classes_must_fit():
    features, _ = graded(N=4)
    problem = eb.Problem.create(features, [10, 9, 100, 9], likelihood=eb.Ordinal((-1.0, 1.0)))
    assert problem.classes.tolist() == [9, 10, 100]
    with pytest.raises(ValueError, match="labels have 2 classes, which does not fit Ordinal"):
        eb.Problem.create(features, [0, 1, 0, 1], likelihood=eb.Ordinal((-1.0, 1.0)))


def test_fitted_cutpoints_have_the_best_evidence():
    """The search ends where the bound has no slope, by finite differences of the bound itself."""
    features, grades = graded()
    problem = eb.Problem.create(
        features, grades, 1.0, intercept=10.0, classes=ORDER, likelihood=eb.Ordinal.from_labels(grades, ORDER)
    )
    fitted = fit_likelihood(problem, tol=1e-7)
    assert np.mean(fitted.likelihood.cutpoints) == pytest.approx(np.mean(problem.likelihood.cutpoints))

    def bound(shift):
        here = replace(fitted, likelihood=fitted.likelihood.with_parameters(fitted.likelihood.parameters + shift))
        return elbo(here, eb.run(here, eb.MeanField(), particles=2)).value

    best = bound(0.0)
    assert bound(0.02) < best
    assert bound(-0.02) < best
    assert bound(0.02) == pytest.approx(bound(-0.02), abs=1e-3)
    assert best > eb.log_evidence(problem).value + 5


def test_weights_of_rows_are_repetitions():
    features, grades = graded()
    weights = np.arange(300) % 3
    settings = {"intercept": 10.0, "classes": ORDER, "likelihood": eb.Ordinal.from_labels(grades, ORDER)}
    weighted = fit_likelihood(eb.Problem.create(features, grades, 1.0, weights=weights, **settings))
    rows = np.repeat(np.arange(300), weights)
    repeated = fit_likelihood(eb.Problem.create(features[rows], grades[rows], 1.0, **settings))
    assert weighted.likelihood.cutpoints == pytest.approx(repeated.likelihood.cutpoints, abs=1e-9)


def test_noise_by_evidence_against_the_closed_form():
    """The evidence of linear regression is known: N(d; 0, noise I + X P0 X')."""
    rng = np.random.default_rng(3)
    features = rng.standard_normal((60, 8))
    targets = features @ rng.standard_normal(8) + 0.6 * rng.standard_normal(60)

    def negative(log_noise):
        cov = np.exp(log_noise) * np.eye(60) + 2.0 * features @ features.T
        return -multivariate_normal(np.zeros(60), cov).logpdf(targets)

    problem = eb.Problem.create(features, targets, 2.0, likelihood=eb.Normal())
    found = fit_likelihood(problem, tol=1e-7).likelihood.variance
    assert found == pytest.approx(np.exp(minimize_scalar(negative, bounds=(-5, 2)).x), rel=1e-4)


def test_a_likelihood_without_parameters_stays():
    features, grades = graded(N=20)
    problem = eb.Problem.create(features, grades)
    assert fit_likelihood(problem) is problem


def test_classes_between_cutpoints_keep_their_digits_far_from_them():
    likelihood, logits = eb.Ordinal((-1.0, 0.0, 2.0)), np.asarray([-30.0, 0.5, 30.0])
    found = likelihood.predictive(logits, V=np.zeros((3, 1)))
    np.testing.assert_allclose(found[:, 1:3], likelihood.mean(logits)[:, 1:3], rtol=1e-6)
