"""Ensembles much smaller than the model: the Gaussian behind them does not depend on their number."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_wine
from sklearn.preprocessing import scale

import enkbayes as eb
from enkbayes.core.low_rank import Complement
from enkbayes.core.moments import Diverged
from enkbayes.evaluation.baselines import MAP
from enkbayes.samplers.start import default_sampler
from enkbayes.solvers.low_rank_mean_field import LowRankSolver, Move, orthonormal_factor
from oracles.problems import logistic_data


def wide(features, seed=0, width=60):
    """Random ReLU features: positive, correlated, many of them informative."""
    return np.maximum(features @ np.random.default_rng(seed).standard_normal((features.shape[1], width)), 0)


@pytest.fixture(scope="module")
def binary():
    X, y = load_digits(return_X_y=True)
    features = wide(scale(X[:300]) / 4)
    return eb.Problem.create(features, y[:300] % 2, 2.0, intercept=100.0), features


@pytest.fixture(scope="module")
def softmax():
    X, y = load_wine(return_X_y=True)
    features = wide(scale(X) / 4, width=20)
    return eb.Problem.create(features, y, 2.0, intercept=100.0), features


def low_rank(problem, rank, particles=10, seed=0, **settings):
    return eb.run(problem, eb.MeanField(rank=rank, max_steps=400, **settings), particles=particles, seed=seed)


@pytest.mark.parametrize("particles", [5, 20, 60])
def test_predictions_do_not_depend_on_the_number_of_particles(binary, particles):
    problem, features = binary
    truth = eb.run(problem, eb.MeanField(), particles=100).predict_proba(features)
    posterior = eb.run(problem, particles=particles)
    assert np.abs(posterior.predict_proba(features) - truth).max() < 1e-5
    assert posterior.theta.shape == (particles, problem.dim)
    assert "drawn from a Gaussian fitted in all 61 directions" in posterior.info.message


def test_random_particles_are_far_worse_at_every_size(binary):
    """The paper's ensemble stays in J - 1 arbitrary directions."""
    problem, features = binary
    truth = eb.run(problem, eb.MeanField(), particles=100).predict_proba(features)
    for particles in (5, 20, 40):
        theta = problem.prior.whitened(particles, np.random.default_rng(0))
        stuck = eb.run(problem, theta=theta).predict_proba(features)
        informed = low_rank(problem, particles - 1, particles).predict_proba(features)
        assert np.abs(informed - truth).mean() < 0.2 * np.abs(stuck - truth).mean()


@pytest.mark.parametrize("kind", ["binary", "softmax"])
def test_a_structured_covariance_is_exact_when_its_rank_covers_everything(kind, request):
    problem, features = request.getfixturevalue(kind)
    full = eb.run(problem, eb.MeanField(), particles=10)
    structured_gaussian = low_rank(problem, problem.dim)
    assert structured_gaussian.info.converged
    assert np.abs(structured_gaussian.predict_proba(features) - full.predict_proba(features)).max() < 2.5e-3
    deviation = np.linalg.norm(structured_gaussian.cov - full.cov) / np.linalg.norm(full.cov)
    assert deviation < 0.03  # softmax: 256 quadrature points against 1024; two classes have an exact rule


def test_a_binary_structured_covariance_is_nearly_exact_at_any_rank(binary):
    """The frame diagonalises the Hessian at the MAP estimate, and almost diagonalises it at the Gaussian."""
    problem, features = binary
    full = eb.run(problem, eb.MeanField(), particles=10)
    for rank, bar in ((4, 4e-3), (20, 2e-3)):
        assert np.abs(low_rank(problem, rank).predict_proba(features) - full.predict_proba(features)).mean() < bar


def test_accuracy_grows_with_rank_for_softmax(softmax):
    problem, features = softmax
    truth = eb.run(problem, eb.MeanField(), particles=10).predict_proba(features)
    errors = [np.abs(low_rank(problem, rank).predict_proba(features) - truth).mean() for rank in (2, 10, 40)]
    assert errors[0] < 5e-3
    assert errors[2] < 0.5 * errors[0]


def test_fewer_data_than_parameters_keep_the_prior_where_they_say_nothing():
    features, labels = logistic_data(50, 12, 1)
    problem = eb.Problem.create(features, labels, 2.0)
    posterior = low_rank(problem, 12)
    unseen = np.linalg.svd(features)[2][12:]  # directions without data
    cov = posterior.cov
    np.testing.assert_allclose(unseen @ cov @ unseen.T, 2.0 * np.eye(38), atol=1e-8)
    np.testing.assert_allclose(unseen @ posterior.mean, 0.0, atol=1e-6)
    seen = np.linalg.svd(features)[2][:12]
    assert np.all(np.diag(seen @ cov @ seen.T) < 1.99)


@pytest.mark.parametrize("kind", ["binary", "softmax"])
def test_particles_follow_the_gaussian(kind, request):
    """Many particles of a low-rank Gaussian have its covariance: in the basis exactly, outside on average."""
    problem, features = request.getfixturevalue(kind)
    posterior = low_rank(problem, 10, particles=4000)
    assert isinstance(posterior.ensemble.complement, Complement)
    centred = posterior.theta - posterior.mean
    deviation = np.linalg.norm(centred.T @ centred / 4000 - posterior.cov) / np.linalg.norm(posterior.cov)
    assert deviation < 0.25  # sqrt(P / J) is .12 to .13
    average = posterior.sample_proba(features).mean(axis=0)
    assert np.abs(average - posterior.predict_proba(features)).max() < 0.02


def test_draws_and_density_of_a_gaussian_with_complement_agree(softmax):
    problem, _ = softmax
    ensemble = low_rank(problem, 10).ensemble
    z = np.random.default_rng(0).standard_normal((3, ensemble.freedom))
    root = ensemble.gaussian.unwhiten(np.eye(ensemble.freedom)) - ensemble.mean  # rows: images of the axes
    np.testing.assert_allclose(root.T @ root, ensemble.cov, atol=1e-10)
    np.testing.assert_allclose(ensemble.variances, np.diag(ensemble.cov), atol=1e-10)
    np.testing.assert_allclose(ensemble.gaussian.unwhiten(z), ensemble.mean + z @ root, atol=1e-10)
    assert ensemble.gaussian.log_volume == pytest.approx(np.linalg.slogdet(ensemble.cov)[1] / 2, abs=1e-8)


def test_the_gaussian_predictive_includes_the_complement(binary):
    problem, features = binary
    posterior = low_rank(problem, 5)
    phi = np.column_stack([features, np.ones(len(features))])
    expected = np.einsum("np,pq,nq->n", phi, posterior.cov, phi)
    _, V = posterior.map.predictive_logits(features, posterior.ensemble)
    np.testing.assert_allclose(np.sum(V**2, axis=1), expected, rtol=1e-8)


def test_softmax_logit_covariance_includes_the_complement(softmax):
    problem, features = softmax
    posterior = low_rank(problem, 5)
    phi = np.kron(np.append(features[0], 1.0)[:, None], np.eye(3))
    _, V = posterior.map.predictive_logits(features[:1], posterior.ensemble)
    np.testing.assert_allclose(V[0] @ V[0].T, phi.T @ posterior.cov @ phi, rtol=1e-7, atol=1e-10)


def test_dense_priors_and_weights(binary):
    problem, features = binary
    rng = np.random.default_rng(0)
    root = rng.standard_normal((61, 61)) / 8 + np.eye(61)
    weighted = eb.Problem.create(
        features,
        np.asarray(problem.targets),
        eb.Gaussian(np.zeros(60), (root @ root.T)[:60, :60]),
        weights=rng.random(300),
    )
    full = eb.run(weighted, eb.MeanField(), particles=10)
    assert np.abs(low_rank(weighted, 30).predict_proba(features) - full.predict_proba(features)).mean() < 2e-3


def test_a_prior_that_treats_classes_differently_has_no_frame(softmax):
    problem, _ = softmax
    variances = np.tile([1.0, 2.0, 3.0], problem.dim // 3)
    assert LowRankSolver().fits(problem)
    assert not LowRankSolver().fits(problem.with_prior(eb.Gaussian(np.zeros(problem.dim), variances)))
    posterior = eb.run(problem.with_prior(eb.Gaussian(np.zeros(problem.dim), variances)), eb.MeanField(rank=5))
    assert posterior.ensemble.complement is None  # the full covariance instead


def test_more_features_than_a_frame_can_rotate(binary):
    problem, features = binary
    full = eb.run(problem, eb.MeanField(), particles=10)
    plain = low_rank(problem, 40, low_rank=LowRankSolver(rotated=10))
    assert np.abs(plain.predict_proba(features) - full.predict_proba(features)).mean() < 5e-3


def test_sparse_features(binary):
    import scipy.sparse

    problem, features = binary
    thin = np.where(features > np.quantile(features, 0.8), features, 0.0)
    for rotated in (4096, 10):
        solver = LowRankSolver(rotated=rotated)
        dense, sparse = (
            low_rank(eb.Problem.create(x, problem.targets, 2.0, intercept=100.0), 20, low_rank=solver)
            for x in (thin, scipy.sparse.csr_matrix(thin))
        )
        np.testing.assert_allclose(sparse.predict_proba(thin), dense.predict_proba(thin), atol=1e-8)


def test_torch_and_numpy_agree(softmax):
    torch = pytest.importorskip("torch")
    problem, features = softmax
    mirrored = eb.Problem.create(torch.as_tensor(features), np.asarray(problem.targets), 2.0, intercept=100.0)
    ours, theirs = low_rank(problem, 8), low_rank(mirrored, 8)
    assert isinstance(theirs.theta, torch.Tensor)
    np.testing.assert_allclose(theirs.predict_proba(torch.as_tensor(features)), ours.predict_proba(features), atol=1e-4)


def test_single_precision(binary):
    problem, features = binary
    single = eb.Problem.create(
        features.astype(np.float32), np.asarray(problem.targets, dtype=int), 2.0, intercept=100.0
    )
    posterior = low_rank(single, 20)
    assert posterior.theta.dtype == np.float32
    assert (
        np.abs(
            posterior.predict_proba(features.astype(np.float32)) - low_rank(problem, 20).predict_proba(features)
        ).max()
        < 5e-3
    )


def test_other_samplers_and_own_particles_keep_to_their_span(binary):
    problem, _ = binary
    theta = problem.prior.whitened(8, np.random.default_rng(0))
    posterior = eb.run(problem, theta=theta)
    inside = np.linalg.lstsq((theta - theta.mean(0)).T, (posterior.theta - theta.mean(0)).T, rcond=None)[0]
    np.testing.assert_allclose((theta - theta.mean(0)).T @ inside, (posterior.theta - theta.mean(0)).T, atol=1e-8)
    assert "say nothing of the others" in eb.run(problem, eb.Homotopy(), particles=8).info.message


def test_a_gaussian_with_complement_survives_the_disk(softmax, tmp_path):
    problem, features = softmax
    posterior = low_rank(problem, 6)
    eb.save(posterior, tmp_path / "m.safetensors")
    again = eb.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.ensemble.mean, posterior.ensemble.mean)
    np.testing.assert_array_equal(again.ensemble.basis, posterior.ensemble.basis)
    # products depend on where arrays lie in memory, by round-off in older versions of OpenBLAS
    np.testing.assert_allclose(again.predict_proba(features), posterior.predict_proba(features), rtol=0, atol=1e-13)
    np.testing.assert_allclose(again.theta, posterior.theta, rtol=0, atol=1e-13)


def test_trust_and_polish_take_a_structured_covariance(binary):
    problem, features = binary
    posterior = low_rank(problem, 10, particles=30)
    figures = eb.assess(problem, posterior)
    full = eb.run(problem, eb.MeanField(), particles=30)
    assert figures.spanned == figures.parameters == 61
    assert figures.informed == pytest.approx(eb.assess(problem, full).informed, rel=0.05)
    polished = eb.polish(problem, posterior, 5)
    assert polished.theta.shape == (30, 61)
    assert polished.predict_proba(features).shape == (300, 2)


def test_an_interrupted_run_ends_where_one_run_ends(softmax):
    problem, _ = softmax
    short = eb.MeanField(rank=6, max_steps=3)
    *_, state = eb.iterate(problem, short, particles=10)
    *_, last = eb.iterate(problem, eb.MeanField(rank=6, max_steps=400), state=state)
    np.testing.assert_allclose(last.ensemble.mean, low_rank(problem, 6).mean, atol=1e-8)


def test_a_structured_run_that_does_not_converge_says_so(binary):
    problem, _ = binary
    with pytest.warns(UserWarning, match="did not converge"):
        posterior = eb.run(problem, eb.MeanField(rank=5, max_steps=1), particles=10)
    assert not posterior.info.converged


@pytest.fixture(scope="module")
def many():
    """Twenty-four classes, sixteen features, and labels of a softmax."""
    rng = np.random.default_rng(3)
    features = rng.standard_normal((600, 16))
    noise = rng.gumbel(size=(600, 24))
    return features, np.argmax(features @ rng.standard_normal((16, 24)) + noise, axis=1)


def test_without_directions_the_mean_and_the_variances_are_nearly_those_of_all_directions(many):
    features, labels = many[0][:200, :6], many[1][:200] // 2
    problem = eb.Problem.create(features, labels, 1.0, intercept=10.0, classes=np.arange(12))
    posterior = eb.run(problem, eb.MeanField(rank=0), particles=20)
    assert posterior.info.converged
    assert posterior.ensemble.rank == 0
    full = eb.run(problem, eb.MeanField(tol=1e-3), particles=20)
    p, truth, mode = (each.predict_proba(features) for each in (posterior, full, MAP().fit(problem)))
    assert np.abs(p - truth).sum(axis=1).mean() < 0.8 * np.abs(mode - truth).sum(axis=1).mean()
    assert np.sqrt(np.mean((posterior.mean - full.mean) ** 2 / full.ensemble.variances)) < 0.2
    ratio = np.sqrt(posterior.ensemble.variances / full.ensemble.variances)
    assert 0.85 < np.quantile(ratio, 0.05) < np.quantile(ratio, 0.95) < 1.15


def test_without_directions_chunks_streams_and_the_order_of_rows_make_little_difference(many):
    features, labels = many
    settings = {"intercept": 10.0, "classes": np.arange(24)}
    order, sampler = np.random.default_rng(0).permutation(600), eb.MeanField(rank=0)
    whole = eb.run(eb.Problem.create(features, labels, 1.0, **settings), sampler, particles=5)
    chunks = eb.run(eb.Problem.create(features, labels, 1.0, chunk=37, **settings), sampler, particles=5)
    moved = eb.run(eb.Problem.create(features[order], labels[order], 1.0, **settings), sampler, particles=5)
    parts = [(features[i : i + 250], labels[i : i + 250]) for i in range(0, 600, 250)]
    stream = eb.run(eb.Problem.stream(parts, 1.0, **settings), sampler, particles=5)
    for other in (chunks, moved, stream):
        assert np.abs((other.mean - whole.mean) / np.sqrt(whole.ensemble.variances)).max() < 1e-3


def test_the_default_sampler_is_quick_for_many_classes_alone(many):
    features, labels = many
    problem = eb.Problem.create(features, labels, 1.0, intercept=10.0, classes=np.arange(24))
    assert default_sampler(problem) == eb.MeanField(rank=0)
    few = eb.Problem.create(features, labels % 5, 1.0, intercept=10.0)
    assert default_sampler(few) == eb.Equilibrium()
    assert default_sampler(eb.Problem.create(features[:, :8], labels, 1.0)) == eb.Equilibrium()
    full = eb.Gaussian(np.zeros(384), np.eye(384))
    assert default_sampler(eb.Problem.create(features, labels, full)) == eb.Equilibrium()
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(features, labels)
    assert clf.posterior_.info.sampler == repr(eb.MeanField(rank=0))


def test_the_evidence_chooses_the_width_for_many_classes_in_a_few_quick_fits(many):
    features, labels = many
    _, tuning = eb.tune_prior(eb.Problem.create(features, labels, 100.0, classes=np.arange(24)))
    assert tuning.converged
    assert tuning.fits < 15
    assert 0.3 < tuning.variances[0] < 3


@dataclass(frozen=True)
class Trial(LowRankSolver):
    """A solver whose trial steps diverge, or have another residual and energy than they have."""

    diverges: bool = False
    residual: float = 1.0
    energy: float = 0.0

    def start(self, problem, rank, seed):
        return LowRankSolver().start(problem, rank, seed)

    def evaluate(self, problem, frame, q, *, pairs=None):
        if self.diverges:
            raise Diverged("the gradient or the curvature is not finite")
        point = super().evaluate(problem, frame, q, pairs=pairs)
        return replace(point, residual=self.residual, free_energy=self.energy)


def test_a_trial_step_that_diverges_is_taken_back_and_the_next_one_is_shorter(binary):
    problem, _ = binary
    point = LowRankSolver().start(problem, 5, 0)
    after = Trial(diverges=True).advance(problem, point)
    assert after.q is point.q
    assert after.tau == point.tau / 2


def test_a_run_whose_steps_all_diverge_ends_soon(binary):
    problem, _ = binary
    with pytest.warns(UserWarning, match="did not converge"):
        posterior = low_rank(problem, 5, low_rank=Trial(diverges=True))
    assert not posterior.info.converged
    assert posterior.info.steps <= 12  # the step size has shrunk to a thousandth


@pytest.mark.parametrize(("fall", "taken"), [(0.01, False), (0.5, True)])
def test_a_step_that_raises_the_residual_must_lower_the_energy_by_a_part_of_what_it_promises(binary, fall, taken):
    problem, _ = binary
    point = LowRankSolver().start(problem, 5, 0)
    promised = point.tau * point.residual**2 * problem.dim
    trial = Trial(residual=2 * point.residual, energy=point.free_energy - fall * promised)
    after = trial.advance(problem, point)
    assert (after.q is not point.q) == taken
    assert (after.tau < point.tau) != taken


def test_an_accelerated_step_never_leaves_the_positive_definite_matrices(binary):
    """A history that would take the precision below zero is not followed: the plain step is taken at once."""
    problem, _ = binary
    solver = LowRankSolver()
    point = solver.advance(problem, solver.start(problem, 5, 0))
    force = point.force()
    moved = Move(0 * force.mean, 0 * force.log, 1e4 * np.eye(5))  # force - gamma (moved + changed), gamma about 1
    hopeless = replace(point, history=((moved, force),))
    after = solver.advance(problem, hopeless)
    assert after.q is not point.q
    assert after.free_energy < point.free_energy
    assert np.all(after.q.beta2 > -0.9)


def test_many_parameters_remember_five_steps_however_deep_the_acceleration(binary):
    problem, _ = binary
    for remembered, steps in ((5e6, 7), (1.0, 5)):
        solver = LowRankSolver(depth=7, remembered=remembered, slack=1e9)
        point = solver.start(problem, 5, 0)
        for _ in range(9):
            point = solver.advance(problem, point)
        assert len(point.history) == steps


@pytest.mark.parametrize("long", [1, 1000])
def test_long_factors_are_orthonormal_to_round_off_too(long):
    """Singular values over five powers of ten, and a column twice."""
    rng = np.random.default_rng(0)
    X = np.linalg.qr(rng.standard_normal((200, 6)))[0] * 10.0 ** -np.arange(6) @ rng.standard_normal((6, 6))
    X = np.column_stack([X, X[:, 0]])
    U, lam = orthonormal_factor(X, long)
    np.testing.assert_allclose(U.T @ U, np.eye(U.shape[1]), atol=1e-12)
    np.testing.assert_allclose((U * lam) @ U.T, X @ X.T, atol=1e-9)
    assert np.all(np.diff(lam) <= 0)
