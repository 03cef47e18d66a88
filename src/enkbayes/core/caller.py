"""Warnings that point at the code which called the package."""

from __future__ import annotations

import sys
import warnings


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning about the first caller that is not part of this package, however deep the call is.

    >>> with warnings.catch_warnings(record=True) as found:
    ...     warnings.simplefilter("always")
    ...     warn("features are constant")
    >>> str(found[0].message)
    'features are constant'
    """
    inside, level, frame = {__name__.partition(".")[0], "contextlib"}, 2, sys._getframe(1)  # noqa: SLF001
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in inside:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
