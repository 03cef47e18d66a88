"""
An image network, and drawings it has never seen
================================================

A small convolutional network learns handwritten digits. Then it is shown drawings that are no digits. Its confidence
recognises many of them; ``OODScore``, which looks at all layers, recognises more.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import nn

from enkbayes.nets import BayesianHead, OODScore

digits, labels = load_digits(return_X_y=True)
images = torch.as_tensor(digits / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
y = torch.as_tensor(labels)

torch.manual_seed(0)
body = [nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
body += [nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
model = nn.Sequential(*body, nn.Linear(96, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(60):
    rows = torch.randint(1000, (200,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images[rows]), y[rows]).backward()
    optimizer.step()

# %%
# Lines, crosses, frames and triangles, drawn at random places.


def drawing(rng):
    """Return a picture (8, 8) of two or three strokes with blunt ends."""
    canvas = np.zeros((8, 8))
    corners = rng.uniform(0.5, 6.5, (rng.integers(2, 4), 2, 2))
    for start, end in corners:
        for t in np.linspace(0, 1, 20):
            row, column = start + t * (end - start)
            i, j = np.mgrid[:8, :8]
            canvas = np.maximum(canvas, np.clip(1.2 - np.hypot(i - row, j - column), 0, 1))
    return canvas


rng = np.random.default_rng(0)
drawings = torch.as_tensor(np.stack([drawing(rng) for _ in range(200)]), dtype=torch.float32)[:, None]

train, held_out, test = [(images[:1000], y[:1000])], [(images[1000:1400], y[1000:1400])], images[1400:]
head = BayesianHead.fit(model, train, calibration=held_out, progress=False)
score = OODScore.fit(head, train, calibration=held_out, progress=False)

# %%
# Both scores for 397 new digits and 200 drawings.

with torch.no_grad():
    doubt = {
        "1 - confidence": [1 - head(part).max(dim=1).values.numpy() for part in (test, drawings)],
        "OODScore": [score(part).numpy() for part in (test, drawings)],
    }
figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained", width_ratios=[1, 1.3, 1.3])
nine = np.pad(drawings[:9, 0].numpy(), [(0, 0), (1, 1), (1, 1)]).reshape(3, 3, 10, 10)
axes[0].imshow(np.block([list(row) for row in nine]), cmap="gray_r")
axes[0].set_title("drawings")
axes[0].set_axis_off()
areas = {}
for ax, (name, (inside, outside)) in zip(axes[1:], doubt.items(), strict=True):
    areas[name] = roc_auc_score(np.r_[0 * inside, 0 * outside + 1], np.r_[inside, outside])
    edges = np.histogram_bin_edges(np.r_[inside, outside], bins=25)
    ax.hist(inside, edges, alpha=0.7, density=True, label="digits", color="#0072b2")
    ax.hist(outside, edges, alpha=0.7, density=True, label="drawings", color="#d55e00")
    ax.set(title=f"AUROC {areas[name]:.2f}", xlabel=name, yticks=[])
axes[1].legend(frameon=False)
plt.show()

found = " and ".join(f"{100 * area:.1f} % by {name}" for name, area in areas.items())
print(f"Of all pairs of a drawing and a digit, the drawing looks more unusual in {found}.")
