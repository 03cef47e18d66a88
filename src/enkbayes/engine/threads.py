"""Chunks of data on several threads.

BLAS spreads a product over its threads, but what lies between products, the logistic function above all, has only one.
So chunks are spread instead, each thread with a chunk and one BLAS thread of its own. Results come in the order of the
chunks, so that sums do not depend on which thread was faster.

BLAS's own threads do not go well with that: they wait for the next product by yielding, for a tenth of a second, and
take the cores from the chunks meanwhile, or from other programs. So a whole step has one BLAS thread, and the small
products between the passes over data, `product`, are spread over the same threads as chunks are.

The number of BLAS threads belongs to the process, and several fits may run in it at once. So there is one limit for
all of them: the first that needs it sets it, and the last that needed it takes it away.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from contextvars import Context, ContextVar, copy_context
from functools import lru_cache, partial
from threading import Lock
from typing import Any, TypeVar

import numpy as np

Item = TypeVar("Item")
Result = TypeVar("Result")

NARROW = 1000  # parameters up to which BLAS has one thread in a step: decompositions gain little from more
BLOCK = 128  # rows at least of a product that a thread takes
WORTH = 2**22  # multiplications of a product from which it is worth several threads
AHEAD = 2  # chunks per thread that are held until they are added up


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield the function of every item, in order, by as many threads as BLAS may use, the caller's own among them.

    >>> list(in_threads(lambda x: x**2, [3, 1, 2]))
    [9, 1, 4]
    """
    workers = min(_spare.get() or blas_threads(), len(items))
    if workers < 2:
        yield from map(function, items)
        return
    with nullcontext() if _spare.get() else _one_blas_thread():
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
        context.run(_spare.set, 1)
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
"""How many threads chunks may have while BLAS has one, 1 in a thread of ours; 0: as many as BLAS."""


@contextmanager
def threads_for_chunks(parameters: int) -> Iterator[None]:
    """Give BLAS's threads to chunks, where there are few parameters.

    >>> with threads_for_chunks(parameters=10):
    ...     total = sum(range(4))
    >>> total
    6
    """
    if parameters > NARROW or _spare.get() or blas_threads() < 2:
        yield
        return
    token = _spare.set(blas_threads())
    try:
        with _one_blas_thread():
            yield
    finally:
        _spare.reset(token)


class _Limit:
    """The limit of BLAS to one thread for the whole process, with the number of those who need it now."""

    def __init__(self) -> None:
        self.lock, self.holders, self.usual = Lock(), 0, 1
        self.shared: list[Any] = []
        self.before: list[int] = []

    def usual_threads(self) -> int:
        """Return how many threads BLAS has when nobody needs the limit."""
        with self.lock:
            return self.usual if self.holders else _least(_blas())

    def take(self) -> None:
        """Set the limit, unless it is set already."""
        with self.lock:
            if not self.holders:
                self.usual = _least(_blas())
                self.shared = [lib for lib in _blas() if not _per_thread(lib)]
                self.before = [lib.num_threads for lib in self.shared]
                _set_threads(self.shared, [1] * len(self.shared))
            self.holders += 1

    def release(self) -> None:
        """Take the limit away, unless others still need it."""
        with self.lock:
            self.holders -= 1
            if not self.holders:
                _set_threads(self.shared, self.before)


_limit = _Limit()


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    own = [lib for lib in _blas() if _per_thread(lib)]
    before = [lib.num_threads for lib in own]
    _limit.take()
    _set_threads(own, [1] * len(own))
    try:
        yield
    finally:
        _set_threads(own, before)
        _limit.release()


def blas_threads() -> int:
    """Return how many threads BLAS may use, apart from the limit of ours."""
    return _limit.usual_threads()


@lru_cache(maxsize=1)
def _blas() -> list[Any]:
    from threadpoolctl import ThreadpoolController

    return [lib for lib in ThreadpoolController().lib_controllers if lib.user_api == "blas"]


def _least(libraries: Sequence[Any]) -> int:
    return min((lib.num_threads for lib in libraries), default=1)


def _per_thread(lib: Any) -> bool:
    """Return whether a limit holds for the thread that sets it alone, as with OpenMP, rather than for the process."""
    return getattr(lib, "threading_layer", None) == "openmp"


def _set_threads(libraries: Sequence[Any], numbers: Sequence[int]) -> None:
    """Set the number of threads of BLAS libraries, whichever thread of the process has set it before.

    Recent versions of threadpoolctl let only the thread that set a number change it, and the last one to leave need not
    be the first one that came.
    """
    for lib, number in zip(libraries, numbers, strict=True):
        let_go: Callable[[], None] = partial(getattr(lib, "clear_controlling_thread", dict), force=True)
        let_go()
        lib.set_num_threads(number)
        let_go()


@lru_cache(maxsize=4)
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Return the other threads; a forked process has lost those of its parent and gets its own."""
    return ThreadPoolExecutor(workers, thread_name_prefix="enkbayes")
