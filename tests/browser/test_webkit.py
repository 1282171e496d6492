"""The engine of Safari, where it is installed: the files that are handed out, and the page with its drawers.

Needs selenium, and Debian's webkit2gtk-driver and xvfb; skipped without them. Everything else is tested in Chromium.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specviz.trace.shipped import shipped_trace
from specviz.views.explore.run_file import stage_page
from specviz.views.learn.lesson_file import lesson_page
from specviz.views.live import live_page
from tests.browser.windows import DESKTOP

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
wait = pytest.importorskip("selenium.webdriver.support.wait")
service = pytest.importorskip("selenium.webdriver.webkitgtk.service")

BROWSER = next(Path("/usr/lib").glob("*/webkit2gtk-*/MiniBrowser"), None)
DRIVER, SCREEN = shutil.which("WebKitWebDriver"), shutil.which("Xvfb")
PATIENCE_S = 60
WATCH = """window.wrong = [];
addEventListener('error', (event) => window.wrong.push(event.message));
addEventListener('unhandledrejection', (event) => window.wrong.push(String(event.reason)));"""
STAGE_IS_THERE = "Boolean(window.specvizPage?.hub() && document.querySelector('#k input'))"

if not (BROWSER and DRIVER and SCREEN):
    pytest.skip("no WebKit: webkit2gtk-driver and xvfb are not installed", allow_module_level=True)


@contextmanager
def screen() -> Iterator[str]:
    """A display of its own, that nobody sees; the server says which number it took."""
    reading, writing = os.pipe()
    server = subprocess.Popen([SCREEN, "-displayfd", str(writing), "-screen", "0", "1600x1200x24"], pass_fds=[writing])
    os.close(writing)
    try:
        with os.fdopen(reading) as told:
            yield f":{told.readline().strip()}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def webkit() -> Iterator[object]:
    options = webdriver.WebKitGTKOptions()
    options.binary_location = str(BROWSER)
    options.add_argument("--automation")
    with screen() as display, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISPLAY", display)
        patch.setenv("WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS", "1")  # for tests as root; the pages are our own
        driver = webdriver.WebKitGTK(options=options, service=service.Service(DRIVER))
        driver.set_window_size(DESKTOP["width"], DESKTOP["height"])
        yield driver
        driver.quit()


@pytest.fixture
def seen(webkit) -> Iterator[Callable[[str], object]]:
    """seen(expression): what it gives as soon as that is true; no script may have failed at the end."""

    def seen(expression: str) -> object:
        waiting = wait.WebDriverWait(webkit, PATIENCE_S)
        return waiting.until(lambda driver: driver.execute_script(f"return {expression}"), expression)

    yield seen
    assert webkit.execute_script("return window.wrong") == []


@pytest.fixture
def pressed(webkit, seen) -> Callable[[str], None]:
    """Presses the first thing of that selector, once it is there."""

    def pressed(selector: str) -> None:
        seen(f"Boolean(document.querySelector({selector!r})?.offsetWidth)")
        webkit.execute_script(f"document.querySelector({selector!r}).click()")

    return pressed


@pytest.fixture
def from_disk(webkit, seen, tmp_path) -> Callable[[str], None]:
    def from_disk(html: str) -> None:
        path = tmp_path / "page.html"
        path.write_text(html, "utf-8")
        webkit.get(path.as_uri())
        webkit.execute_script(WATCH)
        seen("document.documentElement.dataset.done")

    return from_disk


def test_a_run_as_one_file_shows_its_text_tokens_and_charts(from_disk, seen, pressed):
    trace = shipped_trace("first-visit")
    from_disk(stage_page(trace))
    assert seen("document.querySelector('.sv-place').textContent") == f"step {len(trace.steps)} of {len(trace.steps)}"
    pressed(".sv-text .sv-piece.sv-is-rejected")
    assert seen("document.querySelector('.sv-inspector .sv-probabilities')?.textContent")
    pressed(".sv-charts summary")
    seen("document.querySelector('.sv-plot .plot-container')")


def test_a_lesson_from_one_file_puts_its_run_on_the_stage(from_disk, seen, pressed):
    from_disk(lesson_page())
    pressed("#learn .sv-plan-entry:nth-of-type(3) a")
    seen("document.querySelector('#lesson .sv-lesson-title')?.textContent")
    seen("document.querySelector('#stage .sv-text .sv-piece.sv-is-rejected')")


def test_the_live_page_generates_from_one_file(webkit, from_disk, seen, pressed):
    from_disk(live_page())
    choose = "arguments[0].value = 'full'; arguments[0].dispatchEvent(new Event('change', { bubbles: true }))"
    webkit.execute_script(choose, webkit.find_element("css selector", ".sv-live-field:nth-of-type(3) select"))
    pressed(".sv-live-drive .sv-primary")
    seen("document.querySelector('.sv-state').textContent.includes('done')")
    assert int(seen("document.querySelector('[data-number=speed]').textContent")) > 0


def test_a_run_is_made_kept_and_shared_and_every_page_begins_at_its_top(webkit, app, seen, pressed):
    webkit.get(app.address)
    webkit.execute_script(WATCH)
    seen(STAGE_IS_THERE)
    pressed("#run")
    seen("document.documentElement.dataset.svState === 'finished'")
    assert seen("document.querySelectorAll('.sv-text .sv-piece').length")
    pressed("#library-open")
    seen("document.querySelector('#library')?.textContent.includes('on the stage now')")
    pressed("#share-open")
    seen("document.querySelector('#share .sv-share-link')?.value.includes('#run=')")
    for name, inside in (("compare", "two-runs"), ("learn", "plan")):
        pressed(f"#pages [data-page={name}]")
        seen(f"document.querySelector('#{name} [data-section={inside}]')?.offsetHeight")
        assert webkit.execute_script("return scrollY") == 0
