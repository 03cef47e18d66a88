"""Fuzz cases of EnsembleClassifier: hostile data, weights and parameters, then everything that can be asked of it."""

import pickle
import tempfile
from pathlib import Path

import numpy as np
from sklearn.base import clone

import enkbayes as eb
from fuzz.data import FEATURES, LABELS, ROWS, WEIGHTS, plain_rows
from fuzz.deviations import cases
from fuzz.oracle import check_proba, judged, require, same

PARAMETERS = {
    "sampler": {
        name: name
        for name in (
            "equilibrium",
            "homotopy",
            "mean-field",
            "trotter",
            "tamed-homotopy",
            "stochastic",
            "x",
            "",
            None,
            3,
        )
    }
    | {
        "class": eb.Equilibrium,
        "object": eb.Equilibrium(tol=1e-8),
        "fixed tau": eb.Equilibrium(tau=0.3),
        "batches": eb.Equilibrium(batch=7, max_steps=20),
        "one step": eb.Equilibrium(max_steps=1),
        "low rank": eb.MeanField(rank=2),
        "huge steps": eb.TrotterSampler(ds=1e3, max_steps=20),
        "long noise": eb.StochasticSampler(ds=1e3, max_steps=20),
        "function": len,
        "list": ["equilibrium"],
    },
    "particles": {
        repr(n): n for n in (2, 3, 4, 5, 7, 8, 9, 12, 13, 24, 40, 0, 1, -3, 2.5, 20.0, True, "5", None, np.nan, [5])
    }
    | {"numpy": np.int32(30), "numpy float": np.float64(30)},
    "prior_precision": {
        repr(p): p
        for p in (
            1.0,
            "auto",
            "average",
            0.1,
            1e-06,
            1e-12,
            1e-150,
            1e-300,
            5e-324,
            1000000.0,
            1000000000000.0,
            1e150,
            1e300,
            0,
            -1.0,
            np.nan,
            np.inf,
            None,
            "x",
            True,
            10**400,
            1j,
        )
    }
    | {
        "vector": [1.0, 2.0, 3.0],
        "matrix": np.eye(3) + 0.1,
        "spread vector": [1e-12, 1.0, 1e12],
        "singular matrix": np.ones((3, 3)),
        "bad matrix": np.diag([1e-300, 1.0, 1e300]),
        "asymmetric": np.triu(np.ones((3, 3))),
        "wrong length": [1.0, 2.0],
        "objects": np.asarray([1.0, None, 2.0], dtype=object),
        "text": ["a", "b", "c"],
        "empty": [],
        "dict": {},
    },
    "prior_mean": {repr(m): m for m in (0.5, 1e6, 1e300, np.nan, np.inf, None, "x", True)}
    | {
        "vector": [0.1, 0.2, 0.3],
        "with intercept": [0.1, 0.2, 0.3, 0.4],
        "matrix": np.full((3, 3), 0.2),
        "wrong length": [1.0] * 7,
        "objects": np.asarray([None] * 3, dtype=object),
    },
    "fit_intercept": {repr(f): f for f in (False, None, "no", 2)},
    "random_state": {repr(s): s for s in (None, -1, 2**40, 2**70, "a", 1.5, np.nan, True, [1])}
    | {"numpy": np.int64(3), "state": np.random.RandomState(0), "generator": np.random.default_rng(0)},
    "warm_start": {"yes": True, "text": "no"},
    "intercept_precision": {
        repr(p): p for p in (None, "auto", "x", 0, -1, np.nan, np.inf, 1e-300, 1e300, True, [1.0], [1.0, 2.0], 1j)
    },
    "sweeps": {repr(s): s for s in (1, 3, -1, 1.5, "2", None, True, np.nan)},
    "prior_groups": {"three": ["a", "b", "a"], "numbers": [0, 1, 1], "wrong": [0, 1], "number": 3, "None": [None] * 3},
    "likelihood": {
        "ordinal": "ordinal",
        "text": "x",
        "None": None,
        "class": eb.Bernoulli,
        "bernoulli": eb.Bernoulli(),
        "categorical": eb.Categorical(3),
        "normal": eb.Normal(1.0),
        "cutpoints": eb.Ordinal((-0.5, 0.5)),
    },
}

ACTIONS = {
    "first": ["partial_fit", "partial_fit with classes", "partial_fit with a None", "partial_fit other classes"],
    "second": ["fit", "partial_fit", "polish", "clone", "pickle", "set_params", "other rows"],
    "asked": ["trust_", "evidence_", "assess", "uncertainty", "sample", "prior_precision_", "repr"],
    "held_out": ["training", "nan", "narrow", "none", "number", "far", "one", "no rows"],
}

CHOICES = (
    {name: [key if isinstance(key, str) else repr(key) for key in values] for name, values in PARAMETERS.items()}
    | {"X": list(FEATURES), "y": list(LABELS), "weight": list(WEIGHTS), "rows": list(ROWS)}
    | ACTIONS
)

strategy = cases(CHOICES)


def examine(case):
    """Run a case; see the oracle for what it may end with."""
    x, y, rng = plain_rows(case["seed"])
    values = {
        name: {key if isinstance(key, str) else repr(key): value for key, value in PARAMETERS[name].items()}
        for name in PARAMETERS
    }
    settings = {name: values[name][case[name]] for name in PARAMETERS if name in case}
    X = FEATURES[case.get("X", "plain")](x, rng)
    if "y" not in case and hasattr(X, "__len__") and not hasattr(X, "nnz") and len(X) < len(y):
        y = y[: len(X)]
    Y = LABELS[case.get("y", "two")](y, rng)
    weight = WEIGHTS[case["weight"]](len(y), rng) if "weight" in case else None
    with judged(), tempfile.TemporaryDirectory() as folder:
        model = eb.EnsembleClassifier(**{"particles": 30, "random_state": 0, **settings})
        fitted = first(case, model, X, Y, weight, x)
        second(case, fitted, X, Y, weight)
        asked(case, fitted, X, Y)
        rows = ROWS[case["rows"]](X) if "rows" in case else X
        check(fitted, rows, Path(folder) / "model.safetensors")


def first(case, model, X, Y, weight, x):
    kind = case.get("first", "fit")
    if kind == "fit":
        options = {}
        if "held_out" in case:
            rows = ROWS[case["held_out"]](X) if case["held_out"] != "number" else 3.0
            size = len(rows) if hasattr(rows, "__len__") and not hasattr(rows, "nnz") else 2
            options |= {"X_val": rows, "y_val": Y if size == 24 else np.resize(np.asarray(Y), size)}
        return model.fit(X, Y, weight, **options)
    classes = {
        "partial_fit": None,
        "partial_fit with classes": np.unique(np.asarray(Y)) if kind.endswith("with classes") else None,
        "partial_fit with a None": [None, 1],
        "partial_fit other classes": [7, 8],
    }[kind]
    return model.partial_fit(X, Y, classes, weight)


def second(case, model, X, Y, weight):
    kind = case.get("second")
    if kind in ("fit", "partial_fit"):
        getattr(model, kind)(X, Y, sample_weight=weight)
    elif kind == "polish":
        model.polish(2)
    elif kind == "clone":
        clone(model)
    elif kind == "set_params":
        model.set_params(particles=20, warm_start=True).fit(X, Y)
    elif kind == "other rows":
        model.set_params(warm_start=True).fit(np.random.default_rng(1).standard_normal((20, 3)), np.arange(20) % 2)
    elif kind == "pickle":
        again = pickle.loads(pickle.dumps(model))
        require(same(again.predict_proba(X), model.predict_proba(X)), "a pickle predicts something else")


def asked(case, model, X, Y):
    kind = case.get("asked")
    if kind in ("trust_", "evidence_", "prior_precision_"):
        getattr(model, kind)
    elif kind == "assess":
        model.assess(X, Y)
    elif kind == "uncertainty":
        found = model.predict_uncertainty(X)
        require(np.isfinite(found.total).all() and (found.epistemic >= 0).all(), "uncertainties are not finite")
    elif kind == "sample":
        check_proba(model.sample_proba(X))
    elif kind == "repr":
        repr(model)
        repr(model.posterior_.info)


def check(model, rows, path):
    """Check predictions, and those of the saved and loaded model."""
    proba = model.predict_proba(rows)
    check_proba(proba)
    require(np.isin(model.predict(rows), model.classes_).all(), "predicted something that is not a class")
    model.save(path)
    require(same(eb.load(path).predict_proba(rows), proba), "the loaded model predicts something else")
