"""The log evidence log p(data): how probable the data are under a model and its prior.

With the fitted Gaussian q, and log w(theta) = log p(data | theta) + log prior(theta) - log q(theta), the methods are

    ELBO           E_q[log w], a lower bound
    PSIS           log E_q[w], importance sampling with a smoothed tail: accurate while q is close to the posterior
    path sampling  int_0^1 E_b[log w] db over the distributions q^(1-b) posterior^b, by slice sampling: accurate also
                   where q is far from the posterior

`log_evidence` uses PSIS if its weights are reliable, path sampling if they are not, and the bound if path sampling
would take too long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.expectations import Expectation, closure, empirical
from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.numerics import in_range, plain
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import namespace
from enkbayes.inference.importance import defensive_weights, effective_share, log_ratio, log_weights, smoothed
from enkbayes.inference.slice_sampling import Numbers, numpy_ratio, slice_sweep
from enkbayes.samplers import MeanField
from enkbayes.samplers.run import run
from enkbayes.solvers.step_control import evaluate

DRAWS = 4000  # of q, for averages over it
NEARLY_EQUAL = 0.995  # effective share from which weights have no tail to speak of


@dataclass(frozen=True)
class Evidence:
    """A log evidence: value, one standard error, and the method that found it.

    error is NaN for a lower bound (`bound`), whose gap is not known. k_hat and effective (effective sample size as a
    share of the draws) describe the importance weights, and are NaN if none were drawn.

    Examples
    --------
    >>> import enkbayes as eb
    >>> features = np.random.default_rng(0).standard_normal((100, 2))
    >>> problem = eb.Problem.create(features, features[:, 0] > 0.2)
    >>> evidence = log_evidence(problem, eb.run(problem))
    >>> evidence.method, bool(evidence.error < 0.02)
    ('PSIS', True)
    """

    value: float
    error: float
    method: str
    bound: bool = False
    k_hat: float = math.nan
    effective: float = math.nan

    def __str__(self) -> str:
        if math.isnan(self.value):
            return f"not known ({self.method})"
        if self.bound:
            return f"at least {self.value:.2f} ({self.method})"
        bar = "" if math.isnan(self.error) else f" ± {plain(self.error)}"
        return f"{self.value:.2f}{bar} ({self.method})"


@in_range("the evidence")
def log_evidence(
    problem: Problem, posterior: Posterior | MixturePosterior | None = None, *, seed: int = 0, budget: float = 3e11
) -> Evidence:
    """Return the log evidence of a problem by the cheapest method that is reliable for it.

    Parameters
    ----------
    problem : Problem
        The problem that was fitted.
    posterior : Posterior or MixturePosterior, optional
        What `run` returned for it. That of a mixture is the evidence of the model whose prior is the mixture of the
        components' priors: the sum of their evidences times their prior weights. The Gaussian serves as proposal if it
        spans all parameters; otherwise, and by default, that of a run of `MeanField` does.
    seed : int
        Seed of the draws.
    budget : float
        Multiplications that path sampling may cost; the default takes about two minutes. A problem that needs path
        sampling and is too large for it gets the ELBO, a lower bound without an error bar.

    Examples
    --------
    With a Gaussian likelihood the evidence is known in closed form, here log N(3; 0, 1 + 1):

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0]], [3.0], likelihood=eb.Normal())
    >>> round(log_evidence(problem).value, 6) == round(-9 / 4 - math.log(4 * math.pi) / 2, 6)
    True
    """
    if posterior is not None and posterior.held_out:
        return Evidence(math.nan, math.nan, "held-out rows have scaled the average, so it has no evidence")
    if isinstance(posterior, MixturePosterior):
        own = zip(posterior.problems(problem), posterior.components, strict=True)
        parts = [log_evidence(each, component, seed=seed, budget=budget) for each, component in own]
        return combined(parts, posterior.prior_weights)
    posterior = proposal(problem, posterior)
    by_weights = importance_sampling(problem, posterior, seed=seed)
    if reliable(by_weights):
        return by_weights
    affordable = path_cost(problem) <= budget
    return path_sampling(problem, posterior, seed=seed) if affordable else elbo(problem, posterior)


def combined(parts: Sequence[Evidence], prior_weights: Sequence[float]) -> Evidence:
    """Return log sum_k prior_k Z_k, with the method and the figures of the part that contributes most.

    >>> combined([Evidence(-3.0, 0.1, "PSIS"), Evidence(-3.0, 0.1, "PSIS")], (0.5, 0.5))
    Evidence(value=-3.0, error=0.0707..., method='PSIS', bound=False, k_hat=nan, effective=nan)
    """
    logs = np.asarray([part.value for part in parts]) + np.log(np.maximum(prior_weights, np.finfo(np.float64).tiny))
    top = float(logs.max())
    value = top + math.log(float(np.exp(logs - top).sum()))
    shares = np.exp(logs - value)
    error = math.sqrt(sum((share * part.error) ** 2 for share, part in zip(shares, parts, strict=True) if share > 1e-6))
    return replace(parts[int(np.argmax(shares))], value=value, error=error, bound=any(part.bound for part in parts))


def reliable(by_weights: Evidence) -> bool:
    """Return whether importance sampling is reliable: many effective draws, or a tail that is not too heavy.

    k-hat alone misleads: if the weights are nearly equal their tail is noise, and it does not show too few draws.
    """
    share, k_hat = by_weights.effective, by_weights.k_hat
    return share >= 0.5 or (share >= 0.1 and not k_hat > 0.7)


def proposal(problem: Problem, posterior: Posterior | None) -> Posterior:
    """Return a posterior whose Gaussian spans all parameters: the given one if it does, else that of `MeanField`."""
    if posterior is not None and posterior.has_gaussian and posterior.fitted.freedom == problem.dim:
        return posterior
    if not problem.is_linear:
        raise ValueError(
            "the posterior has no Gaussian over all parameters to start from; run Equilibrium() with more particles "
            f"than the {problem.dim} parameters first"
        )
    return run(problem, MeanField(), particles=2)


def elbo(problem: Problem, posterior: Posterior, *, draws: int = DRAWS, seed: int = 0) -> Evidence:
    """Return the evidence lower bound E_q[log w] = -E_q[Psi] - KL(q || prior) of the posterior's Gaussian q.

    For linear logits the average is in closed form or by quadrature. The gap between bound and evidence, KL(q ||
    posterior), is unknown, so the error is NaN. For nonlinear logits, and for a low rank with a complement, the average
    is over draws, and the error is that of the average.

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> posterior = eb.run(problem, eb.MeanField())
    >>> elbo(problem, posterior).value < eb.log_evidence(problem).value
    True
    """
    if not problem.is_linear or posterior.ensemble.complement is not None:
        w = log_weights(problem, posterior, draws, seed)
        return Evidence(float(w.mean()), float(w.std(ddof=1)) / math.sqrt(draws), "ELBO", bound=True)
    expectation = closure if problem.likelihood.exact_closure else Expectation(gaussian=1.0, refine=1)
    energy = evaluate(problem, posterior.fitted, expectation).free_energy
    return Evidence(-energy, math.nan, "ELBO", bound=True)


def importance_sampling(
    problem: Problem,
    posterior: Posterior,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    wider: float = 2.0,
    share: float = 0.25,
) -> Evidence:
    """Return log E_q[w] over fresh draws of the posterior's Gaussian q, with a Pareto-smoothed tail.

    Where the weights are not all but equal, some of the draws come from a wider Gaussian, see `defensive_weights`. The
    error bar is that of the average of the weights, by the delta method. Width and share of the wider Gaussian were
    chosen on four skewed posteriors. On ten others, in 1 to 15 dimensions, intervals of 1.96 errors hold the truth in
    94.9 % of 400 runs each (`benchmarks/psis_bars.py`).

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> found = importance_sampling(problem, eb.run(problem, eb.MeanField()))
    >>> abs(found.value - eb.log_evidence(problem).value) < 0.02
    True
    """
    log_w, first = log_weights(problem, posterior, draws, seed), draws
    if effective_share(log_w) < NEARLY_EQUAL:
        log_w, first = defensive_weights(problem, posterior, draws, seed, wider=wider, share=share)
    weights, k_hat = smoothed(log_w)
    value, error = _log_mean(weights, first)
    return Evidence(value, error, "PSIS", k_hat=k_hat, effective=effective_share(weights))


def path_sampling(
    problem: Problem,
    posterior: Posterior,
    *,
    populations: int = 8,
    chains: int = 64,
    sweeps: int = 20,
    nodes: int = 6,
    wider: float = 1.25,
    seed: int = 0,
) -> Evidence:
    """Return int_0^1 E_b[log w] db over the distributions q^(1-b) posterior^b, with q the Gaussian of the posterior.

    The integrand is nearly flat, so a few Gauss-Legendre nodes are enough. At each node the chains of a population are
    resampled by the weights that lead there from the node before, then moved by elliptical slice sampling. Without the
    weights the chains lag behind the distribution that they should follow, and the evidence of hard problems comes out
    too small, by more than 1. With a q that is too narrow in the directions that the data inform, as fitted Gaussians
    are, it is still too small by .3, so q is widened there. The error combines the spread of the populations and the
    drift between the first and the second half of the kept sweeps.

    Parameters
    ----------
    problem, posterior : Problem, Posterior
        The posterior's Gaussian must span all parameters.
    populations, chains : int
        Independent populations, whose spread is the error bar, and chains in each.
    sweeps : int
        Moves of each chain at each node; the first quarter of them is left out of the averages.
    nodes : int
        Nodes of the quadrature rule.
    wider : float
        Factor on the spread of q in the directions that the data inform.
    seed : int
        Seed of the chains.

    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> found = path_sampling(problem, eb.run(problem, eb.MeanField()))
    >>> abs(found.value - eb.log_evidence(problem).value) < 0.05
    True
    """
    rng = np.random.default_rng((seed, 4))
    ratio = numpy_ratio(log_ratio(problem, _widened(problem, posterior.fitted, wider)), posterior.mean)
    z = rng.standard_normal((populations * chains, posterior.fitted.freedom))
    log_w, before = ratio(z), 0.0
    halves = np.zeros((2, populations))
    for b, weight in zip(*_unit_nodes(nodes), strict=True):
        drawn = _resampled(log_w.reshape(populations, chains) * (b - before), rng)
        z, log_w, kept = _moved(ratio, z[drawn], log_w[drawn], b, sweeps, rng)
        kept = kept.reshape(len(kept), populations, chains).mean(axis=2)
        middle = len(kept) // 2
        halves += weight * np.stack([kept[:middle].mean(axis=0), kept[middle:].mean(axis=0)])
        before = b
    value, error = _log_mean(halves.mean(axis=0))
    return Evidence(value, math.hypot(error, float(np.mean(halves[1] - halves[0]))), "path sampling")


def path_cost(problem: Problem, *, moves: int = 8 * 64 * 6 * 20, calls: float = 2.5, link: float = 30.0) -> float:
    """Return roughly how many multiplications `path_sampling` takes by default.

    moves is the number of moves of chains, calls that of evaluations in a move, link that of multiplications in the
    likelihood of one logit.
    """
    logits = problem.size * (problem.likelihood.outputs or 1)
    return moves * calls * (problem.size * problem.dim + problem.dim**2 + link * logits)


def _average(problem: Problem) -> Expectation:
    """Return the Gaussian closure for linear logits, and the average over particles for others."""
    return closure if problem.is_linear else empirical


def _widened(problem: Problem, ensemble: AffineEnsemble, factor: float) -> AffineEnsemble:
    """Return the ensemble with its spread times 1 + (factor - 1) w in directions where a share w of the precision comes
    from the data; one with a complement is left as it is.
    """
    if ensemble.complement is not None:
        return ensemble
    xp = namespace(ensemble.mean)
    w, U = problem.moments(ensemble, _average(problem)).spectrum
    factors = 1 + (factor - 1) * xp.minimum(w, xp.ones_like(w))
    return replace(ensemble, basis=ensemble.basis @ ((U * factors) @ U.mT))


def _unit_nodes(count: int) -> tuple[Numbers, Numbers]:
    """Return nodes and weights of the Gauss-Legendre rule on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(count)
    return (x + 1) / 2, w / 2


def _resampled(log_w: Numbers, rng: np.random.Generator) -> Numbers:
    """Return which chains (populations * chains,) continue: systematic resampling within each population by log weights
    (populations, chains), which keeps their expected numbers with little noise.
    """
    populations, chains = log_w.shape
    share = np.exp(log_w - log_w.max(axis=1, keepdims=True))
    steps = np.cumsum(share, axis=1)
    ticks = (rng.random((populations, 1)) + np.arange(chains)) / chains * steps[:, -1:]
    picks = [np.searchsorted(stair, tick) for stair, tick in zip(steps, ticks, strict=True)]
    return np.concatenate([k * chains + np.minimum(pick, chains - 1) for k, pick in enumerate(picks)])


def _moved(
    ratio: Any, z: Numbers, log_w: Numbers, b: float, sweeps: int, rng: np.random.Generator
) -> tuple[Numbers, Numbers, Numbers]:
    """Return z and log w after some sweeps that leave q^(1-b) posterior^b invariant, and log w at each kept sweep."""
    heights, seen = b * log_w, []
    for _ in range(sweeps):
        z, heights = slice_sweep(lambda points: b * ratio(points), z, heights, rng)
        seen.append(heights / b)
    return z, seen[-1], np.stack(seen[sweeps // 4 :])


def _log_mean(log_values: Numbers, first: int | None = None) -> tuple[float, float]:
    """Return the log of the mean of exp(log_values), and its standard error by the delta method. The `first` values may
    come from another distribution than the rest; their number is fixed.
    """
    top, size = log_values.max(), len(log_values)
    values = np.exp(log_values - top)
    mean = values.mean()
    variance = sum(len(part) * part.var(ddof=1) for part in np.split(values, [first or size]) if len(part) > 1)
    return float(top + math.log(mean)), math.sqrt(variance) / size / float(mean)
