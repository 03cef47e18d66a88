"""The commands on real data: their files, their output and their error messages."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from typer.testing import CliRunner

import enkbayes as eb
from enkbayes.cli import app
from enkbayes.cli.app import EXAMPLES
from enkbayes.cli.fit import SamplerName
from enkbayes.cli.tables import read
from enkbayes.evaluation.metrics import score
from enkbayes.samplers import BY_NAME

ROOT = Path(__file__).parents[2]
LABELS = ("--target", "labels", "--prior-precision", "1")  # what most tests need, in a tenth of the average's time


def write_csv(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="enkbayes")


def ok(*words):
    result = call(*words)
    assert result.exit_code == 0, result.stderr
    return result


def refused(*words):
    """Run a command that must fail, and return its error message."""
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    assert "Traceback" not in result.output
    return lines[0]


@pytest.fixture(scope="module")
def cancer(tmp_path_factory):
    """Breast cancer as a typical table: an id, a text column, missing values, classes as words."""
    folder = tmp_path_factory.mktemp("cancer")
    bunch, rng = load_breast_cancer(), np.random.default_rng(0)
    header = ["id", *bunch.feature_names, "clinic", "diagnosis"]
    rows = []
    for i, (x, k) in enumerate(zip(bunch.data.tolist(), bunch.target, strict=True)):
        cells = [repr(v) if rng.random() > 0.03 else rng.choice(["", "NA", "?"]) for v in x]
        rows.append([f"patient {i}", *cells, rng.choice(["north", "south", ""]), bunch.target_names[k]])
    write_csv(folder / "train.csv", header, rows[:400])
    write_csv(folder / "test.csv", header, rows[400:])
    outside = [[f"patient {i}", *(rng.standard_normal(30) * 3).tolist(), "east", ""] for i in range(60)]
    write_csv(folder / "outside.csv", header, outside)
    ok("fit", folder / "train.csv", "--target", "diagnosis", "--out", folder / "model.safetensors", "--quiet")
    return folder


@pytest.fixture(scope="module")
def iris_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("iris")
    x, y = load_iris(return_X_y=True)
    np.savez(folder / "iris.npz", features=x, labels=y)
    ok("fit", folder / "iris.npz", *LABELS, "--out", folder / "iris.safetensors", "-q")
    return folder


@pytest.fixture
def iris(iris_files, tmp_path):
    """A table and its model, in a folder of the test's own."""
    shutil.copytree(iris_files, tmp_path, dirs_exist_ok=True)
    return tmp_path


# what the commands do


def test_fit_prints_a_summary(cancer, tmp_path):
    out = tmp_path / "m.safetensors"
    result = ok("fit", cancer / "train.csv", "--target", "diagnosis", "--out", out)
    for words in ("400", "2: benign, malignant", "33 from 31 columns", "steps", "residual", "converged", "seconds"):
        assert words in result.stdout
    assert any(verdict in result.stdout for verdict in ("good: ", "usable: ", "do not trust: "))
    assert "note: column 'id' has a different text in nearly every row" in result.stderr
    facts = json.loads(ok("fit", cancer / "train.csv", "--target", "diagnosis", "--out", out, "--json").stdout)
    assert facts["rows"] == 400
    assert facts["classes"] == ["benign", "malignant"]
    assert facts["converged"] is True
    assert facts["residual"] < 1e-5
    assert facts["left_out"] == ["id"]
    assert facts["file"] == str(out)


def test_predict_writes_the_predictions_of_the_classifier(cancer, tmp_path):
    ok("predict", cancer / "model.safetensors", cancer / "test.csv", "--out", tmp_path / "p.csv")
    columns = read(tmp_path / "p.csv").columns
    names = ["class", "p_benign", "p_malignant", "confidence", "total", "aleatoric", "epistemic", "ood_score"]
    assert list(columns) == names
    p, q, confidence, total, aleatoric, epistemic, ood_score = (columns[name].astype(float) for name in names[1:])
    np.testing.assert_allclose(p + q, 1)
    np.testing.assert_array_equal(confidence, np.maximum(p, q))
    np.testing.assert_array_equal(columns["class"] == "benign", p > q)
    np.testing.assert_allclose(total, aleatoric + epistemic, atol=1e-12)
    assert -3 < ood_score.mean() < 3
    truth = read(cancer / "test.csv").columns["diagnosis"]
    assert np.mean(columns["class"] == truth) > 0.94
    scores = json.loads(
        ok("evaluate", cancer / "model.safetensors", cancer / "test.csv", "--target", "diagnosis", "--json").stdout
    )
    again = score(q, (truth == "malignant").astype(int))
    assert scores["rows"] == len(truth) == again.rows
    for name in ("accuracy", "nll", "brier", "ece"):
        assert scores[name] == pytest.approx(getattr(again, name))


def test_predict_abstains_where_it_may_be_wrong(cancer, tmp_path):
    call = ("predict", cancer / "model.safetensors", cancer / "test.csv", "--out", tmp_path / "p.csv")
    shown = ok(*call, "--max-error", "0.05")
    columns = read(tmp_path / "p.csv").columns
    decided = columns["decision"] != "abstain"
    assert f"abstained  {(~decided).sum()} " in shown.stdout
    np.testing.assert_array_equal(columns["decision"][decided], columns["class"][decided])
    confidence = columns["confidence"].astype(float)
    assert decided.mean() > 0.8
    assert confidence[decided].min() > max(confidence[~decided], default=0.5)
    assert "no threshold keeps the error at most 0.0001" in refused(*call, "--max-error", "0.0001")
    assert "expected a number between 0 and 1" in refused(*call, "--max-error", "2")


def test_parquet_is_read_and_written(cancer, tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {name: pyarrow.array(values.tolist()) for name, values in read(cancer / "test.csv").columns.items()}
    parquet.write_table(pyarrow.table(columns), tmp_path / "test.parquet")
    model = cancer / "model.safetensors"
    ok("predict", model, cancer / "test.csv", "--out", tmp_path / "p.csv")
    ok("predict", model, tmp_path / "test.parquet", "--out", tmp_path / "p.parquet")
    one, two = read(tmp_path / "p.csv").columns, read(tmp_path / "p.parquet").columns
    np.testing.assert_array_equal(one["p_benign"].astype(float), two["p_benign"])
    assert one["class"].tolist() == two["class"].tolist()


def test_evaluate_with_out_of_distribution_data(cancer):
    words = ("evaluate", cancer / "model.safetensors", cancer / "test.csv", "--target", "diagnosis")
    result = ok(*words, "--ood", cancer / "outside.csv")
    for name in ("accuracy", "NLL", "Brier", "ECE", "OOD AUROC", "OOD AUPR", "OOD FPR95"):
        assert name in result.stdout
    ood = json.loads(ok(*words, "--ood", cancer / "outside.csv", "--json").stdout)["ood"]
    assert ood["rows"] == 60
    assert 0 <= ood["fpr95"] <= 1
    same = json.loads(ok(*words, "--ood", cancer / "test.csv", "--json").stdout)["ood"]
    assert same["auroc"] == 0.5


def test_three_classes_from_npz(iris):
    scores = ok("evaluate", iris / "iris.safetensors", iris / "iris.npz", "--target", "labels", "--json").stdout
    assert json.loads(scores)["accuracy"] > 0.95
    ok("predict", iris / "iris.safetensors", iris / "iris.npz", "--out", iris / "p.csv")
    assert list(read(iris / "p.csv").columns)[:4] == ["class", "p_0", "p_1", "p_2"]


def test_the_seed_determines_the_file(iris):
    def fitted(name, seed):
        path = iris / f"{name}.safetensors"
        ok("fit", iris / "iris.npz", *LABELS, "--out", path, "--seed", seed, "-q")
        return eb.load(path).posterior_.theta

    np.testing.assert_array_equal(fitted("a", 1), fitted("b", 1))
    assert not np.allclose(fitted("a", 1), fitted("c", 2))


@pytest.mark.parametrize("name", list(SamplerName))
def test_every_sampler_by_name(iris, name):
    words = ("fit", iris / "iris.npz", *LABELS, "--out", iris / "m.safetensors", "--sampler", name.value)
    facts = json.loads(ok(*words, "--json").stdout)
    kind = eb.Equilibrium if name is SamplerName.AUTO else BY_NAME[name.value]
    assert facts["sampler"].startswith(kind.__name__)


def test_sampler_names_are_the_estimators():
    assert [name.value for name in SamplerName] == ["auto", *BY_NAME]


def test_prior_precision_reaches_the_model(iris):
    out = iris / "m.safetensors"
    ok("fit", iris / "iris.npz", "--target", "labels", "--out", out, "--prior-precision", "7.5", "--particles", "50")
    model = eb.load(out)
    assert (model.prior_precision, model.particles) == (7.5, 50)


def test_a_run_that_does_not_converge_is_reported_and_no_error(cancer, tmp_path):
    words = ("fit", cancer / "train.csv", "--target", "diagnosis", "--out", tmp_path / "m.safetensors")
    result = ok(*words, "--max-steps", "2")
    assert re.search(r"converged +no", result.stdout)
    assert "did not converge" in result.stderr


def test_quiet_prints_nothing(iris):
    model, data = iris / "iris.safetensors", iris / "iris.npz"
    for words in (
        ("fit", data, *LABELS, "--out", iris / "m.safetensors"),
        ("predict", model, data, "--out", iris / "p.csv"),
        ("evaluate", model, data, "--target", "labels"),
    ):
        result = ok(*words, "--quiet")
        assert result.output == ""


def test_a_model_saved_from_python_uses_numbers_unchanged(tmp_path):
    x, y = load_iris(return_X_y=True)
    np.savez(tmp_path / "iris.npz", X=x, y=y)
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(x, y)
    clf.save(tmp_path / "m.safetensors")
    scores = ok("evaluate", tmp_path / "m.safetensors", tmp_path / "iris.npz", "--target", "y", "--json").stdout
    assert json.loads(scores)["nll"] == pytest.approx(score(clf.predict_proba(x), y).nll)
    sentence = refused("predict", tmp_path / "m.safetensors", tmp_path / "iris.npz", "--out", tmp_path / "p.csv")
    assert "have 5 columns; expected 4" in sentence
    write_csv(tmp_path / "gap.csv", "abcd", [["1", "2", "3", ""]])
    sentence = refused("predict", tmp_path / "m.safetensors", tmp_path / "gap.csv", "--out", tmp_path / "p.csv")
    assert "row 1 of column 'd' is missing" in sentence


def test_predict_needs_no_more_memory_for_more_rows(iris):
    header, rows = [f"x{i}" for i in range(4)], load_iris().data.tolist()
    ok("fit", iris / "iris.npz", *LABELS, "--out", iris / "s.safetensors", "--particles", "16", "-q")

    def peak(copies):
        write_csv(iris / f"{copies}.csv", header, rows * copies)
        tracemalloc.start()
        ok("predict", iris / "s.safetensors", iris / f"{copies}.csv", "--out", iris / "p.csv", "-q")
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        with (iris / "p.csv").open() as file:
            assert sum(1 for _ in file) == 150 * copies + 1
        return most

    peak(1)
    assert peak(120) < 1.15 * peak(40)


# how the commands refuse


def test_bad_training_data(cancer, tmp_path):
    def fit(name, content=None, target="y", **options):
        if content is not None:
            (tmp_path / name).write_text(content)
        out = tmp_path / options.pop("out", "m.safetensors")
        extra = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", value)]
        sentence = refused("fit", tmp_path / name, "--target", target, "--out", out, *extra)
        assert not out.exists()
        return sentence

    good = "a,b,y\n1,u,no\n2,v,yes\n3,u,no\n4,v,yes\n"
    assert "target 'z' is not in the data; the columns are 'a', 'b', 'y'" in fit("a.csv", good, target="z")
    assert "target 'yy' is not in the data; did you mean 'y'?" in fit("a.csv", good, target="yy")
    assert "is empty" in fit("a.csv", "")
    assert "no rows" in fit("a.csv", "a,b,y\n")
    assert "single class, 'no'" in fit("a.csv", "a,y\n1,no\n2,no\n")
    assert "row 2 of column 'a' is infinite" in fit("a.csv", "a,y\n1,no\ninf,yes\n3,no\n")
    assert "row 2 has no class" in fit("a.csv", "a,y\n1,no\n2,\n3,yes\n")
    assert "real numbers" in fit("a.csv", "a,y\n1,0.5\n2,0.75\n3,0.5\n")
    assert "there is only the target" in fit("a.csv", "y\nno\nyes\nno\n")
    assert "does not exist" in fit("missing.csv")
    assert "ends in '.txt'" in fit("a.txt", good)
    assert "prior-precision is 'much'" in fit("a.csv", good, prior_precision="much")
    assert "-1" in fit("a.csv", good, prior_precision="-1")
    assert "particles is 1" in fit("a.csv", good, particles="1")
    assert "'--sampler'" in fit("a.csv", good, sampler="gibbs")
    assert "'--seed'" in fit("a.csv", good, seed="-3")
    assert "ends in .safetensors" in fit("a.csv", good, out="m.bin")
    assert "folder" in fit("a.csv", good, out="no/m.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.txt"]


def test_bad_usage():
    assert "Missing option '--target'" in refused("fit", "a.csv", "--out", "m.safetensors")
    assert "see enkbayes fit --help" in refused("fit")
    # older versions of typer suggest nothing
    suggested, plain = "Did you mean 'fit'? See enkbayes --help", "No such command 'fitt'; see enkbayes --help"
    assert any(sentence in refused("fitt") for sentence in (suggested, plain))
    assert "No such command" in refused("forecast")


def test_bad_models_and_data_for_predict(cancer, tmp_path):
    model, test, out = cancer / "model.safetensors", cancer / "test.csv", tmp_path / "p.csv"

    def predict(model, data, out=out):
        before = out.read_bytes() if out.exists() else None
        sentence = refused("predict", model, data, "--out", out)
        assert (out.read_bytes() if out.exists() else None) == before
        return sentence

    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(model.read_bytes()[:-100])
    assert "damaged" in predict(damaged, test)
    damaged.write_bytes(b"")
    assert "damaged" in predict(damaged, test)
    assert "does not exist" in predict(tmp_path / "none.safetensors", test)
    assert "does not exist" in predict(model, tmp_path / "none.csv")
    assert "ends in '.xlsx'" in predict(model, test, tmp_path / "p.xlsx")
    other = tmp_path / "other.csv"
    other.write_text("age,town\n3,Bern\n")
    assert "columns that the model needs are missing: 'mean radius'" in predict(model, other)
    header, *rows = csv.reader(test.read_text().splitlines())
    rows[90][3] = "a lot"
    write_csv(other, header, rows)
    assert "row 91 of column 'mean perimeter' is 'a lot'; expected a number" in predict(model, other)
    assert "the file that contains the data" in predict(model, other, other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.safetensors", "other.csv"]


def test_a_late_error_leaves_no_half_written_file(iris):
    rows = load_iris().data.tolist() * 40
    rows[-1] = [1.0, 2.0, "inf", 4.0]
    write_csv(iris / "late.csv", [f"x{i}" for i in range(4)], rows)
    (iris / "p.csv").write_text("old")
    before = sorted(iris.iterdir())
    sentence = refused("predict", iris / "iris.safetensors", iris / "late.csv", "--out", iris / "p.csv")
    assert "row 6000 of column 'x2' is infinite" in sentence
    assert (iris / "p.csv").read_text() == "old"
    assert sorted(iris.iterdir()) == before


def test_bad_data_for_evaluate(cancer, tmp_path):
    model, test = cancer / "model.safetensors", cancer / "test.csv"
    assert "target 'z'" in refused("evaluate", model, test, "--target", "z")
    assert "row 1 has the class 'north'" in refused(
        "evaluate", model, _one_clinic(test, tmp_path), "--target", "clinic"
    )
    assert "does not exist" in refused("evaluate", model, test, "--target", "diagnosis", "--ood", tmp_path / "none.csv")
    eb.save(eb.load(model).posterior_, tmp_path / "posterior.safetensors")
    assert "holds no classifier" in refused("evaluate", tmp_path / "posterior.safetensors", test, "--target", "clinic")


def _one_clinic(test, folder):
    header, *rows = csv.reader(test.read_text().splitlines())
    write_csv(folder / "north.csv", header, [[*row[:-2], "north", row[-1]] for row in rows])
    return folder / "north.csv"


# the program as users call it


def program(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "enkbayes", *words], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_subprocess_success_and_failure(iris):
    words = ("fit", "iris.npz", "--target", "labels", "--out", "m.safetensors", "--json")
    done = program(*words, cwd=iris)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rows"] == 150
    failed = program("fit", "none.csv", "--target", "labels", "--out", "n.safetensors", cwd=iris)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == "error: none.csv does not exist; expected a .csv, .parquet or .npz file\n"


def test_output_that_cannot_be_written_does_not_hide_the_model(iris):
    words = [
        sys.executable,
        "-m",
        "enkbayes",
        "fit",
        "iris.npz",
        *LABELS,
        "--sampler",
        "homotopy",
        "--out",
    ]

    def fit(name, redirection):
        line = f"exec {' '.join(words)} {name} {redirection}"
        done = subprocess.run(["bash", "-c", line], cwd=iris, capture_output=True, text=True, check=False)
        assert eb.load(iris / name).classes_.tolist() == ["0", "1", "2"]
        return done.returncode, done.stderr

    for name, redirection, reason in (
        ("full.safetensors", ">/dev/full", "No space left on device"),
        ("pipe.safetensors", "> >(true)", "Broken pipe"),
    ):
        code, stderr = fit(name, redirection)
        assert (code, stderr) == (2, f"error: standard output: {reason}; the model is in {name}\n")


def test_help_into_a_closed_or_full_stream_has_no_traceback():
    for words, redirection in (("--help", ">/dev/full"), ("--version", ">&-")):
        line = f"exec {sys.executable} -m enkbayes {words} {redirection}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        assert "Exception" not in done.stderr


def test_a_report_that_fails_does_not_hide_the_model(iris, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")

    def fails(*_, **__):
        raise ValueError("no figure")

    monkeypatch.setattr("enkbayes.evaluation.report.trust_page", fails)
    model = iris / "m.safetensors"
    sentence = refused("fit", iris / "iris.npz", *LABELS, "--out", model, "--report", iris / "r.html", "--quiet")
    assert sentence == f"error: no figure; the model is in {model}"
    assert model.exists()


@pytest.mark.parametrize(
    ("option", "name"), [("--out", "m.safetensors"), ("--report", "r.html"), ("--checkpoint", "run.safetensors")]
)
def test_places_that_cannot_be_written_are_found_before_the_fit(iris, monkeypatch, option, name):
    monkeypatch.setattr(eb.EnsembleClassifier, "fit", lambda *_, **__: pytest.fail("the fit began"))
    words = {"--out": str(iris / "ok.safetensors"), option: "/proc/self/" + name}
    sentence = refused(
        "fit", iris / "iris.npz", "--target", "labels", *(word for pair in words.items() for word in pair), "--quiet"
    )
    assert f"/proc/self/{name}: No such file or directory" in sentence
    assert not (iris / "ok.safetensors").exists()


@pytest.mark.parametrize(("number", "code", "words"), [(15, 143, "asked to end"), (2, 130, "interrupted")])
def test_signals_during_predict_leave_no_temporary_file(iris, number, code, words):
    rows = load_iris().data.tolist() * 600
    write_csv(iris / "long.csv", [f"x{i}" for i in range(4)], rows)
    before = sorted(iris.iterdir())
    heard = "import signal as s; s.signal(s.SIGINT, s.default_int_handler)"  # jobs in the background ignore it
    program = f"{heard}; from enkbayes.__main__ import main; main()"
    line = [sys.executable, "-c", program, "predict", "iris.safetensors", "long.csv", "--out", "p.csv"]
    with subprocess.Popen(line, cwd=iris, stderr=subprocess.PIPE, text=True) as process:
        while len(list(iris.iterdir())) == len(before):  # until the draft is there
            assert process.poll() is None
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    assert words in stderr
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert sorted(iris.iterdir()) == before


def test_an_interrupt_while_the_program_is_loaded_has_no_traceback():
    line = [sys.executable, "-X", "importtime", "-m", "enkbayes", "--version"]
    for module in ("numpy.linalg", "typer"):
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            for reported in process.stderr:
                if reported.rstrip().endswith(module):
                    break
            process.send_signal(2)
            _, rest = process.communicate(timeout=60)
        assert process.returncode in (130, -2, 0)  # -2: the interpreter was closing, and no longer handles signals
        assert "Traceback" not in rest


def test_an_interrupt_before_the_command_begins_is_said(monkeypatch):
    monkeypatch.setattr("typer.core.TyperCommand.make_context", mock.Mock(side_effect=KeyboardInterrupt))
    result = call("show", "model.safetensors")
    assert (result.exit_code, result.stderr) == (130, "error: interrupted\n")


def test_help_has_an_example_for_each_command():
    for command, example in EXAMPLES.items():
        words = " ".join(ok(command.__name__, "--help").stdout.split())
        assert f"Example: {example}" in words
    assert "evaluate" in ok().stdout
    assert ok("--version").stdout.strip() == eb.__version__


def test_the_command_of_the_readme_runs(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Command line", 1)[1]
    script = section.split("```sh\n", 1)[1].split("```", 1)[0]
    setup = 'set -e\npython() { "$PYTHON" "$@"; }\nenkbayes() { "$PYTHON" -m enkbayes "$@"; }\n'
    done = subprocess.run(
        ["bash", "-c", setup + script],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    assert (tmp_path / "predictions.csv").exists()
