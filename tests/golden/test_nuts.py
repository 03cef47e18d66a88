"""Against long NUTS runs on real data, kept as golden files (see make_nuts.py)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import enkbayes as eb
from enkbayes.inference import fit_likelihood
from golden.make_nuts import CUTPOINTS, DATA, FOLDER, JOINT, SAMPLED, real_problem
from golden.make_truth import NAMES


@pytest.mark.parametrize("sampler", [eb.Equilibrium(), eb.MeanField()], ids=repr)
@pytest.mark.parametrize("name", DATA)
def test_posterior_agrees_with_nuts(name, sampler, record_property):
    golden = np.load(FOLDER / f"nuts_{name}.npz")
    problem = real_problem(name)
    posterior = eb.run(problem, sampler, particles=200)
    distance = np.abs(posterior.mean - golden["mean"]) / golden["sd"]
    ratio = np.sqrt(np.diag(posterior.cov)) / golden["sd"]
    proba = posterior.predict_proba(problem.features)
    record_property("largest error of the mean, in sd", float(distance.max()))
    record_property("ratios of standard deviations", [float(ratio.min()), float(ratio.mean()), float(ratio.max())])
    assert posterior.info.converged
    assert distance.max() < 0.1
    assert np.sqrt(np.mean(distance**2)) < 0.05
    assert np.abs(proba - golden["proba"]).mean() < 0.005
    assert ratio == pytest.approx(np.ones_like(ratio), abs=0.2)


def test_cutpoints_by_evidence_cost_little_against_cutpoints_that_are_sampled():
    """Fitted cutpoints against NUTS over weights and cutpoints: what a posterior with fixed cutpoints leaves out."""
    golden, problem = np.load(FOLDER / f"nuts_{JOINT}.npz"), real_problem("diabetes")
    labels = problem.targets.astype(int)
    fitted = fit_likelihood(replace(problem, likelihood=eb.Ordinal.from_labels(labels)))
    assert fitted.likelihood.cutpoints == pytest.approx(CUTPOINTS, abs=0.01)
    assert np.abs(fitted.likelihood.parameters - golden["parameters"]).max() < 0.2 * golden["parameters_sd"].min()
    posterior = eb.run(fitted)
    assert np.abs(posterior.mean - golden["mean"]).max() < 0.03 * golden["sd"].min()
    ratio = np.sqrt(np.diag(posterior.cov)) / golden["sd"]
    assert ratio.min() > 0.95
    assert ratio.max() < 1.02
    assert np.abs(posterior.predict_proba(problem.features) - golden["proba"]).max() < 0.005


@pytest.mark.parametrize("name", [*DATA, *SAMPLED, JOINT])
def test_the_truth_itself_is_sound(name):
    golden = np.load(FOLDER / f"nuts_{name}.npz")
    assert golden["r_hat"] < 1.005
    assert golden["ess"] > (3000 if name in SAMPLED else 5000)  # of the latter 2000 draws are used
    assert golden["diverging"] == 0


def test_no_golden_file_is_left_over():
    expected = {
        "laplace_torch",
        *(f"nuts_{name}" for name in (*DATA, *SAMPLED, JOINT)),
        *(f"truth_{name}" for name in NAMES),
    }
    assert {path.stem for path in Path(FOLDER).glob("*.npz")} == expected


def test_two_ways_to_the_truth_agree():
    """NUTS of NumPyro, and the HMC of make_truth.py."""
    ours, theirs = np.load(FOLDER / "truth_T6.npz"), np.load(FOLDER / "nuts_T6.npz")
    assert np.max(np.abs(ours["mean"] - theirs["mean"]) / theirs["sd"]) < 0.05
    assert np.sqrt(np.diag(ours["cov"])) == pytest.approx(theirs["sd"], rel=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_the_hmc_truth_is_sound(name):
    golden = np.load(FOLDER / f"truth_{name}.npz")
    assert golden["mean_error"] < 0.005
    assert golden["variance_error"] < 0.005
    assert golden["proba_error"] < 0.001
    assert golden["accepted"] > 0.8
