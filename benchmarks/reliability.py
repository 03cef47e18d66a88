"""Write docs/results/reliability.md from the results of the campaigns: what was tried, what failed, what is promised.

    python benchmarks/reliability.py [--memory] [--audit]

With --audit, run bandit and pip-audit first, which must be on the path.
With --memory, fit 500 times first and store what the process holds in benchmarks/results/memory.json. A campaign that
has not been run on this version of the repository is said to be missing.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from environment import sources

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results" / "reliability.md"
FITS = 500
WARM = 50  # fits before the first measurement


def result(name: str) -> dict[str, Any] | None:
    """Return the results of a campaign, None if there are none."""
    path = HERE / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def page() -> str:
    """Return docs/results/reliability.md, rendered from the results."""
    template = jinja2.Template(
        (HERE / "reliability.md.jinja").read_text(encoding="utf-8"),
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = ("fuzz", "fuzz_files", "faults", "sbc", "memory", "audit")
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


def audited() -> dict[str, Any]:
    """Return what bandit finds in the package, and what pip-audit knows of the packages of constraints.txt."""

    def output(*words: str) -> Any:
        return json.loads(subprocess.run(words, cwd=HERE.parent, capture_output=True, text=True, check=False).stdout)

    found = output("bandit", "-q", "-r", "src", "-f", "json")["results"]
    packages = output("pip-audit", "-r", "constraints.txt", "--no-deps", "--disable-pip", "-f", "json")["dependencies"]
    return {
        "code": sources(),
        "bandit": [
            {"severity": thing["issue_severity"].lower(), "test": thing["test_name"], "file": thing["filename"]}
            for thing in found
        ],
        "packages": len(packages),
        "audited": sum("skip_reason" not in package for package in packages),
        "vulnerable": [package["name"] for package in packages if package.get("vulns")],
    }


def resident() -> float:
    """Return the resident memory of this process in MB."""
    words = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return round(int(words.split()[1]) / 1024, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--memory", action="store_true", help="measure the memory of 500 fits first")
    parser.add_argument("--audit", action="store_true", help="run bandit and pip-audit first")
    options = parser.parse_args()
    for asked, name, study in ((options.memory, "memory", measure), (options.audit, "audit", audited)):
        if asked:
            (HERE / "results" / f"{name}.json").write_text(json.dumps(study(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
