"""What each column of a row contributes to its prediction, with the uncertainty of the contribution.

A logit is a sum over features, w_d x_d. So the log odds of one class against another are a sum of contributions, one
for each column of the data, which are random because the weights are. A column of numbers contributes w_d x_d, which is
zero at x_d = 0, the mean of a standardised column. A column of categories contributes the weight of its category minus
the average weight of its categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.posterior import Posterior
from enkbayes.engine.arrays import as_double

Numbers = np.ndarray[Any, Any]


def contributions(
    posterior: Posterior | MixturePosterior,
    features: Numbers,
    favoured: Numbers,
    rivals: Numbers,
    columns: Sequence[Sequence[int]],
) -> tuple[Numbers, Numbers]:
    """Return mean and standard deviation (n, C) of the contributions of C columns to the log odds of one class of each
    row against another, over the particles. Standard deviations are NaN where held-out rows have scaled an average,
    which is not a posterior.

    Parameters
    ----------
    posterior : Posterior or MixturePosterior
        With linear logits.
    features : array (n, D)
        Rows.
    favoured, rivals : integer arrays (n,)
        The two classes of each row. Ordered classes have a single logit, which speaks for higher classes; what counts
        then is which of the two is higher.
    columns : sequence of sequences of int
        The features of each column; more than one are the categories of a column.

    Examples
    --------
    >>> import enkbayes as eb
    >>> x = np.random.default_rng(0).standard_normal((200, 2))
    >>> posterior = eb.run(eb.Problem.create(x, x[:, 0] > 0))
    >>> mean, sd = contributions(posterior, np.asarray([[2.0, 0.0]]), np.asarray([1]), np.asarray([0]), [(0,), (1,)])
    >>> bool(mean[0, 0] > 2 * sd[0, 0]), abs(float(mean[0, 1])), float(sd[0, 1])
    (True, 0.0, 0.0)
    """
    if posterior.map is None:
        raise ValueError("the posterior has nonlinear logits, and no weights; expected linear logits")
    outputs, count = posterior.map.outputs, posterior.map.features
    W = as_double(posterior.theta)
    W = W.reshape(len(W), -1, outputs or 1)[:, :count].copy()
    for members in columns:
        if len(members) > 1:
            W[:, list(members)] -= W[:, list(members)].mean(axis=1, keepdims=True)
    x = np.asarray(features, dtype=np.float64)
    mean, sd = np.empty_like(x), np.empty_like(x)
    if outputs is None:
        sign = np.where(np.asarray(favoured) > np.asarray(rivals), 1.0, -1.0)
        mean, sd = sign[:, None] * x * W[:, :, 0].mean(axis=0), np.abs(x) * W[:, :, 0].std(axis=0)
    else:
        for one, other in set(zip(np.asarray(favoured).tolist(), np.asarray(rivals).tolist(), strict=True)):
            rows, odds = (favoured == one) & (rivals == other), W[:, :, one] - W[:, :, other]
            mean[rows], sd[rows] = x[rows] * odds.mean(axis=0), np.abs(x[rows]) * odds.std(axis=0)
    if posterior.held_out:
        sd = np.full_like(sd, np.nan)
    groups = [list(members) for members in columns]  # of a column of categories only one feature is not zero
    return (
        np.stack([mean[:, members].sum(axis=1) for members in groups], axis=1),
        np.stack([np.sqrt((sd[:, members] ** 2).sum(axis=1)) for members in groups], axis=1),
    )
