"""A small share of `make faults`: processes are killed at random moments, and files may not grow."""

import sys

import faults
import pytest


@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.skipif(sys.platform != "linux", reason="forks processes and limits them")
def test_killed_processes_lose_nothing(monkeypatch):
    names = ("predict", "save", "download")
    monkeypatch.setattr(faults, "ACTIONS", {name: faults.ACTIONS[name] for name in names})
    found = faults.campaign(4, 0, None, seed=3, disks=lambda name: name == "file size limit: save")
    assert found["failures"] == []
    assert set(found["disk"].values()) <= {"passed", "not permitted here"}
    assert sum(found["killed"].values()) == 4
