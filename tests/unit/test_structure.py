"""The shape of the code base: layers, sizes, documentation."""

import ast
import inspect
import json
from pathlib import Path

import enkbayes as eb

ROOT = Path(eb.__file__).parent
LAYERS = [
    "arrays",
    "threads",
    "roots",
    "records",
    "containers",
    "gaussian",
    "moments",
    "processes",
    "complement",
    "ensemble",
    "expectations",
    "likelihoods",
    "linear_map",
    "row_logits",
    "logits",
    "nonlinear_logits",
    "labels",
    "problem",
    "row_files",
    "streams",
    "distributed",
    "map_estimate",
    "samplers",
    "posterior",
    "start",
    "snapshots",
    "checkpoints",
    "progress",
    "run",
    "theory",
    "informed",
    "advice",
    "exports",
    "metrics",
    "importance",
    "polish",
    "evidence",
    "propagation",
    "empirical_bayes",
    "leave_one_out",
    "calibration",
    "trust",
    "baselines",
    "priors",
    "fingerprint",
    "header",
    "storage",
    "aftercare",
    "fitting",
    "estimators",
    "artefacts",
    "nets",
    "plots",
    "report",
    "tables",
    "datasets",
    "compare",
    "paper",
    "demo",
    "cli",
    "__main__",
]


def modules():
    return sorted(ROOT.rglob("*.py"))


def layer(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(path):
    """The layers that a file imports when it is loaded."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("enkbayes."):
            yield node.module.split(".")[1]


def test_imports_run_downwards():
    for path in modules():
        own = layer(path)
        if own == "__init__":
            continue
        assert own in LAYERS, f"{path.name} has no place in the list of layers"
        for imported in imports(path):
            assert LAYERS.index(imported) <= LAYERS.index(own), f"{own} imports {imported}, which stands above it"


def test_files_fit_in_a_head():
    for path in modules():
        assert len(path.read_text().splitlines()) <= 320, path


def test_functions_fit_on_a_screen():
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                code = node.end_lineno - node.body[0].end_lineno  # without signature and docstring
                assert code <= 45, f"{path.name}: {node.name} has {code} lines"


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
