"""Colours, labels and marks. They stand only in assets/web/palette.json, which is read here."""

import json
from collections import ChainMap
from functools import cache
from typing import Any

from specviz.settings import assets_dir

# the CSS selector of each theme; Gradio marks the dark one with a class
SELECTORS = {"light": ":root", "dark": ".dark"}


@cache
def palette() -> dict[str, Any]:
    """The palette: {"statuses": {status: {"light", "dark", "label", "mark"}}, "series": {"p": ...}, "phases": ...}."""
    return json.loads((assets_dir() / "web" / "palette.json").read_text("utf-8"))


def colour(name: str, theme: str = "light") -> str:
    """The colour of a status, series or phase in one of the themes of SELECTORS."""
    return _entry(name)[theme]


def word_of(name: str) -> str:
    """The word for a status, series or phase."""
    return _entry(name)["label"]


def palette_css() -> str:
    """One CSS variable per status and series, by theme: `--sv-accepted` and so on."""
    entries = {**palette()["statuses"], **palette()["series"]}
    css = ""
    for theme, selector in SELECTORS.items():
        variables = [f"--sv-{name}:{entry[theme]};" for name, entry in entries.items()]
        css += f"{selector}{{{''.join(variables)}}}"
    return css


@cache
def _entry(name: str) -> dict[str, str]:
    """The entry of this name in whichever group of the palette has it."""
    return ChainMap(*palette().values())[name]
