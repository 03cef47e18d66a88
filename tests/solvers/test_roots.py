"""Inverse roots by series and Newton's method are those of the spectrum."""

import math

import numpy as np
import pytest

from enkbayes.core.moments import Diverged
from enkbayes.solvers.roots import exceeds, inverse_root, inverse_root_near_identity

NEAR, LEAST, SHARE = 0.45, 0.5, 1e-3


def near(scale, rho, size=40, seed=0):
    """A symmetric matrix with eigenvalues scale (1 +- rho), the outermost once each."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((size, size)))[0]
    w = np.concatenate([[-1.0, 1.0], rng.uniform(-0.3, 0.3, size - 2)])
    return scale * (np.eye(size) + rho * (Q * (w - w.mean())) @ Q.T)


@pytest.mark.parametrize("scale", [0.6, 1.0, 50.0])
@pytest.mark.parametrize("rho", [0.0, 1e-3, 0.02, 0.1, 0.24, 0.37])
def test_the_root_is_that_of_the_spectrum(scale, rho):
    F = near(scale, rho)
    w, U = np.linalg.eigh(F)
    for share in (0.0, SHARE):
        found = math.sqrt(scale) * (inverse_root(F, share) - (U * w**-0.5) @ U.T)
        assert np.linalg.norm(found, 2) <= max(2 * share * rho, 1e-14)  # the bound of rho is not the smallest


def test_single_precision_has_an_end():
    F = near(1.0, 0.3, size=300).astype(np.float32)
    assert inverse_root(F).dtype == np.float32
    assert inverse_root(F) == pytest.approx(inverse_root(F.astype(np.float64)), abs=1e-5)


@pytest.mark.parametrize(
    "F", [near(1.0, 0.9), near(0.9 * LEAST, 0.01), -np.eye(3), np.full((2, 2), np.nan), np.diag([1.0, np.inf])]
)
def test_what_is_far_or_small_is_left_to_the_spectrum(F):
    with np.errstate(invalid="ignore", over="ignore"):
        assert inverse_root_near_identity(F, SHARE, NEAR, LEAST) is None


def test_far_from_the_identity_the_root_is_that_of_the_spectrum_too():
    F = near(1.0, 0.9)
    R = inverse_root(F)
    assert pytest.approx(np.eye(len(F)), abs=1e-10) == R @ F @ R
    with pytest.raises(Diverged), np.errstate(invalid="ignore"):
        inverse_root(np.full((2, 2), np.nan))


@pytest.mark.parametrize("least", [0.1, 0.5])
def test_exceeds_knows_the_smallest_eigenvalue(least):
    F = near(1.0, 0.6)
    smallest = np.linalg.eigvalsh(F)[0]
    assert exceeds(F * (least / smallest) * 1.001, least)
    assert not exceeds(F * (least / smallest) * 0.999, least)
    assert not exceeds(np.full((2, 2), np.nan), least)


def test_a_root_means_that_the_matrix_is_well_away_from_singular():
    smallest = min(
        np.linalg.eigvalsh(F)[0]
        for F in (near(LEAST * 1.001, rho, seed=seed) for rho in np.linspace(0, 0.4, 20) for seed in range(5))
        if inverse_root_near_identity(F) is not None
    )
    assert LEAST * (1 - NEAR) <= smallest < LEAST


def test_rotations_commute_with_it():
    F, Q = near(1.3, 0.1), np.linalg.qr(np.random.default_rng(5).standard_normal((40, 40)))[0]
    assert inverse_root(Q @ F @ Q.T) == pytest.approx(Q @ inverse_root(F) @ Q.T, abs=1e-12)
