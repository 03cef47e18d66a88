"""Write docs/reliability.md from the results of the campaigns: what was tried, what failed, and what is promised.

    python benchmarks/reliability.py [--memory]

With --memory, fit 500 times first and store what the process holds in benchmarks/results/memory.json. A campaign that
has not been run on this version of the repository is said to be missing.
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reliability.md"
FITS = 500
WARM = 50  # fits before the first measurement


def result(name: str) -> dict[str, Any] | None:
    """Return the results of a campaign, None if there are none."""
    path = HERE / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def page() -> str:
    """Return docs/reliability.md, rendered from the results."""
    template = jinja2.Template(
        (HERE / "reliability.md.jinja").read_text(encoding="utf-8"),
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = ("fuzz", "fuzz_files", "faults", "sbc", "memory")
    return template.render({name: result(name) for name in names})


def measure() -> dict[str, Any]:
    """Return what the process holds after some fits and after many, in MB."""
    import enkbayes as eb

    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 8))
    y = (X[:, 0] + 0.5 * rng.standard_normal(300) > 0).astype(int)
    held = {}
    for number in range(1, FITS + 1):
        clf = eb.EnsembleClassifier(random_state=number, prior_precision=1.0, particles=100).fit(X, y)
        clf.predict_proba(X)
        if number in (WARM, FITS):
            gc.collect()
            held[number] = resident()
    return {"fits": FITS, "warm": WARM, "mb_after_warm": held[WARM], "mb_after_all": held[FITS]}


def resident() -> float:
    """Return the resident memory of this process in MB."""
    words = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return round(int(words.split()[1]) / 1024, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--memory", action="store_true", help="measure the memory of 500 fits first")
    if parser.parse_args().memory:
        found = json.dumps(measure(), indent=1) + "\n"
        (HERE / "results" / "memory.json").write_text(found, encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
