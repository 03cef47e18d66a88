"""`enkbayes compare` on real data: its output, its files and its error messages."""

import csv
import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from typer.testing import CliRunner

from enkbayes.cli import app
from enkbayes.cli.compare import EXTRAS
from enkbayes.evaluation import baselines

COLUMNS = ("accuracy", "nll", "brier", "ece", "epistemic_share", "time_ratio", "distance")


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="enkbayes")


def ok(*words):
    result = call("compare", *words)
    assert result.exit_code == 0, result.stderr + str(result.exception)
    return result


def facts_of(*words):
    result = ok(*words, "--json")
    return json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def refused(*words):
    result = call("compare", *words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def write_csv(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def cancer(tmp_path_factory):
    """Breast cancer as a typical table: an id, a text column, missing values, classes as words."""
    bunch, rng = load_breast_cancer(), np.random.default_rng(0)
    rows = []
    for i, (x, k) in enumerate(zip(bunch.data[:, :8].tolist(), bunch.target, strict=True)):
        cells = [repr(v) if rng.random() > 0.03 else "NA" for v in x]
        rows.append([i + 1, *cells, rng.choice(["north", "south", ""]), bunch.target_names[k]])
    header = ["id", *bunch.feature_names[:8], "clinic", "diagnosis"]
    return write_csv(tmp_path_factory.mktemp("compare") / "cancer.csv", header, rows)


@pytest.fixture
def iris(tmp_path):
    x, y = load_iris(return_X_y=True)
    np.savez(tmp_path / "iris.npz", features=x, labels=y)
    return tmp_path / "iris.npz"


def test_the_table(cancer):
    result = ok(cancer, "--target", "diagnosis", "--methods", "map,laplace,equilibrium,mle")
    lines = result.stdout.splitlines()
    assert "398 training rows, 171 test rows" in lines[0]
    assert [line.split()[0] for line in lines[4:8]] == ["map", "laplace", "equilibrium", "mle"]
    assert len(lines[4].split()) == 7  # one number in each column, no intervals
    assert (
        "11 features, 2 classes. Prior of all methods (mle has none): variance 1 for weights, 100 for intercepts"
        in result.stdout
    )
    assert "±" not in result.stdout
    assert "distance" not in result.stdout
    assert "note: column 'id' numbers the rows; it is not used" in result.stderr


def test_repeats_give_intervals_and_a_reference_gives_distances(cancer):
    words = (
        "--target",
        "diagnosis",
        "--methods",
        "map,laplace,equilibrium",
        "--repeats",
        3,
        "--reference",
        "mean-field",
    )
    result = ok(cancer, *words)
    table = [line for line in result.stdout.splitlines() if line.split()[:1] in (["map"], ["laplace"], ["equilibrium"])]
    assert [line.count("±") for line in table] == [7, 7, 7]
    assert "distance to mean-field" in result.stdout
    assert "95 % t-interval over the splits" in result.stdout
    facts = facts_of(cancer, *words)
    assert facts["repeats"] == 3
    assert "Nadeau" in facts["interval"]
    assert facts["reference"] == "mean-field"
    assert facts["reference_error"]["mean"] == 0
    rows = {row["method"]: row for row in facts["methods"]}
    assert list(rows) == ["map", "laplace", "equilibrium"]
    for row in rows.values():
        assert all(row[name]["half_width"] >= 0 for name in COLUMNS)
        assert row["accuracy"]["mean"] > 0.85
    assert rows["map"]["epistemic_share"]["mean"] == 0
    assert rows["equilibrium"]["distance"]["mean"] < rows["laplace"]["distance"]["mean"] / 3


def test_the_same_seed_gives_the_same_results(iris):
    words = ("--target", "labels", "--methods", "equilibrium,laplace", "--prior-precision", 2)
    one, two, other = (facts_of(iris, *words, "--seed", seed) for seed in (1, 1, 2))
    for facts in (one, two, other):
        assert facts["prior_precision"] == 2
        assert facts["classes"] == ["0", "1", "2"]
        assert (facts["rows"], facts["train_rows"], facts["test_rows"]) == (150, 105, 45)
        assert facts["interval"] is None
        for row in facts["methods"]:
            del row["time_ratio"]
            assert row["distance"] == {"mean": None, "half_width": None}
    assert one["methods"] == two["methods"]
    assert one["methods"] != other["methods"]


def test_the_folder_contains_the_figure_and_the_table(iris, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "new" / "folder"
    words = ("--target", "labels", "--methods", "map,mean-field", "--test-size", 0.5)
    facts = facts_of(iris, *words, "--out", out)
    assert sorted(path.name for path in out.iterdir()) == ["comparison.json", "reliability.png", "reliability.svg"]
    assert facts["figures"] == [str(out / "reliability.png"), str(out / "reliability.svg")]
    assert (out / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (out / "reliability.svg").read_text()
    stored = json.loads((out / "comparison.json").read_text())
    assert stored["methods"] == facts["methods"]
    assert ok(iris, *words, "--quiet").output == ""


@dataclass(frozen=True)
class Broken:
    name: str = "broken"

    def fit(self, problem, *, seed=0, progress=False):
        raise ValueError("these data are too hard")


@dataclass(frozen=True)
class Absent:
    name: str = "absent"
    needs = ("numpyro",)


def test_a_method_that_fails_or_is_not_installed_does_not_stop_the_others(iris, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro", None)
    monkeypatch.setitem(baselines.BY_NAME, "broken", Broken)
    monkeypatch.setitem(baselines.BY_NAME, "absent", Absent)
    words = ("--target", "labels", "--methods", "broken,absent,map")
    result = ok(iris, *words)
    assert re.search(r"broken +failed", result.stdout)
    assert "broken failed: these data are too hard" in result.stdout
    assert "note: absent is skipped: it needs numpyro; install it with: pip install 'enkbayes[hmc]'" in result.stderr
    facts = facts_of(iris, *words)
    assert [entry["method"] for entry in facts["skipped"]] == ["absent"]
    assert [row["failure"] for row in facts["methods"]] == ["these data are too hard", ""]
    assert facts["methods"][0]["accuracy"]["mean"] is None
    assert "no method can run: absent: it needs numpyro" in refused(iris, "--target", "labels", "--methods", "absent")
    assert "the reference absent cannot run" in refused(iris, "--target", "labels", "--reference", "absent")


def test_every_library_that_a_method_needs_has_an_extra():
    for make in baselines.BY_NAME.values():
        assert set(getattr(make, "needs", ())) <= set(EXTRAS)


def test_wrong_arguments_are_refused(iris, tmp_path):
    assert "there is no method 'laplac'; did you mean laplace" in refused(
        iris, "--target", "labels", "--methods", "laplac"
    )
    assert "there is no method 'zzz'; expected one of " in refused(iris, "--target", "labels", "--methods", "map,zzz")
    assert "there is no method 'nuts'" in refused(iris, "--target", "labels", "--reference", "nuts")
    assert "target 'z' is not in the data" in refused(iris, "--target", "z")
    assert "does not exist" in refused(tmp_path / "none.csv", "--target", "y")
    assert "the test size is 1.5" in refused(iris, "--target", "labels", "--methods", "map", "--test-size", 1.5)
    assert "'--repeats'" in refused(iris, "--target", "labels", "--repeats", 0)
    assert "prior_precision is -1" in refused(iris, "--target", "labels", "--methods", "map", "--prior-precision", -1)
    few = write_csv(tmp_path / "few.csv", ["a", "y"], [[1, "u"], [2, "v"], [3, "u"], [4, "u"]])
    assert "class v has a single row" in refused(few, "--target", "y", "--methods", "map")
    bad = write_csv(tmp_path / "bad.csv", ["a", "y"], [[1, "u"], [2, "v"], ["inf", "u"], [4, "v"]])
    assert "row 3 of column 'a' is infinite" in refused(bad, "--target", "y", "--methods", "map")
    pytest.importorskip("matplotlib")  # without it, --out is refused before
    assert "is a file; expected a folder" in refused(iris, "--target", "labels", "--out", iris)


def test_the_test_rows_may_have_a_category_that_the_training_rows_lack(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        [rng.standard_normal() + k, "rare" if i == 7 else rng.choice(["u", "v"]), "ab"[k]]
        for i, k in enumerate(np.arange(60) % 2)
    ]
    data = write_csv(tmp_path / "a.csv", ["x", "kind", "y"], rows)
    facts = facts_of(data, "--target", "y", "--methods", "map,mean-field", "--repeats", 6)
    assert all(row["failures"] == 0 for row in facts["methods"])


def test_an_interrupted_comparison_leaves_nothing(cancer, tmp_path):
    pytest.importorskip("matplotlib")
    # a child of a background job may ignore interrupts
    script = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); from enkbayes.cli import main; main()"
    words = ["compare", cancer, "--target", "diagnosis", "--methods", "map,mean-field", "--repeats", "2000"]
    running = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, words), "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "is not used" in running.stderr.readline()  # printed after the data are read, before the methods start
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130
    assert stdout == ""
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


def test_digits_and_the_paper_s_moons_run_end_to_end(tmp_path, monkeypatch):
    """Ten classes, and the 50 features of the paper's small network, some of which are always zero."""
    x, y = load_digits(return_X_y=True)
    np.savez(tmp_path / "digits.npz", pixels=x[:300, 26:38], labels=y[:300])
    facts = facts_of(tmp_path / "digits.npz", "--target", "labels", "--methods", "map,laplace,equilibrium")
    assert facts["classes"] == [str(k) for k in range(10)]
    assert all(row["failures"] == 0 and row["accuracy"]["mean"] > 0.5 for row in facts["methods"])
    pytest.importorskip("torch")
    from enkbayes.reproduction.datasets import Plane, last_layer_features

    short = partial(baselines.DeepEnsemble, steps=60)
    monkeypatch.setitem(baselines.BY_NAME, "deep-ensemble", short)
    moons = Plane.moons(0)
    features = np.concatenate(last_layer_features(moons, steps=300))
    np.savez(tmp_path / "moons.npz", features=features, y=np.concatenate([moons.train_labels, moons.test_labels]))
    facts = facts_of(tmp_path / "moons.npz", "--target", "y", "--methods", "equilibrium,deep-ensemble")
    assert all(row["failures"] == 0 and row["accuracy"]["mean"] > 0.8 for row in facts["methods"])
