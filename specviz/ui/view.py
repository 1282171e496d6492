"""The view: one thing on a stage, with the feed that turns its records into JSON increments. It knows no Gradio.

A live run without a reader waits a while for the next one, without working; then it is stopped.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from specviz.analysis.given_text import reader_of
from specviz.errors import SpecvizError
from specviz.session.run import Run, Status
from specviz.trace import Event, Footer, Step, Trace, TraceError
from specviz.trace.engines.dspark import read_run
from specviz.ui.measuring import Measurement
from specviz.views.compare.side_by_side_player import comparison_words
from specviz.views.explore.feed import INCOMPLETE, Feed, show_state

BYTES_PER_CHARACTER = 3
"""Memory of a feed for each character of its text. The records that it was made of take no more than that again."""
GRACE_S = 30.0
"""Seconds that a run waits for a browser that left: a reload takes seconds, a closed tab never comes back."""
MEASURING_GRACE_S = 300.0
"""Seconds that a measurement waits. It takes minutes on a slow machine: a phone sleeps, a tab is hidden."""
FLUSH_S = 0.05
"""Seconds between two increments at full pace: an eye needs no more. At the slower paces, and where others have the
engine before the next step, every step is sent at once."""
MOST_CPU_S = 1.0
"""Seconds of work that the records of a stranger's file may take: a run of 5,000 steps takes half of that."""
MOST_SHOWN_CPU_S = 8.0
"""Seconds of work that the feed of such a file may take: a run of 5,000 steps takes a fifth of that."""
_waiting = threading.BoundedSemaphore(32)
_at_once = threading.BoundedSemaphore(2)
"""Two files of strangers are read at a time; a few more may wait."""


@dataclass(slots=True, eq=False)
class View:
    """A thing on a stage: a run that is live, paused or over, or a trace that was opened."""

    id: str
    feed: Feed
    trace: Trace
    run: Run | None = None
    """The run that writes the trace; None for an opened trace."""
    unended: str = INCOMPLETE
    """The words that its file shows where the trace has no end."""
    status: Status | None = None
    """The newest status of the run; None for an opened trace."""
    num_sent: int = 0
    """The number of steps that the stage has been sent."""
    idle: threading.Event = field(default_factory=threading.Event)
    """Set while nobody streams from this view."""
    left: Generator[Status | Event, None, None] | None = None
    """The events of a run that was left by its reader; the next reader goes on with them."""
    grace_s: float = GRACE_S
    """Seconds that a run waits for the next reader before it is stopped."""
    key: str = ""
    """The hash of the trace's lines, once somebody asked for it."""
    is_brought: bool = False
    """Whether a browser has stored this view and brought it back."""
    owner: str = ""
    """The visitor who made this run or brought it here; "" for what came with specviz."""
    twin: Callable[[View], Trace | None] = lambda view: None
    """The function that finds another run with a text that should be the same."""
    measurement: Measurement | None = None
    """The newest measurement of the run's speed."""
    _claiming: threading.Lock = field(default_factory=threading.Lock)
    _end: threading.Timer | None = None
    """The timer that stops a run without a reader."""

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def is_live(self) -> bool:
        return self.run is not None and self.run.state != "finished"

    @property
    def reader(self) -> str | None:
        """The target that reads the text again for another K. None for a file's trace, which may name any model."""
        return None if self.run is None else reader_of(self.trace)

    @property
    def num_bytes(self) -> int:
        """The memory that the feed and its records take, about. Without a known size, records take as much as the
        feed."""
        feed = BYTES_PER_CHARACTER * self.feed.num_characters
        return feed + max(feed, self.trace.num_bytes)

    def claim(self) -> bool:
        """Whether the caller may stream from this view now. A caller who may must set `idle` in the end."""
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
        """Notes that nobody watches any more: a live run and a measurement stop in a while, unless `stay` comes
        first."""
        self.stay()
        if self.is_live or self.is_measured:
            seconds = self.grace_s if self.is_live else MEASURING_GRACE_S
            self._end = threading.Timer(seconds, self._give_up)
            self._end.daemon = True
            self._end.start()

    def stay(self) -> None:
        """Calls off what `linger` began."""
        timer = self._end
        self._end = None
        if timer is not None:
            timer.cancel()

    def take_record(self, record: Event) -> None:
        """Adds a record, which means that the run is at work, whatever it was waiting for before."""
        self.feed.add(record)
        if isinstance(record, Footer):
            twin = self.twin(self)
            if twin is not None:
                self.feed.comparison = comparison_words(self.trace, twin)
        self.status = Status(self.run.state)

    def increment(self) -> str:
        """A message with the steps that the stage has not been sent yet, and with the present state."""
        first = self.num_sent
        self.num_sent = len(self.feed)
        return self._message(first, self.status)

    def whole(self, *, begin: str = "", status: Status | None = None) -> str:
        """A message with everything from the first step on, for an empty stage. begin: see Feed.message; status:
        replaces the view's own."""
        self.num_sent = len(self.feed)
        return self._message(0, status or self.status, begin)

    def _message(self, first: int, status: Status | None, begin: str = "") -> str:
        state = None
        if status is not None:
            state = show_state(status.state, status.message, status.ahead, status.fraction)
        message = self.feed.message(first, state, begin)
        return message.replace("<", "\\u003c")  # Gradio looks for script tags in texts

    def since(self, first: int) -> str | None:
        """The message that a stage with `first` steps lacks; None while there is nothing but a status."""
        if self.trace.header is None:
            return None
        return self.feed.message(first)

    def stop(self) -> bool:
        """Stops the run, and returns whether that ended it. A run that streams reports its end itself."""
        self.stop_measuring()
        if self.run is None:
            return False
        is_over = self.run.stop()
        if self.left is None or not self.claim():
            return is_over
        left = self.left
        self.left = None
        if left is not None:
            left.close()
        self.status = Status(self.run.state)
        # of several steps in a turn some were not read
        for step in self.trace.steps[len(self.feed) :]:
            self.take_record(step)
        if self.trace.footer is not None:
            self.take_record(self.trace.footer)
        self.idle.set()
        return True

    def _give_up(self) -> None:
        """Stops the run and reads its end: nobody came back."""
        if self.stop() and self.claim():
            for footer in self.run.events():
                self.take_record(footer)
            self.idle.set()


def view_of(trace: Trace, view_id: str = "", max_cpu_s: float = math.inf) -> View:
    """A view of a loaded trace, under an id that nobody can guess or the given one. Raises TraceError beyond
    `max_cpu_s`."""
    view_id = view_id or uuid.uuid4().hex
    return View(view_id, Feed.from_trace(trace, view_id, max_cpu_s=max_cpu_s), trace)


def view_sent(content: bytes) -> View:
    """The view of a trace that a stranger sent as bytes. Raises TraceError."""
    if not _waiting.acquire(blocking=False):
        raise TraceError("must wait: too many are being read here just now, try again", "the file")
    try:
        with _at_once:
            return view_of(read_run(content, max_cpu_s=MOST_CPU_S), max_cpu_s=MOST_SHOWN_CPU_S)
    finally:
        _waiting.release()


def measured(view: View) -> Iterator[str]:
    """The increments of the view's measurement, until it is over. It goes on when this generator is closed."""
    measurement = view.measurement
    shown = None
    while not measurement.wait(FLUSH_S):
        progress = view.feed.measuring
        if progress != shown:
            shown = progress
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
    """Drives the view's run until it ends, pauses or has made `max_steps`; empty while another stream does so.

    A closed generator leaves the run where it is for a while, and the next stream goes on with it. `warn` gets the
    messages of the running run, such as a change that it could not make.
    """
    if not view.claim():
        return
    events = view.left
    view.left = None
    if events is None:
        events = view.run.events(max_steps)
    flushed_at = 0.0
    try:
        for event in events:
            if isinstance(event, Status):
                is_due = event != view.status
                view.status = event
                if event.state == "running" and event.message:
                    warn(event.message)
            else:
                view.take_record(event)
                is_due = isinstance(event, Step) and _is_step_due(view.run, flushed_at)
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


def _is_step_due(run: Run, flushed_at: float) -> bool:
    """Whether a new step is sent at once, after an increment at `flushed_at`. At full pace it may wait for others."""
    if run.controls.read().pace != "full" or len(run.bench.engine) > 0:
        return True
    return time.monotonic() - flushed_at >= FLUSH_S
