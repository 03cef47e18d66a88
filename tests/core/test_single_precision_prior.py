"""A number as the variance of a prior in single precision."""

import pytest

import enkbayes as eb

torch = pytest.importorskip("torch")


def test_a_number_is_a_variance_in_the_dtype_of_the_mean():
    gaussian = eb.Gaussian(torch.zeros(3, dtype=torch.float32), 2.0)
    assert gaussian.cov.dtype == torch.float32
    assert gaussian.cov.tolist() == [2.0, 2.0, 2.0]
