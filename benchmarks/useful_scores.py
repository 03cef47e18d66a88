"""Which score separates OOD rows best? Chosen on tasks that usefulness.py does not evaluate (useful_development.py).

    python benchmarks/useful_scores.py      # half an hour on one core; writes results/useful_scores.json

AUROC of OOD rows against evaluation rows, for scores of our default posterior of the last layer and of the layers of
its network; mean over the networks or splits of a task. Scores are combined on the scale of a standard normal variable,
which the calibration rows determine.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from useful_development import DEVELOPMENT
from useful_methods import batched, layer_scores
from useful_tasks import Split

from enkbayes.evaluation.metrics import entropy, ood_separation
from enkbayes.nets import BayesianHead, OODScore, Probes
from enkbayes.nets.ood_score import normal_score

RESULT = Path(__file__).parent / "results" / "useful_scores.json"


def single_scores(head: BayesianHead, probes: Probes, x: torch.Tensor) -> dict[str, Any]:
    """Return the scores (n,) before they are combined."""
    found = layer_scores(head, probes, x)
    leverage = found["leverage"]
    return (
        {"entropy": entropy(batched(head, x))}
        | found["scores"]
        | {
            "leverage, first layer": leverage[:, 0],
            "leverage, last layer": leverage[:, -1],
            "leverage, all layers": leverage.mean(axis=1),
        }
    )


def combined(found: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    """Return all scores, with sums and other combinations of leverage and one more score."""

    def normal(name: str, *, tails: bool = False) -> Any:
        values, ordered = torch.as_tensor(found[name]), torch.as_tensor(reference[name]).sort().values
        return normal_score(values, ordered, tails=tails).numpy()

    leverage, unsure = normal("leverage, all layers", tails=True), normal("entropy")
    return found | {
        "leverage + entropy": leverage + unsure,
        "leverage + entropy / 2": leverage + unsure / 2,
        "leverage + entropy / 4": leverage + unsure / 4,
        "leverage + entropy above its median": leverage + np.maximum(unsure, 0),
        "larger of leverage and entropy": np.maximum(leverage, unsure),
        "Fisher's sum of leverage and entropy": -norm.logsf(leverage) - norm.logsf(unsure),
        "leverage + mutual information": leverage + normal("mutual information"),
        "leverage + disagreement": leverage + normal("disagreement of layers"),
        "leverage + disagreement / 2": leverage + normal("disagreement of layers") / 2,
    }


def separation(split: Split) -> dict[str, float]:
    """Return the AUROC of every score."""
    train, calibration = split.train.loader(), split.calibration.loader()
    head = BayesianHead.fit(split.networks[0], train, calibration=calibration, progress=False)
    score = OODScore.fit(head, train, calibration=calibration, progress=False)
    probes = Probes.fit(score, train, progress=False)
    rows = (split.calibration.x, split.evaluation.x, *split.ood.values())
    reference, *others = (single_scores(head, probes, x) for x in rows)
    inside, outside = (combined(found, reference) for found in others)
    return {name: ood_separation(inside[name], outside[name]).auroc for name in inside}


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tasks: dict[str, dict[str, float]] = {}
    for task, splits in DEVELOPMENT.items():
        found = [separation(split) for split in splits()]
        tasks[task] = {name: float(np.mean([row[name] for row in found])) for name in found[0]}
        print(task, json.dumps(tasks[task], indent=1), flush=True)
    mean = {name: float(np.mean([task[name] for task in tasks.values()])) for name in next(iter(tasks.values()))}
    RESULT.write_text(json.dumps({"tasks": tasks, "mean": mean}, indent=1) + "\n")


if __name__ == "__main__":
    main()
