"""Files in format 1, which the first version wrote: models predict what they predicted then, checkpoints resume."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import enkbayes as eb
from enkbayes.cli import app
from golden.files_v1.cases import CHECKPOINTS, FEW, LABELS, NEW, X, linear, logits

FOLDER = Path(__file__).parent / "files_v1"
EXPECTED = np.load(FOLDER / "expected.npz")
MODELS = sorted(path.stem for path in FOLDER.glob("*.safetensors") if path.stem.startswith(("classifier", "posterior")))
PRECISION = {
    "float32": 1e-2,
    "structured": 1e-2,  # tol = 1e-3, and directions found by random probes
    "structured_second_search": 1e-2,
}
"""How far a resumed run may end from an uninterrupted one, in posterior standard deviations."""
CLOSED_FORM = ("softmax", "blended")
"""30 particles for 12 parameters, and 8 for 4, now end with Gaussian expectations instead of their own averages, so
what they reach is an uninterrupted run of this version.
"""
POINTS = 6e-4  # a softmax average has more points than in the first version
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_every_file_is_tested():
    checkpoints = {f"checkpoint_{name}" for name in (*CHECKPOINTS, "finished", "command_line")}
    assert {path.stem for path in FOLDER.glob("*.safetensors")} == {*MODELS, *checkpoints, "command_line"}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_predicts_as_before(name):
    model = eb.load(FOLDER / f"{name}.safetensors")
    new = logits if name == "posterior_nonlinear" else NEW
    proba = model.predict_proba(new)
    atol = 1e-12 if proba.shape[1] <= 2 else POINTS
    np.testing.assert_allclose(proba, EXPECTED[name], rtol=0, atol=atol)
    np.testing.assert_allclose(model.sample_proba(new)[:, :1], EXPECTED[f"{name}.samples"], rtol=0, atol=1e-12)


def test_a_classifier_has_what_was_stored_with_it():
    clf = eb.load(FOLDER / "classifier_trusted.safetensors")
    assert clf.trust_.verdict in ("good", "usable", "do not trust")
    assert (clf.trust_.particles, clf.trust_.parameters) == (FEW, 4)
    assert clf.evidence_.value < 0
    assert clf.n_iter_ == clf.posterior_.info.steps == clf.posterior_.info.trace[-1][0]
    assert eb.load(FOLDER / "classifier_multiclass.safetensors").classes_.tolist() == ["a", "bb", "ccc"]
    assert eb.load(FOLDER / "classifier_binary.safetensors").classes_.tolist() == [False, True]
    tuned = eb.load(FOLDER / "classifier_tuned.safetensors")
    assert tuned.prior_groups == ["length", "length", "width"]
    assert len(tuned.tuning_.variances) == 2
    arrays = eb.load(FOLDER / "classifier_arrays.safetensors")
    assert arrays.sampler == eb.Equilibrium(tol=1e-5)
    np.testing.assert_array_equal(arrays.prior_precision, np.diag([1.0, 2.0, 4.0]))
    polished = eb.load(FOLDER / "classifier_polished.safetensors")
    assert polished.posterior_.info.sweeps == 2
    assert np.isnan(eb.load(FOLDER / "posterior_homotopy.safetensors").info.residual)


def command(*words):
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="enkbayes")
    assert result.exit_code == 0, result.stderr


def predictions(model, out):
    command("predict", model, FOLDER / "table.csv", "--out", out, "--quiet")
    with out.open() as file:
        return np.asarray([[float(row[f"p_{name}"]) for name in "abc"] for row in csv.DictReader(file)])


def test_a_model_of_the_command_line_reads_its_table(tmp_path):
    proba = predictions(FOLDER / "command_line.safetensors", tmp_path / "p.csv")
    np.testing.assert_allclose(proba, EXPECTED["command_line"], rtol=0, atol=POINTS)


def test_a_checkpoint_of_the_command_line_goes_on(tmp_path):
    kept = shutil.copy(FOLDER / "checkpoint_command_line.safetensors", tmp_path / "run.safetensors")
    words = ("--target", "grade", "--particles", FEW, "--sampler", "homotopy", "--checkpoint", kept, "--quiet")
    words += ("--prior-precision", "1")
    command("fit", FOLDER / "table.csv", "--out", tmp_path / "m.safetensors", *words)
    proba = predictions(tmp_path / "m.safetensors", tmp_path / "p.csv")
    np.testing.assert_allclose(proba, EXPECTED["command_line"], rtol=0, atol=POINTS)


def check_moments(posterior, expected, precision):
    """The posterior is the one of an uninterrupted run, in units of its standard deviations."""
    mean, cov = expected
    sd = np.sqrt(np.diag(cov))
    assert np.max(np.abs(np.asarray(posterior.mean) - mean) / sd) < precision
    assert np.max(np.abs(np.asarray(posterior.cov) - cov) / sd / sd[:, None]) < precision


def moments(name):
    """Return what an uninterrupted run of the first version reached."""
    return EXPECTED[f"checkpoint_{name}.mean"], EXPECTED[f"checkpoint_{name}.cov"]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_goes_on_to_the_same_posterior(name, tmp_path):
    case, first = CHECKPOINTS[name], []
    path = shutil.copy(FOLDER / f"checkpoint_{name}.safetensors", tmp_path / "run.safetensors")
    settings = {"particles": case.particles, "seed": 1}
    callback = lambda state: first.append(state.steps)  # noqa: E731
    writer = eb.CheckpointWriter(path)
    posterior = eb.run(case.problem(), case.sampler, recorder=writer, callback=callback, **settings)
    assert first[0] >= case.stop
    assert posterior.info.converged == EXPECTED[f"checkpoint_{name}.converged"]
    expected = moments(name)
    if name in CLOSED_FORM:
        whole = eb.run(case.problem(), case.sampler, **settings)
        expected = np.asarray(whole.mean), np.asarray(whole.cov)
    check_moments(posterior, expected, PRECISION.get(name, 1e-4))


def test_a_finished_run_has_nothing_left_to_do(tmp_path):
    steps = []
    path = shutil.copy(FOLDER / "checkpoint_finished.safetensors", tmp_path / "run.safetensors")
    callback = lambda state: steps.append(state.steps)  # noqa: E731
    posterior = eb.run(linear(LABELS)(), particles=FEW, seed=1, recorder=eb.CheckpointWriter(path), callback=callback)
    assert len(steps) == 1
    assert posterior.info.converged
    check_moments(posterior, moments("finished"), 1e-12)
    assert posterior.predict_proba(X).shape == (len(X), 2)
