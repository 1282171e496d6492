"""Who looks at what: browser session -> its current view, view id -> view. Knows no Gradio.

A view is one run (live, paused or ended) or one opened trace, with the feed that turns its records into increments.
The least recently used views are forgotten. A run whose browser left waits a while for it to come back, without
working; then it is stopped, and its trace stays.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from specviz.session import Run, Status
from specviz.shipped import shipped_trace
from specviz.trace import Event, Trace
from specviz.views.feed import Feed
from specviz.views.lessons import SHIPPED

MOST_VIEWS = 128
MOST_STEPS = 10_000
"""In all views together; a step with its records and its props takes about 25 kB."""
GRACE_S = 30.0
"""How long a run whose browser left is kept ready to go on: a reload takes seconds, a closed tab never comes back."""
PATIENCE_S = 4.0
"""How long a page that was reloaded waits until the server has noticed that the page before it is gone."""
_TOLD = ("message", "ahead", "fraction")


@dataclass(slots=True, eq=False)
class View:
    """One thing on a stage. `run` is None for an opened trace; `idle` is set while no event streams from it.

    `left`: the events of a run whose reader went away in the middle, to be gone on with. `key`: one and the same for a
    run and all its copies, as soon as it was asked for.
    """

    id: str
    feed: Feed
    trace: Trace
    run: Run | None = None
    status: Status | None = None
    num_sent: int = 0
    idle: threading.Event = field(default_factory=threading.Event)
    left: Generator[Status | Event, None, None] | None = None
    grace_s: float = GRACE_S
    key: str = ""
    _claiming: threading.Lock = field(default_factory=threading.Lock)
    _end: threading.Timer | None = None

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def is_live(self) -> bool:
        return self.run is not None and self.run.state != "finished"

    @property
    def is_shipped(self) -> bool:
        """Whether it is one of the recorded runs that come with specviz."""
        return self.id.startswith(SHIPPED)

    @property
    def is_slow(self) -> bool:
        return self.run is not None and self.run.controls.values().pace != "full"

    def claim(self) -> bool:
        """Whether the caller may stream from this view now; whoever may sets `idle` in the end."""
        with self._claiming:
            was_idle = self.idle.is_set()
            self.idle.clear()
        if was_idle:
            self.stay()
        return was_idle

    def events(self, max_steps: int | None) -> Generator[Status | Event, None, None]:
        """What comes next: from where the reader before left, or as the run gives it."""
        left, self.left = self.left, None
        return self.run.events(max_steps) if left is None else left

    def leave(self, events: Generator[Status | Event, None, None]) -> None:
        """Whoever read these events went away in the middle of them."""
        self.left = events
        self.linger()

    def linger(self) -> None:
        """Nobody watches any more: a live run stops in a while, unless somebody says `stay` before."""
        self.stay()
        if self.is_live:
            self._end = threading.Timer(self.grace_s, self._give_up)
            self._end.daemon = True
            self._end.start()

    def stay(self) -> None:
        timer, self._end = self._end, None
        if timer is not None:
            timer.cancel()

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
        first, self.num_sent = self.num_sent, len(self.feed)
        return self._message(first)

    def whole(self, *, play: bool = False) -> str:
        """Everything from the first step on, for a stage that has nothing yet. play: it replays it."""
        self.num_sent = len(self.feed)
        return self._message(0, play=play)

    def _message(self, first: int, *, play: bool = False) -> str:
        status = self.status
        told = status and {"name": status.state, **{name: getattr(status, name) for name in _TOLD}}
        message = self.feed.message(first, told, play=play)
        message = message.replace("<", "\\u003c")  # Gradio looks for script tags in texts
        return message if self.trace.header is not None else _without_head(message)

    def since(self, first: int) -> dict[str, Any] | None:
        """What a stage with `first` steps lacks; None while there is nothing but a status."""
        return None if self.trace.header is None else self.feed.since(first)

    def stop(self) -> bool:
        """Whether this ended the run; one that streams says itself that it has ended."""
        if self.run is None:
            return False
        is_over = self.run.stop()
        if self.left is not None and self.claim():
            self._drop_left()
            self.idle.set()
            return True
        return is_over

    def _drop_left(self) -> None:
        left, self.left = self.left, None
        if left is not None:
            left.close()
        if self.trace.footer is not None:
            self.take_record(self.trace.footer)

    def _give_up(self) -> None:
        """Nobody came back."""
        if self.stop() and self.claim():
            for footer in self.run.events():
                self.take_record(footer)
            self.idle.set()


def _without_head(message: str) -> str:
    """A stage keeps the first head it gets, so one that does not know the prompt yet must not arrive."""
    return json.dumps({name: value for name, value in json.loads(message).items() if name != "head"})


class Registry:
    """Thread-safe; every method is a few dictionary operations."""

    def __init__(self, most_views: int = MOST_VIEWS, most_steps: int = MOST_STEPS, grace_s: float = GRACE_S) -> None:
        self._most_views, self._most_steps = most_views, most_steps
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._views: OrderedDict[str, View] = OrderedDict()  # the least recently used first
        self._current: dict[str, View] = {}

    def add_run(self, session: str, run: Run) -> View:
        """Make `run` the session's current view; what the session ran before is stopped."""
        return self._keep(View(run.id, Feed(run.id), run.trace, run), session)

    def add_trace(self, session: str, trace: Trace) -> View:
        """Make a loaded trace the session's current view."""
        return self._keep(view_of(trace), session)

    def keep(self, trace: Trace) -> View:
        """A view of a loaded trace that is nobody's current one."""
        return self.show(view_of(trace), None)

    def recorded(self, name: str) -> View:
        """The one view of a recorded run that comes with specviz, which all visitors share. Raises SpecvizError."""
        trace, view_id = shipped_trace(name), f"{SHIPPED}{name}"
        return self.get(view_id) or view_of(trace, view_id)

    def show(self, view: View, session: str | None) -> View:
        """Make a view that already is one the session's current view."""
        return self._keep(view, session)

    def _keep(self, view: View, session: str | None) -> View:
        with self._lock:
            view.grace_s = self._grace_s
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
        """A browser went away: its work waits for it to come back, in vain it is stopped; its trace stays."""
        with self._lock:
            view = self._current.pop(session, None)
            is_watched = view in self._current.values()
        if view is not None and not is_watched:
            view.linger()

    def adopt(self, session: str, view_id: object, patience_s: float = PATIENCE_S) -> View | None:
        """Give a page that was reloaded what it had before: an ended view at once, a live one when it is free.

        None for what is not known, for a run that another page still works with, and if this one has begun another.
        """
        deadline = time.monotonic() + patience_s
        while (view := self.get(view_id)) is not None:
            if self._bind(session, view):
                return view if self.current(session) is view else None
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)
        return None

    def _bind(self, session: str, view: View) -> bool:
        with self._lock:
            others = [shown for name, shown in self._current.items() if name != session]
            is_free = view.idle.is_set() and view not in others
            if is_bound := is_free or not view.is_live:
                self._current.setdefault(session, view)
        if is_bound:
            view.stay()
        return is_bound

    def num_running(self) -> int:
        return sum(not view.idle.is_set() for view in list(self._views.values()))


def view_of(trace: Trace, view_id: str = "") -> View:
    """A view of a loaded trace, under an id that nobody can guess where it is given none."""
    view_id = view_id or uuid.uuid4().hex
    return View(view_id, Feed.from_trace(trace, view_id), trace)
