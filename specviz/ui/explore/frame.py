"""What a panel beside the stage may use of the page: it makes its own part and wires it with this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.session.workbench import Workbench
from specviz.ui.choices import Offer
from specviz.ui.explore.form import Form
from specviz.ui.registry import Registry

QUIET = {"show_progress": "hidden", "api_visibility": "private"}
NOW = {"queue": False, **QUIET}


@dataclass(frozen=True, slots=True)
class Frame:
    """`stage`: the output of whatever puts another run on it, as the registry's messages. `fill(event, asked)` wires an
    event whose handler `asked(request, event)` gives one update per field of the form, and all that follows."""

    registry: Registry
    bench: Workbench
    offer: Offer
    form: Form
    stage: gr.HTML
    fill: Callable[[Any, Callable[..., Any]], None]
