"""What does not fit into memory is refused in one sentence, before any of it is allocated."""

import resource
import subprocess
import sys

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.engine import memory

X = np.random.default_rng(0).standard_normal((50, 3))
PROBLEM = eb.Problem.create(X, X[:, 0] > 0)


def test_particles_that_do_not_fit():
    with pytest.raises(ValueError, match=r"1,000,000,000 particles of 3 parameters need about .* GB.*; at most about"):
        eb.run(PROBLEM, particles=10**9)
    with pytest.raises(ValueError, match="particles of 4 parameters need about"):
        eb.EnsembleClassifier(particles=10**9).fit(X, X[:, 0] > 0)
    with pytest.raises(ValueError, match="between 1,000,000 particles need about 16 TB"):
        eb.run(PROBLEM, eb.StochasticSampler(), particles=10**6)


def test_predictions_that_do_not_fit(monkeypatch):
    posterior = eb.run(PROBLEM, particles=1000)
    monkeypatch.setattr(memory, "available", lambda: 1e8)
    with pytest.raises(ValueError, match=r"particles for 100,000 rows need about 3\.2 GB .* about 3,125 rows"):
        posterior.sample_proba(np.zeros((100_000, 3)))
    assert posterior.predict_proba(np.zeros((5, 3))).shape == (5, 2)


def test_the_bound_that_is_named_is_true():
    """With a limit on the address space, what the sentence says fits does fit."""
    script = """
import re, resource, sys
import numpy as np
import enkbayes as eb
X = np.random.default_rng(0).standard_normal((50, 3))
problem = eb.Problem.create(X, X[:, 0] > 0)
eb.run(problem)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2 * 10**8, -1))
try:
    eb.run(problem, particles=10**8)
except ValueError as error:
    most = int(re.search("about ([0-9,]+) particles fit", str(error))[1].replace(",", ""))
    print(most, eb.run(problem, particles=most).theta.shape[0])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    most, done_with = map(int, done.stdout.split())
    assert 50_000 < most == done_with < 10**6


def test_an_unlimited_system_allows_everything(monkeypatch):
    monkeypatch.setattr(memory.Path, "read_text", lambda *_, **__: "")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert memory.available() == np.inf


def test_the_limits_of_a_container_count(monkeypatch):
    files = {
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 8000000 kB\n",
        "/sys/fs/cgroup/memory.max": "1000000000\n",
        "/sys/fs/cgroup/memory.current": "900000000\n",
        "/sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 50000000\n",
    }
    monkeypatch.setattr(memory.Path, "read_text", lambda path, **_: files.get(str(path), ""))
    assert memory.available() == 150e6
