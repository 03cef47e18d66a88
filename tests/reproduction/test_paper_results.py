"""Findings of an experiment as files: they are read back as written, and an interrupted run leaves no result."""

import csv
import json

import numpy as np
import pytest

from enkbayes.reproduction.findings import (
    IN_PART,
    NOT_REPRODUCED,
    REPRODUCED,
    Claim,
    Drawing,
    Findings,
    Setting,
    Table,
    judged,
    overall,
)
from enkbayes.reproduction.results import RESULT, Picture, Result, read, write

ABOUT = {
    "name": "moons",
    "title": "Two moons",
    "about": "A network, and what it knows.",
    "size": "quick",
    "key": "abc123",
    "made": "2026-01-02",
    "seconds": 1.5,
    "versions": {"enkbayes": "0.1.0", "numpy": "2"},
}
CLAIMS = (
    Claim("it falls", "it falls by 3 %", REPRODUCED),
    Claim("it rises", "it stays — flat", NOT_REPRODUCED, "noise"),
)
TABLE = Table("errors", "Errors, by method", ("method", "error", "steps"), (("MAP, plain", 0.25, 3), ("ours", None, 4)))
SETTINGS = (Setting("particles", "100", "paper"), Setting("seeds", "3", "ours", "the paper gives none"))


class Figure:
    """A substitute for a matplotlib figure that writes a few bytes, or fails like a full disk."""

    def __init__(self, *, fails=False):
        self.fails = fails

    def savefig(self, path, **options):
        path.write_bytes(b"half of it")
        if self.fails:
            raise OSError("disk full")


def drawing(name="curve", **how):
    return Drawing(name, Figure(**how), "a curve that falls", "The error.")


def findings(**changes):
    return Findings(**{"claims": CLAIMS, "tables": (TABLE,), "settings": SETTINGS, "notes": ("a note",)} | changes)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_result_is_read_back_as_written(tmp_path):
    written = write(tmp_path / "out", findings(drawings=(drawing(), drawing("map"))), **ABOUT)
    found = read(tmp_path / "out", "moons")
    assert isinstance(found, Result)
    assert found == written
    assert found.tables == (TABLE,)
    assert found.claims == CLAIMS
    assert found.settings == SETTINGS
    assert found.pictures == tuple(
        Picture(f"{name}.png", "a curve that falls", "The error.") for name in ("curve", "map")
    )
    assert found.seconds == 1.5
    assert found.verdict == IN_PART
    assert sorted(content(tmp_path / "out" / "moons")) == ["curve.png", "errors.csv", "map.png", RESULT]


def test_numpy_numbers_are_numbers_and_non_finite_ones_are_null(tmp_path):
    rows = (
        ("a", np.float64(0.5), np.int64(3), np.float32(0.25), np.bool_(True)),
        ("b", np.nan, -np.inf, float("inf"), 1),
    )
    table = Table("numbers", "", ("name", "p", "q", "r", "s"), rows)
    write(tmp_path, findings(tables=(table,)), **ABOUT | {"seconds": np.float64(2.0)})
    text = (tmp_path / "moons" / RESULT).read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text)["tables"][0]["rows"] == [["a", 0.5, 3, 0.25, True], ["b", None, None, None, 1]]
    found = read(tmp_path, "moons")
    assert found.tables[0].rows[1] == ("b", None, None, None, 1)
    assert type(found.tables[0].rows[0][2]) is int
    assert found.seconds == 2.0


def test_a_table_is_a_csv_file(tmp_path):
    write(tmp_path, findings(), **ABOUT)
    raw = (tmp_path / "moons" / "errors.csv").read_bytes()
    assert raw == b'method,error,steps\n"MAP, plain",0.25,3\nours,,4\n'
    rows = list(csv.reader(raw.decode().splitlines()))
    assert rows == [["method", "error", "steps"], ["MAP, plain", "0.25", "3"], ["ours", "", "4"]]


@pytest.mark.parametrize("earlier", [False, True])
def test_a_drawing_that_fails_leaves_no_result(tmp_path, earlier):
    """An earlier result is removed too, because its tables and figures are no longer complete."""
    if earlier:
        write(tmp_path, findings(drawings=(drawing(),)), **ABOUT)
        assert read(tmp_path, "moons") is not None
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path, findings(drawings=(drawing("fine"), drawing(fails=True))), **ABOUT)
    names = set(content(tmp_path / "moons"))
    assert RESULT not in names
    assert "fine.png" in names
    assert names <= {"errors.csv", "fine.png", "curve.png"}  # no drafts
    assert ("curve.png" in names) is earlier
    assert read(tmp_path, "moons") is None


def test_a_value_json_cannot_hold_leaves_no_result(tmp_path):
    write(tmp_path, findings(), **ABOUT)
    with pytest.raises(TypeError):
        write(tmp_path, findings(notes=(object(),)), **ABOUT)
    assert read(tmp_path, "moons") is None
    assert sorted(content(tmp_path / "moons")) == ["errors.csv"]


def test_a_second_run_replaces_the_first(tmp_path):
    write(tmp_path, findings(), **ABOUT)
    write(tmp_path, findings(claims=CLAIMS[:1]), **ABOUT | {"key": "other"})
    found = read(tmp_path, "moons")
    assert found.key == "other"
    assert found.verdict == REPRODUCED


def test_the_same_findings_are_the_same_bytes(tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure as Real

    for folder in ("a", "b"):
        figure = Real(figsize=(1, 1))
        figure.add_subplot().plot([0, 1], [1, 0])
        write(tmp_path / folder, findings(drawings=(Drawing("curve", figure, "alt", "caption"),)), **ABOUT)
    first, second = content(tmp_path / "a" / "moons"), content(tmp_path / "b" / "moons")
    assert first["curve.png"].startswith(b"\x89PNG")
    assert b"Software" not in first["curve.png"]  # it would contain the version of matplotlib
    assert first == second


def test_a_missing_result_is_none(tmp_path):
    assert read(tmp_path, "moons") is None
    (tmp_path / "moons").mkdir()
    assert read(tmp_path, "moons") is None
    (tmp_path / "moons" / RESULT).mkdir()
    assert read(tmp_path, "moons") is None


@pytest.mark.parametrize(
    "text", [b"", b"{", b"null", b"3", b"[]", b'"text"', b"{}", b'{"claims": []}', b"\xff\xfe{}", b"not JSON"]
)
def test_damaged_or_foreign_json_is_none(tmp_path, text):
    write(tmp_path, findings(), **ABOUT)
    (tmp_path / "moons" / RESULT).write_bytes(text)
    assert read(tmp_path, "moons") is None


CHANGES = {
    "a field too few": lambda found: found.pop("key"),
    "a field too many": lambda found: found.update(surprise=1),
    "claims of text": lambda found: found.update(claims=["it falls"]),
    "a claim without a verdict": lambda found: found["claims"][0].pop("verdict"),
    "a table without rows": lambda found: found["tables"][0].pop("rows"),
    "rows of numbers": lambda found: found["tables"][0].update(rows=[1, 2]),
    "a picture too rich": lambda found: found["pictures"].append({"file": "a", "alt": "", "caption": "", "more": 1}),
    "notes of nothing": lambda found: found.update(notes=None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_result_of_another_form_is_none(tmp_path, change):
    write(tmp_path, findings(), **ABOUT)
    path = tmp_path / "moons" / RESULT
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found))
    assert read(tmp_path, "moons") is not None  # so only the change below matters
    CHANGES[change](found)
    path.write_text(json.dumps(found))
    assert read(tmp_path, "moons") is None


def test_a_result_cut_short_is_none_at_every_length(tmp_path):
    write(tmp_path, findings(), **ABOUT)
    path = tmp_path / "moons" / RESULT
    whole = path.read_bytes().rstrip()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert read(tmp_path, "moons") is None, length


def test_the_measurement_decides_the_verdict():
    paper, found = "it falls", "by 3 %"
    assert judged(paper, found, holds=True, why="unused") == Claim(paper, found, REPRODUCED, "")
    assert judged(paper, found, holds=True, partly=True) == Claim(paper, found, REPRODUCED, "")
    assert judged(paper, found, holds=False, partly=True, why="noise") == Claim(paper, found, IN_PART, "noise")
    assert judged(paper, found, holds=False, why="noise") == Claim(paper, found, NOT_REPRODUCED, "noise")


@pytest.mark.parametrize(
    ("verdicts", "together"),
    [
        ((REPRODUCED,), REPRODUCED),
        ((REPRODUCED, REPRODUCED), REPRODUCED),
        ((NOT_REPRODUCED, NOT_REPRODUCED), NOT_REPRODUCED),
        ((IN_PART, IN_PART), IN_PART),
        ((REPRODUCED, IN_PART), IN_PART),
        ((NOT_REPRODUCED, IN_PART), IN_PART),
        ((REPRODUCED, NOT_REPRODUCED), IN_PART),
        ((REPRODUCED, IN_PART, NOT_REPRODUCED), IN_PART),
    ],
)
def test_the_overall_verdict_is_whole_only_if_all_claims_agree(verdicts, together):
    assert overall(verdicts) == overall(verdicts[::-1]) == together
