"""How a run begins: from draws of the prior, from particles of the user, or from the state of an earlier run."""

from __future__ import annotations

from dataclasses import fields, replace
from numbers import Integral
from typing import Any

import numpy as np

from enkbayes.core.arguments import is_whole
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.gaussian import Gaussian, standard_points
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, all_finite, floating, like
from enkbayes.engine.memory import check_fits
from enkbayes.samplers.equilibrium import Equilibrium
from enkbayes.samplers.mean_field import MeanField
from enkbayes.samplers.state import Sampler, State
from enkbayes.solvers.softmax_path import fits

COPIES, OVERHEAD = 4, 70
"""Numbers that a run holds for each particle: copies of its parameters, and logits of the rows in work. Measured with
4 and 30 parameters, 10^6 and 2 * 10^5 particles: 643 and 1,385 bytes each.
"""


def first_state(problem: Problem, sampler: Sampler, particles: int, seed: int, theta: Array | None) -> State:
    """Return the first state: from the user's particles, from the data when there are no more particles than
    parameters and Gaussian expectations can stand in for them, otherwise from the prior.
    """
    limit = mean_field_of(sampler)
    if theta is None:
        _check_memory(count(particles), problem.dim)
    if theta is None and limit is not None and problem.is_linear and count(particles) <= problem.dim:
        return limit.init_few(problem, particles, seed)
    return sampler.init(problem, initial_ensemble(problem, particles, seed, theta), seed)


def stepper(problem: Problem, sampler: Sampler, state: State) -> Sampler:
    """Return the sampler that takes the steps from a state: `MeanField` where an `Equilibrium` began from the data."""
    limit = mean_field_of(sampler)
    few = state.ensemble.size <= problem.dim and state.ensemble.freedom == problem.dim
    return limit if limit is not None and few and problem.is_linear else sampler


def mean_field_of(sampler: Sampler) -> MeanField | None:
    """Return the mean-field sampler that takes the place of this one when particles are few, or None."""
    if isinstance(sampler, Equilibrium) and sampler.adaptive:
        return MeanField(sampler.tol, sampler.max_steps, float32=sampler.float32, large=sampler.large)
    return sampler if isinstance(sampler, MeanField) else None


def default_sampler(problem: Problem, *, classes: int = 20, parameters: int = 300) -> Sampler:
    """Return `Equilibrium()`, or, for a softmax with at least so many classes and more than so many parameters,
    `MeanField(rank=0)`, which takes a few times the time of its most probable weights.

    >>> default_sampler(Problem.create(np.eye(20), np.arange(20), classes=np.arange(20)))
    MeanField(tol=1e-06, max_steps=200, rank=0)
    """
    many = (problem.likelihood.outputs or 1) >= classes and problem.dim > parameters
    return MeanField(rank=0) if many and fits(problem) else Equilibrium()


def initial_ensemble(problem: Problem, particles: int, seed: int, theta: Array | None) -> AffineEnsemble:
    """Return the user's particles theta (J, P), or `particles` whitened draws from the prior."""
    prior = problem.prior
    if theta is None:
        points = like(standard_points(count(particles), problem.dim, np.random.default_rng(seed)), prior.mean)
        if points.shape[0] > problem.dim:  # whitened already
            return AffineEnsemble(prior.mean, prior.dense_root, points)
        return in_prior_frame(prior, points)
    theta = floating(theta)
    if theta.ndim != 2 or theta.shape[0] < 2 or theta.shape[1] != problem.dim:
        raise ValueError(f"theta has shape {tuple(theta.shape)}; expected (J, {problem.dim}) with J >= 2")
    if not all_finite(theta):
        raise ValueError("theta contains NaN or infinite values; expected finite particles")
    return from_draws(prior, like(theta, prior.mean))


def from_draws(prior: Gaussian, theta: Array) -> AffineEnsemble:
    """Return the ensemble of the particles theta (J, P)."""
    return in_prior_frame(prior, prior.whiten((theta - prior.mean).mT).mT)


def as_sampler(sampler: Any) -> Sampler:
    """Return a sampler, or raise a ValueError for anything else, the class of a sampler included.

    >>> as_sampler(Equilibrium)
    Traceback (most recent call last):
        ...
    ValueError: the sampler is the class Equilibrium; expected an object, such as Equilibrium()
    """
    if isinstance(sampler, type):
        raise ValueError(
            f"the sampler is the class {sampler.__name__}; expected an object, such as {sampler.__name__}()"
        )
    if not all(hasattr(sampler, name) for name in ("init", "step", "horizon")):
        raise ValueError(f"the sampler is {sampler!r}; expected an object such as Equilibrium() or MeanField()")
    found: Sampler = sampler
    return found


def count(particles: Any) -> int:
    """Return a number of particles that makes an ensemble."""
    if not is_whole(particles, 2):
        raise ValueError(f"particles is {particles!r}; expected a whole number, at least 2 to have some spread")
    return int(particles)


def _check_memory(particles: int, parameters: int) -> None:
    """Raise a ValueError if so many particles would not fit into memory, before any of them is drawn."""
    each = 8.0 * (COPIES * parameters + OVERHEAD)
    check_fits(
        each * particles,
        f"{particles:,} particles of {parameters:,} parameters",
        lambda free: f"at most about {int(free / each):,} particles fit, and 200 are enough for most uses",
    )


def in_prior_frame(prior: Gaussian, u: Array) -> AffineEnsemble:
    """Return the ensemble theta_j = m0 + L0 u_j for whitened particles u (J, P).

    The rank is decided among the u, where all prior directions have the same scale; in the user's units a direction
    with a small prior variance could be mistaken for round-off.
    """
    inner = AffineEnsemble.factor(u)
    mean = prior.mean + prior.unwhiten(inner.mean[None, :])[0, :]
    return AffineEnsemble(mean, prior.unwhiten(inner.basis.mT).mT, inner.points)


def whole_seed(seed: Any) -> int:
    """Return a seed as a non-negative integer; a numpy Generator gives one of its own."""
    if isinstance(seed, np.random.Generator):
        return int(seed.integers(2**63))
    if not isinstance(seed, Integral) or seed < 0:
        raise ValueError(f"seed is {seed!r}; expected a non-negative integer or a numpy Generator")
    return int(seed)


def resumed(state: State, sampler: Sampler) -> State:
    """Return the state ready to continue with a sampler of the same kind, whose settings may differ from before.

    A converged state stays as it is under the very same settings; a homotopy at s = 1 stays there under any.
    """
    if _kind(state.owner) != _kind(sampler):
        raise ValueError(f"the state comes from {state.owner!r}; expected the same kind of sampler, got {sampler!r}")
    if state.finished and (sampler == state.owner or state.steps >= sampler.horizon):
        return state
    return replace(state, owner=sampler, finished=False, converged=False, message="")


def _kind(sampler: Any) -> tuple[Any, ...]:
    """Return type and mode: which optional settings are in use decides what a state's control holds."""
    modes = (f.name for f in fields(sampler) if f.default is None and getattr(sampler, f.name) is not None)
    return (type(sampler), *modes)
