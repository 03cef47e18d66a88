"""The theory of the paper, measured: the mean-field rate, the equilibrium equations, affine invariance, and speed."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.problem import Problem
from enkbayes.core.quadrature import gauss_logit
from enkbayes.evaluation import plots
from enkbayes.evaluation.baselines import ParticleFlow
from enkbayes.reproduction.findings import Claim, Drawing, Findings, Setting, Table, judged
from enkbayes.reproduction.methods import MOONS, Study, algorithm_2, study
from enkbayes.reproduction.scores import near_grid
from enkbayes.reproduction.sizes import Run
from enkbayes.reproduction.tables import experiment
from enkbayes.reproduction.theory import convergence_rate, couple
from enkbayes.samplers import Equilibrium, MeanField, Sampler
from enkbayes.samplers.run import iterate
from enkbayes.samplers.run import run as run_sampler

Vector = np.ndarray[Any, Any]
HORIZON = 2.0
"""The time s at which the coupled systems are compared."""

CLOSE = 0.005
"""The mean distance of predictions to the posterior at which the clock stops."""


def meanfield(run: Run) -> Findings:
    """Measure the rate, the equations, the invariance and the speed."""
    rate, curve, errors = _rate(run.part(0, 0.5))
    run.progress(0.5, "the equilibrium equations")
    equations = _equations()
    run.progress(0.55, "affine invariance")
    invariance, shifts = _invariance()
    race, times = _race(run.part(0.6, 1.0))
    settings = (
        Setting(
            "problem for the rate", "D = 5, N = 100, prior N(0, I), initial ensemble i.i.d. from the prior", "ours"
        ),
        Setting("time", f"s = {HORIZON:g}; both systems are solved by an adaptive Runge-Kutta method", "ours"),
        Setting("repetitions", f"{run.size.rate_repeats} for each J", "ours"),
        Setting("problem for the equations", "that of table 1 (D = 20, N = 300)", "paper"),
        Setting("problem for the speed", f"the network of figure 2; within {CLOSE} of a long NUTS run", "ours"),
    )
    return Findings((rate, equations, invariance, race), (errors, shifts, times), (curve,), settings)


def small_problem(seed: int = 0) -> Problem:
    """Return the problem on which rate and invariance are measured."""
    rng = np.random.default_rng((seed, 40))
    features = rng.standard_normal((100, 5))
    labels = rng.random(100) < 1 / (1 + np.exp(-features @ rng.standard_normal(5)))
    return Problem.create(features, labels, 1.0)


def _rate(run: Run) -> tuple[Claim, Drawing, Table]:
    problem, sizes, repeats = small_problem(), run.size.rate_sizes, run.size.rate_repeats
    errors = np.empty((len(sizes), repeats))
    for i, size in enumerate(sizes):
        for k in range(repeats):
            run.progress((i + k / repeats) / len(sizes), f"coupled systems, J = {size}")
            rng = np.random.default_rng((size, k))
            errors[i, k] = couple(problem, problem.prior, size, [0.0, HORIZON], rng).bound[-1]
    slope, error = convergence_rate(sizes, errors)
    figure = plots.require_matplotlib().Figure(figsize=(6.0, 4.2), layout="constrained")
    ax = figure.subplots()
    words = "$(\\frac{1}{J}\\sum_j |\\theta_j - \\eta_j|^2)^{1/2}$"
    plots.size_sweep(ax, sizes, errors, name="equilibrium", label="coupled systems", ylabel=words, rate=True)
    ax.legend(frameon=False)
    low, high = slope - 1.96 * error, slope + 1.96 * error
    claim = judged(
        "The distance between the particle system and its mean-field limit is of order J^(-1/2).",
        f"The slope on logarithmic axes is {slope:.3f}, 95 % interval {low:.3f} to {high:.3f}, for J = {sizes[0]} to "
        f"{sizes[-1]}.",
        holds=low <= -0.5 <= high or abs(slope + 0.5) < 0.03,
        partly=abs(slope + 0.5) < 0.1,
        why="The rate is asymptotic; for small J, terms of order 1 / J matter.",
    )
    table = Table(
        "rate",
        "Coupling distance in every repetition.",
        ("J", "repetition", "distance"),
        tuple((size, k, float(errors[i, k])) for i, size in enumerate(sizes) for k in range(repeats)),
    )
    drawing = Drawing(
        "rate", figure, "Coupling distance against J, with the line J^(-1/2).", "Median, 10 % and 90 % quantiles."
    )
    return claim, drawing, table


def equation_residuals(problem: Problem, mean: Vector, cov: Vector) -> tuple[float, float]:
    """Return the residuals of m = m0 - P0 E[grad Psi] and P = (E[Hess Psi] + P0^{-1})^{-1} at (m, P).

    The first is in prior standard deviations, the second relative to P in the Frobenius norm.
    """
    features, prior = problem.features, problem.prior
    P0 = np.diag(prior.cov) if prior.diagonal else np.asarray(prior.cov)
    ybar, rbar, _ = gauss_logit(features @ mean, np.sum((features @ cov) * features, axis=1))
    gradient = features.T @ (ybar - problem.targets)
    hessian = features.T @ (rbar[:, None] * features)
    apart = mean - (prior.mean - P0 @ gradient)
    of_mean = float(np.sqrt(np.mean(apart**2 / np.diag(P0))))
    of_cov = float(np.linalg.norm(cov - np.linalg.inv(hessian + np.linalg.inv(P0))) / np.linalg.norm(cov))
    return of_mean, of_cov


def _equations() -> Claim:
    _, problem = experiment(0, np.eye(20))
    exact = run_sampler(problem, MeanField(tol=1e-9), particles=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        split = run_sampler(problem, algorithm_2(), particles=100)
    ours = equation_residuals(problem, exact.mean, exact.cov)
    theirs = equation_residuals(problem, split.mean, split.cov)
    return judged(
        "In equilibrium m = m0 - P0 E[grad Psi] and P = (E[Hess Psi] + P0^-1)^-1.",
        f"Residuals of mean and covariance: {ours[0]:.1e} and {ours[1]:.1e} (MeanField), {theirs[0]:.2f} and "
        f"{theirs[1]:.2f} (Algorithm 2 with ds = 0.1).",
        holds=max(ours) < 1e-5 and max(theirs) < 0.01,
        partly=max(ours) < 1e-5,
        why="The flow has this equilibrium. The splitting of the paper shifts it by an amount proportional to ds; the "
        "exact-flow step has no such error.",
    )


def transformed(problem: Problem, A: Vector, b: Vector) -> Problem:
    """Return the same problem in terms of the parameters A theta + b."""
    inverse = np.linalg.inv(A)
    prior = problem.prior
    P0 = np.diag(prior.cov) if prior.diagonal else np.asarray(prior.cov)
    return Problem.create(problem.features @ inverse, problem.targets, Gaussian(A @ prior.mean + b, A @ P0 @ A.T))


def _invariance() -> tuple[Claim, Table]:
    """Run in two coordinate systems, map one result back, and compare."""
    rng = np.random.default_rng(41)
    problem = small_problem()
    scales = np.geomspace(0.03, 30, problem.dim)
    A = np.linalg.qr(rng.standard_normal((5, 5)))[0] * scales
    other = transformed(problem, A, np.zeros(5))
    start = problem.prior.sample(60, rng)
    shifts = {
        "Algorithm 2": _shift(problem, other, A, start, algorithm_2()),
        "Equilibrium": _shift(problem, other, A, start, Equilibrium()),
        "Gaussian particle flow": _shift(problem, other, A, start, ParticleFlow(affine_invariant=False, max_steps=200)),
    }
    claim = judged(
        "The methods are affine invariant; the flow of Galy-Fajou et al. is not.",
        "Largest change of a particle, in standard deviations, when the units of the parameters change by factors that "
        "differ by up to 1000: " + ", ".join(f"{value:.1e} ({name})" for name, value in shifts.items()) + ".",
        holds=shifts["Algorithm 2"] < 1e-6 and shifts["Equilibrium"] < 1e-6 and shifts["Gaussian particle flow"] > 1e-3,
        partly=shifts["Algorithm 2"] < 1e-6,
    )
    return claim, Table(
        "invariance",
        "Largest change of a particle, in standard deviations, under a change of units.",
        ("method", "change"),
        tuple(shifts.items()),
    )


def _shift(problem: Problem, other: Problem, A: Vector, start: Vector, sampler: Sampler) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = run_sampler(problem, sampler, theta=start).theta
        two = run_sampler(other, sampler, theta=start @ A.T).theta @ np.linalg.inv(A).T
    return float(np.max(np.abs(one - two) / np.std(one, axis=0)))


@dataclass(frozen=True)
class Arrival:
    """The steps and seconds after which predictions stay close to those of the posterior; None if they never do."""

    steps: int | None
    seconds: float | None


def _race(run: Run) -> tuple[Claim, Table]:
    run.progress(0.0, "a long NUTS run")
    here = study(MOONS, run.size, 0, run.cache)
    at = near_grid(here.data.train)
    truth = here.fit("reference").predict(at)
    arrivals = {}
    samplers: dict[str, Sampler] = {"Algorithm 2": algorithm_2(), "Equilibrium": Equilibrium()}
    for i, (name, sampler) in enumerate(samplers.items()):
        run.progress(0.5 + 0.1 * i, name)
        arrivals[name] = _sampler_arrival(here, sampler, at, truth)
    run.progress(0.7, "HMC")
    arrivals["HMC"] = _hmc_arrival(here, at, truth)
    hmc, split = arrivals["HMC"], arrivals["Algorithm 2"]
    compilation = "with" if here.fit("reference") is here.fit("hmc") else "without"
    known = hmc.seconds is not None and split.seconds is not None
    ratio = hmc.seconds / split.seconds if hmc.seconds and split.seconds else float("nan")
    claim = judged(
        "Algorithm 2 converges faster than HMC.",
        f"Steps until predictions stay within {CLOSE} of the posterior: "
        + ", ".join(f"{name} {_steps(arrival)}" for name, arrival in arrivals.items())
        + (f". HMC takes {ratio:.0f} times as long as Algorithm 2, {compilation} compilation." if known else "."),
        holds=known and ratio > 1,
        partly=split.seconds is not None,
        why="At this size, one of the two does not get that close.",
    )
    rows = tuple(
        (name, a.steps, None if not (a.seconds and hmc.seconds) else a.seconds / hmc.seconds)
        for name, a in arrivals.items()
    )
    columns = ("method", "steps (HMC: transitions with warm-up)", "time / HMC")
    return claim, Table(
        "race", f"Steps and time until predictions stay within {CLOSE} of a long NUTS run.", columns, rows
    )


def _steps(arrival: Arrival) -> str:
    return "never" if arrival.steps is None else str(arrival.steps)


def _sampler_arrival(here: Study, sampler: Sampler, at: Vector, truth: Vector) -> Arrival:
    problem, features = here.problem(), here.features(at)
    started, last = time.perf_counter(), Arrival(None, None)
    checking = 0.0
    for state in iterate(problem, sampler, particles=here.kind.particles, seed=here.seed):
        now = time.perf_counter()
        logits = problem.linear_logits("the distance to HMC").particle_logits(features, state.ensemble.theta)
        proba = np.mean(np.asarray(problem.likelihood.mean(logits)), axis=1)
        far = float(np.mean(np.sum(np.abs(proba - truth), axis=1) / 2))
        if far >= CLOSE:
            last = Arrival(None, None)
        elif last.steps is None:
            last = Arrival(state.steps, now - started - checking)
        checking += time.perf_counter() - now
    return last


def _hmc_arrival(here: Study, at: Vector, truth: Vector) -> Arrival:
    """Return when the average over the first draws of all chains stays close.

    The time of a transition is the slope between a short and a long run, so that compilation cancels; with only one
    run, compilation is included.
    """
    size = here.size
    samples, chains = size.hmc
    short, long = here.fit("hmc"), here.fit("reference")
    posterior: Any = short.posterior
    proba = np.asarray(posterior.sample_proba(here.features(at))).reshape(chains, samples, len(at), -1)
    running = np.cumsum(proba.mean(axis=0), axis=0) / np.arange(1, samples + 1)[:, None, None]
    far = np.mean(np.sum(np.abs(running - truth), axis=2) / 2, axis=1)
    late = np.flatnonzero(far >= CLOSE)
    first = 1 if len(late) == 0 else int(late[-1]) + 2
    if first > samples:
        return Arrival(None, None)
    work = chains * (samples + first)
    if long is short:
        return Arrival(work, short.seconds * work / short.steps)
    slope = (long.seconds - short.seconds) / (long.steps - short.steps)
    return Arrival(work, work * slope if slope > 0 else None)
