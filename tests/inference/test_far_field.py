"""Held-out rows choose far-field variance that costs little, and more of it the more they support it."""

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.inference.cross_validation import logits_of_average, logits_without
from enkbayes.inference.far_field import Extent, choose, rise, second_moment
from enkbayes.inference.many_classes import WidthAverage


def held_out(size, blind, classes=2, seed=0):
    """Logits, labels and scores; where the score is high, a share `blind` of the labels is drawn at random."""
    rng = np.random.default_rng(seed)
    score = rng.standard_normal(size)
    z = 3 * rng.standard_normal((size, classes))
    labels = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    guess = (score > 1) & (rng.uniform(size=size) < blind)
    labels = np.where(guess, rng.integers(0, classes, size), labels)
    return (z[:, 1] - z[:, 0] if classes == 2 else z), labels, score


@pytest.mark.parametrize("classes", [2, 4])
def test_more_is_chosen_where_unusual_rows_are_predicted_badly(classes):
    likelihood = eb.Bernoulli() if classes == 2 else eb.Categorical(classes)
    strengths = []
    for blind in (0.0, 0.9):
        z, labels, score = held_out(600, blind, classes)
        choice = choose(likelihood, z, np.zeros((*z.shape, 1)), labels, score)
        assert choice.cost <= min(choice.error, 0.005)
        assert choice.reach > 0
        strengths.append(choice.strength)
    assert strengths[1] > 3 * strengths[0]


def test_few_rows_accept_less_than_many_and_too_few_nothing():
    found = []
    for size in (10, 40, 4000):
        z, labels, score = held_out(size, 0.0)
        found.append(choose(eb.Bernoulli(), z, np.zeros((size, 1)), labels, score))
    assert [found[0].strength, found[0].reach] == [0, 0]
    assert found[1].reach > 0
    assert found[2].strength > 0


def test_weights_count_rows():
    z, labels, score = held_out(300, 0.9)
    root, twice = np.zeros((300, 1)), np.r_[np.arange(300), np.arange(100)]
    weights = np.where(np.arange(300) < 100, 2.0, 1.0)
    weighted = choose(eb.Bernoulli(), z, root, labels, score, weights=weights)
    repeated = choose(eb.Bernoulli(), z[twice], root[twice], labels[twice], score[twice])
    np.testing.assert_allclose([weighted.strength, weighted.cost], [repeated.strength, repeated.cost], atol=1e-4)


def test_variance_is_zero_within_the_range_without_strength_and_rises_on_both_sides():
    rows = np.random.default_rng(0).standard_normal((400, 3))
    extent = Extent.of_moments([second_moment(rows)]).calibrated([rows])
    score = extent.score([rows])
    assert np.all(extent.variance(score, 0.0, 5.0) == 0)
    np.testing.assert_allclose([score.mean(), score.std()], [0, 1], atol=1e-9)
    low, high = float(extent.scale[2]), float(extent.scale[3])
    found = extent.variance(np.asarray([low - 2, low, 0.0, high, high + 2]), 0.0, 5.0)
    assert found[0] == pytest.approx(5 * (np.exp(2) - 1))
    assert found[4] > found[0]
    assert np.all(found[1:4] == 0)
    assert rise(np.asarray([1e6]))[0] < np.finfo(np.float32).max


@pytest.mark.parametrize("rows", [20, 50, 90, 300])
def test_few_rows_leave_few_new_ones_beyond_their_range(rows):
    """Noise beyond the range costs up to log 2 nats, on average over new rows about .005, also with heavy tails."""
    empty, shares = Extent((np.eye(2),), np.zeros(4)), []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        known, new = rng.exponential(size=rows), rng.exponential(size=2000)
        centre, width, low, high = empty.calibrated((), leverage=known).scale
        score = (new - centre) / width
        shares.append(np.mean((score > high) | (score < low)))
    assert 0.001 < np.mean(shares) * np.log(2) <= 0.0075  # the range is not wider than it needs to be


def test_noises_of_several_scores_add_up():
    z, labels, score = held_out(600, 0.5)
    root, unmoved = np.zeros((600, 1)), np.full(600, -9.0)  # no noise
    one = choose(eb.Bernoulli(), z, root, labels, score)
    same = choose(eb.Bernoulli(), z, root, labels, np.stack([score, unmoved], axis=1), reach=0.25)
    twice = choose(eb.Bernoulli(), z, root, labels, np.stack([score, score], axis=1), strengths=(one.strength / 2,))
    assert [same.strength, same.cost, same.scale] == [one.strength, one.cost, one.scale]
    assert same.reach == pytest.approx(one.reach / 4)
    assert twice.scale == one.scale
    assert choose(eb.Bernoulli(), z, root, labels, np.stack([score, score], axis=1)).strength < one.strength


def test_a_steeper_score_has_a_range_as_much_wider():
    rows = np.random.default_rng(0).standard_normal((60, 3))
    plain = Extent.of_moments([second_moment(rows)]).calibrated([rows])
    steep = Extent.of_moments([second_moment(rows)]).calibrated([rows], slope=2.0)
    np.testing.assert_allclose(steep.score([2 * rows]), 2 * plain.score([2 * rows]))
    np.testing.assert_allclose(steep.scale[2:], 2 * plain.scale[2:])
    assert steep.scale[1] <= 1 / 3


def test_leverage_is_invariant_under_a_map_that_the_ridge_does_not_see():
    rng = np.random.default_rng(0)
    rows, turn = rng.standard_normal((400, 3)), np.linalg.qr(rng.standard_normal((3, 3)))[0]
    first = Extent.of_moments([second_moment(rows)]).leverage([10 * rows])
    second = Extent.of_moments([second_moment(rows @ turn)]).leverage([10 * rows @ turn])
    np.testing.assert_allclose(first, second)


def test_rows_of_an_average_of_points_are_predicted_without_themselves():
    """Its components have no covariance, and leave-one-out from one fit would give the fit itself."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((90, 60)), np.arange(90) % 3  # nothing to learn, features to learn it by heart
    problem = eb.Problem.create(X, y, 1.0)
    whole = logits_without(problem, WidthAverage().posterior(problem))
    one_fold = logits_of_average(problem, most=1.0)  # all folds take too long
    for (rows, mean, root), count in ((whole, 90), (one_fold, 18)):
        assert len(set(rows)) == count
        assert mean.shape == (count, 3)
        assert root.shape[:2] == (count, 3)
        proba = problem.likelihood.predictive(mean, V=root)
        assert -np.log(proba[np.arange(count), y[rows]]).mean() > 1.05
        assert np.mean(proba.argmax(axis=1) == y[rows]) < 0.55


def test_noise_on_unusual_rows_is_no_excuse_for_confidence_in_all_others():
    """The first 60 % of the rows would take logits 1.5 times as large, and noise on the others would pay for it."""
    rng = np.random.default_rng(0)
    score = np.repeat([-1.0, 1.0], [600, 400])
    z = 2 * rng.standard_normal(1000)
    truth = np.where(score < 0, 1.6, 0.6) * z
    labels = (truth + rng.logistic(size=1000) > 0).astype(int)
    choice = choose(eb.Bernoulli(), z, np.zeros((1000, 1)), labels, score)
    assert choice.strength > 0
    assert 1 < choice.scale <= 1.1
