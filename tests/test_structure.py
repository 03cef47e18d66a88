"""The shape of the code base: subpackages, imports, documentation."""

import ast
import inspect
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import enkbayes as eb

ROOT = Path(eb.__file__).parent
SUBPACKAGES = [
    "engine",  # how sums over rows are computed: array libraries, chunks, threads, float32, files, processes
    "core",  # the paper's objects: Gaussian, ensemble, likelihoods, logits, problem, posterior
    "solvers",  # numerical methods that samplers share
    "samplers",  # one algorithm a file, and the loop that runs them
    "inference",  # what is asked of a posterior: evidence, trust, polish, choice of the prior
    "storage",  # model files and checkpoints
    "estimators",  # scikit-learn
    "nets",  # PyTorch
    "evaluation",  # metrics, baselines, comparisons, plots, reports
    "reproduction",  # the paper's experiments and the demo
    "cli",  # commands and the tables they read and write
]
"""Every subpackage imports only from those before it."""


def module_name(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(name):
    """Return the modules of the package that a module imports anywhere: at its head, in functions, for types alone."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in MODULES}
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "enkbayes":
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            inside = submodules & MODULES.keys()
            found |= inside
            if submodules - inside:
                found.add(node.module)
    return found


def subpackage(name):
    return [*name.split("."), ""][1]


def test_the_package_has_the_subpackages_of_the_list_and_no_other():
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    files = {path.stem for path in ROOT.glob("*.py")}
    assert folders == set(SUBPACKAGES)
    assert files == {"__init__", "__main__", "_version"}


def test_subpackages_import_only_from_those_before_them():
    order = {"_version": -1} | {name: i for i, name in enumerate(SUBPACKAGES)}
    for name in MODULES:
        own = subpackage(name)
        if own in ("", "__main__"):
            continue
        for imported in imports(name):
            other = subpackage(imported)
            assert other in order, f"{name} imports {imported}, the package's own front door"
            assert order[other] <= order[own], f"{name} imports {imported}, above it"


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: imports(name) - {name} for name in MODULES if subpackage(name) not in ("", "__main__")}
    TopologicalSorter(graph).prepare()  # raises a CycleError that shows the circle


def test_importing_the_package_is_light():
    program = "import sys, enkbayes; print(*(name for name in sys.modules if name.startswith('enkbayes')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert len(loaded) <= 35, loaded


def test_every_public_name_has_a_runnable_example():
    import enkbayes.nets

    for module in (eb, enkbayes.nets):
        for name in set(module.__all__) - {"__version__"}:
            assert ">>>" in (inspect.getdoc(getattr(module, name)) or ""), name


def test_the_version_is_stated_once():
    stated = [path for path in ROOT.rglob("*.py") if f'"{eb.__version__}"' in path.read_text()]
    assert [path.name for path in stated] == ["_version.py"]
    assert f'"{eb.__version__}"' not in (ROOT.parents[1] / "pyproject.toml").read_text()


def test_every_file_of_the_equation_map_exists():
    text = (ROOT.parents[1] / "docs" / "understand" / "equations.md").read_text()
    for word in text.split("`"):
        if word.endswith(".py"):
            assert (ROOT / word).exists() or (ROOT.parents[1] / word).exists(), word
