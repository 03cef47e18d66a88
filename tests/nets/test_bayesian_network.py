"""Posteriors of several layers or the whole network: the subspace, its posterior, and two moons as an example."""

import copy
from itertools import pairwise

import numpy as np
import pytest
from sklearn.datasets import load_iris, make_moons
from sklearn.model_selection import train_test_split

import enkbayes as eb

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.func import functional_call, jacrev  # noqa: E402

from enkbayes.nets import BayesianHead, BayesianNetwork  # noqa: E402
from enkbayes.nets.subspace import Network, Subspace, Weights, informed_directions  # noqa: E402


def iris(dtype=torch.float64, classes=3):
    X, y = load_iris(return_X_y=True)
    keep = np.flatnonzero(y < classes)[::3]
    X = (X - X.mean(0)) / X.std(0) + np.random.default_rng(0).standard_normal(X.shape) * 0.5
    return torch.as_tensor(X[keep], dtype=dtype), torch.as_tensor(y[keep])


def trained(outputs, x, y, activation=nn.Tanh, steps=200):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 5), activation(), nn.Linear(5, outputs)).to(x.dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model


def loss(logits, y):
    if logits.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(logits[:, 0], y.to(logits.dtype))
    return nn.functional.cross_entropy(logits, y.long())


def fit(model, x, y, **options):
    defaults = {"rank": 4, "particles": 20, "progress": False}
    return BayesianNetwork.fit(model, [(x[::2], y[::2]), (x[1::2], y[1::2])], **{**defaults, **options})


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_directions_are_the_leading_eigenvectors_of_the_gauss_newton_matrix(outputs):
    x, y = iris(classes=max(2, outputs))
    model = trained(outputs, x, y)
    network = Network(model.requires_grad_(False), Weights.of(model, None), lambda output: output)
    centre = network.weights.flat(model)
    directions, values = informed_directions(network, centre, [((x[:20],), {}), ((x[20:],), {})], 4.0, 3, seed=0)
    J = jacrev(lambda w: network.logits(w, ((x,), {})))(centre)
    if outputs == 3:
        p = torch.softmax(model(x), dim=-1)
        H = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        G = torch.einsum("nkp,nkl,nlq->pq", J, H, J) / 4
    else:
        p = torch.sigmoid(network.logits(centre, ((x,), {})))
        G = J.T @ ((p * (1 - p))[:, None] * J) / 4
    torch.testing.assert_close(values, torch.linalg.eigvalsh(G).flip(0)[:3], rtol=1e-5, atol=0)
    torch.testing.assert_close(directions.T @ directions, torch.eye(3).double() / 4, rtol=0, atol=1e-8)
    torch.testing.assert_close(G @ directions, directions * values, rtol=0, atol=1e-2 * float(values[2]))


@pytest.mark.parametrize("outputs", [1, 3])
def test_jacobian_is_the_derivative_of_the_logits(outputs):
    x, y = iris(classes=max(2, outputs))
    model = trained(outputs, x, y).requires_grad_(False)
    weights = Weights.of(model, ["0"])
    rng = np.random.default_rng(0)
    directions = torch.as_tensor(rng.standard_normal((25, 3)) / 5)
    space = Subspace(Network(model, weights, lambda output: output), weights.flat(model), directions)
    theta, tangents = (torch.as_tensor(rng.standard_normal(shape)) for shape in ((4, 3), (3, 2)))
    inputs, h = ((x,), {}), 1e-6
    slopes = space.jacobian(theta, tangents, inputs, len(x))
    assert slopes.shape == (len(x), 4, 2) if outputs == 1 else (len(x), 4, 3, 2)
    for c in range(2):
        up, down = (space.logits(theta + s * h * tangents[:, c], inputs) for s in (1, -1))
        torch.testing.assert_close(slopes[..., c], (up - down) / (2 * h), rtol=0, atol=1e-7)


def test_all_directions_of_the_last_layer_give_the_head_with_its_prior_at_the_trained_weights():
    x, y = iris(classes=2)
    model = trained(1, x, y, steps=50)
    network = fit(model, x, y, layers=["2"], rank=100, particles=200, sampler=eb.Equilibrium())
    with torch.no_grad():
        features = model[:-1](x)
    prior = eb.Gaussian(torch.cat([model[2].weight[0], model[2].bias]).detach(), 1.0)
    ones = torch.ones(len(x), 1, dtype=x.dtype)
    posterior = eb.run(eb.Problem.create(torch.cat([features, ones], dim=1), y, prior), eb.MeanField())
    expected = posterior.predict_proba(torch.cat([features, ones], dim=1))
    assert network.posterior.info.converged
    torch.testing.assert_close(network(x), expected, rtol=0, atol=5e-3)
    assert network.weights()["2.weight"].shape == (200, 1, 5)
    torch.testing.assert_close(network.weights()["2.weight"].mean(0)[0], posterior.mean[:-1], rtol=0, atol=0.02)


@pytest.mark.parametrize("jacobian", [True, False])
@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_predictions_are_averages_over_networks(outputs, jacobian):
    x, y = iris(classes=max(2, outputs))
    model = trained(outputs, x, y)
    before = copy.deepcopy(model.state_dict())
    flags = [module.training for module in model.modules()]
    network = fit(model, x, y, jacobian=jacobian, prior_precision=5.0)
    assert network.posterior.info.converged
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert flags == [module.training for module in model.modules()]
    stacked = network.weights()
    rows = []
    for j in range(20):
        z = functional_call(model, {name: w[j] for name, w in stacked.items()}, (x,)).detach()
        z = torch.cat([torch.zeros_like(z), z], dim=1) if outputs == 1 else z
        rows.append(torch.softmax(z, dim=1))
    expected = torch.stack(rows)
    torch.testing.assert_close(network.sample_proba(x), expected)
    torch.testing.assert_close(network(x), expected.mean(0))
    uncertainty = network.predict_uncertainty(x)
    torch.testing.assert_close(uncertainty.confidence, network(x).max(dim=1).values)
    assert torch.all(uncertainty.epistemic > -1e-12)
    accuracy = (network(x).argmax(dim=1) == y).double().mean()
    assert accuracy >= (network.sample_proba(x).argmax(dim=2) == y).double().mean()
    assert accuracy > 0.8


def test_state_dict_cast_and_export(tmp_path):
    x, y = iris(torch.float32)
    network = fit(trained(3, x, y), x, y)
    other = fit(trained(3, x, y, steps=20), x, y, seed=1)
    assert not torch.allclose(other(x), network(x))
    torch.save(network.state_dict(), tmp_path / "network.pt")
    other.load_state_dict(torch.load(tmp_path / "network.pt", weights_only=True))
    assert torch.equal(other(x), network(x))
    assert network(x).dtype == torch.float32
    torch.testing.assert_close(copy.deepcopy(network).double()(x.double()).float(), network(x), rtol=0, atol=1e-5)
    program = torch.export.export(network, (x[:8],), dynamic_shapes=(({0: torch.export.Dim("n")},),), strict=False)
    torch.testing.assert_close(program.module()(x), network(x), rtol=0, atol=1e-6)


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Linear(1, 8), nn.BatchNorm1d(4)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, dropout=0.1)
        self.readout = nn.Linear(8, 3)

    def forward(self, x):
        return {"logits": self.readout(self.encoder(self.norm(self.embed(x[:, :, None]))).mean(dim=1))}


def test_attention_and_a_dict_as_output():
    x, y = iris(torch.float32)
    torch.manual_seed(0)
    model = Attentive()
    network = fit(model, x, y, output=lambda found: found["logits"], layers=["encoder", "readout"], rank=3)
    assert network(x).shape == (len(x), 3)
    for place in (None, "logits"):
        other = fit(model, x, y, output=place, layers=["encoder", "readout"], rank=3)
        torch.testing.assert_close(other(x), network(x))
    assert set(network.weights()) == {
        n for n, _ in model.named_parameters() if n.split(".")[0] in {"encoder", "readout"}
    }


def test_errors_are_one_clear_sentence():
    x, y = iris()
    model = trained(3, x, y, steps=1)
    with pytest.raises(ValueError, match=r"layers names 'fc', which has no parameters; expected some of \['0.weight'"):
        fit(model, x, y, layers=["fc"])
    with pytest.raises(ValueError, match="rank is 0; expected a whole number, at least 1"):
        fit(model, x, y, rank=0)
    with pytest.raises(ValueError, match="prior_precision is -1; expected a positive number"):
        fit(model, x, y, prior_precision=-1)
    with pytest.raises(ValueError, match="particles is 1; expected a whole number, at least 2"):
        fit(model, x, y, particles=1)
    with pytest.raises(ValueError, match=r"shape \(25, 1, 3\); expected logits"):
        fit(nn.Sequential(model, nn.Unflatten(1, (1, 3))), x, y)


def test_two_moons_the_whole_network_is_less_sure_far_away_at_unchanged_accuracy():
    X, y = make_moons(100, noise=0.2, random_state=0)
    arrays = train_test_split(X, y, test_size=30, random_state=0)
    x, x_test, y, y_test = (torch.as_tensor(a) for a in arrays)
    torch.manual_seed(0)
    widths = (2, 20, 20, 50, 1)
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers[:-1]).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(1000):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    head = BayesianHead.fit(model, [(x, y)], progress=False)
    network = BayesianNetwork.fit(model, [(x, y)], rank=8, particles=40, progress=False)
    angle = torch.linspace(0, 2 * torch.pi, 65, dtype=torch.float64)[:-1]
    far = 30 * torch.stack([torch.cos(angle), torch.sin(angle)], dim=1)
    with torch.no_grad():
        point = torch.sigmoid(model(far))
        point_accuracy = ((model(x_test)[:, 0] > 0) == y_test).double().mean()
    confidences = [p.max(dim=1).values.mean() for p in (torch.cat([point, 1 - point], dim=1), head(far), network(far))]
    accuracies = [(module(x_test).argmax(dim=1) == y_test).double().mean() for module in (head, network)]
    assert confidences[2] < confidences[1] - 0.02
    assert confidences[1] < confidences[0]
    assert accuracies == [point_accuracy, point_accuracy]
    assert network.posterior.info.converged
