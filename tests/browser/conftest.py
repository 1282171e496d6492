"""A real browser before the real page. Every page is watched: no error, no call to another host, no broken policy."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from specviz.session.controls import PACES
from tests.browser.windows import ALL_CONTROLS, BROWSERS, DESKTOP, PATIENCE_MS, SWITCHES, borrowed
from tests.helpers import tiny_server as pages

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

ON_LEAVING = ("AbortError: signal is aborted", "Connection errored out")
"""What Gradio itself says in the console of a page that is left while it streams."""

IS_DONE = "() => document.documentElement.dataset.done"
"""What a page in a file says when all of it is there."""


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


@pytest.fixture(scope="session", autouse=True)
def quick_reader() -> Iterator[None]:
    """Reading goes three times as fast as for people: most tests watch some steps of a run, and none its length."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PACES, "normal", PACES["normal"] / 3)
        yield


@pytest.fixture
def open_page(chromium, app) -> Iterator[Callable[..., object]]:
    """Opens the page with all controls in a window of its own: open_page(place="#learn", viewport=..., simple=True)."""
    wrong = []
    watched = {
        "pageerror": lambda error: wrong.append(f"page error: {error}"),
        "console": lambda message: wrong.append(message.text) if _is_wrong(message) else None,
        "request": lambda request: wrong.append(request.url) if _is_foreign(request.url, app) else None,
    }

    def open_page(place: str = "", *, simple: bool = False, scripts: tuple[str, ...] = (), **context: object) -> object:
        scripts = scripts if simple else (ALL_CONTROLS, *scripts)
        options = {"viewport": DESKTOP, "color_scheme": "light", **context}
        page = opened.enter_context(borrowed(chromium, watched, scripts=scripts, **options))
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


@pytest.fixture
def opened(chromium, tmp_path) -> Iterator[Callable[..., object]]:
    """Opens a file, or a text as one, from disk: opened(html, place="#lesson=x", viewport=...). Leaving the test checks
    that nothing went wrong on the page and nothing else was asked for; with `beside`, files of its folder may be, and
    with `missing` one of them may lack."""

    def is_wrong(message):
        return message.type == "error" and not any(words in message.text for words in allowed)

    wrong, own, allowed = [], ["data:", "blob:", "about:"], []
    watched = {
        "pageerror": lambda error: wrong.append(str(error)),
        "console": lambda message: wrong.append(message.text) if is_wrong(message) else None,
        "dialog": lambda dialog: (wrong.append(dialog.message), dialog.dismiss()),
        "request": lambda request: None if request.url.startswith(tuple(own)) else wrong.append(request.url),
    }

    def opened(
        html: str | Path,
        place: str = "",
        ready: str = IS_DONE,
        *,
        beside: bool = False,
        missing: bool = False,
        **context: object,
    ) -> object:
        path = html if isinstance(html, Path) else tmp_path / f"page-{len(own)}.html"
        if path is not html:
            path.write_text(html, encoding="utf-8")
        own.append((path.parent if beside else path).as_uri())
        if missing:
            allowed.append("net::ERR_FILE_NOT_FOUND")
        options = {"viewport": DESKTOP, "color_scheme": "light", **context}
        page = pages_left.enter_context(borrowed(chromium, watched, **options))
        page.goto(f"{path.as_uri()}{place}")
        page.wait_for_function(ready)
        return page

    with ExitStack() as pages_left:
        yield opened
    assert not wrong, wrong


def _is_wrong(message: object) -> bool:
    is_error = message.type == "error" and not any(words in message.text for words in ON_LEAVING)
    return is_error or "Content Security Policy" in message.text


def _is_foreign(url: str, app: pages.Served) -> bool:
    return not url.startswith((app.address, "data:", "blob:"))
