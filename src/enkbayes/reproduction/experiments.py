"""Every experiment of the paper by name, and the loop that runs them: what is done is kept, what is missing is said."""

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
from enkbayes.reproduction.figures import figure1, figure2, figure3, figure4
from enkbayes.reproduction.findings import Findings
from enkbayes.reproduction.images import figure7
from enkbayes.reproduction.mean_field import meanfield
from enkbayes.reproduction.multiclass import figure6
from enkbayes.reproduction.report import report_page
from enkbayes.reproduction.results import Result, read, write
from enkbayes.reproduction.sizes import Run, Size, Tell
from enkbayes.reproduction.summary import summary
from enkbayes.reproduction.tables import table1, table2
from enkbayes.storage.files import replacing

LIBRARIES = ("enkbayes", "numpy", "scipy", "scikit-learn", "torch", "numpyro", "jax", "matplotlib")


@dataclass(frozen=True)
class Experiment:
    """A table or figure: its title, what it shows, how it is found, and about how many seconds it takes in each size on
    two cores, for the estimate of the time left.
    """

    title: str
    about: str
    find: Callable[[Run], Findings]
    seconds: Mapping[str, float]


def _took(smoke: float, paper: float) -> dict[str, float]:
    return {"smoke": smoke, "paper": paper}


EXPERIMENTS: dict[str, Experiment] = {
    "table1": Experiment(
        "Table 1: recovering known parameters, prior N(0, I)",
        "Logistic regression with 20 known parameters: how far the posterior mean is from them, against J.",
        table1,
        _took(7, 400),
    ),
    "table2": Experiment(
        "Table 2: the same with a random prior covariance",
        "The prior covariance is a random symmetric positive-definite matrix, new in each repetition.",
        table2,
        _took(7, 400),
    ),
    "figure1": Experiment("Figure 1: the data", "Two classes in the plane.", figure1, _took(1, 1)),
    "figure2": Experiment(
        "Figure 2: confidence near the data",
        "Six methods on the last layer of one network: accuracy, confidence, distance to long NUTS runs.",
        figure2,
        _took(50, 700),
    ),
    "figure3": Experiment(
        "Figure 3: confidence far from the data", "The same maps, zoomed out.", figure3, _took(2, 10)
    ),
    "figure4": Experiment(
        "Figure 4: confidence against distance",
        "Confidence as a function of the distance to the nearest training point.",
        figure4,
        _took(2, 10),
    ),
    "figure5": Experiment(
        "Figure 5: the number of particles",
        "Both algorithms with J = 30 to 300, and their distance to the mean-field limit.",
        figure5,
        _took(10, 300),
    ),
    "figure6": Experiment("Figure 6: several classes", "Four classes in the plane.", figure6, _took(35, 900)),
    "figure7": Experiment(
        "Figure 7: images",
        "Dogs against cats: confidence on test images and on images of classes the network has never seen.",
        figure7,
        _took(25, 5000),
    ),
    "meanfield": Experiment(
        "The theorem, and what follows from it",
        "The mean-field rate, the equilibrium equations, affine invariance, and time to an accuracy.",
        meanfield,
        _took(15, 200),
    ),
    "beyond": Experiment(
        "Beyond the paper",
        "Exact-flow samplers, the conditions of low far-field confidence, and a posterior over all layers.",
        beyond,
        _took(15, 600),
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What a call has done: results by name, those that were kept from before, and why others are missing."""

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
    tell: Tell = lambda _share, _doing: None,
) -> Outcome:
    """Run experiments into the folder `out` and write its report.html, which shows all results that are there.

    An experiment whose result of the same size is there is not run again, unless `again`. One that cannot be run says
    why; the others go on.
    """
    out.mkdir(parents=True, exist_ok=True)
    run = Run(size, out / "kept", data_dir=data_dir)
    results: dict[str, Result] = {}
    kept: list[str] = []
    missing: dict[str, str] = {}
    seconds = {name: EXPERIMENTS[name].seconds[size.name] for name in names}
    for i, name in enumerate(names):
        before = read(out, name)
        if before is not None and before.key == run.key and not again:
            results[name] = before
            kept.append(name)
            continue
        begin, end = (sum(list(seconds.values())[:k]) / sum(seconds.values()) for k in (i, i + 1))
        part = replace(run, tell=_named(tell, name)).part(begin, end)
        part.tell(0.0, "begins")
        try:
            results[name] = _run(name, part, out)
        except (ValueError, ImportError) as error:
            missing[name] = " ".join(str(error).split())
    return Outcome(results, write_report(out, size, command, missing), tuple(kept), missing)


def write_report(out: Path, size: Size, command: str = "", missing: Mapping[str, str] | None = None) -> Path:
    """Write report.html, and the same in short as README.md, of all results of this size in the folder; return the path
    of the first.
    """
    found = [result for name in EXPERIMENTS if (result := read(out, name)) is not None and result.size == size.name]
    pages = {
        "README.md": summary(found, command=command, missing=missing),
        "report.html": report_page(found, out, command=command, missing=missing),
    }
    for name, page in pages.items():
        with replacing(out / name) as draft:
            draft.write_text(page, encoding="utf-8")
    return out / "report.html"


def _named(tell: Tell, name: str) -> Tell:
    return lambda share, doing: tell(share, f"{name}: {doing}")


def _run(name: str, run: Run, out: Path) -> Result:
    started = time.perf_counter()
    experiment = EXPERIMENTS[name]
    with threadpool_limits(None if name == "figure7" else 1):  # in small problems threads only wait for each other
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
