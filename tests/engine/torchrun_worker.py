"""One process under torchrun, started by test_torchrun.py: runs commands one after the other, in the same processes.

Arguments: a JSON file with [{"words": [...], "lose": number or null, "after": count}, ...], a folder for what each of
them finds. The process `lose` kills itself before the sum over processes with the number `after`. NUMBER in a word
is that of the process, and the word "stream" a fit to rows in files, one for each process.
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

import enkbayes as eb
from enkbayes.cli import app
from enkbayes.engine import NpyRows, connect, sharded_rows

NUMBER, COUNT = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE"))
all_sum = sharded_rows.all_sum


def losing(after):
    """Return a sum over processes that kills this process when it is asked for the `after`-th time."""
    left = iter(range(after))

    def lost_sum(value):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return all_sum(value)

    return lost_sum


def stream(folder):
    """Fit to the rows in this process's file; the last of several has none in the second fit."""
    source = NpyRows(folder / f"x-{NUMBER}.npy", folder / f"y-{NUMBER}.npy", chunk=16)
    own = eb.Problem.stream(source, classes=range(3)).shard()
    some = eb.Problem.stream_sharded(source if NUMBER < COUNT - 1 else None)
    found = {name: eb.run(problem, particles=50).theta for name, problem in (("own", own), ("some", some))}
    np.savez(folder / f"stream-{NUMBER}.npz", **found)


def main(commands, folder):
    connect()
    for position, command in enumerate(commands):
        if command["words"] == ["stream"]:
            stream(folder)
            continue
        sharded_rows.all_sum = losing(command["after"]) if command.get("lose") == NUMBER else all_sum
        try:
            app([word.replace("NUMBER", str(NUMBER)) for word in command["words"]], prog_name="enkbayes")
        except SystemExit as ended:
            (folder / f"code-{position}-{NUMBER}.txt").write_text(str(ended.code or 0))
            if ended.code in (4, 143):  # a process is lost, so there is nothing left to do together
                raise
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
