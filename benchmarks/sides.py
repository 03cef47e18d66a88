"""Compare the speed of two programs: the features that both use, the process of the peers, alternating repetitions.

BLAS threads spin for a tenth of a second after their work is done and occupy a core meanwhile. Sleeping threads need
some milliseconds to find a core. So every timed repetition follows a pause and a tenth of a second of the same work
that is not timed. Each program gets the number of BLAS threads (1 or 2) with which it is faster.

There are two kinds of features. "network" features are rectified mixtures of 64 factors, correlated like the last layer
of a network. "white" features are independent normal numbers, the easiest case for a gradient method.
"""

from __future__ import annotations

import json
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import enkbayes as eb

PRIOR = 2.0
PAUSE = 0.25  # seconds, after which the threads of the previous program sleep
WARM = 0.1  # seconds of untimed work before the timed work


def logistic(features, seed: int, strength: float = 3.0):
    """Return labels drawn from a logistic model of centred features."""
    rng = np.random.default_rng((seed, 1))
    centred = features - features.mean(axis=0)
    truth = rng.standard_normal(features.shape[1]) * strength / np.sqrt(features.shape[1])
    return (rng.random(len(features)) < 0.5 + 0.5 * np.tanh(centred @ truth / 2)).astype(int)


def white(N: int, D: int, seed: int = 0):
    return np.random.default_rng(seed).standard_normal((N, D))


def network(N: int, D: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((64, D)) / 8
    return np.maximum(rng.standard_normal((N, 64)) @ mixing + 0.3 * rng.standard_normal((N, D)), 0)


class Peers:
    """The process that runs the other libraries (speed_peers.py)."""

    def __init__(self, python: str) -> None:
        self.python = python
        script = str(Path(__file__).with_name("speed_peers.py"))
        self.process = subprocess.Popen(
            [python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, what: str, data: Path | None = None, **settings: Any) -> dict[str, Any]:
        """Send one request and return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = (
            {"do": what, **settings} if data is None else {"do": what, "data": str(data), "prior": PRIOR, **settings}
        )
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"the peers' process ended during {what}; run `{self.python} benchmarks/speed_peers.py` to see why"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


def seconds(work: Callable[[], Any], threads: int = 1) -> float:
    """Return the seconds that `work` takes with this number of BLAS threads."""
    with threadpool_limits(threads):
        started = time.perf_counter()
        work()
        return time.perf_counter() - started


def side_by_side(sides: dict[str, Callable[[int], float]], repetitions: int) -> dict[str, Any]:
    """Return the median time of each program with its better number of threads; the programs alternate."""
    times: dict[str, dict[int, list[float]]] = {name: {1: [], 2: []} for name in sides}
    for _ in range(repetitions):
        for name, work in sides.items():
            for threads in (1, 2):
                time.sleep(PAUSE)
                begun = time.perf_counter()
                while time.perf_counter() < begun + WARM:
                    work(threads)
                times[name][threads].append(work(threads))
    result = {}
    for name, by_threads in times.items():
        medians = {threads: float(np.median(values)) for threads, values in by_threads.items()}
        best = min(medians, key=lambda threads: medians[threads])
        result[name] = {"seconds": medians[best], "threads": best}
    return result


def fit(problem, sampler, particles: int) -> eb.Posterior:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 2,300 steps of the paper's scheme do not reach its stopping rule
        return eb.run(problem, sampler, particles=particles)


def bar(name: str, ratio: float, limit: float, details: dict[Any, Any], *, atleast: bool = False) -> dict[str, Any]:
    """Return one row of the results (a measured ratio and its target), and print it."""
    met = ratio >= limit if atleast else ratio <= limit
    words = f"{'at least' if atleast else 'at most'} {limit:g}"
    print(f"{name:70s} {ratio:10.4g}   {words:14s} {'met' if met else 'NOT met'}", flush=True)
    return {"work": name, "measured": ratio, "bar": words, "limit": limit, "met": bool(met), "details": details}
