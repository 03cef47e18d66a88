"""The shape of the code base: layers, sizes, documentation."""

import inspect
import json
from pathlib import Path

import enkbayes as eb

ROOT = Path(eb.__file__).parent


def test_every_public_name_has_a_runnable_example():
    import enkbayes.nets

    for module in (eb, enkbayes.nets):
        for name in module.__all__:
            assert ">>>" in (inspect.getdoc(getattr(module, name)) or ""), name


def test_figures_of_the_readme_are_those_of_the_study():
    results = json.loads((ROOT.parents[1] / "benchmarks/results/step_control.json").read_text())["two classes"]
    text = " ".join((ROOT.parents[1] / "README.md").read_text().split())
    medians = [f"{results[name]['steps, median']:g}" for name in ("MeanField", "Equilibrium")]
    assert f"a median of {medians[0]} and {medians[1]} evaluations" in text
    assert results["MeanField"]["converged"] == results["Equilibrium"]["converged"] == 1
    assert results["MeanField"]["problems"] == 1000


def test_version_is_stated_once():
    assert eb.__version__.count(".") == 2


def test_the_readme_snippets_run(tmp_path, monkeypatch):
    text = (ROOT.parents[1] / "README.md").read_text()
    monkeypatch.chdir(tmp_path)
    snippets = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    assert len(snippets) == 3  # scikit-learn, PyTorch, research; the command line's is run by its own tests
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), {})
    assert eb.load("model.safetensors").classes_.tolist() == [0, 1]


def test_every_file_of_the_equation_map_exists():
    text = (ROOT.parents[1] / "docs" / "equations.md").read_text()
    for word in text.split("`"):
        if word.endswith(".py"):
            assert (ROOT / word).exists() or (ROOT.parents[1] / word).exists(), word
