"""Measure the package against its own matrix products: one step, growth with the number of rows, predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from sides import PRIOR, bar, fit, logistic, seconds, side_by_side, white

import enkbayes as eb
from enkbayes.samplers.equilibrium import frozen_flow
from enkbayes.solvers.step_control import Stage, StepControl, Track, evaluate

STEP_SIZES = [(10_000, 256, 600), (100_000, 64, 200), (20_000, 128, 300), (4_000, 512, 1_200), (200_000, 20, 100)]
STEP_SIZES += [(100_000, 10, 100), (2_000, 200, 300)]  # the extremes: few features, and hardly more rows than features
STEP_BAR, PREDICT_BAR = 1.6, 1.5


def one_step(repetitions: int) -> list[dict[str, Any]]:
    """One step of Equilibrium with ensemble averages against its bare matrix products."""
    rows = []
    for N, D, J in STEP_SIZES:
        features = white(N, D)
        problem = eb.Problem.create(features, logistic(features, 0), PRIOR)
        fitted = fit(problem, eb.Equilibrium(tol=1e-3), J)
        wide = replace(fitted.ensemble, basis=1.3 * fitted.ensemble.basis)  # away from the equilibrium, so it must move
        for single in (True, False):
            source = problem.coarse if single else problem
            own = Stage(0.0, descend=False)
            control = StepControl(frozen_flow, (own,), tol=1e-9, max_steps=100)
            track = Track(evaluate(source, wide, own.expectation), start=wide)
            dtype = np.float32 if single else np.float64
            bare, kept = (_products(problem, wide, dtype, keep=keep) for keep in (False, True))

            def step(threads: int, track=track, source=source, control=control) -> float:
                def work() -> None:
                    with source.resources():
                        moments, tau = control.propose(track)
                        control.judge(source, track, moments, *frozen_flow(moments, tau, control.share))

                return seconds(work, threads)

            sides = {
                "step": step,
                "products": lambda threads, work=bare: seconds(work, threads),
                "products into reused memory": lambda threads, work=kept: seconds(work, threads),
            }
            times = side_by_side(sides, repetitions)
            size = f"N {N:,}, D {D}, J {J}, {'float32' if single else 'float64'}"
            rows += [
                bar(f"step / its {name}, {size}", times["step"]["seconds"] / times[name]["seconds"], STEP_BAR, times)
                for name in ("products", "products into reused memory")
            ]
    return rows


def _products(problem, ensemble, dtype, *, keep: bool) -> Callable[[], None]:
    """Return the matrix products of one step: logits (half of them, where pairs mean +- x need no more), curvature,
    and the small products of the basis. With `keep` the logits of all chunks go into the same memory, so that the time
    does not include fresh pages.
    """
    features = np.ascontiguousarray(problem.features, dtype=dtype)
    basis, points = ensemble.basis, ensemble.points
    if features.shape[1] >= 96 and ensemble.antithetic_half is not None:
        points = ensemble.antithetic_half
    columns = np.ascontiguousarray(basis @ points.T, dtype=dtype)
    rough, rough_points = basis.astype(dtype), points.astype(dtype)
    sizes = [chunk.size for chunk in problem.rows.chunks(long=True)]
    slices = [slice(end - size, end) for size, end in zip(sizes, np.cumsum(sizes).tolist(), strict=True)]
    room = np.zeros((max(sizes), len(points)), dtype) if keep else None

    def work() -> None:
        for rows in slices:
            x = features[rows]
            np.matmul(x, columns, out=None if room is None else room[: len(x)])
            x.T @ x
        H = basis.T @ basis  # of the prior
        basis.T @ (H @ basis)  # curvature in the basis
        rough_points @ rough.T  # particles
        (basis * 2.0) @ H  # the root of the step
        basis @ H  # the new basis
        H @ H  # the step in the coordinates of its end point

    return work


def rows_scaling(repetitions: int) -> list[dict[str, Any]]:
    """N from 1e4 to 1e6, D 64, J 200: the exponent of the time in N."""
    sizes = [10_000, 30_000, 100_000, 300_000, 1_000_000]
    features = white(sizes[-1], 64)
    labels = logistic(features, 0)
    found: dict[str, Any] = {}
    problems = {N: eb.Problem.create(features[:N], labels[:N], PRIOR) for N in sizes}
    times = side_by_side(
        {
            str(N): lambda threads, p=p: seconds(lambda: fit(p, eb.Equilibrium(tol=1e-3), 200), threads)
            for N, p in problems.items()
        },
        max(3, repetitions // 2),
    )
    steps = {N: fit(p, eb.Equilibrium(tol=1e-3), 200).info.steps for N, p in problems.items()}
    each = [times[str(N)]["seconds"] for N in sizes]
    found = {N: {"seconds": t, "steps": steps[N]} for N, t in zip(sizes, each, strict=True)}
    exponent = float(np.polyfit(np.log(sizes), np.log(each), 1)[0])
    large = float(np.log(each[-1] / each[-3]) / np.log(10))
    return [
        bar("exponent of the time in N, 1e4 to 1e6", exponent, 1.03, found),
        bar("exponent of the time in N, 1e5 to 1e6", large, 1.03, found),
    ]


def predict(repetitions: int) -> list[dict[str, Any]]:
    """Predict 1e6 rows, D 256, J 600, against one product of that size and one sigmoid pass."""
    features = white(3_000, 256)
    posterior = fit(eb.Problem.create(features, logistic(features, 0), PRIOR), eb.Equilibrium(tol=1e-3), 600)
    new = np.random.default_rng(1).standard_normal((1_000_000, 256), dtype=np.float32)
    columns = posterior.theta.T.astype(np.float32)

    def bare() -> None:
        for i in range(0, len(new), 4_096):
            z = new[i : i + 4_096] @ columns
            np.tanh(z, out=z)

    times = side_by_side(
        {
            "product and sigmoid": lambda threads: seconds(bare, threads),
            "predict_proba": lambda threads: seconds(lambda: posterior.predict_proba(new), threads),
            "mean_proba": lambda threads: seconds(lambda: posterior.mean_proba(new), threads),
        },
        2,
    )
    base = times["product and sigmoid"]["seconds"]
    return [bar(f"{name}, 1e6 rows / product and sigmoid", times[name]["seconds"] / base, PREDICT_BAR, times)
            for name in ("predict_proba", "mean_proba")]  # fmt: skip
