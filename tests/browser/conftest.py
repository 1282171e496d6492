"""A real browser before the real page. Every page is watched: no error, no call to another host, no broken policy."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import served as pages
from windows import BROWSERS, DESKTOP, PATIENCE_MS, SWITCHES, borrowed

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

ON_LEAVING = ("AbortError: signal is aborted", "Connection errored out")
"""What Gradio itself says in the console of a page that is left while it streams."""


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    playwright.expect.set_options(timeout=PATIENCE_MS)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=SWITCHES)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def app(tmp_path_factory) -> Iterator[pages.Served]:
    with pages.served(tmp_path_factory.mktemp("models"), max_new_tokens=48) as served:
        yield served


@pytest.fixture
def open_page(chromium, app) -> Iterator[Callable[..., object]]:
    """Opens the page in a window of its own: open_page(place="#learn", viewport=..., color_scheme="dark")."""
    wrong = []
    watched = {
        "pageerror": lambda error: wrong.append(f"page error: {error}"),
        "console": lambda message: wrong.append(message.text) if _is_wrong(message) else None,
        "request": lambda request: wrong.append(request.url) if _is_foreign(request.url, app) else None,
    }

    def open_page(place: str = "", **context: object) -> object:
        page = opened.enter_context(
            borrowed(chromium, watched, **{"viewport": DESKTOP, "color_scheme": "light", **context})
        )
        page.goto(f"{app.address}/{place}")
        page.wait_for_selector(".sv-stage")
        page.wait_for_function("window.specvizPage?.hub() && document.querySelector('#k input')")
        return page

    with ExitStack() as opened:
        yield open_page
    assert not wrong, wrong


@pytest.fixture
def page(open_page) -> object:
    return open_page()


def _is_wrong(message: object) -> bool:
    is_error = message.type == "error" and not any(words in message.text for words in ON_LEAVING)
    return is_error or "Content Security Policy" in message.text


def _is_foreign(url: str, app: pages.Served) -> bool:
    return not url.startswith((app.address, "data:", "blob:"))
