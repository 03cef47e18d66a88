"""
A tiny Hugging Face classifier
==============================

``BayesianHead.fit`` takes a Hugging Face model as it is: it finds the last layer, and reads batches that are dicts. The
model here is a BERT with one layer, trained from scratch on sentences of a made-up language, so nothing is downloaded.
It needs the library transformers; the site shows what ``make gallery`` has drawn.

.. image:: /images/hugging_face.png

.. literalinclude:: /images/hugging_face.txt
   :language: none
"""

# sphinx_gallery_thumbnail_path = 'images/hugging_face.png'

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from enkbayes.nets import BayesianHead, OODScore

ROOT = Path(__file__).parents[2]
GOOD, BAD, OTHER, UNUSED = range(5, 15), range(15, 25), range(25, 45), range(45, 60)
generator = np.random.default_rng(0)


def review(words=None):
    """Return a sentence of 12 words as a row: the label says whether more words are good than bad."""
    tone = generator.uniform()
    kinds = [GOOD if generator.uniform() < tone else BAD for _ in range(5)] + [OTHER] * 7
    tokens = [int(generator.choice(words or kind)) for kind in kinds]
    label = sum(token in GOOD for token in tokens) > sum(token in BAD for token in tokens)
    return {"input_ids": torch.tensor(generator.permutation(tokens)), "labels": torch.tensor(int(label))}


train = DataLoader([review() for _ in range(600)], batch_size=50)
held_out, test = (DataLoader([review() for _ in range(300)], batch_size=100) for _ in range(2))
unseen = DataLoader([review(UNUSED) for _ in range(300)], batch_size=100)

# %%
# Training, as for any model of the library.

torch.manual_seed(0)
sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(vocab_size=60, max_position_embeddings=20, num_labels=2, **sizes))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _ in range(8):
    for batch in train:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
model.eval()

# %%
# The posterior of its last layer, and a score for sentences unlike the training sentences.

head = BayesianHead.fit(model, train, calibration=held_out, progress=False)
score = OODScore.fit(head, train, calibration=held_out, progress=False)


def inputs(loader):
    """Yield what the model takes."""
    return [{"input_ids": batch["input_ids"]} for batch in loader]


with torch.no_grad():
    right = [head(**words).argmax(1) == full["labels"] for words, full in zip(inputs(test), test, strict=True)]
    accuracy = torch.cat(right).float().mean()
    doubt = [np.concatenate([score(**batch).numpy() for batch in inputs(loader)]) for loader in (test, unseen)]
figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
edges = np.histogram_bin_edges(np.concatenate(doubt), bins=40)
for name, values, colour in zip(("new sentences", "words never seen"), doubt, ("#0072b2", "#d55e00"), strict=True):
    ax.hist(values, edges, alpha=0.7, label=name, color=colour)
ax.set(xlabel="OODScore", yticks=[])
ax.legend(frameon=False)
figure.savefig(ROOT / "docs/images/hugging_face.png", dpi=90)
share = np.mean(doubt[1] > np.quantile(doubt[0], 0.95))
said = f"Accuracy {accuracy:.2f}; {share:.0%} of the sentences of unseen words score above 95 % of ordinary ones."
(ROOT / "docs/images/hugging_face.txt").write_text(said + "\n", encoding="utf-8")
print(said)
