"""The page's colours, which style sheets use by Gradio's variables; fonts are the system's: nothing is fetched."""

import json

import gradio as gr

from specviz.views.bundle import web_file


def theme() -> gr.themes.Base:
    """With the colours of assets/web/theme.json, each for some of Gradio's variables."""
    colours = {}
    for each in json.loads(web_file("theme.json").read_text("utf-8")):
        for name in each["variables"]:
            colours |= {name: each["light"], f"{name}_dark": each["dark"]}
    base = gr.themes.Base(font="sans-serif", font_mono="monospace", text_size="sm", radius_size="sm", spacing_size="sm")
    return base.set(**colours)
