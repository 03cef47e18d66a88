"""A fixed, fast subset of `make fuzz`: the same cases in every run of the suite."""

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz.campaign import area
from fuzz.oracle import Broken, Refused, judged, require

CASES = {"estimator": 60, "core": 40, "command": 15, "networks": 15}


@pytest.mark.parametrize("name", CASES)
def test_every_case_ends_with_a_valid_posterior_or_one_error_of_ours(name):
    if name == "networks":
        pytest.importorskip("torch")
    ends = []

    @seed(20_261_118)
    @settings(
        max_examples=CASES[name],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(area(name).strategy)
    def every(case):
        try:
            area(name).examine(case)
        except Refused:
            ends.append("refused")
        else:
            ends.append("valid")

    every()
    assert ends.count("valid") > 0.2 * len(ends)
    assert ends.count("refused") > 0.2 * len(ends)


def test_the_oracle_tells_our_errors_from_others():
    import numpy as np

    import enkbayes as eb

    with pytest.raises(Refused, match="positive variances"), judged():
        eb.Problem.create(np.ones((2, 1)), [0, 1], -1.0)
    with pytest.raises(Broken, match="ValueError: could not"), judged():
        float("x")
    with pytest.raises(Broken, match="LinAlgError"), judged():
        np.linalg.inv(np.zeros((1, 1)))
    with pytest.raises(Broken, match="not ours: RuntimeWarning"), judged():
        np.float64(1e308) * 10
    with pytest.raises(Broken, match="no reason"), judged():
        require(condition=False, sentence="no reason")
