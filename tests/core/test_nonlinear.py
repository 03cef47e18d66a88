"""Nonlinear logits: Gauss-Newton with a Jacobian, derivative-free without."""

import numpy as np
import pytest

import enkbayes as eb
from oracles.problems import logistic_data


def linear_as_nonlinear(features, labels, prior, jacobian, K=None, **options):
    D = features.shape[1]

    def logits(theta):
        return features @ theta.T if K is None else np.einsum("nd,jdk->njk", features, theta.reshape(-1, D, K))

    def tangents(theta, basis):
        if K is None:
            return np.repeat((features @ basis)[:, None, :], len(theta), axis=1)
        slope = np.einsum("nd,dkr->nkr", features, basis.reshape(D, K, -1))
        return np.repeat(slope[:, None], len(theta), axis=1)

    return eb.Problem.nonlinear(logits, labels, prior, tangents if jacobian else None, **options)


SAMPLERS = [
    eb.Homotopy(steps=6),
    eb.TamedHomotopy(ds=0.05),
    eb.Equilibrium(tau=0.5, tol=1e-9),
    eb.Equilibrium(tol=1e-9),
    eb.TrotterSampler(tol=1e-5),
    eb.StochasticSampler(max_steps=10),
]


@pytest.mark.parametrize("jacobian", [True, False], ids=["jacobian", "derivative-free"])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_both_forms_are_exact_for_linear_logits(sampler, jacobian):
    features, labels = logistic_data(4, 30, seed=0)
    weights = np.random.default_rng(0).uniform(0.5, 1.5, 30)
    prior = eb.Gaussian.isotropic(4, 1.5)
    theta = prior.sample(12, np.random.default_rng(1))
    expected = eb.run(eb.Problem.create(features, labels, prior, weights=weights), sampler, theta=theta)
    problem = linear_as_nonlinear(features, labels, prior, jacobian, weights=weights, chunk=70)
    actual = eb.run(problem, sampler, theta=theta)
    if sampler == eb.Equilibrium(
        tol=1e-9
    ):  # the linear run warms up with the closure: another path to the same equations
        assert actual.mean == pytest.approx(expected.mean, abs=2e-2)
        assert problem.potential_moments(expected.ensemble).residual < 1e-8
    else:
        assert actual.theta == pytest.approx(expected.theta, abs=1e-8)
    assert actual.info.nonlinearity < 1e-12


@pytest.mark.parametrize("jacobian", [True, False], ids=["jacobian", "derivative-free"])
def test_softmax_forms(jacobian):
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((20, 2)), np.arange(20) % 3
    prior = eb.Gaussian.isotropic(6, 1.0)
    theta = prior.sample(15, rng)
    expected = eb.run(eb.Problem.create(features, labels, prior), eb.Homotopy(steps=5), theta=theta)
    problem = linear_as_nonlinear(features, labels, prior, jacobian, K=3)
    actual = eb.run(problem, eb.Homotopy(steps=5), theta=theta)
    assert actual.theta == pytest.approx(expected.theta, abs=1e-10)
    new = lambda t: np.einsum("nd,jdk->njk", features, t.reshape(-1, 2, 3))  # noqa: E731
    assert actual.sample_proba(new) == pytest.approx(expected.sample_proba(features), abs=1e-10)
    assert actual.predict_proba(new) == pytest.approx(actual.sample_proba(new).mean(axis=0))
    uncertainty = actual.predict_uncertainty(new)
    assert np.all(uncertainty.epistemic >= -1e-12)


def bent(eps, seed=0, D=8, N=120):
    """f = phi'theta + eps (psi'theta)^2: data, logits, Jacobian."""
    rng = np.random.default_rng(seed)
    phi, psi = rng.standard_normal((N, D)), rng.standard_normal((N, D)) / np.sqrt(D)
    truth = rng.standard_normal(D)

    def logits(theta):
        return phi @ theta.T + eps * (psi @ theta.T) ** 2

    def jacobian(theta, basis):
        return (phi @ basis)[:, None, :] + 2 * eps * (psi @ theta.T)[:, :, None] * (psi @ basis)[:, None, :]

    labels = rng.random(N) < 1 / (1 + np.exp(-logits(truth[None])[:, 0]))
    return logits, labels.astype(int), jacobian


def elliptical_slice(problem, posterior, sweeps, rng):
    """The true posterior, by generalised elliptical slice sampling from the fitted Gaussian (Nishihara et al. 2014)."""
    gaussian = eb.Gaussian(posterior.mean, posterior.cov)

    def log_ratio(theta):
        return problem.prior.log_density(theta) - problem.loss(theta) - gaussian.log_density(theta)

    theta, kept = gaussian.sample(400, rng), []
    for sweep in range(sweeps):
        nu = gaussian.sample(len(theta), rng) - gaussian.mean
        level = log_ratio(theta) + np.log(rng.random(len(theta)))
        angle = rng.uniform(0, 2 * np.pi, len(theta))
        low, high = angle - 2 * np.pi, angle.copy()
        new, open_ = theta.copy(), np.ones(len(theta), bool)
        while open_.any():
            trial = gaussian.mean + (theta - gaussian.mean) * np.cos(angle)[:, None] + nu * np.sin(angle)[:, None]
            good = open_ & (log_ratio(trial) > level)
            new[good] = trial[good]
            open_ &= ~good
            low, high = np.where(angle < 0, angle, low), np.where(angle >= 0, angle, high)
            angle = np.where(open_, rng.uniform(low, high), angle)
        theta = new
        if sweep >= sweeps // 4:
            kept.append(theta)
    return np.concatenate(kept)


@pytest.mark.parametrize("eps", [0.1, 0.3])
def test_bent_logits_against_mcmc(eps):
    """With the Jacobian the mean is within about .01 sd of MCMC, derivative-free within .02 to .08."""
    logits, labels, jacobian = bent(eps)
    prior = eb.Gaussian.isotropic(8, 1.0)
    problem = eb.Problem.nonlinear(logits, labels, prior, jacobian)
    exact = eb.run(problem, eb.Equilibrium(), particles=200)
    free = eb.run(eb.Problem.nonlinear(logits, labels, prior), eb.Equilibrium(), particles=200)
    truth = elliptical_slice(problem, exact, 60, np.random.default_rng(0))
    sd = truth.std(axis=0)
    error, free_error = (np.sqrt(np.mean(((p.mean - truth.mean(axis=0)) / sd) ** 2)) for p in (exact, free))
    assert error < 0.03
    assert free_error < 0.12
    assert np.mean(np.diag(exact.cov) / sd**2) == pytest.approx(1, abs=0.05)
    assert 0 < exact.info.nonlinearity < 0.2


def test_nonlinearity_statistic_grows_with_the_bend():
    values = []
    for eps in (0.0, 0.1, 0.3):
        logits, labels, _ = bent(eps)
        values.append(
            eb.run(eb.Problem.nonlinear(logits, labels, eb.Gaussian.isotropic(8)), eb.Homotopy()).info.nonlinearity
        )
    assert values[0] < 1e-12 < values[1] < values[2]


def tanh_network(x, hidden=3):
    """A 2-3-1 tanh network over inputs x: logits and Jacobian-vector products."""
    n = x.shape[1] * hidden

    def parts(theta):
        W, b = theta[:, :n].reshape(-1, x.shape[1], hidden), theta[:, n : n + hidden]
        return np.tanh(np.einsum("ni,jik->njk", x, W) + b), theta[:, n + hidden : n + 2 * hidden], theta[:, -1]

    def logits(theta):
        h, v, c = parts(theta)
        return np.einsum("njk,jk->nj", h, v) + c

    def jacobian(theta, basis):
        h, v, _ = parts(theta)
        dW, db = basis[:n].reshape(x.shape[1], hidden, -1), basis[n : n + hidden]
        inner = (1 - h**2)[..., None] * (np.einsum("ni,ikr->nkr", x, dW) + db)[:, None]
        outer = np.einsum("njk,kr->njr", h, basis[n + hidden : n + 2 * hidden])
        return np.einsum("njkr,jk->njr", inner, v) + outer + basis[-1]

    return logits, jacobian


def test_a_whole_small_network():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((80, 2))
    labels = (x[:, 0] * x[:, 1] > 0).astype(int)
    logits, jacobian = tanh_network(x)
    theta, basis = rng.standard_normal((2, 13)), rng.standard_normal((13, 4))
    numeric = np.stack([(logits(theta + 1e-6 * b) - logits(theta - 1e-6 * b)) / 2e-6 for b in basis.T], axis=-1)
    assert jacobian(theta, basis) == pytest.approx(numeric, abs=1e-7)
    problem = eb.Problem.nonlinear(logits, labels, eb.Gaussian.isotropic(13, 4.0), jacobian)
    from scipy.optimize import minimize

    energy = lambda t: float(problem.loss(t[None])[0]) + t @ t / 8  # noqa: E731
    best = min((minimize(energy, 1.5 * rng.standard_normal(13)) for _ in range(6)), key=lambda r: r.fun)
    posterior = eb.run(problem, eb.Equilibrium(), theta=best.x + 0.1 * rng.standard_normal((100, 13)))
    assert posterior.info.converged
    assert posterior.info.nonlinearity > 0.2  # far from linear over the spread: the derivative-free form would not do
    accuracy = np.mean((posterior.predict_proba(logits)[:, 1] > 0.5) == labels)
    assert accuracy > 0.85


def test_errors_name_the_way_out():
    features, labels = logistic_data(3, 10, seed=0)
    prior = eb.Gaussian.isotropic(3)
    problem = linear_as_nonlinear(features, labels, prior, jacobian=False)
    with pytest.raises(ValueError, match="Equilibrium"):
        eb.run(problem, eb.MeanField())
    with pytest.raises(ValueError, match="a subset of the rows needs linear logits"):
        eb.run(problem, eb.Homotopy(batch=5))
    with pytest.raises(ValueError, match=r"expected \(N, 1\)"):
        eb.Problem.nonlinear(lambda theta: theta @ features.T, labels, prior)
    with pytest.raises(ValueError, match=r"expected \(N, 1, 3\) for Categorical"):
        eb.Problem.nonlinear(
            lambda theta: features @ theta.T, labels, prior, likelihood=eb.Categorical(3), classes=[0, 1, 2]
        )
    with pytest.raises(ValueError, match="the gradient of nonlinear logits needs their Jacobian"):
        problem.loss_and_gradient(np.zeros((1, 3)))
    posterior = eb.run(problem, eb.Homotopy())
    with pytest.raises(ValueError, match="pass the function"):
        posterior.predict_proba(features)


def test_a_function_through_few_particles_has_no_measure_of_nonlinearity():
    """A linear function passes through P + 1 particles, whatever the logits are."""
    features, labels = logistic_data(3, 30, seed=0)
    problem = eb.Problem.nonlinear(lambda theta: np.sin(features @ theta.T), labels, eb.Gaussian.isotropic(3))
    found = [eb.run(problem, eb.Homotopy(steps=1), particles=J).info.nonlinearity for J in (4, 40)]
    assert np.isnan(found[0])
    assert found[1] > 0


def test_predictions_leave_the_arrays_of_the_user_as_they_are():
    """A function may return an array that it keeps; averages would otherwise be computed in place."""
    features, labels = logistic_data(2, 20, seed=0)
    posterior = eb.run(linear_as_nonlinear(features, labels, eb.Gaussian.isotropic(2), True), particles=20)
    own = features @ posterior.theta.T
    before = own.copy()
    first, second = (posterior.mean_proba(lambda theta: own) for _ in range(2))
    np.testing.assert_array_equal(own, before)
    np.testing.assert_array_equal(first, second)
