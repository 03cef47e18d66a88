"""The verdict on METHOD's problems, and on runs that went wrong."""

import math

import numpy as np
import pytest

import enkbayes as eb
from enkbayes import importance, trust
from oracles.problems import logistic_data, method_problem


@pytest.mark.parametrize("name", ["T0", "T1", "T2"])
def test_good_problems_are_called_good(name):
    problem = method_problem(name)
    for seed in range(3):
        assert trust.assess(problem, eb.run(problem, eb.MeanField()), seed=seed).verdict == trust.GOOD


@pytest.mark.parametrize("name", ["T4", "T5"])
def test_problems_far_from_gaussian_are_flagged(name):
    problem = method_problem(name)
    for seed in range(3):
        report = trust.assess(problem, eb.run(problem, eb.MeanField()), seed=seed)
        assert report.verdict == trust.BAD
        assert "far from Gaussian" in report.sentence


def test_figures_are_those_of_method():
    """METHOD 6.2a, S = 1e5: T1 k-hat .39, effective share .88; T2 .46 and .78."""
    for name, effective in (("T1", 0.88), ("T2", 0.78)):
        problem = method_problem(name)
        report = trust.assess(problem, eb.run(problem, eb.MeanField()), draws=20000)
        assert report.effective == pytest.approx(effective, abs=0.04)
        assert report.k_hat == pytest.approx(0.42, abs=0.12)


def test_without_arviz_the_effective_share_decides(monkeypatch):
    monkeypatch.setattr(importance, "find_spec", lambda name: None)
    verdicts = {}
    for name in ("T1", "T4"):
        problem = method_problem(name)
        report = trust.assess(problem, eb.run(problem, eb.MeanField()))
        assert math.isnan(report.k_hat)
        verdicts[name] = report.verdict
    assert verdicts == {"T1": trust.GOOD, "T4": trust.BAD}


@pytest.mark.filterwarnings("ignore:MeanField did not converge")
def test_an_unsettled_run_is_not_trusted():
    problem = method_problem("T3")
    report = trust.assess(problem, eb.run(problem, eb.MeanField(max_steps=3)))
    assert report.verdict == trust.BAD
    assert "not settled" in report.sentence


def test_a_narrow_ensemble_is_at_best_usable():
    problem = eb.Problem.create(*logistic_data(20, 300, seed=0), 1.0)
    report = trust.assess(problem, eb.run(problem, particles=10))
    assert report.verdict == trust.USABLE
    assert "9 of 20" in report.sentence


def test_exact_posteriors_have_equal_weights():
    rng = np.random.default_rng(0)
    problem = eb.Problem.create(rng.standard_normal((20, 3)), rng.standard_normal(20), 1.0, likelihood=eb.Normal(0.5))
    report = trust.assess(problem, eb.run(problem, eb.MeanField(tol=1e-10)))
    assert report.effective == pytest.approx(1, abs=1e-9)
    assert report.verdict == trust.GOOD
