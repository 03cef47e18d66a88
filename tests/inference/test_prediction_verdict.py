"""The verdict on predictions: its own uncertainty decides what it may say."""

import numpy as np
import pytest
from scipy.special import expit

from enkbayes.inference.prediction_verdict import judge_predictions
from enkbayes.inference.verdicts import BAD, GOOD, USABLE


def drawn(rows, *, spread=2.0, factor=1.0, seed=0):
    """Probabilities of classes that are drawn with logits of some spread, and predicted with `factor` times them."""
    rng = np.random.default_rng(seed)
    logits = spread * rng.standard_normal(rows)
    targets = (rng.random(rows) < expit(logits)).astype(int)
    p = expit(factor * logits)
    return np.stack([1 - p, p], axis=1), targets


def test_true_probabilities_are_good():
    assert [judge_predictions(*drawn(500, seed=seed)).verdict for seed in range(20)].count(GOOD) >= 19


@pytest.mark.parametrize(("factor", "verdict"), [(2.5, USABLE), (30.0, BAD), (0.4, USABLE)])
def test_wrong_confidence_is_seen(factor, verdict):
    found = judge_predictions(*drawn(2000, factor=factor))
    assert found.verdict == verdict
    assert ("above accuracy" in found.reason) == (factor > 1) or "base rates" in found.reason


def test_noise_is_not_trusted_whatever_its_confidence():
    rng = np.random.default_rng(1)
    targets = rng.integers(0, 3, 300)
    for spread in (0.0, 0.1, 1.0, 5.0):
        logits = spread * rng.standard_normal((300, 3))
        proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        assert judge_predictions(proba, targets).verdict == BAD


def test_rare_classes_have_their_base_rate():
    """Probabilities that are the shares of the classes say nothing, however high the accuracy."""
    targets = (np.arange(300) < 9).astype(int)
    proba = np.tile([0.97, 0.03], (300, 1))
    found = judge_predictions(proba, targets)
    assert found.verdict == BAD
    assert found.accuracy == pytest.approx(0.97)
    assert found.gain == pytest.approx(0, abs=0.005)


def test_few_rows_are_too_few():
    found = judge_predictions(*drawn(12, spread=5.0))
    assert found.verdict == USABLE
    assert "12 rows are too few" in found.reason


def test_a_weight_is_that_many_rows():
    proba, targets = drawn(60)
    weights = np.where(np.arange(60) < 20, 3.0, 1.0)
    rows = np.repeat(np.arange(60), weights.astype(int))
    weighted, repeated = judge_predictions(proba, targets, weights), judge_predictions(proba[rows], targets[rows])
    assert weighted.nll == pytest.approx(repeated.nll)
    assert weighted.gap == pytest.approx(repeated.gap)
    assert weighted.gain_error > repeated.gain_error  # three copies of a row are one observation
    none = judge_predictions(np.vstack([proba, proba]), np.append(targets, 1 - targets), np.repeat([1.0, 0.0], 60))
    assert none == judge_predictions(proba, targets, np.ones(60))
