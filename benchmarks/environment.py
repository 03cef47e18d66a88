"""The hardware and versions that the figures of a benchmark depend on."""

from __future__ import annotations

import os
import platform
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
