"""Damaged and malicious files: thousands of mutations of model files, checkpoints, .npz and .parquet files.

    python benchmarks/fuzz_files.py [--cases 20000] [--results benchmarks/results/fuzz_files.json]

A mutation flips, cuts, copies or inserts bytes, or edits the file as someone would who knows its format: the JSON
header of a model file or checkpoint, or its tensors, sealed again with a checksum that is right; the header of an array
inside an .npz. Reading it must either give a model that predicts probabilities, a run that resumes or a table, or raise
one error of ours. Nothing may be executed, no process may crash or hang, and memory stays below a bound.

Cases run in child processes with a limited address space; an audit hook watches for what files must never cause. The
results are stored after every batch, so that the same command resumes. A case depends on its number and --seed only.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from environment import sources
from safetensors import safe_open
from safetensors.numpy import load_file, save

import enkbayes as eb
from enkbayes.cli.tables import Preprocessing, Table, read
from enkbayes.storage.checkpoint import CheckpointWriter
from enkbayes.storage.container import checksum

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "fuzz_files.json"
OURS = Path(eb.__file__).parent
MEMORY = 512  # MB that reading a file of a few kB may allocate
SECONDS = 20  # that it may take
BATCH = 250  # cases in one child process
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pickle.find_class", "socket.")
KEPT = 40  # failures that are described

Rng = np.random.Generator
ROWS = np.random.default_rng(5).standard_normal((30, 3))
NASTY = (
    None, True, False, 0, -1, 3, 2**31, 2**63, 10**400, 1e308, -1e308, 1e-320, 0.5, "", "nan", "os.system", "x" * 1000,
    [], {}, [[]], {"number": "nan"}, {"number": "inf"}, {"tensor": "mean"}, {"tensor": "none"},
    {"type": "Gaussian", "fields": {}}, {"type": "os:system", "fields": {}}, {"dtype": "<U99999999", "values": ["a"]},
    {"dtype": "object", "values": [[1]]}, {"type": "Equilibrium", "fields": {"tol": "x"}},
)  # fmt: skip


# the files to mutate, by the way they are read


def seeds(folder: Path) -> dict[str, bytes]:
    """Return the content of valid files by name."""
    y = (ROWS[:, 0] + 0.3 * ROWS[:, 1] > 0).astype(int)
    three = np.digitize(ROWS[:, 0], [-0.5, 0.5])
    table = Table({"a": ROWS[:, 0], "b": np.array(["x", "y", "z"] * 10, dtype=object), "c": ROWS[:, 2]})
    preprocessing = Preprocessing.fit(table)

    fitted = eb.EnsembleClassifier(particles=20, random_state=0).fit(preprocessing.transform(table), y)
    _ = fitted.trust_
    fitted.save(folder / "a.model", preprocessing=preprocessing.to_json())
    eb.EnsembleClassifier(particles=20, random_state=0, prior_precision=1.0).fit(ROWS, three).save(folder / "b.model")
    eb.EnsembleClassifier(particles=4, random_state=0, prior_precision=2.0).fit(ROWS, three).save(folder / "c.model")
    eb.EnsembleClassifier(particles=20, random_state=0, far_field=True).fit(ROWS, y).save(folder / "e.model")
    labels = np.stack([y, three > 0], axis=1)
    eb.EnsembleClassifier(particles=20, random_state=0, prior_precision=1.0).fit(ROWS, labels).save(folder / "f.model")
    eb.EnsembleClassifier(particles=20, random_state=0, prior_precision=1.0, likelihood="ordinal").fit(
        ROWS, three
    ).save(folder / "g.model")
    eb.EnsembleRegressor(particles=20, random_state=0).fit(ROWS, ROWS[:, 0] + 0.1 * three).save(folder / "h.model")
    eb.save(eb.run(problem(), eb.Homotopy(steps=4), particles=12), folder / "d.model")
    for name, sampler in (("a", eb.Homotopy(steps=6)), ("b", eb.Equilibrium(tol=1e-12))):
        writer = CheckpointWriter(folder / f"{name}.run", every=0, keep=True, share=1e9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # stopped by the callback
            eb.run(problem(), sampler, particles=12, recorder=writer, callback=lambda state: state.steps >= 3)

    heads(folder, three)

    np.savez(folder / "a.npz", X=ROWS, y=y)
    np.savez_compressed(folder / "b.npz", X=np.asfortranarray(ROWS.astype(np.float32)), name=np.array(["u", "vv"] * 15))
    columns = {"a": ROWS[:, 0].tolist(), "t": ["u", None, "v"] * 10, "n": [*range(29), None]}
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), folder / "a.parquet")
    encoded = {"d": pyarrow.array(["p", "q"] * 15).dictionary_encode(), "b": pyarrow.array([True, False] * 15)}
    parquet.write_table(pyarrow.table(encoded), folder / "b.parquet", compression="gzip")
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def network(classes: int) -> Any:
    """Return the network that heads are fitted to."""
    from torch import nn, random

    with random.fork_rng():
        random.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, classes))


def heads(folder: Path, labels: Any) -> None:
    """Write files of heads and networks, if PyTorch is there."""
    try:
        import torch
    except ImportError:
        return
    from enkbayes.nets import BayesianHead, BayesianNetwork

    x, y = torch.as_tensor(ROWS, dtype=torch.float32), torch.as_tensor(labels)
    options: dict[str, Any] = {"particles": 12, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few rows
        BayesianHead.fit(network(3), [(x, y)], calibration=[(x, y)], **options).save(folder / "a.head")
        BayesianHead.fit(network(1), [(x, (y > 0).long())], **options).save(folder / "b.head")
        BayesianNetwork.fit(network(3), [(x, y)], rank=2, **options).save(folder / "a.net")


def problem() -> eb.Problem:
    """Return the problem of the posteriors and checkpoints."""
    return eb.Problem.create(ROWS, (ROWS[:, 0] + 0.3 * ROWS[:, 1] > 0).astype(int))


def use_model(path: Path) -> None:
    """Read a model and predict with it."""
    model = eb.load(path)
    features = model.n_features_in_ if hasattr(model, "n_features_in_") else model.map.features if model.map else 0
    if not 0 < features < 10**4:
        return
    if isinstance(model, eb.EnsembleRegressor):
        mean, std = model.predict(np.resize(ROWS, (7, features)), return_std=True)
        if not (np.all(np.isfinite(mean)) and np.all(np.isfinite(std)) and np.all(std >= 0)):
            raise AssertionError("what it predicts are no numbers")
        return
    if getattr(model, "likelihood_", None) is None and getattr(model, "likelihood", None) is not None:
        classes = getattr(model.likelihood, "n_classes", 2)
        if classes is None:  # real targets
            return
    x = np.resize(ROWS, (7, features))
    for proba in (model.predict_proba(x), model.sample_proba(x)):
        check_proba(proba, several=hasattr(model, "estimators_"))


def check_proba(proba: Any, *, several: bool = False) -> None:
    """Check the probabilities of classes, or of several labels, each of which may be there or not."""
    total = 1 if several else proba.sum(axis=-1)
    if not (np.all(proba >= 0) and np.all(proba <= 1) and np.allclose(total, 1, atol=1e-5)):
        raise AssertionError("what it predicts are no probabilities")


def use_module(path: Path) -> None:
    """Read a head or a network for each of the models that it may belong to, and predict with it."""
    import torch

    from enkbayes.nets import BayesianHead, BayesianNetwork

    kind = BayesianHead if path.suffix == ".head" else BayesianNetwork
    refusal: ValueError | None = None
    for classes in (3, 1):
        try:
            module = kind.load(path, network(classes))
        except ValueError as error:
            refusal = refusal or error
            continue
        with torch.no_grad():
            check_proba(module(torch.as_tensor(ROWS[:7], dtype=torch.float32)).numpy())
        return
    if refusal is not None:
        raise refusal


def use_checkpoint(path: Path) -> None:
    """Resume a run."""
    for sampler in (eb.Homotopy(steps=6), eb.Equilibrium(tol=1e-12)):
        try:
            found = eb.run(problem(), sampler, particles=12, recorder=CheckpointWriter(path, keep=True))
        except ValueError as error:
            if "sampler" in str(error) and "belongs to another run" in str(error):
                continue
            raise
        if not np.all(np.isfinite(found.theta)):
            raise AssertionError("the particles are not finite")


def use_table(path: Path) -> None:
    """Read a table and compute features from it."""
    table = read(path)
    features = Preprocessing.fit(table).transform(table)
    if not np.all(np.isfinite(features)):
        raise AssertionError("the features are not finite")


USES: dict[str, Callable[[Path], None]] = {
    ".model": use_model,
    ".head": use_module,
    ".net": use_module,
    ".run": use_checkpoint,
    ".npz": use_table,
    ".parquet": use_table,
}


# mutations


SEALED = {".model": "enkbayes", ".run": "enkbayes.checkpoint", ".head": "enkbayes.nets", ".net": "enkbayes.nets"}
"""Files with a header and a checksum, and the name of the header."""


def mutated(name: str, content: bytes, all_seeds: dict[str, bytes], rng: Rng) -> bytes:
    """Return a mutation of a file."""
    suffix = Path(name).suffix
    if suffix in SEALED and rng.random() < 0.6:
        return sealed_again(content, suffix, rng)
    if suffix == ".npz" and rng.random() < 0.5:
        return rezipped(content, rng)
    others = [other for other in all_seeds if other.endswith(suffix)]
    return bytewise(content, all_seeds[others[rng.integers(len(others))]], rng)


def bytewise(content: bytes, other: bytes, rng: Rng) -> bytes:
    """Flip, set, cut, insert, repeat or exchange bytes, a few times."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 6)):
        size, kind = max(len(data), 1), rng.integers(7)
        at = int(rng.integers(size)) if rng.random() < 0.6 else int(min(rng.geometric(0.02), size - 1))
        length = int(min(rng.geometric(0.1), size))
        if kind == 0 and data:
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[at : at + length] = rng.bytes(length)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = rng.bytes(length)
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            data[at : at + 8] = int(rng.choice([0, 1, 2**31, 2**63 - 1, 2**40])).to_bytes(8, "little")
        else:
            start = int(rng.integers(len(other)))
            data[at : at + length * 8] = other[start : start + length * 8]
    return bytes(data)


def sealed_again(content: bytes, suffix: str, rng: Rng) -> bytes:
    """Edit the header or the tensors of a file of ours, and give it a checksum that is right."""
    kind = SEALED[suffix]
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(content)
        with safe_open(file.name, framework="numpy") as opened:
            header = json.loads(opened.metadata()[kind])
        tensors = load_file(file.name)
    for _ in range(rng.integers(1, 4)):
        if rng.random() < 0.7:
            edit(header, rng)
        elif tensors:
            edit_tensor(tensors, rng)
    text = json.dumps(header)
    if rng.random() < 0.1:
        text = text.replace("0", str(rng.choice(["1e400", "-1e400", "NaN", "Infinity", "9" * 400])), 1)
    return save(tensors, metadata={kind: text, "sha256": checksum(text, tensors)})


def edit(document: Any, rng: Rng) -> None:
    """Change, remove, rename or add a random entry of a JSON document."""
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                collect(node[key])

    collect(document)
    if not places:
        return
    node, key = places[rng.integers(len(places))]
    kind = rng.integers(6)
    if kind <= 2:
        node[key] = copy.deepcopy(NASTY[rng.integers(len(NASTY))])
    elif kind == 3:
        other, at = places[rng.integers(len(places))]
        with_copy = copy.deepcopy(other[at])
        node[key] = with_copy
    elif kind == 4:
        del node[key]
    elif isinstance(node, dict):
        node[f"{key}x"] = node[key]
    elif isinstance(node[key], int | float):
        node[key] = node[key] * 10 ** int(rng.integers(1, 300))


def edit_tensor(tensors: dict[str, Any], rng: Rng) -> None:
    """Change the values, the shape, the dtype or the presence of a tensor."""
    name = sorted(tensors)[rng.integers(len(tensors))]
    kind, x = rng.integers(6), tensors[name].copy()
    if kind <= 1 and x.size:
        value = rng.choice([np.nan, np.inf, -np.inf, 1e308, -1e308, 1e200, 0.0, 1e-320, -1.0])
        with np.errstate(over="ignore", invalid="ignore"):
            x.flat[rng.integers(x.size)] = np.float64(value).astype(x.dtype)
    elif kind == 2:
        x = np.zeros(tuple(int(n) for n in rng.integers(0, 8, size=rng.integers(0, 4))), dtype=x.dtype)
    elif kind == 3:
        with np.errstate(over="ignore", invalid="ignore"):
            x = x.astype(rng.choice(["f4", "f8", "i8", "f2"]))
    elif kind == 4:
        with np.errstate(over="ignore"):
            x = np.asarray(x * 10.0 ** float(rng.integers(-300, 300)))
    else:
        del tensors[name]
        return
    tensors[name] = x


def rezipped(content: bytes, rng: Rng) -> bytes:
    """Change the arrays of an .npz file, inside a valid zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            data, kind = old.read(name), rng.integers(6)
            if kind == 0:
                data = bytewise(data, data, rng)
            elif kind == 1:
                shape = rng.choice(["(30, 3)", "(30,)"]).encode()
                other = rng.choice(
                    ["(10**9, 9)", "(99999999999, 3)", "(-1, 3)", "()", "(30, 0)", "(3, 30)", "(True,)", "x", "(2,2,2)"]
                )
                data = data.replace(shape, other.encode())
            elif kind == 2:
                descr = rng.choice(["|O", "<U999999", "|S0", "<c16", "<M8[s]", ">f8", "|V8", "<f2", "[('a','<f8')]"])
                data = data.replace(b"<f8", descr.encode()).replace(b"<i8", descr.encode())
            elif kind == 3:
                data = pickle.dumps(Malice())
            elif kind == 4:
                name = str(rng.choice(["X.npy", "y.npy", "../x.npy", "_", "X", "/etc/passwd", "a/b.npy"]))  # noqa: PLW2901
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                new.writestr(name, data)
    return out.getvalue()


class Malice:
    """An object whose unpickling would run a command."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


# running the cases


def run_case(number: int, seed: int, files: dict[str, bytes], folder: Path) -> tuple[str, str, str]:
    """Run a case and return the file's kind, what happened, and its description if that was wrong."""
    rng = np.random.default_rng((seed, number))
    name = sorted(files)[rng.integers(len(files))]
    path = folder / f"case{Path(name).suffix}"
    path.write_bytes(mutated(name, files[name], files, rng))
    suffix = path.suffix
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            USES[suffix](path)
        foreign = [w for w in caught if not issubclass(w.category, UserWarning)]
        if foreign:
            return suffix, "failed", f"{foreign[0].category.__name__}: {foreign[0].message} ({foreign[0].filename})"
    except (ValueError, ImportError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1].filename
        if type(error) is not ValueError or not Path(where).is_relative_to(OURS):
            return suffix, "failed", f"{type(error).__name__}: {error} ({where})"
        return suffix, "refused", ""
    except OSError as error:
        return suffix, "failed", f"{type(error).__name__}: {error}"
    except BaseException as error:  # noqa: BLE001
        where = traceback.extract_tb(error.__traceback__)[-1]
        return suffix, "failed", f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
    finally:
        signal.alarm(0)
    return suffix, "read", ""


def child(first: int, last: int, seed: int, files: dict[str, bytes], pipe: int) -> None:
    """Run some cases and report each, in a process of limited memory that may do nothing else."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a hang ends the process, wherever it is
    watched: list[str] = []
    sys.addaudithook(lambda event, _: watched.append(event) if event.startswith(FORBIDDEN) else None)
    with tempfile.TemporaryDirectory() as name, os.fdopen(pipe, "w") as out:
        start = memory()
        resource.setrlimit(resource.RLIMIT_AS, (start[0] + MEMORY * 2**20, resource.RLIM_INFINITY))
        for number in range(first, last):
            out.write(json.dumps([number, "", "begun", ""]) + "\n")
            out.flush()
            result = run_case(number, seed, files, Path(name))
            if watched:
                result = (result[0], "failed", f"executed: {watched}")
                watched.clear()
            out.write(json.dumps([number, *result]) + "\n")
        out.write(json.dumps([last, "", "memory", str((memory()[1] - start[1]) / 2**20)]) + "\n")


def memory() -> tuple[int, int]:
    """Return the size of the address space and the largest resident size, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def batch(first: int, last: int, seed: int, files: dict[str, bytes]) -> list[list[Any]]:
    """Run the cases of a batch, in more than one process if one of them crashes."""
    found: list[list[Any]] = []
    while first < last:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            try:
                child(first, last, seed, files, writer)
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as source:
            lines = [json.loads(line) for line in source if line.endswith("\n")]
        os.waitpid(pid, 0)
        found += [line for line in lines if line[2] != "begun"]
        if not lines or lines[-1][2] == "memory":
            break
        number = lines[-1][0]
        if lines[-1][2] == "begun":
            found.append([number, "", "failed", "the process crashed or took too long"])
        first = number + 1
    return found


def campaign(cases: int, seed: int, results: Path | None, seconds: float = 1e9) -> dict[str, Any]:
    """Run cases that have not been run, and return all results."""
    begun = time.monotonic()
    state: dict[str, Any] = {"seed": seed, "cases": 0, "counts": {}, "failures": [], "failed": 0, "peak_mb": 0.0}
    if results is not None and results.exists():
        before = json.loads(results.read_text(encoding="utf-8"))
        state = before if before["seed"] == seed else state
    state |= {"bound_mb": MEMORY, "enkbayes": eb.__version__}
    code = sources()
    with tempfile.TemporaryDirectory() as name:
        files = seeds(Path(name))
    for kind, use in USES.items():  # whatever a first use loads is not part of a case's memory
        for file, content in files.items():
            if file.endswith(kind):
                with tempfile.TemporaryDirectory() as name:
                    path = Path(name) / f"case{kind}"
                    path.write_bytes(content)
                    use(path)
    while state["cases"] < cases and time.monotonic() - begun < seconds:
        last = min(state["cases"] + BATCH, cases)
        counts = {kind: Counter(part) for kind, part in state["counts"].items()}
        for number, kind, outcome, words in batch(state["cases"], last, seed, files):
            if outcome == "memory":
                state["peak_mb"] = round(max(state["peak_mb"], float(words)), 1)
                continue
            counts.setdefault(kind or "crashed", Counter())[outcome] += 1
            if outcome == "failed":
                state["failed"] += 1
                state["failures"] = [*state["failures"], {"case": number, "kind": kind, "what": words}][:KEPT]
        ran = state.get("code", {})
        state["code"] = ran | {code: ran.get(code, 0) + last - state["cases"]}  # cases by the sources that they ran on
        state |= {"cases": last, "counts": {kind: dict(part) for kind, part in sorted(counts.items())}}
        if results is not None:
            draft = results.with_suffix(".draft")
            draft.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
            draft.replace(results)
    return state


def again(results: Path) -> None:
    """Run the failures once more, and mark those that have been mended."""
    state = json.loads(results.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name:
        files = seeds(Path(name))
    for failure in state["failures"]:
        with tempfile.TemporaryDirectory() as name:
            failure["mended"] = run_case(failure["case"], state["seed"], files, Path(name))[1] != "failed"
    results.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--cases", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--again", action="store_true", help="only run the failures once more, and mark the mended ones"
    )
    parser.add_argument("--case", type=int, help="run a single case in this process, to look at a failure")
    options = parser.parse_args()
    if options.again:
        again(options.results)
        return
    if options.case is not None:
        with tempfile.TemporaryDirectory() as name:
            files = seeds(Path(name))
        with tempfile.TemporaryDirectory() as name:
            print(run_case(options.case, options.seed, files, Path(name)))
        return
    found = campaign(options.cases, options.seed, options.results)
    print(json.dumps({key: found[key] for key in ("cases", "failed", "counts", "peak_mb", "bound_mb")}, indent=1))
    sys.exit(1 if found["failed"] else 0)


if __name__ == "__main__":
    main()
