"""Every experiment of the paper by name, and the loop that runs them and reuses finished results."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from threadpoolctl import threadpool_limits

from enkbayes.reproduction.beyond import beyond
from enkbayes.reproduction.ensemble_sizes import figure5
from enkbayes.reproduction.figures import figure1, figure2, figure3, figure4, figure6
from enkbayes.reproduction.findings import Findings
from enkbayes.reproduction.images import figure7
from enkbayes.reproduction.mean_field import meanfield
from enkbayes.reproduction.report import report_page, summary
from enkbayes.reproduction.results import Result, read, write
from enkbayes.reproduction.sizes import Progress, Run, Size
from enkbayes.reproduction.tables import table1, table2
from enkbayes.storage.files import replacing

LIBRARIES = ("enkbayes", "numpy", "scipy", "scikit-learn", "torch", "numpyro", "jax", "matplotlib")


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    title, about : what it is and what it shows
    find : the function that runs it
    seconds : roughly how long it takes at each size on two cores, for the estimate of the remaining time
    threads : the threads that linear algebra may use, None for all; small problems are faster with one
    """

    title: str
    about: str
    find: Callable[[Run], Findings]
    seconds: Mapping[str, float]
    threads: int | None = 1


def _seconds(smoke: float, paper: float) -> dict[str, float]:
    return {"smoke": smoke, "paper": paper}


EXPERIMENTS: dict[str, Experiment] = {
    "table1": Experiment(
        "Table 1: recovering known parameters, prior N(0, I)",
        "Logistic regression with 20 known parameters: the error of the posterior mean for several ensemble sizes.",
        table1,
        _seconds(7, 400),
    ),
    "table2": Experiment(
        "Table 2: the same with a random prior covariance",
        "As table 1, but each repetition draws a random symmetric positive-definite prior covariance.",
        table2,
        _seconds(7, 400),
    ),
    "figure1": Experiment("Figure 1: the data", "Two classes in two dimensions.", figure1, _seconds(1, 1)),
    "figure2": Experiment(
        "Figure 2: confidence near the data",
        "Six methods for the same network: accuracy, confidence and distance to a long NUTS run.",
        figure2,
        _seconds(50, 700),
    ),
    "figure3": Experiment(
        "Figure 3: confidence far from the data", "The maps of figure 2, zoomed out.", figure3, _seconds(2, 10)
    ),
    "figure4": Experiment(
        "Figure 4: confidence against distance",
        "Confidence as a function of the distance to the nearest training point.",
        figure4,
        _seconds(2, 10),
    ),
    "figure5": Experiment(
        "Figure 5: the number of particles",
        "Both algorithms with J = 30 to 300 particles, and their distance to the mean-field limit.",
        figure5,
        _seconds(10, 300),
    ),
    "figure6": Experiment("Figure 6: several classes", "Four classes in two dimensions.", figure6, _seconds(35, 900)),
    "figure7": Experiment(
        "Figure 7: images",
        "Dogs and cats: confidence on test images, and on images of classes that the network has never seen.",
        figure7,
        _seconds(25, 5000),
        threads=None,
    ),
    "meanfield": Experiment(
        "The theorem and its consequences",
        "The mean-field rate, the equilibrium equations, affine invariance, and the time to a given accuracy.",
        meanfield,
        _seconds(15, 200),
    ),
    "beyond": Experiment(
        "Beyond the paper",
        "Exact-flow samplers, the conditions for low far-field confidence, and a posterior over all layers.",
        beyond,
        _seconds(15, 600),
    ),
}


@dataclass(frozen=True)
class Outcome:
    """The results by name, the names of those reused from an earlier call, and why others are missing."""

    results: dict[str, Result]
    report: Path
    kept: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)


def reproduce(
    names: Sequence[str],
    size: Size,
    out: Path,
    *,
    again: bool = False,
    data_dir: Path | None = None,
    command: str = "",
    progress: Progress = lambda _share, _doing: None,
    experiments: Mapping[str, Experiment] = EXPERIMENTS,
) -> Outcome:
    """Run experiments, store their results in the folder `out`, and write a report on all results there.

    An experiment with a stored result for the same settings is not run again, unless `again` is true. If an experiment
    cannot be run, its reason is recorded and the others still run.
    """
    out.mkdir(parents=True, exist_ok=True)
    run = Run(size, out / "cache", data_dir=data_dir)
    results: dict[str, Result] = {}
    kept: list[str] = []
    missing: dict[str, str] = {}
    seconds = {name: experiments[name].seconds[size.name] for name in names}
    for i, name in enumerate(names):
        before = read(out, name)
        if before is not None and before.key == run.key and not again:
            results[name] = before
            kept.append(name)
            continue
        begin, end = (sum(list(seconds.values())[:k]) / sum(seconds.values()) for k in (i, i + 1))
        part = replace(run, progress=_prefixed(progress, name)).part(begin, end)
        part.progress(0.0, "started")
        try:
            results[name] = _run(name, experiments[name], part, out)
        except (ValueError, ImportError) as error:
            missing[name] = " ".join(str(error).split())
    report = write_report(out, size, command, missing, experiments)
    return Outcome(results, report, tuple(kept), missing)


def write_report(
    out: Path,
    size: Size,
    command: str = "",
    missing: Mapping[str, str] | None = None,
    experiments: Mapping[str, Experiment] = EXPERIMENTS,
) -> Path:
    """Write report.html and a shorter README.md on all results of this size in the folder; return the path of the
    HTML page.
    """
    found = [result for name in experiments if (result := read(out, name)) is not None and result.size == size.name]
    pages = {
        "README.md": summary(found, command=command, missing=missing),
        "report.html": report_page(found, out, command=command, missing=missing),
    }
    for name, page in pages.items():
        with replacing(out / name) as draft:
            draft.write_text(page, encoding="utf-8")
    return out / "report.html"


def _prefixed(progress: Progress, name: str) -> Progress:
    return lambda share, doing: progress(share, f"{name}: {doing}")


def _run(name: str, experiment: Experiment, run: Run, out: Path) -> Result:
    started = time.perf_counter()
    with threadpool_limits(experiment.threads):
        findings = experiment.find(run)
    return write(
        out,
        findings,
        name=name,
        title=experiment.title,
        about=experiment.about,
        size=run.size.name,
        key=run.key,
        made=datetime.now(UTC).date().isoformat(),
        seconds=round(time.perf_counter() - started, 1),
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found | {"cores": str(os.cpu_count())}
