"""One `.safetensors` file for a fitted model: arrays, and a JSON header that says what they mean.

Tensors: `mean` (P,), `basis` (P, r), `points` (J, r), so theta_j = mean + basis @ points_j, and `parameter.NAME` for
the parameters of an estimator that are arrays. Metadata: `enkbayes`, the header as JSON, and `sha256`, the checksum of
header and tensors. Nothing in a file is ever executed; every type, shape and dtype is checked before it is used.

Header, format 1. Required: format, library, kind, likelihood, map, classes, gaussian, info. Optional: estimator,
preprocessing, fingerprint. A later format adds its upgrade to `UPGRADES`, so that files of older ones stay readable.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from enkbayes.arrays import to_numpy
from enkbayes.ensemble import AffineEnsemble
from enkbayes.likelihoods import Bernoulli, Categorical, Normal
from enkbayes.logits import LinearMap
from enkbayes.posterior import Info, Posterior
from enkbayes.samplers import BY_NAME

FORMAT = 1
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Format -> the function that turns its header into the next format's."""

LIKELIHOODS = {kind.__name__: kind for kind in (Bernoulli, Categorical, Normal)}
SAMPLERS = {kind.__name__: kind for kind in BY_NAME.values()}
DTYPES = {"F32": np.float32, "F64": np.float64}

T = TypeVar("T")
Tensors = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, eq=False)
class Artefact:
    """What a file holds.

    posterior : the particles and how to read them
    estimator : parameters and feature names of a classifier; None for a bare posterior
    preprocessing : whatever JSON-able dict the caller stored, None if nothing
    fingerprint : sha256 of the training data, None if unknown
    library : version of enkbayes that wrote the file
    """

    posterior: Posterior
    estimator: Mapping[str, Any] | None = None
    preprocessing: Mapping[str, Any] | None = None
    fingerprint: str | None = None
    library: str = ""


def write(artefact: Artefact, path: str | Path) -> None:
    """Write the file in one piece: either all of it appears under `path`, or nothing changes there."""
    header, tensors = _encode(artefact)
    try:
        text = json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the preprocessing cannot be written as JSON ({error}); use numbers, text, lists, dicts"
        ) from None
    data = to_bytes(tensors, metadata={"enkbayes": text, "sha256": _checksum(text, tensors)})
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | Path) -> Artefact:
    """Return what the file holds; a ValueError says what is wrong with a file that is not in order."""
    text, checksum, tensors = _open(path)
    header = _header(path, text)
    if checksum != _checksum(text, tensors):
        raise ValueError(f"{path} is damaged: its checksum does not fit its contents; write it again from the model")
    try:
        return _decode(header, tensors)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a valid model of format {FORMAT}: {error}") from None


def _open(path: str | Path) -> tuple[str, str, Tensors]:
    """Return header text, checksum and tensors; a foreign file is refused before its tensors are read."""
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            if not {"enkbayes", "sha256"} <= metadata.keys():
                raise ValueError(f"{path} is a safetensors file, but not one of enkbayes; expected a saved model")
            for name in file.keys():  # noqa: SIM118 - not a dict
                if (dtype := file.get_slice(name).get_dtype()) not in DTYPES:
                    raise ValueError(f"{path} has a tensor {name} of dtype {dtype}; expected F32 or F64")
            return metadata["enkbayes"], metadata["sha256"], {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file ({error}); expected a saved model") from None


def _header(path: str | Path, text: str) -> dict[str, Any]:
    """Return the header, brought up to the present format."""
    try:
        header = json.loads(text)
        version = _typed(header, "format", int)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged: its header is not readable ({error})") from None
    if version > FORMAT:
        library = header.get("library", "unknown")
        raise ValueError(
            f"{path} has format {version}, written by enkbayes {library}; this version reads up to {FORMAT}, "
            "so upgrade enkbayes to open it"
        )
    for old in range(version, FORMAT):
        if old not in UPGRADES:
            raise ValueError(f"{path} has the unknown format {version}; expected 1 to {FORMAT}")
        header = UPGRADES[old](header)
    return dict(header)


def _checksum(text: str, tensors: Tensors) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape};".encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def _encode(artefact: Artefact) -> tuple[dict[str, Any], Tensors]:
    from enkbayes import __version__

    posterior, estimator = artefact.posterior, artefact.estimator
    e = posterior.ensemble
    tensors = {name: _tensor(x) for name, x in (("mean", e.mean), ("basis", e.basis), ("points", e.points))}
    header = {
        "format": FORMAT,
        "library": __version__,
        "kind": "posterior" if estimator is None else "classifier",
        "likelihood": _named(posterior.likelihood, LIKELIHOODS),
        "map": None if posterior.map is None else asdict(posterior.map),
        "classes": _encode_classes(posterior.classes),
        "gaussian": posterior.gaussian,
        "info": {name: None if _nan(x) else x for name, x in asdict(posterior.info).items()},
        "preprocessing": artefact.preprocessing,
        "fingerprint": artefact.fingerprint,
    }
    if estimator is not None:
        simple, arrays = _encode_parameters(estimator["parameters"])
        header["estimator"] = {"parameters": simple, "feature_names": estimator.get("feature_names")}
        tensors |= arrays
    return header, tensors


def _decode(header: dict[str, Any], tensors: Tensors) -> Artefact:
    kind = _typed(header, "kind", str)
    if kind not in ("posterior", "classifier"):
        raise ValueError(f"the kind is {kind!r}; expected posterior or classifier")
    posterior = _decode_posterior(header, tensors)
    estimator = _decode_estimator(header, tensors) if kind == "classifier" else None
    allowed = {"mean", "basis", "points"} | {f"parameter.{name}" for name in (estimator or {}).get("parameters", {})}
    if not tensors.keys() <= allowed:
        raise ValueError(f"unexpected tensors {sorted(tensors.keys() - allowed)}")
    preprocessing, fingerprint = header.get("preprocessing"), header.get("fingerprint")
    if not isinstance(preprocessing, dict | None) or not isinstance(fingerprint, str | None):
        raise ValueError("preprocessing is not a dict or fingerprint is not text")
    return Artefact(posterior, estimator, preprocessing, fingerprint, _typed(header, "library", str))


def _decode_posterior(header: dict[str, Any], tensors: Tensors) -> Posterior:
    ensemble = AffineEnsemble(tensors["mean"], tensors["basis"], tensors["points"])
    likelihood = _from_name(_typed(header, "likelihood", dict), LIKELIHOODS)
    linear, classes = None, _decode_classes(header["classes"])
    if header["map"] is not None:
        shape = _typed(header, "map", dict)
        outputs = None if shape["outputs"] is None else _typed(shape, "outputs", int)
        linear = LinearMap(_typed(shape, "features", int), outputs, _typed(shape, "intercept", bool))
        if linear.outputs != likelihood.outputs:
            raise ValueError(f"{linear} does not fit {likelihood}")
    if classes is not None and len(classes) != (likelihood.outputs or 2):
        raise ValueError(f"{len(classes)} classes do not fit {likelihood}")
    _check_ensemble(ensemble, linear)
    return Posterior(
        ensemble,
        likelihood,
        linear,
        classes,
        _typed(header, "gaussian", bool),
        _decode_info(_typed(header, "info", dict)),
    )


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
        return math.nan if values[name] is None else _typed(values, name, float)

    return Info(
        sampler=_typed(values, "sampler", str),
        steps=_typed(values, "steps", int),
        converged=_typed(values, "converged", bool),
        residual=number("residual"),
        message=_typed(values, "message", str),
        blend=number("blend"),
        time=number("time"),
        seconds=number("seconds"),
        nonlinearity=None if values.get("nonlinearity") is None else number("nonlinearity"),
    )


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
    name, values = _typed(stored, "dtype", str), _typed(stored, "values", list)
    dtype = np.dtype(object) if name == "object" else np.dtype(name)
    if dtype.kind not in "biufUO" or (dtype.kind in "UO" and not all(isinstance(value, str) for value in values)):
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
        else:
            simple[name] = {"tensor": f"parameter.{name}"}
            arrays[f"parameter.{name}"] = _tensor(np.asarray(to_numpy(value), dtype=np.float64))
    return simple, arrays


def _decode_estimator(header: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    stored = _typed(header, "estimator", dict)
    parameters: dict[str, Any] = {}
    for name, value in _typed(stored, "parameters", dict).items():
        if not isinstance(value, dict):
            parameters[name] = value
        else:
            parameters[name] = tensors[f"parameter.{name}"] if "tensor" in value else _from_name(value, SAMPLERS)
    names = stored.get("feature_names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError("feature_names is not a list of text")
    return {"parameters": parameters, "feature_names": names}


def _named(value: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a frozen dataclass of this library as its name and its fields."""
    name = type(value).__name__
    if known.get(name) is not type(value):
        raise ValueError(f"{value!r} is not part of enkbayes and cannot be stored; save the posterior alone")
    return {"name": name, "fields": {field.name: getattr(value, field.name) for field in fields(value)}}


def _from_name(stored: dict[str, Any], known: Mapping[str, Callable[..., Any]]) -> Any:
    name = _typed(stored, "name", str)
    if name not in known:
        raise ValueError(f"unknown name {name!r}; expected one of {', '.join(known)}")
    return known[name](**_typed(stored, "fields", dict))


def _typed(mapping: Any, name: str, kind: type[T]) -> T:
    """Return mapping[name], which must be of this type (a whole number is a float too, a bool is no number)."""
    if not isinstance(mapping, dict) or name not in mapping:
        raise ValueError(f"the field {name} is missing")
    value = mapping[name]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return kind(value)  # type: ignore[call-arg]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"the field {name} is {value!r}; expected {kind.__name__}")
    return value


def _tensor(x: Any) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(to_numpy(x))


def _nan(x: Any) -> bool:
    return isinstance(x, float) and math.isnan(x)
