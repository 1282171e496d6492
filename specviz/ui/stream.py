"""A run's records as JSON increments for one stage, gathered while nobody could see the difference. Knows no Gradio."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from specviz.errors import SpecvizError
from specviz.session.run import Status
from specviz.trace.file import Step
from specviz.ui.view import View

FLUSH_S = 0.05
"""At full pace: 20 increments a second are all an eye needs; at the slower paces every step goes out at once."""


def increments(view: View, warn: Callable[[str], None], max_steps: int | None = None) -> Iterator[str]:
    """Drive the view's run until it ends, pauses or has made `max_steps`.

    Closing this generator leaves the run where it is for a while; whoever streams from it next goes on with it.
    `warn` is told what the running run has to say, such as a change it could not make. Nothing comes of a second
    stream from a run that is streaming already.
    """
    if not view.claim():
        return
    events = view.events(max_steps)
    try:
        yield from _gathered(view, events, warn)
        yield view.increment()
    except GeneratorExit:
        view.leave(events)
        raise
    except SpecvizError as error:
        view.status = Status(view.run.state, str(error))
        yield view.increment()
        raise
    finally:
        view.idle.set()


def _gathered(view: View, events: Iterator[object], warn: Callable[[str], None]) -> Iterator[str]:
    flushed_at = 0.0
    for event in events:
        if isinstance(event, Status):
            is_due = view.take_status(event)
            if event.state == "running" and event.message:
                warn(event.message)
        else:
            view.take_record(event)
            is_due = isinstance(event, Step) and (view.is_slow or time.monotonic() - flushed_at >= FLUSH_S)
        if is_due:
            yield view.increment()
            flushed_at = time.monotonic()
