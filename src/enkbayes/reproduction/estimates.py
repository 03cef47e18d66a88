"""A mean over repetitions with its 95 % interval: what claims are judged by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error, and Student's 95 % interval.

    >>> print(Estimate.of([1.0, 2.0, 3.0]))
    2.000 ± 0.577
    >>> Estimate.of([1.0, 2.0, 3.0]).above(0.0), Estimate.of([2.0, 2.2, 2.4]).above(0.0)
    (False, True)
    """

    mean: float
    error: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Any) -> Estimate:
        """Return the estimate from independent repetitions; a single one has no interval."""
        x = np.asarray(values, dtype=np.float64)
        mean, n = float(x.mean()), len(x)
        if n < 2:
            return cls(mean, math.nan, -math.inf, math.inf, n)
        error = float(x.std(ddof=1)) / math.sqrt(n)
        reach = float(t.ppf(0.975, n - 1)) * error
        return cls(mean, error, mean - reach, mean + reach, n)

    def above(self, bound: float) -> bool:
        """Whether the whole interval lies above the bound."""
        return self.low > bound

    def below(self, bound: float) -> bool:
        """Whether the whole interval lies below the bound."""
        return self.high < bound

    def __str__(self) -> str:
        if math.isnan(self.error) or self.error == 0:
            return f"{self.mean:.4g}"
        digits = 0 if abs(self.mean) >= 100 else 1 if abs(self.mean) >= 10 else 3
        return f"{self.mean:.{digits}f} ± {self.error:.{digits}f}"
