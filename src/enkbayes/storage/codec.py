"""Values as JSON with named arrays, and back: the one codec of model files and checkpoints.

    None, bool, int, str           themselves
    float                          itself; {"number": "nan"}, "inf" or "-inf" where JSON has no number for it
    tuple, list                    a list, which comes back as a tuple unless the annotation of its field says list
    array of floats                {"tensor": NAME}, NAME among the tensors of the file; an array met twice is kept once
    array of other numbers, text   {"dtype": DTYPE, "values": [...]}, one axis only
    dataclass                      {"type": NAME, "fields": {...}}

A dataclass has a name in a table that the caller passes, and nothing outside the table is ever created. Every field is
checked against its annotation. A field that a file lacks takes its default; a field that the class lacks is an error.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

import numpy as np

from enkbayes.engine.arrays import Array, like, to_numpy
from enkbayes.storage.container import Tensors

T = TypeVar("T")
NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # one NaN, so that equal records compare equal
DTYPE = re.compile(r"object|[<>|=]?[biufU][0-9]{1,5}")  # of arrays that are kept as JSON
MOST_BYTES = 2**28  # of such an array; a small file with a wide dtype must not fill the memory


class UnknownType(ValueError):
    """A file holds a dataclass that the table lacks, or one with other fields than the class has now."""


@dataclass(eq=False)
class Encoder:
    """Turn values into JSON and collect their arrays in `tensors`.

    >>> encode = Encoder({})
    >>> encode((1, math.inf, np.ones(2)), "x"), list(encode.tensors)
    ([1, {'number': 'inf'}, {'tensor': 'x.2'}], ['x.2'])
    """

    table: Mapping[str, type]
    tensors: Tensors = field(default_factory=dict)
    _met: dict[int, tuple[str, Any]] = field(default_factory=dict)

    def __call__(self, value: Any, path: str) -> Any:
        """Return a value as JSON; its arrays are called `path`, with a point and the name of the field they are in."""
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, np.generic):
            return self(value.item(), path)
        if isinstance(value, float):
            return value if math.isfinite(value) else {"number": str(value)}
        if isinstance(value, tuple | list):
            return [self(part, _joined(path, str(i))) for i, part in enumerate(value)]
        for name, kind in self.table.items():
            if type(value) is kind:
                return {"type": name, "fields": self.fields(value, path)}
        if not hasattr(value, "dtype"):
            raise TypeError(f"a {type(value).__name__} is none of the types that a file can hold")
        return self._array(value, path)

    def fields(self, value: Any, path: str = "") -> dict[str, Any]:
        """Return the fields of a dataclass as JSON."""
        return {f.name: self(getattr(value, f.name), _joined(path, f.name)) for f in fields(value)}

    def _array(self, value: Any, path: str) -> dict[str, Any]:
        if id(value) in self._met:
            return {"tensor": self._met[id(value)][0]}
        array = np.ascontiguousarray(to_numpy(value)) if np.ndim(value) else to_numpy(value)
        if array.dtype in (np.float32, np.float64):
            self._met[id(value)] = path, value  # with a reference to the value, so that its id stays its own
            self.tensors[path] = array
            return {"tensor": path}
        text = array.dtype.kind == "O" and all(isinstance(part, str) for part in array.tolist())
        if array.ndim != 1 or not (array.dtype.kind in "biuU" or text):
            raise TypeError(f"an array of dtype {array.dtype} and shape {array.shape} cannot be stored")
        return {"dtype": "object" if text else array.dtype.str, "values": array.tolist()}


@dataclass(eq=False)
class Decoder:
    """Turn JSON and tensors back into values, with arrays in the library of `reference` (default numpy).

    >>> Decoder({}, {"x.2": np.ones(2)})([1, {"number": "inf"}, {"tensor": "x.2"}], "x")
    (1, inf, array([1., 1.]))
    """

    table: Mapping[str, type]
    tensors: Tensors
    reference: Array | None = None
    used: set[str] = field(default_factory=set)

    def __call__(self, stored: Any, name: str, expected: Any = Any) -> Any:
        """Return the value of the field `name`; raise a ValueError unless it is of the expected type."""
        value = self._value(stored, name)
        if isinstance(value, tuple) and not fits(value, expected) and fits(list(value), expected):
            value = list(value)
        if not fits(value, expected):
            raise ValueError(f"the field {name} is {stored!r}; expected {_words(expected)}")
        return value

    def fields(self, kind: type[T], stored: Any, name: str) -> T:
        """Return the dataclass with these fields."""
        known = {f.name: f for f in fields(kind) if f.init}  # type: ignore[arg-type]
        if not isinstance(stored, dict) or stored.keys() - known.keys():
            raise UnknownType(f"the field {name} has other fields than a {kind.__name__}")
        for each in known.values():
            if each.name not in stored and each.default is MISSING and each.default_factory is MISSING:
                raise UnknownType(f"the field {each.name} of {name} is missing")
        expected = _annotations(kind)
        return kind(**{part: self(stored[part], part, expected.get(part, Any)) for part in known if part in stored})

    def _value(self, stored: Any, name: str) -> Any:
        if isinstance(stored, list):
            return tuple(self._value(part, name) for part in stored)
        if not isinstance(stored, dict):
            return stored
        if stored.keys() == {"number"} and stored["number"] in NUMBERS:
            return NUMBERS[stored["number"]]
        if stored.keys() == {"tensor"}:
            return self._tensor(stored["tensor"], name)
        if stored.keys() == {"dtype", "values"}:
            return _labels(stored["dtype"], stored["values"])
        if stored.keys() != {"type", "fields"}:
            raise ValueError(f"the field {name} is {stored!r}; expected a value as this codec writes it")
        kind = self.table.get(stored["type"]) if isinstance(stored["type"], str) else None
        if kind is None:
            raise UnknownType(f"the field {name} is a {stored['type']}, which is unknown")
        return self.fields(kind, stored["fields"], name)

    def _tensor(self, tensor: Any, name: str) -> Array:
        array = self.tensors.get(tensor) if isinstance(tensor, str) else None
        if array is None or (array.ndim and not np.all(np.isfinite(array))):  # an array without axes is a number
            raise ValueError(f"the tensor {tensor} of the field {name} is missing, or contains NaN or infinite values")
        self.used.add(tensor)
        return array if self.reference is None else like(array, self.reference)


def fits(value: Any, expected: Any) -> bool:
    """Return whether a decoded value is what an annotation says; an annotation that says nothing fits every value.

    >>> fits(3, int | None), fits(True, int), fits(("a", 1), tuple[str, ...]), fits(2, float)
    (True, False, False, True)
    """
    origin, parts = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        each = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return len(each) == len(value) and all(map(fits, value, each))
    if expected in (int, float):
        return isinstance(value, int if expected is int else int | float) and not isinstance(value, bool)
    kind = origin or (type(None) if expected is None else expected)
    says_nothing = kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False)
    return says_nothing or isinstance(value, kind)


def _annotations(kind: type) -> dict[str, Any]:
    """Return the types of the fields; those of a class whose annotations cannot be resolved are not checked."""
    try:
        return typing.get_type_hints(kind)
    except NameError:
        return {}


def _labels(name: Any, values: Any) -> np.ndarray[Any, Any]:
    """Return an array of numbers, truth values or text (n,) whose values survive their dtype."""
    try:
        dtype = np.dtype(name if DTYPE.fullmatch(name) and isinstance(values, list) else "none")
        text = dtype.kind in "UO"
        if dtype.itemsize * len(values) <= MOST_BYTES and all(isinstance(value, str) == text for value in values):
            array = np.asarray(values, dtype=dtype)
            if array.ndim == 1 and array.tolist() == values:
                return array
    except (OverflowError, TypeError, ValueError):  # no dtype, or a number that its dtype cannot hold
        pass
    raise ValueError(f"the values {values!r} do not fit their dtype {name!r}")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _words(expected: Any) -> str:
    return expected.__name__ if isinstance(expected, type) else str(expected)
