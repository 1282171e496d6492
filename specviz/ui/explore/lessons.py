"""The lesson beside the page: its texts, its recorded runs on the stage, and its setup in the fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.lessons.load import found_lessons
from specviz.lessons.types import Lesson
from specviz.request import Request
from specviz.settings import settings
from specviz.ui import components
from specviz.ui.explore.frame import QUIET, Frame
from specviz.ui.explore.handlers import speaks, told
from specviz.views.learn.lesson import lesson_props

GONE = "there is no such lesson: choose one on the Learn page"


def add(frame: Frame) -> None:
    """Makes the panel and wires it."""
    panel = components.panel("lesson", events=["show", "setup"], calls=[_asked(frame)])
    # a screen that is turned to while the run of another one is still on its way is shown as well
    panel.show(_showing(frame), None, frame.stage, trigger_mode="multiple", **QUIET)
    frame.fill(panel.setup, _filling(frame))


def _asked(frame: Frame) -> Callable[[Any], dict[str, Any]]:
    def lesson(data: Any) -> dict[str, Any]:
        """One lesson for the panel: {"name"} -> its props, or {"refusal"}: why there are none."""
        try:
            found = _named(data)
            return {**lesson_props(found.name), "refusal": "", "not_live": _not_live(found, frame)}
        except SpecvizError as error:
            return {"refusal": str(error)}

    return lesson


def _named(data: Any) -> Lesson:
    """The lesson that the browser names. Raises SpecvizError."""
    name = data.get("name") if isinstance(data, dict) else None
    found = found_lessons().lessons.get(name) if isinstance(name, str) else None
    if found is None:
        raise SpecvizError(GONE)
    return found


def _not_live(lesson: Lesson, frame: Frame) -> str:
    """Why the lesson's setup cannot be tried here; nothing where it can, or where there is none."""
    if lesson.setup is None:
        return ""
    try:
        frame.form.showing(live_request(lesson, frame.offer.first), frame.offer)
    except SpecvizError as error:
        return str(error)
    return ""


def live_request(lesson: Lesson, first: Request) -> Request:
    """The request to try live, no longer than is allowed here. Raises SpecvizError."""
    wanted = {**first.to_dict(), **lesson.setup}
    most = min(wanted["max_new_tokens"], settings().max_new_tokens)
    return Request.from_dict({**wanted, "max_new_tokens": most})


def _showing(frame: Frame) -> Callable[..., str]:
    @speaks
    def show(request: gr.Request, event: gr.EventData) -> str:
        """Puts a recorded run on the stage; `play`: it is replayed from its first step on."""
        given = told(event)
        view = frame.registry.recorded(str(given.get("run")))
        return frame.registry.show(view, request.session_hash).whole(play=given.get("play") is True)

    return show


def _filling(frame: Frame) -> Callable[..., list[Any]]:
    @speaks
    def setup(event: gr.EventData) -> list[Any]:
        """Puts a lesson's setup into the fields; nothing runs."""
        lesson = _named(told(event))
        if lesson.setup is None:
            raise SpecvizError("this lesson has no setup to try")
        fields = frame.form.showing(live_request(lesson, frame.offer.first), frame.offer)
        if lesson.pace is None:
            return fields
        return [lesson.pace if name == "pace" else each for name, each in zip(frame.form.names, fields, strict=True)]

    return setup
