"""Files of format 1: headers of model files and checkpoints in the form of format 2."""

from __future__ import annotations

from typing import Any

from enkbayes.storage.container import Header

NAMES = {
    "samplers.state.State": "State",
    "ensemble.AffineEnsemble": "AffineEnsemble",
    "complement.Complement": "Complement",
    "complement.Frame": "Frame",
}
"""The module paths that checkpoints of format 1 have for the types of a state. The controls of samplers were kept by
their module paths too; a run with such a control resumes from its ensemble.
"""
NUMBERS = {"residual", "blend", "time", "seconds", "drift", "k_hat", "effective", "shift", "informed"}
NUMBERS |= {"value", "error", "log_evidence"}  # the fields where null stood for NaN
NAN = {"number": "nan"}


def upgraded_checkpoint(header: Header) -> Header:
    """Return the header of a checkpoint: types by their own names, and the control apart from the state."""
    state = header["state"]["fields"]
    control = state["control"]
    if isinstance(control, dict | list | str):
        control = {"type": "unknown", "fields": {}}
    kept = {name: _renamed(value) for name, value in state.items() if name not in ("control", "owner")}
    return header | {"state": {"type": NAMES[header["state"]["type"]], "fields": kept}, "control": control}


def upgraded_model(header: Header) -> Header:
    """Return the header of a model: the fields of the posterior in one place, and every dataclass with its type."""
    linear, fitted = header["map"], header.get("fitted")
    posterior = {
        "ensemble": _ensemble(linear, header, ""),
        "likelihood": _named(header["likelihood"]),
        "map": None if linear is None else _tagged("LinearLogits", linear),
        "classes": header["classes"],
        "gaussian": header["gaussian"],
        "info": _tagged("Info", header["info"]),
        "before": None if fitted is None else _ensemble(linear, fitted, "fitted."),
    }
    kept = ("format", "library", "kind", "preprocessing", "fingerprint")
    new = {name: header[name] for name in kept if name in header} | {"posterior": posterior}
    for name in ("trust", "evidence", "tuning"):
        new[name] = None if header.get(name) is None else _tagged(name.capitalize(), header[name])
    if "estimator" in header:
        stored = header["estimator"]
        parameters = {
            name: _named(value) if isinstance(value, dict) and "name" in value else value
            for name, value in stored["parameters"].items()
        }
        new["estimator"] = {"parameters": parameters, "feature_names": stored.get("feature_names")}
    return new


def _renamed(stored: Any) -> Any:
    """Return a value of a state with the new names of its types."""
    if not isinstance(stored, dict) or stored.keys() != {"type", "fields"}:
        return stored
    return _tagged(NAMES[stored["type"]], {name: _renamed(value) for name, value in stored["fields"].items()})


def _ensemble(linear: Any, stored: Header, prefix: str) -> dict[str, Any]:
    """Return the ensemble whose tensors have a prefix; their names alone said what they were."""

    def tensors(*names: str, within: str = "") -> dict[str, Any]:
        return {name: {"tensor": f"{prefix}{within}{name}"} for name in names}

    complement = None
    if stored.get("complement") is not None:
        frame = tensors("left", "right", within="complement.") | {"intercept": linear["intercept"]}
        arrays = tensors("variance", "tightening", within="complement.")
        fields = {"frame": _tagged("Frame", frame), **arrays, "seed": stored["complement"]["seed"]}
        complement = _tagged("Complement", fields)
    return _tagged("AffineEnsemble", tensors("mean", "basis", "points") | {"complement": complement})


def _named(stored: Header) -> dict[str, Any]:
    return _tagged(stored["name"], stored["fields"])


def _tagged(name: str, fields: Header) -> dict[str, Any]:
    return {"type": name, "fields": {field: _number(field, value) for field, value in fields.items()}}


def _number(name: str, value: Any) -> Any:
    if name == "trace":  # (steps, residual, spread) of every step
        return [[NAN if part is None else part for part in row] for row in value]
    return NAN if value is None and name in NUMBERS else value
