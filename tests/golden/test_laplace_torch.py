"""Against laplace-torch on softmax heads with two and three logits, kept as a golden file (see make_laplace.py)."""

import numpy as np
import pytest

from enkbayes.evaluation.baselines import Laplace, LaplaceProbit
from golden.make_laplace import FILE, HEADS, head_problem


@pytest.mark.parametrize("name", HEADS)
def test_covariance_and_probit_predictive_agree(name):
    golden = np.load(FILE)
    problem = head_problem(name)
    posterior = LaplaceProbit().fit(problem)
    assert posterior.mean == pytest.approx(golden[f"{name}_theta"], abs=1e-8)
    assert posterior.cov == pytest.approx(golden[f"{name}_cov"], abs=1e-8)
    assert posterior.predict_proba(problem.features) == pytest.approx(golden[f"{name}_probit"], abs=1e-8)


@pytest.mark.parametrize("name", HEADS)
def test_the_exact_predictive_is_the_average_over_draws_and_the_probit_one_is_not(name):
    problem = head_problem(name)
    exact, probit = Laplace(particles=20000).fit(problem), LaplaceProbit().fit(problem)
    features = problem.features[:40]
    draws = exact.sample_proba(features).mean(axis=0)
    assert exact.predict_proba(features) == pytest.approx(draws, abs=0.01)
    assert np.abs(probit.predict_proba(features) - draws).max() > 0.05
