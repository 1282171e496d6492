"""A page of sections alone: the browser's half in Chromium, fed by hand, with no Gradio and no server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from specviz.ui.components import REPORT_HTML
from specviz.views.blocks import PageMessage, PageSection, dump
from tests.browser.stage_page import openings, page_html, watched_page

BODY = f'<main id="host">{REPORT_HTML}</main>'
MOUNT = """() => {
  window.triggers = [];
  const watchers = [], props = {value: ''};
  window.push = (value) => { props.value = value; watchers.forEach((watcher) => watcher()); };
  window.report = specviz.mountReport(document.getElementById('host'), {
    props, watch: (name, watcher) => watchers.push(watcher), place: () => ({run: 'run', step: 2, ref: '1'}),
    trigger: (name, data) => window.triggers.push([name, data]),
  });
}"""


@contextmanager
def open_report(launched: Any, *, width: int = 1366, height: int = 768, theme: str = "light", **context: Any):
    """A mounted page; leaving it checks that nothing went wrong on it and nothing was asked of another host."""
    viewport = {"width": width, "height": height}
    with watched_page(launched, page_html(BODY, theme), viewport=viewport, **context) as page:
        page.evaluate(MOUNT)
        yield page


def push(page: Any, sections: list[PageSection], busy: str | None = None) -> None:
    message = PageMessage(sections, [section.id for section in sections], busy)
    page.evaluate("(value) => push(value)", dump(message))


def reports(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page: report(width=..., theme=...). Leaving the test checks for page errors and foreign requests."""
    yield from openings(chromium, open_report)
