"""Averages over random views of the inputs: chosen by held-out rows where they help, and only there."""

import random
from functools import partial

import numpy as np
import pytest

import enkbayes as eb

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from enkbayes.evaluation.metrics import nll  # noqa: E402
from enkbayes.inference.views import choose_views  # noqa: E402
from enkbayes.nets import BayesianHead, BayesianNetwork  # noqa: E402
from enkbayes.nets.views import Views  # noqa: E402


def data(rows, seed):
    """Sequences of eight numbers whose class does not depend on where they begin."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    wave = np.where(y[:, None] == 1, np.sin(np.arange(8) * np.pi / 2), np.sin(np.arange(8) * np.pi / 4))
    turned = np.stack([np.roll(row, shift) for row, shift in zip(wave, rng.integers(0, 8, rows), strict=True)])
    return torch.as_tensor(turned + 0.8 * rng.standard_normal((rows, 8)), dtype=torch.float32), torch.as_tensor(y)


def turn(x, generator):
    """Begin every sequence of the batch somewhere else."""
    shifts = torch.randint(0, 8, (len(x),), generator=generator)
    return torch.stack([torch.roll(row, int(shift)) for row, shift in zip(x, shifts, strict=True)])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4), nn.ReLU(), nn.Linear(4, 1))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-3)
    x, y = data(150, 0)
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(network(x)[:, 0], y.float()).backward()
        optimiser.step()
    return network


def fit(kind, model, **options):
    options |= {"sampler": eb.MeanField(tol=1e-2)} if kind is BayesianHead else {"rank": 3, "layers": ["4"]}
    return kind.fit(model, [data(150, 0)], calibration=[data(400, 1)], particles=24, progress=False, **options)


@pytest.mark.filterwarnings("ignore:Equilibrium did not converge")
@pytest.mark.parametrize("kind", [BayesianHead, BayesianNetwork])
def test_views_improve_predictions_and_their_number_is_stored(kind, model):
    plain, head = fit(kind, model), fit(kind, model, views=turn, most_views=8)
    x, y = data(2000, 2)
    assert head.views_choice.count >= 2
    assert "times the cost of a prediction" in head.views_choice.message
    assert nll(head(x), y) < nll(plain(x), y) - 0.02
    assert torch.equal(head(x), head(x))
    assert head.sample_proba(x[:5]).shape == (24, 5, 2)
    found = head.predict_uncertainty(x)
    torch.testing.assert_close(found.total, found.aleatoric + found.epistemic)
    torch.testing.assert_close(found.confidence, head(x).max(dim=1).values)
    plain.load_state_dict(head.state_dict())
    with pytest.raises(ValueError, match=r"set views to Views\(augment\)"):
        plain(x)
    plain.views = Views(turn)
    torch.testing.assert_close(plain(x), head(x))


def test_views_that_destroy_the_input_are_not_used(model):
    head = fit(BayesianHead, model, views=lambda x: 5 * torch.randn_like(x), most_views=4)
    assert head.views_choice.count == 0
    assert head.views_choice.message.startswith("no views")
    x = data(50, 2)[0]
    torch.testing.assert_close(head(x), fit(BayesianHead, model)(x))


def test_views_need_held_out_rows(model):
    with pytest.raises(ValueError, match="expected calibration= together with views="):
        BayesianHead.fit(model, [data(50, 0)], views=turn, progress=False)
    assert choose_views(np.full((3, 5, 2), 0.5), np.zeros(5, dtype=int)).count == 0


def test_a_transform_without_a_generator_leaves_the_state_of_torch_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    views = list(Views(torch.nn.Dropout(0.5))(torch.ones(100), 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(views[1], views[2])


WRONG = {
    "no function": (3, "views= is a int; expected a function of a batch"),
    "a list": ([turn], "views= is a list; expected a function of a batch"),
    "nothing returned": (lambda x: None, "views= returned NoneType for float32"),
    "one row": (
        lambda x: x[:1],
        r"views= returned float32 \(1, 8\) for float32 \(400, 8\); expected inputs of the same",
    ),
    "another dtype": (lambda x: x.double(), r"views= returned float64 \(400, 8\)"),
    "other columns": (lambda x: x[:, :2], r"cannot be run on float32 \(400, 2\)"),
    "not finite": (lambda x: x * torch.nan, "NaN or infinite values for some inputs"),
    "an error": (lambda x: x["image"], r"views= failed with IndexError .* for float32 \(400, 8\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_views_that_are_no_inputs_are_refused_in_a_sentence(name, model):
    augment, words = WRONG[name]
    with pytest.raises(ValueError, match=words):
        fit(BayesianHead, model, views=augment, most_views=2)


@pytest.mark.parametrize("most", [0, -1, 2.5, "3"])
def test_a_number_of_views_is_a_whole_number(most, model):
    with pytest.raises(ValueError, match=r"most_views is .*; expected a whole number, at least 1"):
        fit(BayesianHead, model, views=turn, most_views=most)


def test_views_draw_the_same_again_and_change_nothing_of_the_users():
    x, states = torch.zeros(3, 4), (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())  # noqa: NPY002

    def noisy(batch, generator=None):
        batch += torch.randn(batch.shape) + float(np.random.standard_normal()) + random.random()  # noqa: NPY002
        return batch

    for augment in (partial(noisy, generator=None), noisy):
        first, second = (list(Views(augment)(x, 2)) for _ in range(2))
        assert all(map(torch.equal, first, second))
        assert not torch.equal(first[1], first[2])
        assert not x.any()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert random.getstate() == states[2]


def test_views_cannot_be_exported(model):
    head = fit(BayesianHead, model, views=turn, most_views=2)
    head.view_count = 2
    with pytest.raises(ValueError, match="views cannot be exported"):
        torch.export.export(head, (torch.zeros(2, 8),), strict=False)
