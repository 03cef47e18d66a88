"""Which score tells strange rows? Chosen on tasks that usefulness.py does not measure (useful_development.py).

    python benchmarks/useful_scores.py      # half an hour on one core; writes results/useful_scores.json

AUROC of strange rows against evaluation rows, for scores of our default posterior of the last layer and of the layers
of its network, mean over the networks or splits of a task. Scores are put together on the scale of a standard normal
number, which calibration rows set.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import useful_tasks
from scipy.stats import norm
from useful_development import DEVELOPMENT
from useful_methods import batched
from useful_tasks import BATCH, Split

from enkbayes.evaluation.metrics import entropy, logit_variance, mutual_information, ood_separation
from enkbayes.nets import BayesianHead, Probes, Strangeness
from enkbayes.nets.ood_score import normal_score

RESULT = Path(__file__).parent / "results" / "useful_scores.json"


def parts(head: BayesianHead, probes: Probes, x: torch.Tensor) -> dict[str, Any]:
    """Return the scores (n,) that are put together."""
    each = np.concatenate([head.sample_proba(some).double().numpy() for some in x.split(BATCH)], axis=1)
    leverage = np.log(batched(probes.strangeness.leverage, x))
    return {
        "entropy": entropy(batched(head, x)),
        "mutual information": mutual_information(each),
        "variance of logits": logit_variance(each),
        "disagreement of layers": np.concatenate([probes.disagreement(some) for some in x.split(BATCH)]),
        "leverage, first layer": leverage[:, 0],
        "leverage, last layer": leverage[:, -1],
        "leverage, all layers": leverage.mean(axis=1),
    }


def together(found: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return sums and other unions of leverage and one more score."""

    def normal(name: str, *, tails: bool = False) -> Any:
        values, reference = (torch.as_tensor(where[name]) for where in (found, known))
        return normal_score(values, reference.sort().values, tails=tails).numpy()

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
    strangeness = Strangeness.fit(head, train, calibration=calibration, progress=False)
    probes = Probes.fit(strangeness, train, progress=False)
    rows = (split.calibration.x, split.evaluation.x, *split.strange.values())
    known, usual, strange = (parts(head, probes, x) for x in rows)
    usual, strange = together(usual, known), together(strange, known)
    return {name: ood_separation(usual[name], strange[name]).auroc for name in usual}


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    useful_tasks.MEMBERS, useful_tasks.SPLITS = 1, 1
    tasks: dict[str, dict[str, float]] = {}
    for task, splits in DEVELOPMENT.items():
        found = [separation(split) for split in splits()]
        tasks[task] = {name: float(np.mean([row[name] for row in found])) for name in found[0]}
        print(task, json.dumps(tasks[task], indent=1), flush=True)
    mean = {name: float(np.mean([task[name] for task in tasks.values()])) for name in next(iter(tasks.values()))}
    RESULT.write_text(json.dumps({"tasks": tasks, "mean": mean}, indent=1) + "\n")


if __name__ == "__main__":
    main()
