"""The site that `make docs` builds: every link leads somewhere, and every page works in headless Chromium.

ENKBAYES_SITE names another build; a relative path counts from the root of the repository.
"""

import functools
import os
import posixpath
import shutil
import threading
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
SITE = ROOT / os.environ.get("ENKBAYES_SITE", "docs/_build/html")
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
GENERATED = ("genindex.html", "search.html", "py-modindex.html")
"""Pages of Sphinx itself."""

LOOK = """async () => {
    const images = [...document.images], width = document.documentElement.clientWidth;
    await Promise.all(images.map((image) => { image.loading = "eager"; return image.decode().catch(() => null); }));
    const scrolls = (part) => part && (/auto|scroll|hidden/.test(getComputedStyle(part).overflowX)
        || scrolls(part.parentElement));
    const text = document.querySelector("article p") || document.body;
    return {
        headings: document.querySelectorAll("h1").length,
        broken: images.filter((image) => !image.naturalWidth).map((image) => image.src),
        sideways: document.documentElement.scrollWidth - width,
        outside: [...document.querySelectorAll("article *")]
            .filter((part) => part.getBoundingClientRect().right > width + 1 && !scrolls(part))
            .map((part) => part.outerHTML.slice(0, 100)),
        letters: parseFloat(getComputedStyle(text).fontSize),
    };
}"""


def pages():
    """Return the pages of the site, as paths in it."""
    if not (SITE / "index.html").is_file():
        pytest.fail(f"there is no site in {SITE}; run `make docs` first, which builds it", pytrace=False)
    return sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html") if "_static" not in path.parts)


class Page(HTMLParser):
    """The links, sources and ids of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids |= {values.get("id"), values.get("name") if tag == "a" else None}
        self.links += [values[key] for key in ("href", "src") if values.get(key)]


@functools.cache
def read(path):
    return Page((SITE / path).read_text(encoding="utf-8"))


def targets(page):
    """Return what the links of a page within the site lead to: file, place in it, and the link itself."""
    found = set()
    for link in set(read(page).links):
        parts = urlsplit(link)
        if not (parts.scheme or parts.netloc):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path)))
            found.add((path if parts.path else page, unquote(parts.fragment), link))
    return found


def test_every_link_within_the_site_leads_somewhere():
    known, broken = set(pages()), []
    for page in sorted(known):
        for path, place, link in targets(page):
            if path in known:
                if place and place not in read(path).ids:
                    broken.append(f"{page}: {link} has no such place")
            elif not (SITE / path).is_file():
                broken.append(f"{page}: {link}")
    assert not broken


def test_every_page_is_reached_from_the_first():
    known, found, new = set(pages()), set(), {"index.html"}
    while new:
        found |= new
        new = {path for page in new for path, _, _ in targets(page)} & known - found
    assert known - set(GENERATED) <= found


def test_links_to_other_sites_are_encrypted():
    links = {link for page in pages() for link in read(page).links if urlsplit(link).netloc}
    assert not [link for link in links if urlsplit(link).scheme not in ("https", "")]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    pages()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def chromium():
    program = shutil.which("chromium")
    assert program, "there is no chromium on the path; install it with: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, address):
    """Return a function that opens a page in a tab of one screen, and the list of all that went wrong."""
    contexts = []

    def own(url):
        return url.startswith((address, "data:", "about:"))

    def opened(screen):
        context = chromium.new_context(**screen, reduced_motion="reduce")
        contexts.append(context)
        context.set_default_timeout(60_000)
        page, wrong = context.new_page(), []
        page.on("request", lambda asked: own(asked.url) or wrong.append(f"{page.url} asks for {asked.url}"))
        page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
        page.on(
            "response",
            lambda answer: wrong.append(f"{page.url}: {answer.status} {answer.url}") if answer.status >= 400 else None,
        )
        return page, wrong

    yield opened
    for context in contexts:
        context.close()


def test_every_page_works_on_a_phone(visit, address):
    """It loads without an error or a broken image, nothing sticks out of the screen, and letters are not tiny."""
    page, wrong = visit(PHONE)
    for path in pages():
        page.goto(f"{address}/{path}", wait_until="load")
        found = page.evaluate(LOOK)
        assert page.title(), path
        assert found.pop("headings") or path in GENERATED, path
        if found["sideways"] > 1 or found["outside"] or found["broken"] or found["letters"] < 14:
            wrong.append(f"{path}: {found}")
    assert not wrong


@pytest.mark.parametrize("path", ["index.html", "how_to.html", "gallery/index.html", "results.html", "api/index.html"])
def test_pages_work_on_a_wide_screen(visit, address, path):
    page, wrong = visit(DESKTOP)
    page.goto(f"{address}/{path}", wait_until="load")
    found = page.evaluate(LOOK)
    assert found["sideways"] <= 1
    assert not found["broken"]
    assert not wrong


@pytest.mark.parametrize(
    ("words", "page"),
    [("abstain", "how_to/abstain"), ("BayesianHead", "BayesianHead"), ("far-field variance", "how_to/far_field")],
)
def test_search_finds_pages(visit, address, words, page):
    browser, wrong = visit(DESKTOP)
    browser.goto(f"{address}/search.html?q={words.replace(' ', '+')}", wait_until="load")
    browser.wait_for_selector("#search-results li a")
    browser.wait_for_function("() => !document.querySelector('#search-progress.searching')")
    found = [link.get_attribute("href") for link in browser.locator("#search-results li a").all()]
    assert any(page in link for link in found), found
    assert not wrong


def test_the_menu_of_a_phone_opens(visit, address):
    page, wrong = visit(PHONE)
    page.goto(f"{address}/index.html", wait_until="load")
    page.locator("button.primary-toggle").click()
    page.get_by_role("link", name="Troubleshooting").locator("visible=true").first.wait_for()
    assert not wrong
