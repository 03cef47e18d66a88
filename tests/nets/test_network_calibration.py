"""The choice of a network's posterior by held-out rows, sampled rows, and networks evaluated one by one."""

import copy
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from enkbayes.evaluation.metrics import nll  # noqa: E402
from enkbayes.inference.held_out import TEMPERATURE  # noqa: E402
from enkbayes.nets import BayesianNetwork  # noqa: E402
from enkbayes.nets.linearised import Linearised, choose  # noqa: E402
from enkbayes.nets.loaders import sample_rows  # noqa: E402
from enkbayes.nets.subspace import Network, Subspace, Weights, informed_directions  # noqa: E402
from enkbayes.reproduction.resnet import ResNet10  # noqa: E402

TRUTH = np.linspace(-1.5, 1.5, 6)


def linear(theta, size, seed, centre=TRUTH):
    """Rows of a logistic model with the weights TRUTH, linearised at the weights `theta`."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((size, len(centre)))
    labels = (rng.random(size) < 1 / (1 + np.exp(-features @ centre))).astype(int)
    return Linearised(torch.as_tensor(features @ theta), torch.as_tensor(features), labels)


def moons(size, seed):
    """Inputs (n, 4), of which two separate the classes along a curve, and labels, a tenth of which is wrong."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size, 4))
    y = (x[:, 1] > np.sin(2 * x[:, 0])) ^ (rng.random(size) < 0.1)
    return torch.as_tensor(x), torch.as_tensor(y.astype(int))


def trained(x, y, outputs=1, steps=400, activation=nn.Tanh):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12), activation(), nn.Linear(12, outputs)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(x)
        if outputs == 1:
            loss = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], y.double())
        else:
            loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def fit(model, x, y, **options):
    defaults = {"rank": 4, "particles": 20, "progress": False}
    return BayesianNetwork.fit(model, [(x[::2], y[::2]), (x[1::2], y[1::2])], **{**defaults, **options})


def space_of(model, x, rank=3, layers=None, scale=1.0):
    network = Network(model, Weights.of(model, layers), lambda output: output)
    centre = network.weights.flat(model)
    directions, _ = informed_directions(network, centre, [((x,), {})], 1.0, rank, seed=0)
    return Subspace(network, centre, directions, scale)


@pytest.mark.parametrize("outputs", [1, 3])
def test_linearised_logits_are_the_networks_to_first_order(outputs):
    x, y = moons(40, seed=0)
    space = space_of(trained(x, y, outputs, steps=50), x)
    start, along = torch.zeros(1, 3).double(), torch.eye(3).double()
    inputs = ((x,), {})
    found = Linearised(space.logits(start, inputs)[:, 0], space.jacobian(start, along, inputs, 40)[:, 0], y.numpy())
    u = torch.as_tensor(np.random.default_rng(0).standard_normal((5, 3)))
    assert found.logits(u).shape == ((40, 5) if outputs == 1 else (40, 5, 3))
    torch.testing.assert_close(found.logits(0 * u), space.logits(0 * u, inputs))
    errors = [float((found.logits(h * u) - space.logits(h * u, inputs)).abs().max()) for h in (1e-2, 1e-3)]
    assert errors[0] > 0
    assert errors[1] < errors[0] / 50  # of second order: a tenth of the step, a hundredth of the error


def test_spread_is_the_variance_of_the_logits():
    found = linear(TRUTH, 500, seed=0)
    u = np.random.default_rng(0).standard_normal((4000, 6)) * found.variance(2.0) ** 0.5
    moved = found.logits(torch.as_tensor(u)) - found.trained[:, None]
    assert float((moved**2).mean()) == pytest.approx(2.0, rel=0.05)


def test_temperature_scaling_where_nothing_is_to_gain():
    reports = [choose(linear(TRUTH, 500, seed), 20, seed=0) for seed in range(8)]
    plain = [report for report in reports if report.chosen == TEMPERATURE]
    assert len(plain) >= 6  # with a margin of one standard error, a narrow posterior wins now and then
    assert max(report.chosen.spread for report in reports) <= 0.1
    assert all(report.scale == pytest.approx(1.0, abs=0.3) for report in reports)
    assert plain[0].message.startswith("temperature scaling: no posterior is clearly better on 500 held-out rows")
    assert plain[0].message.endswith("where the network is linearised")


def test_a_wide_posterior_where_the_trained_weights_are_off():
    report = choose(linear(TRUTH[::-1].copy(), 300, seed=2), 20, seed=0)
    assert report.chosen.spread >= 1
    best = max(report.scores, key=lambda score: score.gain)
    assert best.gain > 0.02
    assert best.gain > 10 * best.error
    assert report.scores[0].candidate == TEMPERATURE
    assert "below temperature scaling, on 300 held-out rows, where the network is linearised" in report.message


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_scale_undoes_over_confidence(factor):
    assert linear(factor * TRUTH, 2000, seed=3).scale() == pytest.approx(1 / factor, rel=0.15)


def test_scale_of_many_classes():
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((2000, 3))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    found = Linearised(torch.as_tensor(5 * logits), torch.zeros(2000, 3, 2).double(), labels)
    assert found.scale() == pytest.approx(0.2, rel=0.15)


def test_too_few_rows_to_compare_are_temperature_scaled():
    report = choose(linear(TRUTH, 19, seed=4), 20, seed=0)
    assert (report.chosen, report.scores) == (TEMPERATURE, ())
    assert report.message.startswith("19 held-out rows are too few to compare: temperature scaling")


@pytest.mark.parametrize("last", [0, 1])
def test_a_class_without_rows_or_with_one_does_not_stop_the_choice(last):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((300, 2))
    truth = np.array([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    labels = np.argmax((features @ truth.T + rng.gumbel(size=(300, 3)))[:, :2], axis=1)
    labels[:last] = 2
    slopes = np.zeros((300, 3, 2))
    slopes[:, 0, :], slopes[:, 1, :] = features, -features
    wrong = features @ truth[[1, 0, 2]].T
    report = choose(Linearised(torch.as_tensor(wrong), torch.as_tensor(slopes), labels), 20, seed=0)
    assert report.chosen.spread >= 0.3
    assert len(report.scores) > 2


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_calibrated_networks_predict_no_worse_than_over_confident_weights(outputs):
    x, y = moons(60, seed=0)
    model = trained(x, y, outputs)
    held, labels = moons(300, seed=1)
    new, truth = moons(1000, seed=2)
    network = fit(model, x, y, calibration=[(held[:150], labels[:150]), (held[150:], labels[150:])], rank=6)
    logits = model(new)
    proba = torch.softmax(torch.cat([0 * logits, logits], dim=1) if outputs == 1 else logits, dim=1)
    losses = [nll(p.numpy(), truth.numpy()) for p in (proba, network(new))]
    assert losses[1] < losses[0] - 0.3  # sixty rows with wrong labels make the weights overconfident
    assert float(network.scale) == network.calibration.scale < 0.7
    accuracies = [float((p.argmax(dim=1) == truth).double().mean()) for p in (proba, network(new))]
    assert accuracies[1] > accuracies[0] - 0.01
    assert network.calibration.rows == 300


def test_calibration_without_a_gain_gives_the_scaled_network():
    x, y = moons(1000, seed=0)
    model = trained(x, y, steps=150)
    network = fit(model, x, y, calibration=[moons(1000, seed=1)], far_field=False)
    scaled = torch.sigmoid(network.calibration.scale * model(x)[:, 0])
    difference = float((network(x)[:, 1] - scaled).abs().max())
    assert difference < (0.01 if network.calibration.chosen == TEMPERATURE else 0.15)
    assert 0.5 < network.calibration.scale < 1.2
    copied = copy.deepcopy(network.state_dict())
    other = fit(model, x, y)
    assert float(other.scale) == 1
    other.load_state_dict(copied)
    assert torch.equal(other(x), network(x))


def test_states_of_earlier_versions_have_no_scale():
    x, y = moons(60, seed=0)
    network, other = (fit(trained(x, y, steps=s), x, y) for s in (100, 20))
    state = network.state_dict()
    del state["scale"]
    other.scale.fill_(0.3)
    other.load_state_dict(state)
    assert float(other.scale) == 1
    assert "scale" not in state  # the caller's own dict does not change
    torch.testing.assert_close(other(x), network(x))


def test_errors_are_one_clear_sentence():
    x, y = moons(60, seed=0)
    model = trained(x, y, steps=5)
    with pytest.raises(ValueError, match="pass either calibration= or prior_precision=, not both"):
        fit(model, x, y, calibration=[(x, y)], prior_precision=1.0)
    with pytest.raises(ValueError, match="rows is 0; expected a whole number, at least 1"):
        fit(model, x, y, rows=0)
    with pytest.raises(ValueError, match=r"label -1 is not among the given classes \[0, 1\]"):
        fit(model, x, y, calibration=[(x, 2 * y - 1)])


def test_sampled_rows_represent_all():
    x, y = moons(2000, seed=0)
    model = trained(x, y, steps=100)
    every, some = fit(model, x, y), fit(model, x, y, rows=1000)
    overlap = torch.linalg.svdvals(torch.linalg.qr(every.directions).Q.T @ torch.linalg.qr(some.directions).Q)
    assert overlap.min() > 0.9
    torch.testing.assert_close(some.directions.norm(dim=0), torch.ones(4).double())  # prior_precision 1 all the same
    sds = [network.posterior.theta.std(dim=0) for network in (every, some)]
    torch.testing.assert_close(sds[1].sort().values, sds[0].sort().values, rtol=0.1, atol=0)
    assert (some(x) - every(x)).abs().mean() < 0.03  # the rows, not their number, move the mean by a posterior sd
    few = fit(model, x[:1000], y[:1000])
    assert few.posterior.theta.std(dim=0).mean() > 1.15 * sds[1].mean()  # the weight counts


def test_sampled_rows_of_tuples_and_dicts():
    x, y = torch.arange(40).reshape(20, 2), np.arange(20)
    mask = torch.ones(3)  # belongs to the batch, not to rows
    for inputs in ((x, mask), {"x": x, "mask": mask}, (x, {"x": x})):
        rows = sample_rows([(inputs, y), (inputs, y + 20)], 10, seed=1)
        assert rows.weight == 4
        for (args, kwargs), labels in rows.pairs:
            kept = args[0] if args else kwargs["x"]
            assert kept[:, 0].tolist() == [2 * (label % 20) for label in labels]
        assert len(np.unique(np.concatenate(rows.labels))) == 10
    assert sample_rows([(x, y)], 20, seed=0).weight == 1


@pytest.mark.parametrize("outputs", [1, 3])
def test_networks_one_by_one_give_what_many_at_once_give(outputs):
    x, y = moons(60, seed=0)
    model = trained(x, y, outputs, steps=50)
    space = space_of(model, x, scale=0.7)
    rng = np.random.default_rng(0)
    theta, tangents = (torch.as_tensor(rng.standard_normal(shape)) for shape in ((5, 3), (3, 2)))
    options = {"jacobian": True, "particles": 20, "calibration": [moons(200, seed=1)]}

    def results(vectorise):
        inputs = ((x,), {})
        same = replace(space, vectorise=vectorise)
        network = fit(model, x, y, vectorise=vectorise, **options)
        return (
            same.logits(theta, inputs),
            same.jacobian(theta, tangents, inputs, len(x)),
            network.directions,
            network.posterior.theta,
            network(x),
        )

    for one, many in zip(results(False), results(True), strict=True):
        torch.testing.assert_close(one, many, rtol=0, atol=1e-5)


@pytest.mark.parametrize("vectorise", [True, False])
def test_one_network_at_a_time_runs_unless_they_are_vectorised(vectorise):
    """vmap calls the model once for a chunk of particles, with batched weights; otherwise there is a call for each."""
    x, y = moons(60, seed=0)
    space = replace(space_of(trained(x, y, steps=5), x), vectorise=vectorise, networks=3)
    calls = []
    with space.network.model[0].register_forward_hook(lambda *_: calls.append(1)):
        space.logits(torch.zeros(7, 3).double(), ((x,), {}))
    assert len(calls) == (3 if vectorise else 7)


def test_defaults_of_large_networks():
    x, y = moons(60, seed=0)
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(4, 3_400), nn.Tanh(), nn.Linear(3_400, 1)).double()  # 20,401 weights
    network = fit(wide, x, y, rank=2, particles=None)
    assert network.posterior.theta.shape == (8, 2)  # 2 rank + 4
    model = trained(x, y, steps=50)
    small, usual = (fit(model, x, y, particles=None, vectorise=vectorise) for vectorise in (False, None))
    assert small.posterior.theta.shape == (12, 4)
    assert usual.posterior.theta.shape == (100, 4)
    assert np.isfinite(small.info.nonlinearity)
    free, near = (fit(model, x, y, jacobian=jacobian, particles=12) for jacobian in (False, True))
    torch.testing.assert_close(small.posterior.theta, free.posterior.theta)  # derivative-free
    torch.testing.assert_close(usual.posterior.theta, fit(model, x, y, jacobian=True, particles=100).posterior.theta)
    assert 1e-4 < float((small(x) - near(x)).abs().mean()) < 0.1


def test_a_residual_network_with_batch_normalisation():
    torch.manual_seed(0)
    model = ResNet10(outputs=3, widths=(4, 4, 4, 4))
    x = torch.randn(48, 3, 8, 8)
    y = torch.arange(48) % 3
    x[y == 1, 0] += 1
    x[y == 2, 1] += 1
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    before = copy.deepcopy(model.state_dict())
    assert model.training
    network = fit(model, x[:24], y[:24], rank=3, particles=None, vectorise=False, calibration=[(x[24:], y[24:])])
    assert network.posterior.theta.shape == (10, 3)
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    stored = network.body.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in stored.items())
    assert sum("running" in name for name in stored) == 2 * 12
    proba = network(x)
    torch.testing.assert_close(proba.sum(dim=1), torch.ones(48))
    assert (proba.argmax(dim=1) == y).double().mean() > 0.9
    assert float(network.sample_proba(x).std(dim=0).max()) > 0
