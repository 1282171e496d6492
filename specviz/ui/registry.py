"""Who looks at what: browser session -> its current view, view id -> view. Knows no Gradio.

A view is one run (live, paused or ended) or one opened trace, with the feed that turns its records into increments.
The least recently used views are forgotten; a session that leaves stops its work but its trace stays.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from specviz.session import Run, Status
from specviz.trace import Event, Trace
from specviz.views.feed import Feed

MOST_VIEWS = 128
MOST_STEPS = 10_000
"""In all views together; a step with its records and its props takes about 25 kB."""


@dataclass(slots=True, eq=False)
class View:
    """One thing on a stage. `run` is None for an opened trace; `idle` is set while no event streams from it."""

    id: str
    feed: Feed
    trace: Trace
    run: Run | None = None
    status: Status | None = None
    num_sent: int = 0
    idle: threading.Event = field(default_factory=threading.Event)
    _claiming: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def is_live(self) -> bool:
        return self.run is not None and self.run.state != "finished"

    @property
    def is_slow(self) -> bool:
        return self.run is not None and self.run.controls.values().pace != "full"

    def claim(self) -> bool:
        """Whether the caller may stream from this view now; whoever may sets `idle` in the end."""
        with self._claiming:
            was_idle = self.idle.is_set()
            self.idle.clear()
            return was_idle

    def take_status(self, status: Status) -> bool:
        """Whether this is news to the stage."""
        before, self.status = self.status, status
        return status != before

    def take_record(self, record: Event) -> None:
        """A record means that the run is at work, whatever it was waiting for before."""
        self.feed.add(record)
        self.status = Status(self.run.state)

    def increment(self) -> str:
        """What the stage has not been sent yet, with the present state."""
        status = self.status and {"name": self.status.state, "message": self.status.message, "ahead": self.status.ahead}
        first, self.num_sent = self.num_sent, len(self.feed)
        message = self.feed.message(first, status).replace("<", "\\u003c")  # Gradio looks for script tags in texts
        return message if self.trace.header is not None else _without_head(message)

    def since(self, first: int) -> dict[str, Any] | None:
        """What a stage with `first` steps lacks; None while there is nothing but a status."""
        return None if self.trace.header is None else self.feed.since(first)

    def stop(self) -> bool:
        """Whether this ended the run; one that streams says itself that it has ended."""
        return self.run is not None and self.run.stop()


def _without_head(message: str) -> str:
    """A stage keeps the first head it gets, so one that does not know the prompt yet must not arrive."""
    return json.dumps({name: value for name, value in json.loads(message).items() if name != "head"})


class Registry:
    """Thread-safe; every method is a few dictionary operations."""

    def __init__(self, most_views: int = MOST_VIEWS, most_steps: int = MOST_STEPS) -> None:
        self._most_views, self._most_steps = most_views, most_steps
        self._lock = threading.Lock()
        self._views: OrderedDict[str, View] = OrderedDict()  # the least recently used first
        self._current: dict[str, View] = {}

    def add_run(self, session: str, run: Run) -> View:
        """Make `run` the session's current view; what the session ran before is stopped."""
        return self._keep(View(run.id, Feed(run.id), run.trace, run), session)

    def add_trace(self, session: str, trace: Trace) -> View:
        """Make a loaded trace the session's current view."""
        return self._keep(_view_of(trace), session)

    def keep(self, trace: Trace) -> View:
        """A view of a loaded trace that is nobody's current one."""
        return self._keep(_view_of(trace), None)

    def _keep(self, view: View, session: str | None) -> View:
        with self._lock:
            self._views[view.id] = view
            previous = self._current.get(session)
            if session is not None:
                self._current[session] = view
            leaving = [*self._forget(), *([previous] if previous else [])]
        for old in leaving:
            old.stop()
        return view

    def _forget(self) -> list[View]:
        """Takes out the least recently used views until the rest fits; the newest and those that stream stay."""
        forgotten = []
        for old in list(self._views.values())[:-1]:
            num_steps = sum(len(view.feed) for view in self._views.values())
            if len(self._views) <= self._most_views and num_steps <= self._most_steps:
                break
            if old.idle.is_set():
                forgotten.append(self._views.pop(old.id))
        self._current = {session: view for session, view in self._current.items() if view.id in self._views}
        return forgotten

    def current(self, session: str) -> View | None:
        return self._current.get(session)

    def get(self, view_id: object) -> View | None:
        """The view with this id, now the most recently used; anything that is not a known id gives None."""
        with self._lock:
            view = self._views.get(view_id) if isinstance(view_id, str) else None
            if view is not None:
                self._views.move_to_end(view_id)
            return view

    def leave(self, session: str) -> None:
        """A browser went away: stop its work, keep its trace."""
        with self._lock:
            view = self._current.pop(session, None)
        if view is not None:
            view.stop()

    def num_running(self) -> int:
        return sum(not view.idle.is_set() for view in list(self._views.values()))


def _view_of(trace: Trace) -> View:
    view_id = uuid.uuid4().hex
    return View(view_id, Feed.from_trace(trace, view_id), trace)
