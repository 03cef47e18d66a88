"""Far-field variance in figures: two moons, small tasks of the usefulness benchmark, and how its form was chosen.

    python benchmarks/far_field.py moons                 # four seeds; the table of docs/understand/uncertainty.md
    python benchmarks/far_field.py tasks                 # digits and tables, against temperature scaling, three seeds
    python benchmarks/far_field.py development           # other digits and other shifts: ridges, and either term alone
    python benchmarks/far_field.py tables                # classifiers on the development sets of default_sets.py

The development tasks are those of useful_development.py that need no downloads. There the far-field variance is added
to the temperature-scaled network itself, so that its form is compared without the noise of a posterior.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from useful_development import digits, shifted
from useful_tasks import TASKS, Split

from enkbayes.core.likelihoods import Bernoulli, Categorical
from enkbayes.core.logit_noise import noisy_predictive
from enkbayes.core.problem import Problem
from enkbayes.evaluation import metrics
from enkbayes.inference import temperature_scale
from enkbayes.inference.far_field import Extent, choose
from enkbayes.nets import BayesianHead
from enkbayes.nets.far_field import Moments, recorded_outputs, watched
from enkbayes.reproduction.datasets import one_thread, train_network
from enkbayes.reproduction.demo import RADII, DemoData, demo_scores, predictors

Rows = tuple[np.ndarray, np.ndarray, list[torch.Tensor]]  # logits (n,) or (n, K), zero roots, outputs of the layers


def moons(seeds: int) -> None:
    """Print the means over seeds of the scores of the demo."""
    found: dict[str, list[list[float]]] = {}
    for seed in range(seeds):
        data = DemoData.moons(seed)
        with one_thread():
            model = train_network(data.plane, seed, 1500, optimiser=lambda p: torch.optim.Adam(p, lr=1e-2))
            for name, predict in predictors(model, data, seed)[0].items():
                scores = demo_scores(predict, data.plane)
                found.setdefault(name, []).append([scores.accuracy, scores.nll, scores.ece, *scores.confidence])
    print(f"| two moons, {seeds} seeds | accuracy | NLL | ECE | " + " | ".join(f"at {r:g}" for r in RADII) + " |")
    print("|---" * (len(RADII) + 4) + "|")
    for name, rows in found.items():
        print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in np.mean(rows, axis=0)) + " |")


def tasks(seeds: int) -> None:
    """Print NLL and ECE in distribution, and confidence and log loss outside, for temperature scaling and heads."""
    print("| task | method | NLL | ECE | confidence on OOD rows | on noise | NLL of noisy rows |")
    print("|---" * 7 + "|")
    for task in (task for task in TASKS if not task.images):
        found: dict[str, list[list[float]]] = {}
        for seed in range(seeds):
            split = next(iter(task.splits(seed, 1)))
            for name, predict in methods(split).items():
                found.setdefault(name, []).append(scored(split, predict, seed))
        for name, rows in found.items():
            print(
                f"| {task.name} | {name} | " + " | ".join(f"{v:.3f}" for v in np.mean(rows, axis=0)) + " |", flush=True
            )
        gap = np.asarray(found["with far-field variance"])[:, 0] - np.asarray(found["temperature scaling"])[:, 0]
        print(f"<!-- {task.name}: NLL minus temperature scaling {gap.mean():+.4f}, by seed {gap.round(4).tolist()} -->")


def methods(split: Split) -> dict[str, Callable[[torch.Tensor], np.ndarray]]:
    """Return predictions of temperature scaling, and of heads without and with far-field variance."""
    model = split.networks[0]
    z, y = logits_of(model, split.calibration.x), split.calibration.y
    scale = fitted_scale(z, y)
    heads = {
        name: BayesianHead.fit(
            model, split.train.loader(), calibration=split.calibration.loader(), far_field=on, progress=False
        )
        for name, on in (("plain posterior", False), ("with far-field variance", True))
    }

    def temperature(x: torch.Tensor) -> np.ndarray:
        return likelihood_of(z).mean(scale * logits_of(model, x))

    def of_head(head: BayesianHead) -> Callable[[torch.Tensor], np.ndarray]:
        return lambda x: head(x).detach().double().numpy()

    return {"temperature scaling": temperature} | {name: of_head(head) for name, head in heads.items()}


def scored(split: Split, predict: Callable[[torch.Tensor], np.ndarray], seed: int) -> list[float]:
    x, y = split.evaluation.x, split.evaluation.y
    generator = torch.Generator().manual_seed(seed)
    noise, noisy = torch.randn(x.shape, generator=generator) * 5, x + 3 * torch.randn(x.shape, generator=generator)
    inside = metrics.score(predict(x), y)
    (ood,) = split.ood.values()
    far = [float(predict(rows).max(axis=1).mean()) for rows in (ood, noise)]
    return [inside.nll, inside.ece, *far, metrics.score(predict(noisy), y).nll]


def development() -> None:
    """Print what ridges and terms of the variance do on development tasks, relative to temperature scaling."""
    print("| form | NLL in distribution, minus | confidence on OOD rows | on noise | AUROC of confidence |")
    print("|---" * 5 + "|")
    splits = list(development_splits())
    for name, ridge, terms, most in (
        ("temperature scaling", 3e-3, (0, 0), 0.005),
        ("first term", 3e-3, (1, 0), 0.005),
        ("second term", 3e-3, (0, 1), 0.005),
        ("both, ridge 1e-3", 1e-3, (1, 1), 0.005),
        ("both, ridge 3e-3", 3e-3, (1, 1), 0.005),
        ("both, ridge 1e-2", 1e-2, (1, 1), 0.005),
        ("both, range never widened", 3e-3, (1, 1), np.inf),
        ("both, range widened twice as early", 3e-3, (1, 1), 0.0025),
    ):
        rows = [of_form(split, ridge, terms, most) for split in splits]
        print(f"| {name} | " + " | ".join(f"{value:.4f}" for value in np.mean(rows, axis=0)) + " |", flush=True)


def development_splits() -> Iterator[Split]:
    from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

    yield from digits()
    for load in (load_breast_cancer, load_wine, load_diabetes):
        yield from list(shifted(load))[:2]


def of_form(split: Split, ridge: float, terms: tuple[int, int], most: float) -> list[float]:
    model = split.networks[0]
    moments = Moments(model)
    with torch.no_grad():
        watched(model, [((split.train.x,), {})], moments)
    places = moments.places[:-1]  # the last layer gives the logits
    extent = Extent.of_moments([moments.sums[place] / moments.count for place in places], ridge)

    def read(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad(), recorded_outputs(model, places) as outputs:
            z = logits_of(model, x)
        return z, np.asarray(extent.leverage([outputs[place].double() for place in places]))

    z, leverage = read(split.calibration.x)
    y = split.calibration.y
    extent = extent.calibrated((), leverage=torch.as_tensor(leverage), classes=int(y.max()) + 1, most=most)
    centre, width = (float(value) for value in extent.scale[:2])
    scale, likelihood = fitted_scale(z, y), likelihood_of(z)
    found = choose(likelihood, scale * z, np.zeros((*z.shape, 1)), y, (leverage - centre) / width)
    strength = found.strength if terms[0] else 0.0
    numeric = replace(extent, scale=np.asarray(extent.scale))

    def predict(x: torch.Tensor) -> np.ndarray:
        z, leverage = read(x)
        noise = numeric.variance((leverage - centre) / width, strength, found.reach if terms[1] else 0.0)
        factor = scale * (found.scale if strength else 1.0)
        return noisy_predictive(likelihood, factor * z, np.zeros((*z.shape, 1)), noise)

    inside, plain = predict(split.evaluation.x), likelihood.mean(scale * logits_of(model, split.evaluation.x))
    (ood,) = split.ood.values()
    noise = 5 * torch.randn(split.evaluation.x.shape, generator=torch.Generator().manual_seed(0))
    away = predict(ood)
    cost = metrics.nll(inside, split.evaluation.y) - metrics.nll(plain, split.evaluation.y)
    far = [away.max(axis=1).mean(), predict(noise).max(axis=1).mean()]
    return [cost, *map(float, far), metrics.ood_score(inside, away).auroc]


def tables(sizes: tuple[int, ...] = (50, 200), largest: int = 150) -> None:
    """Print what far-field variance does to `EnsembleClassifier` on tables with few parameters, with minus without."""
    from default_sets import DEVELOPMENT, load, split

    import enkbayes as eb

    print("| set | rows | NLL | NLL, noise of one sd | NLL, noise of three sd | confidence on noise of five sd |")
    print("|---" * 6 + "|")
    means: dict[int, list[list[float]]] = {}
    for size, name in ((size, name) for size in sizes for name in DEVELOPMENT):
        if len(load(name)[1]) < 1.5 * size:
            continue
        rows = split(name, size, 0)
        if rows.X.shape[1] * (int(rows.y.max()) + 1) > largest:
            continue
        clf = eb.EnsembleClassifier(far_field=True, random_state=0).fit(rows.X, rows.y)
        X, y, random = rows.X_test[:1000], rows.y_test[:1000], np.random.default_rng(0)
        inputs = [X, *(X + s * random.standard_normal(X.shape) for s in (1, 3)), 5 * random.standard_normal(X.shape)]
        found = []
        for on in (False, True):
            clf.set_params(far_field=on)
            probas = [clf.predict_proba(each) for each in inputs]
            found.append([*(metrics.nll(proba, y) for proba in probas[:3]), float(probas[3].max(axis=1).mean())])
        gap = (np.asarray(found[1]) - found[0]).tolist()
        means.setdefault(size, []).append(gap)
        print(f"| {name} | {size} | " + " | ".join(f"{value:+.3f}" for value in gap) + " |", flush=True)
    for size, gaps in means.items():
        print(f"| mean of {len(gaps)} | {size} | " + " | ".join(f"{v:+.3f}" for v in np.mean(gaps, axis=0)) + " |")


def logits_of(model: torch.nn.Module, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        z = model(x).double().numpy()
    return z[:, 0] if z.shape[1] == 1 else z


def likelihood_of(z: np.ndarray) -> Bernoulli | Categorical:
    return Bernoulli() if z.ndim == 1 else Categorical(z.shape[1])


def fitted_scale(z: np.ndarray, y: np.ndarray) -> float:
    """Return 1 / T of logits (n,) or (n, K) and class numbers (n,)."""
    if z.ndim == 1:
        return temperature_scale(Problem.create(z[:, None], y), np.ones(1))
    K = z.shape[1]
    return temperature_scale(Problem.create(z, y, classes=np.arange(K)), np.eye(K).reshape(-1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("moons", "tasks", "development", "tables"))
    parser.add_argument("--seeds", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.part == "moons":
        moons(arguments.seeds or 4)
    elif arguments.part == "tasks":
        tasks(arguments.seeds or 3)
    elif arguments.part == "tables":
        tables()
    else:
        development()
