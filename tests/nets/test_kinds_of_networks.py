"""The tables of docs/how_to/networks.md: each kind of network and of batch works, or is refused in one sentence."""

import copy
import io
import pickle
import warnings
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, prune  # noqa: E402

from enkbayes.nets import BayesianHead, BayesianNetwork, OODScore  # noqa: E402

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0.8).long()


def mlp(*end):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3), *end)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(self.lstm(x[:, :, None])[0][:, -1])


class Returning(nn.Module):
    """Returns its logits in something."""

    def __init__(self, wrap):
        super().__init__()
        self.net, self.wrap = mlp(), wrap

    def forward(self, x):
        return self.wrap(self.net(x))


class Masked(nn.Module):
    """Averages the embeddings of tokens that are not padding, as models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, input_ids, attention_mask=None, labels=None):
        mask = torch.ones(input_ids.shape) if attention_mask is None else attention_mask.float()
        pooled = (self.embed(input_ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return SimpleNamespace(loss=None, logits=self.fc(pooled))


def changed(function):
    model = mlp()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about what is deprecated
        found = function(model)
    return found if isinstance(found, nn.Module) else model


def weights(value):
    model = mlp()
    with torch.no_grad():
        model[2].weight.fill_(value)
    return model


def inference():
    with torch.inference_mode():
        return mlp()


def compiled(model):
    return torch.compile(model, backend="eager")


def as_tuple(z):
    return z, None


def as_object(z):
    return SimpleNamespace(logits=z)


def as_dict(z):
    return {"logits": z}


def softmax(z):
    return z.softmax(dim=-1)


WORK = {
    "float64": lambda: mlp().double(),
    "compiled": lambda: compiled(mlp()),
    "compiled inside": lambda: nn.Sequential(compiled(nn.Sequential(nn.Linear(3, 5))), nn.Tanh(), nn.Linear(5, 3)),
    "data parallel": lambda: nn.DataParallel(mlp()),
    "weight norm": lambda: changed(lambda model: nn.utils.weight_norm(model[2]) and None),
    "weight norm as a parametrisation": lambda: changed(lambda model: parametrizations.weight_norm(model[0]) and None),
    "spectral norm": lambda: changed(lambda model: nn.utils.spectral_norm(model[2]) and None),
    "spectral norm as a parametrisation": lambda: changed(lambda m: parametrizations.spectral_norm(m[2]) and None),
    "pruned": lambda: changed(lambda model: prune.l1_unstructured(model[2], "weight", amount=0.3) and None),
    "inference tensors": inference,
    "an object": lambda: Returning(as_object),
    "a dict": lambda: Returning(as_dict),
}
HEADS = WORK | {"float16": lambda: mlp().half(), "bfloat16": lambda: mlp().bfloat16(), "LSTM": Recurrent}
REFUSED = {
    "a function": (lambda: softmax, "the model is a function; expected a torch.nn.Module"),
    "a class": (lambda: nn.Linear, "the model is the class Linear"),
    "scripted": (lambda: changed(torch.jit.script), "scripted or traced"),
    "traced": (lambda: changed(lambda model: torch.jit.trace(model, X)), "scripted or traced"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(5), nn.LazyLinear(3)), "run it once on a batch"),
    "meta": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3)).to("meta"), "meta device, which holds no numbers"),
    "complex": (lambda: changed(lambda model: model.to(torch.complex64)), "complex weights"),
    "NaN weights": (lambda: weights(torch.nan), "weights contain NaN"),
    "a tuple": (lambda: Returning(as_tuple), "pass output="),
    "a softmax": (lambda: mlp(nn.Softmax(dim=-1)), "softmax or sigmoid"),
    "a softmax in forward": (lambda: Returning(softmax), "softmax or sigmoid"),
    "a sigmoid": (lambda: mlp(nn.Sigmoid()), "softmax or sigmoid"),
}
BAD_INPUTS = {
    "NaN": (torch.where(torch.arange(24)[:, None] == 1, torch.nan, X), "the inputs of a batch contain NaN"),
    "infinite": (torch.where(torch.arange(24)[:, None] == 1, torch.inf, X), "the inputs of a batch contain NaN"),
    "double": (X.double(), r"cannot be run on float64 \(24, 3\)"),
    "wide": (torch.hstack([X, X]), r"cannot be run on float32 \(24, 6\)"),
    "text": ("text", "cannot be run on str"),
    "an array": (X.numpy(), "cannot be run on ndarray"),
}


def inputs_for(model):
    return X.to(next(p for p in model.parameters()).dtype)


def head_of(model, loader=None, **options):
    return BayesianHead.fit(model, loader or [(inputs_for(model), Y)], particles=40, progress=False, **options)


def network_of(model, loader=None, **options):
    options = {"rank": 2, "particles": 12} | options
    return BayesianNetwork.fit(model, loader or [(inputs_for(model), Y)], progress=False, **options)


FITS = {"head": head_of, "network": network_of}


@pytest.mark.parametrize(("fit", "name"), [("head", name) for name in HEADS] + [("network", name) for name in WORK])
def test_works_and_survives_copies(fit, name):
    model = HEADS[name]().eval()
    with torch.no_grad():
        before = model(inputs_for(model))
        posterior = FITS[fit](model)
        x = inputs_for(model)
        proba = posterior(x)
        after = model(x)
    assert torch.isfinite(proba).all()
    torch.testing.assert_close(proba.double().sum(dim=1), torch.ones(24).double(), rtol=0, atol=1e-5)
    if isinstance(before, torch.Tensor):
        assert torch.equal(before, after)
    again = pickle.loads(pickle.dumps(posterior))
    assert torch.equal(again(x), proba)
    stream = io.BytesIO()
    torch.save(posterior.state_dict(), stream)
    stream.seek(0)
    other = copy.deepcopy(posterior)
    other.load_state_dict(torch.load(stream))
    assert torch.equal(other(x), proba)


@pytest.mark.parametrize("name", ["weight norm", "pruned", "inference tensors", "compiled", "data parallel"])
def test_the_copy_computes_what_the_model_computes(name):
    """The last layer's features are those of the model: the head of its plain weights predicts the same."""
    model = WORK[name]()
    inner = getattr(model, "_orig_mod", None) or getattr(model, "module", model)
    plain = mlp()
    with torch.no_grad():
        inner.eval()(X)
        for own, other in ((plain[0], inner[0]), (plain[2], inner[2])):
            own.weight.copy_(other.weight)
            own.bias.copy_(other.bias)
        torch.testing.assert_close(head_of(model)(X), head_of(plain)(X), rtol=0, atol=1e-6)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_in_one_sentence(fit, name):
    make, words = REFUSED[name]
    with pytest.raises(ValueError, match=words) as caught:
        FITS[fit](make(), [(X, Y)])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("name", BAD_INPUTS)
def test_inputs_that_do_not_fit_are_refused(fit, name):
    x, words = BAD_INPUTS[name]
    with pytest.raises(ValueError, match=words) as caught:
        FITS[fit](mlp(), [(x, Y)])
    assert "\n" not in str(caught.value)


def test_a_network_in_half_precision_is_refused():
    for dtype in (torch.float16, torch.bfloat16):
        with pytest.raises(ValueError, match=r"expected float32 or float64.*pass model.float\(\)"):
            network_of(mlp().to(dtype))


def test_log_probabilities_are_logits():
    torch.testing.assert_close(network_of(mlp(nn.LogSoftmax(dim=-1)))(X), network_of(mlp())(X), rtol=0, atol=0.2)


def test_a_recurrent_network_has_a_posterior_of_its_last_layer():
    proba = network_of(Recurrent(), layers=["fc"])(X)
    assert torch.isfinite(proba).all()


def test_settings_of_other_types_are_refused():
    for fit, option, words in (
        (network_of, {"rank": 2.5}, "rank is 2.5; expected a whole number"),
        (network_of, {"particles": "5"}, "particles is '5'; expected a whole number"),
        (network_of, {"prior_precision": "auto"}, "prior_precision is 'auto'; expected a positive number"),
        (network_of, {"seed": -1}, "seed is -1; expected a non-negative integer"),
        (network_of, {"layers": 3}, "layers is 3; expected a list of the names"),
        (head_of, {"prior_precision": "auto"}, "prior_precision is 'auto'; expected a positive number"),
        (head_of, {"layer": 2}, "layer=2 is no such layer"),
        (head_of, {"output": 1.5}, "output is 1.5; expected a position"),
    ):
        with pytest.raises(ValueError, match=words):
            fit(mlp(), **option)


def test_the_place_of_the_logits_in_a_tuple():
    model = Returning(as_tuple)
    expected = head_of(model.net)(X)
    for place in (0, lambda found: found[0]):
        head = head_of(model, output=place)
        torch.testing.assert_close(head(X), expected)
        assert network_of(model, output=place)(X).shape == (24, 3)
    head = head_of(model, output=0)
    empty = BayesianHead.empty(model, output=0)
    empty.load_state_dict(head.state_dict())
    assert torch.equal(empty(X), head(X))
    with pytest.raises(ValueError, match="output=7 cannot be taken from the tuple"):
        head_of(model, output=7)


@pytest.mark.parametrize("fit", FITS)
def test_every_entry_of_a_dict_but_the_labels_reaches_the_model(fit):
    """Padding must not be attended to: padded rows predict what unpadded rows do."""
    torch.manual_seed(0)
    ids = torch.randint(1, 9, (24, 6))
    padded = torch.cat([ids, torch.zeros(24, 5, dtype=torch.int64)], dim=1)
    model = Masked()
    short = [{"input_ids": ids, "attention_mask": torch.ones(24, 6), "labels": Y, "text": ["a"] * 24}]
    long = [{"input_ids": padded, "attention_mask": (padded > 0).long(), "labels": Y}]
    one, other = (FITS[fit](model, loader) for loader in (short, long))
    mask = (padded > 0).long()
    torch.testing.assert_close(one(input_ids=ids), other(input_ids=padded, attention_mask=mask), rtol=0, atol=1e-5)
    assert (other(input_ids=padded) - other(input_ids=padded, attention_mask=mask)).abs().max() > 1e-4


def test_entries_that_the_model_does_not_take_are_refused():
    with pytest.raises(ValueError, match=r"entries \['input_ids', 'pixels'\] besides the labels, and the model takes"):
        head_of(Masked(), [{"input_ids": torch.ones(24, 3).long(), "pixels": X, "labels": Y}])
    with pytest.raises(ValueError, match=r"entries \['a', 'b'\] besides the labels"):
        head_of(mlp(), [{"a": X, "b": X, "labels": Y}])
    chosen = head_of(mlp(), [{"a": X, "b": X, "labels": Y}], inputs="a")
    assert torch.equal(chosen(X), head_of(mlp(), [{"a": X, "labels": Y}])(X))


def test_a_head_never_lives_without_its_network():
    model = mlp()
    for function in (lambda x: model[1](model[0](x)), torch.tanh):
        with pytest.raises(ValueError, match="whose network would not be part of the head; expected a module"):
            head_of(model, features=function)
    head = head_of(model, features=model[:2], layer="2")
    before = head(X)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    assert torch.equal(head(X), before)
    assert any(name.startswith("body") for name in head.state_dict())


def test_rows_without_a_finite_prediction_are_refused():
    bad = torch.where(torch.arange(24)[:, None] == 1, torch.nan, X)
    for posterior in (head_of(mlp()), network_of(mlp())):
        for predict in (posterior, posterior.sample_proba, posterior.predict_uncertainty):
            with pytest.raises(ValueError, match="NaN or infinite values for some inputs"):
                predict(bad)


def test_the_score_needs_a_posterior_and_rows_that_differ():
    head = head_of(mlp())
    with pytest.raises(ValueError, match="the posterior is a Sequential; expected a fitted BayesianHead"):
        OODScore.fit(mlp(), [(X, Y)], progress=False)
    for x in (X[:1], torch.ones(24, 3)):
        with pytest.raises(ValueError, match="the score has no scale; expected rows that differ"):
            OODScore.fit(head, [(x, Y[: len(x)])], progress=False)
    with pytest.raises(ValueError, match="NaN or infinite"):
        OODScore.fit(head, [(torch.full((24, 3), torch.nan), Y)], progress=False)
    of_compiled = OODScore.fit(head_of(compiled(mlp())), [(X, Y)], progress=False)
    assert torch.equal(of_compiled(X), OODScore.fit(head, [(X, Y)], progress=False)(X))


class Cells(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.cells, self.fc = kind(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(self.cells(x)[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_weights_get_a_posterior(kind):
    x, y = torch.randn(30, 4, 3), torch.arange(30) % 3
    network = BayesianNetwork.fit(Cells(kind), [(x, y)], rank=2, particles=8, progress=False)
    weights = network.weights()["cells.weight_ih_l0"]
    assert weights.std(dim=0).max() > 0
    assert network(x).shape == (30, 3)
    with pytest.raises(ValueError, match="recurrent weights cannot be varied at once"):
        BayesianNetwork.fit(Cells(kind), [(x, y)], rank=2, vectorise=True, progress=False)


class Heads(nn.Module):
    def __init__(self, form):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.a, self.b, self.form = nn.Linear(3, 5), nn.Linear(5, 3), nn.Linear(5, 2), form

    def forward(self, x):
        h = torch.relu(self.body(x))
        return self.form(self.a(h), self.b(h))


@pytest.mark.parametrize(
    "form", [lambda a, b: {"a": a, "b": b}, lambda a, b: (a, b), lambda a, b: SimpleNamespace(a=a, b=b)]
)
def test_the_name_of_one_of_several_heads_is_enough(form):
    x, y = torch.randn(30, 3), torch.arange(30) % 3
    model = Heads(form)
    head = BayesianHead.fit(model, [(x, y)], layer="a", progress=False)
    torch.testing.assert_close(head.features(x), torch.relu(model.body(x)).detach())
    assert BayesianHead.fit(model, [(x, y % 2)], layer="b", progress=False)(x).shape == (30, 2)
    with pytest.raises(ValueError, match="expected one tensor of logits"):
        BayesianHead.fit(model, [(x, y)], progress=False)


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
def test_features_that_are_all_zero_and_weights_that_are_not_trained(outputs, calibrated):
    torch.manual_seed(0)
    dead = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, outputs))
    with torch.no_grad():
        dead[0].weight.zero_()
        dead[0].bias.fill_(-1.0)
    fresh = nn.Sequential(nn.Linear(3, 50), nn.ReLU(), nn.Linear(50, outputs))
    x, y = torch.randn(60, 3), torch.arange(60) % max(outputs, 2)
    options = {"calibration": [(x, y)], "progress": False} if calibrated else {"progress": False}
    for model in (dead, fresh):
        for fitted in (
            BayesianHead.fit(model, [(x, y)], **options),
            BayesianNetwork.fit(model, [(x, y)], rank=3, particles=20, **options),
        ):
            assert torch.isfinite(fitted(x)).all()
    if outputs == 1:
        regression = BayesianHead.fit(dead, [(x, x[:, 0])], regression=True, progress=False)
        assert torch.isfinite(regression.predict_uncertainty(x).total).all()


def test_inputs_with_another_number_of_axes_are_refused():
    x, y = torch.randn(60, 3), torch.arange(60) % 3
    cube = torch.randn(60, 4, 3)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(ValueError, match="expected inputs with as many axes as those of the training data"):
        BayesianHead.fit(model, [(x, y)], calibration=[(cube, y)], progress=False)
    head = BayesianHead.fit(model, [(x, y)], calibration=[(x, y)], progress=False)
    score = OODScore.fit(head, [(x, y)], progress=False)
    for function in (head, score, head.predict_uncertainty):
        with pytest.raises(ValueError, match="expected inputs with as many axes as those of the training data"):
            function(cube)
    with pytest.raises(ValueError, match=r"returns shape \(60, 4, 3\)"):
        BayesianNetwork.fit(model, [(x, y)], calibration=[(cube, y)], rank=2, progress=False)


def test_a_row_without_its_axis_of_rows_is_one_row():
    torch.manual_seed(0)
    x, y = torch.randn(60, 3), torch.arange(60) % 3
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3))
    head = BayesianHead.fit(model, [(x, y)], calibration=[(x, y)], progress=False)
    score = OODScore.fit(head, [(x, y)], progress=False)
    for function in (head, score, head.noise):
        torch.testing.assert_close(function(x[0]), function(x[:1]))
    one = BayesianHead.fit(model, [(x, y)], calibration=[(x[0], y[:1])], progress=False)
    assert "1 held-out rows are too few" in one.far_field_choice.message


def test_a_network_inside_distributed_data_parallel():
    x, y = torch.randn(30, 3), torch.arange(30) % 3
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        inside = nn.parallel.DistributedDataParallel(model)
        for kind, options in ((BayesianHead, {}), (BayesianNetwork, {"rank": 2, "particles": 8})):
            plain, wrapped = (kind.fit(m, [(x, y)], progress=False, **options)(x) for m in (model, inside))
            torch.testing.assert_close(wrapped, plain)
    finally:
        torch.distributed.destroy_process_group()


def test_autocast_does_not_reach_the_posterior():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), torch.randn(90, 4)
    rows = [(x, torch.arange(90) % 3)]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = BayesianHead.fit(model, rows, calibration=rows, particles=40, progress=False)
        score = OODScore.fit(mixed, rows, calibration=rows, progress=False)(x)
        proba, samples = mixed(x), mixed.sample_proba(x)
        network = BayesianNetwork.fit(model, rows, rank=3, particles=20, progress=False)(x)
    plain = BayesianHead.fit(model, rows, calibration=rows, particles=40, progress=False)
    for found in (proba, samples, network):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:-1]))
    torch.testing.assert_close(proba, plain(x), atol=0.03, rtol=0)
    assert torch.isfinite(score).all()


def test_half_precision_networks_can_be_calibrated():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), torch.randn(90, 4)
    rows, half = [(x, torch.arange(90) % 3)], [(x.bfloat16(), torch.arange(90) % 3)]
    plain = BayesianHead.fit(model, rows, calibration=rows, particles=40, progress=False)(x)
    head = BayesianHead.fit(model.bfloat16(), half, calibration=half, particles=40, progress=False)
    torch.testing.assert_close(head(x.bfloat16()).float(), plain, atol=0.03, rtol=0)


def test_a_hook_that_changes_the_logits_is_not_left_out_in_silence():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(30, 4)
    handle = model[2].register_forward_hook(lambda module, args, output: 2 * output)
    with pytest.raises(ValueError, match="last layer '2' returns something else than its weights give, as with a hook"):
        BayesianHead.fit(model, [(x, torch.arange(30) % 3)], progress=False)
    handle.remove()
    seen = []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output) or 2 * output)  # of the body
    head = BayesianHead.fit(model, [(x, torch.arange(30) % 3)], progress=False)
    assert seen
    torch.testing.assert_close(
        head.features(x), nn.functional.relu(2 * nn.functional.linear(x, *model[0].parameters()))
    )


def test_labels_that_belong_to_a_regression_or_are_one_hot_are_named():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), torch.randn(30, 4)
    with pytest.raises(
        ValueError, match=r"labels are real numbers such as .*; expected the classes \[0, 1\], or a regr"
    ):
        BayesianHead.fit(model, [(x, torch.randn(30))], progress=False)
    with pytest.raises(ValueError, match=r"of one-hot labels pass y.argmax\(1\), and for several labels"):
        BayesianHead.fit(model, [(x, torch.eye(2)[torch.arange(30) % 2])], progress=False)
