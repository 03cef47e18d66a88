"""Warnings point at the line of the user's code, however deep in the package they are issued."""

import numpy as np
import pytest

import enkbayes as eb

X = np.random.default_rng(0).standard_normal((60, 5))
Y = X[:, 0] > 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: eb.run(eb.Problem.create(X, Y), eb.Equilibrium(max_steps=1)),
        lambda: eb.EnsembleClassifier("homotopy", particles=4, prior_precision=1.0).fit(X, Y),
        lambda: eb.EnsembleClassifier(eb.Equilibrium(max_steps=1), prior_precision=1.0).fit(X, Y),
    ],
    ids=["run", "few particles", "fit"],
)
def test_a_warning_is_about_the_caller(call):
    with pytest.warns(UserWarning, match="did not converge|particles span") as found:
        call()
    assert {warning.filename for warning in found} == {__file__}
