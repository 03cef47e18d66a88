"""The posterior of every method survives save and load and predicts the same bits, or `save` says why it cannot."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.evaluation.baselines import BY_NAME, HMC, DeepEnsemble, Ensemble

rng = np.random.default_rng(3)
X = rng.standard_normal((60, 3))
SCORE = X @ [1.0, -1.0, 0.5] + 0.7 * rng.standard_normal(60)
PROBLEMS = {
    "two classes": eb.Problem.create(X, SCORE > 0, 2.0, intercept=2.0),
    "three classes": eb.Problem.create(X, np.asarray(["a", "b", "c"])[np.digitize(SCORE, [-0.6, 0.6])], 2.0),
}
QUICK = {"hmc": HMC(samples=10, chains=2, warmup=20), "deep-ensemble": DeepEnsemble(members=2, steps=5)}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def method(name):
    found = QUICK.get(name) or BY_NAME[name]()
    return replace(found, particles=20) if isinstance(found, Ensemble) else found


def same(posterior, again, features=X):
    """The posterior from a file is the one that was saved."""
    np.testing.assert_array_equal(again.theta, posterior.theta)
    np.testing.assert_array_equal(again.predict_proba(features), posterior.predict_proba(features))
    np.testing.assert_array_equal(again.sample_proba(features), posterior.sample_proba(features))
    assert repr(again.info) == repr(posterior.info)
    assert repr(again.likelihood) == repr(posterior.likelihood)


@pytest.mark.parametrize(
    ("name", "problem"),
    [(name, problem) for name in BY_NAME for problem in PROBLEMS if (name, problem) != ("hmc", "three classes")],
)  # NUTS compiles for each likelihood as long as all else here takes
def test_every_method(tmp_path, name, problem):
    for needed in getattr(method(name), "needs", ()):
        pytest.importorskip(needed)
    path, fitted = tmp_path / "p.safetensors", method(name).fit(PROBLEMS[problem], seed=1)
    if isinstance(fitted, eb.Posterior):
        eb.save(fitted, path)
        same(fitted, eb.load(path))
    else:
        with pytest.raises(
            ValueError, match=r"cannot save .*; expected an EnsembleClassifier, an EnsembleRegressor or a Posterior"
        ):
            eb.save(fitted, path)
        assert not path.exists()


@pytest.mark.parametrize("sampler", [eb.Equilibrium(tau=0.3), eb.Equilibrium(batch=20), eb.MeanField(rank=2)], ids=repr)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_other_modes_of_samplers(tmp_path, sampler, problem):
    posterior = eb.run(PROBLEMS[problem], sampler, particles=20)
    eb.save(posterior, tmp_path / "p.safetensors")
    same(posterior, eb.load(tmp_path / "p.safetensors"))


def test_a_polished_posterior(tmp_path):
    problem = PROBLEMS["two classes"]
    posterior = eb.polish(problem, eb.run(problem, particles=20), 2)
    eb.save(posterior, tmp_path / "p.safetensors")
    again = eb.load(tmp_path / "p.safetensors")
    same(posterior, again)
    np.testing.assert_array_equal(again.fitted.cov, posterior.fitted.cov)


@dataclass(frozen=True)
class Tempered(eb.Bernoulli):
    """A likelihood from outside the package, with fields of every kind that a file can hold."""

    temperature: float = 1.0
    names: tuple[str, ...] = ()
    offsets: np.ndarray | None = None

    def predictive(self, mean_logits, *, V):
        return super().predictive(mean_logits / self.temperature, V=V / self.temperature)


OWN = Tempered(2.0, ("no", "yes"), np.asarray([0.5, -0.5]))


def own_posterior(likelihood=OWN):
    return eb.run(eb.Problem.create(X, SCORE > 0, 2.0, likelihood=likelihood), particles=20)


def test_a_likelihood_of_the_user(tmp_path):
    posterior = own_posterior()
    eb.save(posterior, tmp_path / "p.safetensors")
    same(posterior, eb.load(tmp_path / "p.safetensors", likelihood=Tempered))


def test_a_classifier_with_a_likelihood_of_the_user(tmp_path):
    clf = eb.EnsembleClassifier(prior_precision=1.0, likelihood=OWN, particles=20, random_state=0).fit(X, SCORE > 0)
    clf.save(tmp_path / "c.safetensors")
    again = eb.load(tmp_path / "c.safetensors", likelihood=Tempered)
    assert repr(again.likelihood) == repr(OWN)
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))


def test_a_file_never_decides_which_code_is_imported(tmp_path):
    path = tmp_path / "p.safetensors"
    eb.save(own_posterior(), path)
    with pytest.raises(
        ValueError, match=r"Tempered is not part of enkbayes, .*; pass its class, load\(path, likelihood=Tempered\)"
    ):
        eb.load(path)
    for wrong in (eb.Bernoulli, OWN, Tempered.__name__):
        with pytest.raises(ValueError, match="expected likelihood=Tempered, the class, but got"):
            eb.load(path, likelihood=wrong)
    eb.save(eb.run(PROBLEMS["two classes"], particles=20), path)
    with pytest.raises(ValueError, match="the likelihood is Bernoulli; expected likelihood=Bernoulli"):
        eb.load(path, likelihood=Tempered)


class Bare(eb.Bernoulli):
    """No dataclass of its own: its settings are not known."""

    def __init__(self, temperature):
        object.__setattr__(self, "temperature", temperature)


def test_a_likelihood_that_cannot_be_stored_says_why(tmp_path):
    with pytest.raises(ValueError, match=r"Bare is not a dataclass.*; decorate the class with @dataclass"):
        eb.save(own_posterior(Bare(2.0)), tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match=r"likelihood of the posterior cannot be stored: .*; use numbers, text"):
        eb.save(own_posterior(Tempered(names={"a": 1})), tmp_path / "p.safetensors")
    assert list(tmp_path.iterdir()) == []
