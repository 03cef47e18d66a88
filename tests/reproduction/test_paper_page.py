"""The report of `enkbayes reproduce`: everything is on the page, and no text can break it."""

import base64
import math
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from enkbayes.reproduction import results
from enkbayes.reproduction.findings import IN_PART, NOT_REPRODUCED, REPRODUCED, Claim, Drawing, Findings, Setting, Table
from enkbayes.reproduction.report import MINUS, NOTHING, SMOKE, TIMES, anchor, column, report_page, summary

matplotlib = pytest.importorskip("matplotlib.figure")
pytest.importorskip("jinja2")

VOID = {"meta", "img", "br", "hr", "input", "link"}


class Page(HTMLParser):
    """A page whose elements must be closed in the order in which they were opened."""

    def __init__(self, page):
        super().__init__()
        self.open, self.starts, self.texts, self.errors = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.starts.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.starts.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.errors.append((tag, self.getpos()))

    def handle_data(self, data):
        if "style" not in self.open and "script" not in self.open:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def all(self, tag):
        return [attrs for name, attrs in self.starts if name == tag]

    def badges(self):
        return [attrs["class"].split()[1] for attrs in self.all("span") if attrs.get("class", "").startswith("badge ")]


def made(out, name="moons", *, mark="", size="paper", verdicts=(REPRODUCED, NOT_REPRODUCED), **other):
    """Write a result in which every text ends with the mark, and return it."""
    figures = [matplotlib.Figure(figsize=inches) for inches in ((2, 1), (9, 3))]
    findings = Findings(
        claims=tuple(Claim(f"said {i}{mark}", f"found {i}{mark}", v, f"why {i}{mark}") for i, v in enumerate(verdicts)),
        tables=(Table("scores", f"scores caption{mark}", (f"method{mark}", "NLL"), ((f"MAP{mark}", 0.51239),)),),
        drawings=tuple(Drawing(f"f{i}", f, f"alt {i}{mark}", f"caption {i}{mark}") for i, f in enumerate(figures)),
        settings=(
            Setting(f"prior{mark}", f"one{mark}", "ours", f"reason{mark}"),
            Setting(f"net{mark}", f"small{mark}", "paper"),
        ),
        notes=(f"note{mark}",),
    )
    about = {
        "title": f"title {name}{mark}",
        "about": f"about{mark}",
        "key": "abc",
        "made": "2025-11-16T10:11:12",
        "seconds": 75.0,
        "versions": {"numpy": f"2.4.6{mark}"},
    }
    return results.write(out, findings, name=name, size=size, **about | other)


def test_the_page_contains_every_part_of_a_result(tmp_path):
    page = Page(report_page([made(tmp_path)], tmp_path, command="enkbayes reproduce --out there"))
    assert "The paper, reproduced" in page.text
    assert (
        "Affine Invariant ensemble transform methods to improve predictive uncertainty in neural networks" in page.text
    )
    words = "title moons|about|said 0|found 1|why 1|scores caption|MAP|0.5124|caption 0|prior|one|ours|reason|net|small"
    words += "|note|numpy 2.4.6|enkbayes reproduce --out there|2025-11-16|1 min 15 s|paper size"
    words += "|moons/result.json|moons/scores.csv|moons/f0.png"
    assert [word for word in words.split("|") if word not in page.text] == []
    assert "prior one ours reason net small paper" in page.text  # the table of settings


def test_every_text_is_escaped_and_tags_nest(tmp_path):
    mark = '<b class="evil">&amp\''
    result = made(tmp_path, mark=mark)
    page = report_page([result], tmp_path, command=f"run{mark}", missing={f"lost{mark}": f"gone{mark}"})
    parsed = Page(page)
    assert "<b class" not in page
    assert parsed.all("b") == []
    assert parsed.errors == []
    assert parsed.open == []
    words = "title moons|about|said 0|found 0|why 0|scores caption|method|MAP|caption 1|prior|one|reason|net|small|note"
    for word in (*words.split("|"), "numpy 2.4.6", "run", "lost", "gone"):
        assert word + mark in parsed.text, word
    assert [image["alt"] for image in parsed.all("img")] == [f"alt {i}{mark}" for i in range(2)]


def test_every_picture_is_part_of_the_page_with_its_size(tmp_path):
    shown = [made(tmp_path, name) for name in ("moons", "cifar")]
    images = Page(report_page(shown, tmp_path)).all("img")
    files = [tmp_path / result.name / picture.file for result in shown for picture in result.pictures]
    assert len(images) == len(files) == 4
    for image, file in zip(images, files, strict=True):
        kind, _, data = image["src"].partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data) == file.read_bytes()
    assert [(image["width"], image["height"]) for image in images[:2]] == [("220", "110"), ("990", "330")]


def test_the_page_refers_to_nothing_outside_itself(tmp_path):
    parsed = Page(report_page([made(tmp_path)], tmp_path))
    addresses = [value for _, attrs in parsed.starts for name, value in attrs.items() if name in {"href", "src"}]
    assert addresses
    assert [address for address in addresses if not address.startswith(("#", "data:"))] == []
    assert parsed.all("link") == []


def test_each_link_has_one_target_and_each_section_a_link(tmp_path):
    shown = [made(tmp_path, name) for name in ("moons", "cifar 10")]
    parsed = Page(report_page(shown, tmp_path, missing={"svhn": "It could not be downloaded."}))
    ids = [attrs["id"] for _, attrs in parsed.starts if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = {attrs["href"].removeprefix("#") for attrs in parsed.all("a")}
    assert links <= set(ids)
    sections = {attrs["id"] for attrs in parsed.all("section")}
    assert links == sections == {"summary", anchor("moons"), anchor("cifar 10"), anchor("svhn")}
    labels = {attrs["aria-labelledby"] for attrs in parsed.all("section")}
    assert labels <= set(ids)


def test_verdicts_have_a_text_and_a_colour(tmp_path):
    shown = [
        made(tmp_path, "all", verdicts=(REPRODUCED,)),
        made(tmp_path, "some", verdicts=(REPRODUCED, IN_PART)),
        made(tmp_path, "none", verdicts=(NOT_REPRODUCED,)),
        made(tmp_path, "silent", verdicts=()),
    ]
    parsed = Page(report_page(shown, tmp_path))
    overview, sections = ["good", "usable", "bad", "none"], ["good", "good", "usable", "good", "usable", "bad", "bad"]
    assert parsed.badges() == [*overview, *sections, "none"]
    assert "2 claims reproduced 1 claim reproduced in part 1 claim not reproduced" in parsed.text
    assert parsed.text.count("no claims") == 2


def test_smoke_results_are_marked(tmp_path):
    small, full = made(tmp_path, "small", size="smoke"), made(tmp_path, "full")
    text = Page(report_page([small, full], tmp_path)).text
    assert f"1 of 2 experiments ran at {SMOKE}." in text
    assert text.count(SMOKE) == 2
    assert f"Every experiment ran at {SMOKE}." in Page(report_page([small], tmp_path)).text
    assert SMOKE not in Page(report_page([full], tmp_path)).text


def test_the_page_explains_why_an_experiment_was_not_run(tmp_path):
    parsed = Page(report_page([], tmp_path, missing={"cifar": "CIFAR-10 could not be downloaded."}))
    assert parsed.text.count("CIFAR-10 could not be downloaded.") == 1
    assert parsed.badges() == ["none", "none"]
    assert "1 experiment not run" in parsed.text


def test_all_versions_are_named_when_they_differ(tmp_path):
    first = made(tmp_path, "first", versions={"numpy": "1.26", "torch": "2.4"}, made="2025-11-02")
    second = made(tmp_path, "second", versions={"numpy": "2.4"}, made="2025-11-16")
    text = Page(report_page([first, second], tmp_path)).text
    assert "numpy 1.26 / 2.4 · torch 2.4" in text
    assert "2025-11-02 to 2025-11-16" in text


def test_a_page_of_results_read_again_is_the_same(tmp_path):
    table = Table("odd", "odd", ("x",), ((math.nan,), (np.float64(0.5),), (np.int64(3),)))
    figures = Findings((Claim("a", "b", REPRODUCED),), (table,))
    about = {"title": "t", "about": "a", "size": "paper", "key": "k", "made": "2025-11-16", "seconds": 1.0}
    result = results.write(tmp_path, figures, name="odd", versions={}, **about)
    again = results.read(tmp_path, "odd")
    assert report_page([result], tmp_path) == report_page([again], tmp_path)


@pytest.mark.parametrize(
    "break_it", [lambda path: path.unlink(), lambda path: path.write_bytes(b"no picture at all, yes?")]
)
def test_a_missing_or_damaged_picture_is_named(tmp_path, break_it):
    result = made(tmp_path)
    break_it(tmp_path / "moons" / "f1.png")
    with pytest.raises(
        (FileNotFoundError, ValueError), match=r"f1\.png of the report is .*run enkbayes reproduce again"
    ):
        report_page([result], tmp_path)


def test_the_markdown_page_has_the_same_content_in_lines_of_at_most_120_characters(tmp_path):
    long = "with J > D the error = 0.1 ± 0.2 * 3 - 4 + 5 # 6 " * 20
    result = made(tmp_path, verdicts=(REPRODUCED, NOT_REPRODUCED), about=long)
    result = replace(result, claims=tuple(replace(claim, found=long, why=long) for claim in result.claims))
    page = summary([result], command="enkbayes reproduce --out there", missing={"svhn": f"It is gone. {long}"})
    lines = page.splitlines()
    assert max(map(len, lines)) <= 120
    assert not [line for line in lines if line.lstrip().startswith(("> ", "+ ", "* ", "# 6", "= "))]
    words = "title moons|said 0|said 1|caption 0|note|numpy 2.4.6|enkbayes reproduce --out there|2025-11-16"
    assert [word for word in words.split("|") if word not in page] == []
    assert " ".join(page.split()).count(" ".join(long.split())) == 6  # about, found and why twice, the reason of svhn
    assert "| [title moons](#moons) | reproduced in part | 1 of 2 |" in lines
    assert "- **Reproduced.** said 0" in lines
    assert "- **Not reproduced.** said 1" in lines
    assert "![alt 0](moons/f0.png)" in lines


def test_long_tables_are_collapsed(tmp_path):
    result = made(tmp_path)
    long = Table("long", "long one", ("i",), tuple((i,) for i in range(31)))
    short = replace(long, rows=long.rows[:30])
    settings = 1
    assert len(Page(report_page([replace(result, tables=(short,))], tmp_path)).all("details")) == settings
    folded = Page(report_page([replace(result, tables=(long,))], tmp_path))
    assert len(folded.all("details")) == settings + 1
    assert "long one 31 rows" in folded.text


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        ([0.912345, 0.0521], "0.9123 0.0521"),
        ([0.5, 0.25, 0.0], "0.50 0.25 0.00"),
        ([-0.25, 12.3456, 3], "-0.25 12.35 3.00"),
        ([100.0, 20.0], "100 20"),
        ([1234.567, 98.7], "1235 99"),
        ([12345.6, 20000.0], "12,346 20,000"),
        ([1e-5, -2.5], "1.00 x 10⁻⁵ -2.50"),
        ([3.2e9, 0.0], "3.20 x 10⁹ 0"),
        ([5000.0, 0.123, 40000.5], "5000 0.123 40,000"),
        ([50, 10_000, -1], "50 10,000 -1"),
        ([None, math.nan, math.inf, 1.5], "_ _ _ 1.5"),
        ([True, False], "yes no"),
        ([np.float32(0.25), np.int64(2)], "0.25 2.00"),
        (["a", "", 0.1234567], "a _ 0.1235"),
    ],
)
def test_numbers_are_short_and_formatted_alike(cells, shown):
    typed = str.maketrans({NOTHING: "_", MINUS: "-", TIMES: "x"})
    assert " ".join(column("x", cells).cells).translate(typed) == shown
    assert not any(word.startswith("-") for word in column("x", cells).cells)


@pytest.mark.parametrize(
    ("cells", "right"),
    [
        ([1, 2.5, None], True),
        (["0.31 ± 0.02", "-1.2 (0.3)", ""], True),
        (["MAP", "2 layers"], False),
        ([1.0, "not measured"], False),
        ([None, None], False),
        ([], False),
    ],
)
def test_numbers_are_right_aligned_and_words_left_aligned(cells, right):
    assert column("x", cells).right is right
