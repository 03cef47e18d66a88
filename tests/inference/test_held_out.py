"""The choice by held-out rows: gains against their standard errors, in order, with weights."""

import math

import numpy as np
import pytest

from enkbayes.inference.held_out import SPREADS, TEMPERATURE, Candidate, choose

RNG = np.random.default_rng(0)
PLAIN = RNG.random(400)
CANDIDATES = [Candidate(spread) for spread in SPREADS]


def chosen_from(gains, **settings):
    """Choose between candidates whose losses are below those of temperature scaling by these gains (n,)."""
    table = {TEMPERATURE: PLAIN} | {c: PLAIN - g for c, g in zip(CANDIDATES, gains, strict=False)}
    return choose(CANDIDATES[: len(gains)], table.__getitem__, lambda c: c.spread, len(PLAIN), **settings)


def test_scores_are_means_and_standard_errors_of_paired_differences():
    gains = 0.1 + 0.3 * RNG.standard_normal(400)
    plain, only = chosen_from([gains]).scores
    assert (plain.candidate, plain.gain, plain.error) == (TEMPERATURE, 0.0, 0.0)
    assert plain.nll == pytest.approx(PLAIN.mean())
    assert only.nll == pytest.approx((PLAIN - gains).mean())
    assert only.gain == pytest.approx(gains.mean())
    assert only.error == pytest.approx(gains.std() / 20)


@pytest.mark.parametrize(("errors", "wins"), [(0.9, False), (1.1, True)])
def test_a_candidate_has_to_win_by_one_standard_error(errors, wins):
    noise = RNG.standard_normal(400)
    noise = (noise - noise.mean()) / noise.std()  # the standard error of the mean is 1 / 20
    calibration = chosen_from([noise + errors / 20])
    assert calibration.chosen == (CANDIDATES[0] if wins else TEMPERATURE)
    assert calibration.scale == calibration.chosen.spread
    assert ("below temperature scaling" in calibration.message) == wins
    assert chosen_from([noise + errors / 20], margin=0.0).chosen == CANDIDATES[0]
    assert chosen_from([noise + errors / 20], margin=2.0).chosen == TEMPERATURE


def test_a_certain_gain_beats_a_larger_one_in_doubt():
    noise = RNG.standard_normal(400)
    noise = (noise - noise.mean()) / noise.std()
    certain, doubtful = np.full(400, 0.1), 0.12 + noise  # standard error .05
    calibration = chosen_from([certain, doubtful])
    assert calibration.chosen == CANDIDATES[0]
    assert calibration.scores[2].gain > calibration.scores[1].gain


def test_the_first_candidate_that_is_no_better_is_the_last_one_tried():
    calibration = chosen_from([np.full(400, gain) for gain in (0.1, 0.2, 0.15, 0.9)])
    assert [score.candidate for score in calibration.scores] == [TEMPERATURE, *CANDIDATES[:3]]
    assert calibration.chosen == CANDIDATES[1]


def test_weights_are_repetitions():
    gains = RNG.standard_normal(400)
    weights = np.repeat([2.0, 0.0], 200)
    half = choose(
        CANDIDATES[:1],
        {TEMPERATURE: PLAIN[:200], CANDIDATES[0]: PLAIN[:200] - gains[:200]}.__getitem__,
        lambda _: 1.0,
        200,
    )
    for one, other in zip(chosen_from([gains], weights=weights).scores, half.scores, strict=True):
        assert (one.nll, one.gain, one.error) == pytest.approx((other.nll, other.gain, other.error))


def test_few_rows_are_not_compared():
    def losses(_):
        raise AssertionError("nothing to compare")

    calibration = choose(CANDIDATES, losses, lambda c: c.spread, 19)
    assert (calibration.chosen, calibration.scores) == (TEMPERATURE, ())
    assert calibration.message == "19 held-out rows are too few to compare: temperature scaling"


def test_losses_without_a_value_are_never_chosen():
    calibration = chosen_from([np.full(400, math.nan), np.full(400, 1.0)])
    assert calibration.chosen == TEMPERATURE
