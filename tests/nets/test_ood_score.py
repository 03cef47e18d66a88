"""The out-of-distribution score: leverage of the layers' inputs, predictive entropy, and the scale of both."""

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from enkbayes.nets import BayesianHead, BayesianNetwork, OODScore  # noqa: E402
from enkbayes.nets.ood_score import normal_score  # noqa: E402


def data(size=200, classes=2, seed=0):
    x = torch.randn(size, 3, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long() + (classes > 2) * (x[:, 1] > 0.5).long()


def network(outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, outputs))


def head(outputs=3, **options):
    x, y = data(classes=outputs)
    return BayesianHead.fit(network(outputs), [(x, y)], particles=20, progress=False, **options)


def whole(outputs=3, **options):
    x, y = data(classes=outputs)
    return BayesianNetwork.fit(network(outputs), [(x, y)], rank=3, particles=10, progress=False, **options)


def score(posterior, x, y=None, **options):
    y = torch.zeros(len(x)) if y is None else y
    return OODScore.fit(posterior, [(x[::2], y[::2]), (x[1::2], y[1::2])], progress=False, **options)


def hooks(module):
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in module.modules())


@pytest.mark.parametrize("make", [head, whole])
def test_leverage_of_the_training_rows_is_one_on_average(make):
    x, _ = data()
    averages = score(make(), x).leverage(x).mean(dim=0)
    assert averages.shape == (3,)  # the last layer's inputs too, though the head has a Tap in its place
    assert torch.all((averages > 0.85) & (averages < 1))  # the ridge lowers them a little
    exact = score(make(), x, ridge=0.0).leverage(x).mean(dim=0)  # tr(A^{-1} mean a a') / dim a
    torch.testing.assert_close(exact, torch.ones(3).double(), rtol=0, atol=1e-8)


def literal(train, new, ridge=1e-3):
    """a' (A + ridge)^{-1} a / dim a, for inputs (n, d) of one layer, row by row."""
    train, new = (torch.cat([a.double(), torch.ones(len(a), 1).double()], dim=1) for a in (train, new))
    A = sum(torch.outer(a, a) for a in train) / len(train)
    A = A + ridge * torch.trace(A) / len(A) * torch.eye(len(A)).double()
    return torch.stack([a @ torch.linalg.solve(A, a) / len(a) for a in new])


def test_leverage_of_linear_layers_by_hand():
    x, _ = data()
    posterior = whole()
    new = 2 * data(20, seed=1)[0]
    with torch.no_grad():
        expected = [literal(posterior.body[:i](x), posterior.body[:i](new)) for i in (0, 2, 4)]
    torch.testing.assert_close(score(posterior, x).leverage(new), torch.stack(expected, dim=1))


def test_leverage_of_convolutions_and_of_linear_layers_at_positions_by_hand():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(2), nn.Linear(9, 3), nn.Flatten(1), nn.Linear(12, 2)
    )
    x = torch.randn(60, 2, 5, 5)
    y = (x.mean(dim=(1, 2, 3)) > 0).long()
    posterior = BayesianHead.fit(model, [(x, y)], particles=20, progress=False)
    new = torch.randn(7, 2, 5, 5) + 1
    with torch.no_grad():
        parts = [
            literal(x.mean(dim=(2, 3)), new.mean(dim=(2, 3))),  # channels of a convolution come first
            literal(model[:3](x).mean(dim=1), model[:3](new).mean(dim=1)),  # inputs of a Linear come last
            literal(model[:5](x), model[:5](new)),
        ]
    torch.testing.assert_close(score(posterior, x).leverage(new), torch.stack(parts, dim=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [head, whole])
@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_distant_inputs_score_higher_for_heads_and_networks(make, outputs):
    x, _ = data()
    found = score(make(outputs), x)
    new = data(100, seed=2)[0]
    medians = [float(found.leverage(s * new).log().mean(dim=1).median()) for s in (1, 3, 10, 100)]
    assert medians == sorted(medians)
    assert found(new).shape == (100,)
    assert torch.all(torch.isfinite(found(1e4 * new)))
    assert found(10 * new).median() > found(new).quantile(0.95)


def test_calibration_rows_set_the_scale():
    x, _ = data()
    held_out = data(300, seed=3)[0]
    found = score(head(), x, calibration=[(held_out, torch.zeros(300))])
    entropy = found.parts(held_out)[1]
    unsure = normal_score(entropy, found.known_entropy)
    distance = found(held_out) - torch.where(unsure > 0, unsure / 2, unsure / 4)
    for part in (distance, unsure):
        assert abs(float(part.mean())) < 1e-3
        assert abs(float(part.std()) - 1) < 0.02
    assert found.distances(held_out).shape == (2, 300, 3)
    new = data(100, seed=5)[0]
    assert found(3 * new).mean() > found(new).mean() + 2


def test_the_entropy_counts_between_the_classes():
    """A row on the boundary scores higher than one like it on either side, though its features are familiar."""
    x = torch.cat([torch.randn(200, 2, generator=torch.Generator().manual_seed(0)), torch.zeros(200, 1)], dim=1)
    y = (x[:, 0] > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-3.0, 0.0, 0.0], [3.0, 0.0, 0.0]]))
    found = score(BayesianHead.fit(model, [(x, y)], particles=20, progress=False), x, y)
    at = torch.tensor([[-1.0, 0.3, 0.0], [0.0, 0.3, 0.0], [1.0, 0.3, 0.0]])
    unsure = normal_score(found.parts(at)[1], found.known_entropy)
    assert unsure[1] > 1
    assert max(unsure[0], unsure[2]) < 0
    assert found(at)[1] > found(at)[2]


def test_rows_beyond_a_sample_do_not_change_it():
    """The sample is random and deterministic, and a sample of all rows is all rows."""
    x, y = data(classes=3)
    every, same = (score(head(), x, y, rows=rows) for rows in (200, 10**9))
    torch.testing.assert_close(every(x), same(x), rtol=0, atol=0)
    some, again = (score(head(), x, y, rows=60) for _ in range(2))
    torch.testing.assert_close(some(x), again(x), rtol=0, atol=0)
    assert float(torch.corrcoef(torch.stack([some(2 * x), every(2 * x)]))[0, 1]) > 0.8


def test_layers_that_are_constant_do_no_harm():
    """Units that are 0 for all training rows, as after ReLU, and a layer with one input."""
    x, y = data(classes=3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1), nn.Tanh(), nn.Linear(1, 3))
    with torch.no_grad():
        model[0].bias[:3] = -100.0
    found = score(BayesianHead.fit(model, [(x, y)], particles=20, progress=False), x, y)
    assert torch.all(torch.isfinite(found(torch.cat([x, 1e3 * x, torch.zeros(1, 3)]))))
    assert found(1e3 * x).median() > found(x).max()


def test_quantiles_represent_many_reference_rows():
    x, _ = data()
    every = score(head(), x)
    some = score(head(), x, references=50)
    assert len(every.known_entropy) == 200
    assert len(some.known_entropy) == len(some.known_leverage) == 50
    assert (some(x) - every(x)).abs().mean() < 0.1
    assert torch.equal(some.known_leverage, some.known_leverage.sort().values)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, left, right):
        return self.last(torch.tanh(self.first(torch.cat([left, right], dim=1))))


def test_inputs_in_a_dict():
    x, y = data(classes=3)
    torch.manual_seed(0)
    batch = {"both": {"left": x[:, :1], "right": x[:, 1:]}, "class": y}
    places = {"inputs": "both", "labels": "class", "progress": False}
    posterior = BayesianHead.fit(Named(), [batch], particles=20, **places)
    found = OODScore.fit(posterior, [batch], **places)
    assert found(left=x[:, :1], right=x[:, 1:]).shape == (200,)
    torch.testing.assert_close(found(left=x[:, :1], right=x[:, 1:]), found(x[:, :1], x[:, 1:]))
    assert found.leverage(**batch["both"]).shape == (200, 2)


@pytest.mark.parametrize("make", [head, whole])
def test_state_dict_with_another_number_of_reference_rows(make, tmp_path):
    x, _ = data()
    found = score(make(), x, calibration=[(data(90, seed=4)[0], torch.zeros(90))])
    other = score(make(seed=1), 3 * x)
    assert not torch.allclose(other(x), found(x))
    classes = score(make(), x, (x[:, 0] > 0).long())  # more of them than the one class of zeros
    classes.load_state_dict(found.state_dict())
    torch.testing.assert_close(classes(x), found(x), rtol=0, atol=0)
    torch.save(found.state_dict(), tmp_path / "score.pt")
    other.load_state_dict(torch.load(tmp_path / "score.pt", weights_only=True))
    assert len(other.known_leverage) == 90
    torch.testing.assert_close(other(x), found(x), rtol=0, atol=0)


def test_cast_and_modes():
    x, _ = data()
    found = score(head(), x)
    single, double = copy.deepcopy(found).float()(x), copy.deepcopy(found).double()(x.double())
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    for cast in (single, double):
        assert (cast - found(x)).abs().mean() < 0.03  # a rank among the reference rows may move by one
    before = found(x)
    assert torch.equal(found.train()(x), before)
    assert not found(x).requires_grad


def test_hooks_are_removed():
    x, _ = data()
    posterior = head()
    before = hooks(posterior)
    found = score(posterior, x)
    found(x)
    assert hooks(posterior) == before
    with pytest.raises(RuntimeError):
        found.leverage(x[:, :2])
    assert hooks(posterior) == before


class Uncalled(nn.Module):
    """Owns a Linear, which it uses by its weight only."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, x):
        return nn.functional.linear(x, self.last.weight)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 2))

    def forward(self, x):
        return x @ self.weight


@pytest.mark.parametrize("model", [Plain, Uncalled])
def test_a_network_without_layers_is_an_error(model):
    x, y = data()
    torch.manual_seed(0)
    posterior = BayesianNetwork.fit(model(), [(x, y)], rank=2, particles=10, progress=False)
    with pytest.raises(ValueError, match="the network calls no Linear or convolution layer; expected at least one"):
        score(posterior, x)
