"""The library drawer: runs of this browser, the recorded runs that come with specviz, opened files.

A browser keeps its runs itself, as packed traces; here they are packed, named, and checked when they come back.
"""

import base64
import gzip
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.trace import MAX_UPLOAD_BYTES
from specviz.trace import export as exports
from specviz.trace.shipped import shipped_runs
from specviz.ui import components
from specviz.ui.events import QUIET, as_fields, callback, data_of, text_or_none
from specviz.ui.explore.form import Frame
from specviz.ui.explore.handlers import Handlers
from specviz.ui.registry import Registry
from specviz.ui.view import View, view_sent
from specviz.ui.visitors import asking_visitor
from specviz.views.blocks import dump
from specviz.views.explore import library
from specviz.views.explore.panels import (
    BroughtRun,
    KeptRun,
    LibraryLimits,
    PanelRefusal,
    ShippedEntry,
    StoredRun,
)
from specviz.views.learn.lesson import SHIPPED

MOST_RUNS = 30
"""Packed runs that one browser stores."""
MOST_BYTES = 24 << 20
"""Bytes of all packed runs that one browser stores."""
MOST_LETTERS = 4 * (MAX_UPLOAD_BYTES // 3 + 1)
"""Letters of a packed trace in base64."""
LIMITS = LibraryLimits(
    MOST_RUNS,
    MOST_BYTES,
    MAX_UPLOAD_BYTES,
    f"This browser stores at most {MOST_RUNS} runs and {MOST_BYTES >> 20} MB: the oldest was deleted.",
)
REFUSED = "sv-refused"
"""The event by which the browser's half learns that a file could not be opened."""


def add(frame: Frame, handlers: Handlers) -> None:
    """Adds the drawer to the page that is being built."""
    registry = frame.registry
    with gr.Column(elem_id="library"):
        upload = gr.UploadButton(
            "Open a file", file_types=[".jsonl", ".gz"], type="binary", elem_id="open", size="sm"
        )
        panel = components.panel(
            "library-panel", events=["show"], value=dump(LIMITS), calls=calls_of(registry)
        )
    opened = upload.upload(handlers.open_trace, upload, frame.stage, **QUIET)
    opened.failure(None, None, None, js=f"() => document.dispatchEvent(new Event('{REFUSED}'))")
    panel.show(show_callback(registry), None, frame.stage, **QUIET)


def calls_of(registry: Registry) -> list[Callable[[Any], Any]]:
    """The functions that the drawer calls. Each takes anything at all, and refuses in words."""

    def listed(asked: Any) -> list[ShippedEntry]:
        """The recorded runs that come with specviz."""
        return [library.shipped_entry(run) for run in shipped_runs().values()]

    def known(asked: Any) -> bool:
        """Whether a run is known here."""
        return registry.get(as_fields(asked).get("run")) is not None

    def kept(asked: Any) -> KeptRun | StoredRun | PanelRefusal | None:
        """A run for the browser to store, unless it `has` that one.

        A refusal where the run is too large, None for a run that is not known here or not the browser's to store.
        """
        fields = as_fields(asked)
        view = registry.get(fields.get("run"))
        if not _is_worth_keeping(view):
            return None
        has = fields.get("has")
        return _pack(view, has if isinstance(has, list) else [])

    def bring(asked: Any, request: gr.Request = None) -> BroughtRun | PanelRefusal:
        """Takes back a run that the browser has stored, for the server to know it again."""
        try:
            view = unpack(as_fields(asked).get("packed"))
            return BroughtRun(registry.bring(view, asking_visitor(request)).id)
        except SpecvizError as error:
            return PanelRefusal(str(error))

    return [listed, known, kept, bring]


def show_callback(registry: Registry) -> Callable[[gr.Request, gr.EventData], str]:
    @callback
    def show(request: gr.Request, event: gr.EventData) -> str:
        """Puts a run of the drawer on the stage: one that comes with specviz, or one that the browser has stored."""
        asked = data_of(event)
        name = text_or_none(asked.get("shipped"))
        view = registry.find_recorded(name) if name else unpack(asked.get("packed"))
        return registry.show(view, request.session_hash).whole()

    return show


def unpack(letters: Any) -> View:
    """The run that a browser has stored, checked as any file is. Raises SpecvizError."""
    if not isinstance(letters, str) or not 0 < len(letters) <= MOST_LETTERS:
        raise SpecvizError(
            f"this run cannot be opened: it must be a text of at most {MOST_LETTERS:,} letters"
        )
    try:
        return view_sent(base64.b64decode(letters, validate=True))
    except SpecvizError as error:
        raise SpecvizError(f"this run cannot be opened: {error}") from None
    except ValueError:
        raise SpecvizError("this run cannot be opened: the browser's copy is damaged") from None


def _is_worth_keeping(view: View | None) -> bool:
    """Whether it is a run that is over and has a step, and none that comes with specviz."""
    if view is None or view.id.startswith(SHIPPED):
        return False
    if view.trace.header is None or not view.trace.steps:
        return False
    return view.run is None or view.trace.footer is not None


def _pack(view: View, has: list[Any]) -> KeptRun | StoredRun | PanelRefusal:
    """The entry of a view with its packed lines; only its key where the browser `has` that one."""
    if view.key and view.key in has:
        return StoredRun(view.key)
    lines = exports.json_lines(view.trace).encode()
    view.key = hashlib.blake2b(lines, digest_size=16).hexdigest()
    if view.key in has:
        return StoredRun(view.key)
    file = gzip.compress(lines, 6, mtime=0)
    if len(file) > MAX_UPLOAD_BYTES:
        sizes = f"{len(file) / (1 << 20):.1f} MB; at most {MAX_UPLOAD_BYTES >> 20} MB"
        return PanelRefusal(
            f"This run is too large to store here ({sizes}): save its file under Share."
        )
    entry = library.entry(view.trace, usual_settings)
    facts = entry.facts if view.run is not None else f"{entry.facts} · opened"
    packed = base64.b64encode(file).decode("ascii")
    return KeptRun(view.key, entry.title, entry.words, facts, entry.date, len(file), packed)


def usual_settings(name: str) -> Mapping[str, Any]:
    """A method's own rule and default parameters, which an entry leaves out; empty for an unknown method."""
    method = METHODS.get(name)
    if method is None:
        return {}
    return {"rule": method.default_rule, **method.validate({})}
