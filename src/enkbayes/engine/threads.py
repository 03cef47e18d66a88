"""Chunks of data on several threads.

BLAS spreads a product over its threads, but what lies between products, the logistic function above all, has only one.
So chunks are spread instead, each thread with a chunk and one BLAS thread of its own. Results come in the order of the
chunks, so that sums do not depend on which thread was faster.

BLAS's own threads do not go well with that: they wait for the next product by yielding, for a tenth of a second, and
take the cores from the chunks meanwhile, or from other programs. So a whole step has one BLAS thread, and the small
products between the passes over data, `product`, are spread over the same threads as chunks are.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from contextvars import Context, ContextVar, copy_context
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

Item = TypeVar("Item")
Result = TypeVar("Result")

NARROW = 1000  # parameters up to which BLAS has one thread in a step: decompositions gain little from more
BLOCK = 128  # rows at least of a product that a thread takes
WORTH = 2**22  # multiplications of a product from which it is worth several threads
AHEAD = 2  # chunks a thread takes before they are added up; until then they are held


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield the function of every item, in order, by as many threads as BLAS may use, the caller's own among them.

    >>> list(in_threads(lambda x: x**2, [3, 1, 2]))
    [9, 1, 4]
    """
    workers = min(_spare.get() or _blas_threads(), len(items))
    if workers < 2:
        yield from map(function, items)
        return
    limit = nullcontext() if _spare.get() else _controller().limit(limits=1, user_api="blas")
    with limit:
        for start in range(0, len(items), AHEAD * workers):
            yield from _together(function, items[start : start + AHEAD * workers], workers)


def _together(function: Callable[[Item], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """Return the function of every item; each thread takes the next item until there is none.

    A thread that only waited would have to be woken at the end, and while it sleeps the system may put two others on
    one core. So the caller works as well.
    """
    results: list[Any] = [None] * len(items)
    numbers, failed = itertools.count(), False

    def work() -> None:
        nonlocal failed
        while not failed and (i := next(numbers)) < len(items):
            try:
                results[i] = function(items[i])
            except BaseException:
                failed = True
                raise

    def apart() -> Context:
        # floating-point warnings are switched on and off in the context of the caller
        context = copy_context()
        context.run(_spare.set, 0)
        return context

    pool = _pool(workers - 1, os.getpid())
    others = [pool.submit(apart().run, work) for _ in range(workers - 1)]
    try:
        apart().run(work)
    finally:
        begun = [other for other in others if not other.cancel()]
        wait(begun)
    for other in begun:
        other.result()
    return results


def product(a: Any, b: Any) -> Any:
    """Return the matrix product a @ b, in numpy by blocks of rows on several threads.

    The blocks depend on the shapes alone, and so does every bit of the result.

    >>> a = np.ones((300, 200))
    >>> bool(np.all(product(a, a.T) == 200))
    True
    """
    blocks = min(a.shape[0] // BLOCK, 8)
    numpy = type(a) is np.ndarray and type(b) is np.ndarray
    if blocks < 2 or not numpy or a.size * b.shape[1] < WORTH:
        return a @ b
    bounds = [len(a) * i // blocks for i in range(blocks + 1)]
    out = np.empty((len(a), b.shape[1]), np.result_type(a, b))
    rows = [slice(*pair) for pair in itertools.pairwise(bounds)]
    deque(in_threads(lambda part: np.matmul(a[part], b, out=out[part]), rows), maxlen=0)
    return out


_spare: ContextVar[int] = ContextVar("spare", default=0)
"""How many threads chunks may have while BLAS has one; 0: as many as BLAS."""


@contextmanager
def threads_for_chunks(parameters: int) -> Iterator[None]:
    """Give BLAS's threads to chunks, where there are few parameters."""
    if parameters > NARROW or _spare.get() or _blas_threads() < 2:
        yield
        return
    token = _spare.set(_blas_threads())
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        _spare.reset(token)


@lru_cache(maxsize=1)
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _blas_threads() -> int:
    """Return how many threads BLAS may use now: 1 within a limit, such as that of a thread of ours."""
    return min((lib.num_threads for lib in _controller().lib_controllers if lib.user_api == "blas"), default=1)


@lru_cache(maxsize=4)
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Return the other threads; a forked process has lost those of its parent and gets its own."""
    return ThreadPoolExecutor(workers, thread_name_prefix="enkbayes")
