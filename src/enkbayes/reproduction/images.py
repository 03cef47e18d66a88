"""Figure 7: an image network for two classes, tested on those classes and on classes it has never seen.

The predictions of each method are stored in a file, so that an interrupted run continues with the missing methods.
Networks are stored in the cache after every epoch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from enkbayes.core.problem import Problem
from enkbayes.evaluation import metrics, plots
from enkbayes.evaluation.baselines import HMC, Ensemble, LaplaceProbit, Method
from enkbayes.reproduction.datasets.cifar import dogs_and_cats, load_cifar10, neither_dogs_nor_cats
from enkbayes.reproduction.datasets.downloads import cache_folder
from enkbayes.reproduction.datasets.images import Images
from enkbayes.reproduction.findings import Claim, Drawing, Findings, Setting, Table, judged
from enkbayes.reproduction.methods import PRIOR_VARIANCE, timed_fit
from enkbayes.reproduction.sizes import Run
from enkbayes.samplers import Equilibrium, Homotopy, TrotterSampler
from enkbayes.storage.files import replacing
from enkbayes.storage.fingerprint import fingerprint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Vector = np.ndarray[Any, Any]
HORIZON = 23.0
"""Final time K ds of Algorithm 2."""

BATCH = 500
"""Images that go through the network at a time."""

BAYES = ("Laplace", "Algorithm 2", "Equilibrium", "Homotopy", "HMC")
"""The methods that compute a posterior over the last layer."""

NOISY = "Equilibrium with far-field variance"
"""The exact-flow sampler with noise in the logits that half of the test images choose."""

SHOWN = ("MLE", "Deep ensemble", "Laplace", "Algorithm 2", "Equilibrium")
"""The methods in the figure."""

COLUMNS = (
    "method",
    "training accuracy",
    "test accuracy",
    "NLL",
    "ECE",
    "confidence, test",
    "confidence, others",
    "OOD AUROC",
    "distance to HMC",
    "steps",
    "time / HMC",
)


@dataclass(frozen=True, eq=False)
class ImageTask:
    """Training and test images of two classes, and images of other classes."""

    name: str
    train: Images
    test: Images
    others: Images
    checkpoints: Path | None


def cifar_task(data_dir: Path | None) -> ImageTask:
    """Return dogs (class 0) and cats (class 1) of CIFAR-10; the others are the test images of the other classes."""
    train, test = load_cifar10(data_dir)
    folder = cache_folder() / "networks"
    return ImageTask("dogs-cats", dogs_and_cats(train), dogs_and_cats(test), neither_dogs_nor_cats(test), folder)


def digits_task() -> ImageTask:
    """Return handwritten threes and fives, 8 x 8 pixels, that come with scikit-learn: a substitute that needs no
    download. The others are the other digits.

    >>> task = digits_task()
    >>> task.train.images.shape, len(task.test), len(task.others)
    ((245, 8, 8, 3), 120, 1432)
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
    data = Images(np.repeat(grey[..., None], 3, axis=3), digits.target.astype(np.int64))
    pair = data.only(3, 5)
    order = np.random.default_rng(0).permutation(len(pair))
    train, test = (Images(pair.images[rows], pair.labels[rows]) for rows in (order[:245], order[245:]))
    return ImageTask("digits", train, test, data.only(0, 1, 2, 4, 6, 7, 8, 9), None)


def image_network(
    task: ImageTask, *, epochs: int, seed: int, progress: Callable[[int, float], None] = lambda *_: None
) -> Any:
    """Return a ResNet10 with one logit, trained on the task; with a folder, a checkpoint is stored after each epoch."""
    import torch

    from enkbayes.reproduction.image_training import ImageTraining, train_on_images
    from enkbayes.reproduction.resnet import ResNet10

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ResNet10(outputs=1)
    file = None if task.checkpoints is None else task.checkpoints / f"{task.name}-{epochs}-{seed}.safetensors"
    return train_on_images(
        model,
        task.train.images,
        task.train.labels,
        ImageTraining(epochs=epochs, batch_size=min(128, max(len(task.train) // 4, 2)), seed=seed),
        checkpoint=file,
        progress=progress,
    )


def outputs(model: Any, images: Images) -> tuple[Vector, Vector]:
    """Return the last-layer features (n, 256) of images and the probability of class 1, (n,)."""
    import torch

    from enkbayes.reproduction.image_training import image_tensor

    with torch.no_grad():
        batches = [model.features(batch) for batch in image_tensor(images.images).split(BATCH)]
        features = torch.cat(batches).double()
        proba = torch.sigmoid((features @ model.head.weight.double().T)[:, 0])
    return np.asarray(features), np.asarray(proba)


def figure7(run: Run) -> Findings:
    """Figure 7: confidence on test images and on images of other classes."""
    run.progress(0.0, "images")
    task = cifar_task(run.data_dir) if run.size.images else digits_task()
    found = predictions(task, run)
    rows = tuple(_row(name, each, task, found["HMC"]) for name, each in found.items())
    caption = (
        f"{task.name}: {len(task.train):,} training, {len(task.test):,} test and {len(task.others):,} other images."
    )
    drawing = Drawing(
        "confidence",
        _histograms(found),
        f"Histograms of confidence on test images and on images of other classes: {', '.join(SHOWN)}.",
        "Blue: test images of the two classes. Red: images of other classes.",
    )
    notes = tuple(f"{name}: {each.note}" for name, each in found.items() if each.note)
    if not run.size.images:
        substitute = "Substitute data: handwritten threes and fives of 8 x 8 pixels in place of dogs and cats."
        notes = (substitute, *notes)
    tables = (Table("methods", caption, COLUMNS, rows),)
    return Findings(_claims(task, found), tables, (drawing,), _settings(run), notes)


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of one method, its number of steps, its seconds and its warnings.

    proba holds the probability of class 1, (n,), for training images, test images and images of other classes.
    """

    proba: tuple[Vector, ...]
    steps: int
    seconds: float
    note: str = ""

    @property
    def train(self) -> Vector:
        """Predictions for the training images."""
        return self.proba[0]

    @property
    def test(self) -> Vector:
        """Predictions for the test images."""
        return self.proba[1]

    @property
    def others(self) -> Vector:
        """Predictions for images of other classes."""
        return self.proba[2]


def predictions(task: ImageTask, run: Run) -> dict[str, Predictions]:
    """Return the predictions of every method; the MLE is the first network of the deep ensemble."""
    count, epochs = run.size.image_members, run.size.epochs
    share = 0.7 / count
    features, first, model = _network(task, run.part(0.02, 0.02 + share), 0)
    problem = Problem.create(features[0], task.train.labels, PRIOR_VARIANCE)
    posteriors = {}
    for i, (name, method) in enumerate(_methods(run).items()):
        run.progress(0.02 + share + 0.26 * i / len(BAYES), name)
        posteriors[name] = _fitted(name, problem, method, features, run)
    posteriors[NOISY] = _with_far_field(task, problem, model, features, run)
    members = [first]
    for member in range(1, count):
        begin = 0.28 + share * member
        members.append(_network(task, run.part(begin, begin + share), member)[1])
    average = tuple(np.mean(each, axis=0) for each in zip(*members, strict=True))
    networks = {
        "MLE": Predictions(first, epochs, math.nan),
        "Deep ensemble": Predictions(average, count * epochs, math.nan),
    }
    return networks | posteriors


def _network(task: ImageTask, run: Run, member: int) -> tuple[list[Vector], tuple[Vector, ...], Any]:
    """Return features and probabilities of one network for training, test and other images, and the network."""
    title = f"network {member + 1} of {run.size.image_members}"

    def progress(epoch: int, loss: float) -> None:
        run.progress(epoch / run.size.epochs, f"{title}, epoch {epoch} of {run.size.epochs}, loss {loss:.3f}")

    run.progress(0.0, title)
    model = image_network(task, epochs=run.size.epochs, seed=member, progress=progress)
    both = [outputs(model, images) for images in (task.train, task.test, task.others)]
    return [features for features, _ in both], tuple(proba for _, proba in both), model


def _methods(run: Run) -> dict[str, Method]:
    size = run.size
    splitting = TrotterSampler(ds=HORIZON / size.image_steps, max_steps=size.image_steps, tol=1e-300)
    samples, chains = size.hmc
    methods: tuple[Method, ...] = (
        LaplaceProbit(),
        Ensemble("trotter", splitting, size.image_particles),
        Ensemble("equilibrium", Equilibrium(), size.image_particles),
        Ensemble("homotopy", Homotopy(), size.image_particles),
        HMC(samples=samples, chains=chains, warmup=samples),
    )
    return dict(zip(BAYES, methods, strict=True))


def _fitted(name: str, problem: Problem, method: Method, features: list[Vector], run: Run) -> Predictions:
    """Return the predictions of a method, from its file if that was written for the same features and settings."""
    key = hashlib.sha256(f"{method!r} {fingerprint(features[0], problem.targets)}".encode()).hexdigest()
    file = run.cache / f"figure7-{name.lower().replace(' ', '-')}.npz"
    stored = _read(file, key)
    if stored is not None:
        return stored
    posterior, seconds, note = timed_fit(method, problem, seed=0)
    proba = tuple(np.asarray(posterior.predict_proba(f))[:, 1] for f in features)
    found = Predictions(proba, posterior.info.steps, seconds, note)
    _write(file, key, found)
    return found


def _with_far_field(task: ImageTask, problem: Problem, model: Any, features: list[Vector], run: Run) -> Predictions:
    """Return the predictions of Equilibrium with far-field variance that every other test image chose."""
    import torch

    from enkbayes.nets.far_field import Leverages, Moments
    from enkbayes.reproduction.image_training import image_tensor

    file = run.cache / "figure7-far-field.npz"
    key = hashlib.sha256(f"{NOISY} {run.key} {fingerprint(features[0], problem.targets)}".encode()).hexdigest()
    stored = _read(file, key)
    if stored is not None:
        return stored
    posterior, seconds, note = timed_fit(Ensemble("equilibrium", Equilibrium(), run.size.image_particles), problem, 0)

    def watched(images: Images, watch: Any) -> Any:
        with torch.no_grad():
            for batch in image_tensor(images.images).split(BATCH):
                with watch.watching():
                    model.features(batch)
        return watch

    half = np.arange(0, len(task.test), 2)
    moments = watched(task.train, Moments(model))
    chosen = watched(Images(task.test.images[half], task.test.labels[half]), Leverages(moments))
    logits = problem.linear_logits("far-field variance").predictive_logits(features[1][half], posterior.fitted)
    reference = torch.zeros(1, dtype=torch.float64)
    noise, choice = chosen.choose(posterior.likelihood, logits, task.test.labels[half], slice(None), reference)
    tempered, proba = posterior.tempered(choice.scale), []
    for images, inputs in zip((task.train, task.test, task.others), features, strict=True):
        leverages = watched(images, Leverages(moments)).collected
        variance = np.asarray(noise.variance(leverages)) if noise.active else None
        proba.append(np.asarray(tempered.predict_proba(inputs, noise=variance))[:, 1])
    found = Predictions(tuple(proba), posterior.info.steps, seconds, note)
    _write(file, key, found)
    return found


def _write(file: Path, key: str, found: Predictions) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    about = np.asarray([key, str(found.steps), repr(found.seconds), found.note])
    with replacing(file) as draft, draft.open("wb") as out:
        np.savez(out, about, *found.proba)


def _read(file: Path, key: str) -> Predictions | None:
    try:
        with np.load(file, allow_pickle=False) as found:
            about, *proba = (found[name] for name in found.files)
    except (OSError, ValueError, EOFError):
        return None
    if str(about[0]) != key:
        return None
    return Predictions(tuple(proba), int(about[1]), float(about[2]), str(about[3]))


def _row(name: str, each: Predictions, task: ImageTask, hmc: Predictions) -> tuple[Any, ...]:
    scores = metrics.score(each.test, task.test.labels)
    return (
        name,
        metrics.accuracy(each.train, task.train.labels),
        scores.accuracy,
        scores.nll,
        scores.ece,
        float(np.mean(metrics.confidence(each.test))),
        float(np.mean(metrics.confidence(each.others))),
        metrics.ood_score(each.test, each.others).auroc,
        float(np.mean(np.abs(each.test - hmc.test))) if name in BAYES else None,
        each.steps,
        each.seconds / hmc.seconds if name in BAYES else None,
    )


def _histograms(found: dict[str, Predictions]) -> Figure:
    figure: Figure = plots.require_matplotlib().Figure(figsize=(9.0, 10.0), layout="constrained")
    for ax, name in zip(figure.subplots(len(SHOWN), 1, sharex=True), SHOWN, strict=True):
        plots.ood_histogram(ax, found[name].test, found[name].others)
        ax.set_title(name, fontsize=11, loc="left")
        ax.legend(frameon=False, fontsize=8, loc="upper left")
        ax.label_outer()
    return figure


def _claims(task: ImageTask, found: dict[str, Predictions]) -> tuple[Claim, ...]:
    accuracy = {
        name: (metrics.accuracy(each.train, task.train.labels), metrics.accuracy(each.test, task.test.labels))
        for name, each in found.items()
    }
    inside = {name: float(np.mean(metrics.confidence(each.test))) for name, each in found.items()}
    outside = {name: float(np.mean(metrics.confidence(each.others))) for name, each in found.items()}
    overconfident = judged(
        "The MLE is overconfident on images of other classes.",
        f"Its mean confidence is {outside['MLE']:.3f} on these images, where both answers are wrong, and "
        f"{inside['MLE']:.3f} on the test images, where its accuracy is {accuracy['MLE'][1]:.3f}.",
        holds=outside["MLE"] > 0.75,
        partly=outside["MLE"] > 0.6,
    )
    less, noisy = _less_confident(inside, outside), _uncertain_with_far_field(inside, outside)
    return _same_accuracy(accuracy), overconfident, less, noisy, _agrees_with_hmc(found)


def _same_accuracy(accuracy: dict[str, tuple[float, float]]) -> Claim:
    mle, split = accuracy["MLE"], accuracy["Algorithm 2"]
    gap = max(abs(accuracy[name][1] - mle[1]) for name in BAYES)
    return judged(
        "All Bayesian methods have the accuracy of the MLE, 98.01 %.",
        f"Training accuracy is {100 * mle[0]:.2f} % (MLE) and {100 * split[0]:.2f} % (Algorithm 2); test accuracy is "
        f"{100 * mle[1]:.2f} % and {100 * split[1]:.2f} %. On the test images the Bayesian methods differ from the MLE "
        f"by at most {100 * gap:.2f} percentage points.",
        holds=gap <= 0.005 and abs(mle[1] - 0.9801) < 0.01,
        partly=gap <= 0.005,
        why="98.01 % is not a multiple of 1/2000, so it cannot be an accuracy on the 2,000 test images. It equals "
        "9,801 of the 10,000 training images, so it is probably a training accuracy.",
    )


def _less_confident(inside: dict[str, float], outside: dict[str, float]) -> Claim:
    changes = {name: outside[name] - outside["MLE"] for name in BAYES}
    return judged(
        "Last-layer Bayesian approximations are less confident on images of other classes.",
        "Mean confidence on these images, minus that of the MLE: "
        + ", ".join(f"{change:+.4f} ({name})" for name, change in changes.items())
        + ". Mean confidence on the test images: "
        + ", ".join(f"{inside[name]:.4f} ({name})" for name in ("MLE", "Laplace", "Algorithm 2"))
        + ".",
        holds=all(change < -0.01 for change in changes.values()),
        partly=any(change < 0 for change in changes.values()),
        why="The posterior is fitted to the features of the training images, which the network separates almost "
        "perfectly. With so many images it is narrow, and its mean can have a larger norm than the weights of the "
        "network, which weight decay keeps small.",
    )


def _uncertain_with_far_field(inside: dict[str, float], outside: dict[str, float]) -> Claim:
    fall = outside["Equilibrium"] - outside[NOISY]
    return judged(
        "With far-field variance, they are uncertain there: the desirable confidence is 1/2.",
        f"Mean confidence on images of other classes: {outside['Equilibrium']:.3f} (Equilibrium) and "
        f"{outside[NOISY]:.3f} with far-field variance. On the test images: {inside['Equilibrium']:.3f} and "
        f"{inside[NOISY]:.3f}.",
        holds=outside[NOISY] < 0.75,
        partly=fall > 0.02,
        why="Images of other classes have much in common with those of the two classes: most scores are within "
        "the range of the test images, where only as much noise is added as these accept.",
    )


def _agrees_with_hmc(found: dict[str, Predictions]) -> Claim:
    hmc, split, exact = found["HMC"], found["Algorithm 2"], found["Equilibrium"]
    gap = float(np.mean(np.abs(split.test - hmc.test)))
    return judged(
        "The sampler agrees with HMC and needs less time.",
        f"The mean difference of probabilities on the test images is {gap:.4f}. {split.steps} steps of Algorithm 2 "
        f"take {split.seconds / hmc.seconds:.2f} times as long as HMC, {exact.steps} steps of Equilibrium "
        f"{exact.seconds / hmc.seconds:.3f} times.",
        holds=gap < 0.005 and split.seconds < hmc.seconds,
        partly=gap < 0.01,
        why="Each step is cheap, but thousands of steps are not.",
    )


def _settings(run: Run) -> tuple[Setting, ...]:
    size = run.size
    data = (
        Setting("data", "CIFAR-10, dog 0, cat 1; the other eight classes of the test set", "paper")
        if size.images
        else Setting("data", "digits 3 and 5 of scikit-learn; the other eight digits", "ours")
    )
    return (
        data,
        Setting("network", "ResNet10, 256 features, one logit without bias", "paper", "widths 16-64-128-256 are ours"),
        Setting(
            "training",
            f"SGD 0.1 with a cosine schedule, momentum 0.9, weight decay 5e-4, {size.epochs} epochs, images flipped "
            "and shifted",
            "ours",
            "the paper says only that the network is regularised; this is what a CPU can do",
        ),
        Setting("prior", "N(0, 2 I)", "ours", "not stated; the value of the 2-D experiment"),
        Setting("Algorithm 2", f"J = {size.image_particles}, ds = {HORIZON / size.image_steps:g}, K ds = 23", "paper"),
        Setting(
            "deep ensemble",
            f"M = {size.image_members}, no adversarial examples; the first network is the MLE",
            "ours",
            "M = 5 in the paper; a network takes 20 minutes on two cores, with adversarial examples twice as long",
        ),
        Setting(
            "HMC",
            f"NUTS, {size.hmc[1]} chains with {size.hmc[0]} draws each",
            "ours",
            "5000 draws, 15 chains in the paper",
        ),
        Setting(
            "Algorithm 1", "left out; Homotopy, its exact-flow version, replaces it", "ours", "it needs 10,000 steps"
        ),
    )
