"""`enkbayes fit` under torchrun: the model of one process, one voice, and a run that survives the loss of a process."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

import enkbayes as eb
from enkbayes.cli import app
from enkbayes.storage import model_file as storage
from enkbayes.storage.snapshot import Snapshot

WORKER = Path(__file__).with_name("torchrun_worker.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
CLOSE = 1e-8  # between the particles of one process and of several
SETTINGS = {
    "three": ["three.csv", "--particles", "60", "--prior-precision", "1"],
    "auto": ["two.npz", "--prior-precision", "auto", "--sweeps", "2"],
    "tiny": ["tiny.npz", "--particles", "30", "--prior-precision", "1"],
}
LOST = ["fit", *SETTINGS["three"], "--target", "y", "--out", "lost.safetensors", "--checkpoint", "run.safetensors"]


def write_data(folder):
    """Three classes with a text column and 203 rows, two classes, and two rows; 203 rows in three files."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((203, 4))
    y = np.digitize(x @ [1.0, -1.0, 0.5, 0.0] + 0.5 * rng.standard_normal(203), [-0.7, 0.7])
    with (folder / "three.csv").open("w", newline="", encoding="utf-8") as file:
        rows = (
            [*map(repr, row), rng.choice(["north", "south"]), "xyz"[k]] for row, k in zip(x.tolist(), y, strict=True)
        )
        csv.writer(file).writerows([[*"abcd", "town", "y"], *rows])
    np.savez(folder / "two.npz", a=x[:101, 0], b=x[:101, 1], y=(y[:101] > 0).astype(int))
    np.savez(folder / "tiny.npz", a=np.array([0.3, -1.2]), y=np.array([0, 1]))
    for number, rows in enumerate(np.split(np.arange(203), [20, 150])):
        np.save(folder / f"x-{number}.npy", x[rows])
        np.save(folder / f"y-{number}.npy", y[rows])
    return x, y


def launch(folder, count, *program):
    """Run a program in `count` processes under torchrun and return its exit code and words."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(eb.__file__).parents[1])}  # of this very package
    done = subprocess.run(
        [*TORCHRUN, str(count), *program], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout, done.stderr


def work(folder, count, *commands):
    """Run commands one after the other in the same processes."""
    codes = folder / "codes"
    codes.mkdir()
    (folder / "commands.json").write_text(json.dumps(commands))
    for file in folder.glob("[xy]-*.npy"):
        shutil.copy(file, codes)
    return launch(folder, count, str(WORKER), "commands.json", "codes")


def fit(name, out):
    return ["fit", *SETTINGS[name], "--target", "y", "--out", out, "--quiet"]


def alone(folder, words):
    """Run a command in this process."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(app, words, prog_name="enkbayes")
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchrun")
    write_data(folder)
    for name in SETTINGS:
        result = alone(folder, fit(name, f"{name}-1.safetensors"))
        assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="module")
def lost(folder):
    """The first of two processes is lost in the middle of a run."""
    here = folder / "lost"
    here.mkdir()
    write_data(here)
    return here, work(here, 2, {"words": LOST, "lose": 0, "after": 9})


@pytest.fixture(scope="module")
def triple(folder, lost):
    """Three processes: they continue the lost run, have fewer rows than processes, get bad input, and read files."""
    here = folder / "triple"
    here.mkdir()
    write_data(here)
    shutil.copy(lost[0] / "run.safetensors", here / "run-2.safetensors")  # only the last machine has it
    shutil.copy(lost[0] / "run.safetensors", here / "foreign.safetensors")
    commands = [
        [*LOST[:-1], "run-NUMBER.safetensors"],
        fit("tiny", "tiny-3.safetensors"),
        fit("auto", "auto-3.safetensors"),
        ["fit", "two.npz", "--target", "nothing", "--out", "bad.safetensors"],
        ["fit", "two.npz", "--target", "y", "--out", "bad.safetensors", "--checkpoint", "foreign.safetensors"],
        ["fit", "two.npz", "--target", "y", "--out", "bad.safetensors", "--nonsense"],
        ["stream"],
    ]
    return here, work(here, 3, *({"words": words} for words in commands))


def differences(one, other):
    """Return the largest difference between the particles of two models that are equal in everything else."""
    a, b = storage.read(one), storage.read(other)
    assert (a.fingerprint, a.estimator, a.preprocessing) == (b.fingerprint, b.estimator, b.preprocessing)
    assert a.posterior.info.steps == b.posterior.info.steps
    assert a.trust.verdict == b.trust.verdict
    assert abs(a.evidence.value - b.evidence.value) < 1e-6
    return np.max(np.abs(a.posterior.theta - b.posterior.theta))


def resumed(before, said):
    """Return whether the command says that it resumed from the step of the stored checkpoint."""
    return f"resumed from step {Snapshot.read(before / 'run.safetensors').steps}" in " ".join(said.split())


def codes(here, position, count):
    return [int((here / "codes" / f"code-{position}-{number}.txt").read_text()) for number in range(count)]


def test_the_command_itself(folder):
    words = ["-m", "enkbayes", "fit", *SETTINGS["three"], "--target", "y", "--out", "three-2.safetensors", "--json"]
    code, said, errors = launch(folder, 2, *words)
    assert code == 0, errors
    assert json.loads(said)["rows"] == 203  # one process speaks, in one JSON object
    assert differences(folder / "three-1.safetensors", folder / "three-2.safetensors") < CLOSE


def test_a_lost_process_leaves_one_sentence_and_a_checkpoint(lost):
    here, (code, said, errors) = lost
    assert code != 0
    assert said == ""
    sentences = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(sentences) == 1, errors
    assert "another process has ended or does not answer" in sentences[0]
    steps = Snapshot.read(here / "run.safetensors").steps
    assert f"the checkpoint run.safetensors holds step {steps}: the same command resumes from there" in sentences[0]
    assert (here / "codes" / "code-0-1.txt").read_text() == "4"
    assert not (here / "lost.safetensors").exists()


def test_one_process_goes_on(folder, lost):
    here = folder / "alone"
    shutil.copytree(lost[0], here)
    result = alone(here, LOST)
    assert result.exit_code == 0, result.output
    assert not (here / "run.safetensors").exists()
    assert resumed(lost[0], result.stdout)
    assert differences(folder / "three-1.safetensors", here / "lost.safetensors") < CLOSE


def test_three_processes_go_on(folder, lost, triple):
    here, (code, said, errors) = triple
    assert code == 0, errors
    assert said.count("enkbayes fit three.csv") == 1
    assert codes(here, 0, 3) == [0, 0, 0]
    assert not list(here.glob("run-*"))
    assert resumed(lost[0], said)
    assert differences(folder / "three-1.safetensors", here / "lost.safetensors") < CLOSE


@pytest.mark.parametrize("name", ["tiny", "auto"])
def test_three_processes_with_little_data(folder, triple, name):
    assert differences(folder / f"{name}-1.safetensors", triple[0] / f"{name}-3.safetensors") < CLOSE


def test_bad_input_is_reported_once_and_ends_all_processes(triple):
    here, (_, _, errors) = triple
    sentences = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert [codes(here, position, 3) for position in (3, 4, 5)] == [[2, 2, 2]] * 3
    assert len(sentences) == 3, errors
    assert "target 'nothing' is not in the data" in sentences[0]
    assert "the checkpoint foreign.safetensors belongs to another run, with parameters 21; expected 3" in sentences[1]
    assert "--nonsense" in sentences[2]


def test_each_process_streams_its_own_file(folder, triple):
    x, y = write_data(folder)
    found = [np.load(triple[0] / "codes" / f"stream-{number}.npz") for number in range(3)]
    for name, rows in (("own", 203), ("some", 150)):
        for other in found[1:]:
            assert np.array_equal(found[0][name], other[name])
        whole = eb.run(eb.Problem.create(x[:rows], y[:rows]), particles=50).theta
        assert np.max(np.abs(found[0][name] - whole)) < CLOSE
