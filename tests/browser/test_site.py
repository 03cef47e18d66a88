"""The site that `make docs` builds: every link leads somewhere, and every page works in headless Chromium.

ENKBAYES_SITE names another build; a relative path counts from the root of the repository.
"""

import functools
import os
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

BROKEN = "() => [...document.images].filter((image) => image.complete && !image.naturalWidth).map((image) => image.src)"
LOAD_ALL = """() => Promise.all([...document.images].map((image) => { image.loading = "eager"; return image.decode()
    .catch(() => null); }))"""
WIDE = """() => {
    const width = document.documentElement.clientWidth;
    const scrolls = (part) => part && (/auto|scroll|hidden/.test(getComputedStyle(part).overflowX)
        || scrolls(part.parentElement));
    return {
        page: document.documentElement.scrollWidth - width,
        outside: [...document.querySelectorAll("article *")]
            .filter((part) => part.getBoundingClientRect().right > width + 1 && !scrolls(part))
            .map((part) => part.outerHTML.slice(0, 100)),
        letters: parseFloat(getComputedStyle(document.querySelector("article p, article")).fontSize),
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


def test_every_link_within_the_site_leads_somewhere():
    broken = []
    for page in pages():
        for link in read(page).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = os.path.normpath(Path(page).parent / unquote(parts.path)) if parts.path else page
            there = SITE / path
            if not there.is_file():
                broken.append(f"{page}: {link}")
            elif parts.fragment and there.suffix == ".html" and unquote(parts.fragment) not in read(path).ids:
                broken.append(f"{page}: {link} has no such place")
    assert not broken


def test_every_page_is_reached_from_the_first():
    found, new = set(), ["index.html"]
    while new:
        page = new.pop()
        found.add(page)
        for link in read(page).links:
            parts = urlsplit(link)
            path = os.path.normpath(Path(page).parent / unquote(parts.path)) if parts.path else page
            if not parts.scheme and path.endswith(".html") and path not in found and (SITE / path).is_file():
                new.append(path)
    assert set(pages()) - set(GENERATED) <= found


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


def test_every_page_loads_without_errors_or_broken_images(visit, address):
    page, wrong = visit(DESKTOP)
    for path in pages():
        page.goto(f"{address}/{path}", wait_until="load")
        assert page.title(), path
        assert page.locator("h1").count() or path in GENERATED, path
        page.evaluate(LOAD_ALL)
        wrong += [f"{path}: {image}" for image in page.evaluate(BROKEN) if image.startswith(address)]
    assert not wrong


def test_every_page_can_be_read_on_a_phone(visit, address):
    page, wrong = visit(PHONE)
    for path in pages():
        page.goto(f"{address}/{path}", wait_until="load")
        found = page.evaluate(WIDE)
        if found["page"] > 1 or found["outside"] or found["letters"] < 14:
            wrong.append(f"{path}: {found}")
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


def test_the_search_field_and_the_menu_of_a_phone_open(visit, address):
    page, wrong = visit(PHONE)
    page.goto(f"{address}/index.html", wait_until="load")
    page.locator(".primary-toggle").click()
    assert page.locator("#pst-primary-sidebar-modal, .bd-sidebar-primary").first.is_visible()
    assert page.locator("text=Troubleshooting").first.is_visible()
    assert not wrong
