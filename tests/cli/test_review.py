"""`predict --review`: counts, the rows that come first, and what speaks for and against."""

import csv
import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import enkbayes as eb
from enkbayes.cli import app
from enkbayes.cli.model import TableModel
from enkbayes.cli.predict import predictions
from enkbayes.cli.review import Review
from enkbayes.cli.tables import Table

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
EVIL = "<script>alert(1)</script>"


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="enkbayes")


def data_of(page):
    """The rows that the page shows."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("review"), np.random.default_rng(0)
    rows = []
    for i in range(400):
        age, town = rng.normal(40, 10), rng.choice(["Bern", EVIL])
        sick = "yes" if age + 12 * (town == EVIL) + rng.normal(0, 6) > 45 else "no"
        rows.append([f"p{i} {EVIL}", f"{age:.1f}", f"{rng.normal():.2f}", town, sick])
    rows[350][1] = "400"  # far from all others
    for name, some in (("train", rows[:300]), ("new", rows[300:])):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["id", "age", "noise", "town", "sick"], *some])
    words = ("fit", folder / "train.csv", "--target", "sick", "--out", folder / "m.safetensors")
    assert call(*words, "--prior-precision", "1.0").exit_code == 0
    words = ("predict", folder / "m.safetensors", folder / "new.csv", "--out", folder / "p.csv", "--keep", "id")
    result = call(*words, "--max-error", "0.1", "--review", folder / "review.html", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["review"] == str(folder / "review.html")
    return folder


def test_counts_are_those_of_the_predictions(folder):
    page = (folder / "review.html").read_text(encoding="utf-8")
    with (folder / "p.csv").open() as file:
        found = list(csv.DictReader(file))
    accepted = sum(row["decision"] != "abstain" for row in found)
    assert f'<dd id="accepted">{accepted}</dd>' in page
    assert "1 %" in page  # other errors, too
    rows = data_of(page)["rows"]
    assert sorted(row["number"] for row in rows) == list(range(1, 101))
    for row in rows:
        own = found[row["number"] - 1]
        assert row["found"] == own["class"]
        assert row["decision"] == own["decision"]
        assert row["confidence"] == pytest.approx(float(own["confidence"]), abs=1e-4)
        assert row["probabilities"] == pytest.approx([float(own["p_no"]), float(own["p_yes"])], abs=1e-4)
        assert row["ood_score"] == pytest.approx(float(own["ood_score"]), abs=0.01)
        assert row["kept"] == [own["id"]]


def test_doubtful_rows_and_those_unlike_the_training_rows_come_first(folder):
    rows = data_of((folder / "review.html").read_text(encoding="utf-8"))["rows"]
    assert rows[0]["number"] == 51  # aged 400, at a confidence of 1
    assert rows[0]["ood_score"] > 3
    doubt = [0.5 if row["ood_score"] > 3 else 1 - row["confidence"] for row in rows]
    assert doubt == sorted(doubt, reverse=True)


def test_everything_from_the_data_is_escaped(folder):
    page = (folder / "review.html").read_text(encoding="utf-8")
    assert EVIL not in page
    assert "http" not in page.replace("http-equiv", "")
    assert len(re.findall("<script", page)) == 2
    assert any(EVIL in row["kept"][0] for row in data_of(page)["rows"])


def test_reasons_are_the_contributions_to_the_log_odds(folder):
    clf = eb.load(folder / "m.safetensors")
    column = next(
        each for each in TableModel.load(folder / "m.safetensors").preprocessing.columns if each.name == "age"
    )
    theta = clf.posterior_.theta
    towns = theta[:, 2:4]  # features are age, noise and the two towns
    for row in data_of((folder / "review.html").read_text(encoding="utf-8"))["rows"][:20]:
        sign = 1 if row["found"] == "yes" else -1
        reasons = {name: (value, mean, sd) for name, value, mean, sd in row["reasons"]}
        value, mean, sd = reasons["age"]
        x = (float(value) - column.mean) / column.scale
        assert mean == pytest.approx(sign * x * theta[:, 0].mean(), abs=2e-3)
        assert sd == pytest.approx(abs(x) * theta[:, 0].std(), abs=2e-3)
        value, mean, sd = reasons["town"]
        own = towns[:, 1 - int(value == EVIL)] - towns.mean(axis=1)  # "<" is sorted before "B"
        assert mean == pytest.approx(sign * own.mean(), abs=2e-3)
        assert sd == pytest.approx(own.std(), abs=2e-3)
        assert "id" not in reasons


def test_only_the_most_doubtful_rows_of_all_chunks_are_kept():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3))
    y = np.digitize(X[:, 0] + 0.3 * rng.standard_normal(300), [-0.5, 0.5])
    model = TableModel(eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y), None)
    whole, parts = (Review(model, None, None, [], most=20) for _ in range(2))
    for review, size in ((whole, 300), (parts, 70)):
        for start in range(0, 300, size):
            table = Table({f"x{i}": X[start : start + size, i] for i in range(3)}, start=start)
            features = model.features(table)
            review.add(table, features, predictions(model, features))
    one, other = (data_of(review.page("t", [], ""))["rows"] for review in (whole, parts))
    assert one == other
    sure = model.classifier.predict_proba(X).max(axis=1)
    assert [row["number"] - 1 for row in one] == np.argsort(sure, kind="stable")[:20].tolist()
    assert {row["rival"] for row in one} == {"0", "1", "2"}
    assert whole.unlike is None


@pytest.mark.parametrize(
    ("name", "match"), [("review.htm", "expected a name that ends in .html"), ("no/review.html", "no")]
)
def test_files_that_cannot_be_written_are_refused_before_the_work(folder, name, match):
    words = ("predict", folder / "m.safetensors", folder / "new.csv", "--out", folder / "q.csv")
    result = call(*words, "--review", folder / name)
    assert result.exit_code == 2
    assert match in result.stderr
    assert not (folder / "q.csv").exists()
