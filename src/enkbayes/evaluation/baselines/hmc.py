"""Hamiltonian Monte Carlo over the output layer: NUTS from NumPyro, the reference for the other methods.

The chains run in the coordinates x of theta = theta_MAP + B x, where B B' is the covariance of the Laplace
approximation. In these coordinates the posterior is nearly standard normal, so trajectories are short and warm-up is
easy. The target is still the exact posterior, because the map is linear. The potential is that of the problem, computed
by jax in double precision.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np

from enkbayes.core.arguments import check_count
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.posterior import Posterior
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import like
from enkbayes.evaluation.baselines.method import fitted
from enkbayes.samplers.start import from_draws
from enkbayes.solvers.laplace import laplace_ensemble
from enkbayes.solvers.map_estimate import map_estimate

MIXED = 1.01  # largest R-hat of chains that agree


@dataclass(frozen=True)
class HMCReport:
    """The quality of the chains; found in `posterior.state`.

    r_hat : largest split R-hat over the parameters
    ess : smallest effective sample size over the parameters
    divergences : number of divergent transitions
    acceptance : mean acceptance probability
    gradients : gradient evaluations of all chains after warm-up

    >>> HMCReport(r_hat=1.002, ess=412.0, divergences=0, acceptance=0.9, gradients=21_000).r_hat < MIXED
    True
    """

    r_hat: float
    ess: float
    divergences: int
    acceptance: float
    gradients: int


@dataclass(frozen=True)
class HMC:
    """NUTS with several chains; the draws of all chains are the particles.

    Parameters
    ----------
    samples : int
        Draws of each chain after warm-up. The paper uses 500.
    chains : int
        Number of chains, which run in parallel (vectorised). The paper uses 7.
    warmup : int
        Draws of each chain that adapt step size and mass matrix and are then discarded.
    target_accept : float
        Target for the acceptance probability, which determines the step size.

    Examples
    --------
    >>> method = HMC(samples=1000)  # posterior = method.fit(problem); posterior.state.r_hat
    >>> method.chains * method.samples
    7000
    """

    samples: int = 500
    chains: int = 7
    warmup: int = 500
    target_accept: float = 0.8
    name: str = "hmc"
    needs: ClassVar[tuple[str, ...]] = ("numpyro",)

    def __post_init__(self) -> None:
        for setting in ("samples", "chains", "warmup"):
            check_count(setting, getattr(self, setting))
        if self.samples < 4:
            raise ValueError(f"samples is {self.samples}; expected at least 4, which R-hat needs")
        if not 0 < self.target_accept < 1:
            raise ValueError(f"target_accept is {self.target_accept!r}; expected a probability between 0 and 1")

    def fit(self, problem: Problem, *, seed: int = 0, progress: bool = False) -> Posterior:
        """Return the draws of all chains; warn if the chains do not agree."""
        if find_spec("numpyro") is None:
            raise ImportError("HMC needs NumPyro; install it with: pip install 'enkbayes[hmc]'")
        if not problem.is_linear:
            raise ValueError(
                "HMC requires linear logits, because a nonlinear model is not written in jax; use a sampler of enkbayes"
            )
        started = time.perf_counter()
        double = problem.in_double(dense=True)
        estimate = map_estimate(double)
        frame = laplace_ensemble(double, estimate.theta, max(self.chains, 2), seed)
        x, fields = self._chains(double, frame, seed, progress)
        theta = frame.mean + x @ frame.basis.T  # (chains, samples, P)
        report = _report(theta, fields)
        return fitted(
            problem,
            from_draws(problem.prior, like(theta.reshape(-1, problem.dim), problem.prior.mean)),
            self,
            started,
            steps=self.chains * (self.warmup + self.samples),
            converged=report.r_hat <= MIXED and report.divergences == 0,
            message=_doubt(report),
            report=report,
        )

    def _chains(
        self, problem: Problem, frame: AffineEnsemble, seed: int, progress: bool
    ) -> tuple[np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
        """Return the coordinates x (chains, samples, P) of the draws, and the diagnostics of NumPyro for each."""
        import jax
        from numpyro.infer import MCMC, NUTS

        with double_precision():
            kernel = NUTS(potential_fn=_potential(problem, frame), target_accept_prob=self.target_accept)
            mcmc = MCMC(
                kernel,
                num_warmup=self.warmup,
                num_samples=self.samples,
                num_chains=self.chains,
                chain_method="vectorized",
                progress_bar=progress,
            )
            start = np.random.default_rng((seed, 5)).standard_normal((self.chains, problem.dim))
            mcmc.run(
                jax.random.PRNGKey(seed),
                init_params=jax.numpy.asarray(start if self.chains > 1 else start[0]),
                extra_fields=("diverging", "accept_prob", "num_steps"),
            )
            draws = np.asarray(mcmc.get_samples(group_by_chain=True))
            return draws, {name: np.asarray(value) for name, value in mcmc.get_extra_fields().items()}


def _potential(problem: Problem, frame: AffineEnsemble) -> Callable[[Any], Any]:
    """Return V(theta_MAP + B x), a function of x (P,) that jax can differentiate."""
    import jax.numpy as jnp

    on_jax = problem.with_arrays(
        features=jnp.asarray(problem.features),
        targets=jnp.asarray(problem.targets),
        weights=None if problem.weights is None else jnp.asarray(problem.weights),
        chunk=problem.size,
    )
    mean, basis = jnp.asarray(frame.mean), jnp.asarray(frame.basis)
    prior = problem.prior
    shift, whitened = jnp.asarray(prior.whiten(frame.mean - prior.mean)), jnp.asarray(prior.whiten(frame.basis))

    def potential(x: Any) -> Any:
        return on_jax.loss((mean + basis @ x)[None, :])[0] + jnp.sum((shift + whitened @ x) ** 2) / 2

    return potential


def double_precision() -> AbstractContextManager[Any]:
    """Return a context in which jax computes in double precision; afterwards the user's setting applies again."""
    import jax

    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)  # type: ignore[no-any-return]
    from jax.experimental import enable_x64

    return enable_x64()  # type: ignore[no-any-return]


def _report(theta: np.ndarray[Any, Any], fields: dict[str, np.ndarray[Any, Any]]) -> HMCReport:
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    return HMCReport(
        r_hat=float(np.max(split_gelman_rubin(theta))),
        ess=float(np.min(effective_sample_size(theta))),
        divergences=int(np.sum(fields["diverging"])),
        acceptance=float(np.mean(fields["accept_prob"])),
        gradients=int(np.sum(fields["num_steps"])),
    )


def _doubt(report: HMCReport) -> str:
    """Return a message if the chains cannot be trusted."""
    if not report.r_hat <= MIXED:
        return f"R-hat is {report.r_hat:.3f}, above {MIXED}; raise warmup and samples"
    if report.divergences:
        return f"{report.divergences} transitions diverged; raise target_accept"
    return ""
