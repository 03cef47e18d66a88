"""Mini-batches: partitions, total weights, and the distance to the result with all rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import enkbayes as eb
from enkbayes.samplers.minibatch import partition
from oracles.problems import method_problem


@given(st.integers(1, 200), st.integers(1, 250), st.integers(0, 2**32), st.integers(0, 50))
def test_every_row_is_in_exactly_one_batch(size, batch, seed, epoch):
    parts = partition(size, batch, seed, epoch)
    assert sorted(int(i) for part in parts for i in part) == list(range(size))
    assert max(len(part) for part in parts) <= batch
    assert max(len(part) for part in parts) - min(len(part) for part in parts) <= 1


def test_passes_differ():
    first, second = partition(30, 10, 0, 0), partition(30, 10, 0, 1)
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_total_weight_of_every_row_is_one(monkeypatch):
    """Count what reaches the moments: over a whole mini-batch homotopy each row has weight exactly 1."""
    from enkbayes.samplers import homotopy

    problem = method_problem("T0")
    weight = dict.fromkeys(range(problem.size), 0.0)
    key = {tuple(row): n for n, row in enumerate(problem.features)}
    original = homotopy.assimilate

    def counted(part, ensemble, ds, *, midpoint):
        for row in part.features:
            weight[key[tuple(row)]] += ds
        return original(part, ensemble, ds, midpoint=midpoint)

    monkeypatch.setattr(homotopy, "assimilate", counted)
    eb.run(problem, eb.Homotopy(steps=7, batch=6), particles=10)
    assert list(weight.values()) == pytest.approx([1.0] * problem.size, abs=1e-12)


def error(posterior, reference):
    difference = posterior.mean - reference.mean
    return np.sqrt(difference @ np.linalg.solve(reference.cov, difference) / len(difference))


def test_mini_batch_homotopy_approaches_the_full_one():
    problem = method_problem("T1")
    exact = eb.run(problem, eb.Homotopy(steps=200), particles=100)
    errors = [error(eb.run(problem, eb.Homotopy(steps=K, batch=30), particles=100), exact) for K in (2, 16)]
    assert errors[1] < 0.03 < errors[0]


def test_mini_batch_equilibrium_with_decaying_steps():
    """About .008 sd after 500 steps of 30 rows; the reported residual is that of all rows."""
    problem = method_problem("T1")
    exact = eb.run(problem, eb.Equilibrium(), particles=100)
    runs = [eb.run(problem, eb.Equilibrium(batch=30, max_steps=K, tol=1.0), particles=100) for K in (60, 500)]
    errors = [error(run, exact) for run in runs]
    assert errors[1] < 0.03 < errors[0]
    assert runs[1].info.residual == pytest.approx(problem.potential_moments(runs[1].ensemble).residual)
    assert runs[1].info.residual < runs[0].info.residual
