"""How much memory is left, and a clear error for what would not fit, before the kernel kills the process."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

SMALL = 5e7  # bytes; smaller requests are not checked


def available() -> float:
    """Return the bytes that this process can still allocate: the least of what the machine has, its control group
    allows, and the limit on its address space leaves; infinity where the system does not say.

    >>> available() > 0
    True
    """
    return max(min(limit() for limit in (_machine, _control_group, _address_space)), 0.0)


def check_fits(needed: float, what: str, remedy: Callable[[float], str]) -> None:
    """Raise a ValueError if `needed` bytes are not available; `remedy(free)` says what would fit into `free` bytes.

    >>> check_fits(1e18, "10 particles", lambda free: "take 5")
    Traceback (most recent call last):
        ...
    ValueError: 10 particles need about 1,000,000 TB of memory, but only ... are free; take 5
    """
    if needed < SMALL:
        return
    free = available()
    if needed > free:
        raise ValueError(
            f"{what} need about {bytes_in_words(needed)} of memory, but only {bytes_in_words(free)} are free;"
            f" {remedy(free)}"
        )


def bytes_in_words(count: float) -> str:
    """Return a number of bytes with a unit.

    >>> bytes_in_words(21.8e9), bytes_in_words(3.2e6), bytes_in_words(5e17)
    ('22 GB', '3 MB', '500,000 TB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= 0.95 * size:
            digits = 1 if count < 9.5 * size and unit != "MB" else 0
            return f"{count / size:,.{digits}f} {unit}"
    return f"{count / 1e3:.0f} kB"


def _machine() -> float:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return 1024.0 * int(line.split()[1])
    return math.inf


def _control_group() -> float:
    """Return what the control group of a container leaves; its page cache can be freed."""
    for usage, most, stat in (
        ("memory.current", "memory.max", "memory.stat"),
        ("memory/memory.usage_in_bytes", "memory/memory.limit_in_bytes", "memory/memory.stat"),
    ):
        folder = "/sys/fs/cgroup"
        used, limit = _lines(f"{folder}/{usage}"), _lines(f"{folder}/{most}")
        if used and limit and limit[0].isdigit() and used[0].isdigit():
            cache = [int(line.split()[1]) for line in _lines(f"{folder}/{stat}") if line.startswith("inactive_file ")]
            return float(int(limit[0]) - int(used[0]) + sum(cache))
    return math.inf


def _address_space() -> float:
    try:
        import resource
    except ImportError:  # Windows
        return math.inf
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    size = [line.split()[0] for line in _lines("/proc/self/statm") if line]
    if most == resource.RLIM_INFINITY or not size:
        return math.inf
    return float(most - int(size[0]) * resource.getpagesize())


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").split("\n")
    except (OSError, ValueError):
        return []
