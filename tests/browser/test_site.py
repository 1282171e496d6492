"""The site without a server, in Chromium from disk and from a plain web server: every page opens, links keep their
place, nothing is asked of another host."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect

from specviz.cli.main import main
from specviz.trace.shipped import WELCOME, shipped_trace
from tests.browser.access import serious
from tests.browser.windows import DESKTOP, PHONE

pytestmark = pytest.mark.slow

PLACE = "#stage .sv-place"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    (place / "report.html").write_text("<!doctype html><title>a report</title>", "utf-8")
    command = ["export", "--site", f"{place / 'site'}", "--no-checks", "--report", f"{place / 'report.html'}"]
    assert main(command) == 0
    return place / "site"


@pytest.fixture
def site(opened, folder):
    """site(place, viewport=...): the site at this place, from disk."""
    return lambda place="#explore", **options: opened(
        folder / "index.html", place, beside=True, reduced_motion="reduce", **options
    )


def of_run(page, name):
    num_steps = len(shipped_trace(name).steps)
    expect(page.locator(PLACE)).to_contain_text(f"of {num_steps}")


def test_the_first_page_is_the_one_to_try(site):
    page = site("")
    expect(page.locator("#live .sv-live-drive")).to_be_visible()
    expect(page.locator(".sv-pages [aria-current]")).to_have_text("Try it")
    assert page.locator("#stage").is_hidden()


def test_a_first_visit_to_explore_begins_with_the_opening_of_a_real_run(site):
    page = site("#explore")
    expect(page.locator("#stage .sv-opening")).to_be_visible()
    page.click(".sv-beat-next")
    page.keyboard.press("Escape")
    of_run(page, WELCOME)
    assert page.locator("#stage .sv-opening").is_hidden()
    page.click("[data-do=opening]")
    expect(page.locator("#stage .sv-opening")).to_be_visible()
    page.reload()
    of_run(page, WELCOME)
    assert page.locator("#stage .sv-opening").is_hidden()


def test_every_link_opens_at_its_place(site):
    page = site("#run=eagle&step=3")
    of_run(page, "eagle")
    expect(page.locator("#stage .sv-where")).to_contain_text("step 3")
    page.reload()
    expect(page.locator("#stage .sv-where")).to_contain_text("step 3")
    page.click(".sv-pages a:text-is('Runs')")
    page.click("#runs .sv-plan-entry:has-text('A misaligned draft') a")
    of_run(page, "misaligned-draft")
    page.go_back()
    expect(page.locator("#runs .sv-plan-entry").first).to_be_visible()
    for name, held in (("compare", "[data-section=every-k]"), ("check", "[data-section=none]"), ("learn", ".sv-plan")):
        page.click(f".sv-pages a[href='#{name}']")
        expect(page.locator(f"#{name} {held}")).to_be_visible()
        expect(page.locator(f".sv-pages a[href='#{name}']")).to_have_attribute("aria-current", "page")
    page.click("#learn .sv-plan-entry:first-child a:text('Start')")
    expect(page.locator("#lesson .sv-lesson-title")).to_be_visible()
    page.evaluate("location.hash = '#side-by-side=one-by-one-first-visit'")
    expect(page.locator("#compare .sv-side-by-side-part")).to_have_count(2)


def test_every_k_is_of_the_run_on_the_stage_and_charts_are_drawn(site):
    page = site("#run=first-visit")
    of_run(page, "first-visit")
    page.evaluate("document.querySelector('#stage .sv-charts').open = true")
    page.locator("#stage .sv-plot").first.scroll_into_view_if_needed()
    page.wait_for_selector("#stage .sv-plot .main-svg")
    page.click(".sv-pages a[href='#compare']")
    words = page.locator("#compare .sv-segments-words")
    before = words.inner_text()
    page.locator("#compare .sv-segments input[type=range]").fill("7")
    assert words.inner_text() != before


@pytest.mark.parametrize(
    "place", ["#run=<b>x", "#run=__proto__", "#side-by-side=nothing-there", "#lesson=constructor", "#x=y"]
)
def test_an_address_that_leads_nowhere_shows_a_page(site, place):
    page = site(place)
    assert page.locator("#live:visible, #stage:visible, #lesson:visible, #learn:visible, #compare:visible").count()


@pytest.mark.parametrize(("size", "theme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_it_fits_and_is_accessible(site, size, theme):
    page = site("#run=eagle", viewport=size, color_scheme=theme)
    of_run(page, "eagle")
    for name in ("live", "explore", "runs", "compare", "check", "learn"):
        page.evaluate("(name) => { location.hash = name; }", name)
        page.wait_for_function("(name) => document.documentElement.dataset.svPage === name", arg=name)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], name
        assert serious(page) == [], name


def test_a_plain_web_server_hands_it_out(chromium, folder):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address, asked, wrong = f"http://127.0.0.1:{server.server_port}/", [], []
    page = chromium.new_context(viewport=DESKTOP).new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    try:
        page.goto(f"{address}?run=eagle&step=2")
        expect(page.locator("#stage .sv-where")).to_contain_text("step 2")
        for document in ("docs/README.html", "models/DATA.html", "report.html"):
            page.goto(address + document)
            assert page.title()
    finally:
        page.context.close()
        server.shutdown()
    assert [url for url in asked if not url.startswith(address)] == []
    assert [words for words in wrong if "favicon" not in words and "404" not in words] == []
