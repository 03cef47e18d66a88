"""Files appear complete or not at all, in the right place, and no draft outlives its process for long."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

import enkbayes as eb
from enkbayes.storage import files
from enkbayes.storage.files import check_folder_writable, check_writable, replacing

HOLD = """
import sys, time
from enkbayes.storage.files import replacing
with replacing(sys.argv[1]) as draft:
    draft.write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writer(tmp_path):
    """A process in the middle of writing a file."""
    words = [sys.executable, "-c", HOLD, str(tmp_path / "theirs.txt")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "writing\n"
        yield process
        process.kill()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write(path, text="mine"):
    with replacing(path) as draft:
        draft.write_text(text)


def test_the_draft_of_a_killed_process_is_removed_by_the_next_one(writer, tmp_path):
    write(tmp_path / "mine.txt")
    assert len(names(tmp_path)) == 2  # the draft of a living process stays
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert len(names(tmp_path)) == 2
    write(tmp_path / "mine.txt")
    assert names(tmp_path) == ["mine.txt"]


def test_a_link_is_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link, target = tmp_path / "link.txt", tmp_path / "elsewhere" / "file.txt"
    link.symlink_to(target)
    for text in ("new", "again"):
        write(link, text)
        assert link.is_symlink()
        assert target.read_text() == text
    assert names(tmp_path / "elsewhere") == ["file.txt"]


def test_the_longest_names_can_be_written(tmp_path):
    name = "x" * 251 + ".txt"
    write(tmp_path / name)
    assert names(tmp_path) == [name]
    with pytest.raises(OSError, match=r"File name too long.*'.*x\.txt'"):
        check_writable(tmp_path / f"x{name}")


def test_pipes_devices_and_folders_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(OSError, match="is a pipe, a device or a broken link"):
            write(path)
    with pytest.raises(IsADirectoryError, match="expected the name of a file"):
        write(tmp_path)
    with pytest.raises(ValueError, match="null character"):
        write("a\0b")
    assert Path("/dev/null").is_char_device()


def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path):
    path = tmp_path / "file.txt"
    write(path, "old")

    def fill(draft):
        draft.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"file\.txt") as caught, replacing(path) as draft:
        fill(draft)
    assert caught.value.filename == str(path)
    assert (names(tmp_path), path.read_text()) == (["file.txt"], "old")


def test_errors_of_the_caller_stay_as_they_are(tmp_path):
    error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="Input/output") as caught, replacing(tmp_path / "file.txt"):
        raise error
    assert caught.value is error


def test_folders_are_probed_before_they_exist(tmp_path):
    check_folder_writable(tmp_path / "a" / "b")
    assert names(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file; expected a folder"):
        check_folder_writable(tmp_path / "file" / "b")


@pytest.mark.parametrize("probe", [check_writable, check_folder_writable])
def test_lost_permission_is_found(tmp_path, probe):
    """Root may write anywhere, so a child gives up its rights first."""
    tmp_path.chmod(0o555)
    script = (
        "import os, sys\n"
        f"from enkbayes.storage.files import {probe.__name__} as probe\n"
        "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: probe(sys.argv[1])\n"
        "except PermissionError as error: print('denied', error.filename)\n"
    )
    for folder in tmp_path.parents[:-1]:
        if folder.owner() == os.environ.get("USER", "root") and str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o555)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x")], capture_output=True, text=True, check=True
    )
    tmp_path.chmod(0o755)
    assert done.stdout.startswith("denied"), done.stderr


def test_a_finished_fit_survives_its_checkpoint(tmp_path):
    """A checkpoint that cannot be written any more is a warning, and the run continues."""
    X, y = load_iris(return_X_y=True)
    folder = tmp_path / "gone"
    folder.mkdir()
    problem, sampler = eb.Problem.create(X, y), eb.Homotopy(steps=4)
    whole = eb.run(problem, sampler, particles=30)

    def remove_folder(state):
        if state.steps == 1:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()

    for keep in (True, False):
        folder.mkdir(exist_ok=True)
        writer = eb.CheckpointWriter(folder / "run.safetensors", every=0, keep=keep, share=1e9)
        with pytest.warns(UserWarning, match="could not be written .*; the run continues"):
            found = eb.run(problem, sampler, particles=30, recorder=writer, callback=remove_folder)
        np.testing.assert_array_equal(found.theta, whole.theta)
    with pytest.raises(OSError, match="does not exist"):
        eb.run(problem, sampler, particles=30, recorder=eb.CheckpointWriter(tmp_path / "no" / "run"))


class Stop(BaseException):
    """What a handler of signals raises."""


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # files that the garbage collector closes
@pytest.mark.parametrize("job", [check_writable, write])
def test_a_signal_at_any_line_leaves_no_draft(job, tmp_path):
    """The k-th line of the module is interrupted, for every k until the write ends before."""

    def stop_at(k):
        left = k

        def trace(frame, event, _):
            nonlocal left
            if frame.f_code.co_filename != files.__file__:
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    raise Stop
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            job(tmp_path / "note.txt")
        except Stop:
            return True
        finally:
            sys.settrace(before)
        return left <= 0

    k = 1
    while stop_at(k):
        assert {path.name for path in tmp_path.iterdir()} <= {"note.txt"}, k
        k += 1
    assert k > 15
