"""Algorithm 2 as the paper steps it: Trotter splitting into a tamed likelihood half and a prior half."""

from __future__ import annotations

from dataclasses import dataclass, replace

from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import namespace, tolerance
from enkbayes.samplers.settings import Settings
from enkbayes.samplers.state import State
from enkbayes.samplers.tamed import tamed_step


@dataclass(frozen=True)
class TrotterSampler(Settings):
    """The deterministic second-order sampler (equation 14), by the paper's splitting and with its stopping rule.

    The first half is the tamed step of Algorithm 1 (with M corrected), the second is eq. (aldi_stepping):

        theta+ = theta - (ds / 2) P (ds P + P0)^{-1} (theta + m - 2 m0) + (ds / 2) (theta - m)

    The splitting moves the fixed point: variances come out too large by about ds (1 + y^2) / 2, y the prior's share of
    the precision (+7 % on the paper's toy problem with ds = 0.1). `Equilibrium` has no such bias.

    Parameters
    ----------
    ds : float
        Step size.
    max_steps : int
        Largest number of steps.
    tol : float
        Stop when ||P_{k+1} - P_k||_2 / ||P_k||_2 < tol, the paper's rule. It is proportional to ds and ignores the
        mean; `info.residual` is the natural-gradient residual, which does neither.

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> exact, split = eb.run(problem, eb.Equilibrium()), eb.run(problem, TrotterSampler(ds=0.1))
    >>> bool(split.cov[0, 0] > exact.cov[0, 0])
    True
    """

    ds: float = 0.1
    max_steps: int = 1000
    tol: float = 1e-6

    def step(self, problem: Problem, state: State) -> State:
        """Two half steps and the stopping rule."""
        ensemble = prior_step(problem, tamed_step(state.ensemble, problem.moments(state.ensemble), self.ds), self.ds)
        change = relative_change(state.ensemble, ensemble)
        steps = state.steps + 1
        state = replace(state, ensemble=ensemble, steps=steps, time=steps * self.ds)
        if change < tolerance(self.tol, ensemble.mean):
            return self._finish(problem, replace(state, converged=True))
        if steps >= self.max_steps:
            message = f"the covariance still changes by {change:.1e} a step after {steps} steps; "
            message += "raise max_steps or tol, or use Equilibrium()"
            return self._finish(problem, replace(state, message=message))
        return state

    def _finish(self, problem: Problem, state: State) -> State:
        """Check the mean, which the stopping rule ignores: a large residual shows that it has not converged."""
        residual = problem.potential_moments(state.ensemble).residual
        if state.converged and not residual < 1:
            message = f"the covariance has converged but the mean has not (residual {residual:.1e}); use a smaller ds"
            state = replace(state, converged=False, message=message)
        return replace(state, finished=True, residual=residual)


def prior_step(problem: Problem, ensemble: AffineEnsemble, ds: float) -> AffineEnsemble:
    """Return the ensemble after the prior half step.

    With S0 = basis' P0^{-1} basis no P x P inverse is needed:
    P (ds P + P0)^{-1} = basis (I + ds S0)^{-1} basis' P0^{-1}.
    """
    return ensemble.transform(
        problem.prior_moments(ensemble),
        gain=lambda w: ds / (1 + ds * w),
        scale=lambda w: 1 + ds / 2 * (1 - w / (1 + ds * w)),
    )


def relative_change(before: AffineEnsemble, after: AffineEnsemble) -> float:
    """Return ||P_after - P_before||_2 / ||P_before||_2 (spectral norms), inside the subspace that both bases span."""
    xp = namespace(before.mean)
    Q, R = xp.linalg.qr(before.basis)
    new = Q.mT @ after.basis
    old_cov, new_cov = R @ R.mT, new @ new.mT
    return float(xp.max(xp.abs(xp.linalg.eigvalsh(new_cov - old_cov)))) / float(xp.max(xp.linalg.eigvalsh(old_cov)))
