"""The report that `make test` leaves behind, opened in headless Chromium: wide and on a phone, light and dark.

ENKBAYES_REPORT names another report; a relative path counts from the root of the repository.
"""

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
SCREENS = {"desktop": DESKTOP, "phone": PHONE}

OVERFLOW = """() => ({
    page: document.documentElement.scrollWidth,
    window: document.documentElement.clientWidth,
    outside: [...document.querySelectorAll("main *")]
        .filter((part) => part.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
        .filter((part) => !part.closest("nav, .scroll, .paper, thead"))
        .map((part) => part.outerHTML.slice(0, 90)),
})"""
IMAGE = """(image) => {
    image.scrollIntoView({ block: "center" });
    const box = image.getBoundingClientRect(), style = getComputedStyle(image);
    return { alt: image.alt, complete: image.complete, natural: image.naturalWidth,
        width: box.width, height: box.height, filter: style.filter,
        paper: getComputedStyle(image.parentElement).backgroundColor };
}"""
IN_VIEW = """([link, bar]) => {
    const section = document.getElementById(decodeURIComponent(link.hash.slice(1)));
    const top = section.querySelector("h2").getBoundingClientRect().top;
    return top >= bar.getBoundingClientRect().bottom && top < window.innerHeight;
}"""
SETTLED = """() => new Promise((done) => {
    const bar = document.querySelector("nav ul"), place = () => `${bar.scrollLeft} ${window.scrollY}`;
    let before = place(), still = 0;
    const look = () => {
        still = place() === before ? still + 1 : 0;
        before = place();
        still < 10 ? setTimeout(() => requestAnimationFrame(look), 20) : done();
    };
    requestAnimationFrame(look);
})"""


def report():
    path = ROOT / os.environ.get("ENKBAYES_REPORT", "build/smoke/report.html")
    if not path.is_file():
        pytest.fail(f"there is no report at {path}; run `make test` first, which writes it", pytrace=False)
    return path


@pytest.fixture(scope="module")
def chromium():
    program = shutil.which("chromium")
    assert program, "there is no chromium on the path; install it with: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Open the report on a screen in a colour scheme; return its page and the list of all that went wrong."""
    contexts = []

    def opened(screen, scheme="light"):
        path = report()
        context = chromium.new_context(**SCREENS[screen], offline=True, reduced_motion="reduce")
        contexts.append(context)
        page, wrong = context.new_page(), []
        page.on("console", lambda said: wrong.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda request: wrong.append(f"failed: {request.url[:90]}"))
        own = (path.as_uri(), "data:")
        page.on("request", lambda asked: None if asked.url.startswith(own) else wrong.append(f"asked: {asked.url}"))
        page.emulate_media(color_scheme=scheme)
        page.goto(path.as_uri(), wait_until="load")
        return page, wrong

    yield opened
    for context in contexts:
        context.close()


def background(page):
    """The lightness of the page's background, from 0 to 1."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")) / 765


def read_through(page):
    """Open every fold and scroll through the page, so that all of it was shown once."""
    for fold in page.locator("details > summary").all():
        fold.click()
    for section in page.locator("section").all():
        section.scroll_into_view_if_needed()


def assert_leads_to_its_section(page, link):
    page.evaluate(SETTLED)  # the bar marks the section, and may move to show the mark
    where = link.get_attribute("href")
    assert page.evaluate("window.location.hash") == where
    assert page.evaluate(IN_VIEW, [link.element_handle(), page.locator("nav").element_handle()]), where


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_nothing_goes_wrong_and_nothing_is_asked_of_the_network(visit, screen, scheme):
    page, wrong = visit(screen, scheme)
    assert page.title() == "The paper, reproduced"
    read_through(page)
    folds = page.locator("details")
    assert folds.count() == page.locator("details[open]").count() > 0
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_every_picture_is_seen_as_it_was_drawn(visit, screen, scheme):
    page, _ = visit(screen, scheme)
    images = page.locator("img").all()
    assert images, "the report has no pictures"
    for image in images:
        assert image.is_visible()
        seen = image.evaluate(IMAGE)
        assert seen["alt"]
        assert seen["complete"]
        assert seen["natural"] > 0, seen
        assert min(seen["width"], seen["height"]) > 50, seen
        assert seen["filter"] == "none"
        assert seen["paper"] == "rgb(255, 255, 255)"


@pytest.mark.parametrize("screen", SCREENS)
def test_every_link_brings_its_section_into_view(visit, screen):
    page, _ = visit(screen)
    links = page.locator("nav a")
    targets = links.evaluate_all("links => links.map((link) => link.getAttribute('href'))")
    sections = page.locator("section[id]").evaluate_all("sections => sections.map((part) => '#' + part.id)")
    assert targets == sections
    assert len(targets) > 1
    for link in reversed(links.all()):  # from the end, so that no section is in view by chance
        link.tap() if screen == "phone" else link.click()
        assert_leads_to_its_section(page, link)


@pytest.mark.parametrize("screen", SCREENS)
def test_links_of_the_summary_work_too(visit, screen):
    page, _ = visit(screen)
    links = page.locator("#summary a")
    assert links.count() == page.locator("section").count() - 1
    for link in links.all():
        link.click()
        assert_leads_to_its_section(page, link)


@pytest.mark.parametrize("screen", SCREENS)
def test_the_page_is_no_wider_than_the_window(visit, screen):
    page, _ = visit(screen)
    for _ in range(2):  # with folds shut, and with all of them open
        found = page.evaluate(OVERFLOW)
        assert found["page"] <= found["window"] == SCREENS[screen]["viewport"]["width"]
        assert found["outside"] == []
        read_through(page)


@pytest.mark.parametrize("screen", SCREENS)
def test_the_colour_scheme_is_followed(visit, screen):
    page, _ = visit(screen, "dark")
    assert background(page) < 0.2
    page.emulate_media(color_scheme="light")
    assert background(page) > 0.8
