"""The detectors of pytorch-ood on the features that detector_tasks.py stores, run in the peers' environment.

The program reads one JSON request per line, the path of a file of features, and answers with one JSON object per line:
for every detector its scores of test, near, far and shifted rows, larger for rows unlike the training data, or why it
failed. Detectors have the package's settings, unless noted. Mahalanobis++, and all others at all layers, are those of
the package after the features are l2-normalised, or summed over layers.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import sys
import types
import warnings
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)


def _import_detectors():
    """Return pytorch_ood.detector, without the package's models and data sets, which need torchvision."""
    site = Path(importlib.util.find_spec("pytorch_ood").origin).parent.parent
    for name in ("pytorch_ood", "pytorch_ood.model"):
        module = types.ModuleType(name)
        module.__path__ = [str(site / name.replace(".", "/"))]
        sys.modules[name] = module
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.models"):
        sys.modules[name] = MagicMock()
    import pytorch_ood.detector

    return pytorch_ood.detector


detectors = _import_detectors()


class Stored:
    """The arrays of a task, as tensors."""

    def __init__(self, path):
        with np.load(path) as found:
            self.arrays = {
                k: torch.as_tensor(v, dtype=None if k.endswith("/y") else torch.float64) for k, v in found.items()
            }
        self.parts = [p.removesuffix("/z") for p in self.arrays if p.endswith("/z") and p[:5] not in ("train", "held_")]
        self.layers = sum(name.startswith("train/a") for name in self.arrays)
        self.last = f"a{self.layers - 1}"
        self.y = self.arrays["train/y"].long()
        self.head = torch.nn.Linear(self.arrays["W"].shape[1], self.arrays["W"].shape[0], dtype=torch.float64)
        self.head.load_state_dict({"weight": self.arrays["W"], "bias": self.arrays["b"]})

    @property
    def single(self):
        """The head in single precision, to which some detectors convert their inputs."""
        return copy.deepcopy(self.head).float()

    def of(self, part, name):
        return self.arrays[f"{part}/{name}"]


def by_logits(make):
    return lambda s: lambda part: make().predict_logits(s.of(part, "z"))


def by_features(make, prepare=lambda z: z, layer=None):
    def fit(s):
        name = layer or s.last
        found = make(s)
        found.fit_features(prepare(s.of("train", name)), s.y)
        return lambda part: found.predict_features(prepare(s.of(part, name)))

    return fit


def all_layers(make, prepare=lambda z: z):
    """Sum the scores of all layers, standardised by their mean and standard deviation on the held-out rows."""

    def fit(s):
        fitted = [(f"a{i}", make(s)) for i in range(s.layers)]
        scales = []
        for name, found in fitted:
            found.fit_features(prepare(s.of("train", name)), s.y)
            known = found.predict_features(prepare(s.of("held_out", name)))
            scales.append((known.mean(), known.std() + 1e-12))

        def score(part):
            return sum(
                (found.predict_features(prepare(s.of(part, name))) - mean) / sd
                for (name, found), (mean, sd) in zip(fitted, scales, strict=True)
            )

        return score

    return fit


def by_maps(make, fits):
    """Detectors of feature maps (n, C, H, W): here the inputs of the last layer, with one position."""

    def fit(s):
        head = torch.nn.Sequential(torch.nn.Flatten(), s.head)
        found = make(head)
        if fits:
            found.fit_feature_maps(s.of("train", s.last)[:, :, None, None], s.y)
        return lambda part: found.predict_feature_maps(s.of(part, s.last)[:, :, None, None])

    return fit


def nac(s):
    """NAC-UE of the inputs of the last layer."""
    model = torch.nn.Sequential(torch.nn.Identity(), s.head)

    def batches(part):
        return [x.clone().requires_grad_() for x in s.of(part, s.last).split(500)]

    found = detectors.NACUE(model, [model[0]])
    found.fit(batches("train"))
    return lambda part: torch.cat([found.predict(x) for x in batches(part)])


def kl_matching(s):
    found = detectors.KLMatching(None)
    found.fit_logits(s.of("train", "z"), s.y)
    return lambda part: found.predict_logits(s.of(part, "z"))


def normalised(z):
    return torch.nn.functional.normalize(z)


def knn(s):
    return detectors.KNN(None, k=max(1, min(50, len(s.y) // 20)))  # of the package: 50, with thousands of rows


def vim(s):
    D = s.of("train", s.last).shape[1]
    return detectors.ViM(None, 1000 if D >= 2048 else 512 if D >= 768 else D // 2, s.head.weight, s.head.bias)


METHODS = {
    "maximum softmax": by_logits(lambda: detectors.MaxSoftmax(None)),
    "maximum logit": by_logits(lambda: detectors.MaxLogit(None)),
    "energy": by_logits(lambda: detectors.EnergyBased(None)),
    "entropy": by_logits(lambda: detectors.Entropy(None)),
    "GEN": by_logits(lambda: detectors.GEN(None)),
    "ReAct": by_maps(lambda head: detectors.ReAct(torch.nn.Identity(), head), fits=True),
    "ASH": by_maps(lambda head: detectors.ASH(torch.nn.Identity(), head), fits=False),
    "SCALE": by_maps(lambda head: detectors.SCALE(torch.nn.Identity(), head), fits=False),
    "SHE": by_features(lambda s: detectors.SHE(torch.nn.Identity(), s.head)),
    "KL matching": kl_matching,
    "KNN": by_features(knn),
    "KNN, input": by_features(knn, layer="a0"),
    "KNN, all layers": all_layers(knn),
    "Mahalanobis": by_features(lambda _: detectors.Mahalanobis(None)),
    "Mahalanobis, input": by_features(lambda _: detectors.Mahalanobis(None), layer="a0"),
    "Mahalanobis, all layers": all_layers(lambda _: detectors.Mahalanobis(None)),
    "Mahalanobis++": by_features(lambda _: detectors.Mahalanobis(None), normalised),
    "relative Mahalanobis": by_features(lambda _: detectors.RMD(None)),
    "relative Mahalanobis, normalised": by_features(lambda _: detectors.RMD(None), normalised),
    "ViM": by_features(vim),
    "fDBD": by_features(lambda s: detectors.fDBD(torch.nn.Identity(), s.single), torch.Tensor.float),
    "NCI": by_features(lambda s: detectors.NCI(torch.nn.Identity(), s.single), torch.Tensor.float),
    "NNGuide": by_features(lambda s: detectors.NNGuide(torch.nn.Identity(), s.single, k=10), torch.Tensor.float),
    "GMM": by_features(lambda _: detectors.GMM(None)),
    "NAC": nac,
}


def main():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # covariances of few rows are close to singular
    for line in sys.stdin:
        s, answer = Stored(json.loads(line)), {}
        for name, fit in METHODS.items():
            try:
                score = fit(s)
                found = {part: score(part).detach().double().numpy() for part in s.parts}
                answer[name] = {
                    part: np.nan_to_num(values, nan=0.0, posinf=1e30, neginf=-1e30).tolist()
                    for part, values in found.items()
                }
            except Exception as error:  # noqa: BLE001  whatever another library raises is its result
                answer[name] = f"{type(error).__name__}: {error}"[:200]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
