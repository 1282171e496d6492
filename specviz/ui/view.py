"""One thing on a stage: a run (live, paused or ended) or one opened trace, with the feed that turns its records into
increments. Knows no Gradio.

A live run whose reader went away waits a while for somebody to go on with it, without working; then it is stopped.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from specviz.session.run import Run, Status
from specviz.trace.file import Event, Footer, Trace
from specviz.views.compare.side_by_side_player import comparison_words
from specviz.views.explore.feed import CUT_OFF, Feed
from specviz.views.learn.lesson import SHIPPED

GRACE_S = 30.0
"""How long a run whose browser left is kept ready to go on: a reload takes seconds, a closed tab never comes back."""
_TOLD = ("message", "ahead", "fraction")


@dataclass(slots=True, eq=False)
class View:
    """One thing on a stage. `run` is None for an opened trace; `idle` is set while no event streams from it.

    `unended`: what a file of it says in place of an end that it does not have. `left`: the events of a run whose reader
    went away in the middle, to be gone on with. `key`: one and the same for a run and all its copies, as soon as it was
    asked for. `twin`: finds another run whose text should be this one's.
    """

    id: str
    feed: Feed
    trace: Trace
    run: Run | None = None
    unended: str = CUT_OFF
    status: Status | None = None
    num_sent: int = 0
    idle: threading.Event = field(default_factory=threading.Event)
    left: Generator[Status | Event, None, None] | None = None
    grace_s: float = GRACE_S
    key: str = ""
    is_brought: bool = False
    twin: Callable[[View], Trace | None] = lambda view: None
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
        return self.run is not None and self.run.controls.read().pace != "full"

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
        if isinstance(record, Footer) and (other := self.twin(self)) is not None:
            self.feed.set_comparison(comparison_words(self.trace, other))
        self.status = Status(self.run.state)

    def increment(self) -> str:
        """What the stage has not been sent yet, with the present state."""
        first, self.num_sent = self.num_sent, len(self.feed)
        return self._message(first, self.status)

    def whole(self, *, play: bool = False, status: Status | None = None) -> str:
        """Everything from the first step on, for a stage that has nothing yet. play: it replays it; status: in place of
        its own."""
        self.num_sent = len(self.feed)
        return self._message(0, status or self.status, play=play)

    def _message(self, first: int, status: Status | None, *, play: bool = False) -> str:
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


def view_of(trace: Trace, view_id: str = "") -> View:
    """A view of a loaded trace, under an id that nobody can guess where it is given none."""
    view_id = view_id or uuid.uuid4().hex
    return View(view_id, Feed.from_trace(trace, view_id), trace)
