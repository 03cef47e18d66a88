"""The page on reliability shows what the campaigns stored, and says which of them are missing."""

import json

import reliability


def test_the_page_shows_the_results(monkeypatch, tmp_path):
    template = reliability.HERE / "reliability.md.jinja"
    monkeypatch.setattr(reliability, "HERE", tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / template.name).write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    assert reliability.page().count("are stored.") == 5  # nothing has been run
    counts = {".model": {"read": 7, "refused": 1200, "failed": 3}}
    files = {
        "cases": 1210,
        "bound_mb": 512,
        "peak_mb": 20.5,
        "counts": counts,
        "code": {"1234abcd": 1000, "5678abcd": 210},
    }
    (tmp_path / "results" / "fuzz_files.json").write_text(json.dumps(files))
    memory = {"fits": 500, "warm": 50, "mb_after_warm": 101.5, "mb_after_all": 102.5}
    (tmp_path / "results" / "memory.json").write_text(json.dumps(memory))
    shown = reliability.page()
    assert "| model file | 1,210 | 7 | 1,200 | 3 |" in shown
    assert "Code: `1234abcd` (1,000 cases), `5678abcd` (210 cases)." in shown
    assert "101.5 MB were resident after 50 fits and\n102.5 MB after all" in shown
