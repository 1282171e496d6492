"""Which browser the tests drive, how it is started, the sizes of its windows, and pages that are used again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP = {"width": 1366, "height": 768}
PHONE = {"width": 390, "height": 844}
PATIENCE_MS = 30_000
"""For a state on a busy machine: only a test that fails waits so long."""

ALL_CONTROLS = """try {
  if (!localStorage['specviz-stage']) localStorage['specviz-stage'] = '{"controls": "all"}';
} catch (nothingToKeep) { /* about:blank */ }"""
"""As if a person had asked for all controls before."""

_left: dict[str, list[Any]] = {}
"""Empty pages by the options of their windows."""


@contextmanager
def borrowed(
    browser: Any,
    watched: Mapping[str, Callable[[Any], object]],
    *,
    scripts: tuple[str, ...] = (),
    fresh: bool = False,
    **context: Any,
) -> Iterator[Any]:
    """A page in a window of its own with nothing stored, and who is told of its events.

    A page that an earlier test has left is emptied and used again: a new one costs up to five times as much. fresh: a
    new one, for what stays on a page however it is left (a clock, a medium). scripts: run before those of every page.
    """
    left = _left.setdefault(json.dumps([context, scripts], sort_keys=True), [])
    page = left.pop() if left and not fresh else _new(browser, scripts, context)
    page.set_default_timeout(PATIENCE_MS)
    for event, tell in watched.items():
        page.on(event, tell)
    yield page
    for event, tell in watched.items():
        page.remove_listener(event, tell)
    if fresh or page.context.pages != [page]:
        page.context.close()
    else:
        _empty(page, context["viewport"])
        left.append(page)


def _new(browser: Any, scripts: tuple[str, ...], context: dict[str, Any]) -> Any:
    page = browser.new_context(**context).new_page()
    for script in scripts:
        page.add_init_script(script)
    return page


def _empty(page: Any, viewport: dict[str, int]) -> None:
    page.unroute_all()
    origin, session = page.evaluate("location.origin"), page.context.new_cdp_session(page)
    page.evaluate("() => [sessionStorage, localStorage].forEach((kept) => kept.clear())")
    page.mouse.move(-1, -1)
    page.goto("about:blank")
    session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": STORED})
    session.detach()
    page.set_viewport_size(viewport)


STORED = "cookies,indexeddb,local_storage,service_workers,cache_storage"
