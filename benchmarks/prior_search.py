"""Compare the prior variance that `tune_prior` chooses with the best of a grid by evidence, on 40 random problems.

    python benchmarks/prior_search.py [--problems 40]

The problems have two or three classes, 30 to 200 rows, 2 to 15 features, and true weights from too weak to be seen to
nearly separable. For each the script prints the best evidence of 17 variances from 1e-4 to 1e4, the evidence at the
chosen variance, and their difference. Results are written to benchmarks/results/prior_search.json.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

import enkbayes as eb
from enkbayes.inference.empirical_bayes import parameter_groups, tune_prior, with_variances
from enkbayes.inference.propagation import propagate

GRID = 10.0 ** np.arange(-4, 4.1, 0.5)
RESULTS = Path(__file__).parent / "results" / "prior_search.json"


def random_problem(seed):
    """Return a problem drawn from the model itself, with an intercept."""
    rng = np.random.default_rng(seed)
    N, D, K = int(rng.integers(30, 200)), int(rng.integers(2, 15)), int(rng.choice([2, 2, 2, 3]))
    features, weights = rng.standard_normal((N, D)), rng.standard_normal((D, K)) * 10 ** rng.uniform(-1.5, 0.7)
    labels = np.argmax(features @ weights + rng.gumbel(size=(N, K)), axis=1)
    labels[:K] = range(K)
    return eb.Problem.create(features, labels, 1.0, intercept=100.0)


def evidence(problem, variance):
    """Return the log evidence of one prior variance for all weights."""
    return propagate(with_variances(problem, parameter_groups(problem.model), [variance])).log_evidence


def compare(seed, grid=GRID):
    """Return the best evidence of the grid and that of the choice."""
    problem = random_problem(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a width that the data do not determine
        tuning = tune_prior(problem)[1]
    values = [evidence(problem, variance) for variance in grid]
    best = int(np.argmax(values))
    return {
        "seed": seed,
        "best_variance": float(grid[best]),
        "best": values[best],
        "variance": tuning.variances[0],
        "chosen": evidence(problem, tuning.variances[0]),
        "fits": tuning.fits,
        "converged": tuning.converged,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=40)
    rows = []
    for seed in range(parser.parse_args().problems):
        rows.append(row := compare(seed))
        print(
            f"{seed:3d}  best {row['best']:9.3f} at {row['best_variance']:8.3g}   chosen {row['chosen']:9.3f} at "
            f"{row['variance']:8.3g}   left {max(row['best'] - row['chosen'], 0):.3f}   {row['fits']} fits",
            flush=True,
        )
    worst = max(row["best"] - row["chosen"] for row in rows)
    print(f"largest difference: {worst:.3f}")
    RESULTS.write_text(json.dumps({"worst": worst, "problems": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
