"""The hardware, the versions and the code that the figures of a benchmark depend on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import numpy as np

import enkbayes as eb


def environment() -> dict[str, object]:
    """Return processor, cores, BLAS threads and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "BLAS threads": os.environ["OMP_NUM_THREADS"],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "enkbayes": eb.__version__,
    }


def sources() -> str:
    """Return the first digits of git's name of the tree src/enkbayes, which rebasing leaves alone; "unknown" where
    there is no git, and with a + where files differ from it.
    """
    root = Path(__file__).parents[1]

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "src/enkbayes")
        return git("rev-parse", "HEAD:src/enkbayes")[:10] + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
