"""What must not change predictions, or must change them in a known way, for the classifier as people use it.

Each law states its tolerance. Runs end at a residual of 1e-9 here, so what is left is round-off, except where the law
says more. Predicted probabilities are compared at rows that were not fitted.
"""

import numpy as np
import pytest
import scipy.sparse
from threadpoolctl import threadpool_limits

import enkbayes as eb

ROUND_OFF = 1e-7
EXACT = eb.Equilibrium(tol=1e-9)
NEW = np.random.default_rng(99).standard_normal((40, 6))


def data(classes, N=90, D=6, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((N, D))
    labels = np.argmax(features @ rng.standard_normal((D, classes)) + rng.gumbel(size=(N, classes)), axis=1)
    labels[:classes] = range(classes)
    return features, labels


def fitted(X, y, weights=None, **settings):
    options = {"sampler": EXACT, "prior_precision": 1.0, "random_state": 0} | settings
    return eb.EnsembleClassifier(**options).fit(X, y, sample_weight=weights)


def proba(X, y, weights=None, new=NEW, **settings):
    return fitted(X, y, weights, **settings).predict_proba(new)


def apart(a, b):
    return float(np.abs(a - b).max())


both = pytest.mark.parametrize("classes", [2, 3])


@both
def test_the_order_of_rows_does_not_matter(classes):
    X, y = data(classes)
    order = np.random.default_rng(1).permutation(len(y))
    assert apart(proba(X, y), proba(X[order], y[order])) < ROUND_OFF


@both
def test_a_row_twice_is_a_row_of_weight_two(classes):
    X, y = data(classes)
    counts = np.random.default_rng(1).integers(1, 4, len(y))
    rows = np.repeat(np.arange(len(y)), counts)
    assert apart(proba(X, y, weights=counts), proba(X[rows], y[rows])) < ROUND_OFF


@both
def test_a_row_of_weight_zero_is_not_there(classes):
    X, y = data(classes)
    weights = (np.arange(len(y)) % 5 > 0).astype(float)
    weights[:classes] = 1.0
    some = weights > 0
    assert apart(proba(X, y, weights=weights), proba(X[some], y[some])) < ROUND_OFF


@both
def test_units_of_features_do_not_matter_if_the_prior_has_them_too(classes):
    X, y = data(classes)
    units = 10.0 ** np.arange(-3, 3)
    scaled = proba(X * units, y, new=NEW * units, prior_precision=units**2)
    assert apart(proba(X, y), scaled) < ROUND_OFF


@both
def test_the_order_of_features_does_not_matter(classes):
    """Particles are drawn in the order of the features, and the points of a softmax quadrature turn with the basis."""
    X, y = data(classes)
    order = np.random.default_rng(1).permutation(X.shape[1])
    for sampler, limit in ((eb.MeanField(tol=1e-9), 1e-3 if classes > 2 else ROUND_OFF), (EXACT, 3e-3)):
        one, other = proba(X, y, sampler=sampler), proba(X[:, order], y, new=NEW[:, order], sampler=sampler)
        assert apart(one, other) < limit


@both
def test_names_and_order_of_classes_do_not_matter(classes):
    X, y = data(classes)
    names = np.asarray(["zebra", "ant", "horse"])[:classes]
    clf = fitted(X, names[y])
    back = [clf.classes_.tolist().index(name) for name in names]
    limit = 2e-3 if classes > 2 else ROUND_OFF  # quadrature points, and the particles of each class, change places
    assert apart(proba(X, y), clf.predict_proba(NEW)[:, back]) < limit


@both
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_do_not_matter(classes, chunk):
    X, y = data(classes)
    problem = eb.Problem.create(X, y, 1.0, intercept=100.0)
    parts = eb.Problem.create(X, y, 1.0, intercept=100.0, chunk=chunk)
    one, other = (eb.run(each, EXACT, seed=0).predict_proba(NEW) for each in (problem, parts))
    assert apart(one, other) < ROUND_OFF


@both
def test_threads_do_not_matter(classes):
    X, y = data(classes, N=3000)
    with threadpool_limits(1):
        one = proba(X, y)
    with threadpool_limits(2):
        two = proba(X, y)
    assert apart(one, two) < ROUND_OFF


@both
def test_dense_and_sparse_features_are_the_same_data(classes):
    X, y = data(classes)
    X = np.where(np.abs(X) > 0.5, X, 0.0)
    assert apart(proba(X, y), proba(scipy.sparse.csr_matrix(X), y)) < ROUND_OFF


@both
def test_a_stream_is_the_same_data(classes):
    X, y = data(classes)

    batches = [(X[start : start + 17], y[start : start + 17]) for start in range(0, len(y), 17)]
    whole = eb.run(eb.Problem.create(X, y, 1.0, intercept=100.0), EXACT, seed=0)
    streamed = eb.Problem.stream(batches, 1.0, intercept=100.0, classes=range(classes))
    assert apart(whole.predict_proba(NEW), eb.run(streamed, EXACT, seed=0).predict_proba(NEW)) < ROUND_OFF


@both
def test_a_lone_shard_is_the_same_data(classes):
    X, y = data(classes)
    clf = eb.EnsembleClassifier(EXACT, prior_precision=1.0, random_state=0)
    assert apart(proba(X, y), clf.fit_shard(X, y).predict_proba(NEW)) < ROUND_OFF


@both
def test_a_file_predicts_the_same_bits(classes, tmp_path):
    clf = fitted(*data(classes))
    trust = clf.trust_
    clf.save(tmp_path / "model.safetensors")
    loaded = eb.load(tmp_path / "model.safetensors")
    assert np.array_equal(loaded.predict_proba(NEW), clf.predict_proba(NEW))
    assert np.array_equal(loaded.sample_proba(NEW), clf.sample_proba(NEW))
    assert repr(loaded.trust_) == repr(trust)  # some figures may be NaN


@both
def test_batches_in_any_order_are_nearly_one_fit(classes):
    """The Gaussian between two batches is an approximation: within .02 on average, .06 at most, in any order."""
    X, y = data(classes, N=240)
    whole = proba(X, y)
    for seed in range(3):
        clf = eb.EnsembleClassifier(EXACT, prior_precision=1.0, random_state=0)
        for part in np.array_split(np.random.default_rng(seed).permutation(240), 4):
            clf.partial_fit(X[part], y[part], classes=range(classes))
        off = np.abs(clf.predict_proba(NEW) - whole)
        assert off.mean() < 0.02
        assert off.max() < 0.06


@both
@pytest.mark.parametrize("J", [5, 21, 60, 200, 1000])
def test_the_number_of_particles_hardly_matters(classes, J):
    """Below 3 P, and with MeanField, J decides nothing. Beyond, averages over J particles decide where the run ends:
    probabilities are then within .3 / sqrt(J) of the limit of many particles.
    """
    X, y = data(classes)
    P = 7 * (1 if classes == 2 else classes)
    limit = proba(X, y, sampler=eb.MeanField(tol=1e-9), particles=200)
    assert apart(limit, proba(X, y, sampler=eb.MeanField(tol=1e-9), particles=J)) < 1e-5
    off = apart(limit, proba(X, y, particles=J))
    assert off < (1e-5 if J < 3 * P else 0.3 / np.sqrt(J))


@pytest.fixture(scope="module", params=[2, 3])
def default(request):
    """Rows, labels, and what the default prior, an average over its width, predicts."""
    X, y = data(request.param)
    return X, y, by_default(X, y)


def by_default(X, y, weights=None, new=NEW, **settings):
    return eb.EnsembleClassifier(random_state=0, **settings).fit(X, y, sample_weight=weights).predict_proba(new)


def test_the_default_prior_does_not_see_the_order_of_rows(default):
    X, y, expected = default
    order = np.random.default_rng(1).permutation(len(y))
    assert apart(expected, by_default(X[order], y[order])) < ROUND_OFF


def test_the_default_prior_counts_rows(default):
    X, y, _ = default
    weights = np.random.default_rng(1).integers(0, 4, len(y))
    weights[:3] = 1
    rows = np.repeat(np.arange(len(y)), weights)
    assert apart(by_default(X, y, weights=weights), by_default(X[rows], y[rows])) < ROUND_OFF


def test_the_default_prior_does_not_see_a_common_unit(default):
    X, y, expected = default
    assert apart(expected, by_default(1000 * X, y, new=1000 * NEW)) < ROUND_OFF


def test_the_default_prior_does_not_see_the_names_of_classes(default):
    X, y, expected = default
    names = np.asarray(["zebra", "ant", "horse"])[: expected.shape[1]]
    back = [sorted(names).index(name) for name in names]
    limit = 2e-3 if len(names) > 2 else ROUND_OFF  # as for a fixed prior
    assert apart(expected, by_default(X, names[y])[:, back]) < limit


def test_the_default_prior_does_not_see_the_order_of_features(default):
    """Folds follow what features say of the classes, not the order of the features."""
    X, y, expected = default
    order = np.random.default_rng(1).permutation(X.shape[1])
    assert apart(expected, by_default(X[:, order], y, new=NEW[:, order])) < 3e-3  # as for a fixed prior


@pytest.mark.parametrize("J", [5, 1000])
def test_the_default_prior_hardly_sees_the_number_of_particles(default, J):
    X, y, expected = default
    assert apart(expected, by_default(X, y, particles=J)) < 2e-3
