"""The trace of one generation: its events in order, and its file (JSON lines, version 1).

`Trace` refuses an event that cannot come next. A file without a footer, or shortened anywhere, loads up to its last
whole line. Saving a loaded trace gives the same bytes. Every fault of a file is a TraceError with the line.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from specviz.trace.events import (
    EmittedToken,
    Event,
    Footer,
    Header,
    Models,
    Scores,
    Step,
    dump_event,
    parse_event,
)
from specviz.trace.lines import (
    as_bytes,
    held_bytes,
    line_sink,
    numbered_lines,
    parse_line,
    unpack,
    write_lines,
)
from specviz.trace.values import TraceError, require, stopwatch

MAX_UPLOAD_BYTES = 8 << 20
MAX_UNPACKED_BYTES = 64 << 20
MAX_STEPS = 5_000
MAX_LOCAL_STEPS = 1_000_000  # as long as the longest run
MAX_HELD_BYTES = 256 << 20
"""The most memory that a trace may take; in memory an empty list takes far more than its two characters."""


class Trace:
    """The events of one generation in order, growing while it runs; equal when all events are."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.header: Header | None = None
        self.models: list[Models] = []
        self.steps: list[Step] = []
        self.scores: list[Scores] = []
        self.footer: Footer | None = None
        self._events: list[Event] = []
        self._num_emitted = 0
        self.num_bytes = 0  # in memory, estimated from the lines that were read; else 0
        for event in events:
            self.append(event)

    def append(self, event: Event) -> Event:
        """Adds the next event and returns it. Raises TraceError, and changes nothing, if it cannot stand here."""
        if not isinstance(event, Event):
            raise ValueError(
                f"event must be a record of specviz.trace.file (got {type(event).__name__})"
            )
        if (self.header is None) != isinstance(event, Header):
            is_first = self.header is None
            raise TraceError(
                "the first event must be the header" if is_first else "a second header"
            )
        match event:
            case Header():
                self.header = event
            case Models():
                self.models.append(event)
            case Step():
                require(self.models, "step", "stands before the first models event")
                require(self.footer is None, "step", "stands after the footer")
                index = len(self.steps)
                require(event.index == index, "step.index", f"must be {index} (got {event.index})")
                self.steps.append(event)
                self._num_emitted += len(event.emitted)
            case Scores():
                problem = f"must hold one value per emitted token ({self._num_emitted:,}; got {len(event.p):,})"
                require(len(event.p) == self._num_emitted, "scores.p", problem)
                self.scores.append(event)
            case Footer():
                require(self.footer is None, "footer", "stands a second time")
                self.footer = event
        self._events.append(event)
        return event

    def events(self) -> Iterator[Event]:
        return iter(tuple(self._events))

    @property
    def tokens(self) -> tuple[EmittedToken, ...]:
        """The emitted tokens of all steps, collected at each call."""
        return tuple(token for step in self.steps for token in step.emitted)

    @property
    def text(self) -> str:
        """The exact generated text, joined at each call."""
        return "".join(token.text for token in self.tokens)

    @property
    def answer(self) -> str:
        """The text up to the stop text that ended it; the whole text where none did."""
        if self.footer is None or self.footer.stop is None:
            return self.text
        return self.text[: self.footer.stop["at"]]

    def save(self, path: str | Path) -> None:
        """Writes the whole file at once, gzip if the name ends in .gz; the same trace gives the same bytes."""
        write_lines(Path(path), map(dump_event, self._events))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self._events == other._events

    def __repr__(self) -> str:
        """A line for a console: the run's first settings and its numbers."""
        if not self.steps:
            return "<Trace: no step was made>"
        first = self.steps[0].settings
        draft = f", draft {first.draft_model!a:.80}" if first.draft_model else ""
        asked = f"{first.method!a:.80}{draft}, K {first.k}"
        if first.temperature is not None:
            asked += f", temperature {first.temperature:g}"
        statuses = [token.status for step in self.steps for token in step.draft]
        accepted = statuses.count("accepted")
        judged = accepted + statuses.count("rejected")
        counts = f"{len(self.steps):,} steps, {len(self.tokens):,} tokens"
        end = "" if self.footer else "; the recording stops before the run ends"
        return f"<Trace: {asked}: {counts}, {accepted:,} accepted of {judged:,} judged{end}>"


class TraceWriter:
    """Writes a growing trace to a file, each line flushed; a context manager. Raises TraceError.

    The file appears with the first step, in one move; a run without steps leaves the old file as it was.
    """

    def __init__(self, trace: Trace, place: Path | BinaryIO) -> None:
        """Writes to `place`: a path, gzip if it ends in .gz, or a binary stream."""
        self._trace = trace
        self._place = place
        self._stack = ExitStack()
        self._sink: BinaryIO | None = None
        self._num_events = 0
        self._num_steps = 0
        self._is_open = True

    def catch_up(self) -> None:
        """Writes the events added since the last call; after an error nothing more is written."""
        if not self._is_open or not self._trace.steps:
            return
        lines = [dump_event(event) for event in self._trace._events[self._num_events :]]
        self._is_open = False
        try:
            if self._sink is None and isinstance(self._place, Path):
                write_lines(self._place, lines)
                self._sink = self._stack.enter_context(line_sink(self._place, "ab"))
            else:
                self._sink = self._sink or self._place
                self._sink.writelines(as_bytes(lines))
                self._sink.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            problem = f"cannot be written ({error.strerror})"
            if num_steps := self._num_held():
                problem += f"; it holds the run up to step {num_steps:,}"
            name = str(self._place) if isinstance(self._place, Path) else "standard output"
            raise TraceError(problem, name) from None
        self._is_open = True
        self._num_events += len(lines)
        self._num_steps = len(self._trace.steps)

    def _num_held(self) -> int:
        """How many steps the place holds after an error: some of the last ones may have found room."""
        self._close()
        with suppress(TraceError):
            if self._num_steps and isinstance(self._place, Path):  # else an older file may be there
                return len(load_trace(self._place).steps)
        return self._num_steps

    def _close(self) -> None:
        with suppress(OSError):  # catch_up has raised, or only the end of the gzip is missing
            self._stack.close()

    @property
    def has_all(self) -> bool:
        """Whether the file exists and holds every event so far."""
        return 0 < self._num_events == len(self._trace._events)

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.catch_up()
        finally:
            self._close()


def read_trace(
    source: bytes | BinaryIO,
    *,
    max_bytes: int | None = MAX_UPLOAD_BYTES,
    max_unpacked: int | None = MAX_UNPACKED_BYTES,
    max_steps: int = MAX_STEPS,
    max_cpu_s: float = math.inf,
) -> Trace:
    """Reads the trace in bytes or a binary stream, gzip or not. None lifts a limit.

    Raises TraceError that names the line.
    """
    trace = Trace()
    check_time = stopwatch(max_cpu_s)
    pieces = unpack(source, max_bytes, max_unpacked)
    for line_number, line, whole in numbered_lines(pieces, max_lines=4 * max_steps + 100):
        try:
            trace.num_bytes += held_bytes(line)
            fits = trace.num_bytes <= MAX_HELD_BYTES
            require(fits, "", f"the file takes more than {MAX_HELD_BYTES >> 20} MB of memory")
            check_time()
            data = parse_line(line, whole)
            if data is None:
                break
            trace.append(parse_event(data))
            is_short = len(trace.steps) <= max_steps
            require(is_short, "", f"the trace has more than {max_steps:,} steps")
        except TraceError as error:
            raise TraceError(error.problem, error.path, line_number) from None
    if trace.header is None:
        raise TraceError("holds no whole line: a trace begins with a header", "the file")
    return trace


def load_trace(path: str | Path, **caps: int | None) -> Trace:
    """Reads a local file as `read_trace` does; without given limits it may have any size that fits in memory."""
    limits = {"max_bytes": None, "max_unpacked": None, "max_steps": MAX_LOCAL_STEPS, **caps}
    try:
        with open(path, "rb") as stream:
            return read_trace(stream, **limits)
    except OSError as error:
        raise TraceError(f"cannot be opened ({error.strerror})", str(path)) from None
