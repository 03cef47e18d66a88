"""The page of `enkbayes predict --review`, opened and operated in headless Chromium as its reader would."""

import csv
import shutil

import numpy as np
import pytest
from playwright.sync_api import sync_playwright
from typer.testing import CliRunner

from enkbayes.cli import app

EVIL = "<img src=x onerror=alert(1)>"


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="enkbayes")
    assert result.exit_code == 0, result.stderr


@pytest.fixture(scope="module")
def review(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("review"), np.random.default_rng(0)
    rows = []
    for i in range(600):
        age, town = rng.normal(40, 10), rng.choice(["Bern", EVIL])
        kind = ["none", "mild", "severe"][int(np.digitize(age + 12 * (town == EVIL) + rng.normal(0, 6), [38, 50]))]
        rows.append([f"patient {i}", f"{age:.1f}", town, kind])
    rows[350][1] = "400"
    for name, some in (("train", rows[:300]), ("new", rows[300:])):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["id", "age", "town", "kind"], *some])
    model = folder / "m.safetensors"
    call("fit", folder / "train.csv", "--target", "kind", "--out", model, "--prior-precision", "1.0")
    words = ("--keep", "id", "--max-error", "0.15", "--review", folder / "review.html")
    call("predict", model, folder / "new.csv", "--out", folder / "p.csv", *words)
    with (folder / "p.csv").open() as file:
        return folder / "review.html", list(csv.DictReader(file))


@pytest.fixture(scope="module")
def chromium():
    program = shutil.which("chromium")
    assert program, "there is no chromium on the path; install it with: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=["desktop", "phone"])
def page(chromium, review, request):
    """The page without a network; nothing may go wrong on it."""
    width, height = request.param
    context = chromium.new_context(offline=True, viewport={"width": width, "height": height})
    opened, wrong = context.new_page(), []
    opened.on("console", lambda said: wrong.append(said.text) if said.type in {"error", "warning"} else None)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    own = review[0].as_uri()
    opened.on("request", lambda asked: None if asked.url.startswith(own) else wrong.append(f"asked: {asked.url}"))
    opened.goto(own, wait_until="load")
    yield opened
    assert wrong == []
    context.close()


def column(page, title):
    """The cells of a column, from top to bottom."""
    heads = [head.strip() for head in page.locator("#rows thead th").all_inner_texts()]
    heads = [head.rstrip(" ▲▼") for head in heads]
    place = heads.index(title) + 1
    return page.locator(f"#rows tbody tr:not(.detail) td:nth-child({place})").all_inner_texts()


def sort_by(page, title):
    page.locator("#rows thead button").filter(has_text=title).first.click()


def test_the_counts_are_those_of_the_file(page, review):
    accepted = sum(row["decision"] != "abstain" for row in review[1])
    assert page.locator("#accepted").inner_text() == str(accepted)
    assert page.locator("#acceptance tbody tr").count() == 5
    assert page.locator("#status").inner_text() == "300 rows, 100 of them shown"
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_rows_can_be_sorted(page, review):
    assert column(page, "row")[0] == "51"  # the one that is unlike the training rows
    sort_by(page, "confidence")
    shown = [float(cell.rstrip(" %")) for cell in column(page, "confidence")]
    assert shown == sorted(shown)
    assert shown[0] == pytest.approx(100 * min(float(row["confidence"]) for row in review[1]), abs=0.06)
    sort_by(page, "confidence")
    shown = [float(cell.rstrip(" %")) for cell in column(page, "confidence")]
    assert shown == sorted(shown, reverse=True)
    sort_by(page, "row")
    assert column(page, "row")[:3] == ["1", "2", "3"]
    page.get_by_role("button", name="Show more rows").click()
    assert len(column(page, "row")) == 200


def test_rows_can_be_searched(page, review):
    page.get_by_label("Search").fill("patient 42")
    assert set(column(page, "id")) == {f"patient 42{i}" for i in range(10)}
    page.get_by_label("Search").fill("=17")
    assert column(page, "row") == ["17"]
    assert column(page, "id") == [review[1][16]["id"]]
    page.get_by_label("Search").fill("no such text")
    assert page.locator("#status").inner_text() == "0 rows"
    page.get_by_label("Search").fill(EVIL)
    assert column(page, "row")


def test_a_row_opens_and_shows_what_speaks_for_and_against(page, review):
    page.get_by_label("Search").fill("=51")
    button = page.get_by_role("button", name="reasons for row 51")
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    reasons = page.locator("tr.detail table tr")
    heads, first = reasons.nth(0).inner_text(), reasons.nth(1).inner_text()
    assert f"speaks for {review[1][50]['class']} rather than" in heads
    assert first.split("\t")[:2] == ["age", "400"]
    assert "for" in first
    assert "±" in first
    button.click()
    assert page.locator("tr.detail").count() == 0
