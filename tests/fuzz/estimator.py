"""Fuzz cases of EnsembleClassifier: hostile data, weights and parameters, then everything that can be asked of it."""

import pickle
import tempfile
from pathlib import Path

import numpy as np
import sklearn
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import enkbayes as eb
from fuzz.data import FEATURES, LABELS, ROWS, WEIGHTS, plain_rows
from fuzz.deviations import cases, takes_the_default
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
    "prior_groups": {
        "nan": [np.nan] * 3,
        "three": ["a", "b", "a"],
        "numbers": [0, 1, 1],
        "wrong": [0, 1],
        "number": 3,
        "None": [None] * 3,
    },
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
    "class_weight": {
        "balanced": "balanced",
        "text": "x",
        "dict": {0: 1.0, 1: 2.0},
        "other classes": {7: 1.0},
        "nothing": {},
        "negative": {0: -1.0, 1: 1.0},
        "nan": {0: np.nan},
        "number": 3,
    },
    "far_field": {repr(f): f for f in (True, "no", None, 2)},
}

REGRESSOR = {
    "noise_variance": {repr(v): v for v in (0.5, 1e-300, 1e300, 0, -1, np.nan, np.inf, None, "x", True, [1.0])},
}

ACTIONS = {
    "first": ["partial_fit", "partial_fit with classes", "partial_fit with a None", "partial_fit other classes"],
    "second": [
        *("fit", "partial_fit", "forget", "forget auto", "remember", "polish", "clone", "pickle", "set_params"),
        "other rows",
    ],
    "kind": ["regressor", "pipeline"],
    "held_out": ["training", "nan", "narrow", "none", "number", "far", "one", "no rows"],
}


def regress(case, settings, X, Y, weight, path):
    """Fit a regressor, ask it and compare it with its file."""
    model = eb.EnsembleRegressor(**{"particles": 30, "random_state": 0, **settings})
    getattr(model, "partial_fit" if case.get("first", "fit") != "fit" else "fit")(X, Y, weight)
    if case.get("second") == "partial_fit":
        model.partial_fit(X, Y, weight)
    if case.get("asked") == "interval":
        low, high = model.predict_interval(X).T
        require(bool((low <= high).all()), "an interval is upside down")
    elif case.get("asked") == "sample":
        require(np.isfinite(model.sample_predictions(X)).all(), "samples are not finite")
    elif case.get("asked") == "uncertainty":
        require(np.isfinite(model.predict_uncertainty(X).total).all(), "uncertainties are not finite")
    elif case.get("asked") == "evidence_":
        require(np.isfinite(model.log_evidence_), "the evidence is not finite")
    rows = ROWS[case["rows"]](X) if "rows" in case else X
    mean, std = model.predict(rows, return_std=True)
    require(np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0).all(), "predictions are not finite")
    model.save(path)
    require(same(eb.load(path).predict(rows), mean), "the loaded regressor predicts something else")


def resized(labels, size):
    """Return so many labels; lists of different lengths as they are."""
    if isinstance(labels, list) or size == 24:
        return (labels * 3)[:size] if isinstance(labels, list) else labels
    return np.resize(np.asarray(labels), size)


def piped(case, settings, X, Y, path):
    """Fit a pipeline, with held-out rows that it scales too, ask it and compare its classifier with its file."""
    model = eb.EnsembleClassifier(**{"particles": 30, "random_state": 0, **settings})
    with sklearn.config_context(enable_metadata_routing=True):
        model.set_fit_request(X_val=True, y_val=True)
        pipe = make_pipeline(StandardScaler(with_mean=not hasattr(X, "nnz")), model, transform_input=["X_val"])
        options = {"X_val": ROWS[case["held_out"]](X)} if "held_out" in case else {}
        if options:
            size = len(options["X_val"]) if hasattr(options["X_val"], "__len__") else 2
            options["y_val"] = resized(Y, size)
        pipe.fit(X, Y, **options)
    rows = ROWS[case["rows"]](X) if "rows" in case else X
    proba = pipe.predict_proba(rows)
    check_of(pipe[-1], proba)
    if case.get("asked") in ASKED:
        ASKED[case["asked"]](pipe[-1], pipe[:-1].transform(X), Y)
    again = pickle.loads(pickle.dumps(pipe))
    require(same(again.predict_proba(rows), proba), "a pickle predicts something else")
    pipe[-1].save(path)
    found = eb.load(path).predict_proba(pipe[:-1].transform(rows))
    require(same(found, proba), "the loaded classifier predicts something else")


def first(case, model, X, Y, weight, x):
    kind = case.get("first", "fit")
    if kind == "fit":
        options = {}
        if "held_out" in case:
            rows = ROWS[case["held_out"]](X) if case["held_out"] != "number" else 3.0
            size = len(rows) if hasattr(rows, "__len__") and not hasattr(rows, "nnz") else 2
            options |= {"X_val": rows, "y_val": resized(Y, size)}
        return model.fit(X, Y, weight, **options)
    seen = None
    if kind == "partial_fit with classes" and not isinstance(Y, list):
        seen = list(dict.fromkeys(np.asarray(Y).ravel().tolist()))
    classes = {
        "partial_fit": None,
        "partial_fit with classes": seen,
        "partial_fit with a None": [None, 1],
        "partial_fit other classes": [7, 8],
    }[kind]
    return model.partial_fit(X, Y, classes, weight)


def second(case, model, X, Y, weight):
    kind = case.get("second")
    if kind in ("fit", "partial_fit"):
        getattr(model, kind)(X, Y, sample_weight=weight)
    elif kind in ("forget", "forget auto"):
        model.partial_fit(X, Y, sample_weight=weight, forget="auto" if kind == "forget auto" else 0.5)
    elif kind == "remember":
        model.remember()
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


def uncertain(model, X, Y):
    found = model.predict_uncertainty(X)
    require(np.isfinite(found.total).all() and (found.epistemic >= 0).all(), "uncertainties are not finite")


def scored(model, X, Y):
    require(np.isfinite(model.decision_function(X)).all(), "scores are not finite")
    require(not np.isnan(model.predict_log_proba(X)).any(), "log probabilities are not numbers")


def chosen(model, X, Y):
    found = eb.acquire(model, X, 1)
    require(found.shape == (1,), "acquire chose another number of rows")


def in_words(model, X, Y):
    repr(model)
    repr(model.posterior_.info if hasattr(model, "posterior_") else model.estimators_)


ASKED = {
    "trust_": lambda model, X, Y: model.trust_,
    "evidence_": lambda model, X, Y: model.evidence_,
    "prior_precision_": lambda model, X, Y: model.prior_precision_,
    "assess": lambda model, X, Y: model.assess(X, Y),
    "uncertainty": uncertain,
    "sample": lambda model, X, Y: check_of(model, model.sample_proba(X)),
    "repr": in_words,
    "summary": lambda model, X, Y: str(model.summary()),
    "summary by rows": lambda model, X, Y: str(model.summary(level=0.5, original_units=True)),
    "coef_": lambda model, X, Y: model.coef_,
    "ood_score": lambda model, X, Y: require(np.isfinite(model.ood_score(X)).all(), "the score is not finite"),
    "reject_threshold": lambda model, X, Y: model.reject_threshold(X, Y, max_error=0.2),
    "own threshold": lambda model, X, Y: model.reject_threshold(max_error=0.4),
    "acquire": chosen,
    "arviz": lambda model, X, Y: model.to_arviz(draws=20),
    "scores": scored,
}


def check(model, rows, path):
    """Check predictions, and those of the saved and loaded model."""
    proba = model.predict_proba(rows)
    check_of(model, proba)
    known = (0, 1) if hasattr(model, "estimators_") else model.classes_
    require(np.isin(model.predict(rows), known).all(), "predicted something that is not a class")
    model.save(path)
    require(same(eb.load(path).predict_proba(rows), proba), "the loaded model predicts something else")


def check_of(model, proba):
    """Check probabilities of classes, whose sum is 1, or of labels (n, K), each of which may be there or not."""
    check_proba(np.stack([proba, 1 - proba], axis=-1) if hasattr(model, "estimators_") else proba)


def named(values):
    """Return the values of a setting by their names."""
    return {key if isinstance(key, str) else repr(key): value for key, value in values.items()}


CHOICES = (
    {name: list(named(values)) for name, values in (PARAMETERS | REGRESSOR).items()}
    | {"X": list(FEATURES), "y": list(LABELS), "weight": list(WEIGHTS), "rows": list(ROWS)}
    | ACTIONS
    | {"asked": [*ASKED, "interval"]}
)

SHARED = ("prior_precision", "prior_mean", "fit_intercept", "particles", "random_state", "far_field")

strategy = cases(CHOICES)


def examine(case):
    """Run a case; see the oracle for what it may end with."""
    x, y, rng = plain_rows(case["seed"])
    known = REGRESSOR | {name: PARAMETERS[name] for name in SHARED} if case.get("kind") == "regressor" else PARAMETERS
    settings = {name: named(known[name])[case[name]] for name in known if name in case}
    if not takes_the_default(case) and case.get("kind") != "regressor":
        settings = {"prior_precision": 1.0, **settings}
    X = FEATURES[case.get("X", "plain")](x, rng)
    if "y" not in case and hasattr(X, "__len__") and not hasattr(X, "nnz") and len(X) < len(y):
        y = y[: len(X)]
    Y = LABELS[case.get("y", "real" if case.get("kind") == "regressor" else "two")](y, rng)
    weight = WEIGHTS[case["weight"]](len(y), rng) if "weight" in case else None
    with judged(), tempfile.TemporaryDirectory() as folder:
        if case.get("kind") == "regressor":
            regress(case, settings, X, Y, weight, Path(folder) / "model.safetensors")
            return
        if case.get("kind") == "pipeline":
            piped(case, settings, X, Y, Path(folder) / "model.safetensors")
            return
        model = eb.EnsembleClassifier(**{"particles": 30, "random_state": 0, **settings})
        fitted = first(case, model, X, Y, weight, x)
        second(case, fitted, X, Y, weight)
        if case.get("asked") in ASKED:
            ASKED[case["asked"]](fitted, X, Y)
        rows = ROWS[case["rows"]](X) if "rows" in case else X
        check(fitted, rows, Path(folder) / "model.safetensors")
