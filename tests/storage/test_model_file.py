"""Model files: what comes back, and what is refused."""

import json
import os
import warnings
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from scipy.special import softmax
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

import enkbayes as eb
from enkbayes.samplers import BY_NAME
from enkbayes.storage import model_file as storage
from enkbayes.storage.container import checksum
from enkbayes.storage.fingerprint import fingerprint


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture
def saved(iris, path):
    """A classifier, saved."""
    clf = eb.EnsembleClassifier(prior_precision=1.0, particles=40, random_state=0).fit(*iris)
    clf.save(path, preprocessing={"columns": ["a", "b"], "scale": [1.5, 2.0]})
    return clf


def rewrite(path, edit, *, tensors=None, seal=True):
    """Change the header of a file; with a new seal, so that only the header's own checks can object."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    header = json.loads(metadata["enkbayes"])
    edit(header)
    arrays = load_file(path) | (tensors or {})
    text = json.dumps(header)
    sha256 = checksum(text, arrays) if seal else metadata["sha256"]
    save_file(arrays, path, metadata={"enkbayes": text, "sha256": sha256})


@pytest.mark.parametrize(
    "labels",
    [
        np.asarray(["x", "yy", "zzz"]),
        np.asarray(["x", "yy", "zzz"], dtype=object),
        np.asarray([3, 5, 7], dtype=np.int32),
        np.asarray([1.0, 2.0, 4.0]),
    ],
)
def test_a_classifier_comes_back_whole(iris, path, labels):
    X, y = iris
    clf = eb.EnsembleClassifier(
        eb.Equilibrium(tol=1e-5), particles=40, prior_precision=np.arange(1.0, 5.0), prior_mean=0.1, random_state=0
    ).fit(X, labels[y])
    clf.save(path)
    again = eb.load(path)
    assert again.classes_.dtype == labels.dtype
    np.testing.assert_array_equal(again.classes_, clf.classes_)
    np.testing.assert_array_equal(again.predict(X), clf.predict(X))
    np.testing.assert_array_equal(again.sample_proba(X), clf.sample_proba(X))
    assert repr(again.posterior_.info) == repr(clf.posterior_.info)  # Python 3.13 finds NaN unequal to itself
    assert again.fingerprint_ == clf.fingerprint_
    assert (again.sampler, again.n_iter_, again.n_features_in_) == (clf.sampler, clf.n_iter_, 4)
    np.testing.assert_array_equal(again.prior_precision, clf.prior_precision)
    again.partial_fit(X[:50], labels[y[:50]])  # and continues to learn
    assert again.score(X, labels[y]) > 0.9


@pytest.mark.parametrize("name", BY_NAME)
def test_every_sampler_is_stored_with_its_settings(iris, path, name):
    X, y = iris
    sampler = BY_NAME[name]()
    settings = {"particles": 20, "prior_precision": 1.0, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # some take longer than the rows deserve
        clf = eb.EnsembleClassifier(sampler, **settings).fit(X[20:80, :2], y[20:80])
    clf.save(path)
    assert eb.load(path).sampler == sampler


def test_boolean_labels_names_and_float32(path):
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    X = ((X - X.mean()) / X.std()).astype(np.float32)
    clf = eb.EnsembleClassifier(random_state=np.random.RandomState(0), prior_precision=np.eye(30)).fit(X, y == 1)
    eb.save(clf, path)
    again = eb.load(path)
    assert again.posterior_.theta.dtype == np.float32
    assert list(again.feature_names_in_) == list(X.columns)
    np.testing.assert_array_equal(again.predict(X), clf.predict(X))
    assert again.predict(X).dtype == bool


def test_a_posterior_comes_back_a_posterior(iris, path):
    X, y = iris
    posterior = eb.run(eb.Problem.create(X, y), eb.Homotopy(steps=5), particles=30)
    eb.save(posterior, path)
    again = eb.load(path)
    assert isinstance(again, eb.Posterior)
    np.testing.assert_array_equal(again.theta, posterior.theta)
    np.testing.assert_array_equal(again.predict_proba(X), posterior.predict_proba(X))
    assert np.isnan(again.info.residual)  # JSON has no NaN, a homotopy no residual
    real = eb.run(eb.Problem.create(X, X[:, 0], likelihood=eb.Normal(0.5)), particles=30)
    eb.save(real, path)
    assert eb.load(path).likelihood == eb.Normal(0.5)


def test_a_posterior_of_tensors_comes_back_as_numpy_and_still_predicts_tensors(iris, path):
    torch = pytest.importorskip("torch")
    X, y = torch.asarray(iris[0], dtype=torch.float32), iris[1]
    posterior = eb.run(eb.Problem.create(X, y), particles=30)
    eb.save(posterior, path)
    again = eb.load(path)
    assert isinstance(again.theta, np.ndarray)
    assert again.theta.dtype == np.float32
    assert torch.equal(again.predict_proba(X), posterior.predict_proba(X))


def test_a_nonlinear_posterior(path):
    x = np.linspace(-2, 2, 30)
    problem = eb.Problem.nonlinear(lambda theta: np.outer(x, theta[:, 0]), x > 0, eb.Gaussian.isotropic(1))
    posterior = eb.run(problem, eb.Homotopy(), particles=30)
    eb.save(posterior, path)
    assert eb.load(path).map is None
    np.testing.assert_array_equal(eb.load(path).theta, posterior.theta)


def test_plain_safetensors_and_numpy_suffice(saved, path, iris):
    X, _ = iris
    arrays = load_file(path)
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["enkbayes"])
    theta = arrays["mean"] + arrays["points"] @ arrays["basis"].T
    linear = header["posterior"]["map"]["fields"]
    D, K = linear["features"], linear["outputs"]
    weights = theta.reshape(-1, D + 1, K)
    probabilities = softmax(np.einsum("nd,jdk->jnk", np.column_stack([X, np.ones(len(X))]), weights), axis=-1)
    np.testing.assert_allclose(probabilities, saved.sample_proba(X), atol=1e-12)
    assert header["posterior"]["classes"]["values"] == [0, 1, 2]
    assert (header["format"], header["library"], header["kind"]) == (3, eb.__version__, "classifier")
    assert header["posterior"]["info"]["fields"]["sampler"].startswith("Equilibrium(")
    assert header["fingerprint"] == saved.fingerprint_


def test_preprocessing_is_kept(saved, path):
    artefact = storage.read(path)
    assert artefact.preprocessing == {"columns": ["a", "b"], "scale": [1.5, 2.0]}
    for wrong in ({"x": object()}, {"x": float("nan")}):
        with pytest.raises(ValueError, match="cannot be written as JSON"):
            saved.save(path, preprocessing=wrong)
    assert storage.read(path).fingerprint == artefact.fingerprint  # the file of before is untouched


def test_optional_fields_may_be_missing(saved, path, iris):
    def older(header):
        del header["preprocessing"], header["fingerprint"], header["posterior"]["info"]["fields"]["nonlinearity"]
        del header["estimator"]["feature_names"], header["estimator"]["parameters"]["progress"]

    rewrite(path, older)
    again = eb.load(path)
    assert (again.fingerprint_, again.progress) == (None, False)
    np.testing.assert_array_equal(again.predict_proba(iris[0]), saved.predict_proba(iris[0]))
    again.partial_fit(*iris)


def test_other_formats_are_refused(saved, path):
    rewrite(path, lambda header: header.update(format=4, library="9.0"))
    with pytest.raises(ValueError, match=r"format 4, written by enkbayes 9\.0; .* upgrade enkbayes"):
        eb.load(path)
    rewrite(path, lambda header: header.update(format=0))
    with pytest.raises(ValueError, match="unknown format 0"):
        eb.load(path)
    rewrite(path, lambda header: header.update(format=1))
    with pytest.raises(ValueError, match="is not a saved model of format 1"):
        eb.load(path)


def test_damaged_files_are_refused(saved, path):
    whole = path.read_bytes()
    for cut in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="damaged or not a safetensors file"):
            eb.load(path)
    for position in np.linspace(8, len(whole) - 1, 200, dtype=int):
        flipped = bytearray(whole)
        flipped[position] ^= 1
        path.write_bytes(bytes(flipped))
        with pytest.raises(ValueError, match=r"damaged|not one of enkbayes|dtype|format"):
            eb.load(path)


def test_foreign_files_are_refused(path):
    path.write_text("name,age\nada,36\n")
    with pytest.raises(ValueError, match="not a safetensors file"):
        eb.load(path)
    save_file({"mean": np.zeros(3)}, path)
    with pytest.raises(ValueError, match="not one of enkbayes"):
        eb.load(path)
    with pytest.raises(FileNotFoundError):
        eb.load(path.with_name("nowhere.safetensors"))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda h: h.pop("kind"), "the kind is None"),
        (lambda h: h.update(kind="pickle"), "kind is 'pickle'"),
        (lambda h: h.pop("posterior"), "field likelihood is missing"),
        (lambda h: h["posterior"].pop("info"), "field info of posterior is missing"),
        (lambda h: h["posterior"]["info"]["fields"].pop("residual"), "field residual of info is missing"),
        (lambda h: h["posterior"]["info"]["fields"].update(residual="small"), "residual is 'small'; expected float"),
        (lambda h: h["posterior"]["info"]["fields"].update(steps=True), "steps is True; expected int"),
        (lambda h: h["posterior"]["info"]["fields"].update(trace=[[1, 2]]), "trace"),
        (lambda h: h["posterior"]["info"].update(type="LinearLogits"), "info has other fields than a LinearLogits"),
        (lambda h: h["posterior"].update(info=h["posterior"]["map"]), "field info is"),
        (lambda h: h["posterior"].update(gaussian="yes"), "field gaussian is 'yes'; expected bool"),
        (lambda h: h["posterior"].update(colour="red"), "other fields than a Posterior"),
        (lambda h: h.update(preprocessing=[1]), "preprocessing is not a dict"),
        (lambda h: h["posterior"]["map"]["fields"].update(features=5), r"mean \(15,\).*expected \(18,\)"),
        (lambda h: h["posterior"]["map"]["fields"].update(features=True), "features is True; expected int"),
        (lambda h: h["posterior"]["map"]["fields"].update(outputs=None), "does not fit"),
        (lambda h: h["posterior"]["classes"].update(values=[0, 1]), "2 classes do not fit"),
        (lambda h: h["posterior"]["classes"].update(values=[0, 1, 1]), "not distinct"),
        (lambda h: h["posterior"]["classes"].update(values=["a", "b", "c"]), "do not fit their dtype"),
        (lambda h: h["posterior"]["classes"].update(dtype="<U99999"), "do not fit their dtype"),
        (lambda h: h["posterior"]["classes"].update(dtype="datetime64[s]"), "do not fit their dtype"),
        (lambda h: h["posterior"]["classes"].update(more=1), "field classes is"),
        (lambda h: h["posterior"]["likelihood"].update(type="os.system"), "is a os.system, which is unknown"),
        (lambda h: h["posterior"]["likelihood"].update(type="os:system"), "os:system is not part of enkbayes"),
        (lambda h: h["posterior"]["likelihood"].update(type="Trust"), "."),
        (lambda h: h["posterior"]["likelihood"].update(type=["Categorical"]), "field likelihood is missing"),
        (lambda h: h["posterior"]["likelihood"].update(fields={"x": 1}), "other fields than a Categorical"),
        (lambda h: h["posterior"]["likelihood"]["fields"].update(outputs="3"), "outputs is '3'; expected int"),
        (lambda h: h["posterior"]["ensemble"]["fields"].update(mean=[1.0]), "without arrays"),
        (lambda h: h["posterior"]["ensemble"]["fields"].update(mean={"tensor": ["mean"]}), "is missing"),
        (lambda h: h["posterior"].update(before={"number": "nan"}), "field before is"),
        (lambda h: h.update(trust={"number": "nan"}), "field trust is"),
        (
            lambda h: h["estimator"]["parameters"].update(sampler={"type": "eval", "fields": {}}),
            "eval, which is",
        ),
        (lambda h: h["estimator"]["parameters"].update(prior_mean={"tensor": "x"}), "prior_mean"),
        (lambda h: h["estimator"]["parameters"].update(colour="red"), "unknown parameters"),
        (lambda h: h["estimator"].update(feature_names=3), "feature_names"),
        (lambda h: h["estimator"].update(feature_names=["a"]), "feature_names"),
    ],
)
def test_every_field_is_checked(saved, path, edit, message):
    rewrite(path, edit)
    with pytest.raises(ValueError, match=message):
        eb.load(path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"mean": np.zeros((15, 1))}, r"expected \(P,\)"),
        ({"basis": np.zeros((14, 15))}, r"expected \(15,\)"),
        ({"points": np.zeros((40, 14))}, r"expected \(15,\)"),
        ({"points": np.zeros((0, 15))}, "J >= 1"),
        ({"mean": np.zeros(15, dtype=np.float32)}, "the same for all"),
        ({"mean": np.full(15, np.nan)}, "NaN"),
        ({"mean": np.zeros(15, dtype=np.int64)}, "dtype I64"),
        ({"more": np.zeros(2)}, "unexpected tensors"),
        ({"mean": np.full(15, -1e308)}, "the tensor mean has numbers above 1e"),
        ({"basis": np.full((15, 15), 1e200)}, "the tensor basis has numbers above 1e"),
    ],
)
def test_every_tensor_is_checked(saved, path, tensors, message):
    rewrite(path, lambda header: None, tensors=tensors)
    with pytest.raises(ValueError, match=message):
        eb.load(path)


@pytest.mark.parametrize("number", [str(10**400), "1e400", "-1e999", "9" * 5000])
def test_numbers_beyond_the_range_of_floats_are_refused(saved, path, number):
    """JSON has no bounds; json.loads makes them infinite, or whole numbers that no float can hold."""

    def place(field):
        rewrite(path, field)
        with safe_open(path, framework="numpy") as file:
            text = file.metadata()["enkbayes"].replace("123454321", number)
        arrays = load_file(path)
        save_file(arrays, path, metadata={"enkbayes": text, "sha256": checksum(text, arrays)})
        with pytest.raises(ValueError, match="header is not readable"):
            eb.load(path)
        saved.save(path, preprocessing={"scale": [1.5]})

    place(lambda h: h["posterior"]["info"]["fields"].update(blend=123454321))
    place(lambda h: h["posterior"]["classes"].update(values=[0, 1, 123454321]))
    place(lambda h: h["preprocessing"].update(scale=[123454321]))


def test_a_changed_header_breaks_the_seal(saved, path):
    rewrite(path, lambda header: header["posterior"]["classes"].update(values=[0, 1, 3]), seal=False)
    with pytest.raises(ValueError, match="checksum"):
        eb.load(path)


def test_nothing_half_written(saved, path, monkeypatch):
    before = path.read_bytes()

    def full_disk(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        saved.save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist"):
        saved.save(path.parent / "nowhere" / "model.safetensors")


def test_what_cannot_be_stored_says_so(iris, path):
    class Mine(eb.Equilibrium):
        pass

    clf = eb.EnsembleClassifier(Mine(), particles=30, random_state=0, prior_precision=1.0).fit(*iris)
    with pytest.raises(ValueError, match="save the posterior alone"):
        clf.save(path)
    eb.save(clf.posterior_, path)
    with pytest.raises(ValueError, match="cannot save a dict"):
        eb.save({}, path)


@pytest.mark.parametrize("names", [[0, 1, 2], [False, True, True], ["a", "b", "c"]])
def test_classes_in_an_array_of_objects_survive(iris, path, names):
    labels = np.asarray(names, dtype=object)[iris[1]]
    posterior = eb.run(eb.Problem.create(iris[0], labels), eb.MeanField(tol=1e-2), particles=20)
    eb.save(posterior, path)
    assert eb.load(path).classes.tolist() == sorted(set(names))


@pytest.mark.parametrize(
    "names",
    [
        np.asarray(["2020-01-01", "2021-01-01"], dtype="datetime64[D]"),
        np.asarray([b"a", b"b"]),
        np.asarray([10**30, 10**31], dtype=object),
        np.asarray([(0, 1), (1, 2), None], dtype=object)[:2],
    ],
)
def test_classes_that_no_file_can_hold_are_refused_before_the_fit(names):
    with pytest.raises(ValueError, match=r"expected numbers (of at most 64 bits, )?or text"):
        eb.Problem.create(np.eye(2), names)


def test_fingerprints_tell_data_apart(iris):
    X, y = iris
    names = np.asarray(["a", "b", "c"])[y]
    same = fingerprint(X, names)
    assert same == fingerprint(np.asfortranarray(X), names)
    assert same == fingerprint(X, list(names))
    changed = X.copy()
    changed[77, 2] += 1e-12
    others = [
        fingerprint(changed, names),
        fingerprint(X.astype(np.float32), names),
        fingerprint(X, names[::-1]),
        fingerprint(X, names, np.ones(len(X))),
        fingerprint(X, names, previous=same),
    ]
    assert len({same, *others}) == 6


def test_figures_that_are_infinite_are_stored(iris, path):
    clf = eb.EnsembleClassifier("homotopy", particles=60, random_state=0, prior_precision=1.0).fit(*iris)
    clf._trust = replace(clf.trust_, k_hat=np.inf, shift=-np.inf, residual=np.nan)
    clf.posterior_ = replace(clf.posterior_, info=replace(clf.posterior_.info, residual=np.inf, drift=np.nan))
    clf.save(path)
    again = eb.load(path)
    assert (again.trust_.k_hat, again.trust_.shift, again.posterior_.info.residual) == (np.inf, -np.inf, np.inf)
    assert np.array_equal(again.predict_proba(iris[0]), clf.predict_proba(iris[0]))


def test_only_the_preprocessing_is_blamed_for_the_preprocessing(saved, path, monkeypatch):
    with pytest.raises(ValueError, match="the preprocessing cannot be written as JSON"):
        saved.save(path, preprocessing={"scale": np.inf})

    def broken(*_, **__):
        raise ValueError("the tensors are at fault")

    monkeypatch.setattr("enkbayes.storage.container.to_bytes", broken)
    with pytest.raises(ValueError, match="the tensors are at fault"):
        saved.save(path, preprocessing={"scale": 1.0})


def test_what_is_no_file_is_refused_at_once(saved, path, tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    for other, words in (
        (tmp_path, "is a folder"),
        (tmp_path / "pipe.safetensors", "is a pipe"),
        ("/dev/null", "pipe"),
    ):
        with pytest.raises(ValueError, match=words):
            eb.load(other)


@pytest.mark.parametrize("chosen", [{"prior_mean": 0.0}, {"prior_cov": 1.0, "prior_mean": 0.0}, {"else": 1}])
def test_what_an_estimator_has_chosen_is_checked(saved, path, chosen):
    rewrite(path, lambda header: header["estimator"].update(chosen=chosen))
    with pytest.raises(ValueError, match=r"has chosen|chosen prior_mean has shape"):
        eb.load(path)


def test_a_regressor_without_its_prior_is_refused(iris, path):
    eb.EnsembleRegressor(prior_precision=1.0, noise_variance=1.0).fit(iris[0], iris[1].astype(float)).save(path)
    rewrite(path, lambda header: header["estimator"].update(chosen={}))
    with pytest.raises(ValueError, match=r"the regressor has chosen .*; expected a finite prior_precision"):
        eb.load(path)
