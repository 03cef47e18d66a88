"""Processes that are killed, and disks that fail: is a file ever lost or half-written, does a run resume exactly?

    python benchmarks/faults.py [--kills 200] [--signals 40] [--results benchmarks/results/faults.json]

Each case forks a process that fits, predicts, saves, downloads or reproduces, and ends it with kill -9, SIGTERM or
Ctrl-C at a random moment of its usual duration. Then it looks at the files, runs the same action to its end and
compares the results, bit by bit, with those of a run that nobody disturbed. No draft may be left. The disk fails by a
limit on the size of files, by a small file system where one may be mounted, and by permissions that a process without
the rights of root lacks. The results are stored after every case, so that the same command resumes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from environment import sources

import enkbayes as eb
from enkbayes.__main__ import main as program
from enkbayes.reproduction import experiments
from enkbayes.reproduction.datasets.downloads import Archive, download
from enkbayes.reproduction.findings import Findings, Table, judged
from enkbayes.reproduction.results import read as read_result
from enkbayes.reproduction.sizes import BY_NAME as SIZES
from enkbayes.storage import checkpoint
from enkbayes.storage.files import PREFIX

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "faults.json"
SAMPLERS = ("equilibrium", "homotopy", "mean-field", "trotter")  # deterministic: they resume bit by bit
NOBODY = 65534
WRITER = checkpoint.CheckpointWriter
KILL, TERM, INTERRUPT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
CODES = {KILL: (-9,), TERM: (0, 143, -15), INTERRUPT: (0, 130)}  # -15 before the program handles signals


@dataclass(frozen=True)
class Action:
    """What a process does, and how its files are judged.

    run : does it in a folder
    whole : raises an AssertionError if a file in the folder is not as it was before or as it should become
    result : what the finished action has produced, for comparison
    """

    run: Callable[[Path], None]
    whole: Callable[[Path], None]
    result: Callable[[Path], Any]


# the actions


def prepare(folder: Path) -> None:
    """Write what the actions read."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 8))
    y = (X[:, 0] + 0.5 * X[:, 1] ** 2 + 0.5 * rng.standard_normal(300) > 0.3).astype(int)
    np.savez(folder / "train.npz", X=X, y=y)
    np.savez(folder / "new.npz", X=np.tile(X, (10, 1)))
    for seed in (1, 2):
        clf = eb.EnsembleClassifier(random_state=seed, particles=40, prior_precision=1.0).fit(X[:200], y[:200])
        clf.save(folder / f"model{seed}.safetensors")
    (folder / "archive").write_bytes(rng.bytes(400_000))
    (folder / "fetch.sh").write_text(
        f"head -c 200000 {folder}/archive > data.bin; sleep 0.05; cat {folder}/archive > data.bin"
    )


def command(*words: Any) -> None:
    """Run a command as the program does."""
    sys.argv = ["enkbayes", *map(str, words)]
    program()


def fit(sampler: str) -> Action:
    def run(folder: Path) -> None:
        often = functools.partial(WRITER, every=0.0, share=1e9)
        checkpoint.CheckpointWriter = often  # type: ignore[assignment,misc]
        words = ("--out", folder / "m.safetensors", "--checkpoint", folder / "run.safetensors", "--quiet")
        words += ("--prior-precision", "1.0", "--particles", 60, "--sampler", sampler)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            command("fit", DATA / "train.npz", "--target", "y", *words)

    def whole(folder: Path) -> None:
        if (folder / "m.safetensors").exists():
            eb.load(folder / "m.safetensors")
        if (folder / "run.safetensors").exists():
            checkpoint.Snapshot.read(folder / "run.safetensors")

    def result(folder: Path) -> Any:
        assert not (folder / "run.safetensors").exists(), "the checkpoint is left"
        return eb.load(folder / "m.safetensors").posterior_.theta.tobytes()

    return Action(run, whole, result)


def _predict(folder: Path) -> None:
    command("predict", DATA / "model1.safetensors", DATA / "new.npz", "--out", folder / "p.csv", "--quiet")


def _predicted(folder: Path) -> None:
    if (folder / "p.csv").exists():
        assert (folder / "p.csv").read_bytes() == REFERENCE["predict"], "predictions are half-written"


def _save(folder: Path) -> None:
    models = [eb.load(DATA / f"model{seed}.safetensors") for seed in (1, 2)]
    for _ in range(15):
        for model in models:
            model.save(folder / "m.safetensors")


def _saved(folder: Path) -> None:
    if (folder / "m.safetensors").exists():
        theta = eb.load(folder / "m.safetensors").posterior_.theta
        known = [eb.load(DATA / f"model{seed}.safetensors").posterior_.theta for seed in (1, 2)]
        assert any(np.array_equal(theta, other) for other in known), "another model"


def _download(folder: Path) -> None:
    os.environ["ENKBAYES_DATA"] = str(folder)
    content = (DATA / "archive").read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    download(Archive("data", ("sh",), str(DATA / "fetch.sh"), "data.bin", sha256, "try again"))


def _downloaded(folder: Path) -> None:
    if (folder / "data.bin").exists():
        assert (folder / "data.bin").read_bytes() == (DATA / "archive").read_bytes(), "the archive is half-written"


def _experiment(number: int) -> experiments.Experiment:
    def find(run: Any) -> Findings:
        rows = []
        for step in range(10):
            run.progress(step / 10, "computing")
            rows.append((step, float(np.random.default_rng((number, step)).standard_normal())))
            time.sleep(0.003)
        table = Table("numbers", "Numbers.", ("step", "value"), tuple(rows))
        return Findings((judged("numbers", "numbers", holds=True),), (table,))

    return experiments.Experiment(f"Experiment {number}", "Some numbers.", find, {"smoke": 1.0, "paper": 1.0})


NUMBERS = {f"numbers{i}": _experiment(i) for i in range(4)}


def _reproduce(folder: Path) -> None:
    experiments.reproduce(list(NUMBERS), SIZES["smoke"], folder / "out", experiments=NUMBERS)


def _reproduced(folder: Path) -> None:
    for path in (folder / "out").glob("*/result.json"):
        assert read_result(folder / "out", path.parent.name) is not None, f"{path} is half-written"
    report = folder / "out" / "report.html"
    assert not report.exists() or report.read_text().rstrip().endswith("</html>"), "the report is half-written"


def _results(folder: Path) -> Any:
    assert (folder / "out" / "report.html").exists()
    found = [read_result(folder / "out", name) for name in NUMBERS]
    tables = [(folder / "out" / name / "numbers.csv").read_text() for name in NUMBERS]
    return [result.tables for result in found if result is not None], tables


ACTIONS = {
    **{f"fit {sampler}": fit(sampler) for sampler in SAMPLERS},
    "predict": Action(_predict, _predicted, lambda folder: (folder / "p.csv").read_bytes()),
    "save": Action(_save, _saved, lambda folder: eb.load(folder / "m.safetensors").posterior_.theta.tobytes()),
    "download": Action(_download, _downloaded, lambda folder: (folder / "data.bin").read_bytes()),
    "reproduce": Action(_reproduce, _reproduced, _results),
}
DATA = Path()
REFERENCE: dict[str, Any] = {}
DURATION: dict[str, float] = {}


# processes that are ended


def start(job: Callable[[], None], log: Path) -> int:
    """Run a job in a process of its own, with its standard error in a file; return its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 0
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # which a shell takes from what it starts in the background
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)  # pytest has others
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        with Path(os.devnull).open("wb") as null:
            os.dup2(null.fileno(), 1)
        job()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # noqa: BLE001
        sys.stderr.flush()
        os.write(2, f"Traceback: {type(error).__name__}: {error}\n".encode())
        code = 1
    sys.stderr.flush()
    os._exit(code)


def wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def drafts(folder: Path) -> list[str]:
    """Return the temporary files in a folder and below it."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.name.startswith((PREFIX, "tmp"))]


def reference(name: str, folder: Path) -> None:
    """Run an action undisturbed: its result, and how long it takes."""
    begin = time.monotonic()
    pid = start(lambda: ACTIONS[name].run(folder), folder / "log")
    code = wait(pid)
    assert code == 0, (name, code, (folder / "log").read_text())
    DURATION[name] = time.monotonic() - begin
    REFERENCE[name] = ACTIONS[name].result(folder)


def disturb(name: str, number: int, sign: int, rng: np.random.Generator, folder: Path) -> str:
    """End an action by a signal at a random moment; return "killed" or "finished", or raise an AssertionError."""
    action, log = ACTIONS[name], folder / "log"
    pid = start(lambda: action.run(folder), log)
    time.sleep(float(rng.uniform(0.0, DURATION[name])))
    os.kill(pid, sign)
    code = wait(pid)
    outcome = "finished" if code == 0 else "killed"
    assert code == 0 or code in CODES[signal.Signals(sign)], f"exit code {code}: {log}"
    action.whole(folder)
    said = log.read_text() if log.exists() else ""  # it may have been killed before its first line
    assert "Traceback" not in said, said
    left = drafts(folder)
    assert sign == KILL or not left, f"drafts after a signal: {left}"
    for _ in range(20):  # the client of a download may outlive the process that was killed
        pid = start(lambda: action.run(folder), log)
        code = wait(pid)
        assert code == 0, f"the next run failed, {code}: {log.read_text()}"
        left = drafts(folder)
        if not left:
            break
        time.sleep(0.1)
    assert not left, f"drafts after the next run: {left}"
    assert action.result(folder) == REFERENCE[name], "another result than undisturbed"
    return outcome


# disks that fail


def full_disk(limit: Callable[[Path], None]) -> Callable[[str, Path], None]:
    """Return a check of an action whose files do not fit: one sentence, the old file stays, nothing is left."""

    def check(name: str, folder: Path) -> None:
        def run() -> None:
            limit(folder)
            ACTIONS[name].run(folder)

        old = folder / {"predict": "p.csv", "save": "m.safetensors"}.get(name, "m.safetensors")
        old.write_bytes(b"old")
        before = sorted(path.name for path in folder.iterdir())
        code = wait(start(run, folder / "log"))
        said = (folder / "log").read_text()
        assert code != 0, "it claims to have succeeded"
        assert "File too large" in said or "No space left" in said, said
        assert str(old) in said, f"the file is not named: {said}"
        assert "Traceback" not in said.replace("Traceback: OSError", ""), said
        assert old.read_bytes() == b"old", "the old file is lost"
        assert {path.name for path in folder.iterdir()} - {"log"} == set(before) - {"log"}, list(folder.iterdir())

    return check


def small_files(_: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))


def nobody(folder: Path) -> None:
    """Give up the rights of root, which permissions do not bind."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def denied(name: str, folder: Path) -> None:
    """Check an action in a folder where it may not write: refused before any work, in one sentence."""
    folder.chmod(0o555)

    def run() -> None:
        nobody(folder)
        eb.EnsembleClassifier.fit = lambda *_, **__: os._exit(77)  # type: ignore[method-assign,assignment]
        ACTIONS[name].run(folder)

    with tempfile.TemporaryDirectory() as other:
        code = wait(start(run, Path(other) / "log"))
        said = (Path(other) / "log").read_text()
    assert code == 2, f"exit code {code}: {said}"
    assert "Permission denied" in said, said
    assert said.count("\n") == 1, said
    assert not list(folder.iterdir())


def lost(name: str, folder: Path) -> None:
    """Check a fit whose checkpoint loses its folder's permission: the fit continues with a warning."""
    inside = folder / "checkpoints"
    inside.mkdir()
    for path in (folder, inside):
        path.chmod(0o777)
    sampler = name.partition(" ")[2]

    def run() -> None:
        nobody(folder)
        taken = WRITER.__call__

        def call(self: Any, state: Any) -> None:
            taken(self, state)
            if state.steps >= 2:
                inside.chmod(0o555)

        WRITER.__call__ = call  # type: ignore[method-assign]
        often = functools.partial(WRITER, every=0.0, share=1e9)
        checkpoint.CheckpointWriter = often  # type: ignore[assignment,misc]
        inside.chmod(0o777)
        words = ("--out", folder / "m.safetensors", "--checkpoint", inside / "run.safetensors", "--sampler", sampler)
        command("fit", DATA / "train.npz", "--target", "y", "--prior-precision", "1.0", "--particles", 60, *words)

    os.chown(inside, NOBODY, NOBODY)
    with tempfile.TemporaryDirectory() as other:
        code = wait(start(run, Path(other) / "log"))
        said = (Path(other) / "log").read_text()
    assert code == 0, f"exit code {code}: {said}"
    assert "could not be written (Permission denied); the run continues" in said, said
    assert eb.load(folder / "m.safetensors").posterior_.theta.tobytes() == REFERENCE[name], "another result"


def disk_checks() -> dict[str, Callable[[Path], None]]:
    """Return the checks by name."""
    found: dict[str, Callable[[Path], None]] = {}
    for name in ("predict", "save", "fit homotopy"):
        found[f"file size limit: {name}"] = functools.partial(full_disk(small_files), name)
    for name in ("predict", "fit homotopy"):
        found[f"read-only folder: {name}"] = functools.partial(denied, name)
    for name in ("fit homotopy", "fit equilibrium"):
        found[f"permission lost: {name}"] = functools.partial(lost, name)
    return found


def on_small_disk(check: Callable[[Path], None], folder: Path) -> bool:
    """Run a check on a file system of 64 kB; return False where none may be mounted."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        return False
    try:
        (folder / "filling").write_bytes(bytes(52_000))
        check(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=False)
    return True


# the campaign


def campaign(
    kills: int, signals: int, results: Path | None, seed: int = 0, disks: Callable[[str], bool] = bool
) -> dict[str, Any]:
    """Run what has not been run, and return all results."""
    global DATA  # noqa: PLW0603
    state: dict[str, Any] = {"seed": seed, "cases": 0, "failures": [], "disk": {}}
    state |= {what: {} for what in ("killed", "finished", "SIGTERM", "SIGINT")}
    if results is not None and results.exists():
        state |= json.loads(results.read_text(encoding="utf-8"))
    state["enkbayes"] = eb.__version__
    code = sources()

    def store() -> None:
        if results is not None:
            draft = results.with_suffix(".draft")
            draft.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
            draft.replace(results)

    with tempfile.TemporaryDirectory() as data:
        DATA = Path(data)
        DATA.chmod(0o755)
        prepare(DATA)
        for action, what in ACTIONS.items():
            with tempfile.TemporaryDirectory() as folder:
                if action in ("fit homotopy", "predict"):  # so that a process without rights has nothing to import
                    with contextlib.suppress(SystemExit):
                        what.run(Path(folder))
                reference(action, Path(folder))
        for sign, wanted, key in ((KILL, kills, "killed"), (TERM, signals, "SIGTERM"), (INTERRUPT, signals, "SIGINT")):
            names = list(ACTIONS) if sign == KILL else [name for name in ACTIONS if name.startswith(("fit", "predict"))]
            while sum(state[key].values()) < wanted:
                end_one(state, sign, key, names[state["cases"] % len(names)])
                state["code"] = (ran := state.get("code", {})) | {code: ran.get(code, 0) + 1}
                store()
        for name, check in disk_checks().items():
            if disks(name):
                check_disk(state["disk"], name, check)
                store()
    return state


def end_one(state: dict[str, Any], sign: int, key: str, action: str) -> None:
    """Run one case and add it to the results."""
    number = state["cases"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcome = disturb(action, number, sign, np.random.default_rng((state["seed"], number)), Path(folder))
        except AssertionError as error:
            outcome = "failed"
            state["failures"].append({"case": number, "action": action, "signal": key, "what": str(error)})
    counts = state["finished" if outcome == "finished" else key]
    counts[action] = counts.get(action, 0) + 1
    state["cases"] += 1


def check_disk(found: dict[str, str], name: str, check: Callable[[Path], None]) -> None:
    """Run a check, and the same on a small file system, unless it has passed."""
    small = name.replace("file size limit", "full file system")
    for what in dict.fromkeys((name, small)):
        if found.get(what) == "passed":
            continue
        with tempfile.TemporaryDirectory() as folder:
            job = functools.partial(check if what == name else functools.partial(on_small_disk, check), Path(folder))
            found[what] = outcome_of(job)


def outcome_of(check: Callable[[], Any]) -> str:
    try:
        return "not permitted here" if check() is False else "passed"
    except AssertionError as error:
        return f"failed: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--signals", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    found = campaign(options.kills, options.signals, options.results, options.seed)
    print(json.dumps(found, indent=1))
    failed = bool(found["failures"]) or any(value.startswith("failed") for value in found["disk"].values())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
