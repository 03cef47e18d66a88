"""Networks that read sequences: padding does not count, and a network may select one position after its last layer."""

import pytest
import torch
from torch import nn

from enkbayes.nets import BayesianHead, BayesianNetwork, OODScore

LENGTHS = torch.arange(60) % 4 + 2
MASK = (torch.arange(6) < LENGTHS[:, None]).long()


class Text(nn.Module):
    """A layer at each position, then the mean over those that are not padding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.layer, self.last = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask):
        hidden = torch.tanh(self.layer(self.tokens(input_ids)))
        weights = attention_mask[:, :, None].float()
        return self.last((weights * hidden).sum(1) / weights.sum(1))


class Last(Text):
    """Logits of every position, of which the last that is not padding counts."""

    def forward(self, input_ids, attention_mask):
        logits = self.last(torch.tanh(self.layer(self.tokens(input_ids))))
        return logits[torch.arange(len(logits)), attention_mask.sum(1) - 1]


def batch(seed):
    ids = torch.randint(1, 20, (60, 6), generator=torch.Generator().manual_seed(seed)) * MASK
    return {"input_ids": ids, "attention_mask": MASK, "labels": ids[:, 0] % 3}


@pytest.mark.parametrize("kind", [Text, Last])
def test_padding_does_not_count(kind):
    train, new = [batch(0)], batch(2)
    head = BayesianHead.fit(kind(), train, calibration=[batch(1)], progress=False)
    network = BayesianNetwork.fit(
        kind(), train, calibration=[batch(1)], layers=["last"], rank=3, particles=20, progress=False
    )
    for fitted in (head, network):
        assert fitted.far_field.active
        score = OODScore.fit(fitted, train, progress=False)
        for function in (fitted, fitted.noise, score):
            padded = function(new["input_ids"][:1], new["attention_mask"][:1])
            short = function(new["input_ids"][:1, : LENGTHS[0]], attention_mask=MASK[:1, : LENGTHS[0]])
            torch.testing.assert_close(padded, short, atol=1e-5, rtol=1e-5)


def test_a_network_may_select_rows_after_its_last_layer():
    head = BayesianHead.fit(Last(), [batch(0)], progress=False)
    inputs = batch(1)
    inputs.pop("labels")
    with torch.no_grad():
        model = Last()
        hidden = torch.tanh(model.layer(model.tokens(inputs["input_ids"])))
    torch.testing.assert_close(head.features(**inputs), hidden[torch.arange(60), LENGTHS - 1])
    torch.testing.assert_close(head(**inputs), model(**inputs).detach().softmax(1), atol=0.1, rtol=0)


def test_entries_that_a_model_swallows_are_refused():
    class Swallowing(Text):
        def forward(self, input_ids, attention_mask, **others):
            return super().forward(input_ids, attention_mask)

    with pytest.raises(ValueError, match=r"not \['length'\]; leave those out"):
        BayesianHead.fit(Swallowing(), [batch(0) | {"length": LENGTHS}], progress=False)
