"""One thing on a stage: a run (live, paused or ended) or one opened trace, with the feed that turns its records into
JSON increments. Knows no Gradio.

A live run whose reader left waits a while for the next one, without working; then it is stopped.
"""

from __future__ import annotations

import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from specviz.analysis.given_text import reader_of
from specviz.errors import SpecvizError
from specviz.session.run import Run, Status
from specviz.trace import Event, Footer, Step, Trace, TraceError, read_trace
from specviz.ui.measuring import Measurement
from specviz.views.compare.side_by_side_player import comparison_words
from specviz.views.explore.feed import INCOMPLETE, Feed

BYTES_PER_CHARACTER = 3
"""Of a feed, with all that it keeps beside its text; the records that it was made of take no more than that again."""
GRACE_S = 30.0
"""How long a run whose browser left is kept ready to go on: a reload takes seconds, a closed tab never comes back."""
MEASURING_GRACE_S = 300.0
"""The same for a measurement, which takes minutes on a slow machine: a phone sleeps, a tab is hidden."""
FLUSH_S = 0.05
"""At full pace: 20 increments a second are all an eye needs. At the slower paces, and where others have the engine
before the next step, every step is sent at once."""
MOST_CPU_S, MOST_SHOWN_CPU_S = 1.0, 8.0
"""For the records of a stranger's file, and for what is shown of them: a run of 5,000 steps takes half of each."""
_waiting, _at_once = threading.BoundedSemaphore(32), threading.BoundedSemaphore(2)
"""Two such files are read at a time; a few more may wait."""


@dataclass(slots=True, eq=False)
class View:
    """One thing on a stage. `run` is None for an opened trace; `idle` is set while no event streams from it.

    `unended`: the words of its file where it has no end. `left`: the events of a run whose reader left early; the
    next reader goes on with them. `key`: the hash of its lines, once it was asked for. `twin`: finds another run
    whose text should be this one's. `owner`: the visitor who brought it here; "" for what came with specviz.
    `measurement`: the newest one of its speed.
    """

    id: str
    feed: Feed
    trace: Trace
    run: Run | None = None
    unended: str = INCOMPLETE
    status: Status | None = None
    num_sent: int = 0
    idle: threading.Event = field(default_factory=threading.Event)
    left: Generator[Status | Event, None, None] | None = None
    grace_s: float = GRACE_S
    key: str = ""
    is_brought: bool = False
    owner: str = ""
    twin: Callable[[View], Trace | None] = lambda view: None
    measurement: Measurement | None = None
    _claiming: threading.Lock = field(default_factory=threading.Lock)
    _end: threading.Timer | None = None

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def is_live(self) -> bool:
        return self.run is not None and self.run.state != "finished"

    @property
    def reader(self) -> str | None:
        """The target that reads the text again for another K; only of a run made here, as files may name any model."""
        return None if self.run is None else reader_of(self.trace)

    @property
    def num_bytes(self) -> int:
        """What it takes in memory, about: of its records as they were read, else as of its feed, and of its feed."""
        feed = BYTES_PER_CHARACTER * self.feed.num_characters
        return feed + max(feed, self.trace.num_bytes)

    def claim(self) -> bool:
        """Whether the caller may stream from this view now; whoever may sets `idle` in the end."""
        with self._claiming:
            was_idle = self.idle.is_set()
            self.idle.clear()
        if was_idle:
            self.stay()
            self.stop_measuring()  # a run that goes on would slow it down
        return was_idle

    @property
    def is_measured(self) -> bool:
        return self.measurement is not None and self.measurement.goes_on

    def stop_measuring(self) -> None:
        if self.measurement is not None:
            self.measurement.stop()

    def linger(self) -> None:
        """Nobody watches any more: a live run and a measurement stop in a while, unless `stay` is called before."""
        self.stay()
        if self.is_live or self.is_measured:
            self._end = threading.Timer(
                self.grace_s if self.is_live else MEASURING_GRACE_S, self._give_up
            )
            self._end.daemon = True
            self._end.start()

    def stay(self) -> None:
        timer, self._end = self._end, None
        if timer is not None:
            timer.cancel()

    def take_record(self, record: Event) -> None:
        """Add a record, which means that the run is at work, whatever it was waiting for before."""
        self.feed.add(record)
        if isinstance(record, Footer) and (other := self.twin(self)) is not None:
            self.feed.comparison = comparison_words(self.trace, other)
        self.status = Status(self.run.state)

    def increment(self) -> str:
        """What the stage has not been sent yet, with the present state."""
        first, self.num_sent = self.num_sent, len(self.feed)
        return self._message(first, self.status)

    def whole(self, *, begin: str = "", status: Status | None = None) -> str:
        """Everything from the first step on, for an empty stage. begin: see Feed.message; status: replaces its own."""
        self.num_sent = len(self.feed)
        return self._message(0, status or self.status, begin)

    def _message(self, first: int, status: Status | None, begin: str = "") -> str:
        names = ("message", "ahead", "fraction")
        state = status and {"name": status.state, **{name: getattr(status, name) for name in names}}
        message = self.feed.message(first, state, begin)
        if (
            self.trace.header is None
        ):  # a stage keeps the first head it gets: one without a prompt must not arrive
            message = json.dumps(
                {name: value for name, value in json.loads(message).items() if name != "head"}
            )
        return message.replace("<", "\\u003c")  # Gradio looks for script tags in texts

    def since(self, first: int) -> dict[str, Any] | None:
        """What a stage with `first` steps lacks; None while there is nothing but a status."""
        return None if self.trace.header is None else self.feed.since(first)

    def stop(self) -> bool:
        """Whether this ended the run; one that streams reports its end itself."""
        self.stop_measuring()
        if self.run is None:
            return False
        is_over = self.run.stop()
        if self.left is None or not self.claim():
            return is_over
        left, self.left = self.left, None
        if left is not None:
            left.close()
        self.status = Status(self.run.state)
        last = () if self.trace.footer is None else (self.trace.footer,)
        for record in (
            *self.trace.steps[len(self.feed) :],
            *last,
        ):  # of several steps in a turn some were not read
            self.take_record(record)
        self.idle.set()
        return True

    def _give_up(self) -> None:
        """Nobody came back."""
        if self.stop() and self.claim():
            for footer in self.run.events():
                self.take_record(footer)
            self.idle.set()


def view_of(trace: Trace, view_id: str = "", max_cpu_s: float = math.inf) -> View:
    """A view of a loaded trace, under an id that nobody can guess or the given one. TraceError beyond `max_cpu_s`."""
    view_id = view_id or uuid.uuid4().hex
    return View(view_id, Feed.from_trace(trace, view_id, max_cpu_s=max_cpu_s), trace)


def view_sent(content: bytes) -> View:
    """The view of the trace in bytes that a stranger sent. Raises TraceError."""
    if not _waiting.acquire(blocking=False):
        raise TraceError("must wait: too many are being read here just now, try again", "the file")
    try:
        with _at_once:
            return view_of(read_trace(content, max_cpu_s=MOST_CPU_S), max_cpu_s=MOST_SHOWN_CPU_S)
    finally:
        _waiting.release()


def measured(view: View) -> Iterator[str]:
    """What the stage shows of the view's measurement, until that is over. Closing this leaves it going on."""
    measurement, told = view.measurement, None
    while not measurement.wait(FLUSH_S):
        if told != (told := view.feed.measuring):
            yield view.increment()
    yield view.increment()
    if measurement.refusal:
        raise SpecvizError(measurement.refusal)


def what_goes_on(view: View, warn: Callable[[str], None]) -> Iterator[str]:
    """The increments of a run that was left, or of a measurement; empty where there is neither."""
    if view.left is not None:
        yield from increments(view, warn)
    elif view.is_measured:
        yield from measured(view)


def increments(
    view: View, warn: Callable[[str], None], max_steps: int | None = None
) -> Iterator[str]:
    """Drive the view's run until it ends, pauses or has made `max_steps`; empty while another stream does so.

    Closing this generator leaves the run where it is for a while; whoever streams from it next goes on with it.
    `warn` gets the messages of the running run, such as a change that it could not make.
    """
    if not view.claim():
        return
    left, view.left = view.left, None
    events = view.run.events(max_steps) if left is None else left
    flushed_at = 0.0
    try:
        for event in events:
            if isinstance(event, Status):
                is_due, view.status = event != view.status, event
                if event.state == "running" and event.message:
                    warn(event.message)
            else:
                view.take_record(event)
                must_wait = (
                    view.run.controls.read().pace != "full" or len(view.run.bench.engine) > 0
                )
                is_due = isinstance(event, Step) and (
                    must_wait or time.monotonic() - flushed_at >= FLUSH_S
                )
            if is_due:
                yield view.increment()
                flushed_at = time.monotonic()
        yield view.increment()
    except GeneratorExit:
        view.left = events
        view.linger()
        raise
    except SpecvizError as error:
        view.status = Status(view.run.state, str(error))
        yield view.increment()
        raise
    finally:
        view.idle.set()
