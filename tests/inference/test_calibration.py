"""Posteriors around trained weights that held-out rows choose."""

import numpy as np
import pytest
import scipy.sparse

import enkbayes as eb
from enkbayes.evaluation.metrics import nll
from enkbayes.inference.calibration import CoarseFits, around, calibrate, uncalibrated
from enkbayes.inference.held_out import TEMPERATURE
from enkbayes.inference.temperature import temperature_scale


def rows(theta, size, seed, classes=2):
    """Features and labels of a logistic model, theta (D,) or (D, K)."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((size, len(theta)))
    logits = features @ theta
    if classes == 2:
        return features, (rng.random(size) < 1 / (1 + np.exp(-logits))).astype(int)
    return features, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)


def loss(problem, features, labels, posterior=None):
    posterior = eb.run(problem, eb.MeanField(), particles=50) if posterior is None else posterior
    return nll(posterior.predict_proba(features), labels)


def point(problem, theta, features):
    return np.asarray(problem.likelihood.mean(problem.model.particle_logits(features, theta[None])))[:, 0]


TRUTH = np.linspace(-1, 1, 5)


def test_a_narrow_prior_is_temperature_scaling():
    features, labels = rows(TRUTH, 300, seed=0)
    held_out = eb.Problem.create(features, labels)
    problem, calibration = calibrate(held_out, 4 * TRUTH, spreads=())
    assert calibration.chosen == TEMPERATURE
    assert calibration.scale == temperature_scale(held_out, 4 * TRUTH)
    expected = point(problem, calibration.scale * 4 * TRUTH, features)
    np.testing.assert_allclose(eb.run(problem).predict_proba(features), expected, atol=1e-3)


@pytest.mark.parametrize("size", [4.0, 0.5])  # of the weights: too sure, and not sure enough
def test_the_scale_minimises_the_cross_entropy_which_is_penalised_where_it_sharpens(size):
    held_out = eb.Problem.create(*rows(TRUTH, 300, seed=1))
    scale = temperature_scale(held_out, size * TRUTH)
    assert (scale < 1) == (size > 1)

    def energy(c):
        penalty = (np.log(c) / 0.2) ** 2 / 2 if c > 1 else 0.0
        return held_out.loss(c * size * TRUTH[None])[0] + penalty

    assert energy(scale) < min(energy(0.98 * scale), energy(1.02 * scale))


def test_rows_that_are_all_right_do_not_sharpen_without_bound():
    features = rows(TRUTH, 30, seed=2)[0]
    held_out = eb.Problem.create(features, features @ TRUTH > 0)
    assert 1 < temperature_scale(held_out, TRUTH) < 10


@pytest.mark.parametrize("classes", [2, 3])
def test_wrong_weights_are_mended_and_beat_temperature(classes):
    rng = np.random.default_rng(3)
    truth = TRUTH if classes == 2 else rng.standard_normal((5, 3))
    theta = (truth + 0.7 * rng.standard_normal(truth.shape)).ravel()
    held_out = eb.Problem.create(*rows(truth, 400, seed=4, classes=classes))
    problem, calibration = calibrate(held_out, theta)
    features, labels = rows(truth, 2000, seed=5, classes=classes)
    scaled = point(problem, temperature_scale(held_out, theta) * theta, features)
    assert calibration.chosen != TEMPERATURE
    assert calibration.message.startswith("a posterior of prior spread")
    assert loss(problem, features, labels) < nll(scaled, labels) - 0.02


def test_right_weights_are_left_alone_or_nearly_so():
    held_out = eb.Problem.create(*rows(TRUTH, 300, seed=6))
    problem, _ = calibrate(held_out, TRUTH)
    features, labels = rows(TRUTH, 4000, seed=7)
    assert loss(problem, features, labels) < nll(point(problem, TRUTH, features), labels) + 0.01


def test_rows_that_judge_have_not_been_learnt():
    """On noise a wide posterior explains the rows that it was fitted to, and no others."""
    rng = np.random.default_rng(8)
    features, labels = rng.standard_normal((80, 40)), rng.integers(0, 2, 80)
    problem, calibration = calibrate(eb.Problem.create(features, labels), np.full(40, 1e-3))
    wide = around(problem.prior.mean, problem, 30.0)
    assert loss(problem.with_prior(wide), features, labels) < 0.5
    assert max(score.gain for score in calibration.scores) < 0.01
    assert min(score.nll for score in calibration.scores) > 0.65


def test_wider_priors_are_tried_only_while_they_improve():
    held_out = eb.Problem.create(*rows(TRUTH, 200, seed=9))
    scores = calibrate(held_out, TRUTH)[1].scores
    gains = [score.gain for score in scores[1:]]
    assert scores[0].candidate == TEMPERATURE
    assert gains[-1] < gains[-2]
    assert gains[:-1] == sorted(gains[:-1])


def test_training_rows_shape_the_prior_and_large_sets_are_thinned():
    train, held_out = (eb.Problem.create(*rows(TRUTH, size, seed=10)) for size in (400, 100))
    few = calibrate(held_out, 2 * TRUTH, train)[1].scores
    assert all(score.candidate.trained for score in few[1:])
    thinned = calibrate(held_out, 2 * TRUTH, train, fits=CoarseFits(train_rows=300))[1].scores
    a, b = ([s.nll for s in scores if s.candidate.spread == 0.03] for scores in (few, thinned))
    assert a != b
    np.testing.assert_allclose(a, b, atol=0.005)


@pytest.mark.parametrize("classes", [2, 3])
def test_laplace_fits_of_many_parameters_choose_as_those_of_few_do(classes):
    rng = np.random.default_rng(15)
    truth = TRUTH if classes == 2 else rng.standard_normal((5, 3))
    theta = (truth + 0.3 * rng.standard_normal(truth.shape)).ravel()
    train, held_out = (eb.Problem.create(*rows(truth, size, seed=16, classes=classes)) for size in (600, 300))
    exact = calibrate(held_out, theta, train)
    laplace = calibrate(held_out, theta, train, fits=CoarseFits(small=0))
    thinned = calibrate(held_out, theta, train, fits=CoarseFits(small=0, curvature_rows=300))
    for other in (laplace, thinned):
        assert other[1].chosen == exact[1].chosen
        np.testing.assert_allclose(*([s.gain for s in c.scores[:4]] for c in (exact[1], other[1])), atol=2e-3)
        np.testing.assert_allclose(other[0].prior.mean, exact[0].prior.mean, atol=0.05)


def test_too_many_parameters_for_a_full_covariance_are_judged_by_folds():
    """Leave-one-out from one fit promises more than it keeps there, most of all for wide priors."""
    rng = np.random.default_rng(20)
    truth = rng.standard_normal((90, 24)) / 3
    theta = (truth + 0.1 * rng.standard_normal(truth.shape)).ravel()
    features, labels = rows(truth, 250, seed=21, classes=24)
    problem, calibration = calibrate(eb.Problem.create(features, labels), theta, spreads=(0.1, 1.0, 30.0))
    assert problem.dim > 2000
    assert max(score.candidate.spread for score in calibration.scores) <= 10  # capped
    new, targets = rows(truth, 3000, seed=22, classes=24)
    scaled = nll(point(problem, temperature_scale(problem, theta) * theta, new), targets)
    for score in calibration.scores[1:]:
        wider = problem.with_prior(around(problem.prior.mean, problem, score.candidate.spread))
        delivered = scaled - nll(eb.run(wider, eb.MeanField(tol=1e-2), particles=20).predict_proba(new), targets)
        assert abs(score.gain - delivered) < 3 * score.error + 0.01


def test_few_rows_are_not_compared():
    held_out = eb.Problem.create(*rows(TRUTH, 15, seed=11))
    calibration = calibrate(held_out, TRUTH)[1]
    assert calibration.scores == ()
    assert calibration.message == "15 held-out rows are too few to compare: temperature scaling"


def test_sparse_rows_and_row_weights_count():
    features, labels = rows(TRUTH, 120, seed=12)
    weights = np.repeat([1.0, 0.0], 60)
    dense = calibrate(eb.Problem.create(features, labels, weights=weights), 3 * TRUTH)[1]
    sparse = calibrate(eb.Problem.create(scipy.sparse.csr_matrix(features), labels, weights=weights), 3 * TRUTH)[1]
    half = eb.Problem.create(features[:60], labels[:60])
    np.testing.assert_allclose([s.nll for s in dense.scores], [s.nll for s in sparse.scores], rtol=1e-6)
    np.testing.assert_allclose(dense.scale, temperature_scale(half, 3 * TRUTH), rtol=1e-3)


def test_without_held_out_rows_predictions_stay_near_and_the_sentence_says_what_is_lost():
    features, labels = rows(TRUTH, 400, seed=13)
    problem, calibration = uncalibrated(eb.Problem.create(features, labels), 2 * TRUTH)
    before = point(problem, 2 * TRUTH, features)
    after = eb.run(problem, eb.MeanField()).predict_proba(features)
    assert np.mean(np.abs(after - before)) < 0.08
    assert np.mean(after.max(axis=1)) < np.mean(before.max(axis=1))
    assert "over-confidence of the trained weights stays" in calibration.message


def test_bad_input_is_explained():
    held_out = eb.Problem.create(*rows(TRUTH, 30, seed=14))
    with pytest.raises(ValueError, match=r"trained weights have shape \(4,\); expected \(5,\)"):
        calibrate(held_out, TRUTH[:4])
    real = eb.Problem.create(np.eye(3), [0.1, 0.2, 0.3], likelihood=eb.Normal(1.0))
    with pytest.raises(ValueError, match="needs linear logits and classes"):
        calibrate(real, np.zeros(3))


def test_rows_that_are_all_right_sharpen_little_and_wrong_ones_soften_much():
    features, labels = np.asarray([[2.0], [3.0], [-2.0], [-1.0]]), np.asarray([1, 1, 0, 0])
    right = temperature_scale(eb.Problem.create(features, labels), np.ones(1))
    wrong = temperature_scale(eb.Problem.create(features, 1 - labels), np.ones(1))
    assert 1 < right < 1.1
    assert wrong < 0.5


def test_few_held_out_rows_do_not_choose_a_prior_that_is_too_wide():
    """Leave-one-out from one fit is too good where a row contributes much, and best for the widest prior."""
    rng = np.random.default_rng(0)
    trained, true = rng.standard_normal((2, 30))
    features = rng.standard_normal((3060, 30))
    labels = (features @ true / 2 + rng.logistic(size=3060) > 0).astype(int)
    problem, calibration = calibrate(eb.Problem.create(features[:60], labels[:60]), trained)
    posterior = eb.run(problem, eb.MeanField(), particles=2)
    proba = posterior.predict_proba(features[60:])
    actual = -np.log(proba[np.arange(3000), labels[60:]]).mean()
    told = next(score.nll for score in calibration.scores if score.candidate == calibration.chosen)
    assert told > actual - 0.03
    assert calibration.chosen.spread < 30
