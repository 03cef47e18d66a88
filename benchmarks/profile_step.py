"""Measure the effect of each optimisation: the time of a fit and of a step with one of them switched off at a time.

    python benchmarks/profile_step.py [--repetitions 7]        # writes benchmarks/results/profile.json

The fit has N 10,000, D 256 and J 600 and runs on one BLAS thread. The single steps have three sizes and run on two
threads. Variants alternate, and each figure is a ratio of medians to the variant with all optimisations. The script
also writes the share of each function in the time of a fit, from cProfile.
"""

from __future__ import annotations

import argparse
import contextvars
import cProfile
import json
import platform
import pstats
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.special
from sides import PRIOR, logistic, network, seconds, side_by_side, white
from threadpoolctl import threadpool_limits

import enkbayes as eb
from enkbayes.core.likelihoods import bernoulli
from enkbayes.core.linear_logits import LinearLogits
from enkbayes.core.moments import Diverged, Moments
from enkbayes.core.quadrature import gauss_logit
from enkbayes.engine import threads
from enkbayes.engine.rows import Chunk
from enkbayes.samplers.equilibrium import frozen_flow
from enkbayes.solvers import roots, step_control
from enkbayes.solvers.newton import NewtonSearch
from enkbayes.solvers.step_control import Stage, StepControl, Track, evaluate

RESULTS = Path(__file__).parent / "results" / "profile.json"
BASELINE = "all optimisations"
SIZES = ((10_000, 256, 600), (4_000, 512, 1_200), (200_000, 20, 100))

Patch = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Variant:
    """Changes that switch an optimisation off: fields of the controller, the sampler and the row source, and patches
    where a function has no such argument.
    """

    control: dict[str, Any] = field(default_factory=dict)
    sampler: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)
    patches: tuple[Patch, ...] = ()

    def problem(self, problem: eb.Problem) -> eb.Problem:
        """Return the problem with the changed row source."""
        return replace(problem, rows=replace(problem.rows, **self.rows)) if self.rows else problem

    def fit(self, problem: eb.Problem) -> eb.Posterior:
        """Run the sampler on a problem of this variant."""
        return eb.run(problem, Controlled(tol=1e-3, changes=self.control, **self.sampler), particles=600)

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Apply the patches."""
        with ExitStack() as stack:
            for each in self.patches:
                stack.enter_context(each())
            yield


@dataclass(frozen=True)
class Controlled(eb.Equilibrium):
    """Equilibrium whose controller has other constants."""

    changes: dict[str, Any] = field(default_factory=dict)

    def _control(self, problem: Any, ensemble: Any) -> StepControl:
        return replace(super()._control(problem, ensemble), **self.changes)


def no_pairs(*_: Any) -> Any:
    """Replace `few_pairs`: without pairs the run continues from the Laplace approximation."""
    raise Diverged


def expit_averages(z: Any) -> Any:
    """Average scipy's expit and y (1 - y)."""
    y = scipy.special.expit(z)
    return y.mean(axis=1), (y * (1 - y)).mean(axis=1)


def residual_from_spectrum(moments: Moments) -> float:
    w, _ = moments.spectrum
    return float(np.sqrt((np.sum(moments.g**2) + np.sum((1 - w) ** 2) / 2) / len(moments.g)))


def log_det_from_spectrum(prior: Moments) -> float:
    return float(np.sum(np.log(prior.spectrum[0])))


@contextmanager
def idle_caller() -> Iterator[None]:
    """Let two other threads work while the calling thread waits for them."""

    def together(function: Any, items: Any, workers: int) -> list[Any]:
        contexts = [contextvars.copy_context() for _ in items]
        return list(pool.map(lambda context, item: context.run(function, item), contexts, items))

    with ThreadPoolExecutor(2) as pool, patch.object(threads, "_together", together):
        yield


PAIRS = partial(patch.object, Chunk, "mirrors", False)
ROOTS = partial(patch.object, roots, "inverse_root_near_identity", lambda *_: None)

FITS = {
    BASELINE: Variant(),
    "no Newton start": Variant(control={"search": None}),
    "no line search in Newton steps": Variant(control={"search": NewtonSearch(far=np.inf)}),
    "no steps with few particles": Variant(
        control={"search": NewtonSearch(near=0.3)},
        patches=(partial(patch.object, step_control, "few_pairs", no_pairs),),
    ),
    "no shared history": Variant(control={"reuse": 0.0}),
    "float64 only": Variant(sampler={"float32": False}),
    "float32 conversion in every step": Variant(rows={"held": 0}),
    "sums in the basis, float64": Variant(
        sampler={"float32": False},
        patches=(partial(patch.object, LinearLogits, "moments", LinearLogits.moments_in_basis),),
    ),
    "scipy's expit": Variant(patches=(partial(patch.object, bernoulli, "logistic_averages", expit_averages),)),
    "eigendecompositions for residual and determinant": Variant(
        patches=(
            partial(patch.object, Moments, "residual", property(residual_from_spectrum)),
            partial(patch.object, step_control, "_log_det", log_det_from_spectrum),
        )
    ),
    "eigendecompositions for all roots": Variant(patches=(ROOTS,)),
    "scale mixture for logits of small variance": Variant(
        patches=(partial(patch.object, bernoulli, "averaged_logit", gauss_logit),)
    ),
    "one product per particle instead of per pair": Variant(patches=(PAIRS,)),
}

STEPS = {
    BASELINE: Variant(),
    "eigendecompositions for all roots": Variant(patches=(ROOTS,)),
    "small products on BLAS threads": Variant(
        patches=(partial(patch.object, threads, "NARROW", 0), partial(patch.object, threads, "BLOCK", 10**9))
    ),
    "fresh memory for logits": Variant(patches=(partial(patch.object, Chunk, "_shared", lambda *_: None),)),
    "chunks of 4,096 rows": Variant(rows={"entries": 0}),
    "calling thread idle": Variant(patches=(idle_caller,)),
    "one product per particle instead of per pair": Variant(patches=(PAIRS,)),
}


def fit_times(problem: eb.Problem, repetitions: int) -> dict[str, dict[str, float]]:
    """Return the time of a fit for every variant, relative to the baseline, with seconds and steps."""
    times: dict[str, list[float]] = {name: [] for name in FITS}
    steps: dict[str, int] = {}
    problems = {name: variant.problem(problem) for name, variant in FITS.items()}
    for _ in range(repetitions):
        for name, variant in FITS.items():
            with variant.patched():
                started = time.perf_counter()
                posterior = variant.fit(problems[name])
                times[name].append(time.perf_counter() - started)
            steps[name] = posterior.info.steps
    medians = {name: float(np.median(values)) for name, values in times.items()}
    return {
        name: {"ratio": median / medians[BASELINE], "seconds": median, "steps": steps[name]}
        for name, median in medians.items()
    }


def step_times(repetitions: int) -> dict[str, dict[str, float]]:
    """Return the time of a float32 step for every size and variant, relative to the baseline."""
    found = {}
    for N, D, J in SIZES:
        features = white(N, D)
        problem = eb.Problem.create(features, logistic(features, 0), PRIOR)
        ensemble = eb.run(problem, eb.Equilibrium(tol=1e-3), particles=J).ensemble
        wide = replace(ensemble, basis=1.3 * ensemble.basis)  # away from the equilibrium, so it must move
        works = {name: partial(timed_step, variant, problem, wide) for name, variant in STEPS.items()}
        times = side_by_side({name: work() for name, work in works.items()}, repetitions)
        baseline = times[BASELINE]["seconds"]
        found[f"N {N:,}, D {D}, J {J}"] = {name: side["seconds"] / baseline for name, side in times.items()}
        print(found, flush=True)
    return found


def timed_step(variant: Variant, problem: eb.Problem, ensemble: eb.AffineEnsemble) -> Callable[[int], float]:
    """Return a function from the number of threads to the seconds of one float32 step."""
    source = variant.problem(problem).coarse
    own = Stage(0.0, descend=False)
    control = StepControl(frozen_flow, (own,), tol=1e-9, max_steps=100)
    track = Track(evaluate(source, ensemble, own.expectation), start=ensemble)

    def step() -> None:
        with source.resources():
            moments, tau = control.propose(track)
            control.judge(source, track, moments, *frozen_flow(moments, tau, control.share))

    def timed(number: int) -> float:
        with variant.patched():
            return seconds(step, number)

    return timed


def shares(problem: eb.Problem) -> dict[str, float]:
    """Return the functions that take most of the time of a fit, and their shares."""
    profile = cProfile.Profile()
    profile.runcall(FITS[BASELINE].fit, problem)
    stats: Any = pstats.Stats(profile)
    own = sorted(((v[2], f"{Path(k[0]).name}:{k[2]}") for k, v in stats.stats.items()), reverse=True)[:12]
    return {name: spent / stats.total_tt for spent, name in own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    features = network(10_000, 256)
    problem = eb.Problem.create(features, logistic(features, 0), PRIOR)
    with threadpool_limits(1):
        fits = fit_times(problem, options.repetitions)
        spent = shares(problem)
    for name, row in fits.items():
        print(f"{name:50s} {row['ratio']:6.2f} {row['steps']:4d} steps")
    environment = {"python": platform.python_version(), "numpy": np.__version__, "threads": 1}
    steps = step_times(options.repetitions)
    result = {"environment": environment, "variants": fits, "steps": steps, "shares of a fit": spent}
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
