"""The exact reduction of a problem with fewer rows than parameters to the directions that the rows span."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from enkbayes.core.gaussian import Gaussian
from enkbayes.core.linear_logits import LinearLogits
from enkbayes.core.problem import Problem
from enkbayes.engine.arrays import Array, epsilon, identity, namespace

Lift = Callable[[Gaussian], Gaussian]


def reduce_to_data(problem: Problem) -> tuple[Problem, Lift]:
    """Return the problem in the r = rank(features) directions that the rows span, and the map back to all P parameters.

    Let theta = L0 u with whitened parameters u, and let U (P, r) be the left singular vectors of L0' Phi. The
    likelihood depends on U'u only. So the posterior is exactly the product of the posterior of U'u, whose prior is
    N(U' u0, I) with u0 = L0^{-1} m0, and the prior on the complement:

        m = m0 + L0 U (m_r - U' u0),    P = L0 (U P_r U' + I - U U') L0'.

    For linear logits, one for each row.

    Examples
    --------
    >>> import enkbayes as eb
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> problem = Problem.create(rng.standard_normal((5, 40)), [0, 1, 1, 0, 1], 2.0)
    >>> reduced, lift = reduce_to_data(problem)
    >>> reduced.dim
    5
    >>> posterior = eb.run(reduced, eb.MeanField())
    >>> lift(Gaussian(posterior.mean, posterior.cov)).dim
    40
    """
    linear = problem.linear_logits("the reduction to the directions of the data")
    if problem.likelihood.outputs is not None:
        raise ValueError(
            f"the reduction to the directions of the rows needs linear logits, one for each row; got "
            f"{problem.likelihood}"
        )
    prior = problem.prior
    xp = namespace(prior.mean)
    root = prior.dense_root
    whitened = linear.project(problem.features, root)  # (N, P), rows L0' phi_n
    _, s, vt = xp.linalg.svd(whitened, full_matrices=False)
    floor = epsilon(prior.mean) * max(whitened.shape) * float(s[0])
    rank = max(1, int(xp.sum(xp.astype(s > floor, xp.int64))))
    U = vt[:rank, :].mT
    centre = U.mT @ xp.linalg.solve(root, prior.mean)
    reduced = replace(
        problem.with_arrays(features=whitened @ U),
        model=LinearLogits(rank, None, intercept=False),
        prior=Gaussian(centre, 1.0),
    )

    def lift(reduced: Gaussian) -> Gaussian:
        inner = U @ (reduced.dense_cov @ U.mT) + identity(prior.dim, U) - U @ U.mT
        cov: Array = root @ inner @ root.mT
        return Gaussian(prior.mean + root @ (U @ (reduced.mean - centre)), (cov + cov.mT) / 2)

    return reduced, lift
