"""Out-of-distribution scores against the detectors of pytorch-ood, on the same networks and rows.

    python benchmarks/detectors.py --development       # the tasks on which the score was chosen
    python benchmarks/detectors.py                     # the tasks of the comparison
    python benchmarks/detectors.py --page              # writes results/detectors.json and its page only

The tasks are those of detector_tasks.py, which stores trained networks and the features of their layers in the cache.
pytorch-ood runs in the environment .venv-peers, which `make bench` creates. Every task of a seed adds a line to a file
in the cache, so an interrupted run continues. There are three sides, of which `--only` measures one: `scores` is our
score with the entropy of the temperature-scaled network, `peers` are the others, and `heads` is what takes long, the
score and the probabilities of a fitted `BayesianHead`.

AUROC of out-of-distribution rows against test rows: mean over the kinds of rows of a task, over its seeds, over tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import detector_ideas
import far_field_scores
import numpy as np
import torch
from detector_page import PAGE, RESULT, page
from detector_tasks import DEVELOPMENT, EVALUATION, TASKS, VERSION, file_of, folder, parts, prepared, stored, tensor_of
from environment import environment

from enkbayes.engine.arrays import entropy
from enkbayes.evaluation import metrics
from enkbayes.inference.class_distance import ClassScore, with_entropy
from enkbayes.inference.feature_far_field import normal_rank
from enkbayes.nets import BayesianHead, OODScore
from enkbayes.nets.ood_score import _narrowed

HERE = Path(__file__).parent
SIDES = ("scores", "peers", "heads")
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


def scores_on(name: str, seed: int) -> dict[str, Any]:
    """Return the AUROC of the score of `OODScore`, here with the entropy of the temperature-scaled network, and of the
    confidence of that network.
    """
    arrays = stored(name, seed)
    layers = sum(key.startswith("train/a") for key in arrays)
    scale = _scale(arrays["held_out/z"], arrays["held_out/y"])
    kinds = [key.removesuffix("/z") for key in arrays if key.endswith("/z")]

    def features(part: str) -> list[Vector]:
        return [_narrowed(torch.as_tensor(arrays[f"{part}/a{i}"])).double().numpy() for i in range(layers)]

    score = ClassScore.fit(features("train"), arrays["train/y"]).calibrated(features("held_out"))
    proba = {part: _softmax(scale * arrays[f"{part}/z"]) for part in kinds}
    known = np.sort(entropy(proba["held_out"]))
    outside = [part for part in kinds if part == "test" or part.startswith(("near:", "far:"))]
    ours = {p: with_entropy(score(features(p)), normal_rank(entropy(proba[p]), known)) for p in outside}
    confidence = {part: -proba[part].max(axis=1) for part in outside}
    return {"OODScore": {"auroc": auroc(ours)}, "temperature scaling": {"auroc": auroc(confidence)}}


def heads_on(name: str, seed: int) -> dict[str, Any]:
    """Return the AUROC of `OODScore` of a head and of its confidence, and figures of its probabilities. "Own
    temperature" is the NLL of shifted rows with the temperature that their own labels choose, which no method knows.
    """
    rows, model = prepared(name, seed)
    loaders = [_loader(*rows.train), _loader(*rows.held_out)]
    head = BayesianHead.fit(model, loaders[0], calibration=loaders[1], progress=False)
    score = OODScore.fit(head, loaders[0], calibration=loaders[1], progress=False)
    arrays = stored(name, seed)
    scale = _scale(arrays["held_out/z"], arrays["held_out/y"])

    def batched(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Vector:
        with torch.no_grad():
            return np.concatenate([function(some).detach().double().numpy() for some in x.split(BATCH)])

    answer: dict[str, Any] = {
        method: {"confidence": {}, "nll": {}, "auroc": {}}
        for method in ("temperature scaling", "with far-field variance")
    }
    sure: dict[str, dict[str, Vector]] = {method: {} for method in answer}
    own_temperature: dict[str, float] = {}
    own: dict[str, Vector] = {}
    for part, x, y in parts(rows):
        if part in ("train", "held_out"):
            continue
        inputs = tensor_of(x)
        if not part.startswith("shifted:"):
            own[part] = batched(score, inputs)
        probas = _softmax(scale * arrays[f"{part}/z"]), batched(head, inputs)
        for method, proba in zip(answer, probas, strict=True):
            sure[method][part] = -proba.max(axis=1)
            answer[method]["confidence"][part] = round(float(proba.max(axis=1).mean()), 4)
            if y is not None:
                answer[method]["nll"][part] = round(metrics.nll(proba, y), 4)
                if part.startswith("shifted:"):
                    z = arrays[f"{part}/z"]
                    own_temperature[part] = round(metrics.nll(_softmax(_scale(z, y) * z), y), 4)
            if part == "test" and y is not None:
                found = metrics.score(proba, y)
                answer[method] |= {"accuracy": round(found.accuracy, 4), "ece": round(found.ece, 4)}
                losses = -np.log(np.maximum(proba[np.arange(len(y)), y], 1e-300))
                answer[method]["losses"] = losses
    gap = answer["with far-field variance"].pop("losses") - answer["temperature scaling"].pop("losses")
    for method, found_scores in sure.items():
        answer[method]["auroc"] = auroc(found_scores)
    answer["own temperature"] = {"nll": own_temperature}
    answer["OODScore"] = {"auroc": auroc(own)}
    answer["classes"], answer["test rows"] = int(rows.train[1].max()) + 1, len(rows.test[1])
    answer["gap"] = [round(float(gap.mean()), 5), round(float(gap.std() / len(gap) ** 0.5), 5)]
    return answer


def _loader(x: Vector, y: Vector) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(tensor_of(x).split(BATCH), torch.as_tensor(y).split(BATCH), strict=True))


def _softmax(z: Vector) -> Vector:
    from scipy.special import softmax

    return np.asarray(softmax(z.astype(float), axis=1))


def _scale(z: Vector, y: Vector) -> float:
    from useful_methods import best_scale

    return best_scale(z.astype(float), y)


VERSIONS = {"ideas": detector_ideas.VERSION, "far-field-scores": far_field_scores.VERSION}


def lines_file(which: str) -> Path:
    return folder() / f"results-{which}-v{VERSIONS.get(which, VERSION)}.jsonl"


def lines_of(which: str, names: list[str]) -> list[dict[str, Any]]:
    """Return the stored lines of some tasks."""
    path = lines_file(which)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["task"] in names]


def measure(sides: tuple[str, ...], names: list[str], seeds: list[int], heads: list[int], python: str) -> None:
    """Measure what is missing, one seed of all tasks after the other, and store every line."""
    known = {(which, line["task"], line["seed"]) for which in sides for line in lines_of(which, names)}
    peers = None
    for seed in seeds:
        for name in names:
            for which in sides:
                wanted = seed in TASKS[name].seeds and (which != "heads" or seed in heads)
                if not wanted or (which, name, seed) in known:
                    continue
                begun = time.process_time()
                if which == "peers":
                    peers = peers or Peers(python)
                    found = peers_on(peers, name, seed)
                else:
                    found = (scores_on if which == "scores" else heads_on)(name, seed)
                path = lines_file(which)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a") as file:
                    file.write(json.dumps({"task": name, "seed": seed, "methods": found}) + "\n")
                print(f"{which} {name} {seed}: {time.process_time() - begun:.0f} s here", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--development", action="store_true")
    parser.add_argument("--peers", default=".venv-peers/bin/python", help="Python of the environment with pytorch-ood")
    parser.add_argument("--only", choices=SIDES)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--head-seeds", default="0,1,2", help="seeds for which heads are fitted")
    parser.add_argument("--tasks", help="names, separated by semicolons")
    parser.add_argument("--page", action="store_true", help="measure nothing, write JSON and page of what is stored")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if not options.page:
        names = list(DEVELOPMENT if options.development else EVALUATION)
        if options.tasks:
            names = options.tasks.split(";")
        seeds, heads = (list(map(int, text.split(","))) for text in (options.seeds, options.head_seeds))
        sides = (options.only,) if options.only else SIDES
        measure(sides, names, seeds, heads, options.peers)
    found = {
        "environment": environment(),
        "development": groups(list(DEVELOPMENT)),
        "evaluation": groups(list(EVALUATION)),
        "heads": lines_of("heads", list(EVALUATION)),
        "forms": lines_of("ideas", list(DEVELOPMENT)),
        "far_field_scores": lines_of("far-field-scores", list(DEVELOPMENT)),
    }
    before = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    result = before | {part: lines for part, lines in found.items() if lines}  # the cache may have some parts alone
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(result), encoding="utf-8")
    print(PAGE)


def groups(names: list[str]) -> list[dict[str, Any]]:
    """Return near and far AUROC of every method, for every task and seed that both sides have measured; .5 for a
    detector that failed.
    """
    found = []
    theirs = {(line["task"], line["seed"]): line["methods"] for line in lines_of("peers", names)}
    for line in lines_of("scores", names):
        key = (line["task"], line["seed"])
        if key in theirs:
            methods = {method: _means(answer) for method, answer in (line["methods"] | theirs[key]).items()}
            found.append({"task": key[0], "seed": key[1], "methods": methods})
    return found


def _means(answer: Any) -> list[float]:
    if not isinstance(answer, dict):
        return [0.5, 0.5]
    kinds = [[v for part, v in answer["auroc"].items() if part.startswith(group)] for group in ("near", "far")]
    return [round(float(np.mean(values)), 4) for values in kinds]


if __name__ == "__main__":
    main()
