"""Nothing opens a network connection unless it is asked to."""

import subprocess
import sys

SCRIPT = """
import sys

def refuse(event, arguments):
    if event.startswith(("socket.", "urllib.", "http.", "ftplib.", "smtplib.")) and event != "socket.gethostname":
        raise RuntimeError(f"network: {event} {arguments}")

sys.addaudithook(refuse)

import numpy as np
import enkbayes as eb
from enkbayes.cli.app import app

for name in eb.__all__:
    getattr(eb, name)
rng = np.random.default_rng(0)
X = rng.standard_normal((80, 3))
np.savez("data.npz", X=X, y=(X[:, 0] + rng.standard_normal(80) > 0).astype(int))

def call(*words):
    try:
        app([*words, "--quiet"], prog_name="enkbayes")
    except SystemExit as error:
        assert not error.code, words

call("fit", "data.npz", "--target", "y", "--out", "m.safetensors", "--prior-precision", "1", "--checkpoint", "run")
call("predict", "m.safetensors", "data.npz", "--out", "p.csv")
call("evaluate", "m.safetensors", "data.npz", "--target", "y")
call("show", "m.safetensors")
call("compare", "data.npz", "--target", "y", "--methods", "map,laplace")
eb.load("m.safetensors").predict_uncertainty(X)
print("done")
"""


def test_no_command_opens_a_socket(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("done\n"), done.stderr


def test_the_watch_sees_a_connection(tmp_path):
    script = SCRIPT.split("import numpy", 1)[0] + "import socket; socket.create_connection(('127.0.0.1', 9))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "RuntimeError: network: socket." in done.stderr
