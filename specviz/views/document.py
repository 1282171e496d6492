"""HTML: one file that shows sections, and the parts that every page needs in it.

The file opens from disk, asks no network and no server, and knows both themes. Code and styles are those of the app's
report pages. What is shown, and plotly, lie in it compressed; no text from outside is ever markup, and the page's own
policy lets no script run that this module has not put there.
"""

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from specviz.views.blocks import Props, pack
from specviz.views.bundle import bundle, web_file
from specviz.views.palette import palette, palette_css

NOTHING_ELSE = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
BODY = """<header class="sv-report sv-standalone-head"><h1>{title}</h1>
<button type="button" class="sv-button" id="sv-theme">Dark</button>
<nav aria-label="Contents"><ul id="sv-contents"></ul></nav></header>
<main id="sv-page"><div class="sv-report"><div class="sv-report-body"></div>
<p class="sv-live sv-hidden" aria-live="polite"></p></div></main>"""


def palette_head() -> str:
    """Tags for the head of a page, before its sheet and script: the palette as CSS variables and as data."""
    data = f'<script type="application/json" id="sv-palette">{quiet_json(palette())}</script>'
    return f"<style>{palette_css()}</style>{data}"


@cache
def stage_html() -> str:
    """The stage's markup."""
    return web_file("stage/stage.html").read_text("utf-8")


def stage_template() -> str:
    """The stage's markup, from which the browser makes further stages."""
    return f'<template id="sv-stage-html">{stage_html()}</template>'


def page(title: str, sections: Sequence[Props]) -> str:
    """A whole HTML page of these sections. Their controls are left out: nobody is there to answer them."""
    shown = [{**section, "controls": []} for section in sections]
    message = {"sections": shown, "order": [section["id"] for section in shown], "busy": None, "say": ""}
    body, has_charts = BODY.format(title=html.escape(title)), any(_has_chart(section["blocks"]) for section in shown)
    return document(title, body, entry="report_file.js", data={"sv-data": pack(message)}, has_charts=has_charts)


def document(title: str, body: str, *, entry: str, data: Mapping[str, str], has_charts: bool) -> str:
    """A whole HTML page that runs this module of assets/web.

    body: our own markup, with every text from outside escaped; data: id -> text without "<", which lies in the page;
    the palette and, with has_charts, plotly lie beside it as "sv-palette" and "sv-plotly".
    """
    plotly, plotly_hash = _plotly() if has_charts else ("", "")
    texts = {**data, "sv-palette": quiet_json(palette()), **({"sv-plotly": plotly} if has_charts else {})}
    made = bundle(web_file(entry))
    allowed = " ".join(filter(None, [_hash(made.script), plotly_hash]))
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{NOTHING_ELSE}; script-src {allowed}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{palette_css()}</style>",
        f"<style>{made.sheet}</style>",
        f"</head>\n<body>{body}\n<noscript><p>This page needs JavaScript. It asks no network.</p></noscript>\n",
        *(f'<script type="text/plain" id="{name}">{text}</script>\n' for name, text in texts.items()),
        f"<script>{made.script}</script>\n</body></html>\n",
    ]
    return "".join(parts)


def _hash(script: str) -> str:
    """A source of the policy: exactly this script may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def _plotly() -> tuple[str, str]:
    """plotly.js, compressed, and its source of the policy."""
    from plotly.offline import get_plotlyjs

    source = get_plotlyjs()
    return base64.b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode("ascii"), _hash(source)


def _has_chart(shown: Sequence[Props]) -> bool:
    return any(block["kind"] == "chart" or _has_chart(block.get("blocks", ())) for block in shown)


def quiet_json(value: Any) -> str:
    """JSON that cannot close the script tag around it."""
    return json.dumps(value, ensure_ascii=True).replace("<", "\\u003c")
