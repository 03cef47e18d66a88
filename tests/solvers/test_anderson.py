"""Anderson's method: what it finds for linear iterations, and what keeps it from trusting noise."""

import numpy as np

from enkbayes.solvers.anderson import extrapolated


def test_a_linear_iteration_ends_in_as_many_steps_as_it_has_directions():
    A = np.asarray([[0.6, 0.2], [0.1, 0.3]])
    points = [np.asarray([1.0, -2.0])]
    for _ in range(2):
        points.append(points[-1] - A @ points[-1])
    forces = [-A @ x for x in points]
    history = tuple((points[i + 1] - points[i], forces[i + 1] - forces[i]) for i in range(2))
    force = extrapolated(forces[-1], history, 1.0, np.dot, 0.0)
    np.testing.assert_allclose(points[-1] + force, 0.0, atol=1e-10)


def test_nearly_parallel_differences_do_not_make_a_step_long():
    history = (
        (np.asarray([1.0, 0.0]), np.asarray([1.0, 0.0])),
        (np.asarray([0.0, 1.0]), np.asarray([1.0, 1e-6])),
    )
    force = np.asarray([0.0, 1.0])
    assert np.linalg.norm(extrapolated(force, history, 1.0, np.dot, 1e-10)) < 1e4
    assert np.linalg.norm(extrapolated(force, history, 1.0, np.dot, 0.0)) > 1e5
