"""Scores against scikit-learn, hand-made cases and loops."""

import math

import numpy as np
import pytest
import scipy.stats
from sklearn.calibration import calibration_curve
from sklearn.datasets import load_iris
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

import enkbayes as eb
from enkbayes.evaluation import metrics


def draws(n, K, seed=0):
    rng = np.random.default_rng(seed)
    proba = rng.dirichlet(np.ones(K), size=n)
    return proba, np.array([rng.choice(K, p=row) for row in proba])


def test_binary_vectors_and_two_columns_agree():
    p, targets = np.random.default_rng(0).random(200), np.arange(200) % 2
    both = np.stack([1 - p, p], axis=1)
    for metric in (metrics.score, metrics.brier_decomposition, metrics.ece, metrics.accuracy, metrics.nll):
        assert metric(p, targets) == metric(both, targets)
    assert metrics.ece(p, targets, adaptive=True) == metrics.ece(both, targets, adaptive=True)
    np.testing.assert_array_equal(metrics.entropy(p), metrics.entropy(both))
    members = np.random.default_rng(1).random((7, 20))
    np.testing.assert_array_equal(
        metrics.mutual_information(members), metrics.mutual_information(np.stack([1 - members, members], axis=2))
    )
    assert metrics.ood_score(p[:50], p[50:]) == metrics.ood_score(both[:50], both[50:])
    assert metrics.predictive_distance(p[:50], p[50:100]) == metrics.predictive_distance(both[:50], both[50:100])
    one, two = (metrics.confidence_by_distance(q, np.arange(200.0)) for q in (p, both))
    np.testing.assert_array_equal([one.mean, one.sd], [two.mean, two.sd])
    assert one.ideal == two.ideal == 0.5


def test_single_precision_arrays_of_torch_are_accepted():
    torch = pytest.importorskip("torch")
    logits = torch.randn(500, 10, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets = torch.arange(500) % 10
    expected = torch.nn.functional.cross_entropy(logits, targets).item()
    assert metrics.nll(torch.softmax(logits, dim=1), targets) == pytest.approx(expected, rel=1e-5)
    assert metrics.nll(torch.softmax(logits.detach().half(), dim=1), targets) == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("K", [2, 5])
def test_formulas_against_loops(K):
    proba, targets = draws(300, K)
    rows = range(300)
    assert metrics.nll(proba, targets) == pytest.approx(np.mean([-np.log(proba[i, targets[i]]) for i in rows]))
    squares = [sum((proba[i, k] - (targets[i] == k)) ** 2 for k in range(K)) for i in rows]
    assert metrics.brier(proba, targets) == pytest.approx(np.mean(squares))
    error = 0.0
    for b in range(15):
        inside = [i for i in rows if b / 15 < proba[i].max() <= (b + 1) / 15]
        if inside:
            right = np.mean([proba[i].argmax() == targets[i] for i in inside])
            error += len(inside) / 300 * abs(right - np.mean([proba[i].max() for i in inside]))
    assert metrics.ece(proba, targets) == pytest.approx(error)


def test_brier_is_twice_the_binary_score_of_scikit_learn():
    proba, targets = draws(100, 2)
    assert metrics.brier(proba, targets) == pytest.approx(2 * brier_score_loss(targets, proba[:, 1]))


def test_brier_parts_by_hand():
    # class 1: bins {.1, .3} and {.8, .9}, forecasts .2 and .85, frequencies 1/2 and 1, overall 3/4; class 0 mirrors it
    parts = metrics.brier_decomposition([0.1, 0.3, 0.8, 0.9], [0, 1, 1, 1], bins=2)
    assert parts.reliability == pytest.approx(2 * (0.5 * 0.3**2 + 0.5 * 0.15**2))
    assert parts.resolution == pytest.approx(2 * 0.25**2)
    assert parts.uncertainty == pytest.approx(2 * 0.75 * 0.25)
    # mean of (p - f)^2 - 2 (p - f) (d - o): (.01 - .1), twice, and .0025 twice
    assert parts.within == pytest.approx(2 * (2 * (0.01 - 0.1) + 2 * 0.0025) / 4)
    assert parts.brier == pytest.approx(2 * np.mean([0.01, 0.49, 0.04, 0.01]))


def test_equal_forecasts_in_a_bin_have_no_variation_within():
    proba, targets = np.repeat([0.25, 0.75], 50), np.arange(100) % 3 == 0
    assert metrics.brier_decomposition(proba, targets).within == pytest.approx(0, abs=1e-15)


def test_a_forecast_of_the_base_rate_has_neither_reliability_nor_resolution():
    parts = metrics.brier_decomposition(np.full(100, 0.3), np.arange(100) < 30)
    assert (parts.reliability, parts.resolution) == pytest.approx((0, 0), abs=1e-15)
    assert parts.uncertainty == pytest.approx(2 * 0.3 * 0.7)


def test_reliability_bins_are_those_of_scikit_learn():
    rng = np.random.default_rng(2)
    p = rng.uniform(0.5001, 1, 1000)  # the likelier class is class 1, so confidence is its probability
    d = (rng.random(1000) < p).astype(int)
    for adaptive, strategy in ((False, "uniform"), (True, "quantile")):
        ours = metrics.reliability(p, d, bins=8, adaptive=adaptive)
        accuracy, top = calibration_curve(d, p, n_bins=8, strategy=strategy)
        np.testing.assert_allclose(ours.accuracy[ours.count > 0], accuracy)
        np.testing.assert_allclose(ours.confidence[ours.count > 0], top)
        assert ours.count.sum() == 1000


def test_adaptive_bins_hold_equally_many_rows_and_keep_ties_together():
    proba, targets = draws(1000, 4)
    assert set(metrics.reliability(proba, targets, bins=10, adaptive=True).count) == {100}
    ties = np.repeat([0.6, 0.7, 0.8], [5, 50, 5])
    groups = metrics.reliability(ties, np.ones(60), bins=6, adaptive=True)
    assert groups.count[groups.count > 0].tolist() == [55, 5]  # the first sixth ends within the 0.7s
    assert groups.ece == pytest.approx((5 * 0.4 + 50 * 0.3 + 5 * 0.2) / 60)


def test_edges_belong_to_the_bin_on_their_left():
    groups = metrics.reliability([0.75, 0.7500001, 1.0], [1, 1, 1], bins=4)
    assert groups.count.tolist() == [0, 0, 1, 2]


def test_wilson_intervals_are_those_of_scipy():
    groups = metrics.reliability(*draws(200, 3), bins=6)
    for n, share, (low, high) in zip(groups.count, groups.accuracy, groups.interval.T, strict=True):
        if n == 0:
            assert np.isnan([low, high]).all()
            continue
        exact = scipy.stats.binomtest(round(share * n), int(n)).proportion_ci(method="wilson")
        assert (low, high) == pytest.approx((exact.low, exact.high), abs=1e-6)


def test_calibrated_draws_have_a_small_ece_and_overconfident_ones_do_not():
    proba, targets = draws(20_000, 3)
    sharp = proba**3 / np.sum(proba**3, axis=1, keepdims=True)
    assert metrics.ece(proba, targets) < 0.02
    assert metrics.ece(sharp, targets) > 0.1
    assert metrics.ece(proba, targets, adaptive=True) < 0.02
    assert metrics.ece(sharp, targets, adaptive=True) > 0.1


def test_certain_and_wrong_is_finite():
    assert np.isfinite(metrics.nll([0.0, 1.0], [1, 0]))


def test_a_class_may_be_absent_from_the_targets():
    assert metrics.nll(np.full((4, 3), 1 / 3), [0, 0, 1, 1]) == pytest.approx(np.log(3))


def test_ood_signs_ties_and_thresholds():
    rng = np.random.default_rng(1)
    inside, outside = rng.uniform(0.8, 1, 500), rng.uniform(0.5, 0.9, 300)
    scores = metrics.ood_score(inside, outside)
    labels = np.repeat([0, 1], [500, 300])
    assert scores.auroc == pytest.approx(roc_auc_score(labels, 1 - np.concatenate([inside, outside])))
    threshold = np.sort(1 - outside)[300 - int(0.95 * 300)]
    assert scores.fpr95 == pytest.approx(np.mean(1 - inside >= threshold))
    assert metrics.ood_score(outside, inside).auroc == pytest.approx(1 - scores.auroc)
    same = metrics.ood_score(np.full(7, 0.9), np.full(9, 0.9))
    assert (same.auroc, same.fpr95, same.rows) == (0.5, 1.0, 9)
    assert same.aupr == pytest.approx(9 / 16)  # chance: the share of out-of-distribution rows
    assert scores.aupr == pytest.approx(average_precision_score(labels, 1 - np.concatenate([inside, outside])))


def test_any_score_separates_and_larger_means_out_of_distribution():
    scores = metrics.ood_separation([0.1, 0.2, 0.3], [0.25, 0.4])
    assert scores.auroc == pytest.approx(5 / 6)  # one of six pairs is the wrong way round
    assert scores.fpr95 == pytest.approx(1 / 3)  # outside rows score .25 or more, as does one of three inside
    assert scores.aupr == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)


def test_entropy_and_mutual_information_by_hand():
    assert metrics.entropy([[0.5, 0.25, 0.25]])[0] == pytest.approx(1.5 * math.log(2))
    proba, _ = draws(50, 6)
    np.testing.assert_allclose(metrics.entropy(proba), scipy.stats.entropy(proba, axis=1))
    members = np.array([[[0.9, 0.1]], [[0.5, 0.5]]])
    expected = metrics.entropy([[0.7, 0.3]]) - (metrics.entropy([[0.9, 0.1]]) + math.log(2)) / 2
    np.testing.assert_allclose(metrics.mutual_information(members), expected)


def test_mutual_information_is_the_epistemic_part_of_a_posterior():
    features, labels = load_iris(return_X_y=True)
    features = features - features.mean(axis=0)
    posterior = eb.run(eb.Problem.create(features, labels), eb.Homotopy(), particles=30)
    found = metrics.mutual_information(posterior.sample_proba(features))
    np.testing.assert_allclose(found, posterior.predict_uncertainty(features).epistemic, atol=1e-12)
    assert found.max() > 0.01


def test_confidence_by_distance_by_hand():
    train, points = [[0.0, 0.0], [10.0, 0.0]], [[0.0, 1.0], [9.0, 0.0], [5.0, 0.0], [0.0, 5.0], [0.0, 12.0]]
    distance = metrics.nearest_distance(points, train)
    np.testing.assert_allclose(distance, [1, 1, 5, 5, 12])
    proba = [[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.4, 0.3, 0.3], [0.5, 0.5, 0.0], [0.4, 0.4, 0.2]]
    curve = metrics.confidence_by_distance(proba, distance, bins=4)
    assert curve.edges.tolist() == [0, 3, 6, 9, 12]
    assert curve.count.tolist() == [2, 2, 0, 1]
    np.testing.assert_allclose(curve.mean, [0.7, 0.45, np.nan, 0.4])
    np.testing.assert_allclose(curve.sd, [0.1, 0.05, np.nan, 0])
    assert curve.ideal == pytest.approx(1 / 3)
    assert metrics.confidence_by_distance(proba, distance, bins=[0.0, 2.0, 6.0]).count.tolist() == [2, 2]
    at_home = metrics.confidence_by_distance(proba, np.zeros(5), bins=2)  # test points that are training points
    assert at_home.count.tolist() == [5, 0]


def test_predictive_distance_by_hand():
    found = metrics.predictive_distance([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], [[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    assert found == metrics.PredictiveDistance(mean=2.5 / 6, maximum=1.0, total_variation=(0.25 + 1) / 2)


WRONG = {
    "shape (2, 2) and targets (3,)": lambda: metrics.accuracy(np.eye(2), [0, 1, 1]),
    "0 to 2; expected 0 to 1": lambda: metrics.nll(np.eye(2), [0, 2]),
    "run from -1 to 0": lambda: metrics.ece([0.5, 0.5], [-1, 0]),
    "targets contain 0.5 (float64)": lambda: metrics.brier([0.5], [0.5]),
    "without NaN": lambda: metrics.brier([0.5, 0.5], [0, np.nan]),
    "targets contain cat": lambda: metrics.brier([0.5, 0.5], ["cat", "dog"]),
    "with n >= 1": lambda: metrics.score([], []),
    "proba has 1 rows with NaN": lambda: metrics.confidence([0.5, np.nan]),
    "values from -2 to 3": lambda: metrics.entropy([[3.0, -2.0]]),
    "row 1 sums to 0.9": lambda: metrics.score([[0.5, 0.5], [0.5, 0.4]], [0, 1]),
    "proba has shape (3, 1)": lambda: metrics.confidence(np.ones((3, 1))),
    "sample_proba has shape (4,)": lambda: metrics.mutual_information(np.full(4, 0.5)),
    "sample_proba has 3 rows that do not sum to one": lambda: metrics.mutual_information(np.full((3, 1, 3), 0.5)),
    "0 out-of-distribution rows": lambda: metrics.ood_score([0.5], []),
    "in-distribution scores contain NaN": lambda: metrics.ood_separation([np.nan], [1.0]),
    "in-distribution scores have shape (1, 1)": lambda: metrics.ood_separation([[1.0]], [1.0]),
    "bins is 0": lambda: metrics.ece([0.5], [1], bins=0),
    "at least two increasing edges": lambda: metrics.confidence_by_distance([0.5], [1.0], bins=[1.0, 0.0]),
    "one distance for each row, neither negative": lambda: metrics.confidence_by_distance([0.5], [-1.0]),
    "reference (3, 2)": lambda: metrics.predictive_distance([0.5], [0.5, 0.5, 0.5]),
    "reference has values from": lambda: metrics.predictive_distance([0.5], [1.5]),
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_input_is_refused_with_a_clear_message(words):
    with pytest.raises(ValueError) as caught:
        WRONG[words]()
    message = str(caught.value)
    assert words in message
    assert "expected" in message or "drop" in message
    assert "\n" not in message


def test_the_variance_of_logits_ignores_a_common_shift_and_grows_with_disagreement():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((500, 4, 3))
    proba = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    centred = logits - logits.mean(axis=2, keepdims=True)
    np.testing.assert_allclose(metrics.logit_variance(proba), centred.var(axis=0).mean(axis=1))
    assert np.all(
        metrics.logit_variance(proba**2 / (proba**2).sum(axis=2, keepdims=True)) > metrics.logit_variance(proba)
    )
    with pytest.raises(ValueError, match="sample_proba has shape"):
        metrics.logit_variance([0.5, 0.5])


def test_a_distance_on_an_edge_belongs_to_the_bin_below():
    curve = metrics.confidence_by_distance([0.9, 0.8, 0.7], [0.0, 1.0, 1.5], bins=[0.0, 1.0, 2.0])
    assert curve.count.tolist() == [2, 1]
