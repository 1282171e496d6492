"""The lesson beside the stage: its recorded runs and its setup."""

from __future__ import annotations

from specviz.ui import components
from specviz.ui.frame import Frame


def add(frame: Frame) -> None:
    """Makes the panel and wires it."""
    components.panel("lesson", frame.files, events=["show", "setup"])
