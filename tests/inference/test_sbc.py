"""Simulation-based calibration in small: benchmarks/sbc.py has every sampler and more cells."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import sbc

import enkbayes as eb

CELL = (20, 4, 2, 1.0)
SURE = 1e-3  # p-values below it do not come by chance


@pytest.fixture(scope="module")
def found():
    return sbc.study(CELL, eb.Equilibrium(), 60)


@pytest.mark.parametrize("kind", ["independent", "polished"])
def test_ranks_of_the_true_weights_are_uniform(found, kind):
    for name in sbc.STATISTICS:
        assert found[kind][name]["p"] > SURE, name
        assert sum(found[kind][name]["counts"]) == 60
    mean, error = found[kind]["squares"]
    assert abs(mean - 1) < 4 * error


@dataclass(frozen=True)
class Narrow(eb.MeanField):
    """A sampler that is sure of itself: a quarter of the variance."""

    def step(self, problem, state):
        after = super().step(problem, state)
        ensemble = after.ensemble
        return replace(after, ensemble=replace(ensemble, basis=ensemble.basis / 2)) if after.finished else after


def test_a_posterior_that_is_too_narrow_is_found_out():
    found = sbc.study(CELL, Narrow(), 60, sweeps=0)
    for kind in ("particles", "independent"):
        assert found[kind]["weight"]["p"] < SURE
        ends = found[kind]["weight"]["counts"]
        assert ends[0] + ends[-1] > 22  # of 60; 12 are expected


def test_the_default_average_is_calibrated_under_its_hyperprior():
    """The width is drawn from the half-Cauchy prior, then weights and labels; 4 standard errors for the norm."""
    found = sbc.study((20, 2, 2, None), sbc.AVERAGES["average"], 40, sweeps=0, judged=0)
    assert found["verdicts"] == {}
    for name in sbc.STATISTICS:
        assert found["independent"][name]["p"] > SURE, name
    mean, error = found["independent"]["logs"]
    assert abs(mean) < 4 * error


def test_mirrored_pairs_have_the_middle_rank_too_often():
    """Half of 100 mirrored particles lie below a value at their centre, whatever they are: pairs are not draws."""
    rng = np.random.default_rng(0)
    half = rng.standard_normal((50, 4000))
    value = rng.standard_normal(4000)
    pairs = np.sum(np.concatenate([half, -half]) < value, axis=0)
    draws = np.sum(rng.standard_normal((100, 4000)) < value, axis=0)
    middle = [float(np.mean(ranks == 50) * 101) for ranks in (pairs, draws)]
    assert middle[0] > 1.8
    assert middle[1] == pytest.approx(1, abs=0.4)


def test_the_page_has_a_histogram_for_every_statistic(found):
    results = {"replications": 100, "cells": {"N20 D2 K2 v1": {"equilibrium": found}}}
    page = sbc.page(results)
    assert sbc.bars(found["particles"]["weight"]["counts"]) in page
    assert sum(line.startswith("| equilibrium | particles | `") for line in page.splitlines()) == 1
    assert "| equilibrium | independent | 4 |" in page


def test_the_page_in_the_docs_is_made_of_the_results():
    results = json.loads(sbc.RESULTS.read_text(encoding="utf-8"))
    assert sbc.PAGE.read_text(encoding="utf-8") == sbc.page(results)
    assert set(results["cells"]) == set(sbc.CELLS)
    assert set(results["averages"]) == set(sbc.WIDTHS)
    assert all(set(methods) == set(sbc.AVERAGES) for methods in results["averages"].values())
    assert all(set(samplers) == set(sbc.SAMPLERS) for samplers in results["cells"].values())
