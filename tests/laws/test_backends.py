"""Array in, array of the same library, dtype and device out; and the same numbers everywhere."""

import array_api_strict
import numpy as np
import pytest

import enkbayes as eb
from enkbayes.engine.arrays import namespace, to_numpy
from laws.cases import PAIRS, SAMPLERS, full_prior, make, raw_data


def torch_array(x):
    torch = pytest.importorskip("torch")
    return torch.asarray(x)


def jax_array(x):
    jax = pytest.importorskip("jax")
    return jax.numpy.asarray(x)


BACKENDS = {
    "torch": torch_array,
    "strict": array_api_strict.asarray,
    "strict on another device": lambda x: array_api_strict.asarray(x, device=array_api_strict.Device("device1")),
    "jax": jax_array,
}


@pytest.mark.filterwarnings("ignore:TrotterSampler did not converge")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("sampler", "likelihood"), PAIRS)
def test_same_numbers_on_every_library(sampler, likelihood, backend):
    features, labels = raw_data(likelihood)
    prior = full_prior(likelihood)
    if backend == "jax" and (likelihood != "bernoulli" or sampler not in ("equilibrium", "homotopy", "mean field")):
        pytest.skip("jax compiles every shape again; three samplers show that it works")
    convert = BACKENDS[backend]
    expected = eb.run(make(likelihood, features, labels, prior, chunk=16), SAMPLERS[sampler], particles=15, seed=2)
    actual = eb.run(
        make(likelihood, convert(features), labels, prior, chunk=16), SAMPLERS[sampler], particles=15, seed=2
    )
    reference = convert(features)
    for name in ("theta", "mean", "cov"):
        value = getattr(actual, name)
        assert namespace(value) is namespace(reference)
        assert value.dtype == reference.dtype
        assert value.device == reference.device
        assert to_numpy(value) == pytest.approx(getattr(expected, name), abs=1e-7)
    for method in ("predict_proba", "sample_proba"):
        value = getattr(actual, method)(reference)
        assert value.device == reference.device
        assert to_numpy(value) == pytest.approx(getattr(expected, method)(features), abs=1e-7)


@pytest.mark.filterwarnings("ignore:TrotterSampler did not converge")
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(("sampler", "likelihood"), PAIRS)
def test_float32_is_kept_and_close(sampler, likelihood, library):
    features, labels = raw_data(likelihood)
    prior = full_prior(likelihood)
    small = features.astype(np.float32)
    small = torch_array(small) if library == "torch" else small
    precise = eb.run(make(likelihood, features, labels, prior), SAMPLERS[sampler], particles=15)
    rough = eb.run(make(likelihood, small, labels, prior), SAMPLERS[sampler], particles=15)
    assert rough.theta.dtype == small.dtype
    assert rough.predict_proba(small).dtype == small.dtype
    assert rough.info.converged == precise.info.converged
    assert to_numpy(rough.theta) == pytest.approx(precise.theta, abs=2e-3)


def test_predictions_follow_the_features_they_are_asked_about():
    features, labels = raw_data("bernoulli")
    posterior = eb.run(make("bernoulli", features, labels, 1.0))
    answer = posterior.predict_proba(torch_array(features.astype(np.float32)))
    assert to_numpy(answer) == pytest.approx(posterior.predict_proba(features), abs=1e-6)
    assert str(answer.dtype) == "torch.float32"


def test_sparse_features():
    import scipy.sparse

    rng = np.random.default_rng(0)
    dense = rng.standard_normal((60, 5)) * (rng.random((60, 5)) < 0.4)
    labels = (dense.sum(axis=1) > 0).astype(int)
    one = eb.run(eb.Problem.create(dense, labels, 2.0, intercept=10.0, chunk=17))
    other = eb.run(eb.Problem.create(scipy.sparse.csr_array(dense), labels, 2.0, intercept=10.0, chunk=17))
    assert other.theta == pytest.approx(one.theta, abs=1e-9)
    assert other.predict_proba(scipy.sparse.csr_array(dense)) == pytest.approx(one.predict_proba(dense), abs=1e-9)
