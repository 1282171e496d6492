"""What a page needs before the browser's half runs: the palette, as CSS variables and as a script. Knows no server."""

from __future__ import annotations

import json

from specviz.settings import assets_dir
from specviz.views.palette import THEMES, palette

SELECTORS = {"light": ":root", "dark": ".dark"}


def palette_head() -> str:
    """Tags for the head of a page, before stage.css and hub.js: `--sv-accepted` and so on, and `specviz.palette`."""
    text = json.dumps(palette(), ensure_ascii=True).replace("<", "\\u003c")
    script = f"window.specviz = window.specviz || {{}}; window.specviz.palette = {text};"
    return f"<style>{palette_css()}</style><script>{script}</script>"


def stage_template() -> str:
    """The stage's markup, from which the browser makes further stages."""
    markup = (assets_dir() / "web" / "stage.html").read_text("utf-8")
    return f'<template id="sv-stage-html">{markup}</template>'


def palette_css() -> str:
    """One variable per status and series, by theme: Gradio marks the dark one with a class."""
    entries = {**palette()["statuses"], **palette()["series"]}
    return "".join(
        f"{SELECTORS[theme]}{{{''.join(f'--sv-{name}:{entry[theme]};' for name, entry in entries.items())}}}"
        for theme in THEMES
    )
