"""Fuzz cases of Problem, run and what is asked of a posterior: every sampler, likelihood and array library."""

import tempfile
import warnings
from pathlib import Path

import numpy as np

import enkbayes as eb
from enkbayes.inference.evidence import log_evidence
from enkbayes.inference.polishing import polish
from fuzz.data import FEATURES, LABELS, ROWS, WEIGHTS, plain_rows
from fuzz.deviations import cases
from fuzz.oracle import check_proba, judged, require, same

NUMBERS = (1e-300, 1e-12, 1e-3, 0.5, 1, 2.0, 1e6, 1e300, 0, -1, np.nan, np.inf, None, "x", True, 2.5)
COUNTS = (1, 2, 3, 17, 0, -1, 2.5, None, "5", True, np.nan)


def made(kind, **fields):
    """Return a function that makes a dataclass, when the case runs."""
    return lambda: kind(**fields)


def settings_of(kind, short, **choices):
    """Return samplers by name: one field with each of its values, and `short` runs for the rest."""
    return {
        f"{kind.__name__} {name} {value!r}": made(kind, **{**short, name: value})
        for name, values in choices.items()
        for value in values
    }


SAMPLERS = (
    {"class": lambda: eb.Equilibrium, "text": lambda: "equilibrium", "None": lambda: None, "number": lambda: 3}
    | settings_of(eb.Equilibrium, {}, tau=NUMBERS, tol=NUMBERS, max_steps=COUNTS, batch=COUNTS)
    | settings_of(eb.MeanField, {}, tol=NUMBERS, max_steps=COUNTS, rank=COUNTS)
    | settings_of(eb.Homotopy, {}, steps=COUNTS, grading=NUMBERS, batch=COUNTS, midpoint=(False, None))
    | settings_of(eb.TrotterSampler, {"max_steps": 20}, ds=NUMBERS, tol=NUMBERS)
    | settings_of(eb.TrotterSampler, {}, max_steps=COUNTS)
    | settings_of(eb.StochasticSampler, {"max_steps": 20}, ds=NUMBERS, correction=(False, None))
    | settings_of(eb.StochasticSampler, {}, max_steps=COUNTS)
    | {f"TamedHomotopy ds {ds}": made(eb.TamedHomotopy, ds=ds) for ds in (0.1, 1.0, 0.3, 0, -1, np.nan, None, "x", 2.0)}
    | {"TamedHomotopy diagonal": made(eb.TamedHomotopy, ds=0.1, diagonal=True)}
)

LIKELIHOODS = (
    {
        "Bernoulli": eb.Bernoulli,
        "Categorical": lambda: eb.Categorical(3),
        "Categorical 4": lambda: eb.Categorical(4),
        "class": lambda: eb.Bernoulli,
        "text": lambda: "bernoulli",
        "number": lambda: 3,
    }
    | {f"Categorical {n!r}": made(eb.Categorical, outputs=n) for n in (0, 2, 2.5, None, "3")}
    | {
        f"Normal {v!r}": made(eb.Normal, variance=v)
        for v in (0.5, 1e-300, 1e-12, 1e12, 1e300, 0, -1, np.nan, None, "x")
    }
    | {
        f"Ordinal {c!r}": made(eb.Ordinal, cutpoints=c)
        for c in ((-0.5, 0.5), (0.5, -0.5), (0.0, 0.0), (0.0,), (), (-1e300, 1e300), (np.nan, 1.0), "x", None, 3)
    }
)

PRIORS = {
    repr(v): (lambda x, v=v: v) for v in (1e-300, 1e-12, 0.1, 1e6, 1e150, 1e300, 0, -1, np.nan, np.inf, None, "x")
} | {
    "full": lambda x: eb.Gaussian(np.zeros(x.shape[1]), np.eye(x.shape[1]) + 0.2),
    "mean": lambda x: eb.Gaussian(np.full(x.shape[1], 3.0), 1.0),
    "far mean": lambda x: eb.Gaussian(np.full(x.shape[1], 1e200), 1.0),
    "spread": lambda x: eb.Gaussian(np.zeros(x.shape[1]), np.logspace(-200, 200, x.shape[1])),
    "ill-conditioned": lambda x: eb.Gaussian(np.zeros(x.shape[1]), np.diag(np.logspace(-14, 14, x.shape[1]))),
    "singular": lambda x: eb.Gaussian(np.zeros(x.shape[1]), np.ones((x.shape[1],) * 2)),
    "wide": lambda x: eb.Gaussian.isotropic(9),
    "list": lambda x: [1.0] * x.shape[1],
    "class": lambda x: eb.Gaussian,
}

THETAS = {
    "draws": lambda p, rng: rng.standard_normal((20, p)),
    "few": lambda p, rng: rng.standard_normal((2, p)),
    "far": lambda p, rng: 1e8 + rng.standard_normal((20, p)),
    "huge": lambda p, rng: 1e200 * rng.standard_normal((20, p)),
    "tiny": lambda p, rng: 1e-200 * rng.standard_normal((20, p)),
    "equal": lambda p, rng: np.ones((20, p)),
    "equal in one": lambda p, rng: rng.standard_normal((20, p)) * (np.arange(p) > 0),
    "pairs": lambda p, rng: np.repeat(rng.standard_normal((2, p)), 10, axis=0),
    "nan": lambda p, rng: np.full((20, p), np.nan),
    "narrow": lambda p, rng: rng.standard_normal((20, p + 1)),
    "vector": lambda p, rng: rng.standard_normal(p),
    "objects": lambda p, rng: np.full((4, p), None),
    "text": lambda p, rng: "theta",
    "list": lambda p, rng: rng.standard_normal((20, p)).tolist(),
    "float32": lambda p, rng: rng.standard_normal((20, p)).astype("f4"),
    "integers": lambda p, rng: rng.integers(-3, 3, (20, p)),
}

MIXTURES = {
    "equal": [0.5, 0.5],
    "one": [1.0, 0.0],
    "nearly one": [1 - 1e-12, 1e-12],
    "tiny": [1.0, 1e-300],
    "too much": [1.0, 1.0],
    "negative": [2.0, -1.0],
    "nan": [np.nan, np.nan],
    "short": [1.0],
    "none": [],
    "text": ["a", "b"],
    "None": None,
}

CHOICES = {
    "X": list(FEATURES),
    "y": list(LABELS),
    "weight": list(WEIGHTS),
    "rows": list(ROWS),
    "sampler": list(SAMPLERS),
    "likelihood": list(LIKELIHOODS),
    "prior": list(PRIORS),
    "theta": list(THETAS),
    "intercept": [repr(v) for v in NUMBERS] + ["gaussian"],
    "particles": [repr(n) for n in (2, 3, 4, 6, 7, 12, 40, *COUNTS)],
    "seed_given": ["-1", "None", "x", "1.5", "generator", "huge"],
    "chunk": [repr(n) for n in COUNTS],
    "classes": ["three", "one", "with None", "other", "number", "mixed", "reversed", "repeated", "nan"],
    "library": ["torch", "torch float32", "torch half", "strict"],
    "source": ["stream", "stream in two", "stream of floats", "generator", "nothing", "rows of other widths"],
    "mixture": list(MIXTURES),
    "asked": ["assess", "evidence", "polish", "distribution", "uncertainty", "sample", "iterate", "resume", "arviz"],
}
STATED = {repr(v): v for v in (*NUMBERS, *COUNTS, 2, 3, 4, 6, 7, 12, 40)}
CLASSES = {
    "three": [0, 1, 2],
    "one": [1],
    "with None": [None, 1],
    "other": ["x", "y"],
    "number": 2,
    "mixed": [0, "a"],
    "reversed": [1, 0],
    "repeated": [0, 0, 1],
    "nan": [0.0, np.nan],
}
SEEDS = {"-1": -1, "None": None, "x": "x", "1.5": 1.5, "huge": 2**70}

strategy = cases(CHOICES)


def in_library(x, name):
    if name is None or not isinstance(x, np.ndarray) or not x.dtype.isnative or x.dtype.kind not in "biufc":
        return x
    if name == "strict" and x.dtype == np.float16:  # which the standard of array libraries does not have
        return x
    if name == "strict":
        import array_api_strict

        return array_api_strict.asarray(x)
    import torch

    dtype = {"torch": None, "torch float32": torch.float32, "torch half": torch.float16}[name]
    return torch.as_tensor(x.astype(np.float64) if dtype is None else x, dtype=dtype)


def source_of(kind, X, Y):
    half = len(Y) // 2
    if kind == "stream in two":
        return [(X[:half], Y[:half]), (X[half:], Y[half:])]
    if kind == "stream of floats":
        return [(X[:half].astype("f4"), Y[:half]), (X[half:], Y[half:])]
    if kind == "generator":
        return iter([(X, Y)])
    if kind == "nothing":
        return []
    if kind == "rows of other widths":
        return [(X[:half], Y[:half]), (X[half:, :1], Y[half:])]
    return [(X, Y)]


def examine(case):
    """Run a case; see the oracle for what it may end with."""
    x, y, rng = plain_rows(case["seed"])
    X = FEATURES[case.get("X", "plain")](x, rng)
    if "y" not in case and hasattr(X, "__len__") and not hasattr(X, "nnz") and len(X) < len(y):
        y = y[: len(X)]
    likelihood = case.get("likelihood", "")
    default = "real" if likelihood.startswith("Normal") else "plain" if likelihood[:3] in ("Cat", "Ord") else "two"
    Y = LABELS[case.get("y", default)](y, rng)
    with judged(), tempfile.TemporaryDirectory() as folder:
        problem = problem_of(case, X, Y, x, y, rng)
        posterior = run(case, problem, rng)
        if "mixture" in case:
            posterior = mixed(case, problem, posterior)
        ask(case, problem, posterior, X)
        check(case, problem, posterior, X, Path(folder) / "posterior.safetensors")


def problem_of(case, X, Y, x, y, rng):
    options = {}
    width = x if not isinstance(X, np.ndarray) or X.ndim != 2 else X
    prior = PRIORS[case["prior"]](width) if "prior" in case else 1.0
    if "likelihood" in case:
        options["likelihood"] = LIKELIHOODS[case["likelihood"]]()
    if "intercept" in case:
        given = case["intercept"]
        options["intercept"] = eb.Gaussian.isotropic(1) if given == "gaussian" else STATED[given]
    if "classes" in case:
        options["classes"] = CLASSES[case["classes"]]
    if "chunk" in case:
        options["chunk"] = STATED[case["chunk"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, while the array is made
        X = in_library(X, case.get("library"))
    if "source" in case and isinstance(X, np.ndarray) and X.ndim == 2 and isinstance(Y, np.ndarray):
        return eb.Problem.stream(source_of(case["source"], X, Y), prior, **options)
    if "weight" in case:
        options["weights"] = WEIGHTS[case["weight"]](len(y), rng)
    return eb.Problem.create(X, Y, prior, **options)


def run(case, problem, rng):
    options = {"particles": STATED[case["particles"]] if "particles" in case else 30}
    if "theta" in case:
        options["theta"] = THETAS[case["theta"]](problem.dim, rng)
    if "seed_given" in case:
        options["seed"] = SEEDS.get(case["seed_given"], np.random.default_rng(0))
    sampler = SAMPLERS[case["sampler"]]() if "sampler" in case else None
    if case.get("asked") == "iterate":
        for state in eb.iterate(problem, sampler, **options):
            last = state
        require(last.finished, "the last state is not finished")
    if case.get("asked") == "resume":
        first = eb.run(problem, sampler, callback=lambda state: state.steps >= 2, **options)
        return eb.run(problem, sampler, state=first.state)
    return eb.run(problem, sampler, **options)


def mixed(case, problem, posterior):
    """Average the posterior with another one of the same problem, whose mean is another."""
    other = eb.run(problem, eb.MeanField(), particles=posterior.ensemble.size, seed=1)
    prior = problem.prior
    parts, weights = (posterior, other), MIXTURES[case["mixture"]]
    return eb.MixturePosterior(parts, weights, priors=(prior, prior), prior_weights=(0.5, 0.5))


def ask(case, problem, posterior, X):
    kind = case.get("asked")
    if kind == "assess":
        eb.assess(problem, posterior)
    elif kind == "evidence":
        log_evidence(problem, posterior)
    elif kind == "polish":
        polish(problem, posterior, 2)
    elif kind == "distribution":
        require(posterior.distribution.dim == problem.dim, "the distribution has another dimension")
    elif kind == "uncertainty":
        found = posterior.predict_uncertainty(X)
        require(np.isfinite(np.asarray(found.total)).all(), "uncertainties are not finite")
    elif kind == "sample":
        proba = posterior.sample_proba(X)
        if problem.likelihood.n_classes is not None:
            check_proba(proba)
    elif kind == "arviz":
        posterior.to_arviz()


def check(case, problem, posterior, X, path):
    rows = ROWS[case["rows"]](X) if "rows" in case else X
    proba = posterior.predict_proba(rows)
    if problem.likelihood.n_classes is not None:
        check_proba(proba)
    else:
        require(np.isfinite(np.asarray(proba)).all(), "predictions are not finite")
    eb.save(posterior, path)
    require(same(eb.load(path).predict_proba(rows), proba), "the loaded posterior predicts something else")
