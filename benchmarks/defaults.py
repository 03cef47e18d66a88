"""How good is the first fit? `EnsembleClassifier()` against the usual choices on many data sets (default_sets.py).

    python benchmarks/defaults.py --sets development   # the half for choices: figures only, no page
    python benchmarks/defaults.py --sets evaluation    # the other half: results/defaults.json, chart, page
    python benchmarks/defaults.py --sets fresh         # sets named later: results/defaults_fresh.json, same page
    python benchmarks/defaults.py --page               # only the page, from the stored results

Every fit adds a line of JSON to a file ($ENKBAYES_DATA or ~/.cache/enkbayes, folder defaults; or `--out`): data set,
training rows, split, method, log loss, ECE, accuracy and processor seconds. A restart skips what is in the file. The
first split of every set and size comes first, then the second, and so on, so figures of an interrupted run cover all
sets. Sizes with expensive fits have fewer splits than ten, and expensive methods fewer still; the page says how many.
Figures in results/defaults.json count as measured too, so that another machine continues; `--again "our default"`
forgets those of a method that has changed.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from default_methods import METHODS, fewest_repeats
from default_page import FRESH_RESULT, OURS, REFERENCE, RESULT, SCALED, write_page
from default_sets import DEVELOPMENT, EVALUATION, FRESH, LARGEST, load, sizes, split
from environment import environment
from threadpoolctl import threadpool_limits

import enkbayes as eb
from enkbayes.evaluation import metrics
from enkbayes.reproduction.datasets.downloads import cache_folder

REPEATS = 10
HALVES = {"development": (DEVELOPMENT, None), "evaluation": (EVALUATION, RESULT), "fresh": (FRESH, FRESH_RESULT)}
"""Names of data sets, and where their figures are stored."""
Key = tuple[str, int, int, str]  # data set, training rows, split, method


@cache
def cost(name: str, n: int) -> tuple[int, int]:
    """Return the splits of a size, and rows x columns x logits."""
    first = split(name, n, 0)
    classes, work = int(first.y.max()) + 1, first.X.size
    return fewest_repeats(work * (1 if classes == 2 else classes**2)), work * (1 if classes == 2 else classes)


def jobs(names: tuple[str, ...], methods: list[str]) -> Iterator[Key]:
    """Yield what is to be measured, the first split of everything first."""
    for late, repeat, name in product((False, True), range(REPEATS), names):
        for n in sizes(name):
            repeats, work = cost(name, n)
            for method in methods:
                limit = METHODS[method]
                wanted = repeat < min(repeats, limit.repeats) and n <= limit.rows and work <= limit.work
                if wanted and limit.late == late:
                    yield name, n, repeat, method


def available(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the data sets that can be had; print a sentence about each of the others."""
    found = []
    for name in names:
        try:
            load(name)
            found.append(name)
        except (ValueError, ImportError) as error:
            print(f"{name} is left out: {error}", flush=True)
    return tuple(found)


encoded = lru_cache(maxsize=1)(split)


def measured(key: Key) -> dict[str, Any]:
    """Return the figures of a method on a split."""
    name, n, repeat, method = key
    data = encoded(name, n, repeat)
    begun = time.process_time()
    try:
        proba = METHODS[method].proba(data, repeat)
    except (ValueError, ArithmeticError, RuntimeError) as error:
        return _line(key) | {"failed": str(error)[:200]}
    seconds = time.process_time() - begun
    scores = metrics.score(proba, data.y_test)
    figures = {"nll": scores.nll, "ece": scores.ece, "accuracy": scores.accuracy, "seconds": seconds}
    return _line(key) | {figure: round(value, 5) for figure, value in figures.items()}


def _line(key: Key) -> dict[str, Any]:
    return dict(zip(("set", "n", "repeat", "method"), key, strict=True))


def read(path: Path) -> dict[Key, dict[str, Any]]:
    """Return the lines of the file by data set, rows, split and method; a broken last line is ignored."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[row["set"], row["n"], row["repeat"], row["method"]] = row
    return found


def uncollected(sets: dict[str, Any], forgotten: list[str]) -> list[dict[str, Any]]:
    """Return the lines from which `collected` made its figures, without those of some methods."""
    return [
        _line((name, int(n), repeat, method)) | {f: found[f][i] for f in ("nll", "ece", "accuracy", "seconds")}
        for name, by_size in sets.items()
        for n, by_method in by_size.items()
        for method, found in by_method.items()
        for i, repeat in enumerate(found["splits"])
        if method not in forgotten
    ]


def run(names: tuple[str, ...], methods: list[str], path: Path, until: float, rows: int = LARGEST) -> None:
    """Measure what is not in the file, up to a time and a number of training rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = read(path)
    with path.open("a", encoding="utf-8") as file:
        file.write("\n")  # an interrupted run may have left half a line
        for key in jobs(names, methods):
            if key in done or key[1] > rows:
                continue
            if time.time() > until:
                print("the time is up; the same command continues", flush=True)
                return
            row = measured(key)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(" ".join(str(value) for value in row.values()), flush=True)


def collected(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return, for every set and size, the figures of each method, one for every split."""
    sets: dict[str, Any] = {}
    for row in sorted(rows, key=lambda row: (row["set"].lower(), row["n"], row["repeat"])):
        size = sets.setdefault(row["set"], {}).setdefault(str(row["n"]), {})
        found = size.setdefault(row["method"], {"splits": [], "nll": [], "ece": [], "accuracy": [], "seconds": []})
        if "failed" in row:
            found.setdefault("failed", []).append(f"split {row['repeat']}: {row['failed']}")
            continue
        found["splits"].append(row["repeat"])
        for figure in ("nll", "ece", "accuracy", "seconds"):
            found[figure].append(row[figure])
    return sets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", choices=tuple(HALVES), default="development")
    parser.add_argument("--names", help="data sets, separated by commas", default="")
    parser.add_argument("--methods", help="names, separated by ';'", default=";".join(METHODS))
    parser.add_argument("--out", type=Path, help="the file of lines")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--again", help="methods, separated by ';', whose stored results are out of date", default="")
    parser.add_argument("--rows", type=int, help="training rows at most", default=LARGEST)
    parser.add_argument("--page", action="store_true", help="write the page from the stored results only")
    options = parser.parse_args()
    if not options.page:
        half, stored_in = HALVES[options.sets]
        path = options.out or cache_folder() / "defaults" / f"{options.sets}.jsonl"
        names = available(tuple(name for name in half if name in (options.names.split(",") if options.names else half)))
        if stored_in is not None and not path.exists():
            stored = json.loads(stored_in.read_text(encoding="utf-8"))["sets"] if stored_in.exists() else {}
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(row) + "\n" for row in uncollected(stored, options.again.split(";"))]
            path.write_text("".join(lines), encoding="utf-8")
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            methods = options.methods.split(";") if options.sets != "fresh" else [OURS, REFERENCE, SCALED]
            run(names, methods, path, time.time() + 60 * options.minutes, options.rows)
        if stored_in is None or options.out:
            return
        ours = {"default prior_precision": str(eb.EnsembleClassifier().prior_precision)}
        result = {"environment": environment() | ours, "sets": collected(list(read(path).values()))}
        stored_in.write_text(json.dumps(result) + "\n", encoding="utf-8")
    write_page()


if __name__ == "__main__":
    main()
