"""The guarantee of a rejection threshold, by simulation."""

import re

import numpy as np
import pytest

from enkbayes.inference.rejection import HeldOutConfidence, reject_threshold


def rows(size, rng, *, optimism=0.0):
    """Confidences and whether predictions are right, which they are as often as the confidence says, or less often."""
    sure = 0.5 + 0.5 * rng.beta(3, 0.5, size)
    return sure, rng.uniform(size=size) < sure - optimism


@pytest.mark.parametrize(("max_error", "size"), [(0.05, 500), (0.1, 300), (0.2, 100)])
@pytest.mark.parametrize("optimism", [0.0, 0.05])
def test_the_guarantee_holds_in_at_least_95_per_cent_of_splits(max_error, size, optimism):
    kept = found = 0
    new_sure, new_right = rows(100_000, np.random.default_rng(1), optimism=optimism)
    for seed in range(200):
        sure, right = rows(size, np.random.default_rng((2, seed)), optimism=optimism)
        try:
            threshold = reject_threshold(sure, right, max_error=max_error)
        except ValueError:
            kept += 1  # nothing is accepted
            continue
        found += 1
        accepted = new_sure > threshold
        kept += not accepted.any() or np.mean(~new_right[accepted]) <= max_error
    assert kept >= 190
    assert found > 150 or optimism > 0


def test_more_rows_accept_more():
    shares = []
    for size in (300, 5000):
        sure, right = rows(size, np.random.default_rng(0))
        threshold = reject_threshold(sure, right, max_error=0.07)
        shares.append(np.mean(sure > threshold))
    assert shares[0] < shares[1]


def test_rows_of_equal_confidence_stay_together_and_sure_predictions_are_all_accepted():
    sure = np.repeat([0.9, 0.6], [300, 100])
    right = np.repeat([True, False], [300, 100])
    assert reject_threshold(sure, right) == 0.6
    assert 0.59 < reject_threshold(sure, np.ones(400, dtype=bool)) < 0.6


@pytest.mark.parametrize("size", [0, 1, 10])
def test_a_sentence_says_that_no_threshold_achieves_it(size):
    with pytest.raises(ValueError, match=r"no threshold keeps the error at most 0\.05 with confidence 0\.95"):
        reject_threshold(np.linspace(0.6, 0.9, size), np.ones(size, dtype=bool))
    with pytest.raises(ValueError, match=r"the smallest error that 100 held-out rows can promise here is 1,"):
        reject_threshold(np.full(100, 0.9), np.zeros(100, dtype=bool))


@pytest.mark.parametrize("seed", range(5))
def test_the_error_that_the_sentence_offers_is_possible_and_the_smallest(seed):
    rng = np.random.default_rng(seed)
    sure = rng.uniform(0.5, 1, 300)
    right = rng.uniform(size=300) < sure
    with pytest.raises(ValueError, match="no threshold") as caught:
        reject_threshold(sure, right, max_error=0.001)
    offered = float(re.search(r"promise here is ([\d.]+),", str(caught.value))[1])
    assert reject_threshold(sure, right, max_error=offered) > 0.5
    with pytest.raises(ValueError, match="no threshold"):
        reject_threshold(sure, right, max_error=offered - 0.001)


def test_85_rows_without_an_error_are_too_few_for_5_percent_and_86_are_enough():
    assert reject_threshold(np.linspace(0.6, 0.9, 86), np.ones(86, dtype=bool)) < 0.6
    with pytest.raises(ValueError, match="no threshold"):
        reject_threshold(np.linspace(0.6, 0.9, 85), np.ones(85, dtype=bool))


@pytest.mark.parametrize("options", [{"max_error": 0}, {"max_error": 1.5}, {"confidence": 1.0}])
def test_shares_are_checked(options):
    with pytest.raises(ValueError, match="expected a number between 0 and 1"):
        HeldOutConfidence(np.ones(3), np.ones(3, dtype=bool)).threshold(**options)


def test_nan_is_refused():
    with pytest.raises(ValueError, match="without NaN"):
        reject_threshold(np.asarray([np.nan, 0.9]), np.asarray([True, True]))
