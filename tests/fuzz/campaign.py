"""`make fuzz`: many random cases of every area, a chunk of them from each seed, until there are enough.

The file of results is also the progress: an interrupted campaign continues with the next seed. Every failure is kept
with the smallest case that shows it. `--again` runs those once more and marks what has been mended.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import time
from importlib import import_module
from pathlib import Path

import numpy as np
from environment import sources
from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz.oracle import Broken, Refused

SHARES = {"estimator": 0.45, "core": 0.3, "command": 0.05, "networks": 0.2}
CHUNK = 100  # cases of a seed; the first of each is the plain one
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz.json"


def area(name):
    """Return the module with the strategy and the check of an area."""
    return import_module(f"fuzz.{name}")


def outcome(name, case):
    """Run a case; return "valid", "refused" or what is wrong."""
    try:
        area(name).examine(dict(case))
    except Refused:
        return "refused"
    except Broken as broken:
        return f"broken: {broken}"
    except Exception as error:  # noqa: BLE001 - of the case itself
        return f"broken: case {type(error).__name__}: {error}"
    return "valid"


def signature(trouble):
    """Return a failure without its numbers and names: two cases with the same one have the same cause."""
    first = trouble.splitlines()[0]
    return re.sub(r"[0-9a-f]*\d[0-9a-f.e+-]*|/\S+|'[^']*'", "#", first)[:160]


def minimised(name, case, trouble):
    """Return the smallest case with the same failure: settings left out one by one, then small seeds."""
    wanted, case = signature(trouble), dict(case)
    for setting in [key for key in case if key != "seed"]:
        smaller = {key: value for key, value in case.items() if key != setting}
        if signature(outcome(name, smaller)) == wanted:
            case = smaller
    smaller = case | {"seed": 0}
    return smaller if signature(outcome(name, smaller)) == wanted else case


def run_seed(name, number, done, code):
    """Run the cases of a seed on these sources and add them to what is done."""
    found = []

    @seed(number)
    @settings(
        max_examples=CHUNK,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(area(name).strategy)
    def every(case):
        found.append((case, outcome(name, case)))

    every()
    counts = done["areas"][name]
    for kind in ("valid", "refused", "broken"):
        counts[kind] += sum(result.startswith(kind) for _, result in found)
    counts["cases"] += len(found)
    counts["next_seed"] = number + 1
    ran = done.setdefault("code", {})
    ran[code] = ran.get(code, 0) + len(found)
    known = {(failure["area"], failure["signature"]): failure for failure in done["failures"]}
    for case, result in found:
        if not result.startswith("broken"):
            continue
        key = (name, signature(result))
        if key in known:
            known[key]["times"] += 1
            known[key]["mended"] = False
            continue
        failure = {
            "area": name,
            "signature": key[1],
            "seed": number,
            "case": minimised(name, case, result),
            "trouble": result,
            "times": 1,
            "mended": False,
        }
        done["failures"].append(failure)
        known[key] = failure


def begun(path):
    """Return the results so far."""
    if path is not None and path.exists():
        return json.loads(path.read_text())
    fresh = {"cases": 0, "valid": 0, "refused": 0, "broken": 0, "next_seed": 0}
    return {"areas": {name: dict(fresh) for name in SHARES}, "failures": []}


def store(path, done):
    """Write the results, all or nothing."""
    done["environment"] = {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()}
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(done, indent=1) + "\n")
    draft.replace(path)


def again(done):
    """Run the smallest case of every failure once more, those of the campaign before included."""
    for failure in done["failures"] + done.get("earlier", {}).get("failures", []):
        result = outcome(failure["area"], failure["case"])
        failure["mended"] = not result.startswith("broken")


def main():
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000, help="how many there shall be, earlier ones included")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long; the next call resumes")
    parser.add_argument("--areas", nargs="+", default=list(SHARES), choices=list(SHARES))
    parser.add_argument("--again", action="store_true", help="only run the failures of earlier campaigns")
    parser.add_argument("--fresh", action="store_true", help="count anew, with new seeds; keep the failures so far")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    done, until = begun(asked.results), time.monotonic() + 60 * asked.minutes
    if asked.fresh:
        fresh = begun(None)
        for name, area_done in done["areas"].items():
            fresh["areas"][name]["next_seed"] = area_done["next_seed"]
        done = fresh | {"earlier": {key: done[key] for key in ("areas", "failures", "code") if key in done}}
    if asked.again:
        again(done)
        store(asked.results, done)
        return
    code = sources()
    while time.monotonic() < until:
        counts = {name: done["areas"][name]["cases"] for name in asked.areas}
        if sum(done["areas"][name]["cases"] for name in SHARES) >= asked.cases:
            break
        name = min(counts, key=lambda each: counts[each] / SHARES[each])
        number = done["areas"][name]["next_seed"]
        run_seed(name, number, done, code)
        store(asked.results, done)
    open_ones = [failure for failure in done["failures"] if not failure["mended"]]
    raise SystemExit(1 if open_ones else 0)


if __name__ == "__main__":
    main()
