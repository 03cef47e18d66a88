"""Simulation-based calibration of every sampler (Talts and others 2018), and the page that shows it.

    python benchmarks/sbc.py [CELL ...] [--replications 300]
    python benchmarks/sbc.py --page

A replication draws weights from the prior, features, and labels from the model with these weights, and fits the
posterior to them. Over replications the true weights are draws of the fitted posteriors if those are exact. So

- the rank of a true value among 100 posterior draws is uniform: for one weight, for the square of the norm of all, and
  for the log likelihood of the data;
- the average over data of E|theta|^2 is that of the prior;
- the predicted probability of a new label, drawn from the model, is calibrated: its randomised probability integral
  transform is uniform.

Ranks are those among the particles and among independent draws (`posterior.sample`), before and after 20 sweeps of
`polish`.

The default prior of the estimators is calibrated, too: the width is drawn from its half-Cauchy hyperprior before the
weights are. `average` is what `EnsembleClassifier()` fits, whose weights of the widths left-out rows choose;
`average by evidence` is the same without folds, weighted by the bound of the evidence. E|theta|^2 is infinite
there, so the posterior average of log |theta|^2 is compared with the true one instead.

Results are written to benchmarks/results/sbc.json and docs/results/calibration_of_samplers.md.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from environment import sources
from scipy.special import expit
from scipy.stats import chi2, norm

import enkbayes as eb
from enkbayes.inference.prior_average import average_over_widths, grid_of, logit_variance

ROOT = Path(__file__).parent
RESULTS = ROOT / "results" / "sbc.json"
PAGE = ROOT.parent / "docs" / "results" / "calibration_of_samplers.md"
SAMPLERS = {
    "equilibrium": eb.Equilibrium(),
    "mean-field": eb.MeanField(),
    "homotopy": eb.Homotopy(),
    "tamed-homotopy": eb.TamedHomotopy(ds=0.02),
    "trotter": eb.TrotterSampler(ds=0.2, max_steps=200),
    "stochastic": eb.StochasticSampler(ds=0.1, max_steps=150),
}
AVERAGES = {"average": {}, "average by evidence": {"folds": 1, "few_folds": 1}}  # changes of the grid of widths
CELLS = {  # rows, features, classes, prior variance
    "N20 D2 K2 v1": (20, 2, 2, 1.0),
    "N20 D10 K2 v1": (20, 10, 2, 1.0),
    "N20 D2 K2 v10": (20, 2, 2, 10.0),
    "N100 D2 K2 v10": (100, 2, 2, 10.0),
    "N100 D10 K2 v1": (100, 10, 2, 1.0),
    "N100 D10 K2 v10": (100, 10, 2, 10.0),
    "N20 D3 K3 v10": (20, 3, 3, 10.0),
    "N50 D3 K3 v1": (50, 3, 3, 1.0),
}
WIDTHS = {  # rows, features, classes; the width is drawn
    "N20 D2 K2": (20, 2, 2, None),
    "N20 D10 K2": (20, 10, 2, None),
    "N100 D10 K2": (100, 10, 2, None),
}
SWEEPS, DRAWS, BINS, JUDGED, JUDGED_AVERAGES = 20, 100, 10, 100, 40
STATISTICS = ("weight", "norm", "log likelihood", "prediction")


def simulated(cell, rng):
    """Return a problem whose weights were drawn from the prior, the weights, and a new row with its label.

    Without a variance the prior is that of the default: a half-Cauchy one of the standard deviation of a typical logit.
    """
    N, D, K, variance = cell
    P = D if K == 2 else D * K
    theta, features = rng.standard_normal(P), rng.standard_normal((N + 1, D))
    if variance is None:
        unit = eb.Problem.create(features[:N], np.arange(N) % K, classes=range(K))
        scale = grid_of(unit).scale if K == 2 else grid_of(unit).scale_softmax
        variance = float(scale * rng.standard_cauchy()) ** 2 / logit_variance(unit, np.zeros(P, dtype=int))
    theta *= np.sqrt(variance)
    if K == 2:
        labels = (rng.random(N + 1) < expit(features @ theta)).astype(int)
    else:
        labels = np.argmax(features @ theta.reshape(D, K) + rng.gumbel(size=(N + 1, K)), axis=1)
    problem = eb.Problem.create(features[:N], labels[:N], eb.Gaussian.isotropic(P, variance), classes=range(K))
    return problem, theta, features[N:], int(labels[N])


def fitted(problem, method, draws, seed):
    """Return the posterior of a sampler, or of an average over widths."""
    if not isinstance(method, dict):
        return eb.run(problem, method, particles=draws, seed=seed)
    one = problem.with_prior(eb.Gaussian.isotropic(problem.dim, 1.0))  # the width is not known
    groups = np.zeros(problem.dim, dtype=int)
    grid = replace(grid_of(one), **method)
    return average_over_widths(one, groups, lambda each: eb.run(each, particles=draws, seed=seed), grid=grid)[0]


def values(problem, theta):
    """Return the statistics (J, 3) whose ranks are taken, for weights theta (J, P)."""
    return np.stack([theta[:, 0], np.sum(theta**2, axis=1), -problem.loss(theta)], axis=1)


def ranks(problem, true, draws):
    """Return the ranks of the three statistics of the true weights among draws (J, P)."""
    return np.sum(values(problem, draws) < values(problem, true[None, :]), axis=0)


def transform(proba, label, rng):
    """Return the randomised probability integral transform of a label under its probabilities (K,)."""
    below = float(np.sum(proba[:label]))
    return below + rng.random() * float(proba[label])


def replication(cell, sampler, seed, *, sweeps=SWEEPS, draws=DRAWS, judged=JUDGED):
    """Return for each kind of draws the ranks, the transform of a new label, E|theta|^2 and E log |theta|^2 less the
    true one; and the verdict, if this is one of the first `judged`.
    """
    rng = np.random.default_rng((seed, 11))
    problem, true, row, label = simulated(cell, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = fitted(problem, sampler, draws, seed)
        polished = eb.polish(problem, posterior, sweeps, seed=seed) if sweeps else None
    kinds = {
        "particles": (posterior, posterior.theta),
        "independent": (posterior, posterior.sample(draws, seed=seed)),
    } | ({} if polished is None else {"polished": (polished, polished.theta)})
    found = {}
    for kind, (source, theta) in kinds.items():
        proba = source.mean_proba(row)[0] if kind == "polished" else source.predict_proba(row)[0]
        found[kind] = [
            *map(int, ranks(problem, true, theta)),
            transform(proba, label, rng),
            float(np.mean(np.sum(theta**2, axis=1))),
            float(np.mean(np.log(np.sum(theta**2, axis=1))) - np.log(np.sum(true**2))),
        ]
    return found, eb.assess(problem, posterior).verdict if seed < judged else None


def summary(rows, cell, *, draws=DRAWS, bins=BINS):
    """Return histograms, p-values, the share of the middle rank, the ratio of E|theta|^2 to that of the prior, and how
    far E log |theta|^2 is above the true one.
    """
    rng = np.random.default_rng(0)
    table = np.asarray(rows, dtype=float)
    out = {}
    for i, name in enumerate(STATISTICS):
        u = table[:, i] if name == "prediction" else (table[:, i] + rng.random(len(table))) / (draws + 1)
        counts = np.histogram(u, bins, (0, 1))[0]
        statistic = float(np.sum((counts - len(u) / bins) ** 2) / (len(u) / bins))
        tilt = float(np.mean(norm.ppf(np.clip(u, 1e-3, 1 - 1e-3))) * np.sqrt(len(u)))
        out[name] = {
            "counts": counts.tolist(),
            "p": float(chi2.sf(statistic, bins - 1)),
            "tilt": tilt,  # a standard normal score: above 0 the truth is larger than the draws
        }
    _, D, K, variance = cell
    squares, logs = table[:, len(STATISTICS)], table[:, len(STATISTICS) + 1]
    out["middle"] = float(np.mean(table[:, 0] == draws // 2) * (draws + 1))
    if variance is not None:
        squares = squares / (variance * (D if K == 2 else D * K))
        out["squares"] = [float(squares.mean()), float(squares.std() / np.sqrt(len(squares)))]
    out["logs"] = [float(logs.mean()), float(logs.std() / np.sqrt(len(logs)))]
    return out


def study(cell, sampler, replications, **options):
    """Return the summary of every kind of draws, and how often each verdict was given."""
    found = [replication(cell, sampler, seed, **options) for seed in range(replications)]
    kinds = {kind: summary([row[kind] for row, _ in found], cell) for kind in found[0][0]}
    verdicts = [verdict for _, verdict in found if verdict is not None]
    return kinds | {"verdicts": {name: verdicts.count(name) for name in sorted(set(verdicts))}}


def bars(counts):
    """Return a histogram in one line of text; a full block is twice the expected number.

    >>> bars([0, 5, 10, 20])
    '▁▃▅█'
    """
    expected = sum(counts) / len(counts)
    return "".join("▁▂▃▄▅▆▇█"[min(int(4 * count / max(expected, 1e-9)), 7)] for count in counts)


def page(results):
    """Return the page in Markdown."""
    own = {kind: failed(results["cells"], "equilibrium", kind) for kind in ("particles", "polished")}
    tests, low, _ = own["particles"]
    lines = [
        "# Calibration of samplers",
        "",
        f"**Of {tests} tests of `Equilibrium`, {low} have p below .05, and {own['polished'][1]} after `polish`.",
        "Of exact posteriors, one in twenty would.** The paper's own steps and `Homotopy` fail more often.",
        "",
        "A replication draws weights from the prior and labels from the model, and fits them. If posteriors are exact,",
        "the rank of the true value among draws of the posterior is uniform (simulation-based calibration).",
        "",
        "## How many tests fail",
        "",
        *conclusions(results["cells"], SAMPLERS),
        "",
        "`particles` are those of the run, `independent` are draws of its Gaussian (`posterior.sample`; `stochastic`",
        f"has none, so they are its particles), and `polished` are particles after {SWEEPS} sweeps. All samplers see",
        "the same data. The last column: how often the rank of one weight is 50, divided by how often it should be.",
        "",
        f"The tables below have one row for each of these, over {results['replications']} replications:",
        "",
        f"- histograms of the ranks among {DRAWS} draws, {BINS} bins, with the p-value of a chi-square test of",
        "  uniformity: of one weight, of the square of the norm of all weights, and of the log likelihood of the data;",
        "  the same for the randomised probability integral transform of a new label;",
        "- the average of E|theta|^2 over the data, divided by that of the prior, which is 1 for exact posteriors,",
        "  with one standard error.",
        "",
        f"Verdicts are those of `assess`, on the first {min(JUDGED, results['replications'])} replications.",
        "",
    ]
    for cell, samplers in results["cells"].items():
        N, D, K, variance = CELLS[cell]
        lines += [f"## {N} rows, {D} features, {K} classes, prior variance {variance:g}", ""]
        lines += table_of(samplers, "E\\|theta\\|^2", "squares")
    averages = results.get("averages", {})
    if averages:
        lines += [
            "## The average over widths",
            "",
            "The default prior of the estimators does not know its width. Here the width is drawn from its half-Cauchy",
            "hyperprior, then weights and labels as above. `average` is what `EnsembleClassifier()` fits: rows that",
            "were left out choose the weights of the widths, in order to predict well.",
            "`average by evidence` weighs widths by the lower bound of the evidence alone. With the evidence itself it",
            "would be the posterior under the hyperprior, up to the grid and the Gaussians. The bound loses most under",
            "wide priors, so narrow ones weigh too much, and a large norm is too large for its draws too often.",
            "E|theta|^2 is infinite, so the last column but one has the average over the data of E log |theta|^2 less",
            "the true value, which is 0 for exact posteriors. There are",
            f"{results['average_replications']} replications. Verdicts are those on the first {JUDGED_AVERAGES}.",
            "",
        ]
        for cell, methods in averages.items():
            N, D, K, _ = WIDTHS[cell]
            lines += [f"### {N} rows, {D} features, {K} classes", ""]
            lines += table_of(methods, "E log \\|theta\\|^2", "logs")
        lines += ["### How many tests of averages fail", "", *conclusions(averages, AVERAGES)]
    lines += [
        "",
        "## How it was measured",
        "",
        "`benchmarks/sbc.py` measures and writes this page. The first digits of `git rev-parse HEAD:src/enkbayes` name",
        f"the code: `{results.get('code')}`, and `{results.get('average_code')}` for the average over widths.",
    ]
    return "\n".join(lines).rstrip() + "\n"


def table_of(samplers, title, column):
    """Return the table of one cell and the verdicts on its fits."""
    lines = [
        f"| sampler | draws | one weight | norm | log likelihood | new label | {title} | rank 50 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for sampler, kinds in samplers.items():
        for kind, found in kinds.items():
            if kind == "verdicts":
                continue
            shown = [f"`{bars(found[name]['counts'])}` {found[name]['p']:.2g}" for name in STATISTICS]
            mean, error = found[column]
            cells = [sampler, kind, *shown, f"{mean:.3f} ± {error:.3f}", f"{found['middle']:.1f}"]
            lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for sampler, kinds in samplers.items():
        said = ", ".join(f"{name} {count}" for name, count in kinds["verdicts"].items())
        lines.append(f"- Verdicts on `{sampler}`: {said}.")
    return [*lines, ""]


def failed(cells, method, kind):
    """Return how many tests there are of one kind of draws, and how many have p below .05 and below .001."""
    found = [cell[method][kind] for cell in cells.values() if kind in cell.get(method, {})]
    p = [each[name]["p"] for each in found for name in STATISTICS]
    return len(p), *(sum(value < bound for value in p) for bound in (0.05, 0.001))


def conclusions(cells, methods):
    """Return what the tables say, in numbers."""
    lines = [
        "| sampler | draws | tests | p below .05 | p below .001 | rank 50 |",
        "|---|---|---|---|---|---|",
    ]
    for method in methods:
        for kind in ("particles", "independent", "polished"):
            tests, low, lower = failed(cells, method, kind)
            if tests:
                found = [cell[method][kind]["middle"] for cell in cells.values() if kind in cell.get(method, {})]
                lines.append(f"| {method} | {kind} | {tests} | {low} | {lower} | {np.mean(found):.1f} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="CELL", help=", ".join([*CELLS, *WIDTHS]))
    parser.add_argument("--replications", type=int, default=300)
    parser.add_argument("--average-replications", type=int, default=120, help="those of the average over widths")
    parser.add_argument("--page", action="store_true", help="only write the page")
    args = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if not args.page:
        for name in args.cells or [*CELLS, *WIDTHS]:
            if name in CELLS:
                group, cell, methods, count, judged = "cells", CELLS[name], SAMPLERS, args.replications, JUDGED
                results |= {"replications": count, "code": sources()}
            else:
                group, cell, methods = "averages", WIDTHS[name], AVERAGES
                count, judged = args.average_replications, JUDGED_AVERAGES
                results |= {"average_replications": count, "average_code": sources()}
            for sampler, method in methods.items():
                found = study(cell, method, count, judged=judged)
                results.setdefault(group, {}).setdefault(name, {})[sampler] = found
                p = {kind: [round(found[kind][s]["p"], 4) for s in STATISTICS] for kind in found if kind != "verdicts"}
                print(name, sampler, p, flush=True)
                RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for group, names in (("cells", CELLS), ("averages", WIDTHS)):
        results[group] = {name: results[group][name] for name in names if name in results.get(group, {})}
    PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
