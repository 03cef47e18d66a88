"""Deep ensembles: independent members, adversarial inputs, and the same result at once or one by one."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_iris, make_moons

import enkbayes as eb
from enkbayes.evaluation.baselines.deep_ensemble import DeepEnsemble
from enkbayes.inference.priors import weight_prior

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from enkbayes.nets.training.deep_ensemble import (  # noqa: E402
    adversarial_inputs,
    cross_entropy,
    data_loss,
    small_network,
)

QUICK = DeepEnsemble(members=3, steps=50, batch_size=32)


def moons(seed=0):
    return make_moons(100, noise=0.2, random_state=seed)


@pytest.fixture(scope="module")
def trained():
    """The paper's network on its 2-D data."""
    x, y = moons()
    method = DeepEnsemble(steps=250, batch_size=100)
    return x, y, method.fit_network(lambda: small_network(2, (20, 20, 50), 1), x, y)


def tiny(outputs):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


@pytest.mark.parametrize("outputs", [1, 4])
def test_the_adversarial_gradient_is_that_of_the_input(outputs):
    """The direction of every adversarial input agrees with central differences of the loss."""
    network = tiny(outputs)
    x = torch.tensor(np.random.default_rng(0).standard_normal((1, 6, 3)))
    targets = torch.arange(6)[None] % max(outputs, 2)

    def forward(x):
        z = network(x)
        return z[..., 0] if outputs == 1 else z

    reach = torch.tensor([0.1, 0.2, 0.0], dtype=torch.float64)
    loss, nearby = adversarial_inputs(forward, (x, targets, None), reach)
    h, slope = 1e-6, torch.zeros_like(x)
    for i in np.ndindex(*x.shape):
        step = torch.zeros_like(x)
        step[i] = h
        with torch.no_grad():
            up, down = (cross_entropy(forward(x + s * step), targets).sum() for s in (1, -1))
        slope[i] = (up - down) / (2 * h)
    assert slope.abs().min() > 1e-6  # no sign depends on round-off
    torch.testing.assert_close(nearby, x + reach * torch.sign(slope))
    assert not nearby.requires_grad
    assert torch.all(cross_entropy(forward(nearby), targets) > loss)  # small steps uphill raise the loss of every row


def test_the_loss_is_half_clean_and_half_adversarial_and_counts_weights():
    network, x = tiny(4), torch.tensor(np.random.default_rng(1).standard_normal((2, 8, 3)))
    targets, weights = torch.arange(16).reshape(2, 8) % 4, torch.rand(2, 8, dtype=torch.float64)
    reach = torch.full((3,), 0.3, dtype=torch.float64)
    clean, nearby = adversarial_inputs(network, (x, targets, weights), reach)
    attacked = cross_entropy(network(nearby), targets)
    expected = ((clean + attacked) / 2 * weights).mean(dim=1).sum()
    torch.testing.assert_close(data_loss(network, (x, targets, weights), reach), expected)
    torch.testing.assert_close(data_loss(network, (x, targets, None), None), clean.mean(dim=1).sum())


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_at_once_and_one_by_one_are_the_same_training(outputs):
    x, y = load_iris(return_X_y=True)
    y = y if outputs == 3 else y > 0
    weights = np.linspace(0.5, 2, len(x))
    options = {"weights": weights, "prior_precision": 0.5, "bias_precision": 0.01, "seed": 4}
    proba = [
        replace(QUICK, vectorise=way).fit_network(lambda: small_network(4, (8, 8), outputs), x, y, **options)
        for way in (True, False)
    ]
    at_once, one_by_one = (ensemble.sample_proba(x) for ensemble in proba)
    assert at_once.shape == (3, 150, max(outputs, 2))
    np.testing.assert_allclose(at_once, one_by_one, atol=1e-5)
    np.testing.assert_allclose(at_once.sum(-1), 1)


def test_members_differ_by_their_start_and_by_their_order(trained):
    x, y, ensemble = trained
    proba = ensemble.sample_proba(x)[..., 1]
    gaps = [np.abs(a - b).max() for i, a in enumerate(proba) for b in proba[:i]]
    assert min(gaps) > 1e-3

    def same_start():
        torch.manual_seed(0)
        return small_network(2, (8,), 1)

    ordered = QUICK.fit_network(same_start, x, y).sample_proba(x)
    assert np.abs(ordered[0] - ordered[1]).max() > 1e-6
    whole = replace(QUICK, batch_size=100).fit_network(same_start, x, y).sample_proba(x)
    np.testing.assert_allclose(whole[0], whole[1], atol=1e-4)  # one batch has no order but that of its sum


def test_the_same_seed_gives_the_same_members_and_torch_keeps_its_random_state():
    x, y = moons()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    fits = [QUICK.fit_network(lambda: small_network(2, (8,), 1), x, y, seed=s).sample_proba(x) for s in (1, 1, 2)]
    torch.testing.assert_close(torch.rand(3), expected)
    np.testing.assert_array_equal(fits[0], fits[1])
    assert np.abs(fits[0] - fits[2]).max() > 1e-3


def test_two_moons_are_classified_and_members_disagree_far_away(trained):
    ensemble = trained[2]
    fresh, truth = moons(seed=1)
    assert np.mean(ensemble.predict_proba(fresh).argmax(1) == truth) > 0.93
    angle = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    far = 20 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    together = ensemble.predict_uncertainty(far).total.mean()
    alone = [eb.Uncertainty.of_members(p[None]).total.mean() for p in ensemble.sample_proba(far)]
    assert together > 1.5 * max(alone)
    single = replace(ensemble, networks=ensemble.networks[:1]).predict_uncertainty(far)
    np.testing.assert_allclose(single.epistemic, 0, atol=1e-12)


def test_as_a_method_it_takes_the_prior_of_the_problem():
    x, y = load_iris(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)

    def sure(precision):
        problem = eb.Problem.create(x, y, weight_prior(4, 3, precision), intercept=100.0)
        ensemble = replace(QUICK, steps=120).fit(problem)
        return np.mean(ensemble.predict_uncertainty(x).confidence), ensemble

    wide, ensemble = sure(0.1)
    narrow, _ = sure(20.0)
    assert narrow < 0.8
    assert wide > 0.9
    assert np.mean(ensemble.predict_proba(x).argmax(1) == y) > 0.95
    weight, bias, *_ = ensemble.networks[0].parameters()
    assert weight.shape == (50, 4)
    assert bias.shape == (50,)


def test_the_prior_is_the_penalty_of_the_summed_loss():
    """A network without hidden layers is the linear model, so its clean optimum is the MAP."""
    x, y = load_iris(return_X_y=True)
    x, y = x[50:, 2:] - x[50:, 2:].mean(0), y[50:]
    problem = eb.Problem.create(x, y, 2.0, intercept=100.0)
    method = DeepEnsemble(members=1, hidden=(), steps=250, batch_size=200, learning_rate=0.3, adversarial=0.0)
    weight, bias = method.fit(problem).networks[0].parameters()
    found = torch.cat([weight[0], bias]).detach().numpy().astype(float)

    def energy(theta):
        return float((problem.loss(theta[None]) - problem.prior.log_density(theta[None]))[0])

    slopes = [(energy(found + h) - energy(found - h)) / 2e-4 for h in 1e-4 * np.eye(3)]
    assert np.abs(slopes).max() < 1e-2
    twice = eb.Problem.create(x, y, 2.0, intercept=100.0, weights=np.full(len(x), 2.0))
    again = np.append(*(p.detach().numpy().ravel() for p in method.fit(twice).networks[0].parameters()))
    repeated = eb.Problem.create(np.repeat(x, 2, axis=0), np.repeat(y, 2), 2.0, intercept=100.0)
    third = np.append(*(p.detach().numpy().ravel() for p in method.fit(repeated).networks[0].parameters()))
    np.testing.assert_allclose(again, third, atol=2e-3)
    assert np.abs(again - found).max() > 0.1


class Normed(nn.Module):
    """Buffers, dropout and an odd last batch."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))

    def forward(self, x):
        return self.body(x)


def test_batch_norm_is_trained_one_by_one(tmp_path):
    x, y = moons()
    ensemble = replace(QUICK, batch_size=33).fit_network(Normed, x, y, checkpoint=tmp_path)
    assert all(not network.training for network in ensemble.networks)
    assert int(ensemble.networks[0].body[1].num_batches_tracked) == 2 * QUICK.steps  # clean and adversarial
    assert np.mean(ensemble.predict_proba(x).argmax(1) == y) > 0.8
    again = replace(QUICK, batch_size=33).fit_network(Normed, x, y)
    np.testing.assert_array_equal(again.sample_proba(x), ensemble.sample_proba(x))


def test_a_loader_is_as_good_as_an_array():
    x, y = moons()
    data = torch.utils.data.TensorDataset(torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y))
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    ensemble = replace(QUICK, steps=100).fit_network(lambda: small_network(2, (20,), 1), loader)
    torch.testing.assert_close(torch.rand(3), expected)
    assert np.mean(ensemble.predict_proba(x).argmax(1) == y) > 0.85
    proba = ensemble.sample_proba(x)
    assert np.abs(proba[0] - proba[1]).max() > 1e-3
    with pytest.raises(ValueError, match="no batches the second time"):
        QUICK.fit_network(lambda: small_network(2, (4,), 1), iter(list(loader)))


def test_training_continues_where_it_stopped(tmp_path):
    x, y = moons()
    built = []

    def make_model():
        built.append(1)
        return small_network(2, (8,), 1)

    whole = QUICK.fit_network(make_model, x, y, checkpoint=tmp_path / "members")
    assert sorted(p.name for p in (tmp_path / "members").iterdir()) == [f"member-{m}.safetensors" for m in range(3)]
    (tmp_path / "members" / "member-1.safetensors").unlink()
    times = [(tmp_path / "members" / f"member-{m}.safetensors").stat().st_mtime_ns for m in (0, 2)]
    again = QUICK.fit_network(make_model, x, y, checkpoint=tmp_path / "members")
    assert times == [(tmp_path / "members" / f"member-{m}.safetensors").stat().st_mtime_ns for m in (0, 2)]
    np.testing.assert_allclose(again.sample_proba(x), whole.sample_proba(x), atol=1e-6)
    fewer = replace(QUICK, members=2, vectorise=False).fit_network(make_model, x, y, checkpoint=tmp_path / "members")
    np.testing.assert_array_equal(fewer.sample_proba(x), again.sample_proba(x)[:2])  # neither changes a member
    with pytest.raises(ValueError, match="other data or with other settings"):
        replace(QUICK, steps=61).fit_network(make_model, x, y, checkpoint=tmp_path / "members")
    with pytest.raises(ValueError, match="other data or with other settings"):
        QUICK.fit_network(make_model, x + 1, y, checkpoint=tmp_path / "members")
    with pytest.raises(ValueError, match="of another network"):
        QUICK.fit_network(lambda: small_network(2, (9,), 1), x, y, checkpoint=tmp_path / "members")
    (tmp_path / "members" / "member-0.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is damaged"):
        QUICK.fit_network(make_model, x, y, checkpoint=tmp_path / "members")


def test_predictions_use_the_array_library_of_the_inputs():
    x, y = moons()
    ensemble = replace(QUICK, steps=5).fit_network(lambda: small_network(2, (4,), 1), x, np.where(y, "b", "a"))
    assert ensemble.classes.tolist() == ["a", "b"]
    tensor = torch.as_tensor(x, dtype=torch.float32)
    assert ensemble.predict_proba(tensor).dtype == torch.float32
    np.testing.assert_allclose(ensemble.predict_proba(tensor), ensemble.predict_proba(x), atol=1e-6)
    assert ensemble.predict_proba(x[:0]).shape == (0, 2)
    u = ensemble.predict_uncertainty(x)
    np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic)
    np.testing.assert_array_equal(u.confidence, ensemble.predict_proba(x).max(1))


def test_the_paper_s_optimiser():
    x, y = moons()

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    ensemble = replace(QUICK, steps=100).fit_network(lambda: small_network(2, (20,), 1), x, y, optimiser=sgd)
    assert np.mean(ensemble.predict_proba(x).argmax(1) == y) > 0.85


def test_invalid_arguments_are_errors():
    x, y = moons()
    make_model = lambda: small_network(2, (4,), 1)  # noqa: E731
    for trouble, options in (("members is 0", {"members": 0}), ("adversarial is -1", {"adversarial": -1})):
        with pytest.raises(ValueError, match=trouble):
            DeepEnsemble(**options)
    with pytest.raises(ValueError, match="y is missing"):
        QUICK.fit_network(make_model, x)
    with pytest.raises(ValueError, match="NaN"):
        QUICK.fit_network(make_model, np.where(x > 0, x, np.nan), y)
    with pytest.raises(ValueError, match="X has shape"):
        QUICK.fit_network(make_model, x[:, 0], y)
    with pytest.raises(ValueError, match="expected one for each of 3 classes"):
        QUICK.fit_network(make_model, x, np.arange(len(x)) % 3)
    with pytest.raises(ValueError, match="BatchNorm has, cannot be trained all at once"):
        replace(QUICK, vectorise=True).fit_network(Normed, x, y)
    with pytest.raises(ValueError, match="no parameters"):
        QUICK.fit_network(nn.Flatten, x, y)
    nonlinear = eb.Problem.nonlinear(lambda theta: x @ theta.T, y, eb.Gaussian.isotropic(2))
    with pytest.raises(ValueError, match="needs features and classes"):
        QUICK.fit(nonlinear)
    for prior in (eb.Gaussian(np.ones(2), 1.0), eb.Gaussian(np.zeros(2), np.array([1.0, 2.0]))):
        with pytest.raises(ValueError, match="not N\\(0, variance I\\)"):
            QUICK.fit(eb.Problem.create(x, y, prior))
