"""The lesson beside the page: its texts, its recorded runs on the stage, and its setup in the fields."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gradio as gr
from msgspec.structs import replace

from specviz.errors import SpecvizError
from specviz.lessons.load import found_lessons
from specviz.lessons.types import Lesson
from specviz.request import Request
from specviz.settings import settings
from specviz.ui import components
from specviz.ui.choices import make_offer
from specviz.ui.events import QUIET, as_fields, callback, data_of
from specviz.ui.explore.form import Frame
from specviz.views.explore.panels import PanelRefusal
from specviz.views.learn.lesson import LessonPanel, lesson_props

GONE = "there is no such lesson: choose one on the Learn page"


def add(frame: Frame, pass_ms: Mapping[str, Sequence[float]]) -> None:
    """Adds the panel to the page that is being built. pass_ms: `lesson_props`' own, which may grow."""
    lesson, show, setup = callbacks_of(frame, pass_ms)
    panel = components.panel("lesson", events=["show", "setup"], calls=[lesson])
    # a second screen is shown even while the run of the first one is still on its way
    panel.show(show, None, frame.stage, trigger_mode="multiple", **QUIET)
    frame.fill(panel.setup, setup)


def callbacks_of(
    frame: Frame, pass_ms: Mapping[str, Sequence[float]]
) -> tuple[Callable[..., Any], ...]:
    """The functions that the panel calls and triggers: `lesson`, `show` and `setup`."""

    def lesson(data: Any) -> LessonPanel | PanelRefusal:
        """The lesson of this name for the panel: {"name"} -> the lesson, or why there is none."""
        try:
            found = _find_lesson(as_fields(data))
            shown = lesson_props(found.name, pass_ms=pass_ms)
            return replace(shown, not_live=_why_not_live(found, frame))
        except SpecvizError as error:
            return PanelRefusal(str(error))

    @callback
    def show(request: gr.Request, event: gr.EventData) -> str:
        """Puts a recorded run on the stage; `play`: it is replayed from its first step on."""
        screen = data_of(event)
        view = frame.registry.find_recorded(str(screen.get("run")))
        begin = "play" if screen.get("play") is True else ""
        return frame.registry.show(view, request.session_hash).whole(begin=begin)

    @callback
    def setup(event: gr.EventData) -> list[Any]:
        """Puts a lesson's setup into the fields; nothing runs."""
        found = _find_lesson(data_of(event))
        if found.setup is None:
            raise SpecvizError("this lesson has no setup to try")
        fields = dict(zip(frame.form.names, _fill(found, frame), strict=True))
        if "pace" in fields and found.pace is not None:
            fields["pace"] = found.pace
        return list(fields.values())

    return lesson, show, setup


def _find_lesson(data: Mapping[str, Any]) -> Lesson:
    """The lesson that the browser names. Raises SpecvizError."""
    name = data.get("name")
    found = found_lessons().lessons.get(name) if isinstance(name, str) else None
    if found is None:
        raise SpecvizError(GONE)
    return found


def _why_not_live(lesson: Lesson, frame: Frame) -> str:
    """The reason why the lesson's setup cannot be tried here; empty where it can, or where there is none."""
    try:
        if lesson.setup is not None:
            _fill(lesson, frame)
    except SpecvizError as error:
        return str(error)
    return ""


def _fill(lesson: Lesson, frame: Frame) -> list[Any]:
    """Updates that put the lesson's setup into the fields. Raises SpecvizError."""
    return frame.form.fill(live_request(lesson, make_offer().first), frame.offer)


def live_request(lesson: Lesson, first: Request) -> Request:
    """The request to try live, no longer than is allowed here. Raises SpecvizError."""
    values = {**first.to_dict(), **lesson.setup}
    values["max_new_tokens"] = min(values["max_new_tokens"], settings().max_new_tokens)
    return Request.from_dict(values)
