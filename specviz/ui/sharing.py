"""The share drawer: a link to the run on the stage, and the files that hold it."""

from __future__ import annotations

import gradio as gr

from specviz.ui import components
from specviz.ui.frame import Frame


def add(frame: Frame) -> None:
    """Makes the drawer and wires it."""
    with gr.Column(elem_id="share"):
        components.panel("sharing", frame.files, events=["apply"])
