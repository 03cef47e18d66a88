"""A progress bar for a run, made by rich when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from enkbayes.samplers import State


@contextmanager
def progress_bar(title: str, horizon: int, *, enabled: bool) -> Iterator[Callable[[State], None]]:
    """Yield a function that shows a state: steps out of at most `horizon`, and the residual."""
    if not enabled:
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[residual]}"),
    )
    with Progress(*columns) as progress:
        task = progress.add_task(title, total=horizon, residual="")

        def report(state: State) -> None:
            residual = "" if math.isnan(state.residual) else f"residual {state.residual:.1e}"
            total = state.steps if state.finished else horizon
            progress.update(task, completed=state.steps, total=total, residual=residual, refresh=state.finished)

        yield report
