"""The posterior of the last layer: how the layer is found, what the head predicts, and that the model is unchanged."""

import copy
import subprocess
import sys

import numpy as np
import pytest

import enkbayes as eb

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from enkbayes.nets import BayesianHead  # noqa: E402
from oracles.heads import digits, fit, iris, loader, mlp  # noqa: E402


class Squeezed(nn.Module):
    """One logit, and the last axis dropped in one of the usual ways."""

    def __init__(self, ending):
        super().__init__()
        self.net, self.ending = mlp(1), ending

    def forward(self, x):
        return self.ending(self.net(x))


class Convolutional(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)
        self.head = nn.Linear(4 * 3 * 3, classes)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(self.drop(nn.functional.max_pool2d(x, 2).flatten(1)))


class Attentive(nn.Module):
    """Rows of an image as tokens, a transformer layer, and a final Linear."""

    def __init__(self, classes):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
        self.readout = nn.Linear(16, classes)

    def forward(self, x):
        return self.readout(self.encoder(self.embed(x[:, 0])).mean(dim=1))


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(4, 6), nn.Linear(6, 3)

    def encode(self, x):
        return torch.relu(self.body(x))

    def forward(self, x):
        z = self.encode(x)
        return self.fc(z), z


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [1, 3])
def test_equals_a_run_on_the_same_features(outputs, bias, dtype):
    x, y = iris(dtype, classes=max(2, outputs))
    model = mlp(outputs, bias=bias, dtype=dtype)
    head = fit(model, loader(x, y), prior_precision=0.5, intercept_precision=0.1, seed=3)
    with torch.no_grad():
        features = model[:-1](x)
    variance = None if not bias else 10.0
    problem = eb.Problem.create(features, y, 2.0, intercept=variance)
    layer = model[-1]
    centre = layer.weight.detach().T.reshape(-1)
    if bias:
        centre = torch.cat([centre, layer.bias.detach()])
    theta = centre + problem.prior.whitened(40, np.random.default_rng(3))
    posterior = eb.run(problem, theta=theta)
    assert posterior.info.converged
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(head.posterior.theta, posterior.theta, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(head(x), posterior.predict_proba(features), rtol=0, atol=tolerance)
    torch.testing.assert_close(head.sample_proba(x), posterior.sample_proba(features), rtol=0, atol=tolerance)
    expected, got = posterior.predict_uncertainty(features), head.predict_uncertainty(x)
    torch.testing.assert_close(got.epistemic, expected.epistemic, rtol=0, atol=tolerance)
    assert head(x).dtype == dtype
    assert head(x).shape == (len(x), max(2, outputs))
    assert head.sample_proba(x).shape == (40, len(x), max(2, outputs))


def test_the_equilibrium_does_not_depend_on_the_trained_weights():
    x, y = iris(torch.float64, classes=2)
    model = mlp(1, dtype=torch.float64)
    head = fit(model, loader(x, y), sampler=eb.MeanField(), prior_precision=1.0)
    with torch.no_grad():
        problem = eb.Problem.create(model[:-1](x), y, 1.0, intercept=1.0)
    posterior = eb.run(problem, eb.MeanField())
    torch.testing.assert_close(head.posterior.mean, posterior.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(head.posterior.cov, posterior.cov, rtol=0, atol=1e-5)


def test_few_particles_predict_as_well_as_many():
    x, y = digits()
    x = x.flatten(1).double()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    exact = fit(model, loader(x, y), sampler=eb.MeanField())(x)
    few = fit(model, loader(x, y), particles=30)
    with torch.no_grad():
        problem = eb.Problem.create(model[:-1](x), y, 1.0, intercept=1.0)
        centre = torch.cat([model[2].weight, model[2].bias[:, None]], dim=1).T.reshape(-1)
        random = eb.run(problem, theta=centre + problem.prior.whitened(30, np.random.default_rng(0)))
        off = random.predict_proba(model[:-1](x))
    assert few.sample_proba(x).shape == (30, len(x), 4)
    assert (few(x) - exact).abs().max() < 1e-4
    assert (off - exact).abs().mean() > 1e-3


def test_a_homotopy_starts_from_the_prior():
    x, y = iris(torch.float64, classes=2)
    model = mlp(1, dtype=torch.float64)
    head = fit(model, loader(x, y), sampler=eb.Homotopy(steps=5), prior_precision=1.0)
    with torch.no_grad():
        problem = eb.Problem.create(model[:-1](x), y, 1.0, intercept=1.0)
    posterior = eb.run(problem, eb.Homotopy(steps=5), particles=40)
    torch.testing.assert_close(head.posterior.theta, posterior.theta, rtol=0, atol=1e-12)


def test_two_logits_predict_what_their_softmax_predicts():
    x, y = iris(torch.float64, classes=2)
    model = mlp(2, dtype=torch.float64)
    head = fit(model, loader(x, y), sampler=eb.MeanField(), prior_precision=1.0)
    with torch.no_grad():
        features = model[:-1](x)
    softmax = eb.Problem.create(features, y, 1.0, intercept=1.0, likelihood=eb.Categorical(2))
    expected = eb.run(softmax, eb.MeanField()).predict_proba(features)
    assert head.posterior.mean.shape == (7,)
    torch.testing.assert_close(head(x), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32])
@pytest.mark.parametrize("column", [True, False])
def test_labels_of_any_dtype_and_shape(dtype, column):
    x, y = iris(classes=2)
    expected = fit(mlp(1), loader(x, y))(x)
    labels = y.to(dtype)
    assert torch.equal(fit(mlp(1), loader(x, labels[:, None] if column else labels))(x), expected)


@pytest.mark.parametrize(
    "ending",
    [lambda z: z.squeeze(-1), lambda z: z[:, 0], lambda z: z.flatten(), lambda z: z.squeeze(), lambda z: z.view(-1)],
)
def test_one_logit_without_its_axis(ending):
    x, y = iris(classes=2)
    head, expected = fit(Squeezed(ending), loader(x, y)), fit(mlp(1), loader(x, y))
    assert torch.equal(head(x), expected(x))
    torch.testing.assert_close(head(x[:1]), expected(x[:1]))


@pytest.mark.parametrize("network", [Convolutional, Attentive])
def test_real_architectures_and_an_untouched_model(network):
    x, y = digits()
    torch.manual_seed(0)
    model = network(4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.train()
    next(model.children()).eval()  # mixed flags, as in fine-tuning
    before = copy.deepcopy(model.state_dict())
    flags = [(module.training, len(module._forward_hooks)) for module in model.modules()]
    needs = [p.requires_grad for p in model.parameters()]
    head = fit(model, loader(x, y), particles=200)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert before.keys() == after.keys()
    assert flags == [(module.training, len(module._forward_hooks)) for module in model.modules()]
    assert needs == [p.requires_grad for p in model.parameters()]
    proba = head(x)
    assert proba.shape == (len(x), 4)
    torch.testing.assert_close(proba.sum(dim=1), torch.ones(len(x)))
    assert (proba.argmax(dim=1) == y).float().mean() > 0.9
    assert torch.equal(head.train()(x), proba)  # dropout and batch norm stay in eval mode


@pytest.mark.parametrize(
    ("collate", "options"),
    [
        (lambda x, y: {"image": x, "label": y, "id": "a"}, {}),
        (lambda x, y: {"left": x, "right": y}, {"inputs": "left", "labels": "right"}),
        (lambda x, y: (x, y, torch.arange(len(x))), {}),
        (lambda x, y: [torch.arange(len(x)), y, x], {"inputs": 2, "labels": 1}),
        (lambda x, y: {"input": x, "y": y[:, None]}, {"inputs": lambda batch: {"input": batch["input"]}}),
        (lambda x, y: ((x,), y), {}),
    ],
)
def test_batches_of_every_kind(collate, options):
    x, y = iris()
    batches = [collate(a, b) for a, b in loader(x, y)]
    assert torch.equal(fit(mlp(3), batches, **options)(x), fit(mlp(3), loader(x, y))(x))


def test_a_generator_is_read_once():
    x, y = iris()
    assert torch.equal(fit(mlp(3), (batch for batch in loader(x, y)))(x), fit(mlp(3), loader(x, y))(x))


def test_layer_by_name():
    x, y = iris()
    expected = fit(mlp(3), loader(x, y))(x)
    assert torch.equal(fit(mlp(3), loader(x, y), layer="2")(x), expected)
    with pytest.raises(ValueError, match=r"not the output of layer '0'.*features="):
        fit(mlp(3), loader(x, y), layer="0")
    with pytest.raises(ValueError, match=r"no such layer; expected the name of a Linear, one of \['0', '2'\]"):
        fit(mlp(3), loader(x, y), layer="fc")


def test_a_linear_model_is_its_own_last_layer():
    x, y = iris()
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    problem = eb.Problem.create(x, y, 1.0, intercept=1.0)
    head = fit(model, loader(x, y), sampler=eb.MeanField(), prior_precision=1.0)
    torch.testing.assert_close(head(x), eb.run(problem, eb.MeanField()).predict_proba(x), rtol=0, atol=1e-4)


def test_the_error_for_several_outputs_names_the_remedy():
    x, y = iris()
    torch.manual_seed(0)
    model = TwoOutputs()
    with pytest.raises(ValueError, match=r"returns a tuple of 2; expected one tensor of logits; pass output="):
        fit(model, loader(x, y))
    plain = nn.Sequential(model.body, nn.ReLU(), model.fc)
    expected = fit(plain, loader(x, y), prior_precision=1.0)(x)
    model.train()
    by_method = fit(model, loader(x, y), prior_precision=1.0, features=model.encode, layer="fc")
    by_function = fit(model, loader(x, y), prior_precision=1.0, output=0)
    by_module = fit(model, loader(x, y), prior_precision=1.0, features=nn.Sequential(model.body, nn.ReLU()), layer="fc")
    for head in (by_method, by_function, by_module):
        assert torch.equal(head(x), expected)
    assert model.training
    assert model.fc.training
    names = [f"class {number}" for number in y]
    from_labels = fit(
        model, [(x, np.asarray(names))], prior_precision=1.0, features=model.encode, sampler=eb.MeanField()
    )
    torch.testing.assert_close(
        from_labels(x), fit(plain, loader(x, y), sampler=eb.MeanField(), prior_precision=1.0)(x), rtol=0, atol=1e-3
    )
    assert from_labels.classes.tolist() == ["class 0", "class 1", "class 2"]


@pytest.mark.parametrize("ending", [nn.Softmax(dim=-1), nn.LogSoftmax(dim=-1), nn.Sigmoid()])
def test_an_activation_at_the_end_is_an_error(ending):
    x, y = iris()
    with pytest.raises(ValueError, match=r"not the output of any Linear.*pass features="):
        fit(nn.Sequential(mlp(3), ending), loader(x, y))


def test_errors_are_one_clear_sentence():
    x, y = iris()
    with pytest.raises(ValueError, match="yields no batches"):
        fit(mlp(3), [])
    with pytest.raises(ValueError, match=r"entries \['a', 'b'\] besides the labels, and the model takes \['input'\]"):
        fit(mlp(3), [{"a": x, "b": y}])
    with pytest.raises(ValueError, match="loader yields Tensor"):
        fit(mlp(3), [x])
    with pytest.raises(ValueError, match=r"label .*2.* is not among the given classes \[0, 1\]"):
        fit(mlp(1), loader(x, y))
    with pytest.raises(ValueError, match="labels have 2 entries, features have 3 rows"):
        fit(mlp(3), [(x[:3], y[:2])])
    with pytest.raises(ValueError, match="expected a positive number"):
        fit(mlp(3), loader(x, y), prior_precision=0.0)
    with pytest.raises(ValueError, match="labels of a batch have shape"):
        fit(mlp(3), loader(x, nn.functional.one_hot(y)))
    with pytest.raises(ValueError, match=r"logits of shape \(40, 5, 3\)"):
        fit(mlp(3), loader(x[:, None, :].repeat(1, 5, 1), y))


def test_progress_bars_can_be_shown(capsys):
    x, y = iris()
    fit(mlp(3), loader(x, y), progress=True)
    assert "Features" in capsys.readouterr().out


def test_without_torch_the_import_names_the_extra():
    code = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Missing())
import enkbayes
import enkbayes.nets
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        "ImportError: enkbayes.nets needs PyTorch; install it with: pip install 'enkbayes[torch]'"
    )
    assert done.stderr.count("Traceback") == 1


def test_an_empty_loader_is_one_sentence():
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="yields no batches"):
        BayesianHead.fit(model, [], progress=False)
    with pytest.raises(ValueError, match="yields no batches"):
        BayesianHead.fit(model, [], features=model[:2], progress=False)
