"""A head is an ordinary nn.Module: it can be exported, saved, moved and differentiated."""

import copy

import pytest

import enkbayes as eb

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from enkbayes.nets import BayesianHead  # noqa: E402
from oracles.heads import digits, fit, iris, loader, mlp  # noqa: E402


def test_a_head_with_a_structured_covariance_survives_state_dict_and_export():
    x, y = digits()
    x = x.flatten(1).double()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4)).double()
    head = fit(model, loader(x, y), sampler=eb.MeanField(rank=12), particles=20)
    assert head.posterior.ensemble.complement is not None
    other = BayesianHead.empty(model)
    other.load_state_dict(head.state_dict())
    torch.testing.assert_close(other(x), head(x))
    torch.testing.assert_close(other.sample_proba(x), head.sample_proba(x))
    torch.testing.assert_close(head.float()(x.float()).double(), other(x), atol=1e-3, rtol=0)
    exported = torch.export.export(other, (x[:8],), strict=False)
    torch.testing.assert_close(exported.module()(x[:8]), other(x[:8]))


@pytest.mark.parametrize("outputs", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_exported_program_gives_the_same_numbers(outputs, dtype, tmp_path):
    x, y = iris(dtype, classes=max(2, outputs))
    head = fit(mlp(outputs, dtype=dtype), loader(x, y))
    shapes = ({0: torch.export.Dim("n")},)
    program = torch.export.export(head, (x[:8],), dynamic_shapes=(shapes,), strict=False)
    torch.export.save(program, tmp_path / "head.pt2")
    again = torch.export.load(tmp_path / "head.pt2").module()
    assert torch.equal(again(x), head(x))


@pytest.mark.parametrize("sampler", [eb.Equilibrium(), eb.StochasticSampler(ds=0.01, max_steps=20)])
@pytest.mark.filterwarnings("ignore:StochasticSampler did not converge")
def test_state_dict_round_trip_into_an_empty_head(sampler, tmp_path):
    x, y = iris()
    head = fit(mlp(3), loader(x, y), sampler=sampler)
    torch.save(head.state_dict(), tmp_path / "head.pt")
    torch.manual_seed(5)
    other = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    empty = BayesianHead.empty(other)
    torch.testing.assert_close(empty(x), torch.full((len(x), 3), 1 / 3))
    empty.load_state_dict(torch.load(tmp_path / "head.pt", weights_only=True))
    assert torch.equal(empty(x), head(x))
    assert torch.equal(empty.sample_proba(x), head.sample_proba(x))
    assert torch.equal(copy.deepcopy(head)(x), head(x))
    with pytest.raises(RuntimeError, match="size mismatch"):
        BayesianHead.empty(mlp(5)).load_state_dict(head.state_dict())


def test_to_moves_buffers_and_casts_predictions():
    x, y = iris()
    head = fit(mlp(3), loader(x, y))
    expected = head(x)
    double = copy.deepcopy(head).to(torch.float64)
    assert double.mean.dtype == torch.float64
    assert double.posterior.theta.dtype == torch.float64
    torch.testing.assert_close(double(x.double()), expected.double(), rtol=0, atol=1e-5)
    half = copy.deepcopy(head).to(torch.bfloat16)
    torch.testing.assert_close(half(x.bfloat16()), expected, rtol=0, atol=0.05)
    assert head.to("meta").basis.device.type == "meta"


def test_gradients_reach_the_inputs_and_no_parameter():
    x, y = iris()
    head = fit(mlp(3), loader(x, y))
    probe = x[:3].clone().requires_grad_()
    head(probe)[:, 0].sum().backward()
    assert torch.isfinite(probe.grad).all()
    assert probe.grad.abs().max() > 0
    assert not any(p.requires_grad for p in head.parameters())


def test_particles_are_kept_until_the_buffers_change():
    torch.manual_seed(0)
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    head = BayesianHead.fit(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), [(x, y)], progress=False)
    before = head.sample_proba(x)
    assert head.posterior.ensemble is head.posterior.ensemble
    kept = copy.deepcopy(head)
    with torch.no_grad():
        head.mean += 1.0
        head.basis *= 2.0
    assert not torch.allclose(head.sample_proba(x), before)
    torch.testing.assert_close(kept.sample_proba(x), before)
    assert kept.double().sample_proba(x.double()).dtype == torch.float64


@pytest.mark.parametrize("rows", [1, 8, 9])
def test_few_rows_are_predicted_like_many(rows):
    torch.manual_seed(0)
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    head = BayesianHead.fit(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), [(x, y)], progress=False)
    torch.testing.assert_close(head.sample_proba(x[:rows]), head.sample_proba(x)[:, :rows])
    torch.testing.assert_close(
        head.predict_uncertainty(x[:rows]).epistemic, head.predict_uncertainty(x).epistemic[:rows], atol=1e-6, rtol=1e-4
    )
