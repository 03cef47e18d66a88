"""How far to trust a posterior: has it settled, does it span the parameters, is the true posterior near its Gaussian?

The last question is answered by importance weights; see `importance.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from enkbayes.importance import effective_share, log_weights, tail_shape
from enkbayes.posterior import Posterior
from enkbayes.problem import Problem

GOOD, USABLE, BAD = "good", "usable", "do not trust"
SETTLED = 0.1  # residual, in posterior sds


@dataclass(frozen=True)
class Trust:
    """A verdict ("good", "usable", "do not trust"), one sentence, and the figures behind them.

    k_hat is NaN without ArviZ, and both k_hat and effective (effective sample size as a share of the draws) are NaN for
    a posterior without a Gaussian. spanned counts the directions that the particles span, out of `parameters`.
    """

    verdict: str
    sentence: str
    residual: float
    k_hat: float
    effective: float
    spanned: int
    parameters: int


def assess(problem: Problem, posterior: Posterior, *, draws: int = 4000, seed: int = 0) -> Trust:
    """Return how far to trust what `run` returned for a problem, from fresh draws of its Gaussian.

    Examples
    --------
    >>> import enkbayes as eb
    >>> import numpy as np
    >>> features = np.random.default_rng(0).standard_normal((200, 2))
    >>> problem = eb.Problem.create(features, features[:, 0] + features[:, 1] ** 2 > 0.5)
    >>> assess(problem, eb.run(problem)).verdict
    'good'
    """
    k_hat = effective = math.nan
    if posterior.gaussian:
        weights = log_weights(problem, posterior, draws, seed)
        k_hat, effective = tail_shape(weights), effective_share(weights)
    info, spanned = posterior.info, posterior.ensemble.freedom
    settled = info.converged and not info.residual > SETTLED
    verdict, sentence = judge(k_hat, effective, settled=settled, spanned=spanned, parameters=problem.dim)
    return Trust(verdict, sentence, info.residual, k_hat, effective, spanned, problem.dim)


def judge(k_hat: float, effective: float, *, settled: bool, spanned: int, parameters: int) -> tuple[str, str]:
    """Return the verdict and one sentence, the most serious reason first.

    >>> judge(0.9, 0.01, settled=True, spanned=3, parameters=3)[0]
    'do not trust'
    """
    figures = f"effective share {effective:.2g}" + ("" if math.isnan(k_hat) else f", k-hat {k_hat:.2f}")
    close = effective >= 0.5 or k_hat < 0.5
    near = close or k_hat < 0.7 or (math.isnan(k_hat) and effective >= 0.1)
    if not settled:
        return BAD, "the run has not settled; raise max_steps, or use the mean-field sampler"
    if not near and not math.isnan(effective):
        return BAD, f"the true posterior is far from Gaussian ({figures}); get more data or narrow the prior"
    if spanned < parameters:
        return USABLE, f"the particles span {spanned} of {parameters} parameters; use more of them, or mean-field"
    if not close:
        return USABLE, f"the true posterior is not quite Gaussian ({figures}); variances may be too small"
    return GOOD, f"the run has settled and the true posterior is close to its Gaussian ({figures})"
