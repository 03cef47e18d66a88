"""The Python of the pages runs, as a reader would run it."""

import numpy as np
import pytest
from pages import DOCS, run_page
from sklearn import config_context

PARTS = ("how_to", "understand", "develop")
PAGES = [path.relative_to(DOCS).as_posix() for part in PARTS for path in sorted((DOCS / part).glob("*.md"))]
FRAGMENTS = {"how_to/figures.md", "results/acquisition.md"} | {
    f"understand/{name}.md" for name in ("priors", "trust", "uncertainty", "large")
}
"""Pages whose code takes the reader's own data and network for granted."""


@pytest.mark.parametrize("page", [page for page in PAGES if page not in FRAGMENTS])
def test_the_page_runs(page, tmp_path, monkeypatch):
    names = run_page(DOCS / page, tmp_path, monkeypatch)
    assert len(names) > 2 or "```python" not in (DOCS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted(FRAGMENTS))
@pytest.mark.filterwarnings("ignore")
def test_the_page_runs_with_data_and_a_network_of_the_reader(page, tmp_path, monkeypatch):
    torch, pd = pytest.importorskip("torch"), pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    with config_context():  # a page changes scikit-learn's configuration
        run_page(DOCS / page, tmp_path, monkeypatch, given=readers_names(torch, pd))


def readers_names(torch, pd):
    """Return data, loaders, a network and files under the names that the pages use, and what a reader has imported."""
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    import enkbayes as eb
    from enkbayes.nets import BayesianHead, BayesianNetwork, OODScore

    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3))
    y = (X[:, 0] + 0.05 * rng.logistic(size=300) > 0).astype(int)
    x, labels = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y)
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    model.add_module("blocks", torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4))))
    model.add_module("active", torch.nn.ReLU())
    model.add_module("head", torch.nn.Linear(3, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
    for name, array in {"features": X, "labels": y, "x-0": X, "y-0": y}.items():
        np.save(f"{name}.npy", array)
    np.savez("rows.npz", X=X, y=y)
    pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y).to_parquet("rows.parquet")
    imported = (eb.EnsembleClassifier, BayesianHead, BayesianNetwork, OODScore, Pipeline, StandardScaler)
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, y)
    return {each.__name__: each for each in imported} | {
        "eb": eb,
        "clf": clf,
        "sampler": eb.Equilibrium(),
        "proba": clf.predict_proba(X),
        "trained": np.ones(3),
        "model": model,
        "augment": lambda batch, generator: batch + 0.1 * torch.randn(batch.shape, generator=generator),
        **dict.fromkeys(("X", "X_val", "X_held_out", "my_features", "pool"), X),
        **dict.fromkeys(("y", "y_val", "y_held_out", "my_labels", "targets"), y),
        **{key: [(x, labels)] for key in ("loader", "train_loader", "held_out_loader")},
        "x": x,
    }
