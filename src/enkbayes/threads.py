"""Chunks of data on several threads.

BLAS spreads a product over its threads, but what lies between products, the logistic function above all, has only one.
So chunks are spread instead, each thread with a chunk and one BLAS thread of its own. Results come in the order of the
chunks, so that sums do not depend on which thread was faster.

A product of a few hundred rows and columns gains nothing from several BLAS threads, and loses a lot where other
programs run: BLAS's threads wait for each other by yielding, and a program that gets the core keeps it for
milliseconds. So a whole step on a small number of parameters has one BLAS thread, and chunks have the others.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import lru_cache
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

NARROW = 300  # parameters up to which products of theirs are taken by one thread
AHEAD = 2  # chunks a thread may be ahead of the sum, whose parts are held until then


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield the function of every item, in order, by as many threads as BLAS may use.

    >>> list(in_threads(lambda x: x**2, [3, 1, 2]))
    [9, 1, 4]
    """
    workers = min(_spare.get() or _blas_threads(), len(items))
    if workers < 2:
        yield from map(function, items)
        return
    pool = _pool(workers, os.getpid())
    waiting: deque[Future[Result]] = deque()
    with _controller().limit(limits=1, user_api="blas"):
        for item in items:
            if len(waiting) >= AHEAD * workers:
                yield waiting.popleft().result()
            # floating-point warnings are switched on and off in the context of the caller
            context = copy_context()
            context.run(_spare.set, 0)
            waiting.append(pool.submit(context.run, function, item))
        while waiting:
            yield waiting.popleft().result()


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
    """Return the threads; a forked process has lost those of its parent and gets its own."""
    return ThreadPoolExecutor(workers, thread_name_prefix="enkbayes")
