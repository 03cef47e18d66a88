"""Models of Hugging Face, with the batches that their data loaders yield: one line, and padding does not count."""

import pytest
import torch
from torch.utils.data import DataLoader

from enkbayes.nets import BayesianHead, BayesianNetwork, OODScore

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 0}
ENCODER = SIZES | {"intermediate_size": 32, "max_position_embeddings": 40}
CONFIGS = {
    "bert": lambda K: transformers.BertConfig(**ENCODER, num_labels=K),
    "distilbert": lambda K: transformers.DistilBertConfig(
        vocab_size=50, dim=16, hidden_dim=32, n_layers=1, n_heads=2, num_labels=K
    ),
    "roberta": lambda K: transformers.RobertaConfig(**ENCODER, num_labels=K),
    "gpt2": lambda K: transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=1, n_head=2, num_labels=K, pad_token_id=0, bos_token_id=1, eos_token_id=2
    ),
    "llama": lambda K: transformers.LlamaConfig(**ENCODER, num_labels=K),
}


def model_of(name, K):
    torch.manual_seed(0)
    return transformers.AutoModelForSequenceClassification.from_config(CONFIGS[name](K))


def texts(count, K, seed, longest=9):
    """Rows of numbers of tokens, padded to the same length, with a mask and a label."""
    generator, rows = torch.Generator().manual_seed(seed), []
    for i in range(count):
        length = int(torch.randint(3, longest, (), generator=generator))
        tokens = torch.zeros(longest, dtype=torch.long)
        tokens[:length] = torch.randint(3, 50, (length,), generator=generator)
        mask = (torch.arange(longest) < length).long()
        rows.append({"input_ids": tokens, "attention_mask": mask, "labels": torch.tensor(i % K)})
    return rows


def loader(count, K, seed):
    return DataLoader(texts(count, K, seed), batch_size=20)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("K", [2, 3])
def test_padded_and_unpadded_rows_agree(name, K):
    head = BayesianHead.fit(model_of(name, K), loader(60, K, 1), calibration=loader(40, K, 2), progress=False)
    assert head.far_field.active
    score = OODScore.fit(head, loader(60, K, 1), progress=False)
    for row in texts(3, K, 3):
        padded = {key: value[None] for key, value in row.items() if key != "labels"}
        length = int(row["attention_mask"].sum())
        short = {key: value[:, :length] for key, value in padded.items()}
        for function, tolerance in ((head, 1e-5), (score, 1e-3)):
            torch.testing.assert_close(function(**padded), function(**short), atol=tolerance, rtol=0)


def test_predictions_are_those_of_the_model_where_the_posterior_is_narrow():
    model = model_of("bert", 3)
    batch = next(iter(loader(30, 3, 1)))
    head = BayesianHead.fit(model, [batch], progress=False)
    labels = batch.pop("labels")
    with torch.no_grad():
        expected = model.eval()(**batch).logits.softmax(dim=1)
    torch.testing.assert_close(head(**batch), expected, atol=0.1, rtol=0)
    network = BayesianNetwork.fit(model, [batch | {"labels": labels}], layers=["classifier"], rank=3, progress=False)
    torch.testing.assert_close(network(**batch), expected, atol=0.1, rtol=0)


def test_entries_that_the_model_would_ignore_are_refused():
    batch = next(iter(loader(20, 3, 1)))
    with pytest.raises(ValueError, match=r"not \['length'\]; leave those out of the batch"):
        BayesianHead.fit(model_of("bert", 3), [batch | {"length": torch.ones(20)}], progress=False)


def test_models_that_return_tuples_and_images():
    batch = next(iter(loader(20, 3, 1)))
    model = model_of("bert", 3)
    model.config.return_dict = False
    labels = batch.pop("labels")
    head = BayesianHead.fit(model, [batch | {"labels": labels}], output=0, progress=False)
    assert head(**batch).shape == (20, 3)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=3, **sizes)
    images = {"pixel_values": torch.randn(20, 3, 8, 8), "labels": labels}
    vit = transformers.AutoModelForImageClassification.from_config(config)
    assert BayesianHead.fit(vit, [images], progress=False)(images["pixel_values"]).shape == (20, 3)
