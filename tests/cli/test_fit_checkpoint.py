"""`enkbayes fit --checkpoint` in one process: interrupted and resumed."""

import os
import signal

import numpy as np
import pytest
from typer.testing import CliRunner

import enkbayes as eb
from enkbayes.cli import app
from enkbayes.storage import model_file as storage


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """A function that fits with more words, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((80, 2))
    np.savez("data.npz", a=x[:, 0], b=x[:, 1], y=(x[:, 0] + x[:, 1] ** 2 > 0.5).astype(int))

    def call(*words, out="model.safetensors"):
        start = [
            "fit",
            "data.npz",
            "--target",
            "y",
            "--out",
            out,
            "--sampler",
            "homotopy",
            "--prior-precision",
            "1",
            "--quiet",
        ]
        return CliRunner().invoke(app, [*start, *words], prog_name="enkbayes")

    return call


def cut_short(monkeypatch, end):
    """Make `end()` happen in the fourth step."""
    step = eb.Homotopy.step

    def interrupted(self, problem, state):
        if state.steps == 3:
            end()
        return step(self, problem, state)

    monkeypatch.setattr(eb.Homotopy, "step", interrupted)


def interrupt():
    raise KeyboardInterrupt


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("end", "code", "words", "step"),
    [(interrupt, 130, "interrupted", 3), (terminate, 143, "the process was asked to end", 4)],
)
def test_the_same_command_resumes(fit, tmp_path, monkeypatch, end, code, words, step):
    assert fit(out="whole.safetensors").exit_code == 0
    with monkeypatch.context() as patched:
        cut_short(patched, end)
        result = fit("--checkpoint", "run.safetensors")
    assert result.exit_code == code
    again = "the same command resumes from there, on any number of processes"
    assert result.stderr == f"error: {words}; the checkpoint run.safetensors holds step {step}: {again}\n"
    assert not (tmp_path / "model.safetensors").exists()
    assert fit("--checkpoint", "run.safetensors").exit_code == 0
    assert not (tmp_path / "run.safetensors").exists()
    one, other = (storage.read(name).posterior for name in ("whole.safetensors", "model.safetensors"))
    assert np.array_equal(one.theta, other.theta)


def test_a_run_that_ended_is_kept_until_the_model_is_written(fit, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(eb.EnsembleClassifier, "trust_", property(lambda _: interrupt()))
        result = fit("--checkpoint", "run.safetensors")
    assert result.exit_code == 130
    assert result.stderr == "error: interrupted; the same command resumes from run.safetensors\n"
    monkeypatch.setattr(eb.Homotopy, "step", lambda *_: pytest.fail("there was nothing left to do"))
    assert fit("--checkpoint", "run.safetensors").exit_code == 0
    assert not (tmp_path / "run.safetensors").exists()


@pytest.mark.parametrize(
    ("path", "words"),
    [("model.safetensors", "both model.safetensors; expected two files"), ("no/run", "the folder no does not exist")],
)
def test_a_wrong_place_is_refused(fit, path, words):
    result = fit("--checkpoint", path)
    assert result.exit_code == 2
    assert words in result.stderr


def test_another_seed_is_another_run(fit, monkeypatch):
    with monkeypatch.context() as patched:
        cut_short(patched, interrupt)
        fit("--checkpoint", "run.safetensors")
    result = fit("--checkpoint", "run.safetensors", "--seed", "1")
    assert result.exit_code == 2
    assert "belongs to another run, with seed 0; expected 1; remove the file to start again" in result.stderr
