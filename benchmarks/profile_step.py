"""What each change bought: the fit of the image scale (N 10,000, D 256, J 600) with one of them taken away at a time.

    python benchmarks/profile_step.py        # writes benchmarks/results/profile.json

Variants take turns in one run with one BLAS thread; the ratio to the whole is that of the medians. The same for single
steps with two threads, at three sizes. And where the time of a fit goes, by function, from cProfile.
"""

from __future__ import annotations

import contextvars
import cProfile
import json
import platform
import pstats
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.special
from enkbayes.core.row_logits import RowLogits
from sides import PRIOR, logistic, network, seconds, side_by_side, white
from threadpoolctl import threadpool_limits

import enkbayes as eb
from enkbayes.core import expectations, logits, row_logits
from enkbayes.core.expectations import Expectation
from enkbayes.core.likelihoods import bernoulli
from enkbayes.core.linear_logits import LinearLogits
from enkbayes.core.moments import Moments
from enkbayes.engine import threads
from enkbayes.samplers import equilibrium
from enkbayes.samplers.equilibrium import Equilibrium
from enkbayes.solvers import newton, relaxation

RESULTS = Path(__file__).parent / "results" / "profile.json"
REPETITIONS = 7


@contextmanager
def everything() -> Iterator[None]:
    yield


@contextmanager
def no_newton() -> Iterator[None]:
    """Start the relaxation from the prior ensemble."""

    def settle(self: Equilibrium, problem: Any, state: Any, point: Any) -> Any:
        return self._settle(problem, state, newton.Start(point.ensemble), single=point.single)

    with patch.object(Equilibrium, "_approach", settle):
        yield


@contextmanager
def newtons_length() -> Iterator[None]:
    """Take Newton's steps as long as they are."""
    with patch.object(newton, "FAR", np.inf):
        yield


@contextmanager
def from_laplace() -> Iterator[None]:
    """Go on from the Laplace approximation itself, nearer to the maximum."""

    def start(problem: Any, point: Any) -> newton.Start:
        return newton.Start(newton.laplace(point))

    with patch.object(newton, "start", start), patch.object(newton, "NEAR", 0.3):
        yield


@contextmanager
def no_history() -> Iterator[None]:
    """Begin every kind of averages without the history of the one before."""
    with patch.object(equilibrium, "KIN", 0.0):
        yield


@contextmanager
def cast_every_time() -> Iterator[None]:
    with patch.object(LinearLogits, "_in_single", property(lambda self: self)):
        yield


@contextmanager
def double() -> Iterator[None]:
    with patch.object(relaxation, "LARGE", np.inf):
        yield


@contextmanager
def in_the_basis() -> Iterator[None]:
    """Take the logits of the basis first, and the particles' from them."""

    def moments(self: LinearLogits, ensemble: Any, likelihood: Any, *rest: Any, single: bool = False) -> Moments:
        return self._in_basis(ensemble, likelihood, *rest)

    with patch.object(LinearLogits, "moments", moments):
        yield


@contextmanager
def expit() -> Iterator[None]:
    """Average scipy's expit and y (1 - y)."""

    def averages(z: Any) -> Any:
        y = scipy.special.expit(z)
        return y.mean(axis=1), (y * (1 - y)).mean(axis=1)

    with patch.object(bernoulli, "logistic_averages", averages):
        yield


@contextmanager
def spectra() -> Iterator[None]:
    """Take residual, determinant and smallest eigenvalue from eigendecompositions."""

    def residual(self: Moments) -> float:
        w, _ = self.spectrum
        return float(np.sqrt((np.sum(self.g**2) + np.sum((1 - w) ** 2) / 2) / len(self.g)))

    def log_det(prior: Moments) -> float:
        return float(np.sum(np.log(prior.spectrum[0])))

    with patch.object(Moments, "residual", property(residual)), patch.object(relaxation, "_log_det", log_det):
        yield


@contextmanager
def roots_of_spectra() -> Iterator[None]:
    """Take the root of every step from an eigendecomposition."""
    with patch.object(Moments, "near_root", None):
        yield


@contextmanager
def particle_by_particle() -> Iterator[None]:
    """Take the logits of mean + x and mean - x by a product each."""
    with patch.object(row_logits, "WIDE", np.inf):
        yield


@contextmanager
def mixture() -> Iterator[None]:
    """Take Gaussian expectations by the scale mixture, however narrow the logits."""
    with patch.object(expectations, "NARROW", -1.0):
        yield


VARIANTS: dict[str, Callable[[], Any]] = {
    "everything": everything,
    "without Newton's start": no_newton,
    "Newton's steps at their own length": newtons_length,
    "without the steps of few particles": from_laplace,
    "histories, and Gaussian averages, from anew": no_history,
    "without float32": double,
    "features cast in every step": cast_every_time,
    "logits of the basis, in float64": in_the_basis,
    "scipy's expit": expit,
    "eigendecompositions for residual and determinant": spectra,
    "eigendecompositions for all roots": roots_of_spectra,
    "scale mixture for narrow logits": mixture,
    "a product for each particle of a pair": particle_by_particle,
}


@contextmanager
def threads_of_blas() -> Iterator[None]:
    """Leave the small products between the passes over data to BLAS's own threads, which then stand in the way."""
    with patch.object(threads, "NARROW", 0), patch.object(threads, "BLOCK", 10**9):
        yield


@contextmanager
def fresh_memory() -> Iterator[None]:
    """Take new memory for the logits of every few rows."""
    with patch.object(RowLogits, "_shaped", lambda *_: None):
        yield


@contextmanager
def short_strips() -> Iterator[None]:
    """Read narrow features 4,096 rows at a time."""
    with patch.object(logits, "STRIP", 0):
        yield


@contextmanager
def idle_caller() -> Iterator[None]:
    """Let two other threads work while the caller waits for them."""

    def together(function: Any, items: Any, workers: int) -> list[Any]:
        contexts = [contextvars.copy_context() for _ in items]
        return list(pool.map(lambda context, item: context.run(function, item), contexts, items))

    with ThreadPoolExecutor(2) as pool, patch.object(threads, "_together", together):
        yield


STEPS: dict[str, Callable[[], Any]] = {
    "everything": everything,
    "eigendecompositions for all roots": roots_of_spectra,
    "small products by BLAS's own threads": threads_of_blas,
    "fresh memory for logits": fresh_memory,
    "4,096 rows at a time": short_strips,
    "the caller only waits": idle_caller,
    "a product for each particle of a pair": particle_by_particle,
}


def of_steps() -> dict[str, dict[str, float]]:
    """Return the time of a float32 step without each of the changes, relative to that with all."""
    found = {}
    for N, D, J in ((10_000, 256, 600), (4_000, 512, 1_200), (200_000, 20, 100)):
        features = white(N, D)
        problem = eb.Problem.create(features, logistic(features, 0), PRIOR)
        settled = eb.run(problem, eb.Equilibrium(tol=1e-3), particles=J).ensemble
        wide = replace(settled, basis=1.3 * settled.basis)
        own = Expectation(energy=False)
        point = relaxation.evaluate(problem, wide, own, single=True)

        def step(number: int, variant: Any, problem=problem, point=point, own=own) -> float:
            with variant():
                return seconds(lambda: relaxation.try_step(problem, point, own, descend=False), number)

        times = side_by_side({name: partial(step, variant=variant) for name, variant in STEPS.items()}, REPETITIONS)
        whole = times["everything"]["seconds"]
        found[f"N {N:,}, D {D}, J {J}"] = {name: side["seconds"] / whole for name, side in times.items()}
        print(found, flush=True)
    return found


def main() -> None:
    features = network(10_000, 256)
    problem = eb.Problem.create(features, logistic(features, 0), PRIOR)
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    steps: dict[str, int] = {}
    with threadpool_limits(1):
        for _ in range(REPETITIONS):
            for name, variant in VARIANTS.items():
                with variant():
                    started = time.perf_counter()
                    posterior = eb.run(problem, eb.Equilibrium(tol=1e-3), particles=600)
                    times[name].append(time.perf_counter() - started)
                    steps[name] = posterior.info.steps
        profile = cProfile.Profile()
        profile.runcall(eb.run, problem, eb.Equilibrium(tol=1e-3), particles=600)
    medians = {name: float(np.median(values)) for name, values in times.items()}
    whole = medians["everything"]
    table = {name: {"ratio": m / whole, "seconds": m, "steps": steps[name]} for name, m in medians.items()}
    for name, row in table.items():
        print(f"{name:50s} {row['ratio']:6.2f} {row['steps']:4d} steps")
    stats: Any = pstats.Stats(profile)
    own = sorted(((v[2], f"{Path(k[0]).name}:{k[2]}") for k, v in stats.stats.items()), reverse=True)[:12]
    shares = {name: seconds / stats.total_tt for seconds, name in own}
    environment = {"python": platform.python_version(), "numpy": np.__version__, "threads": 1}
    result = {"environment": environment, "variants": table, "steps": of_steps(), "shares of a fit": shares}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
