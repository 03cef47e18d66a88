"""One `.safetensors` file for a fitted model: arrays, and a JSON header that says what they mean.

Tensors: `mean` (P,), `basis` (P, r), `points` (J, r), so that theta_j = mean + basis @ points_j; the same with the
prefix `fitted.` for the Gaussian that polished particles came from; `parameter.NAME` for the parameters of an estimator
that are arrays. The components of a mixture have names that begin with `components.0.`, `components.1.` and so on. The
header, in format 3, has the fields

    kind            "posterior", or "classifier" or "regressor", which must have an estimator; or "labels"
    posterior       the fields of a `Posterior`, but for its state; or a `MixturePosterior` with its type
    estimator       parameters, feature names, and what a regressor has chosen
    preprocessing   a dict of the caller's
    fingerprint     of the training data
    trust, evidence, tuning, far_field, held_out

written by `codec.py`. A file of the kind "labels" holds the header of a classifier for each of several labels, in
`labels`, and their `names`. Every type, shape and dtype is checked before it is used; nothing in a file is ever
executed. A likelihood from outside the package is stored as its name, "module:Class", and its fields; its class comes
from the caller, because no file decides which code is imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from enkbayes.core.mixture import MixturePosterior
from enkbayes.core.posterior import Posterior
from enkbayes.engine.arrays import to_numpy
from enkbayes.inference.empirical_bayes import Tuning
from enkbayes.inference.evidence import Evidence
from enkbayes.inference.feature_far_field import FeatureFarField
from enkbayes.inference.prior_average import PriorAverage
from enkbayes.inference.rejection import HeldOutConfidence
from enkbayes.inference.trust import Trust
from enkbayes.storage import container, format_1, format_2
from enkbayes.storage.codec import Decoder, Encoder
from enkbayes.storage.container import Header, Tensors
from enkbayes.storage.stored_types import TYPES, check_ensemble

UPGRADES = {1: format_1.upgraded_model, 2: format_2.upgraded_model}
KIND = container.Kind("enkbayes", "a saved model", "write it again from the model", 3, UPGRADES)
RECORDS: dict[str, Any] = {
    "trust": Trust,
    "evidence": Evidence,
    "tuning": Tuning | PriorAverage,
    "far_field": FeatureFarField,
    "held_out": HeldOutConfidence,
}
PREFIXES = {"ensemble": "", "before": "fitted"}  # of the tensors of a posterior's fields, where not the field's name


@dataclass(frozen=True, eq=False)
class Artefact:
    """What a model file holds.

    posterior : the particles, and how they predict
    estimator : kind, parameters and feature names of an estimator, and what it has chosen; None for a posterior alone
    preprocessing : a dict that the caller stored, None if there was none
    fingerprint : sha256 of the training data, None if unknown
    library : version of enkbayes that wrote the file
    trust, evidence, tuning : the trust report, the log evidence, the choice of the prior; None if not computed
    far_field, held_out : the extent of the training data, confidences of rows predicted without them; None likewise
    """

    posterior: Posterior | MixturePosterior
    estimator: Mapping[str, Any] | None = None
    preprocessing: Mapping[str, Any] | None = None
    fingerprint: str | None = None
    library: str = ""
    trust: Trust | None = None
    evidence: Evidence | None = None
    tuning: Tuning | PriorAverage | None = None
    far_field: FeatureFarField | None = None
    held_out: HeldOutConfidence | None = None


@dataclass(frozen=True, eq=False)
class LabelArtefacts:
    """What a file of a classifier of multi-hot labels holds: the binary classifier of each label, and their names."""

    parts: tuple[Artefact, ...]
    names: np.ndarray[Any, Any]


def write(artefact: Artefact | LabelArtefacts, path: str | Path) -> None:
    """Write a model file, all or nothing."""
    header, tensors = encode(artefact) if isinstance(artefact, Artefact) else _encode_labels(artefact)
    container.write(path, KIND, header, tensors)


def read(path: str | Path, likelihood: type | None = None) -> Artefact | LabelArtefacts:
    """Return what a model file holds; `likelihood` is the class of a likelihood from outside the package. Raise a
    ValueError that says what is wrong with a file that cannot be read.
    """
    header, tensors = container.read(path, KIND)
    try:
        labels = header.get("kind") == "labels"
        return _decode_labels(header, tensors) if labels else decode(header, tensors, likelihood)
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from None


def encode(artefact: Artefact) -> tuple[Header, Tensors]:
    """Return the header and the tensors of a model file."""
    posterior, estimator = artefact.posterior, artefact.estimator
    encoder = Encoder(TYPES | _foreign(posterior.likelihood))
    if isinstance(posterior, MixturePosterior):
        stored = _stored_mixture(encoder, posterior)
    else:
        stored = _stored(encoder, posterior)
    header: Header = {
        "kind": "posterior" if estimator is None else estimator.get("kind", "classifier"),
        "posterior": stored,
        "preprocessing": None if artefact.preprocessing is None else _json(artefact.preprocessing),
        "fingerprint": artefact.fingerprint,
        **{name: encoder(getattr(artefact, name), name) for name in RECORDS},
    }
    if estimator is not None:
        parameters = {
            name: _encoded(encoder, _plain(value), f"parameter.{name}", f"parameter {name} of the estimator")
            for name, value in estimator["parameters"].items()
        }
        chosen = {name: encoder(_plain(x), f"chosen.{name}") for name, x in estimator.get("chosen", {}).items()}
        names = estimator.get("feature_names")
        header["estimator"] = {"parameters": parameters, "feature_names": names, "chosen": chosen}
    return header, encoder.tensors


def decode(header: Header, tensors: Tensors, likelihood: type | None = None) -> Artefact:
    """Return what header and tensors describe; a ValueError, TypeError or KeyError says what does not fit."""
    kind = header.get("kind")
    if kind not in ("posterior", "classifier", "regressor"):
        raise ValueError(f"the kind is {kind!r}; expected posterior, classifier or regressor")
    stored = header.get("posterior")
    decoder = Decoder(TYPES | _given(stored, likelihood), tensors)
    posterior = _read_posterior(decoder, stored)
    estimator = None if kind == "posterior" else _estimator(decoder, header.get("estimator"), posterior, kind)
    preprocessing, fingerprint = header.get("preprocessing"), header.get("fingerprint")
    if not isinstance(preprocessing, dict | None) or not isinstance(fingerprint, str | None):
        raise ValueError("preprocessing is not a dict, or fingerprint is not text")
    records = {name: decoder(header.get(name), name, record | None) for name, record in RECORDS.items()}
    if unused := tensors.keys() - decoder.used:
        raise ValueError(f"unexpected tensors {sorted(unused)}")
    if records["far_field"] is not None:
        records["far_field"].check(None if posterior.map is None else posterior.map.features)
    return Artefact(posterior, estimator, preprocessing, fingerprint, str(header.get("library")), **records)


def _encode_labels(artefact: LabelArtefacts) -> tuple[Header, Tensors]:
    """Return the header and the tensors of all labels; those of label k have the prefix `labels.k.`"""
    parts = [encode(part) for part in artefact.parts]
    tensors = {_of_label(k, name): array for k, (_, found) in enumerate(parts) for name, array in found.items()}
    encoder = Encoder({}, tensors)
    return {
        "kind": "labels",
        "names": encoder(artefact.names, "names"),
        "labels": [header for header, _ in parts],
    }, tensors


def _decode_labels(header: Header, tensors: Tensors) -> LabelArtefacts:
    """Return what a file with several labels holds."""
    names, stored = Decoder({}, tensors)(header.get("names"), "names", np.ndarray), header.get("labels")
    if not isinstance(stored, list) or not all(isinstance(part, dict) for part in stored) or len(names) != len(stored):
        raise ValueError("the field labels is not a list of models with a name for each")
    own = [
        {n.removeprefix(_of_label(k)): x for n, x in tensors.items() if n.startswith(_of_label(k))}
        for k in range(len(stored))
    ]
    if unused := tensors.keys() - {_of_label(k, name) for k, part in enumerate(own) for name in part}:
        raise ValueError(f"unexpected tensors {sorted(unused)}")
    parts = tuple(decode(part | {"library": header.get("library")}, x) for part, x in zip(stored, own, strict=True))
    if len(parts) < 2 or any(part.estimator is None or part.estimator["kind"] != "classifier" for part in parts):
        raise ValueError("the file does not hold classifiers of two or more labels")
    return LabelArtefacts(parts, names)


def _of_label(k: int, name: str = "") -> str:
    return f"labels.{k}.{name}"


def _json(preprocessing: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict that JSON can hold, or say what it cannot hold and what to do."""
    try:
        json.dumps(found := dict(preprocessing), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"the preprocessing cannot be written as JSON ({error}); use finite numbers, text, lists, dicts"
        ) from None
    return found


def _stored(encoder: Encoder, posterior: Posterior, prefix: str = "") -> dict[str, Any]:
    """Return the fields of a posterior as JSON, but for its state."""
    return {
        name: _encoded(encoder, getattr(posterior, name), path.rstrip("."), f"{name} of the posterior")
        for name in (f.name for f in fields(posterior) if f.name != "state")
        for path in [prefix + PREFIXES.get(name, name)]
    }


def _stored_mixture(encoder: Encoder, mixture: MixturePosterior) -> dict[str, Any]:
    """Return a mixture as JSON, its components without their states."""
    components = [
        {"type": "Posterior", "fields": _stored(encoder, component, f"components.{i}.")}
        for i, component in enumerate(mixture.components)
    ]
    rest = {f.name: encoder(getattr(mixture, f.name), f.name) for f in fields(mixture) if f.name != "components"}
    return {"type": "MixturePosterior", "fields": {"components": components, **rest}}


def _read_posterior(decoder: Decoder, stored: Any) -> Posterior | MixturePosterior:
    """Return the posterior that a file describes, checked."""
    if not _is_mixture(stored):
        posterior = decoder.fields(Posterior, stored, "posterior")
        _check(posterior)
        return posterior
    found: MixturePosterior = decoder(stored, "posterior", MixturePosterior)
    for component in found.components:
        _check(component)
    dim = int(found.components[0].mean.shape[0])
    if any(prior.dim != dim for prior in found.priors):
        raise ValueError(f"the priors of the components do not have {dim} parameters")
    return found


def _is_mixture(stored: Any) -> bool:
    return isinstance(stored, dict) and stored.get("type") == "MixturePosterior"


def _encoded(encoder: Encoder, value: Any, path: str, what: str) -> Any:
    """Return a value as JSON, or say why it cannot be stored and what to do."""
    try:
        return encoder(value, path)
    except TypeError as error:
        remedy = "save the posterior alone"
        if what.startswith("classes"):
            remedy = "use text, numbers or booleans as labels"
        if what.startswith("likelihood"):
            remedy = "use numbers, text, tuples and arrays as its fields"
        raise ValueError(f"the {what} cannot be stored: {error}; {remedy}") from None


def _plain(value: Any) -> Any:
    """Return the parameter of an estimator in a form that the codec knows."""
    if isinstance(value, np.random.RandomState):
        return None  # the position of a generator in its stream is not a setting
    if value is None or isinstance(value, bool | int | float | str | np.generic) or is_dataclass(value):
        return value
    array = np.asarray(to_numpy(value))
    if array.dtype.kind in "OU" and all(isinstance(part, str) for part in array.tolist()):
        return [str(part) for part in array.tolist()]  # labels
    return array.astype(np.float64) if array.dtype.kind in "biuf" else value


def _foreign(likelihood: Any) -> dict[str, type]:
    """Return the name in a file of a likelihood from outside the package, with its class."""
    kind = type(likelihood)
    if kind in TYPES.values():
        return {}
    if "__dataclass_fields__" not in vars(kind):  # a subclass of a dataclass may have settings that are not fields
        raise ValueError(
            f"the likelihood {kind.__qualname__} is not a dataclass, so its settings are not known and it cannot be "
            "stored; decorate the class with @dataclass(frozen=True)"
        )
    return {f"{kind.__module__}:{kind.__qualname__}": kind}


def _given(stored: Any, likelihood: type | None) -> dict[str, type]:
    """Return the class that the caller gives for the likelihood of a file, under its name in the file."""
    if _is_mixture(stored):
        components = stored["fields"].get("components") if isinstance(stored.get("fields"), dict) else None
        first = components[0] if isinstance(components, list) and components else None
        stored = first.get("fields") if isinstance(first, dict) else None
    tag = stored.get("likelihood") if isinstance(stored, dict) else None
    name = tag.get("type") if isinstance(tag, dict) else None
    if not isinstance(name, str):
        raise ValueError("the field likelihood is missing")
    own = name.rpartition(":")[2]
    if likelihood is None:
        if ":" in name:
            raise ValueError(
                f"the likelihood {name} is not part of enkbayes, and loading a file imports no code; pass its class, "
                f"load(path, likelihood={own.rpartition('.')[2]})"
            )
        return {}
    if not isinstance(likelihood, type) or not is_dataclass(likelihood) or likelihood.__qualname__ != own:
        raise ValueError(f"the likelihood is {name}; expected likelihood={own}, the class, but got {likelihood!r}")
    return {name: likelihood}


def _estimator(decoder: Decoder, stored: Any, posterior: Posterior | MixturePosterior, kind: str) -> dict[str, Any]:
    """Return the kind, the parameters and feature names of an estimator, and what it has chosen."""
    if not isinstance(stored, dict) or not isinstance(stored.get("parameters"), dict):
        raise ValueError("the field estimator is missing, or has no parameters")
    found = {name: decoder(value, name) for name, value in stored["parameters"].items()}
    parameters = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    names = stored.get("feature_names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError("feature_names is not a list of text")
    if names is not None and (posterior.map is None or len(names) != posterior.map.features):
        raise ValueError(f"feature_names has {len(names)} entries, which does not fit the number of features")
    chosen = {name: decoder(value, f"chosen.{name}") for name, value in stored.get("chosen", {}).items()}
    _check_chosen(chosen, kind, sum(posterior.mean.shape))
    return {"kind": kind, "parameters": parameters, "feature_names": names, "chosen": chosen}


def _check_chosen(chosen: dict[str, Any], kind: str, parameters: int) -> None:
    """Raise a ValueError unless an estimator has chosen what its kind chooses."""
    if kind == "regressor":
        value = np.asarray(chosen.get("prior_precision"))
        if chosen.keys() != {"prior_precision"} or value.dtype.kind not in "fi" or not np.all(np.isfinite(value)):
            raise ValueError(f"the regressor has chosen {sorted(chosen)}; expected a finite prior_precision")
        return
    prior = chosen.keys() - {"class_weight"}
    if prior and prior != {"prior_mean", "prior_cov"}:
        raise ValueError(f"the classifier has chosen {sorted(prior)}; expected prior_mean and prior_cov")
    if prior and (shape := np.shape(chosen["prior_mean"])) != (parameters,):
        raise ValueError(f"the chosen prior_mean has shape {shape}; expected ({parameters},)")


def _check(posterior: Posterior) -> None:
    """Raise a ValueError unless the parts of a posterior fit each other."""
    linear, likelihood, classes = posterior.map, posterior.likelihood, posterior.classes
    if linear is not None and linear.outputs != likelihood.outputs:
        raise ValueError(f"{linear} does not fit {likelihood}")
    if classes is not None and classes.shape != (likelihood.n_classes,):
        raise ValueError(f"{len(classes)} classes do not fit {likelihood}")
    if classes is not None and len(np.unique(classes)) != len(classes):
        raise ValueError(f"the classes {classes.tolist()} are not distinct")
    for ensemble in (posterior.ensemble, posterior.fitted):
        check_ensemble(ensemble, None if linear is None else linear.dim, linear)
