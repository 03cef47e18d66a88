"""What holds for the metrics of all predictions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enkbayes.evaluation import metrics

cases = st.tuples(st.integers(1, 60), st.integers(2, 6), st.integers(0, 2**32 - 1), st.booleans())
quick = settings(max_examples=60, deadline=None)


def drawn(case):
    """Predictions and classes; coarse predictions have ties, zeros and ones, and values on the edges of bins."""
    n, K, seed, coarse = case
    rng = np.random.default_rng(seed)
    proba = rng.multinomial(10, np.ones(K) / K, n) / 10 if coarse else rng.dirichlet(np.ones(K) / 2, n)
    return proba, rng.integers(0, K, n), rng


def every_score(proba, targets):
    parts = metrics.brier_decomposition(proba, targets, bins=5)
    numbers = [metrics.accuracy(proba, targets), metrics.nll(proba, targets), metrics.brier(proba, targets)]
    numbers += [metrics.ece(proba, targets, bins=5, adaptive=adaptive) for adaptive in (False, True)]
    return [*numbers, parts.reliability, parts.resolution, parts.uncertainty, parts.within]


@quick
@given(cases)
def test_the_order_of_rows_does_not_matter(case):
    proba, targets, rng = drawn(case)
    order = rng.permutation(len(targets))
    assert every_score(proba[order], targets[order]) == pytest.approx(every_score(proba, targets), abs=1e-12)
    other = rng.dirichlet(np.ones(proba.shape[1]), len(proba))
    near, far = (metrics.predictive_distance(proba[rows], other[rows]) for rows in (slice(None), order))
    assert near.mean == pytest.approx(far.mean)


@quick
@given(cases)
def test_the_order_of_classes_does_not_matter(case):
    proba, targets, rng = drawn((*case[:3], False))  # of equal probabilities the first class counts
    order = rng.permutation(proba.shape[1])
    renamed = np.argsort(order)[targets]
    assert every_score(proba[:, order], renamed) == pytest.approx(every_score(proba, targets), abs=1e-12)


@quick
@given(cases, st.integers(1, 20))
def test_the_parts_sum_up_to_the_brier_score(case, bins):
    proba, targets, _ = drawn(case)
    parts = metrics.brier_decomposition(proba, targets, bins)
    assert parts.brier == pytest.approx(metrics.brier(proba, targets), abs=1e-12)
    assert parts.reliability >= 0
    assert 0 <= parts.resolution <= parts.uncertainty + 1e-12
    counts = np.bincount(targets, minlength=proba.shape[1]) / len(targets)
    assert parts.uncertainty == pytest.approx(1 - np.sum(counts**2))


@quick
@given(cases, st.integers(1, 30))
def test_calibration_error_is_a_share_and_one_bin_is_the_overall_gap(case, bins):
    proba, targets, _ = drawn(case)
    overall = abs(metrics.accuracy(proba, targets) - metrics.confidence(proba).mean())
    for adaptive in (False, True):
        assert metrics.reliability(proba, targets, bins, adaptive=adaptive).count.sum() == len(targets)
        error = metrics.ece(proba, targets, bins, adaptive=adaptive)
        assert overall - 1e-12 <= error <= 1
        assert metrics.ece(proba, targets, bins=1, adaptive=adaptive) == pytest.approx(overall)


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 6), st.integers(0, 2**32 - 1), st.booleans())
def test_calibrated_predictions_have_a_small_calibration_error(K, seed, adaptive):
    rng = np.random.default_rng(seed)
    proba = rng.dirichlet(np.ones(K), 20_000)
    targets = np.sum(rng.random((20_000, 1)) > np.cumsum(proba, axis=1)[:, :-1], axis=1)
    # in 15 bins of n_b rows the gaps have standard deviation below .5 / sqrt(n_b): their mean is below .014
    assert metrics.ece(proba, targets, adaptive=adaptive) < 0.025


@quick
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_exchanging_inside_and_outside_gives_the_complement(n, m, seed):
    rng = np.random.default_rng(seed)
    inside, outside = rng.integers(0, 8, n) / 7, rng.integers(0, 8, m) / 7
    scores = metrics.ood_separation(inside, outside)
    assert metrics.ood_separation(outside, inside).auroc == pytest.approx(1 - scores.auroc)
    assert metrics.ood_separation(-inside, -outside).auroc == pytest.approx(1 - scores.auroc)
    pairs = np.sign(outside[:, None] - inside) / 2 + 0.5
    assert scores.auroc == pytest.approx(pairs.mean())
    flagged = max(t for t in np.unique(outside) if np.mean(outside >= t) >= 0.95 - 1e-12)
    assert scores.fpr95 == pytest.approx(np.mean(inside >= flagged))


@quick
@given(cases)
def test_predictive_distances_are_distances(case):
    p, _, rng = drawn(case)
    q, r = (rng.dirichlet(np.ones(p.shape[1]), len(p)) for _ in range(2))
    assert metrics.predictive_distance(p, q) == metrics.predictive_distance(q, p)
    assert metrics.predictive_distance(p, p) == metrics.PredictiveDistance(0, 0, 0)
    direct, first, second = (metrics.predictive_distance(a, b) for a, b in ((p, r), (p, q), (q, r)))
    for name in ("mean", "maximum", "total_variation"):
        assert getattr(direct, name) <= getattr(first, name) + getattr(second, name) + 1e-12
    assert first.mean <= first.maximum
    assert 0 <= first.total_variation <= 1
    assert first.total_variation == pytest.approx(first.mean * p.shape[1] / 2)


@quick
@given(st.integers(1, 8), cases)
def test_disagreement_is_part_of_the_entropy(J, case):
    n, K, seed, coarse = case
    members, _, _ = drawn((J * n, K, seed, coarse))
    members = members.reshape(J, n, K)
    found, whole = metrics.mutual_information(members), metrics.entropy(members.mean(axis=0))
    assert np.all(found >= 0)
    assert np.all(found <= whole + 1e-12)
    assert np.all(whole <= np.log(K) + 1e-12)
    assert metrics.mutual_information(members[:1]) == pytest.approx(np.zeros(n), abs=1e-12)
    assert metrics.mutual_information(members[::-1]) == pytest.approx(found, abs=1e-12)
