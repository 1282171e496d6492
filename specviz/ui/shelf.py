"""The library drawer: runs of this browser, the recorded runs that come with specviz, opened files."""

from __future__ import annotations

import gradio as gr

from specviz.ui import components
from specviz.ui.frame import QUIET, Frame
from specviz.ui.handlers import Handlers


def add(frame: Frame, handlers: Handlers) -> None:
    """Makes the drawer and wires it."""
    with gr.Column(elem_id="library"):
        upload = gr.UploadButton("Open", file_types=[".jsonl", ".gz"], type="binary", elem_id="open", size="sm")
        components.panel("shelf", frame.files, events=["show"])
    upload.upload(handlers.open_trace, upload, frame.stage, **QUIET)
