"""Linear algebra where a library's first routine fails."""

import array_api_strict
import numpy as np
import pytest
import torch

from enkbayes.engine.arrays import thin_svd, to_numpy


def fails(*args, **kwargs):
    raise np.linalg.LinAlgError("SVD did not converge")


def test_a_decomposition_that_lapack_gives_up_has_a_second_way(monkeypatch):
    x = np.random.default_rng(0).standard_normal((4, 3)) @ np.diag([1.0, 1.0, 0.0]) @ np.ones((3, 7))
    monkeypatch.setattr(np.linalg, "svd", fails)
    U, s, Vt = thin_svd(x)
    assert (U.shape, Vt.shape) == ((4, 4), (4, 7))
    np.testing.assert_allclose((U * s) @ Vt, x, atol=1e-14)
    np.testing.assert_allclose(U.T @ U, np.eye(4), atol=1e-14)


def test_a_matrix_with_nan_has_no_decomposition():
    with pytest.raises(np.linalg.LinAlgError):
        thin_svd(np.full((3, 2), np.nan))


@pytest.mark.parametrize("library", [np, torch, array_api_strict])
def test_a_decomposition_stays_in_its_library(library):
    x = library.asarray([[3.0, 0.0, 1.0], [0.0, 4.0, 1.0]])
    U, s, Vt = thin_svd(x)
    assert all(type(part) is type(x) for part in (U, s, Vt))
    np.testing.assert_allclose((to_numpy(U) * to_numpy(s)) @ to_numpy(Vt), to_numpy(x), atol=1e-5)
