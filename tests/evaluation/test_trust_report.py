"""The trust report as a page, and `fit --report`, `--strict` and `--sweeps` on the command line."""

import json
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.preprocessing import scale
from typer.testing import CliRunner

import enkbayes as eb
from enkbayes.cli import app
from enkbayes.evaluation.metrics import Scores
from enkbayes.evaluation.report import figures, trust_page
from enkbayes.evaluation.report.diagnostics import TONES, diagnostic_rows, next_steps
from enkbayes.evaluation.report.figures import leading, true_posterior
from enkbayes.evaluation.report.trust import parameter_names
from enkbayes.inference.trust import BAD, GOOD, UNCONVERGED, USABLE
from oracles.problems import relu_data

X, y = load_breast_cancer(return_X_y=True)
X, y = scale(X)[::3, :6], y[::3]

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


class Page(HTMLParser):
    """Text and images of a page."""

    def __init__(self, page):
        super().__init__()
        self.images, self.links, self.words = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "img":
            self.images.append(attrs)
        self.links += [attrs[name] for name in ("href", "src") if name in attrs]

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="enkbayes")


@pytest.fixture
def easy(tmp_path):
    np.savez(tmp_path / "easy.npz", features=X, labels=y)
    return tmp_path / "easy.npz"


@pytest.fixture
def hard(tmp_path):
    """The test problem T5 (docs/understand/trust.md) as a file."""
    features, labels = relu_data()
    np.savez(tmp_path / "hard.npz", features=features, labels=labels)
    return tmp_path / "hard.npz"


def test_the_page_contains_every_picture_and_result():
    bunch = load_breast_cancer()
    features = scale(bunch.data)
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(features, bunch.target)
    page = Page(trust_page(clf, features, bunch.target, title="Cancer <b>", feature_names=bunch.feature_names))
    assert all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    assert len(page.images) == 3 + 6
    assert all(len(image["alt"]) > 20 for image in page.images)
    assert len({image["alt"] for image in page.images}) == len(page.images)
    assert "Cancer <b>" in page.text  # escaped, so that it is text and not a tag
    for words in (
        clf.trust_.verdict.capitalize(),
        "5-fold cross-validation",
        f"{clf.trust_.shift:.2f} sd",
        f"{clf.trust_.k_hat:.2f}",
        "200 particles, 31 parameters",
        f"Equilibrium converged after {clf.n_iter_} steps",
        "What to do next",
    ):
        assert words in page.text, words
    assert "worst texture" in " ".join(image["alt"] for image in page.images)


def test_the_same_predictions_make_the_same_picture():
    proba = np.random.default_rng(0).dirichlet([1, 1, 1], size=50)
    assert figures.reliability(proba, np.arange(50) % 3) == figures.reliability(proba, np.arange(50) % 3)
    assert figures.confidences(proba, np.arange(50) % 3).alt.startswith("Histogram of confidence")


def test_reliability_is_measured_on_held_out_rows():
    rng = np.random.default_rng(0)
    noise, coins = rng.standard_normal((80, 40)), rng.integers(2, size=80)
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(noise, coins)
    page = Page(trust_page(clf, noise, coins, title="coins"))
    assert clf.score(noise, coins) > 0.9
    assert "By 5-fold cross-validation: the fit that predicts a row has not seen it" in page.text
    assert "Predictions are not clearly better than the base rates" in page.text


@pytest.mark.parametrize("prior", ["average", 1.0])
def test_the_report_has_the_verdicts_and_figures_of_the_classifier(prior):
    """A report that refitted the classifier by itself contradicted the command on borderline data."""
    clf = eb.EnsembleClassifier(prior_precision=prior, random_state=0).fit(X, y)
    page = Page(trust_page(clf, X, y, title="same"))
    predictions = clf.trust_.predictions
    assert predictions.reason[1:] in page.text
    assert f"NLL (nats) {predictions.nll:.3f}" in page.text


def test_a_class_with_a_single_row_has_a_report():
    rows = np.concatenate([np.flatnonzero(y == 1), np.flatnonzero(y == 0)[:1]])
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X[rows], y[rows])
    page = Page(trust_page(clf, X[rows], y[rows], title="rare"))
    assert "fold cross-validation" in page.text


def test_hard_problems_are_compared_with_the_true_posterior():
    features, labels = relu_data()
    clf = eb.EnsembleClassifier(prior_precision=0.5, random_state=0).fit(features, labels)
    page = Page(trust_page(clf, features, labels, title="T5"))
    assert "Do not trust" in page.text
    assert "1000 particles polished for 20 sweeps" in page.text
    assert "clf.polish(20)" in page.text
    polished = replace(clf.trust_, sweeps=20, drift=0.1)
    words, draws, weights = true_posterior(clf.problem_, clf.posterior_, polished, [3, 1])
    assert words == "the polished particles"
    assert np.array_equal(draws, clf.posterior_.theta[:, [3, 1]])
    np.testing.assert_allclose(weights, 1 / len(draws))


def test_an_average_that_held_out_rows_have_scaled_is_no_posterior():
    """Its spread may be zero, and more particles or sweeps would not help."""
    clf = eb.EnsembleClassifier(random_state=0).fit(X[:60], y[:60])
    parts = [
        replace(part, ensemble=replace(part.fitted, basis=0 * part.fitted.basis)) for part in clf.posterior_.components
    ]
    clf.posterior_ = replace(clf.posterior_.with_components(parts), held_out=True)
    text = Page(trust_page(clf, X[:60], y[:60], title="point estimates")).text
    assert "Is the posterior Gaussian?" not in text
    assert "nan" not in text
    assert "--particles" not in text
    assert "fix the prior: --prior-precision 1" in text


def test_a_homotopy_has_no_residual_and_its_spread_is_drawn():
    clf = eb.EnsembleClassifier("homotopy", random_state=0, prior_precision=1.0).fit(X, y)
    page = Page(trust_page(clf, X, y, title="Iris"))
    assert "has no equilibrium to converge to" in page.text
    assert "over the 20 steps" in " ".join(image["alt"] for image in page.images)


def test_names_of_parameters():
    features, labels = load_iris(return_X_y=True)
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(scale(features), labels)
    names = parameter_names(clf.posterior_, None)
    assert names[:3] == ["feature 0 → 0", "feature 0 → 1", "feature 0 → 2"]
    assert names[-1] == "intercept → 2"
    assert len(names) == clf.posterior_.mean.shape[0]
    assert len(leading(clf.posterior_)) == 6
    tanh = eb.Problem.nonlinear(lambda theta: np.tanh(theta).T, [0, 1], eb.Gaussian.isotropic(2))
    assert parameter_names(eb.run(tanh), None) == ["parameter 0", "parameter 1"]


def test_suggestions_follow_the_verdict():
    features, labels = relu_data()
    clf = eb.EnsembleClassifier(prior_precision=0.5, random_state=0).fit(features, labels)
    trust = clf.trust_
    assert trust.verdict == BAD

    def texts(trust, scores=None, confidence=0.0, precision=0.5):
        found = next_steps(trust, scores, confidence, precision)
        return " ".join(part for step in found for part in (step.text, *step.codes))

    assert "clf.polish(20)" in texts(trust)
    assert "--prior-precision 5" in texts(trust)
    assert "--prior-precision" not in texts(trust, precision=None)
    scores = Scores(rows=400, accuracy=0.8, nll=1.0, brier=0.5, ece=0.1)
    assert "10 percentage points above accuracy" in texts(trust, scores, 0.9)
    assert "points above accuracy" not in texts(trust, scores, 0.81)
    assert "--particles 10" in texts(replace(trust, spanned=3, parameters=5))
    assert "--sweeps 40" in texts(replace(trust, sweeps=20))
    assert "which converges reliably" in texts(replace(trust, reason=UNCONVERGED))


def test_diagnostics_are_rated_by_what_they_mean():
    features, labels = relu_data()
    trust = eb.EnsembleClassifier(prior_precision=0.5, random_state=0).fit(features, labels).trust_
    found = replace(trust, nonlinearity=0.25, sweeps=20, drift=0.05, k_hat=0.9, effective=0.99, residual=np.nan)
    rows = {row.name: row for row in diagnostic_rows(found)}
    assert (rows["Nonlinearity"].value, rows["Nonlinearity"].reading) == ("0.25", "")
    assert (rows["Polish"].value, rows["Polish"].reading) == ("20 sweeps", "good")
    assert "5 %" in rows["Polish"].meaning
    assert rows["k-hat"].reading == "good"  # nearly equal weights have no tail
    assert rows["Residual"].value == "none"
    heavy, late = replace(found, effective=0.1), replace(found, drift=0.9)
    assert next(row for row in diagnostic_rows(heavy) if row.name == "k-hat").reading == "fair"
    assert next(row for row in diagnostic_rows(late) if row.name == "Polish").reading == "poor"
    for verdict in (GOOD, USABLE, BAD):
        assert TONES[verdict] in ("good", "usable", "bad")


def test_fit_writes_the_report_and_prints_its_path(easy, tmp_path):
    target = ["--target", "labels", "--out", tmp_path / "m.safetensors"]
    result = call("fit", easy, *target, "--report", tmp_path / "trust.html", "--json")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["report"] == str(tmp_path / "trust.html")
    assert facts["trust"]["verdict"] == "good"
    assert facts["trust"]["sentence"].startswith(facts["trust"]["reason"])
    page = Page((tmp_path / "trust.html").read_text(encoding="utf-8"))
    assert "easy.npz: labels" in page.text
    assert "Good" in page.text
    assert eb.load(tmp_path / "m.safetensors").trust_.verdict == "good"


def test_a_prior_chosen_by_evidence_is_reported(easy, tmp_path):
    target = ["--target", "labels", "--out", tmp_path / "m.safetensors", "--prior-precision", "auto", "--json"]
    result = call("fit", easy, *target, "--report", tmp_path / "trust.html")
    assert result.exit_code == 0, result.stderr
    precision = json.loads(result.stdout)["prior_precision"]
    assert precision > 0
    assert f"prior precision {precision:.4g}" in Page((tmp_path / "trust.html").read_text(encoding="utf-8")).text


def test_strict_exits_with_code_3_and_keeps_the_model(hard, tmp_path):
    out = tmp_path / "m.safetensors"
    words = ["fit", hard, "--target", "labels", "--out", out, "--prior-precision", "0.02", "--quiet"]
    assert call(*words).exit_code == 0
    out.unlink()
    result = call(*words, "--strict")
    assert result.exit_code == 3
    assert result.stderr.startswith("do not trust: ")
    assert f"the model was still written to {out}" in result.stderr
    assert eb.load(out).trust_.verdict == BAD


def test_strict_accepts_a_good_model_and_sweeps_are_stored(easy, tmp_path):
    out = tmp_path / "m.safetensors"
    result = call("fit", easy, "--target", "labels", "--out", out, "--strict", "--sweeps", 4, "-q")
    assert result.exit_code == 0, result.stderr
    assert eb.load(out).sweeps == eb.load(out).posterior_.info.sweeps == 4


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_missing_libraries_for_a_report_are_named_before_the_fit(easy, tmp_path, monkeypatch, missing):
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    out = tmp_path / "m.safetensors"
    result = call("fit", easy, "--target", "labels", "--out", out, "--report", tmp_path / "trust.html")
    assert result.exit_code == 2
    assert "pip install 'enkbayes[plots]'" in result.stderr
    assert not out.exists()


@pytest.mark.parametrize(("name", "words"), [("trust.pdf", "ends in .html"), ("nowhere/trust.html", "nowhere")])
def test_wrong_paths_for_a_report_are_refused_before_the_fit(easy, tmp_path, name, words):
    out = tmp_path / "m.safetensors"
    result = call("fit", easy, "--target", "labels", "--out", out, "--report", tmp_path / name)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not out.exists()


def test_noise_has_no_good_banner_on_predictions(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "noise.npz", features=rng.standard_normal((200, 30)), labels=rng.integers(0, 2, 200))
    out, page = tmp_path / "m.safetensors", tmp_path / "r.html"
    result = call("fit", tmp_path / "noise.npz", "--target", "labels", "--out", out, "--report", page, "--strict")
    assert result.exit_code == 3
    assert "do not trust: predictions are not clearly better than the base rates" in result.stderr
    html = page.read_text(encoding="utf-8")
    assert 'class="verdict bad"' in html
    assert 'class="verdict good"' not in html
    assert html.partition("<title>")[2].startswith("do not trust: ")
    text = Page(html).text
    assert "Is the posterior computed well? Good" in text
    assert "Do predictions deserve their confidence? Do not trust" in text
    assert "as they are" not in text
    assert "Do not use the probabilities" in text
    assert "e+0" not in text
    assert eb.load(out).trust_.predictions.verdict == BAD


def test_advice_of_the_command_has_the_flags_of_the_command(hard, tmp_path):
    out = tmp_path / "m.safetensors"
    result = call("fit", hard, "--target", "labels", "--out", out, "--json")
    facts = json.loads(result.stdout)
    assert "--sweeps 20" in facts["trust"]["advice"]
    assert "polish(" not in result.stdout
    assert facts["predictions"].startswith(("good: ", "usable: ", "do not trust: "))
    assert "polish(20)" in eb.load(out).trust_.advice  # Python's own words in Python
    result = call("fit", hard, "--target", "labels", "--out", out, "--max-steps", 2, "--json")
    assert json.loads(result.stdout)["trust"]["advice"].startswith("raise --max-steps")
    result = call("fit", hard, "--target", "labels", "--out", out, "--sampler", "homotopy", "--max-steps", 2)
    assert result.exit_code == 2
    assert "has a fixed number of steps" in result.stderr
