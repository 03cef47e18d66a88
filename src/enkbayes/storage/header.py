"""The header of a stored model: what the file holds besides its arrays, as JSON, checked field by field when read.

Format 1. Required: format, library, kind, likelihood, map, classes, gaussian, info. Optional: estimator (a classifier
must have it), preprocessing, fingerprint, trust, evidence, tuning, complement (the law outside the basis), fitted (of
polished particles: the complement of the Gaussian that they came from).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from enkbayes.core.complement import Complement, Frame
from enkbayes.core.ensemble import AffineEnsemble
from enkbayes.core.likelihoods import Bernoulli, Categorical, Normal
from enkbayes.core.linear_map import LinearMap
from enkbayes.core.posterior import Info, Posterior
from enkbayes.engine.arrays import to_numpy
from enkbayes.inference.empirical_bayes import Tuning
from enkbayes.inference.evidence import Evidence
from enkbayes.inference.trust import Trust
from enkbayes.samplers import BY_NAME
from enkbayes.storage.containers import Tensors
from enkbayes.storage.records import from_json, to_json, typed

FORMAT = 1
LIKELIHOODS = {kind.__name__: kind for kind in (Bernoulli, Categorical, Normal)}
SAMPLERS = {kind.__name__: kind for kind in BY_NAME.values()}
LONGEST_LABEL = 10_000
RECORDS: dict[str, Any] = {"trust": Trust, "evidence": Evidence, "tuning": Tuning}
FITTED = "fitted."  # prefix of the tensors of the Gaussian that polished particles came from


@dataclass(frozen=True, eq=False)
class Artefact:
    """What a file holds.

    posterior : the particles and how to read them
    estimator : parameters and feature names of a classifier; None for a bare posterior
    preprocessing : whatever JSON-able dict the caller stored, None if nothing
    fingerprint : sha256 of the training data, None if unknown
    library : version of enkbayes that wrote the file
    trust, evidence, tuning : the trust report, the log evidence, how the prior was chosen; None if not computed
    """

    posterior: Posterior
    estimator: Mapping[str, Any] | None = None
    preprocessing: Mapping[str, Any] | None = None
    fingerprint: str | None = None
    library: str = ""
    trust: Trust | None = None
    evidence: Evidence | None = None
    tuning: Tuning | None = None


def encode(artefact: Artefact) -> tuple[dict[str, Any], Tensors]:
    """Return the header and the tensors of an artefact."""
    from enkbayes._version import __version__

    posterior, estimator = artefact.posterior, artefact.estimator
    tensors = {name: _tensor(x) for name, x in _arrays(posterior.ensemble).items()}
    if posterior.before is not None:
        tensors |= {f"{FITTED}{name}": _tensor(x) for name, x in _arrays(posterior.before).items()}
    header = {
        "format": FORMAT,
        "library": __version__,
        "kind": "posterior" if estimator is None else "classifier",
        "likelihood": _named(posterior.likelihood, LIKELIHOODS),
        "map": None if posterior.map is None else asdict(posterior.map),
        "classes": _encode_classes(posterior.classes),
        "gaussian": posterior.gaussian,
        "complement": _encode_complement(posterior.ensemble),
        "fitted": None if posterior.before is None else {"complement": _encode_complement(posterior.before)},
        "info": _without_nan(asdict(posterior.info)),
        "preprocessing": None if artefact.preprocessing is None else dict(artefact.preprocessing),
        "fingerprint": artefact.fingerprint,
    }
    found = {name: getattr(artefact, name) for name in RECORDS}
    header |= {name: None if record is None else to_json(record) for name, record in found.items()}
    if estimator is not None:
        simple, arrays = _encode_parameters(estimator["parameters"])
        header["estimator"] = {"parameters": simple, "feature_names": estimator.get("feature_names")}
        tensors |= arrays
    return header, tensors


def decode(header: dict[str, Any], tensors: Tensors) -> Artefact:
    """Return the artefact; a ValueError, TypeError or KeyError says what does not fit."""
    kind = typed(header, "kind", str)
    if kind not in ("posterior", "classifier"):
        raise ValueError(f"the kind is {kind!r}; expected posterior or classifier")
    posterior = _decode_posterior(header, tensors)
    estimator = _decode_estimator(header, tensors) if kind == "classifier" else None
    allowed = set(_arrays(posterior.ensemble)) | {f"{FITTED}{name}" for name in _arrays(posterior.fitted)}
    allowed |= {f"parameter.{name}" for name in (estimator or {}).get("parameters", {})}
    if not tensors.keys() <= allowed:
        raise ValueError(f"unexpected tensors {sorted(tensors.keys() - allowed)}")
    preprocessing, fingerprint = header.get("preprocessing"), header.get("fingerprint")
    if not isinstance(preprocessing, dict | None) or not isinstance(fingerprint, str | None):
        raise ValueError("preprocessing is not a dict or fingerprint is not text")
    stored = {name: header[name] for name in RECORDS if header.get(name) is not None}
    records = {name: from_json(RECORDS[name], record, name) for name, record in stored.items()}
    return Artefact(posterior, estimator, preprocessing, fingerprint, typed(header, "library", str), **records)


def _decode_posterior(header: dict[str, Any], tensors: Tensors) -> Posterior:
    likelihood = _from_name(typed(header, "likelihood", dict), LIKELIHOODS)
    linear, classes = None, _decode_classes(header["classes"])
    if header["map"] is not None:
        shape = typed(header, "map", dict)
        outputs = None if shape["outputs"] is None else typed(shape, "outputs", int)
        linear = LinearMap(typed(shape, "features", int), outputs, typed(shape, "intercept", bool))
        if linear.outputs != likelihood.outputs:
            raise ValueError(f"{linear} does not fit {likelihood}")
    if classes is not None and len(classes) != (likelihood.outputs or 2):
        raise ValueError(f"{len(classes)} classes do not fit {likelihood}")
    ensemble = _decode_ensemble(header, tensors, linear)
    before = None
    if header.get("fitted") is not None:
        inner = {name.removeprefix(FITTED): x for name, x in tensors.items() if name.startswith(FITTED)}
        before = _decode_ensemble(typed(header, "fitted", dict), inner, linear)
    return Posterior(
        ensemble,
        likelihood,
        linear,
        classes,
        typed(header, "gaussian", bool),
        _decode_info(typed(header, "info", dict)),
        before=before,
    )


def _arrays(ensemble: AffineEnsemble) -> dict[str, Any]:
    """Return the arrays of an ensemble under the names that they have in a file."""
    arrays = {"mean": ensemble.mean, "basis": ensemble.basis, "points": ensemble.points}
    c = ensemble.complement
    if c is None:
        return arrays
    frame = {"complement.left": c.frame.left, "complement.right": c.frame.right}
    return arrays | frame | {"complement.variance": c.variance, "complement.tightening": c.tightening}


def _encode_complement(ensemble: AffineEnsemble) -> dict[str, Any] | None:
    return None if ensemble.complement is None else {"seed": ensemble.complement.seed}


def _decode_ensemble(header: dict[str, Any], tensors: Tensors, linear: LinearMap | None) -> AffineEnsemble:
    complement = _decode_complement(header, tensors, linear)
    ensemble = AffineEnsemble(tensors["mean"], tensors["basis"], tensors["points"], complement)
    _check_ensemble(ensemble, linear)
    return ensemble


def _decode_complement(header: dict[str, Any], tensors: Tensors, linear: LinearMap | None) -> Complement | None:
    """Return the law outside the basis, if the file has one."""
    if header.get("complement") is None:
        return None
    if linear is None:
        raise ValueError("a complement needs linear logits")
    seed = typed(typed(header, "complement", dict), "seed", int)
    left, right, k, tightening = (tensors[f"complement.{x}"] for x in ("left", "right", "variance", "tightening"))
    D, K = linear.dim // (linear.outputs or 1), linear.outputs or 1
    shapes = left.shape in ((D,), (D, D)) and right.shape == (K, K) and k.shape == (D * K,)
    if not shapes or tightening.shape != tensors["basis"].shape[1:] or seed < 0:
        raise ValueError("the complement's tensors do not fit the parameters and the basis")
    if (
        not all(np.all(np.isfinite(x)) for x in (left, right, k, tightening))
        or np.any(k <= 0)
        or np.any(tightening <= 0)
    ):
        raise ValueError("the complement's tensors contain NaN, infinite or negative values")
    return Complement(Frame(left, right, linear.intercept), k, tightening, seed)


def _check_ensemble(ensemble: AffineEnsemble, linear: LinearMap | None) -> None:
    mean, basis, points = ensemble.mean, ensemble.basis, ensemble.points
    shapes = f"mean {mean.shape}, basis {basis.shape}, points {points.shape}"
    if not (mean.ndim == 1 and basis.ndim == points.ndim == 2):
        raise ValueError(f"{shapes}; expected (P,), (P, r), (J, r)")
    fits = basis.shape[0] == mean.shape[0] and points.shape[1] == basis.shape[1] and points.shape[0] >= 2
    if not fits or 0 in basis.shape or (linear is not None and linear.dim != mean.shape[0]):
        parameters = "P" if linear is None else linear.dim
        raise ValueError(f"{shapes}; expected ({parameters},), ({parameters}, r), (J, r) with J >= 2, r >= 1")
    if not mean.dtype == basis.dtype == points.dtype:
        raise ValueError(f"dtypes {mean.dtype}, {basis.dtype}, {points.dtype}; expected the same for all")
    if not all(np.all(np.isfinite(x)) for x in (mean, basis, points)):
        raise ValueError("tensors contain NaN or infinite values")


def _decode_info(values: dict[str, Any]) -> Info:
    def number(name: str) -> float:
        return math.nan if values[name] is None else typed(values, name, float)

    return Info(
        sampler=typed(values, "sampler", str),
        steps=typed(values, "steps", int),
        converged=typed(values, "converged", bool),
        residual=number("residual"),
        message=typed(values, "message", str),
        blend=number("blend"),
        time=number("time"),
        seconds=number("seconds"),
        nonlinearity=None if values.get("nonlinearity") is None else number("nonlinearity"),
        trace=_decode_trace(values.get("trace", [])),
        sweeps=typed({"sweeps": 0, **values}, "sweeps", int),
        drift=math.nan if values.get("drift") is None else number("drift"),
    )


def _decode_trace(rows: Any) -> tuple[tuple[int, float, float], ...]:
    """Return (steps, residual, trace of P), where a residual that is not known stands as None."""
    table = np.asarray(rows, dtype=np.float64).reshape(-1, 3)
    return tuple((int(steps), float(residual), float(spread)) for steps, residual, spread in table)


def _encode_classes(classes: np.ndarray[Any, Any] | None) -> dict[str, Any] | None:
    """Return dtype and values; text in an object array is kept apart from numpy's own text."""
    if classes is None:
        return None
    text = classes.dtype.kind == "O" and all(isinstance(value, str) for value in classes)
    if classes.dtype.kind not in "biufU" and not text:
        raise ValueError(f"classes of dtype {classes.dtype} cannot be stored; use text, numbers or booleans as labels")
    return {"dtype": "object" if text else classes.dtype.str, "values": classes.tolist()}


def _decode_classes(stored: Any) -> np.ndarray[Any, Any] | None:
    if stored is None:
        return None
    name, values = typed(stored, "dtype", str), typed(stored, "values", list)
    dtype = np.dtype(object) if name == "object" else np.dtype(name)
    if (
        dtype.itemsize > 4 * LONGEST_LABEL
        or dtype.kind not in "biufUO"
        or (dtype.kind in "UO" and not all(isinstance(value, str) for value in values))
    ):
        raise ValueError(f"classes {values} do not fit their dtype {name}")
    classes = np.asarray(values, dtype=dtype)
    if classes.ndim != 1 or classes.tolist() != values or len(np.unique(classes)) != len(classes):
        raise ValueError(f"classes {values} are not distinct values of dtype {name}")
    return classes


def _encode_parameters(parameters: Mapping[str, Any]) -> tuple[dict[str, Any], Tensors]:
    """Return the parameters as JSON, and those that are arrays, which JSON only refers to, as {"tensor": name}."""
    simple: dict[str, Any] = {}
    arrays: Tensors = {}
    for name, value in parameters.items():
        if is_dataclass(value) and not isinstance(value, type):
            simple[name] = _named(value, SAMPLERS)
        elif value is None or isinstance(value, bool | int | float | str):
            simple[name] = value
        elif np.ndim(value) == 0 and isinstance(value, np.generic):
            simple[name] = value.item()
        elif isinstance(value, np.random.RandomState):
            simple[name] = None  # a generator in the middle of its stream is not a setting worth keeping
        elif np.asarray(value).dtype.kind in "OU" and all(isinstance(part, str) for part in value):
            simple[name] = [str(part) for part in value]  # labels
        else:
            simple[name] = {"tensor": f"parameter.{name}"}
            arrays[f"parameter.{name}"] = _tensor(np.asarray(to_numpy(value), dtype=np.float64))
    return simple, arrays


def _decode_estimator(header: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    stored = typed(header, "estimator", dict)
    parameters: dict[str, Any] = {}
    for name, value in typed(stored, "parameters", dict).items():
        if not isinstance(value, dict):
            parameters[name] = value
        else:
            parameters[name] = tensors[f"parameter.{name}"] if "tensor" in value else _from_name(value, SAMPLERS)
    names = stored.get("feature_names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError("feature_names is not a list of text")
    if names is not None and len(names) != typed(typed(header, "map", dict), "features", int):
        raise ValueError(f"feature_names has {len(names)} entries, which does not fit the number of features")
    return {"parameters": parameters, "feature_names": names}


def _named(value: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a frozen dataclass of this library as its name and its fields."""
    name = type(value).__name__
    if known.get(name) is not type(value):
        raise ValueError(f"{value!r} is not part of enkbayes and cannot be stored; save the posterior alone")
    return {"name": name, "fields": {field.name: getattr(value, field.name) for field in fields(value)}}


def _from_name(stored: dict[str, Any], known: Mapping[str, Callable[..., Any]]) -> Any:
    name = typed(stored, "name", str)
    if name not in known:
        raise ValueError(f"unknown name {name!r}; expected one of {', '.join(known)}")
    return known[name](**typed(stored, "fields", dict))


def _tensor(x: Any) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(to_numpy(x))


def _without_nan(x: Any) -> Any:
    """Return a value whose NaNs, however deep, are None, as JSON wants it."""
    if isinstance(x, dict):
        return {name: _without_nan(part) for name, part in x.items()}
    if isinstance(x, tuple | list):
        return [_without_nan(part) for part in x]
    return None if isinstance(x, float) and math.isnan(x) else x
