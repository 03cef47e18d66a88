"""
Two moons, with and without far-field variance
==============================================

The posterior of the last layer alone is confident far from the data: along a ray, mean and standard deviation of a ReLU
network's logit grow together. Far-field variance grows faster, so the confidence falls to one half.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons
from torch import nn

from enkbayes.evaluation import plots
from enkbayes.nets import BayesianHead

points, labels = make_moons(370, noise=0.2, random_state=0)
x, y = torch.as_tensor(points, dtype=torch.float32), torch.as_tensor(labels)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(250):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[:70]), y[:70]).backward()
    optimizer.step()

# %%
# Seventy points have trained the network; the 300 others are held out.

train, held_out = [(x[:70], y[:70])], [(x[70:], y[70:])]
plain = BayesianHead.fit(model, train, prior_precision=0.5, progress=False)
far_field = BayesianHead.fit(model, train, calibration=held_out, progress=False)
print(far_field.far_field_choice.message)


# %%
# The maps show the confidence; the lower row is zoomed out ten times.


def of_arrays(predict):
    """Return predictions for numpy arrays."""
    return lambda at: predict(torch.as_tensor(at, dtype=torch.float32)).detach()


methods = {
    "Trained network": lambda at: torch.softmax(model(at), dim=1),
    "Last-layer posterior": plain,
    "With far-field variance": far_field,
}
figure, axes = plt.subplots(2, 3, figsize=(9.5, 6), layout="constrained")
for column, (name, predict) in zip(axes.T, methods.items(), strict=True):
    for ax, zoom in zip(column, (1.0, 10.0), strict=True):
        plots.data_map(ax, of_arrays(predict), points[:70], labels[:70], zoom=zoom, resolution=60)
    column[0].set_title(name)
plt.show()

angle = torch.linspace(0, 6.28, 90)
circle = 30 * torch.stack([angle.cos(), angle.sin()], dim=1)
away = {name: float(of_arrays(predict)(circle).max(dim=1).values.mean()) for name, predict in methods.items()}
print(f"At distance 30 the mean confidence is {', '.join(f'{c:.2f} ({name})' for name, c in away.items())}.")
