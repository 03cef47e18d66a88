"""Scores against scikit-learn, hand-made cases and loops."""

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

from enkbayes import metrics


def draws(n, K, seed=0):
    rng = np.random.default_rng(seed)
    proba = rng.dirichlet(np.ones(K), size=n)
    return proba, np.array([rng.choice(K, p=row) for row in proba])


def test_binary_vectors_and_two_columns_agree():
    proba, targets = draws(200, 2)
    assert metrics.score(proba[:, 1], targets) == metrics.score(proba, targets)


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


def test_calibrated_draws_have_a_small_ece_and_overconfident_ones_do_not():
    proba, targets = draws(20_000, 3)
    sharp = proba**3 / np.sum(proba**3, axis=1, keepdims=True)
    assert metrics.ece(proba, targets) < 0.02
    assert metrics.ece(sharp, targets) > 0.1


def test_certain_and_wrong_is_finite():
    assert np.isfinite(metrics.nll([0.0, 1.0], [1, 0]))


def test_a_class_that_does_not_occur_is_no_trouble():
    assert metrics.nll(np.full((4, 3), 1 / 3), [0, 0, 1, 1]) == pytest.approx(np.log(3))


def test_ood_signs_ties_and_thresholds():
    rng = np.random.default_rng(1)
    known, strange = rng.uniform(0.8, 1, 500), rng.uniform(0.5, 0.9, 300)
    scores = metrics.ood_score(known, strange)
    labels = np.repeat([0, 1], [500, 300])
    assert scores.auroc == pytest.approx(roc_auc_score(labels, 1 - np.concatenate([known, strange])))
    threshold = np.sort(1 - strange)[300 - int(0.95 * 300)]
    assert scores.fpr95 == pytest.approx(np.mean(1 - known >= threshold))
    assert metrics.ood_score(strange, known).auroc == pytest.approx(1 - scores.auroc)
    same = metrics.ood_score(np.full(7, 0.9), np.full(9, 0.9))
    assert (same.auroc, same.fpr95, same.rows) == (0.5, 1.0, 9)


def test_wrong_shapes_and_classes_are_explained():
    with pytest.raises(ValueError, match=r"shape \(2, 2\) and targets \(3,\)"):
        metrics.accuracy(np.eye(2), [0, 1, 1])
    with pytest.raises(ValueError, match="0 to 2; expected 0 to 1"):
        metrics.nll(np.eye(2), [0, 2])
    with pytest.raises(ValueError, match="0 out-of-distribution rows"):
        metrics.ood_score([0.5], [])
