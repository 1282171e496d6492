"""A page of sections alone: the browser's half in Chromium, fed by hand, with no Gradio and no server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stage_page import CSP, PAGE, openings, watched_page

from specviz.settings import assets_dir
from specviz.ui.components import REPORT_HTML
from specviz.views.document import palette_head

SCRIPTS = ("hub.js", "save.js", "blocks.js", "figure.js", "report.js")
MOUNT = """() => {
  window.triggers = [];
  const watchers = [], props = {value: ''};
  window.push = (value) => { props.value = value; watchers.forEach((watcher) => watcher()); };
  window.report = specviz.mountReport(document.getElementById('host'), {
    props, watch: (name, watcher) => watchers.push(watcher), place: () => ({run: 'run', step: 2, ref: '1'}),
    trigger: (name, data) => window.triggers.push([name, data]),
  });
}"""


def report_html(theme: str) -> str:
    """A page like the product's: the same files in the same order."""
    web = assets_dir() / "web"
    scripts = "".join(f"<script>{(web / name).read_text('utf-8')}</script>" for name in SCRIPTS)
    sheets = "".join(f"<style>{(web / name).read_text('utf-8')}</style>" for name in ("base.css", "report.css"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>report</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{CSP}">'
        f"<style>body {{ margin: 0; background: {PAGE[theme]}; }}</style>{palette_head()}{sheets}{scripts}</head>"
        f'<body class="{theme}"><main id="host">{REPORT_HTML}</main></body></html>'
    )


@contextmanager
def open_report(launched: Any, *, width: int = 1366, height: int = 768, theme: str = "light", **context: Any):
    """A mounted page; leaving it checks that nothing went wrong on it and nothing was asked of another host."""
    viewport = {"width": width, "height": height}
    with watched_page(launched, report_html(theme), viewport=viewport, **context) as page:
        page.evaluate(MOUNT)
        yield page


def push(page: Any, sections: list[dict], **message: Any) -> None:
    order = {"order": [section["id"] for section in sections]}
    page.evaluate("(value) => push(value)", json.dumps({"sections": sections, "busy": None, **order, **message}))


def reports(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page: report(width=..., theme=...). Leaving the test checks for page errors and foreign requests."""
    yield from openings(chromium, open_report)
