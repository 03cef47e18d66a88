"""Fuzz cases of the command line: hostile tables, files and options, by `fit`, `predict` and `evaluate`."""

import gc
import gzip
import os
import sys
import tempfile
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import typer
from typer.testing import CliRunner

import enkbayes as eb
from enkbayes.cli import app
from fuzz.data import plain_rows
from fuzz.deviations import cases, takes_the_default
from fuzz.oracle import Broken, Refused, check_proba, is_ours, judged, require

CELLS = {
    "empty": "",
    "space": " ",
    "NA": "NA",
    "None": "None",
    "dash": "-",
    "question": "?",
    "inf": "inf",
    "minus inf": "-Infinity",
    "nan": "nan",
    "huge": "1e308",
    "too huge": "1e999",
    "tiny": "1e-320",
    "comma": "1,5",
    "thousands": "1,234.5",
    "hex": "0x10",
    "underscore": "1_000",
    "digits": "9" * 400,
    "text": "abc",
    "unicode": "Ω≈ç√",
    "arabic digits": "٣",
    "null byte": "a\0b",
    "newline": "a\nb",
    "quote": 'a"b',
    "formula": "=1+1",
    "markup": "[red]x[/red]",
    "surrogate": "\udcff",
    "escape": "\x1b[31m",
    "long": "x" * 10_000,
    "date": "2020-01-01",
    "true": "True",
}

FILES = {
    "csv": lambda frame, path: frame.to_csv(path, index=False, errors="surrogatepass"),
    "semicolons": lambda frame, path: frame.to_csv(path, index=False, sep=";", errors="surrogatepass"),
    "tabs": lambda frame, path: frame.to_csv(path, index=False, sep="\t", errors="surrogatepass"),
    "utf-16": lambda frame, path: frame.to_csv(path, index=False, encoding="utf-16", errors="replace"),
    "latin-1": lambda frame, path: frame.to_csv(path, index=False, encoding="latin-1", errors="replace"),
    "bom": lambda frame, path: frame.to_csv(path, index=False, encoding="utf-8-sig", errors="replace"),
    "cr": lambda frame, path: frame.to_csv(path, index=False, lineterminator="\r", errors="surrogatepass"),
    "no header": lambda frame, path: frame.to_csv(path, index=False, header=False, errors="surrogatepass"),
    "only header": lambda frame, path: frame[:0].to_csv(path, index=False),
    "cut": lambda frame, path: path.write_bytes(_bytes(frame)[:-7]),
    "cut in a quote": lambda frame, path: path.write_bytes(_bytes(frame) + b'1,2,"3'),
    "extra field": lambda frame, path: path.write_bytes(_bytes(frame) + b"1,2,3,4,5,6\n"),
    "index": lambda frame, path: frame.to_csv(path, errors="surrogatepass"),
    "shuffled index": lambda frame, path: frame.sample(frac=1, random_state=0).to_csv(path, errors="surrogatepass"),
    "commas in Europe": lambda frame, path: path.write_bytes(_bytes(frame).replace(b",", b";").replace(b".", b",")),
    "html": lambda frame, path: path.write_bytes(b"<!DOCTYPE html><html><body>404</body></html>"),
    "gzip": lambda frame, path: path.write_bytes(gzip.compress(_bytes(frame))),
    "blank lines": lambda frame, path: path.write_bytes(_bytes(frame).replace(b"\n", b"\n\n")),
    "nothing": lambda frame, path: path.write_bytes(b""),
    "zeros": lambda frame, path: path.write_bytes(bytes(300)),
    "noise": lambda frame, path: path.write_bytes(np.random.default_rng(0).bytes(2000)),
    "folder": lambda frame, path: path.mkdir(),
    "missing": lambda frame, path: None,
    "fifo": lambda frame, path: os.mkfifo(path),
    "link to nothing": lambda frame, path: path.symlink_to("nowhere"),
    "null device": lambda frame, path: path.symlink_to("/dev/null"),
    "npz": lambda frame, path: np.savez(path.open("wb"), X=_numbers(frame), y=frame["y"].to_numpy(str)),
    "npz of objects": lambda frame, path: np.savez(path.open("wb"), X=frame.to_numpy(object)),
    "npz of cubes": lambda frame, path: np.savez(path.open("wb"), X=np.zeros((24, 2, 2)), y=np.arange(24) % 2),
    "npz uneven": lambda frame, path: np.savez(path.open("wb"), X=np.zeros((24, 2)), y=np.arange(23) % 2),
    "npz with nan": lambda frame, path: np.savez(path.open("wb"), X=np.full((24, 2), np.nan), y=np.arange(24) % 2),
    "npy": lambda frame, path: np.save(path.open("wb"), _numbers(frame)),
    "parquet": lambda frame, path: frame.astype(str).to_parquet(path),
    "parquet of numbers": lambda frame, path: pd.DataFrame(
        {"a": _numbers(frame)[:, 0], "b": 1.0, "y": [0, 1] * (len(frame) // 2)}
    ).to_parquet(path),
    "parquet nested": lambda frame, path: pd.DataFrame({"y": [0, 1] * 12, "x": [[1, 2]] * 24}).to_parquet(path),
    "parquet dates": lambda frame, path: pd.DataFrame(
        {"y": [0, 1] * 12, "x": pd.date_range("2020", periods=24)}
    ).to_parquet(path),
}


def _bytes(frame):
    return frame.to_csv(index=False).encode("utf-8", errors="surrogatepass")


def _numbers(frame):
    first = frame["a"] if "a" in frame else pd.Series(np.arange(len(frame)))
    return np.asarray(pd.to_numeric(first, errors="coerce").fillna(0.0))[:, None] * [1.0, 2.0]


COLUMNS = {
    "text": lambda n, rng: rng.choice(["red", "blue"], n),
    "many categories": lambda n, rng: [f"id{i}" for i in range(n)],
    "constant": lambda n, rng: ["7"] * n,
    "empty": lambda n, rng: [""] * n,
    "gaps": lambda n, rng: np.where(rng.random(n) < 0.4, "", "1.5"),
    "huge": lambda n, rng: (1e300 * rng.standard_normal(n)).astype(str),
    "tiny": lambda n, rng: (1e-310 * rng.standard_normal(n)).astype(str),
    "far": lambda n, rng: (1e15 + rng.standard_normal(n)).astype(str),
    "mixed": lambda n, rng: np.where(rng.random(n) < 0.2, "x", "2"),
    "decimal commas": lambda n, rng: [f"{v:.3f}".replace(".", ",") for v in rng.standard_normal(n)],
    "thousands": lambda n, rng: [f"{1000 + i},{i:03d}" for i in range(n)],
    "units": lambda n, rng: [f"{i}.5 kg" for i in range(n)],
    "dates": lambda n, rng: [f"2020-01-{i % 28 + 1:02d}" for i in range(n)],
    "index": lambda n, rng: rng.permutation(n).astype(str),
    "mostly numbers": lambda n, rng: np.where(rng.random(n) < 0.3, "about 3", rng.standard_normal(n).astype(str)),
    "booleans": lambda n, rng: np.where(rng.random(n) < 0.5, "True", "False"),
    "copy of y": lambda n, rng: [str(i % 2) for i in range(n)],
}

TARGETS = {
    "three": lambda n, rng: rng.choice(["u", "v", "w"], n),
    "one": lambda n, rng: ["u"] * n,
    "gaps": lambda n, rng: np.where(rng.random(n) < 0.3, "", "u"),
    "numbers": lambda n, rng: rng.standard_normal(n).astype(str),
    "all different": lambda n, rng: [f"c{i}" for i in range(n)],
    "odd names": lambda n, rng: rng.choice(["a,b", 'q"', "\n", "[bold]"], n),
    "spellings": lambda n, rng: rng.choice(["Yes", "yes", "no"], n),
    "spaces": lambda n, rng: rng.choice([" u", "u", "u "], n),
    "floats": lambda n, rng: rng.choice(["1.0", "0.0", "1"], n),
    "one odd row": lambda n, rng: ["u"] * (n - 1) + ["v"],
}

OPTIONS = {
    "--particles": ["1", "0", "-5", "2", "3", "x", "2.5", "1e3", "12", ""],
    "--prior-precision": ["auto", "average", "0", "-1", "nan", "inf", "1e-300", "1e300", "x", "1e-12", ""],
    "--seed": ["-1", "x", "99999999999999999999", "1.5"],
    "--sweeps": ["2", "-1", "x"],
    "--sampler": ["homotopy", "mean-field", "stochastic", "trotter", "tamed-homotopy", "x", ""],
    "--target": ["z", "", "a", "Y"],
    "--out": ["m.txt", "no/m.safetensors", ".", "", "m", "x" * 300 + ".safetensors", "train.csv", "/dev/null"],
    "--checkpoint": ["c", "no/c", ".", "model.safetensors", ""],
}

ALSO = {
    "review": ["--review", "review.html"],
    "review elsewhere": ["--review", "no/review.html"],
    "keep": ["--keep", "a", "--keep", "extra"],
    "keep nothing": ["--keep", ""],
    "keep what is not there": ["--keep", "none such"],
    "max error": ["--max-error", "0.2"],
    "max error 0": ["--max-error", "0"],
    "max error nan": ["--max-error", "nan"],
    "json": ["--json"],
}

CHOICES = (
    OPTIONS
    | {"cell": list(CELLS), "header": list(CELLS), "train": list(FILES), "new": list(FILES), "column": list(COLUMNS)}
    | {"y": list(TARGETS), "new cell": list(CELLS), "strict": ["--strict"], "model": list(FILES)}
    | {"evaluate": ["new", "train", "show", "show in units", "ood"]}
    | {"predictions": ["p.csv", "p.parquet", "p.txt", "new.csv", "no/p.csv", ".", ""]}
    | {"extra": ["--no-such", "--json=3", "more", "--quiet", "--json"], "left out": ["a", "b", "y", "extra"]}
    | {"also": list(ALSO)}
)

strategy = cases(CHOICES, most=4)
ENDINGS = {"npz": ".npz", "npy": ".npz", "par": ".parquet"}


def table(case, rng, n=24):
    x, y, _ = plain_rows(case["seed"], n)
    frame = pd.DataFrame({"a": x[:, 0].astype(str), "b": x[:, 1].astype(str)})
    frame["extra"] = COLUMNS[case["column"]](n, rng) if "column" in case else x[:, 2].astype(str)
    frame["y"] = TARGETS[case["y"]](n, rng) if "y" in case else np.where(y > 0, "u", "v")
    frame = frame.astype(object)
    if "cell" in case:
        frame.loc[3:5, "a"] = CELLS[case["cell"]]
    if "header" in case:
        frame.columns = pd.Index([CELLS[case["header"]] if name == "b" else name for name in frame], dtype=object)
    return frame


def write(frame, folder, stem, kind):
    path = folder / (stem + ENDINGS.get(kind[:3], ".csv"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numpy and pandas, while the file is made
            FILES[kind](frame, path)
            gc.collect()
    except UnicodeError:  # pandas cannot write such a cell
        path.write_text("a,b,y\n1,2,u\n3,4,v\n")
    return path


def examine(case):
    """Run a case; see the oracle for what it may end with."""
    rng = np.random.default_rng(case["seed"])
    with judged(), tempfile.TemporaryDirectory() as name:
        folder, here = Path(name), Path.cwd()
        os.chdir(folder)
        try:
            session(case, rng, Path())
        finally:
            os.chdir(here)


def session(case, rng, folder):
    frame = table(case, rng)
    train = write(frame, folder, "train", case.get("train", "csv"))
    fresh = frame.drop(columns=[case["left out"]]) if case.get("left out") in frame else frame.copy()
    if "new cell" in case and "a" in fresh:
        fresh.loc[1:3, "a"] = CELLS[case["new cell"]]
    data = write(fresh, folder, "new", case.get("new", "csv")) if "new" in case or "left out" in case else train
    data = write(fresh, folder, "new", "csv") if "new cell" in case and "new" not in case else data
    model = folder / case.get("--out", "model.safetensors")
    words = ["fit", train, "--out", case.get("--out", "model.safetensors")]
    words += ["--target", case.get("--target", "y"), "--particles", case.get("--particles", "20")]
    if not takes_the_default(case):
        case = {"--prior-precision": "1", **case}
    for name in ("--prior-precision", "--seed", "--sweeps", "--sampler", "--checkpoint"):
        words += [name, case[name]] if name in case else []
    words += [case[name] for name in ("strict", "extra") if name in case]
    refusal = call(words)
    if refusal:
        require(not (folder / "model.safetensors").exists(), "an error, and still a model")
        raise Refused(refusal)
    require(model.is_file(), "no model was written")
    loaded = eb.load(model)
    check_proba(loaded.predict_proba(np.zeros((2, loaded.n_features_in_))))
    if "model" in case:
        model.unlink()
        model = write(frame, folder, "other", case["model"])
    out = case.get("predictions", "p.csv")
    refusal = call(["predict", model, data, "--out", out, *ALSO.get(case.get("also"), [])])
    if refusal:
        raise Refused(refusal)
    found = pd.read_parquet(out) if out.endswith("parquet") else pd.read_csv(out)
    check_proba(np.round(found[[c for c in found if c.startswith("p_")]].to_numpy(), 15))
    evaluate = ["evaluate", model, data if case.get("evaluate") == "new" else train, "--target", "y", "--json"]
    words = {
        "show": ["show", model],
        "show in units": ["show", model, "--original-units"],
        "ood": [*evaluate, "--ood", data],
    }.get(case.get("evaluate"), evaluate)
    refusal = call(words) if "evaluate" in case else None
    if refusal:
        raise Refused(refusal)


def call(words):
    """Run a command; return its error, if it is one of ours, or None."""
    behind = []

    class Exit(typer.Exit):
        def __init__(self, code=0):
            behind.append(sys.exc_info()[1])
            super().__init__(code)

    with mock.patch("enkbayes.cli.console.typer.Exit", Exit):
        result = CliRunner().invoke(app, [str(word) for word in words], prog_name="enkbayes")
    lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    require("Traceback" not in result.output, "a traceback")
    for sentence in ("encountered in", "Warning:", "deprecated"):
        require(sentence not in result.stderr, f"a warning that is not ours: {result.stderr}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code in (0, 3):
        return None
    require(result.exit_code == 2, f"exit code {result.exit_code}")
    require(len(lines) == 1 and lines[0].startswith("error: "), f"not one sentence: {result.stderr!r}")
    cause = behind[-1] if behind else None
    if cause is not None and not isinstance(cause, OSError | ImportError) and not is_ours(cause):
        raise Broken(f"{words[0]}: {type(cause).__name__}: {cause}")
    return lines[0]
