"""Out-of-distribution scores against the detectors of pytorch-ood, on the same networks and rows.

    python benchmarks/detectors.py --development       # the tasks on which the score was chosen; prints a table
    python benchmarks/detectors.py                     # results/detectors.json and docs/detectors.md

The tasks are those of detector_tasks.py, which stores trained networks and the features of their layers in the cache.
pytorch-ood runs in the environment .venv-peers, which `make bench` creates. Every task of a seed adds a line to a file
in the cache, so an interrupted run continues. `--only ours` measures our scores again, `--only peers` the others.

AUROC of out-of-distribution rows against test rows: mean over the kinds of rows of a task, over its seeds, over tasks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from detector_tasks import DEVELOPMENT, EVALUATION, TASKS, VERSION, file_of, folder, parts, prepared, stored, tensor_of

from enkbayes.evaluation import metrics
from enkbayes.nets import BayesianHead, OODScore

HERE = Path(__file__).parent
RESULT = HERE / "results" / "detectors.json"
PAGE = HERE.parent / "docs" / "detectors.md"
BATCH = 250
Vector = np.ndarray[Any, Any]


class Peers:
    """The program detector_peers.py in the environment of the other libraries."""

    def __init__(self, python: str) -> None:
        command = [python, str(HERE / "detector_peers.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, path: Path) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(str(path)) + "\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline()))


def peers_on(peers: Peers, name: str, seed: int) -> dict[str, Any]:
    """Return the AUROC of every kind of rows, for every detector; or why a detector failed."""
    stored(name, seed)
    answer = peers.ask(file_of(name, seed)).items()
    return {method: {"auroc": auroc(found)} if isinstance(found, dict) else found for method, found in answer}


def auroc(scores: dict[str, Any]) -> dict[str, float]:
    inside = np.asarray(scores["test"])
    kinds = [part for part in scores if part.startswith(("near:", "far:"))]
    return {part: round(metrics.ood_separation(inside, np.asarray(scores[part])).auroc, 4) for part in kinds}


def ours_on(name: str, seed: int) -> dict[str, Any]:
    """Return the AUROC of our score and of confidence, and figures of the probabilities."""
    rows, model = prepared(name, seed)
    loaders = [_loader(*rows.train), _loader(*rows.held_out)]
    head = BayesianHead.fit(model, loaders[0], calibration=loaders[1], progress=False)
    plain = BayesianHead.fit(model, loaders[0], calibration=loaders[1], far_field=False, progress=False)
    score = OODScore.fit(head, loaders[0], calibration=loaders[1], progress=False)
    arrays = stored(name, seed)
    scale = _scale(arrays["held_out/z"], arrays["held_out/y"])

    def batched(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Vector]:
        with torch.no_grad():
            return lambda x: np.concatenate([function(some).detach().double().numpy() for some in x.split(BATCH)])

    predict = {
        "temperature scaling": lambda part, _: _softmax(scale * arrays[f"{part}/z"]),
        "plain posterior": lambda _, x: batched(plain)(x),
        "with far-field variance": lambda _, x: batched(head)(x),
    }
    scores: dict[str, dict[str, Vector]] = {method: {} for method in predict}
    answer: dict[str, Any] = {method: {"confidence": {}, "nll": {}} for method in predict}
    own: dict[str, Vector] = {}
    for part, x, y in parts(rows):
        if part in ("train", "held_out"):
            continue
        inputs = tensor_of(x)
        own[part] = batched(score)(inputs)
        for method, of in predict.items():
            proba = of(part, inputs)
            scores[method][part] = -proba.max(axis=1)
            answer[method]["confidence"][part] = round(float(proba.max(axis=1).mean()), 4)
            if y is not None:
                answer[method]["nll"][part] = round(metrics.nll(proba, y), 4)
            if part == "test" and y is not None:
                found = metrics.score(proba, y)
                answer[method] |= {"accuracy": round(found.accuracy, 4), "ece": round(found.ece, 4)}
    for method, found_scores in scores.items():
        answer[method]["auroc"] = auroc(found_scores)
    answer["OODScore"] = {"auroc": auroc(own)}
    answer["classes"] = int(rows.train[1].max()) + 1
    return answer


def _loader(x: Vector, y: Vector) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(tensor_of(x).split(BATCH), torch.as_tensor(y).split(BATCH), strict=True))


def _softmax(z: Vector) -> Vector:
    from scipy.special import softmax

    return np.asarray(softmax(z.astype(float), axis=1))


def _scale(z: Vector, y: Vector) -> float:
    from useful_methods import best_scale

    return best_scale(z.astype(float), y)


def lines_file(which: str) -> Path:
    return folder() / f"results-{which}-v{VERSION}.jsonl"


def lines_of(which: str, names: list[str]) -> list[dict[str, Any]]:
    """Return the stored lines of some tasks."""
    path = lines_file(which)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["task"] in names]


def measure(sides: tuple[str, ...], names: list[str], seeds: list[int], python: str) -> None:
    """Measure what is missing, one seed of all tasks after the other, and store every line."""
    known = {(which, line["task"], line["seed"]) for which in sides for line in lines_of(which, names)}
    peers = None
    for seed in seeds:
        for name in names:
            for which in sides:
                if seed not in TASKS[name].seeds or (which, name, seed) in known:
                    continue
                begun = time.process_time()
                if which == "peers":
                    peers = peers or Peers(python)
                    found = peers_on(peers, name, seed)
                else:
                    found = ours_on(name, seed)
                path = lines_file(which)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a") as file:
                    file.write(json.dumps({"task": name, "seed": seed, "methods": found}) + "\n")
                print(f"{which} {name} {seed}: {time.process_time() - begun:.0f} s here", flush=True)


def means(lines: list[dict[str, Any]], group: str) -> dict[str, dict[str, float]]:
    """Return {method: {task: mean AUROC}} of near or far rows; a detector that failed counts as .5."""
    found: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        for method, answer in line["methods"].items():
            if method == "classes":
                continue
            values = [0.5]
            if isinstance(answer, dict):
                values = [v for part, v in answer["auroc"].items() if part.startswith(group)]
            found.setdefault(method, {}).setdefault(line["task"], []).append(float(np.mean(values)))
    return {method: {task: float(np.mean(v)) for task, v in tasks.items()} for method, tasks in found.items()}


def table(lines: list[dict[str, Any]], tasks: list[str]) -> str:
    near, far = means(lines, "near"), means(lines, "far")

    def average(found: dict[str, float]) -> float:
        return float(np.mean([found[task] for task in tasks if task in found]))

    order = sorted(near, key=lambda m: -(average(near[m]) + average(far[m])))
    text = ["| score | near | far | mean |", "|---|---|---|---|"]
    for method in order:
        a, b = average(near[method]), average(far[method])
        text.append(f"| {method} | {a:.3f} | {b:.3f} | {(a + b) / 2:.3f} |")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--development", action="store_true")
    parser.add_argument("--peers", default=".venv-peers/bin/python", help="Python of the environment with pytorch-ood")
    parser.add_argument("--only", choices=("ours", "peers"))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tasks", help="names, separated by semicolons")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    names = list(DEVELOPMENT if options.development else EVALUATION)
    if options.tasks:
        names = options.tasks.split(";")
    sides = (options.only,) if options.only else ("ours", "peers")
    measure(sides, names, list(map(int, options.seeds.split(","))), options.peers)
    print(table([line for which in sides for line in lines_of(which, names)], names))


if __name__ == "__main__":
    main()
