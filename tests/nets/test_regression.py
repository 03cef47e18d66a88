"""A head for a network that predicts real numbers: the posterior is a Gaussian with a closed form."""

import numpy as np
import pytest
import torch
from torch import nn

import enkbayes as eb
from enkbayes.nets import BayesianHead, OODScore

NOISE = 0.2


def trained(width=30):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, 1))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(800):
        optimiser.zero_grad()
        ((model(TRAIN[0][0]) - TRAIN[0][1]) ** 2).mean().backward()
        optimiser.step()
    return model


def batch(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(count, 1, generator=generator) - 2
    return x, torch.sin(2 * x) + NOISE * torch.randn(count, 1, generator=generator)


TRAIN, HELD_OUT, NEW = [batch(150, 0)], [batch(300, 1)], batch(500, 2)
MODEL = trained()


def test_the_posterior_has_the_closed_form():
    v, s2 = 0.5, 0.04
    head = BayesianHead.fit(
        MODEL, TRAIN, regression=True, prior_precision=1 / v, intercept_precision=1.0, noise_variance=s2, progress=False
    )
    rows = [head.features(x).double().numpy() for x in (TRAIN[0][0], NEW[0])]
    a, b = (np.column_stack([each, np.ones(len(each))]) for each in rows)
    cov = np.linalg.inv(a.T @ a / s2 + np.diag([1 / v] * (a.shape[1] - 1) + [1.0]))
    mean = cov @ a.T @ TRAIN[0][1][:, 0].double().numpy() / s2
    np.testing.assert_allclose(head(NEW[0])[:, 0].numpy(), b @ mean, atol=1e-4)
    found = head.predict_uncertainty(NEW[0])
    np.testing.assert_allclose(found.epistemic.numpy(), np.sum((b @ cov) * b, axis=1), rtol=1e-3)
    np.testing.assert_allclose(found.aleatoric.numpy(), s2, rtol=1e-6)
    np.testing.assert_allclose(found.total.numpy(), found.aleatoric + found.epistemic, rtol=1e-6)


def test_without_held_out_data_it_is_the_regression_of_the_features():
    head = BayesianHead.fit(MODEL, TRAIN, regression=True, progress=False)
    features = [head.features(x).double().numpy() for x in (TRAIN[0][0], NEW[0])]
    regressor = eb.EnsembleRegressor().fit(features[0], TRAIN[0][1][:, 0].numpy())
    assert head.likelihood.variance == pytest.approx(regressor.noise_variance_, rel=1e-3)
    mean, std = regressor.predict(features[1], return_std=True)
    np.testing.assert_allclose(head(NEW[0])[:, 0].numpy(), mean, atol=1e-3)
    np.testing.assert_allclose(head.predict_uncertainty(NEW[0]).total.sqrt().numpy(), std, rtol=1e-3)


def test_held_out_residuals_give_the_noise_and_predictions_are_calibrated():
    head = BayesianHead.fit(MODEL, TRAIN, calibration=HELD_OUT, regression=True, progress=False)
    assert 0.8 < head.likelihood.variance**0.5 / NOISE < 1.25
    total, error = head.predict_uncertainty(NEW[0]).total, (head(NEW[0]) - NEW[1])[:, 0]
    assert 0.85 < float((error**2 / total).mean()) < 1.15
    with torch.no_grad():
        assert float((error**2).mean()) <= float(((MODEL(NEW[0]) - NEW[1]) ** 2).mean()) * 1.02


def test_variance_grows_along_rays_faster_than_that_of_the_plain_posterior():
    far = torch.tensor([[3.0], [10.0], [100.0], [1000.0]])
    head = BayesianHead.fit(MODEL, TRAIN, calibration=HELD_OUT, regression=True, progress=False)
    found = head.predict_uncertainty(far)
    assert (found.far_field[1:] > 4 * found.far_field[:-1]).all()
    assert (found.epistemic >= found.far_field).all()
    assert (found.epistemic[2:].sqrt() > head(far)[2:, 0].abs()).all()  # unsure of its own prediction
    plain = BayesianHead.fit(MODEL, TRAIN, calibration=HELD_OUT, regression=True, far_field=False, progress=False)
    torch.testing.assert_close(plain(far), head(far))
    assert plain.predict_uncertainty(far).far_field is None
    near = head.predict_uncertainty(NEW[0])
    assert float(near.far_field.mean()) < 0.1 * NOISE**2


def test_states_keep_the_noise(tmp_path):
    head = BayesianHead.fit(MODEL, TRAIN, calibration=HELD_OUT, regression=True, progress=False)
    again = BayesianHead.empty(MODEL, regression=True)
    again.load_state_dict(head.state_dict())
    before, after = head.predict_uncertainty(NEW[0]), again.predict_uncertainty(NEW[0])
    for name in ("total", "aleatoric", "far_field"):
        torch.testing.assert_close(getattr(after, name), getattr(before, name))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"views": lambda x: x, "calibration": HELD_OUT}, "are for classes"),
        ({"noise_variance": -1.0}, "noise"),
        ({"prior_precision": 0.0}, "prior_precision"),
    ],
)
def test_what_does_not_apply_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BayesianHead.fit(MODEL, TRAIN, regression=True, progress=False, **options)


def test_scores_and_thresholds_need_classes_and_layers_one_output():
    head = BayesianHead.fit(MODEL, TRAIN, regression=True, progress=False)
    with pytest.raises(ValueError, match="is a regression"):
        OODScore.fit(head, TRAIN, progress=False)
    with pytest.raises(ValueError, match="is a regression"):
        head.reject_threshold(HELD_OUT)
    with pytest.raises(ValueError, match="3 outputs; regression takes a network with one"):
        BayesianHead.fit(nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 3)), TRAIN, regression=True, progress=False)


def test_variance_of_real_targets_grows_no_faster_than_it_must():
    head = BayesianHead.fit(MODEL, TRAIN, calibration=HELD_OUT, regression=True, progress=False)
    found = head.predict_uncertainty(torch.tensor([[1e3], [1e4]])).far_field
    assert 3 <= float(torch.log10(found[1] / found[0])) < 5.5  # as |x|^3 to |x|^5
