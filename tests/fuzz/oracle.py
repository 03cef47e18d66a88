"""What every fuzz case is held to: a valid posterior that survives a file, or one error of ours."""

import ast
import linecache
import signal
import sys
import warnings
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import sklearn

import enkbayes as eb

OURS = Path(eb.__file__).parent
SKLEARN = Path(sklearn.__file__).parent
SECONDS = 60  # of processor time that a case may take; all of them are small
CHECKS = {SKLEARN / "utils" / "validation.py", SKLEARN / "utils" / "multiclass.py", SKLEARN / "base.py"}
"""scikit-learn's own checks of X, y and random_state, whose words its estimator checks prescribe."""


class Refused(Exception):
    """A case ended with an error of ours, as it may."""


class Broken(AssertionError):
    """A case broke the rules."""


def is_ours(error):
    """Return whether an error is a ValueError or TypeError that our code, or scikit-learn's checks, raised in words."""
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    file = Path(last.tb_frame.f_code.co_filename)
    if not isinstance(error, ValueError | TypeError | AttributeError) or not str(error):
        return False
    if file in CHECKS or file.is_relative_to(SKLEARN / "utils"):
        return True
    if isinstance(error, AttributeError) or not file.is_relative_to(OURS):
        return False
    return "\n" not in str(error) and last.tb_lineno in raises(file)


@cache
def raises(file):
    """Return the lines of a file that belong to a raise statement."""
    tree = ast.parse("".join(linecache.getlines(str(file))))
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Raise))
    return {line for node in found for line in range(node.lineno, node.end_lineno + 1)}


@contextmanager
def judged():
    """Run a case: raise Refused for an error of ours and Broken for anything else, foreign warnings included."""
    foreign = []

    def show(message, category, filename, lineno, file=None, line=None):
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == warnings.__file__:
            frame = frame.f_back
        source = Path(frame.f_code.co_filename) if frame is not None else Path(filename)
        explicit = source.is_relative_to(OURS) and issubclass(category, UserWarning)
        theirs = source in CHECKS and issubclass(category, UserWarning)
        if not (explicit or theirs):
            foreign.append(f"{category.__name__}: {message} ({filename}:{lineno})")

    def too_long(number, frame):
        raise Broken(f"more than {SECONDS} seconds")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = show
            yield
    except (Broken, Refused):
        raise
    except Exception as error:
        if not is_ours(error):
            raise Broken(f"{type(error).__name__}: {error}") from error
        if not foreign:
            raise Refused(str(error)) from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    if foreign:
        raise Broken(f"a warning that is not ours: {foreign[0]}")


def require(condition, sentence):
    """Raise Broken unless the condition holds."""
    if not condition:
        raise Broken(sentence)


def check_proba(proba, axis=-1):
    """Check probabilities: finite, in [0, 1], with sum 1."""
    proba = np.asarray(proba)
    require(np.isfinite(proba).all(), "probabilities are not finite")
    require(
        (proba >= 0).all() and (proba <= 1).all(),
        f"probabilities from {proba.min(initial=1)} to {proba.max(initial=0)}",
    )
    tolerance = 1e-12 if proba.dtype == np.float64 else 1e-5
    off = np.abs(proba.sum(axis=axis) - 1).max(initial=0)
    require(off <= tolerance, f"probabilities add up to 1 but for {off:.1e}")


def same(a, b):
    """Return whether two arrays have the same bits."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
