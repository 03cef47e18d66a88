"""The codec: values survive, and every stored value is checked."""

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import enkbayes as eb
from enkbayes.inference.trust import Trust
from enkbayes.storage.codec import Decoder, Encoder, UnknownType, fits
from enkbayes.storage.stored_types import TYPES


@dataclass(frozen=True, eq=False)
class Inner:
    weights: Any
    labels: np.ndarray[Any, Any] | None = None


@dataclass(frozen=True)
class Outer:
    inner: Inner
    numbers: tuple[float, ...] = ()
    names: list[str] | None = None


TABLE = {"Inner": Inner, "Outer": Outer}


def there_and_back(value, table=TABLE, expected=Any):
    encoder = Encoder(table)
    stored = json.loads(json.dumps(encoder(value, "value"), allow_nan=False))
    return Decoder(table, encoder.tensors)(stored, "value", expected)


leaves = st.none() | st.booleans() | st.integers() | st.text() | st.floats()


@given(st.recursive(leaves, lambda part: st.lists(part, max_size=4).map(tuple)))
def test_numbers_text_and_tuples_survive(value):
    assert repr(there_and_back(value)) == repr(value)


@pytest.mark.parametrize(
    "array",
    [
        np.asarray([1.5, -2.0]),
        np.ones((2, 0, 3), dtype=np.float32),
        np.asarray(np.nan),
        np.asarray([3, 5], dtype=np.int16),
        np.asarray([True, False]),
        np.asarray(["a", "bb"]),
        np.asarray(["a", "bb"], dtype=object),
    ],
    ids=str,
)
def test_arrays_survive(array):
    again = there_and_back(array)
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(again, array)


def test_dataclasses_survive_with_their_arrays():
    value = Outer(Inner(np.arange(3.0), np.asarray(["x", "y"])), (1.0, math.inf, -math.inf), ["a"])
    again = there_and_back(value, expected=Outer)
    np.testing.assert_array_equal(again.inner.weights, value.inner.weights)
    np.testing.assert_array_equal(again.inner.labels, value.inner.labels)
    assert (again.numbers, again.names) == (value.numbers, value.names)


def test_an_array_that_is_met_twice_is_stored_once():
    shared = np.ones(3)
    encoder = Encoder(TABLE)
    encoder((Inner(shared), Inner(shared)), "pair")
    assert list(encoder.tensors) == ["pair.0.weights"]


@pytest.mark.parametrize(
    "value",
    [{}, object(), np.zeros((2, 2), dtype=int), np.asarray([{}]), 1j, Inner],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused(value):
    with pytest.raises(TypeError, match=r"types that a file can hold|cannot be stored"):
        Encoder(TABLE)(value, "value")


def test_a_trust_report_survives_and_is_checked():
    problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    report = replace(eb.assess(problem, eb.run(problem, eb.Homotopy())), k_hat=math.inf)  # a homotopy has no residual
    again = there_and_back(report, TYPES, Trust)
    np.testing.assert_equal(asdict(again), asdict(report))
    assert math.isnan(again.residual)
    stored = Encoder(TYPES)(report, "trust")
    for change in ({"extra": 1}, {"verdict": 3}, {"draws": True}, {"draws": 1.5}, {"residual": None}, {"k_hat": "1"}):
        wrong = {"type": "Trust", "fields": stored["fields"] | change}
        with pytest.raises(ValueError, match=next(iter(change)) if "extra" not in change else "other fields"):
            Decoder(TYPES, {})(wrong, "trust", Trust)
    for wrong in ({}, [], {"type": "Trust", "fields": {}}, {"type": "Trust", "fields": []}, stored["fields"], None):
        with pytest.raises(ValueError, match="trust"):
            Decoder(TYPES, {})(wrong, "trust", Trust)


@pytest.mark.parametrize(
    "stored", [{"type": "os.system", "fields": {}}, {"type": "Inner", "fields": {"weights": 1, "more": 2}}]
)
def test_unknown_types_and_fields_are_distinguished_from_damage(stored):
    with pytest.raises(UnknownType):
        Decoder(TABLE, {})(stored, "value")


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("<i4,<i4", [1]),
        ("(2,", [1]),
        ("V8", [1]),
        ("<f3", [1.0]),
        ("datetime64[s]", [1]),
        ("<U99999", ["a"] * 1000),
        ("<U1", ["ab"]),
        ("|i1", [300]),
        ("<i8", [1.5]),
        ("<i8", [[1]]),
        ("object", [1]),
        (["<i8"], [1]),
        ("<i8", "1"),
    ],
    ids=str,
)
def test_arrays_in_the_header_are_checked(dtype, values):
    with pytest.raises(ValueError, match="do not fit their dtype"):
        Decoder({}, {})({"dtype": dtype, "values": values}, "classes")


def test_annotations_are_understood():
    assert fits((1, math.nan, 2.0), tuple[int, float, float])
    assert not fits((1, 2.0), tuple[int, float, float])
    assert not fits([1], tuple[int, ...])
    assert fits(None, float | None)
    assert fits("anything", Any)
    assert not fits(True, float)
    assert not fits(1, bool)


def test_every_stored_type_has_annotations_that_can_be_checked():
    from typing import get_type_hints

    for kind in TYPES.values():
        assert get_type_hints(kind), kind
