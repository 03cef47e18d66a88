"""The only loop: iterate, run, stopping, progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from enkbayes.core.caller import warn
from enkbayes.core.numerics import failed
from enkbayes.core.posterior import Info, Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, all_finite, to_numpy
from enkbayes.samplers.equilibrium import Equilibrium
from enkbayes.samplers.progress import progress_bar
from enkbayes.samplers.recorder import Recorder, thinned
from enkbayes.samplers.start import as_sampler, first_state, resumed, stepper, whole_seed
from enkbayes.samplers.state import Sampler, State


def iterate(
    problem: Problem,
    sampler: Sampler | None = None,
    *,
    particles: int = 200,
    seed: int | np.random.Generator = 0,
    theta: Array | None = None,
    state: State | None = None,
) -> Iterator[State]:
    """Yield the states of a run one by one, the first before any step.

    Parameters
    ----------
    problem : Problem
        What to sample.
    sampler : Sampler, optional
        Default `Equilibrium()`.
    particles : int
        J, the size of the ensemble drawn from the prior (whitened: its mean and, for J > P, covariance are exactly the
        prior's; in pairs mean +- x for even J >= 2 P). With J <= P `Equilibrium` and `MeanField` start from the data
        instead, see there.
    seed : int or numpy Generator
        Of the initial ensemble and of every later random choice.
    theta : array (J, P), optional
        An initial ensemble of your own, instead of `particles` draws.
    state : State, optional
        Continue from a state that an earlier iteration yielded, with the same kind of sampler; its settings may differ.

    Examples
    --------
    >>> import enkbayes as eb
    >>> features = np.random.default_rng(0).standard_normal((60, 2))
    >>> problem = eb.Problem.create(features, features[:, 1] > 0)
    >>> for state in eb.iterate(problem, eb.Homotopy(steps=4), particles=20):
    ...     print(state.steps, round(state.time, 4))
    0 0.0
    1 0.0156
    2 0.125
    3 0.4219
    4 1.0
    """
    sampler = Equilibrium() if sampler is None else as_sampler(sampler)
    if state is None:
        seed = whole_seed(seed)
        begin = partial(first_state, problem, sampler, particles, seed, theta)
        state = replace(_guarded(problem, begin, None), owner=sampler)
    else:
        state = resumed(state, sampler)
    yield state
    stepping = stepper(problem, sampler, state)
    while not state.finished:
        state = _guarded(problem, partial(stepping.step, problem, state), state)
        yield state


def run(
    problem: Problem,
    sampler: Sampler | None = None,
    *,
    particles: int = 200,
    seed: int | np.random.Generator = 0,
    theta: Array | None = None,
    state: State | None = None,
    progress: bool = False,
    callback: Callable[[State], Any] | None = None,
    recorder: Recorder | None = None,
) -> Posterior:
    """Run a sampler to its end and return the posterior; warns when it did not converge.

    Parameters are those of `iterate`, and

    progress : bool
        Show a progress bar.
    callback : callable, optional
        Called with every state; the run stops when it returns True.
    recorder : Recorder, optional
        Receives every state, and may supply the one to resume from: `CheckpointWriter("run.safetensors")` writes the
        run to a file, so that the same call resumes it after an interruption.

    Examples
    --------
    >>> import enkbayes as eb
    >>> features = np.random.default_rng(0).standard_normal((60, 2))
    >>> problem = eb.Problem.create(features, features[:, 1] > 0, prior=2.0)
    >>> posterior = eb.run(problem, eb.Equilibrium(), particles=100, seed=0)
    >>> posterior.info.converged
    True
    """
    sampler = Equilibrium() if sampler is None else as_sampler(sampler)
    started = time.perf_counter()
    if recorder is not None:
        size = (particles if theta is None else len(theta)) if state is None else None
        state = recorder.resume(problem, sampler, seed=seed, particles=size) or state
    states = iterate(problem, sampler, particles=particles, seed=seed, theta=theta, state=state)
    with (
        nullcontext() if recorder is None else recorder,
        progress_bar(type(sampler).__name__, sampler.horizon, enabled=progress) as report,
    ):
        first, trace = next(states), getattr(recorder, "trace", [])
        if trace and trace[-1][0] == first.steps:  # the record ends with the state from which the run resumes
            trace.pop()
        for last in chain([first], states):
            trace.append((last.steps, last.residual, float(np.sum(to_numpy(last.ensemble.variances)))))
            if recorder is not None:
                recorder(last)
            report(last)
            if callback is not None and callback(last) is True:
                break
    if not last.finished:
        last = replace(last, message=f"stopped by the callback after {last.steps} steps")
    info = replace(_info(problem, sampler, last, time.perf_counter() - started), trace=thinned(trace))
    if not info.converged:
        from sklearn.exceptions import ConvergenceWarning

        warn(f"{type(sampler).__name__} did not converge: {info.message}", ConvergenceWarning)
    return Posterior(last.ensemble, problem.likelihood, problem.linear, problem.classes, last.gaussian, info, last)


def _guarded(problem: Problem, step: Callable[[], State], before: State | None) -> State:
    """Return the next state; when it is not finite, the state before it, finished, with a sentence that says so."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"), problem.resources():
        try:
            state = step()
            if all_finite(state.ensemble.mean) and all_finite(state.ensemble.variances):
                return state
        except Exception as error:
            if not failed(error):
                raise
            if before is None:
                raise ValueError(
                    "the logits of the initial ensemble overflow; scale the features or the prior down"
                ) from None
    if before is None:
        raise ValueError("the initial ensemble is not finite; scale the features or the prior down")
    message = (
        f"the ensemble left the range of floating-point numbers in step {before.steps + 1}; scale "
        "the features, or take a narrower prior or a smaller step"
    )
    return replace(before, finished=True, message=message)


def _info(problem: Problem, sampler: Sampler, state: State, seconds: float) -> Info:
    return Info(
        sampler=repr(sampler),
        steps=state.steps,
        converged=state.converged,
        residual=state.residual,
        message=state.message or _narrow(problem, state),
        blend=state.blend,
        time=state.time,
        seconds=seconds,
        nonlinearity=problem.model.nonlinearity(state.ensemble),
    )


def _narrow(problem: Problem, state: State) -> str:
    """Return a sentence on what an ensemble can represent if it has J <= P particles or a low-rank Gaussian."""
    ensemble, dim = state.ensemble, problem.dim
    if ensemble.size > dim and ensemble.freedom == dim:
        return ""
    if ensemble.freedom < dim:
        return f"{ensemble.size} particles span {ensemble.rank} of {dim} directions and say nothing of the others"
    if ensemble.complement is None:
        fitted = f"in all {dim} directions"
    else:
        fitted = f"freely in {ensemble.rank} of {dim} directions, in a frame of features and classes outside them"
    return f"{ensemble.size} particles, drawn from a Gaussian fitted {fitted}"
