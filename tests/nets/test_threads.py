"""Small work has one thread of PyTorch, so that a busy core does not hold it up; large work has all of them."""

import pytest
import torch
from torch import nn

from enkbayes.nets import BayesianHead, BayesianNetwork, MultiLabel, OODScore
from enkbayes.nets.threads import SMALL, one_pass, threads_for


class Net(nn.Module):
    """A network that records how many threads it had."""

    def __init__(self, outputs=2):
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, outputs)

    def forward(self, x):
        SEEN.append(torch.get_num_threads())
        return self.out(torch.relu(self.hidden(x)))


SEEN = []
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
TRAIN, HELD_OUT = [(X[:40], (X[:40, 0] > 0).long())], [(X[40:], (X[40:, 0] > 0).long())]


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    SEEN.clear()
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_fits_and_predictions_of_small_networks():
    head = BayesianHead.fit(Net(), TRAIN, calibration=HELD_OUT, progress=False)
    network = BayesianNetwork.fit(Net(), TRAIN, rank=2, particles=6, vectorise=False, progress=False)
    score = OODScore.fit(head, TRAIN, calibration=HELD_OUT, progress=False)
    labels = MultiLabel.fit_head(Net(), [(X, (X[:, :2] > 0).float())], progress=False)
    for fitted in (head, network, labels):
        for method in (fitted, fitted.sample_proba, fitted.predict_uncertainty):
            method(X[:3])
    score(X[:3])
    assert set(SEEN) == {1}


def test_large_batches_have_all_threads():
    head = BayesianHead.fit(Net(), TRAIN, progress=False)
    rows = int(SMALL / one_pass(head.body, X[:1])) + 1
    SEEN.clear()
    head(X[:1].expand(rows, 4))
    head(X)
    assert SEEN == [2, 1]


def test_threads_come_back_after_an_error():
    head = BayesianHead.fit(Net(), TRAIN, progress=False)
    with pytest.raises(RuntimeError):
        head(torch.zeros(2, 3))
    assert torch.get_num_threads() == 2
    with threads_for(SMALL + 1):
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("inputs", "places"),
    [
        (torch.zeros(3, 4), 1),
        (torch.zeros(3, 5, 4), 5),
        (torch.zeros(3, 2, 6, 7), 42),
        (torch.zeros(3, 9, dtype=torch.long), 9),
        (((), {"input_ids": torch.zeros(3, 9, dtype=torch.long)}), 9),
        ((torch.zeros(3), "text"), 1),
    ],
)
def test_multiplications_of_a_pass(inputs, places):
    assert one_pass(nn.Linear(4, 10), inputs) == 3 * places * 50


def test_inputs_that_are_no_tensors():
    assert one_pass(nn.Linear(4, 10), ["a", "b"]) == one_pass(nn.Linear(4, 10)) == 0.0
