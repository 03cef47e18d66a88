"""What files keep as JSON, checked field by field when it is read again; small frozen dataclasses above all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, TypeVar

T = TypeVar("T")


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _whole(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


FITS: dict[str, Callable[[Any], bool]] = {
    "str": lambda x: isinstance(x, str),
    "bool": lambda x: isinstance(x, bool),
    "int": _whole,
    "int | None": lambda x: x is None or _whole(x),
    "float": lambda x: x is None or _number(x),  # NaN is stored as None
    "float | None": lambda x: x is None or _number(x),
    "tuple[float, ...]": lambda x: isinstance(x, list | tuple) and all(map(_number, x)),
}
"""The types that a field may be annotated with -> whether a value from JSON fits."""


def to_json(record: Any) -> dict[str, Any]:
    """Return the fields of a record for JSON, NaN as None."""
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(record).items()}


def from_json(kind: type[T], stored: Any, meaning: str) -> T:
    """Return the record that `to_json` gave; a ValueError says what does not fit."""
    known = fields(kind)  # type: ignore[arg-type]
    if not isinstance(stored, dict) or stored.keys() != {field.name for field in known}:
        raise ValueError(f"the {meaning} has other fields than expected")
    values = {}
    for field in known:
        value, type_ = stored[field.name], str(field.type)
        if not FITS[type_](value):
            raise ValueError(f"the field {field.name} of the {meaning} is {value!r}; expected {type_}")
        values[field.name] = math.nan if value is None and type_ == "float" else value
        if type_.startswith("tuple"):
            values[field.name] = tuple(value)
    return kind(**values)


def typed(mapping: Any, name: str, kind: type[T]) -> T:
    """Return mapping[name], which must be of this type (a whole number is a float too, a bool is no number)."""
    if not isinstance(mapping, dict) or name not in mapping:
        raise ValueError(f"the field {name} is missing")
    value = mapping[name]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return kind(value)  # type: ignore[call-arg]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"the field {name} is {value!r}; expected {kind.__name__}")
    return value
