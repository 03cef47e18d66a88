"""Far-field variance: confidence tends to 1/K along every ray, nothing is lost in distribution, and it is stored."""

import copy
import functools

import numpy as np
import pytest

import enkbayes as eb

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from enkbayes.nets import BayesianHead, BayesianNetwork  # noqa: E402


def data(classes, rows=500, seed=0):
    """Points on arcs, one for each class, with noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, rows)
    angle = 2 * np.pi * (y + 0.7 * rng.uniform(size=rows)) / classes
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.4 * rng.standard_normal((rows, 2))
    return torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)


@functools.cache
def trained(outputs, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 4), nn.ReLU(), nn.Linear(4, outputs))
    x, y = data(max(outputs, 2), 100)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(300):
        optimiser.zero_grad()
        z = model(x)
        loss = nn.functional.cross_entropy(torch.cat([0 * z, z], 1) if outputs == 1 else z, y)
        loss.backward()
        optimiser.step()
    return model, [(x, y)]


def rays(radius, count=60):
    angle = torch.linspace(0, 2 * torch.pi, count + 1)[:-1]
    return radius * torch.stack([angle.cos(), angle.sin()], dim=1)


@functools.cache
def fit(kind, outputs, far_field=True):
    (model, train), options = trained(outputs), {"far_field": far_field}
    if kind is BayesianNetwork:
        options |= {"rank": 4, "particles": 24, "layers": ["4"]}
    else:
        options |= {"sampler": eb.MeanField(tol=1e-2), "particles": 30}
    return kind.fit(model, train, calibration=[data(max(outputs, 2), 200, 1)], progress=False, **options)


@pytest.mark.filterwarnings("ignore:Equilibrium did not converge")
@pytest.mark.parametrize("kind", [BayesianHead, BayesianNetwork])
@pytest.mark.parametrize("outputs", [1, 5])
def test_confidence_tends_to_one_of_k_along_every_ray_and_nothing_is_lost_near_the_data(kind, outputs):
    classes = max(outputs, 2)
    plain, head = (fit(kind, outputs, on) for on in (False, True))
    assert plain.noise(rays(1.0)) is None
    far = head(rays(1e3)).max(dim=1).values
    assert (plain(rays(1e3)).max(dim=1).values > 1 / classes + 0.1).any()
    torch.testing.assert_close(far, torch.full_like(far, 1 / classes), rtol=0, atol=0.01)
    choice = head.far_field_choice
    assert choice.cost <= min(choice.error, 0.005)
    x, y = data(classes, 2000, 2)
    losses = [-torch.log(p(x)[torch.arange(len(y)), y]).mean() for p in (plain, head)]
    assert losses[1] < losses[0] + 0.02  # rows that chose nothing
    uncertainty = head.predict_uncertainty(rays(1e3))
    torch.testing.assert_close(uncertainty.total, uncertainty.aleatoric + uncertainty.epistemic)
    assert (uncertainty.far_field <= uncertainty.epistemic).all()
    assert (uncertainty.epistemic > 0.9 * np.log(classes)).all()
    assert head.predict_uncertainty(x).far_field.mean() < 0.1 * uncertainty.far_field.mean()
    assert head.sample_proba(x[:3]).shape == (head.points.shape[0], 3, classes)


def test_an_affine_map_of_a_layers_inputs_that_the_next_layer_undoes_changes_nothing():
    model, train = trained(1)
    model, held = copy.deepcopy(model).double(), data(2, 200, 1)
    torch.manual_seed(3)
    mixing, shift = torch.randn(2, 2).double() + 2 * torch.eye(2).double(), torch.randn(2).double()
    other, inverse = copy.deepcopy(model), torch.linalg.inv(mixing)
    with torch.no_grad():
        other[0].weight.copy_(model[0].weight @ inverse)
        other[0].bias.sub_(other[0].weight @ shift)

    def moved(x):
        return x.double() @ mixing.T + shift

    first = BayesianHead.fit(
        model, [(x.double(), y) for x, y in train], calibration=[(held[0].double(), held[1])], progress=False
    )
    second = BayesianHead.fit(
        other, [(moved(x), y) for x, y in train], calibration=[(moved(held[0]), held[1])], progress=False
    )
    x = torch.cat([rays(1.0), rays(10.0)])
    torch.testing.assert_close(first.noise(x.double()), second.noise(moved(x)), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(first(x.double()), second(moved(x)), rtol=0, atol=1e-6)
    assert first.noise(x.double()).max() > 10 * first.noise(x.double()).median()


def test_small_outputs_of_an_unusual_composition_are_noticed():
    """The leverage of the outputs is that of typical rows, and the direction occurs in none of them."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    length, angle = rng.uniform(0.2, 3, 400), 0.3 * (2 * y - 1) + 0.1 * rng.standard_normal(400)
    rows = length[:, None] * np.stack([np.cos(angle), np.sin(angle), 0.1 * rng.standard_normal(400)], axis=1)
    x, y = torch.as_tensor(rows, dtype=torch.float32), torch.as_tensor(y)
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, -2.0, 0.0], [0.0, 2.0, 0.0]]))
        model.bias.zero_()
    head = BayesianHead.fit(model, [(x[:200], y[:200])], calibration=[(x[200:], y[200:])], progress=False)
    turned = torch.tensor([[0.0, 0.3, 0.0]])
    with torch.no_grad(), head.far_field.recording(head.body) as outputs:
        head.body(turned)
    extents, leverages = head.far_field.extents, head.far_field.leverages(outputs)
    scores = [float(extent.standardised(leverage)) for extent, leverage in zip(extents, leverages, strict=True)]
    inside = [float(e.scale[2]) < score < float(e.scale[3]) for e, score in zip(extents, scores, strict=True)]
    assert inside == [True, False]
    assert head.noise(turned) > 10 * head.noise(x).quantile(0.9)


@pytest.mark.parametrize("outputs", [1, 5])
def test_it_is_in_the_state_dict_and_in_exported_programs(outputs):
    model, head = trained(outputs)[0], fit(BayesianHead, outputs)
    x = torch.cat([rays(1.0), rays(20.0)])
    again = BayesianHead.empty(model)
    assert not torch.allclose(again(x), head(x))
    again.load_state_dict(head.state_dict())
    torch.testing.assert_close(again(x), head(x))
    torch.testing.assert_close(again.predict_uncertainty(x).far_field, head.predict_uncertainty(x).far_field)
    program = torch.export.export(head, (x,), dynamic_shapes=(({0: torch.export.Dim("n")},),), strict=False)
    torch.testing.assert_close(program.module()(x[:50]), head(x[:50]))
    empty = BayesianHead.empty(model)
    again.load_state_dict(empty.state_dict())
    torch.testing.assert_close(again(x), empty(x))
    double = copy.deepcopy(head).double()
    torch.testing.assert_close(double(x.double()).float(), head(x), rtol=0, atol=1e-3)


def test_networks_with_convolutions_and_without_layers_in_front():
    torch.manual_seed(0)
    x, y = torch.randn(120, 1, 6, 6), torch.randint(0, 3, (120,))
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    head = BayesianHead.fit(model, [(x, y)], calibration=[(torch.randn(60, 1, 6, 6), y[:60])], progress=False)
    stripes = torch.ones(1, 1, 6, 6)
    stripes[..., ::2] = -1  # of zero mean
    assert head(1e3 * stripes).max() < 1 / 3 + 0.02
    linear = nn.Linear(36, 3)
    head = BayesianHead.fit(linear, [(x.flatten(1), y)], calibration=[(x.flatten(1)[:60], y[:60])], progress=False)
    assert head(1e4 * torch.randn(5, 36)).max() < 1 / 3 + 0.02


def test_too_few_held_out_rows_choose_nothing():
    model, train = trained(1)
    head = BayesianHead.fit(model, train, calibration=[data(2, 15, 1)], progress=False)
    assert head.noise(rays(10.0)) is None
    assert "too few" in head.far_field_choice.message


@pytest.mark.parametrize("kind", [BayesianHead, BayesianNetwork])
def test_rejection_thresholds_accept_fewer_shifted_rows_with_far_field_variance(kind):
    held, shift = data(2, 600, 3), 3 * torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
    accepted, wrong = [], []
    for on in (False, True):
        head = fit(kind, 1, on)
        threshold = head.reject_threshold([held], max_error=0.02)
        sure = head(held[0] + shift)
        accepted.append(float((sure.max(dim=1).values > threshold).double().mean()))
        wrong.append(float(((sure.max(dim=1).values > threshold) & (sure.argmax(dim=1) != held[1])).double().mean()))
    assert accepted[1] < 0.8 * accepted[0]
    assert wrong[1] < 0.8 * wrong[0]
    with pytest.raises(ValueError, match="no batches"):
        head.reject_threshold([])
