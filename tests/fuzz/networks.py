"""Fuzz cases of BayesianHead, BayesianNetwork and OODScore: hostile models, loaders and options."""

import inspect
import io
import pickle
import tempfile
import warnings
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import enkbayes as eb
from enkbayes.nets import BayesianHead, BayesianNetwork, MultiLabel, OODScore
from fuzz.data import plain_rows
from fuzz.deviations import cases
from fuzz.oracle import Refused, check_proba, judged, require, same


class Tuple(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.body, self.fc = nn.Linear(3, 5), nn.Linear(5, outputs)

    def encode(self, x):
        return torch.tanh(self.body(x))

    def forward(self, x):
        z = self.encode(x)
        return self.fc(z), z


class Named(Tuple):
    def forward(self, x):
        return SimpleNamespace(logits=super().forward(x)[0], hidden=None)


class Dictionary(Tuple):
    def forward(self, x):
        return {"logits": super().forward(x)[0]}


class Recurrent(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, outputs)

    def forward(self, x):
        return self.fc(self.lstm(x[:, :, None])[0][:, -1])


class Convolution(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv1d(1, 4, 2), nn.BatchNorm1d(4), nn.Linear(8, outputs)

    def forward(self, x):
        return self.fc(torch.relu(self.norm(self.conv(x[:, None, :]))).flatten(1))


class Masked(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.embed, self.fc = nn.Embedding(5, 4), nn.Linear(4, outputs)

    def forward(self, input_ids, attention_mask=None):
        found = self.embed(input_ids)
        mask = torch.ones(input_ids.shape) if attention_mask is None else attention_mask.float()
        return SimpleNamespace(logits=self.fc((found * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)))


class Shared(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        return self.fc(torch.relu(self.fc(x)))


def mlp(outputs, *end):
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs), *end)


def scripted(model, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(model) if kind == "scripted" else torch.jit.trace(model, torch.zeros(2, 3))


def pruned(model):
    prune.l1_unstructured(model[2], "weight", amount=0.3)
    return model


def inference(outputs):
    with torch.inference_mode():
        return mlp(outputs)


def filled(model, value):
    with torch.no_grad():
        model[2].weight.fill_(value)
    return model


def normed(model, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = {
            "old": nn.utils.weight_norm,
            "new": parametrizations.weight_norm,
            "sn": parametrizations.spectral_norm,
        }
        function[kind](model[2])
    return model


MODELS = {
    "plain": mlp,
    "softmax": lambda k: mlp(k, nn.Softmax(dim=-1)),
    "sigmoid": lambda k: mlp(k, nn.Sigmoid()),
    "log softmax": lambda k: mlp(k, nn.LogSoftmax(dim=-1)),
    "relu": lambda k: mlp(k, nn.ReLU()),
    "flat": lambda k: mlp(k, nn.Flatten(0)),
    "linear": lambda k: nn.Linear(3, k),
    "no linear": lambda k: nn.Flatten(),
    "no parameters": lambda k: nn.Identity(),
    "deep": lambda k: nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(4)), nn.Linear(3, k)),
    "no bias": lambda k: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, k, bias=False)),
    "dropout": lambda k: nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, k)),
    "batch norm": lambda k: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, k)),
    "double": lambda k: mlp(k).double(),
    "half": lambda k: mlp(k).half(),
    "bfloat16": lambda k: mlp(k).bfloat16(),
    "data parallel": lambda k: nn.DataParallel(mlp(k)),
    "tuple": Tuple,
    "named": Named,
    "dictionary": Dictionary,
    "recurrent": Recurrent,
    "convolution": Convolution,
    "masked": Masked,
    "shared": Shared,
    "weight norm": lambda k: normed(mlp(k), "old"),
    "weight parametrization": lambda k: normed(mlp(k), "new"),
    "spectral norm": lambda k: normed(mlp(k), "sn"),
    "inference": inference,
    "pruned": lambda k: pruned(mlp(k)),
    "scripted": lambda k: scripted(mlp(k), "scripted"),
    "traced": lambda k: scripted(mlp(k), "traced"),
    "lazy": lambda k: nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(k)),
    "zero": lambda k: filled(mlp(k), 0.0),
    "large": lambda k: filled(mlp(k), 1e4),
    "huge": lambda k: filled(mlp(k), 1e30),
    "nan": lambda k: filled(mlp(k), float("nan")),
    "infinite": lambda k: filled(mlp(k), float("inf")),
    "frozen": lambda k: mlp(k).requires_grad_(False),
    "training": lambda k: mlp(k).train(),
    "function": lambda k: lambda x: x,
    "none": lambda k: None,
    "quantized": lambda k: mlp(k).to(torch.float8_e4m3fn),
    "complex": lambda k: mlp(k).to(torch.complex64),
}

INPUTS = {
    "nan": lambda x: torch.where(torch.arange(len(x))[:, None] == 1, torch.nan, x),
    "infinite": lambda x: torch.where(torch.arange(len(x))[:, None] == 1, torch.inf, x),
    "nan later": lambda x: torch.where(torch.arange(len(x))[:, None] == len(x) - 1, torch.nan, x),
    "constant": torch.ones_like,
    "zero": torch.zeros_like,
    "huge": lambda x: 1e30 * x,
    "large": lambda x: 1e6 * x,
    "far": lambda x: x + 1e6,
    "double": lambda x: x.double(),
    "half": lambda x: x.half(),
    "integers": lambda x: (3 * x).long(),
    "numpy": lambda x: x.numpy(),
    "list": lambda x: x.tolist(),
    "wide": lambda x: torch.hstack([x, x]),
    "cube": lambda x: x[:, None, :],
    "vector": lambda x: x[:, 0],
    "one row": lambda x: x[:1],
    "no rows": lambda x: x[:0],
    "none": lambda x: None,
    "text": lambda x: "text",
    "gradient": lambda x: x.clone().requires_grad_(),
    "sparse": lambda x: x.to_sparse(),
}

LABELS = {
    "floats": lambda y: y.float(),
    "column": lambda y: y[:, None],
    "one-hot": lambda y: nn.functional.one_hot(y, 3),
    "from one": lambda y: y + 1,
    "negative": lambda y: y - 1,
    "nan": lambda y: torch.where(y == 0, torch.nan, y.float()),
    "fractions": lambda y: y + 0.5,
    "text": lambda y: [str(v) for v in y.tolist()],
    "list": lambda y: y.tolist(),
    "numpy": lambda y: y.numpy(),
    "one class": torch.zeros_like,
    "booleans": lambda y: y > 0,
    "short": lambda y: y[:-1],
    "none": lambda y: None,
    "number": lambda y: 1,
    "bfloat16": lambda y: y.bfloat16(),
    "half": lambda y: y.half(),
    "complex": lambda y: y + 1j,
    "uint8": lambda y: y.to(torch.uint8),
}

LOADERS = {
    "one batch": lambda x, y: [(x, y)],
    "three": lambda x, y: [(x, y, "id")],
    "lists": lambda x, y: [[x, y]],
    "dict": lambda x, y: [{"x": x, "y": y}],
    "labels": lambda x, y: [{"input": x, "labels": y, "id": ["a"] * len(x)}],
    "hugging face": lambda x, y: [{"input_ids": _ids(x), "attention_mask": _ids(x) > 0, "labels": y}],
    "strange keys": lambda x, y: [{"q": x, "r": y}],
    "only x": lambda x, y: [x],
    "tuple of one": lambda x, y: [(x,)],
    "empty": lambda x, y: [],
    "empty batch": lambda x, y: [(x, y), (x[:0], y[:0])],
    "one row at a time": lambda x, y: [(x[i : i + 1], y[i : i + 1]) for i in range(len(y))],
    "generator": lambda x, y: iter([(x, y)]),
    "dataset": torch.utils.data.TensorDataset,
    "loader": lambda x, y: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10),
    "none": lambda x, y: None,
    "number": lambda x, y: 3,
    "none inside": lambda x, y: [None],
    "nested": lambda x, y: [((x, x), y)],
}


def _ids(x):
    return (x.abs() * 2).long().clamp(0, 4) if isinstance(x, torch.Tensor) and x.dtype != torch.complex64 else x


NUMBERS = {repr(v): v for v in (0.5, 1e-300, 1e-12, 1e12, 1e300, 0, -1, np.nan, np.inf, None, "x", "auto", True, [1.0])}
COUNTS = {repr(v): v for v in (1, 2, 3, 9, 30, 0, -1, 2.5, None, "5", np.nan)}

HEAD = {
    "prior_precision": NUMBERS,
    "intercept_precision": NUMBERS,
    "layer": {"last": "2", "first": "0", "none such": "fc9", "relu": "1", "number": 2, "empty": "", "fc": "fc"},
    "prior": {"gaussian": eb.Gaussian.isotropic(5, 2.0), "wide": eb.Gaussian.isotropic(99), "number": 2.0, "text": "x"},
    "features": ["function", "body", "method", "text", "wrong shape", "lambda", "tuple"],
}
NETWORK = {
    "prior_precision": NUMBERS,
    "rank": COUNTS,
    "rows": COUNTS,
    "jacobian": {"yes": True, "no": False},
    "vectorise": {"yes": True, "no": False},
    "replay": {"no": False},
    "layers": {"last": ["2"], "text": "2", "none such": ["x"], "empty": [], "number": 3, "fc": ["fc"]},
}
BOTH = {
    "sampler": {
        "homotopy": eb.Homotopy(steps=4),
        "mean field": eb.MeanField(),
        "trotter": eb.TrotterSampler(max_steps=10),
        "stochastic": eb.StochasticSampler(max_steps=10),
        "class": eb.Equilibrium,
        "text": "equilibrium",
    },
    "particles": COUNTS,
    "inputs": {"0": 0, "1": 1, "9": 9, "x": "x", "function": lambda batch: batch[0], "1.5": 1.5},
    "labels": {"0": 0, "1": 1, "-1": -1, "y": "y", "function": lambda batch: batch[1], "None": None},
    "output": {"first": lambda found: found[0], "0": 0, "logits": "logits", "text": lambda found: "x", "9": 9},
}

VIEWS = {
    "noise": lambda x: x + 0.3 * torch.randn_like(x),
    "with a generator": lambda x, generator: x + 0.3 * torch.randn(x.shape, generator=generator),
    "in place": lambda x: x.mul_(1.1),
    "nan": lambda x: x * torch.nan,
    "one row": lambda x: x[:1],
    "another width": lambda x: x[:, :1],
    "double": lambda x: x.double(),
    "nothing": lambda x: None,
    "an error": lambda x: x["image"],
    "text": "x",
}

CHOICES = (
    {name: list(values) for name, values in (HEAD | NETWORK | BOTH).items()}
    | {"model": list(MODELS), "outputs": ["1", "2", "3"], "x": list(INPUTS), "y": list(LABELS), "loader": list(LOADERS)}
    | {"kind": ["network", "score"], "held_out": list(LOADERS), "held_out x": list(INPUTS), "rows of": list(INPUTS)}
    | {"run seed": ["-1", "None", "x", "7"], "task": ["regression", "labels"]}
    | {"then": ["state", "file", "pickle", "copy", "half", "double", "train", "export", "uncertainty", "moved"]}
    | {"also": ["autocast", "threshold", "trust"], "views": list(VIEWS), "most_views": list(COUNTS)}
)

strategy = cases(CHOICES, most=4)


def given(case, choices):
    return {name: choices[name][case[name]] for name in choices if name in case and isinstance(choices[name], dict)}


def features_of(kind, model):
    """Return a value of `features=`; those of models without such a part are refused."""
    torch.manual_seed(0)  # the same part whenever it is asked for
    part = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    return {
        "function": torch.tanh,
        "body": part,
        "method": getattr(model, "encode", part.forward),
        "text": "x",
        "wrong shape": lambda x: x[:, 0],
        "lambda": lambda x: part(x) + 0,
        "tuple": lambda x: (x, x),
    }[kind]


def examine(case):
    """Run a case; see the oracle for what it may end with."""
    torch.manual_seed(case["seed"])
    outputs = int(case.get("outputs", "1" if case.get("task") == "regression" else "3"))
    rows, labels, _ = plain_rows(case["seed"], 20)
    x, y = torch.as_tensor(rows, dtype=torch.float32), torch.as_tensor(labels)
    if case.get("task") == "regression":
        y = x[:, 0] + 0.1 * y
    elif case.get("task") == "labels":
        y = (x[:, :outputs] + 0.1 * y[:, None] > 0).float()
    elif outputs < 3:
        y = (y > 0).long()
    if case.get("model") in ("double", "half", "bfloat16"):
        x = x.to({"double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}[case["model"]])
    model = MODELS[case.get("model", "plain")](outputs)
    before = deepcopy(model.state_dict()) if case.get("model") not in ("function", "none", "lazy") else {}
    shown = INPUTS[case["x"]](x) if "x" in case else x
    told = LABELS[case["y"]](y) if "y" in case else y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, while the batches are made
        loader = attempt(LOADERS[case.get("loader", "one batch")], shown, told)
        held = attempt(LOADERS[case["held_out"]], shown, told) if "held_out" in case else None
    if "held_out x" in case:
        held = [(INPUTS[case["held_out x"]](x), y)]
    mixed = torch.autocast("cpu", torch.bfloat16, enabled=case.get("also") == "autocast")
    with judged(), mixed:
        posterior = fitted(case, model, loader, held)
        for name, values in (model.state_dict() if before else {}).items():
            require(
                torch.equal(values.float().nan_to_num(), before[name].float().nan_to_num()), "the model has changed"
            )
        asked = INPUTS[case["rows of"]](x) if "rows of" in case else shown
        refuse_unless_taken(model, asked)
        examine_module(case, posterior, model, asked)
        if case.get("kind") == "score":
            score = OODScore.fit(
                posterior, loader, progress=False, **given(case, {k: BOTH[k] for k in ("inputs", "labels")})
            )
            found = call(score, asked)
            require(bool(torch.isfinite(found).all()), "the score is not finite")


def attempt(function, x, y):
    try:
        return function(x, y)
    except (TypeError, AttributeError, AssertionError, RuntimeError, ValueError):
        return [(x, y)]


def fitted(case, model, loader, held):
    options = given(case, BOTH) | {"progress": False}
    if "run seed" in case:
        options["seed"] = {"-1": -1, "None": None, "x": "x", "7": 7}[case["run seed"]]
    if "views" in case and case.get("task") != "labels":
        options["views"] = VIEWS[case["views"]]
        options["most_views"] = COUNTS[case["most_views"]] if "most_views" in case else 2
    if case.get("kind") == "network":
        options = {"rank": 2, "particles": 12} | options | given(case, NETWORK)
        fit = MultiLabel.fit_network if case.get("task") == "labels" else BayesianNetwork.fit
        return fit(model, loader, calibration=held, **options)
    options = {"particles": 30} | options | given(case, HEAD)
    if "features" in case:
        options["features"] = features_of(case["features"], model)
    if case.get("task") == "labels":
        known = inspect.signature(MultiLabel.fit_head).parameters
        options = {name: value for name, value in options.items() if name in known}
        return MultiLabel.fit_head(model, loader, calibration=held, **options)
    if case.get("task") == "regression":
        options["regression"] = True
    return BayesianHead.fit(model, loader, calibration=held, **options)


def call(function, x):
    return function(**x) if isinstance(x, dict) else function(x)


def refuse_unless_taken(model, x):
    """End the case where the user's own model fails on these inputs: a head or network then fails in the same way."""
    try:
        with torch.no_grad():
            call(model, x)
    except Exception as error:
        raise Refused(f"the model itself: {error}") from error


def checked(case, posterior, x):
    """Return the predictions for x, once they are sound: probabilities of classes or of labels, or numbers."""
    found = call(posterior, x).detach()
    if case.get("task") == "regression":
        require(bool(torch.isfinite(found).all()), "predictions are not finite")
    elif case.get("task") == "labels":
        check_proba(torch.stack([found, 1 - found], dim=-1))
    else:
        check_proba(found.float() if found.dtype == torch.bfloat16 else found)
    return found


def examine_module(case, posterior, model, x):
    proba, then = checked(case, posterior, x), case.get("then")
    if then == "uncertainty":
        found = posterior.predict_uncertainty(x)
        require(bool(torch.isfinite(found.total).all()), "uncertainties are not finite")
    if then in ("state", "pickle", "copy", "file"):
        again = another(case, posterior, model)
        require(same(call(again, x).detach().float(), proba.float()), "the copy predicts something else")
    if then == "moved":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        require(same(call(posterior, x).detach().float(), proba.float()), "the prediction moves with the model")
    if then in ("half", "double") and isinstance(x, torch.Tensor) and x.dtype == torch.float32:
        checked(case, getattr(posterior, then)(), getattr(x, then)())
    if case.get("also") == "threshold":
        several = case.get("task") == "labels"
        posterior.reject_threshold([(x, torch.zeros(proba.shape if several else len(proba)))], max_error=0.3)
    if case.get("also") == "trust":
        require(posterior.trust.verdict in ("good", "usable", "do not trust"), "no verdict")
    if then == "export" and "views" not in case and isinstance(x, torch.Tensor) and exported(model, x) is not None:
        found = exported(posterior.eval(), x)
        require(found is not None, "the network can be exported, its posterior cannot")
        require(torch.allclose(found.float(), proba.float(), atol=1e-4), "the exported program predicts something else")
    if then == "train":
        require(same(call(posterior.train(), x).detach().float(), proba.float()), "train() changes it")


def exported(module, x):
    """Return what the exported program predicts for x, or None where PyTorch cannot export the module."""
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch
            return torch.export.export(module, (x,), strict=False).module()(x)
    except Exception:  # noqa: BLE001 - of the user's own model
        return None


def another(case, posterior, model):
    """Return the posterior as a copy, a pickle, a state or a file brings it back."""
    then = case["then"]
    if then == "pickle":
        try:
            stream = pickle.dumps(posterior)
        except (pickle.PicklingError, AttributeError) as error:  # of a function that the user has not named
            require("lambda" in str(error), f"no pickle: {error}")
            raise Refused(str(error)) from error
        return pickle.loads(stream)
    if then == "file":
        with tempfile.TemporaryDirectory() as folder:
            posterior.save(f"{folder}/module.safetensors")
            part = features_of(case["features"], model) if "features" in case else model
            return type(posterior).load(f"{folder}/module.safetensors", part)
    again = deepcopy(posterior)
    if then == "state":
        stream = io.BytesIO()
        torch.save(posterior.state_dict(), stream)
        stream.seek(0)
        again.load_state_dict(torch.load(stream))
    return again
