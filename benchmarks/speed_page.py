"""Write docs/results/speed.md from the results of speed.py, profile_step.py, streaming.py and big_heads.py.

python benchmarks/speed_page.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results" / "speed.md"
HARDER = ("white features", "reused memory")  # harder cases, to which the targets did not originally apply


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def page() -> str:
    """Return docs/results/speed.md, rendered from the results."""
    speed, profile, heads, streaming = (result(name) for name in ("speed", "profile", "big_heads", "streaming"))
    peers = ", ".join(f"{name} {version}" for name, version in speed["environment"]["peers"].items())
    rows = [row for part in speed["bars"].values() for row in part]
    harder = [row for row in rows if any(words in row["work"] for words in HARDER)]
    found = {row["work"]: row["measured"] for row in rows}
    template = jinja2.Template((HERE / "speed.md.jinja").read_text(encoding="utf-8"), keep_trailing_newline=True)
    return template.render(
        environment=speed["environment"],
        point=found["Equilibrium / scikit-learn lbfgs (network features)"],
        nuts=found["NUTS 500 x 7 / Equilibrium, N 300, D 50 (the paper's toy)"],
        peers=peers,
        bars=[row for row in rows if row not in harder],
        harder=harder,
        variants={name: row for name, row in profile["variants"].items() if name != "all optimisations"},
        steps={
            size: {name: ratio for name, ratio in row.items() if name != "all optimisations"}
            for size, row in profile["steps"].items()
        },
        shares=profile["shares of a fit"],
        heads={name: row for name, row in heads["cases"].items() if name != "exact"},
        streaming=streaming["cases"],
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
