"""The benchmark of rows to label: paired differences, and curves that can be resumed."""

import numpy as np
import pytest

pytest.importorskip("pandas")
import acquisition


def test_differences_are_paired_within_sets_and_repetitions():
    rows = [
        {"set": name, "repeat": repeat, "method": method, "seconds": 1.0, "leverage": 1.0, "confidence": 0.6}
        | {"accuracy": 0.5 + base + 0.1 * repeat + gain * (1 + repeat), "nll": 1.0 - base}
        for name, base in (("easy", 0.2), ("hard", 0.0))
        for repeat in (0, 1)
        for method, gain in (("random", 0.0), ("margin", 0.01), ("acquire", 0.02))
    ]
    found = acquisition.summary(rows[:-1])  # the last repetition of acquire on the hard set is missing
    assert set(found) == {"random", "margin", "acquire"}
    assert found["margin"]["accuracy minus random's"]["mean"] == pytest.approx(0.015)
    assert found["margin"]["accuracy minus random's"]["error"] == pytest.approx(0.005 / np.sqrt(2))
    assert found["acquire"]["accuracy minus margin's"]["sets"] == pytest.approx({"easy": 0.015, "hard": 0.01})
    assert found["acquire"]["nll minus random's"]["mean"] == pytest.approx(0)


def test_risk_coverage_of_a_perfect_order_is_below_a_random_one():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 1))
    y = (X[:, 0] + 0.5 * rng.standard_normal(200) > 0).astype(int)
    areas = acquisition.risk_coverage(acquisition.fitted(X[:50], y[:50], 0), X[50:], y[50:])
    wrong = np.mean(acquisition.fitted(X[:50], y[:50], 0).predict(X[50:]) != y[50:])
    assert areas["confidence"] == pytest.approx(areas["total uncertainty"])  # the same order for two classes
    assert areas["confidence"] < wrong
