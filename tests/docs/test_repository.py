"""The files around the package: workflows call make targets that exist, and the version is stated once."""

import re
from pathlib import Path

import enkbayes as eb

ROOT = Path(__file__).parents[2]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
WORKFLOWS = {path.stem: path.read_text(encoding="utf-8") for path in ROOT.glob(".github/workflows/*.yml")}


def commands(text):
    return re.findall(r"^ +- run: (.*)$", text, re.MULTILINE)


def test_workflows_call_the_targets_that_developers_call():
    called = {line for text in WORKFLOWS.values() for line in commands(text)}
    assert called - {"bash .ci/run"} == {f"make {name}" for name in ("test", "test-oldest", "test-newest", "docs")} | {
        f"make {name}" for name in ("typed", "test-dist", "links", "audit")
    }
    assert {line.removeprefix("make ") for line in called - {"bash .ci/run"}} <= TARGETS
    assert not re.search(r"run: \|", "".join(WORKFLOWS.values()))


def test_every_supported_python_is_tested_and_releases_are_published_without_a_password():
    assert '["3.11", "3.12", "3.13"]' in WORKFLOWS["test"]
    assert "id-token: write" in WORKFLOWS["release"]
    assert "secrets." not in WORKFLOWS["release"]


def test_ci_runs_targets_that_exist():
    lines = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    called = [line.removeprefix("make ") for line in lines if line.startswith("make ")]
    assert set(called) <= TARGETS
    assert called.index("docs") < called.index("test-browser")  # which opens the site


def test_the_version_is_stated_once_and_has_its_changes():
    version = re.escape(eb.__version__)
    assert re.search(rf"^## {version}\b", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    elsewhere = [*ROOT.glob("src/**/*.py"), ROOT / "pyproject.toml", ROOT / "CITATION.cff", ROOT / "README.md"]
    stated = [path.name for path in elsewhere if re.search(rf"\b{version}\b", path.read_text(encoding="utf-8"))]
    assert stated == ["_version.py"]
