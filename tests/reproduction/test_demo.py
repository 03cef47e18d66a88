"""The demo: its scores, its files, and its messages when something is missing."""

import ast
import base64
import html
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from enkbayes.cli import app


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="enkbayes")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    out = tmp_path_factory.mktemp("demo") / "new folder"
    result = call("demo", "--out", out, "--json")
    assert result.exit_code == 0, result.stderr
    return out, json.loads(result.stdout)


def test_confidence_falls_to_one_half_far_away_at_no_cost_near_the_data(demo):
    _, facts = demo
    network, temperature, posterior, far_field = facts["scores"].values()
    assert abs(far_field["accuracy"] - network["accuracy"]) <= 0.01
    assert far_field["nll"] <= temperature["nll"] + 0.005
    assert min(network["confidence"]) > 0.97
    assert posterior["confidence"][1] > 0.9
    assert far_field["confidence"][1] < 0.7
    assert far_field["confidence"][2] < 0.55


def test_picture_and_report_are_written_and_the_report_is_self_contained(demo):
    out, facts = demo
    assert sorted(path.name for path in out.iterdir()) == ["confidence.png", "report.html"]
    picture = (out / "confidence.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    report = (out / "report.html").read_text(encoding="utf-8")
    assert base64.b64encode(picture).decode() in report
    assert f"{facts['scores']['far-field variance']['confidence'][0]:.3f}" in report
    assert "http" not in report


def test_the_report_ends_in_commands_that_work(demo, tmp_path, monkeypatch):
    report = (demo[0] / "report.html").read_text(encoding="utf-8")
    steps = html.unescape(report.split("<h2>Next steps</h2>")[1])
    assert "<h2>" not in steps
    fit, predict, code = re.findall(r"<code>(.*?)</code>", steps, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((300, 2))
    rows = np.c_[x, x[:, 0] > 0].astype(str)
    Path("data.csv").write_text("\n".join(["a,b,label", *map(",".join, rows)]))
    Path("new.csv").write_text("\n".join(["a,b", *map(",".join, rows[:20, :2])]))
    for line in (fit, predict):
        program, *arguments = line.split()
        assert program == "enkbayes"
        result = call(*arguments)
        assert result.exit_code == 0, result.stderr
    assert Path("trust.html").is_file()
    assert Path("review.html").is_file()
    assert "decision" in Path("decisions.csv").read_text().splitlines()[0]
    ast.parse(code)


def test_the_printed_table(tmp_path):
    result = call("demo", "--out", tmp_path, "--steps", 20)
    assert result.exit_code == 0, result.stderr
    for words in ("trained network (MLE)", "far-field variance", "at 100", str(tmp_path / "report.html")):
        assert words in result.stdout.replace("\n", "") or words in result.stdout
    assert call("demo", "--out", tmp_path, "--steps", 20, "--quiet").output == ""


@pytest.mark.parametrize(
    ("module", "extra"), [("torch", "[torch]"), ("matplotlib.figure", "[plots]"), ("jinja2", "[plots]")]
)
def test_missing_extras_are_named(tmp_path, monkeypatch, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    result = call("demo", "--out", tmp_path / "demo")
    assert result.exit_code == 2
    assert extra in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "demo").exists()


def test_missing_pyarrow_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_bytes(b"")
    result = call("fit", tmp_path / "a.parquet", "--target", "y", "--out", tmp_path / "m.safetensors")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: parquet files need pyarrow; install it with: pip install")


def test_the_command_line_starts_without_heavy_libraries():
    heavy = ("torch", "sklearn", "matplotlib", "pyarrow")
    script = f"import sys, enkbayes.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
