"""`show`, `predict --keep`, `--out -`, notes on gaps, and raw data frames for models of the command."""

import csv
import io
import json
import re
from importlib.util import find_spec

import numpy as np
import pytest
from typer.testing import CliRunner

import enkbayes as eb
from enkbayes.cli import app
from enkbayes.cli.tables import Preprocessing, Table, read
from enkbayes.storage.model_file import read as read_model

HEADER = ["id", "age", "town", "score", "sick"]


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="enkbayes")


def write(path, rows, header=HEADER):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of a table with every kind of gap, and its report if the libraries for reports are here."""
    folder, rng, rows = tmp_path_factory.mktemp("show"), np.random.default_rng(0), []
    for i in range(240):
        age, town = rng.normal(40, 10), rng.choice(["Bern", "Oslo", "Rome"])
        score = rng.choice(["None", "-"]) if i % 8 == 0 else f"{rng.normal():.3f}"
        sick = "yes" if age + 10 * (town == "Oslo") + rng.normal(0, 8) > 43 else "no"
        rows.append([f"patient {i}", "" if i % 31 == 0 else f"{age:.1f}", town, score, sick])
    write(folder / "train.csv", rows[:200])
    write(folder / "new.csv", [*rows[200:], ["patient x", "", "Paris", "?", ""]])
    words = ("fit", folder / "train.csv", "--target", "sick", "--out", folder / "m.safetensors")
    report = ("--report", folder / "r.html") if find_spec("matplotlib") and find_spec("jinja2") else ()
    result = call(*words, "--prior-precision", "1.0", *report)
    assert result.exit_code == 0, result.stderr
    (folder / "stderr").write_text(result.stderr)
    return folder


def test_words_for_missing_numbers_are_known_noted_and_reported(folder):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    sentence = "column 'score' has 25 missing numbers ('-', 'none' among them), replaced by the median"
    assert f"note: {sentence}" in (folder / "stderr").read_text()
    assert "column &#39;score&#39; has 25 missing numbers" in (folder / "r.html").read_text()
    assert eb.load(folder / "m.safetensors").n_features_in_ == 5


def test_numbers_that_become_categories_are_noted():
    values = np.array([*map(str, range(8)), "low", "high", "low"], dtype=object)
    prepared = Preprocessing.fit(Table({"level": values}))
    assert len(prepared.features) == 10
    assert "'level' has numbers in 73% of its entries and text such as 'high', 'low'" in prepared.notes[0]
    unknown = Table({"x": np.array(["1", "Unknown", "n.a.", "#DIV/0!", "2.5", "N/A"], dtype=object)})
    assert Preprocessing.fit(unknown).features == ("x",)


def test_words_that_may_be_classes_or_categories_stay_text():
    signs = Table({"sign": np.array(["+", "-", "none", "+", "-"], dtype=object)})
    assert Preprocessing.fit(signs).features == ("sign=+", "sign=-", "sign=none")


def test_show(folder):
    shown = call("show", folder / "m.safetensors")
    assert shown.exit_code == 0
    for words in (
        "no, yes",
        "town: Oslo - Bern",
        "intercept",
        "P(direction)",
        "2.5 %",
        "posterior        good: ",
        "predictions      good: ",
        "per standard deviation",
    ):
        assert words in shown.stdout
    facts = json.loads(call("show", folder / "m.safetensors", "--level", "0.8", "--json").stdout)
    rows = eb.load(folder / "m.safetensors").summary(level=0.8).rows
    assert [row["name"] for row in facts["coefficients"]] == [row.name for row in rows]
    assert facts["coefficients"][0]["low"] == rows[0].low
    trust = eb.load(folder / "m.safetensors").trust_
    assert facts["posterior"].startswith(trust.verdict)
    assert facts["predictions"] == trust.predictions.verdict_and_sentence
    assert call("show", folder / "m.safetensors", "--level", "2").exit_code == 2


def test_show_coefficients_in_the_units_of_the_columns(folder):
    model = folder / "m.safetensors"
    shown = call("show", model, "--original-units")
    assert "per unit of the column; the intercept is that of a row of zeros" in " ".join(shown.stdout.split())
    rows = json.loads(call("show", model, "--original-units", "--json").stdout)["coefficients"]
    own = {row["name"]: row for row in rows}
    row = eb.load(model).summary(original_units=True).rows[0]
    assert (own["age"]["mean"], own["age"]["low"]) == (row.mean, row.low)
    table = Table({name: np.array([value]) for name, value in {"age": 44.0, "town": "Rome", "score": 0.5}.items()})
    clf, prepared = eb.load(model), Preprocessing.from_json(read_model(model).preprocessing)
    logit = own["intercept"]["mean"] + 44 * own["age"]["mean"] + 0.5 * own["score"]["mean"]
    logit += own["town: Rome - Bern"]["mean"]
    assert logit == pytest.approx(float(prepared.transform(table)[0] @ clf.coef_[0] + clf.intercept_[0]))


def test_rows_far_away_are_detected_by_the_score(folder):
    """Confidence misses them where they are far on the side of one class."""
    _, *rows = csv.reader((folder / "train.csv").read_text(encoding="utf-8").splitlines())
    far = write(folder / "far.csv", [[row[0], str(40 + 30 * (1 + i)), *row[2:]] for i, row in enumerate(rows[:50])])
    words = ("evaluate", folder / "m.safetensors", folder / "train.csv", "--target", "sick", "--ood", far)
    facts = json.loads(call(*words, "--json").stdout)
    assert facts["ood"]["rows"] == facts["ood_score"]["rows"] == 50
    assert facts["ood"]["auroc"] < 0.5
    assert facts["ood_score"]["auroc"] > 0.95
    by = f"{facts['ood']['auroc']:.4f} by confidence, {facts['ood_score']['auroc']:.4f} by score"
    assert by in call(*words).stdout


def test_many_classes_without_a_posterior(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 2))
    names = np.asarray(list("abcdefghijklmn"))[np.digitize(x[:, 0], np.linspace(-1.5, 1.5, 13))]
    data = write(tmp_path / "t.csv", [[*row, name] for row, name in zip(x, names, strict=True)], ["u", "v", "y"])
    model = tmp_path / "m.safetensors"
    fitted = call("fit", data, "--target", "y", "--out", model, "--sampler", "mean-field")
    assert "the sampler was not used" in fitted.stderr
    assert "use --prior-precision with a number" in fitted.stderr
    assert "pass a number as prior_precision" not in fitted.stderr + fitted.stdout
    shown = " ".join(call("show", model).stdout.split())
    assert "no credible intervals" in shown
    assert "use --prior-precision with a number" in shown
    facts = json.loads(call("show", model, "--json").stdout)
    assert {row["sd"] for row in facts["coefficients"]} == {None}
    result = call("predict", model, data, "--out", tmp_path / "p.csv", "--review", tmp_path / "r.html")
    assert result.exit_code == 0, result.stderr
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert {sd for row in data["rows"] for _, _, _, sd in row["reasons"]} == {None}


def test_show_a_model_of_python(tmp_path):
    X = np.random.default_rng(0).standard_normal((60, 2))
    eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, X[:, 0] > 0).save(tmp_path / "m.safetensors")
    shown = call("show", tmp_path / "m.safetensors").stdout
    assert "x0" in shown
    assert "standard deviation" not in shown


def test_predict_keeps_columns_prints_and_notes(folder):
    model, new = folder / "m.safetensors", folder / "new.csv"
    result = call("predict", model, new, "--out", "-", "--keep", "id", "--keep", "age")
    assert result.exit_code == 0
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert list(rows[0])[:3] == ["id", "age", "class"]
    assert (len(rows), rows[-1]["id"], rows[-1]["age"]) == (41, "patient x", "")
    notes = result.stderr
    assert "column 'age' has 2 missing numbers, replaced by the median of the training data" in notes
    assert "column 'town' has 1 entry whose category is not in the training data" in notes
    call("predict", model, new, "--out", folder / "p.csv", "--keep", "id", "-q")
    assert read(folder / "p.csv").columns["p_yes"].tolist() == [row["p_yes"] for row in rows]
    for words, sentence in (
        (("--keep", "name"), "--keep column 'name' is not in the data"),
        (("--out", "-", "--json"), "both print to standard output"),
    ):
        refused = call("predict", model, new, "--out", folder / "q.csv", *words)
        assert (refused.exit_code, sentence in refused.stderr) == (2, True)
    write(folder / "class.csv", [["3", "30", "Oslo", "1", "a"]], ["id", "age", "town", "score", "class"])
    refused = call("predict", model, folder / "class.csv", "--out", folder / "q.csv", "--keep", "class")
    assert "--keep class is also the name of a prediction" in refused.stderr


def test_a_raw_data_frame_gives_the_probabilities_of_the_command(folder):
    pandas = pytest.importorskip("pandas")
    call("predict", folder / "m.safetensors", folder / "new.csv", "--out", folder / "p.csv", "-q")
    expected = read(folder / "p.csv").columns["p_yes"].astype(float)
    clf = eb.load(folder / "m.safetensors")
    frame = pandas.read_csv(folder / "new.csv")
    for data in (frame, frame.convert_dtypes(), frame.astype({"town": "category"}), frame[frame.columns[::-1]]):
        np.testing.assert_array_equal(clf.predict_proba(data)[:, 1], expected)
    assert set(clf.predict(frame)) == {"no", "yes"}
    clf.save(folder / "again.safetensors")
    again = eb.load(folder / "again.safetensors")
    np.testing.assert_array_equal(again.predict_proba(frame)[:, 1], expected)
    assert repr(again.trust_) == repr(clf.trust_)  # NaN of a file is not the NaN of numpy
    twice = pandas.concat([frame, frame[["age"]]], axis=1)
    with pytest.raises(ValueError, match="the data frame has several columns called 'age'"):
        clf.predict_proba(twice)
    with pytest.raises(ValueError, match="columns that the model needs are missing: 'score'"):
        clf.predict_proba(frame.drop(columns="score"))
    numbers = frame[["age"]].fillna(40.0)
    assert clf.fit(numbers, frame["town"] == "Oslo").predict_proba(numbers).shape == (41, 2)  # features of its own


def test_advice_is_in_the_words_of_the_command(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        [i, f"{x:.2f}", "t", f"{z:.2f}", "yes" if x > 0 else "no"] for i, (x, z) in enumerate(rng.normal(size=(80, 2)))
    ]
    words = ("fit", write(tmp_path / "t.csv", rows), "--target", "sick", "--out", tmp_path / "m.safetensors")
    result = call(*words, "--prior-precision", "1e-4", "--max-steps", "3")
    assert result.exit_code == 0, result.stderr
    assert "did not converge: residual" in result.stderr
    assert "; raise --max-steps, or use --sampler mean-field" in " ".join(result.stderr.split())
    for python in ("max_steps", "MeanField()", "tau=", "prior_precision="):
        assert python not in result.stdout + result.stderr
    assert "variance 10,000 for weights" in " ".join(result.stdout.split())


def test_rare_categories_have_a_prior_of_their_own_units(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    rng = np.random.default_rng(0)
    towns = rng.choice(["Bern", "Oslo", "Rome", "Lima"], 300, p=[0.5, 0.3, 0.19, 0.01])
    age = rng.normal(size=300)
    classes = np.where(age + rng.logistic(size=300) > 0, "yes", "no")
    write(tmp_path / "rare.csv", zip(towns, age, classes, strict=True), ["town", "age", "y"])
    model, report = tmp_path / "m.safetensors", tmp_path / "r.html"
    found = call("fit", tmp_path / "rare.csv", "--target", "y", "--out", model, "--report", report, "--json")
    facts = json.loads(found.stdout)
    assert len(facts["prior_precision"]) == facts["features"] == 5
    assert any(each["standardised"] for each in facts["prior_choice"]["components"])
    assert "averaged over its width" in report.read_text()
    shown = call("fit", tmp_path / "rare.csv", "--target", "y", "--out", model)
    assert "averaged over prior widths" in " ".join(shown.stdout.split())
