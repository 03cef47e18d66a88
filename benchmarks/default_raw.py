"""What if nobody scales the features? `EnsembleClassifier()` on raw tables, beside LogisticRegressionCV with and
without StandardScaler.

    python benchmarks/default_raw.py                     # evaluation and fresh sets; results/default_raw.json
    python benchmarks/default_raw.py --sets development  # prints figures only

Numbers are as in the table, with missing ones replaced by the median, categories are columns of zeros and ones. Sets of
text and pixels are left out: their features have one scale. A restart continues ($ENKBAYES_DATA or ~/.cache/enkbayes).
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from default_methods import cross_validated, ours
from default_sets import DEVELOPMENT, EVALUATION, FRESH, sizes, split
from environment import environment
from threadpoolctl import threadpool_limits

from enkbayes.evaluation import metrics
from enkbayes.reproduction.datasets.downloads import cache_folder

RESULT = Path(__file__).parent / "results" / "default_raw.json"
ONE_SCALE = ("cats_dogs", "fashion_mnist", "movie_snippets", "spam_assassin", "tweets")
ROWS = 1_000  # at most: unscaled, LogisticRegressionCV takes minutes for more
METHODS = {
    "our default": (ours, False),
    "our default, standardised": (ours, True),
    "LogisticRegressionCV": (cross_validated, False),
    "LogisticRegressionCV, standardised": (cross_validated, True),
}


def measured(name: str, n: int, repeat: int) -> dict[str, Any]:
    """Return the log loss and the processor seconds of every method on a split."""
    found: dict[str, Any] = {"set": name, "n": n, "repeat": repeat}
    for method, (proba, scaled) in METHODS.items():
        data, begun = split(name, n, repeat, scaled=scaled), time.process_time()
        nll = metrics.score(proba(data, repeat), data.y_test).nll
        found[method] = [round(float(nll), 5), round(time.process_time() - begun, 3)]
    return found


def figures(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return ratios of log loss, wins and the worst difference of our default to the others, over (set, rows) pairs."""
    pairs: dict[tuple[str, int], list[Any]] = {}
    for line in lines:
        pairs.setdefault((line["set"], line["n"]), []).append([line[method] for method in METHODS])
    table = np.stack([np.mean(rows, axis=0) for rows in pairs.values()])
    own, names, found = table[:, 0, 0], list(pairs), {}
    for i, method in enumerate(METHODS):
        if i:
            gap = own - table[:, i, 0]
            found[method] = {
                "ratio": round(float(np.exp(np.mean(np.log(own / table[:, i, 0])))), 4),
                "wins": round(float(np.mean(gap < 0)), 4),
                "worst": round(float(gap.max()), 4),
                "at": list(names[int(gap.argmax())]),
                "time": round(float(np.median(table[:, 0, 1] / table[:, i, 1])), 2),
            }
    return {"pairs": len(pairs), "sets": len({name for name, _ in names}), "to": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", choices=("development", "others"), default="others")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    names = [n for n in (DEVELOPMENT if options.sets == "development" else EVALUATION + FRESH) if n not in ONE_SCALE]
    path, until = cache_folder() / "defaults" / f"raw_{options.sets}.jsonl", time.time() + 60 * options.minutes
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    done = {(line["set"], line["n"], line["repeat"]) for line in lines}
    with threadpool_limits(1), warnings.catch_warnings(), path.open("a", encoding="utf-8") as file:
        warnings.simplefilter("ignore")
        jobs = sorted((r, n, name) for name in names for n in sizes(name) for r in range(options.repeats) if n <= ROWS)
        for repeat, n, name in jobs:
            if (name, n, repeat) not in done and time.time() < until:
                lines.append(measured(name, n, repeat))
                file.write(json.dumps(lines[-1]) + "\n")
                file.flush()
    found = figures(lines)
    print(json.dumps(found, indent=1))
    if options.sets != "development":
        RESULT.write_text(json.dumps({"environment": environment(), **found, "lines": lines}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
