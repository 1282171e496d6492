"""HTML: one file or one folder that shows sections, and the parts that every page needs.

Both open from disk, ask no other host and no server, and know both themes. They share code and styles with the app's
report pages. Data and plotly are stored compressed. No text from outside is ever markup, and the page's own policy runs
only the scripts that this module puts there.
"""

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specviz.views.blocks import (
    ChartBlock,
    DetailsBlock,
    PageBlock,
    PageSection,
    pack,
    whole_page,
)
from specviz.views.bundle import bundle, web_file
from specviz.views.palette import palette, palette_css

NOTHING_ELSE = "default-src 'none'; img-src data: blob:; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'"
BESIDE = "'self' file:"
"""The sources in a folder's policy: the files beside the page, also when it was opened from disk."""
COMPUTES = " 'wasm-unsafe-eval'; worker-src blob:"
"""The end of the policy of a page with the engine in it: WebAssembly, and a worker whose code lies in the page."""
REPORT_HTML = (
    '<div class="sv-report"><div class="sv-report-body"></div>'
    '<p class="sv-live sv-hidden" aria-live="polite"></p></div>'
)
BODY = """<header class="sv-report sv-standalone-head"><h1 translate="no">{title}</h1>
<button type="button" class="sv-button" id="sv-theme">Dark</button>
<nav aria-label="Contents"><ul id="sv-contents"></ul></nav></header>
<main id="sv-page">{report}</main>"""


def palette_head() -> str:
    """Tags for the head of a page, before its sheet and script: the palette as CSS variables and as data."""
    data = f'<script type="application/json" id="sv-palette">{quiet_json(palette())}</script>'
    return f"<style>{palette_css()}</style>{data}"


@cache
def stage_html() -> str:
    """The stage's markup."""
    return web_file("stage/stage.html").read_text("utf-8")


def stage_template() -> str:
    """The stage's markup as a template; the browser makes further stages of it."""
    return f'<template id="sv-stage-html">{stage_html()}</template>'


def page(title: str, sections: Sequence[PageSection]) -> str:
    """A whole HTML page of these sections."""
    body = BODY.format(title=html.escape(title), report=REPORT_HTML)
    data = {"sv-data": pack(whole_page(sections))}
    has_charts = any(_has_chart(section.blocks) for section in sections)
    return document(title, body, entry="report_file.js", data=data, has_charts=has_charts)


def document(
    title: str,
    body: str,
    *,
    entry: str,
    data: Mapping[str, str],
    has_charts: bool,
    computes: bool = False,
) -> str:
    """A whole HTML page that runs this module of assets/web.

    body: our own markup, with every text from outside escaped. data: id -> text without "<", stored in the page beside
    "sv-palette" and, with has_charts, "sv-plotly". computes: whether the page runs the engine of assets/web/live.
    """
    code = bundle(web_file(entry))
    allowed = script_hash(code.script)
    texts = dict(data)
    if has_charts:
        texts["sv-plotly"], plotly_hash = _plotly()
        allowed += f" {plotly_hash}"
    if computes:
        allowed += COMPUTES
    sheet = f"<style>{code.sheet}</style>"
    script = f"<script>{code.script}</script>"
    return _html(title, body, f"{NOTHING_ELSE}; script-src {allowed}", texts, sheet, script)


def folder(
    title: str,
    body: str,
    *,
    entry: str,
    data: Mapping[str, str],
    has_charts: bool = True,
    computes: bool = False,
) -> dict[str, str]:
    """The page as files that lie side by side, by path: index.html, its code and sheet, plotly, and the data.

    Each text of `data` is a script that runs when it is needed: a page that was opened from disk may read no file.
    """
    code = bundle(web_file(entry))
    policy = f"{NOTHING_ELSE} {BESIDE}; script-src {BESIDE}{COMPUTES if computes else ''}"
    sheet = '<link rel="stylesheet" href="site.css">'
    script = '<script src="site.js"></script>'
    files = {
        "index.html": _html(title, body, policy, {}, sheet, script),
        "site.css": code.sheet,
        "site.js": code.script,
    }
    if has_charts:
        files["plotly.min.js"] = plotly_js()
    for name, text in data.items():
        files[f"data/{name}.js"] = as_script(text)
    return files


def as_script(text: str) -> str:
    """A script that leaves this text on its own element, for a page that may request nothing else."""
    return f"document.currentScript.packed = {quiet_json(text)};\n"


def _html(
    title: str, body: str, policy: str, texts: Mapping[str, str], sheet: str, script: str
) -> str:
    """A page with these parts. texts: by id, stored in the page; sheet, script: the tags of its styles and code."""
    data = ""
    for name, text in {**texts, "sv-palette": quiet_json(palette())}.items():
        data += f'<script type="text/plain" id="{name}">{text}</script>\n'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{palette_css()}</style>{sheet}"
        f"</head>\n<body>{body}\n<noscript><p>This page needs JavaScript. It asks no network.</p></noscript>\n"
        f"{data}{script}\n</body></html>\n"
    )


def script_hash(script: str) -> str:
    """The source in a policy that lets exactly this script run."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def _plotly() -> tuple[str, str]:
    """The code of plotly, compressed, and its source in the policy."""
    source = plotly_js()
    packed = gzip.compress(source.encode(), 9, mtime=0)
    return base64.b64encode(packed).decode("ascii"), script_hash(source)


def plotly_js() -> str:
    """The code of plotly from its package, which is not imported."""
    location = find_spec("plotly").submodule_search_locations[0]
    return Path(location, "package_data", "plotly.min.js").read_text("utf-8")


def _has_chart(shown: Sequence[PageBlock]) -> bool:
    for block in shown:
        if isinstance(block, ChartBlock):
            return True
        if isinstance(block, DetailsBlock) and _has_chart(block.blocks):
            return True
    return False


def quiet_json(value: Any) -> str:
    """JSON that cannot close the script tag around it."""
    return json.dumps(value, ensure_ascii=True).replace("<", "\\u003c")
