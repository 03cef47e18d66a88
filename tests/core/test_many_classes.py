"""Softmax averages for many classes against brute force, and what the passes over the data make of them."""

from dataclasses import replace

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.core.likelihoods import Categorical, many_classes
from enkbayes.core.low_rank import narrowed
from enkbayes.engine.rows import ArrayRows
from enkbayes.solvers.low_rank_mean_field import LowRankSolver, orthonormal_factor

RNG = np.random.default_rng(3)


def logit_distribution(sd=1.0, n=40, K=12, r=4, shrink=(-0.3, 0.2, 0.9, 0.95), seed=0):
    rng = np.random.default_rng(seed)
    right = np.linalg.qr(rng.standard_normal((K, K)))[0]
    s = sd**2 * rng.uniform(0.5, 1.0, (n, K))
    E = np.linalg.qr(rng.standard_normal((n, K, r)))[0] * np.sqrt(s.min(axis=1))[:, None, None]
    distribution = many_classes.LogitDistribution(2 * rng.standard_normal((n, K)), right, s, E, np.asarray(shrink))
    inner = s[:, :, None] * np.eye(K) - (E * distribution.shrink) @ E.mT
    return distribution, right @ inner @ right.T


@pytest.mark.parametrize("r", [3, 5, 8])  # below, at and above K
def test_narrowed_points_have_the_covariance_asked_for(r):
    n, K = 6, 5
    X = RNG.standard_normal((n, K, r))
    s = 1.1 * np.linalg.norm(X, ord=2, axis=(1, 2))[:, None] ** 2 * np.ones(K)
    shrink = np.linspace(0, 0.99, r)
    root = narrowed(s, X, shrink, np.eye(K)[None])
    np.testing.assert_allclose(root.mT @ root, s[:, :, None] * np.eye(K) - (X * shrink) @ X.mT, atol=1e-9)


def test_points_of_a_distribution_have_its_covariance():
    distribution, cov = logit_distribution(n=3)
    numbers = np.asarray([0, 1500, 4000])
    xi = np.random.default_rng(0).standard_normal((3, 200_000, 16))
    e = distribution.deviations(xi)
    np.testing.assert_allclose(e.mT @ e / 200_000, cov, atol=0.02)
    x = RNG.standard_normal((3, 12))
    np.testing.assert_allclose(distribution.products(x), (cov @ x[:, :, None])[:, :, 0], atol=1e-12)
    assert many_classes.own_points(x, numbers, 8, 16).shape == (3, 8, 16)


@pytest.mark.parametrize(("sd", "per_row", "average"), [(0.3, 1e-3, 2e-4), (1.0, 2e-2, 4e-3), (3.0, 9e-2, 2e-2)])
def test_averages_against_a_long_quadrature(sd, per_row, average):
    """Root mean square errors of a row's probabilities, and of their average over 200 rows with the same
    distribution: the errors of different rows are independent.
    """
    distribution, cov = logit_distribution(sd, n=1)
    targets = np.asarray([2])
    x = np.random.default_rng(5).standard_normal((200_000, 12))
    z = np.concatenate([x, -x]) @ np.linalg.cholesky(cov[0]).T + distribution.zbar[0]
    p, log_sum = many_classes.softmax(z)
    many = many_classes.LogitDistribution(
        *(
            np.repeat(a, 200, axis=0) if a.ndim > 1 and len(a) == 1 else a
            for a in (distribution.zbar, distribution.right, distribution.s, distribution.E)
        ),
        distribution.shrink,
    )
    numbers = many_classes.own_numbers(RNG.standard_normal((200, 7)), distribution.zbar)
    found = many_classes.gaussian_averages(many, np.repeat(targets, 200), numbers)
    error = found.slope + np.eye(12)[2] - p.mean(axis=0)
    assert np.sqrt(np.mean(error**2)) < per_row
    assert np.abs(error.mean(axis=0)).max() < average
    loss = log_sum.mean() - distribution.zbar[0, 2]
    assert found.loss.mean() == pytest.approx(loss, abs=0.02 * sd**2)
    Lambda = np.diag(p.mean(axis=0)) - p.T @ p / len(p)
    assert np.abs(found.curvature_products(np.tile(np.eye(12), (200, 1, 1))).mean(axis=0) - Lambda).max() < 2 * average


def test_averages_against_those_of_few_classes():
    distribution, cov = logit_distribution(0.5)
    targets = RNG.integers(0, 12, 40)
    loss, slope, curve = Categorical(12).gaussian_averages(distribution.zbar, targets, V=np.linalg.cholesky(cov))
    found = many_classes.gaussian_averages(distribution, targets, np.arange(40) * 97)
    assert np.abs(found.slope - slope).max() < 0.01
    assert np.abs(found.loss - loss).max() < 0.02
    products = found.curvature_products(distribution.columns)
    assert np.abs(products - curve @ distribution.columns).max() < 0.1 * np.abs(products).max()


def test_control_variates_leave_less_to_chance():
    distribution, cov = logit_distribution(0.4, n=60)
    targets = np.zeros(60, dtype=int)
    x = np.random.default_rng(5).standard_normal((20_000, 12))
    root = np.linalg.cholesky(cov)
    both = np.concatenate([x, -x])
    truth = np.stack([many_classes.softmax(distribution.zbar[i] + both @ root[i].T)[0].mean(axis=0) for i in range(60)])
    found = many_classes.gaussian_averages(distribution, targets, np.arange(60) * 61)
    with_them = found.slope + many_classes.one_hot(targets, distribution.zbar) - truth
    assert np.sqrt(np.mean(with_them**2)) < 0.3 * np.sqrt(np.mean((found.pbar - truth) ** 2))


def test_forms_of_the_curvature_agree():
    distribution, _ = logit_distribution()
    found = many_classes.gaussian_averages(distribution, np.zeros(40, dtype=int), np.arange(40))
    weights = RNG.uniform(0.5, 2, 40)
    Lambda = np.einsum("nk,kl->nkl", found.pbar, np.eye(12)) - found.p.mT @ found.p / found.p.shape[1]
    E = distribution.columns
    np.testing.assert_allclose(found.curvature_products(E), Lambda @ E, atol=1e-12)
    expected = np.einsum("n,nkr,nkl,nls->rs", weights, E, Lambda, E)
    np.testing.assert_allclose(found.curvature_gram(E, weights), expected, atol=1e-10)
    diagonal = np.einsum("ki,nkl,li->ni", distribution.right, Lambda, distribution.right)
    np.testing.assert_allclose(found.curvature_diagonal(distribution.right), diagonal, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_chooses_the_same_points_in_any_company(dtype):
    import scipy.sparse

    features = RNG.standard_normal((500, 70)).astype(dtype)
    features[0] = 0
    reference = features[:0]
    numbers = many_classes.own_numbers(features, reference)
    chunks = [many_classes.own_numbers(features[i : i + 7], reference) for i in range(0, 500, 7)]
    np.testing.assert_array_equal(np.concatenate(chunks), numbers)
    assert len(np.unique(numbers)) > 400
    assert 0 <= numbers.min() < 200
    assert 3800 < numbers.max() < many_classes.POOL
    thin = many_classes.own_numbers(scipy.sparse.csr_matrix(features), reference)
    assert len(np.unique(thin)) > 400


@pytest.fixture(scope="module")
def head():
    """Thirty classes, six features."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((400, 6))
    noise = rng.gumbel(size=(400, 30))
    labels = np.argmax(features @ rng.standard_normal((6, 30)) + noise, axis=1)
    return features, labels


def test_many_classes_give_the_posterior_of_few_classes_code(head):
    """The same problem through both averages: K x K matrices with 256 points, and a few points for each row."""
    features, labels = head
    problem = eb.Problem.create(features, labels, 1.0, classes=np.arange(30))
    ours = eb.run(problem, eb.MeanField(rank=6, tol=1e-3), particles=20)
    theirs = eb.run(problem, eb.MeanField(rank=6, tol=1e-3, low_rank=LowRankSolver(many=31)), particles=20)
    sds = np.sqrt(theirs.ensemble.variances)
    assert np.sqrt(np.mean(((ours.mean - theirs.mean) / sds) ** 2)) < 0.03
    assert np.abs(np.sqrt(ours.ensemble.variances) / sds - 1).max() < 0.03
    assert np.abs(ours.predict_proba(features) - theirs.predict_proba(features)).max() < 0.01


def test_chunks_weights_and_sparse_rows_make_no_difference(head):
    import scipy.sparse

    features, labels = head
    settings = {"classes": np.arange(30), "weights": RNG.uniform(0.5, 2, 400)}
    sampler = eb.MeanField(rank=4, tol=1e-2)
    whole = eb.run(eb.Problem.create(features, labels, 1.0, **settings), sampler, particles=5)
    chunks = eb.run(eb.Problem.create(features, labels, 1.0, chunk=37, **settings), sampler, particles=5)
    np.testing.assert_allclose(chunks.theta, whole.theta, atol=1e-7)
    order = RNG.permutation(400)
    settings["weights"] = settings["weights"][order]
    shuffled = eb.run(eb.Problem.create(features[order], labels[order], 1.0, **settings), sampler, particles=5)
    np.testing.assert_allclose(shuffled.mean, whole.mean, atol=1e-6)
    thin = scipy.sparse.csr_matrix(features[order])
    sparse = eb.run(eb.Problem.create(thin, labels[order], 1.0, **settings), sampler, particles=5)
    assert np.sqrt(np.mean((sparse.mean - whole.mean) ** 2 / whole.ensemble.variances)) < 0.03  # other points


def test_small_chunks_are_joined_where_products_of_few_rows_are_slow():
    rows = ArrayRows(np.arange(19.0)[:, None], np.arange(19.0), None, chunk=3)
    assert [chunk.size for chunk in rows.chunks(least=8)] == [8, 8, 3]
    assert [chunk.size for chunk in rows.chunks()] == [3] * 6 + [1]
    np.testing.assert_array_equal(np.concatenate([chunk.targets for chunk in rows.chunks(least=8)]), np.arange(19.0))


def test_a_long_thin_matrix_is_factored_like_a_short_one():
    X = RNG.standard_normal((300, 6)) * np.logspace(0, -4, 6)
    (U, lam), (V, mu) = (orthonormal_factor(X, long) for long in (1000, 100))
    np.testing.assert_allclose(mu, lam, rtol=1e-6)
    np.testing.assert_allclose(V.T @ V, np.eye(6), atol=1e-12)
    np.testing.assert_allclose(np.abs(np.sum(U * V, axis=0)), 1, atol=1e-6)
    assert orthonormal_factor(X @ np.ones((6, 3)), 100)[0].shape == (300, 1)  # copies of a column are dropped


def test_acceleration_ends_at_the_same_point_in_fewer_steps():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((300, 12))
    noise = rng.gumbel(size=(300, 3))
    labels = np.argmax(2 * features @ rng.standard_normal((12, 3)) + noise, axis=1)
    problem = eb.Problem.create(features, labels, 2.0)
    first = LowRankSolver().start(problem, 5, 0)

    def converge(*, accelerated):
        point, steps = first, 0
        while point.residual > 1e-5 and steps < 100:
            point = LowRankSolver().advance(problem, point if accelerated else replace(point, history=()))
            steps += 1
        return point, steps

    (fast, few), (slow, many) = converge(accelerated=True), converge(accelerated=False)
    assert fast.residual < 1e-5
    assert few < 0.7 * many
    sds = np.sqrt(slow.variances)
    assert np.abs((fast.q.mean - slow.q.mean) / sds).max() < 1e-3
    np.testing.assert_allclose(fast.variances, slow.variances, rtol=1e-3)


def test_logit_columns_of_many_classes_have_the_covariance_of_the_distribution(head):
    features, labels = head
    problem = eb.Problem.create(features, labels, 1.0, classes=np.arange(30))
    posterior = eb.run(problem, eb.MeanField(rank=4, tol=1e-2), particles=5)
    _, V = posterior.map.predictive_logits(features[:2], posterior.ensemble)
    for x, columns in zip(features, V, strict=False):
        phi = np.kron(x[:, None], np.eye(30))
        np.testing.assert_allclose(columns @ columns.T, phi.T @ posterior.cov @ phi, atol=1e-9)


def test_torch_numpy_and_single_precision_agree(head):
    torch = pytest.importorskip("torch")
    features, labels = head
    sampler = eb.MeanField(rank=4, tol=1e-2)

    def found(rows):
        return eb.run(eb.Problem.create(rows, labels, 1.0, classes=np.arange(30)), sampler, particles=5)

    ours, theirs = found(features), found(torch.as_tensor(features))
    assert isinstance(theirs.theta, torch.Tensor)
    sds = np.sqrt(ours.ensemble.variances)
    assert np.abs((np.asarray(theirs.mean) - ours.mean) / sds).max() < 1e-3
    single = found(features.astype(np.float32))
    assert single.theta.dtype == np.float32
    assert np.sqrt(np.mean(((single.mean - ours.mean) / sds) ** 2)) < 0.03  # rounded features may choose other points
    np.testing.assert_allclose(np.sqrt(single.ensemble.variances), sds, rtol=0.03)


def test_rows_in_chunks_give_the_same_distribution(head):
    features, labels = head
    chunks = [(features[i : i + 90], labels[i : i + 90]) for i in range(0, 400, 90)]
    sampler = eb.MeanField(rank=4, tol=1e-2)
    one = eb.run(eb.Problem.create(features, labels, 1.0, classes=np.arange(30)), sampler, particles=5)
    two = eb.run(eb.Problem.stream(chunks, 1.0, classes=np.arange(30)), sampler, particles=5)
    np.testing.assert_allclose(two.theta, one.theta, atol=1e-7)


def test_predictions_without_the_columns_of_the_complement(head):
    features, labels = head
    problem = eb.Problem.create(features, labels, 1.0, classes=np.arange(30))
    posterior = eb.run(problem, eb.MeanField(rank=4, tol=1e-2), particles=5)
    mean_logits, V = posterior.map.gaussian_logits(features, posterior.ensemble)
    found = many_classes.predictive(features, mean_logits, V, posterior.ensemble.complement)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-12)
    quadrature = posterior.predict_proba(features)

    def distance(p):
        return np.sqrt(np.mean((p - quadrature) ** 2))

    assert distance(found) < 1e-3
    assert distance(many_classes.softmax(mean_logits)[0]) > 5e-3  # the spread matters


def test_the_spread_counts_without_a_basis():
    """A Gaussian that is nothing but a complement is no point estimate, however many classes there are."""
    rng = np.random.default_rng(3)
    features, labels = rng.standard_normal((300, 3)), np.arange(300) % 210
    posterior = eb.run(eb.Problem.create(features, labels, 4.0), eb.MeanField(rank=0, tol=1e-1), particles=400)
    assert posterior.ensemble.basis.shape[1] == 0
    point = many_classes.softmax(posterior.map.gaussian_logits(features[:20], posterior.ensemble)[0])[0]
    draws = posterior.mean_proba(features[:20])
    found = posterior.predict_proba(features[:20])
    assert np.abs(found - draws).sum(axis=1).mean() < 0.5 * np.abs(point - draws).sum(axis=1).mean()
