"""Files of format 2: headers of model files in the form of format 3."""

from __future__ import annotations

from typing import Any

from enkbayes.storage.container import Header


def upgraded_model(header: Header) -> Header:
    """Return the header of a model: an average over prior widths as a list of components, not as lists of their
    properties; of a file with several labels, those of all labels.
    """
    if "labels" in header:
        return header | {"labels": [upgraded_model(part) for part in header["labels"]]}
    tuning = header.get("tuning")
    if not isinstance(tuning, dict) or tuning.get("type") != "PriorAverage" or "widths" not in tuning["fields"]:
        return header
    stored = tuning["fields"]
    properties = {
        "width": stored["widths"],
        "variances": stored["variances"],
        "weight": stored["weights"],
        "prior_weight": stored["prior_weights"],
        "spread": stored.get("spreads"),
        "around_mode": stored.get("modes"),
        "inside": stored.get("insides"),
    }
    components = [
        {"type": "PriorComponent", "fields": {name: values[k] for name, values in properties.items() if values}}
        for k in range(len(stored["widths"]))
    ]
    kept: dict[str, Any] = {name: stored.get(name) for name in ("rows", "message", "intercept", "log_loss")}
    return header | {"tuning": {"type": "PriorAverage", "fields": {"components": components} | kept}}
