"""Sentences of a language model as features: `EnsembleClassifier` is the head of SetFit."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import enkbayes as eb

transformers = pytest.importorskip("transformers")
setfit = pytest.importorskip("setfit")
pytestmark = pytest.mark.filterwarnings("ignore")

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    """A sentence transformer with random weights, for texts of the words w0 ... w59."""
    import torch
    from sentence_transformers import SentenceTransformer, models
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel

    folder = str(tmp_path_factory.mktemp("model"))
    words = {word: i for i, word in enumerate([*SPECIAL, *(f"w{i}" for i in range(60))])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    named = dict(zip(names, SPECIAL, strict=True))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    return SentenceTransformer(modules=[models.Transformer(folder), models.Pooling(32)], device="cpu")


def sentences(count, rng):
    """Texts of three classes; half of the words are typical of the class."""
    labels = np.arange(count) % 3
    texts = [" ".join(f"w{rng.integers(20) + 20 * rng.choice([c, rng.integers(3)])}" for _ in range(8)) for c in labels]
    return texts, labels


def test_eight_rows_of_each_class_are_predicted_better_than_by_logistic_regression(body, tmp_path):
    rng = np.random.default_rng(0)
    new, truth = sentences(150, rng)
    losses = {"ensemble": [], "logistic": []}
    for _ in range(6):
        texts, labels = sentences(24, rng)
        heads = {"ensemble": eb.EnsembleClassifier(random_state=0), "logistic": LogisticRegression()}
        for name, head in heads.items():
            model = setfit.SetFitModel(model_body=body, model_head=head)
            model.fit(texts, labels.tolist(), num_epochs=1)
            losses[name].append(log_loss(truth, np.asarray(model.predict_proba(new))))
            if name == "ensemble":
                found, kept = np.asarray(model.predict_proba(new)), model
    assert np.mean(losses["ensemble"]) < np.mean(losses["logistic"])
    kept.save_pretrained(tmp_path / "saved")
    again = setfit.SetFitModel.from_pretrained(str(tmp_path / "saved"))
    np.testing.assert_allclose(np.asarray(again.predict_proba(new)), found, atol=1e-6)
