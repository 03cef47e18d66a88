"""Modules in front of the chosen weights run once for each batch of a fit, and the fit does not change."""

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from enkbayes.nets import BayesianNetwork  # noqa: E402
from enkbayes.nets.replay import replayed  # noqa: E402
from enkbayes.nets.subspace import Network, Weights  # noqa: E402
from enkbayes.reproduction.resnet import ResNet10  # noqa: E402


class Residual(nn.Module):
    """The rest of the network uses the front's output twice, modifies it in place, and uses the inputs again."""

    def __init__(self):
        super().__init__()
        self.front, self.middle, self.last = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2)
        self.across = nn.Linear(3, 2)

    def forward(self, x):
        a = self.front(x)
        b = torch.tanh(self.middle(a))
        a += 1  # must not change what is replayed
        return self.last(a + b) + self.across(x)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.front, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.shared(torch.tanh(self.front(self.shared(x)))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.front, self.tied = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.tied.weight = self.last.weight

    def forward(self, x):
        return self.last(torch.tanh(self.tied(self.front(x))))


class Detached(nn.Module):
    """Autograd cannot trace the second layer to the first."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.second(self.first(x).detach()))


class Remembers(nn.Module):
    """The last layer uses an attribute that the front stores, not only its output."""

    class Front(nn.Linear):
        def forward(self, x):
            self.left = super().forward(x)
            return self.left + 1

    def __init__(self):
        super().__init__()
        self.front, self.last = Remembers.Front(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.front(x) * self.front.left)


def made(model, layers, shape=(3,)):
    torch.manual_seed(0)
    model = model() if isinstance(model, type) else model
    x = torch.randn(12, *shape)
    model = model.eval().requires_grad_(False)
    found = Network(model, Weights.of(model, layers), lambda output: output)
    batches = [((x[:6],), {}), ((x[6:],), {})]
    with torch.no_grad():
        return found, replayed(found, found.weights.flat(model), batches), batches


def names(found):
    name_of = {module: name for name, module in found.model.named_modules()}
    return [{name_of[module] for module in outputs} for outputs in found.outputs]


def check(plain, found, batches):
    """The logits are the same for every batch and for new inputs, at other weights, and twice."""
    other = plain.weights.flat(plain.model) + 0.3
    with torch.no_grad():
        for inputs in (*batches, *batches, ((torch.randn(4, *batches[0][0][0].shape[1:]),), {})):
            torch.testing.assert_close(found.logits(other, inputs), plain.logits(other, inputs), rtol=0, atol=1e-6)


def runs(module, run):
    """How often a module's own forward runs."""
    count, own = [0], module.forward

    def forward(*args):
        count[0] += 1
        return own(*args)

    module.forward = forward
    run()
    assert module.forward is forward  # replaying restores what it found
    del module.forward
    return count[0]


def test_a_residual_connection_across_the_boundary():
    plain, found, batches = made(Residual, ["middle", "last"])
    assert names(found) == [{"front", "across"}] * 2
    check(plain, found, batches)
    vector = plain.weights.flat(plain.model)
    assert runs(plain.model.front, lambda: found.logits(vector, batches[0])) == 0
    assert runs(plain.model.front, lambda: found.logits(vector, ((torch.ones(2, 3),), {}))) == 1
    assert runs(plain.model.front, lambda: found.logits(vector, ((batches[0][0][0],), {}))) == 1  # by identity
    assert not any(module._forward_hooks for module in plain.model.modules())
    assert not any("forward" in vars(module) for module in plain.model.modules())


def test_only_the_boundary_takes_memory():
    torch.manual_seed(0)
    layers = [part for _ in range(3) for part in (nn.Linear(3, 3), nn.ReLU(inplace=True))]
    plain, found, batches = made(nn.Sequential(nn.Sequential(*layers[:2]), *layers[2:], nn.Linear(3, 2)), ["5"])
    assert names(found) == [{"0", "1", "2", "3", "4"}] * 2
    assert [[any(o.stride()) for o in outputs.values()] for outputs in found.outputs] == [[False] * 4 + [True]] * 2
    check(plain, found, batches)


def test_shared_modules_are_not_replayed():
    plain, found, batches = made(Twice, ["last"])
    assert names(found) == [{"front"}] * 2
    check(plain, found, batches)


@pytest.mark.parametrize(("model", "layers"), [(Residual, None), (Detached, ["first"]), (Remembers, ["last"])])
def test_networks_that_cannot_be_replayed_run_as_a_whole(model, layers):
    plain, found, batches = made(model, layers)
    assert found is plain
    check(plain, found, batches)


def test_a_module_tied_to_the_chosen_weights_is_not_replayed():
    plain, found, batches = made(Tied, ["last"])
    assert plain.weights.names == ("last.weight", "last.bias")
    assert names(found) == [{"front"}] * 2
    check(plain, found, batches)


def test_only_the_last_block_in_front_of_the_chosen_one_takes_memory():
    torch.manual_seed(0)
    model = ResNet10(outputs=3, widths=(8, 8, 8, 8))
    plain, found, batches = made(model, ["blocks.3", "head"], shape=(3, 8, 8))
    assert names(found) == [{"stem", "blocks.0", "blocks.1", "blocks.2"}] * 2
    assert [sum(any(o.stride()) for o in outputs.values()) for outputs in found.outputs] == [1, 1]
    check(plain, found, batches)


def images(seed):
    torch.manual_seed(seed)
    return torch.randn(24, 3, 8, 8), torch.arange(24) % 3


class Counted(nn.Module):
    """Counts the runs of the module inside, also those of copies."""

    def __init__(self, module, runs):
        super().__init__()
        self.module, self.count = module, lambda: runs.append(1)  # functions are not copied

    def forward(self, x):
        self.count()
        return self.module(x)


@pytest.mark.parametrize("vectorise", [True, False])
@pytest.mark.parametrize("calibrated", [False, True])
def test_the_fit_is_the_same_and_runs_the_front_less_often(vectorise, calibrated):
    torch.manual_seed(0)
    model = ResNet10(outputs=3, widths=(8, 8, 8, 8)).eval()
    runs = []
    model.stem = Counted(model.stem, runs)
    x, y = images(0)
    loader = [(x[:12], y[:12]), (x[12:], y[12:])]
    options = {"layers": ["blocks.3", "head"], "rank": 3, "particles": 10, "vectorise": vectorise, "progress": False}
    options |= {"calibration": [images(1)]} if calibrated else {}
    quick = BayesianNetwork.fit(model, loader, **options)
    few = len(runs)
    slow = BayesianNetwork.fit(model, loader, replay=False, **options)
    assert few < 20 < (len(runs) - few) / 2
    torch.testing.assert_close(quick.directions, slow.directions, rtol=0, atol=1e-6)
    torch.testing.assert_close(quick.posterior.theta, slow.posterior.theta, rtol=0, atol=1e-6)
    new = images(2)[0]
    torch.testing.assert_close(quick(new), slow(new), rtol=0, atol=1e-6)
    assert not any("forward" in vars(module) for module in quick.modules())
    copied = copy.deepcopy(quick)
    copied.load_state_dict(slow.state_dict())
    torch.testing.assert_close(copied(new), slow(new))
