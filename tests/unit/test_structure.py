"""The shape of the code base: layers, sizes, documentation."""

import ast
import inspect
from pathlib import Path

import enkbayes as eb

ROOT = Path(eb.__file__).parent
LAYERS = [
    "arrays",
    "gaussian",
    "moments",
    "ensemble",
    "expectations",
    "likelihoods",
    "logits",
    "labels",
    "problem",
    "samplers",
    "posterior",
    "start",
    "progress",
    "run",
    "theory",
    "informed",
    "exports",
    "metrics",
    "priors",
    "fingerprint",
    "header",
    "storage",
    "estimators",
    "artefacts",
    "nets",
    "plots",
    "tables",
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


def test_public_names_are_documented_with_an_example_or_a_formula():
    for name in eb.__all__:
        thing = getattr(eb, name)
        text = inspect.getdoc(thing)
        assert text, name
        assert len(text) > 40, name


def test_version_is_stated_once():
    assert eb.__version__.count(".") == 2


def test_the_readme_snippets_run(tmp_path, monkeypatch):
    text = (ROOT.parents[1] / "README.md").read_text()
    monkeypatch.chdir(tmp_path)
    for snippet in text.split("```python\n")[1:]:
        # what users copy must work
        exec(compile(snippet.split("```")[0], "README.md", "exec"), {})


def test_every_file_of_the_equation_map_exists():
    text = (ROOT.parents[1] / "docs" / "equations.md").read_text()
    for word in text.split("`"):
        if word.endswith(".py"):
            assert (ROOT / word).exists() or (ROOT.parents[1] / word).exists(), word
