"""Bad input gets one clear ValueError; nothing is silently dropped or reshaped."""

import numpy as np
import pytest

import enkbayes as eb

X = np.random.default_rng(0).standard_normal((6, 2))
Y = [0, 1, 0, 1, 1, 0]


def bad(x, value):
    copy = np.array(x, dtype=float)
    copy.flat[3] = value
    return copy


CASES = {
    "NaN features": (lambda: eb.Problem.create(bad(X, np.nan), Y), "NaN or infinite"),
    "infinite features": (lambda: eb.Problem.create(bad(X, np.inf), Y), "NaN or infinite"),
    "features of text": (lambda: eb.Problem.create(np.asarray([["a", "b"]] * 6), Y), "not numeric"),
    "one-dimensional features": (lambda: eb.Problem.create(X[:, 0], Y), r"expected \(N, D\)"),
    "no rows": (lambda: eb.Problem.create(X[:0], []), r"expected \(N, D\)"),
    "no columns": (lambda: eb.Problem.create(X[:, :0], Y), r"expected \(N, D\)"),
    "labels too short": (lambda: eb.Problem.create(X, Y[:5]), "5 entries, features have 6 rows"),
    "labels as a column": (lambda: eb.Problem.create(X, np.reshape(Y, (6, 1))), r"shape \(6, 1\)"),
    "labels with NaN": (lambda: eb.Problem.create(X, [0, 1, np.nan, 1, 1, 0]), "every row needs a class"),
    "one class": (lambda: eb.Problem.create(X, [1] * 6), "single class"),
    "real labels": (lambda: eb.Problem.create(X, [0.5, 1, 0, 1, 1, 0]), "likelihood=Normal"),
    "unknown label": (lambda: eb.Problem.create(X, Y, classes=[1, 2]), "not among the given classes"),
    "one given class": (lambda: eb.Problem.create(X, Y, classes=[0]), "at least two"),
    "three classes for Bernoulli": (
        lambda: eb.Problem.create(X, [0, 1, 2, 0, 1, 2], likelihood=eb.Bernoulli()),
        "3 classes, which does not fit",
    ),
    "text for Normal": (lambda: eb.Problem.create(X, ["a"] * 6, likelihood=eb.Normal()), "expected real numbers"),
    "NaN for Normal": (lambda: eb.Problem.create(X, [np.nan] * 6, likelihood=eb.Normal()), "expected finite"),
    "negative weights": (lambda: eb.Problem.create(X, Y, weights=[-1, 1, 1, 1, 1, 1]), "non-negative"),
    "NaN weights": (lambda: eb.Problem.create(X, Y, weights=[np.nan] * 6), "not finite"),
    "zero weights": (lambda: eb.Problem.create(X, Y, weights=[0] * 6), "all weights are zero"),
    "huge weights": (lambda: eb.Problem.create(X, Y, weights=[1e101] * 6), "divide all by a constant"),
    "labels of other kinds than the classes": (
        lambda: eb.Problem.create(X, Y, classes=["a", "b"]),
        "both as text or both as numbers",
    ),
    "classes as a table": (lambda: eb.Problem.create(X, Y, classes=[[0, 1]]), "a list of all classes"),
    "classes of two kinds": (lambda: eb.Problem.create(X, Y, classes=[0, "a"]), "all text or all numbers"),
    "real labels for given classes": (
        lambda: eb.Problem.create(X, [0.5, 1, 0, 1, 1, 0], classes=[0, 1]),
        r"real numbers such as 0\.5",
    ),
    "weights too long": (lambda: eb.Problem.create(X, Y, weights=[1] * 7), "7 entries"),
    "prior of the wrong size": (
        lambda: eb.Problem.create(X, Y, eb.Gaussian.isotropic(3)),
        r"dimension 3; expected 2 \(D\)",
    ),
    "softmax prior of the wrong size": (
        lambda: eb.Problem.create(X, [0, 1, 2, 0, 1, 2], eb.Gaussian.isotropic(2)),
        r"expected 6 \(D \* K\)",
    ),
    "negative prior variance": (lambda: eb.Problem.create(X, Y, -1.0), "positive variances"),
    "intercept prior of the wrong size": (
        lambda: eb.Problem.create(X, Y, 1.0, intercept=eb.Gaussian.isotropic(2)),
        "one for each logit",
    ),
    "chunk": (lambda: eb.Problem.create(X, Y, chunk=0), "positive number of rows"),
    "asymmetric covariance": (lambda: eb.Gaussian(np.zeros(2), [[1.0, 0.5], [0.0, 1.0]]), "not symmetric"),
    "indefinite covariance": (lambda: eb.Gaussian(np.zeros(2), [[1.0, 2.0], [2.0, 1.0]]), "not positive definite"),
    "covariance of the wrong shape": (lambda: eb.Gaussian(np.zeros(2), np.eye(3)), r"shape \(3, 3\)"),
    "NaN covariance": (lambda: eb.Gaussian(np.zeros(2), np.nan), "NaN or infinite"),
    "matrix as mean": (lambda: eb.Gaussian(np.zeros((2, 2)), 1.0), r"expected \(P,\)"),
    "NaN mean": (lambda: eb.Gaussian([np.nan], 1.0), "NaN or infinite"),
    "noise variance": (lambda: eb.Normal(0.0), "positive number"),
    "classes of a softmax": (lambda: eb.Categorical(1), "at least 2"),
    "one particle": (lambda: eb.run(eb.Problem.create(X, Y), particles=1), "at least 2"),
    "theta of the wrong shape": (lambda: eb.run(eb.Problem.create(X, Y), theta=np.zeros((5, 3))), r"expected \(J, 2\)"),
    "one row of theta": (lambda: eb.run(eb.Problem.create(X, Y), theta=np.zeros((1, 2))), "J >= 2"),
    "equal particles": (lambda: eb.run(eb.Problem.create(X, Y), theta=np.ones((5, 2))), "all particles"),
    "NaN in theta": (lambda: eb.run(eb.Problem.create(X, Y), theta=np.full((5, 2), np.nan)), "finite particles"),
    "negative seed": (lambda: eb.run(eb.Problem.create(X, Y), seed=-1), "non-negative integer"),
    "seed of text": (lambda: eb.run(eb.Problem.create(X, Y), seed="a"), "non-negative integer"),
    "half a particle": (lambda: eb.run(eb.Problem.create(X, Y), particles=10.5), "whole number"),
    "prior of text": (lambda: eb.Problem.create(X, Y, "auto"), "expected a Gaussian, or a number"),
    "prior as a list": (lambda: eb.Problem.create(X, Y, [1.0, 1.0]), "expected a Gaussian, or a number"),
    "masked features": (lambda: eb.Problem.create(np.ma.masked_array(X, X > 9), Y), "masked"),
    "complex features": (lambda: eb.Problem.create(X + 1j, Y), "not numeric"),
    "labels with None": (lambda: eb.Problem.create(X, ["a", "b", None, "a", "b", "a"]), "every row needs a class"),
    "labels of two kinds": (lambda: eb.Problem.create(X, [1, "a", 1, "a", 1, "a"]), "every row needs a class"),
    "text labels with NaN": (
        lambda: eb.Problem.create(X, ["a", "b", np.nan, "a", "b", "a"]),
        "every row needs a class",
    ),
    "complex labels": (lambda: eb.Problem.create(X, [1j, 0, 1, 0, 1, 0]), "numbers or text"),
    "half a step": (lambda: eb.Homotopy(steps=2.5), "whole number"),
    "no steps": (lambda: eb.MeanField(max_steps=0), "at least 1"),
    "NaN tolerance": (lambda: eb.Equilibrium(tol=np.nan), "tol is nan"),
    "tau with mini-batches": (lambda: eb.Equilibrium(tau=0.3, batch=10), "leave tau out"),
    "tau": (lambda: eb.Equilibrium(tau=1.5), r"\(0, 1\]"),
    "ds of Algorithm 1": (lambda: eb.TamedHomotopy(ds=0.0), r"\[1e-09, 1\]"),
    "ds of Algorithm 2": (lambda: eb.TrotterSampler(ds=-0.1), "positive"),
    "ds of the stochastic sampler": (lambda: eb.StochasticSampler(ds=0.0), "positive"),
    "steps": (lambda: eb.Homotopy(steps=0), "at least 1"),
    "grading": (lambda: eb.Homotopy(grading=0.0), "positive"),
    "batch": (lambda: eb.Homotopy(batch=0), "at least 1"),
    "diagonal softmax": (
        lambda: eb.run(eb.Problem.create(X, [0, 1, 2, 0, 1, 2]), eb.TamedHomotopy(ds=0.1, diagonal=True)),
        "one logit",
    ),
    "features to predict": (lambda: eb.run(eb.Problem.create(X, Y)).predict_proba(X[:, :1]), r"expected \(n, 2\)"),
    "NaN to predict": (lambda: eb.run(eb.Problem.create(X, Y)).predict_proba(bad(X, np.nan)), "NaN or infinite"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_clear_sentence(name):
    action, words = CASES[name]
    with pytest.raises(ValueError, match=words) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 200


def test_a_single_class_is_fine_when_the_classes_are_given():
    posterior = eb.run(eb.Problem.create(X, [1] * 6, classes=[0, 1]))
    assert posterior.info.converged
    assert posterior.classes.tolist() == [0, 1]
    assert np.all(posterior.predict_proba(X)[:, 1] >= 0)
    three = eb.run(eb.Problem.create(X, ["a"] * 6, classes=["a", "b", "c"]))
    assert three.predict_proba(X).shape == (6, 3)


def test_inputs_are_left_alone():
    features, labels, theta = X.copy(), np.array(Y), np.random.default_rng(1).standard_normal((7, 2))
    before = features.copy(), labels.copy(), theta.copy()
    eb.run(eb.Problem.create(features, labels, 1.0), theta=theta)
    for array, copy in zip((features, labels, theta), before, strict=True):
        assert np.array_equal(array, copy)
    problem = eb.Problem.create(features, labels, 1.0)
    assert problem.features is features  # no copy of the data


@pytest.mark.parametrize("variance", [1e110, 1e-110])
def test_variances_whose_cubes_overflow(variance):
    with pytest.raises(ValueError, match="expected variances between"):
        eb.Problem.create([[1.0], [2.0]], [0, 1], variance)
