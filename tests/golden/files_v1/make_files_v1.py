"""Write the files of this folder: one model file and one checkpoint of each kind, in format 1.

    git worktree add ../v1 abe2509 && PYTHONPATH=../v1/src:tests python tests/golden/files_v1/make_files_v1.py

Format 1 is what enkbayes wrote before its modules moved into subpackages; commit abe2509 is the last to write it,
and only it can run this script again. `expected.npz` holds for each file what that version predicted (models) or found
at the end of an uninterrupted run (checkpoints). Data, problems and samplers are in `cases.py`.
"""

from __future__ import annotations

import csv
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

import enkbayes as eb
from enkbayes.cli import app
from golden.files_v1.cases import CHECKPOINTS, FEW, GRADES, LABELS, NEW, NONLINEAR, X, linear, logits

FOLDER = Path(__file__).parent


class Interrupted(Exception):
    """The end of a process."""


def classifiers() -> dict[str, eb.EnsembleClassifier]:
    """Return fitted classifiers, each with another kind of contents."""
    settings: dict[str, Any] = {"particles": FEW, "random_state": 0}
    made = {
        "binary": eb.EnsembleClassifier(**settings).fit(X, LABELS == 1),
        "multiclass": eb.EnsembleClassifier(**settings).fit(X, np.asarray(["a", "bb", "ccc"], dtype=object)[GRADES]),
        "text": eb.EnsembleClassifier(**settings, fit_intercept=False).fit(X, np.asarray(["no", "yes"])[LABELS]),
        "float32": eb.EnsembleClassifier(**settings).fit(X.astype(np.float32), LABELS),
        "calibrated": eb.EnsembleClassifier(**settings).fit(X[:40], LABELS[:40], calibration=(X[40:], LABELS[40:])),
        "polished": eb.EnsembleClassifier(**settings, sweeps=2).fit(X, LABELS),
        "low_rank": eb.EnsembleClassifier(eb.MeanField(rank=2, tol=1e-3), **settings).fit(X, GRADES),
        "low_rank_polished": eb.EnsembleClassifier(eb.MeanField(rank=2), **settings, sweeps=2).fit(X, LABELS),
        "tuned": eb.EnsembleClassifier(
            **settings, prior_precision="auto", prior_groups=["length", "length", "width"]
        ).fit(X, LABELS),
        "arrays": eb.EnsembleClassifier(
            eb.Equilibrium(tol=1e-5), **settings, prior_precision=np.diag([1.0, 2.0, 4.0]), prior_mean=np.full(4, 0.1)
        ).fit(X, LABELS),
    }
    made["trusted"] = eb.EnsembleClassifier(**settings).fit(X, LABELS)
    _ = made["trusted"].trust_, made["trusted"].evidence_  # found now, and stored
    return made


def posteriors() -> dict[str, eb.Posterior]:
    """Return a posterior of every sampler, and of other likelihoods and logits."""
    samplers = {
        "equilibrium": eb.Equilibrium(),
        "homotopy": eb.Homotopy(steps=5),
        "mean_field": eb.MeanField(),
        "trotter": eb.TrotterSampler(ds=0.1, max_steps=20),
        "tamed_homotopy": eb.TamedHomotopy(ds=0.1),
        "stochastic": eb.StochasticSampler(max_steps=20),
    }
    problem = eb.Problem.create(X, LABELS, 2.0, intercept=10.0)
    made = {name: eb.run(problem, sampler, particles=FEW) for name, sampler in samplers.items()}
    made["normal"] = eb.run(eb.Problem.create(X, X @ [1.0, 2.0, 3.0], likelihood=eb.Normal(0.5)), particles=FEW)
    made["nonlinear"] = eb.run(NONLINEAR, eb.Homotopy(steps=5), particles=FEW)
    return made


def save_models() -> dict[str, Any]:
    """Write the model files and return what they predict."""
    expected = {}
    for name, clf in classifiers().items():
        clf.save(FOLDER / f"classifier_{name}.safetensors")
        expected[f"classifier_{name}"] = clf.predict_proba(NEW)
        expected[f"classifier_{name}.samples"] = clf.sample_proba(NEW)[:, :1]
    for name, posterior in posteriors().items():
        eb.save(posterior, FOLDER / f"posterior_{name}.safetensors")
        asked = logits if posterior.map is None else NEW
        expected[f"posterior_{name}"] = posterior.predict_proba(asked)
        expected[f"posterior_{name}.samples"] = posterior.sample_proba(asked)[:, :1]
    return expected


def save_from_the_command_line() -> dict[str, Any]:
    """Write a table, a model with its preprocessing, and a checkpoint of `enkbayes fit`; return what they predict."""
    os.chdir(FOLDER)
    with Path("table.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["length", "width", "town", "grade"])
        towns = np.asarray(["Bern", "Oslo", "Rome", ""])[np.arange(len(X)) % 4]
        rows = zip(X[:, 0].round(3), X[:, 1].round(3), towns, np.asarray(list("abc"))[GRADES], strict=True)
        writer.writerows(rows)
    fit = ["fit", "table.csv", "--target", "grade", "--particles", str(FEW), "--quiet", "--sampler", "homotopy"]
    call(*fit, "--out", "command_line.safetensors")
    step = eb.Homotopy.step

    def interrupted(self: Any, problem: Any, state: Any) -> Any:
        if state.steps == 3:
            raise KeyboardInterrupt
        return step(self, problem, state)

    eb.Homotopy.step = interrupted  # type: ignore[method-assign]
    call(*fit, "--out", "no.safetensors", "--checkpoint", "checkpoint_command_line.safetensors", code=130)
    eb.Homotopy.step = step  # type: ignore[method-assign]
    call("predict", "command_line.safetensors", "table.csv", "--out", "predictions.csv", "--quiet")
    with Path("predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    Path("predictions.csv").unlink()
    return {"command_line": np.asarray([[float(row[f"p_{name}"]) for name in "abc"] for row in rows])}


def call(*words: str, code: int = 0) -> None:
    """Run a command."""
    result = CliRunner().invoke(app, list(words), prog_name="enkbayes")
    assert result.exit_code == code, (words, result.output, result.stderr, result.exception)


def save_checkpoints() -> dict[str, Any]:
    """Stop each run at its step, and return the moments at the end of an uninterrupted one."""
    from enkbayes.checkpoints import Checkpoint

    expected = {}
    for name, case in CHECKPOINTS.items():
        path = FOLDER / f"checkpoint_{name}.safetensors"
        path.unlink(missing_ok=True)

        def stop(state: Any, at: int = case.stop) -> None:
            if state.steps >= at:
                raise Interrupted

        settings: dict[str, Any] = {"particles": case.particles, "seed": 1}
        whole = eb.run(case.problem(), case.sampler, **settings)
        assert case.stop < whole.info.steps, (name, whole.info.steps)
        try:
            eb.run(case.problem(), case.sampler, callback=stop, checkpoint=path, **settings)
        except Interrupted:
            expected |= {f"checkpoint_{name}.{what}": getattr(whole, what) for what in ("mean", "cov")}
            expected[f"checkpoint_{name}.converged"] = whole.info.converged
    path, problem = FOLDER / "checkpoint_finished.safetensors", linear(LABELS)()
    whole = eb.run(problem, particles=FEW, seed=1, checkpoint=Checkpoint(path, keep=True))
    return expected | {"checkpoint_finished.mean": whole.mean, "checkpoint_finished.cov": whole.cov}


def main() -> None:
    """Write everything."""
    warnings.simplefilter("ignore")
    expected = save_models() | save_from_the_command_line() | save_checkpoints()
    np.savez_compressed(FOLDER / "expected.npz", **expected)


if __name__ == "__main__":
    main()
