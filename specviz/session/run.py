"""A Request and live Controls become a stream of trace events. Owns the models of a run, its locks, pace and stop.

The engine's lock is held inside one step and never across a yield: runs of several people interleave fairly, and a
generator may be resumed on another thread.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Step, speculate
from specviz.drafters import find_method
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.models.library import Library
from specviz.models.memory import is_out_of_memory
from specviz.request import Request
from specviz.rules import RULES
from specviz.session.active_setup import ActiveSetup
from specviz.session.background_task import NO_NEWS, Loading
from specviz.session.controls import LIVE, PACES, Controls, ControlValues
from specviz.session.fair_queue import FairLock, Ticket
from specviz.session.record import header, scores
from specviz.session.recorder import Recorder, Situation
from specviz.settings import settings
from specviz.trace import file as trace

Entry = TypeVar("Entry")
Result = TypeVar("Result")
SLICE_S = 0.05  # how long a waiting run sleeps before it looks at its controls again


@dataclass(frozen=True, slots=True)
class Status:
    """News about a run that is no part of its trace.

    ahead: runs that go first while it is queued; fraction: how much is loaded, where that is known.
    """

    state: str  # "queued" | "loading" | "running" | "paused" | "finished"
    message: str = ""
    ahead: int = 0
    fraction: float | None = None


class Workbench:
    """What runs share: the loaded models, the engine's lock, the places for runs, measured baselines."""

    def __init__(self, library: Library | None = None) -> None:
        self.library = library or Library()
        self.engine = FairLock(1)
        self.places = FairLock(settings().max_runs)
        self.baselines: dict[tuple, Mapping[str, object]] = {}

    def in_turns(self, work: Generator[Result, None, None]) -> Iterator[Result]:
        """Each result of `work` is made with the engine to itself; between two of them others have their turn."""
        try:
            while True:
                ticket = self.engine.join()
                try:
                    ticket.ready.wait()
                    result = next(work)
                except StopIteration:
                    return
                finally:
                    self.engine.leave(ticket)
                yield result
        finally:
            work.close()


_shared: list[Workbench] = []
_sharing = threading.Lock()


def workbench() -> Workbench:
    """The one that `run` and `stream` use when none is given."""
    with _sharing:
        if not _shared:
            _shared.append(Workbench())
    return _shared[0]


class Run:
    """One generation: its request, its live controls and its growing trace."""

    def __init__(
        self,
        request: Request,
        bench: Workbench,
        *,
        pace: str = "full",
        drafts: tuple[str, ...] = (),
        targets: tuple[str, ...] = (),
        may_cut: bool = False,
    ) -> None:
        """may_cut: of a prompt that is too long for the target the end is used, and said so, instead of an error."""
        self.id = uuid.uuid4().hex
        self.request = request.checked()
        find_method(self.request.method).checked(self.request.params)
        if self.request.rule is not None:
            _named("rule", RULES, self.request.rule)
        self.bench = bench
        self.controls = Controls(self.request, targets, drafts, pace)
        self.trace = trace.Trace()
        self.state = "queued"
        self.shared_engine = False  # whether another run used the engine meanwhile: such a run gives no speed
        self._active = ActiveSetup(self.request, bench.library)
        self._steps: Iterator[Step] | None = None
        self._recorder: Recorder | None = None
        self._guard = threading.Lock()  # over `_is_read` and the end of a run that nobody reads
        self._is_read = False
        self._unread: trace.Event | None = None
        self._spent_s = 0.0
        self._due = 0.0  # when the pace allows the next step
        self._gives_up = threading.Event()
        self._may_cut = may_cut
        self._note = ""  # what the person should know about the prompt

    def request_in_force(self) -> Request:
        """The request as live changes have left it; another method has its own parameters at their defaults."""
        values = self._active.values or self.controls.values()
        params = self.request.params if values.method == self.request.method else {}
        return replace(self.request, params=params, **{name: getattr(values, name) for name in LIVE})

    def pause(self) -> None:
        self.controls.set("paused", True)

    def cancel(self) -> None:
        """Stops waiting for what is being loaded: a change is taken back, a run that has not begun ends."""
        self._gives_up.set()
        if self.trace.header is None:
            self.controls.set("stopped", True)

    def stop(self) -> bool:
        """Ends the run before its next step, a paused one at once; whether this ended it.

        The footer of a run that ended here comes when its events are asked for.
        """
        self.controls.set("stopped", True)
        with self._guard:
            if self._is_read or self.state != "paused":
                return False
            self._unread = self._end("stopped", None)
            return True

    def events(self, max_steps: int | None = None) -> Iterator[Status | trace.Event]:
        """The run's events until it ends, is paused, or has made max_steps steps; call again to go on.

        Raises SpecvizError after recording it in the footer. Closing the iterator ends the run. One reader at a time.
        """
        with self._guard:
            is_over, left, self._unread = self.state == "finished", self._unread, None
            if self._is_read and not is_over:
                raise ValueError("the events of this run are being read already")
            self._is_read = not is_over
        if is_over:
            yield from () if left is None else (left,)
            return
        self.controls.set("paused", False)
        try:
            yield from self._in_place(max_steps)
            if (footer := self._let_go()) is not None:
                yield footer
        except GeneratorExit:
            self._end("stopped", "the stream was closed")
            raise
        except KeyboardInterrupt:
            self._end("stopped", "interrupted")
            raise
        except Exception as error:  # a stranger's model may fail in any way
            message = _in_words(error, self._active, self._num_tokens)
            if (footer := self._end("error", message)) is not None:
                yield footer
            raise SpecvizError(message) from error

    def _in_place(self, max_steps: int | None) -> Iterator[Status | trace.Event]:
        """Holds one of the places for runs while it goes on."""
        resumed, place = time.perf_counter(), self.bench.places.join()
        try:
            yield from self._wait(place, self.bench.places, "waiting for a free place")
            if self.controls.values().stopped:
                yield self._end("stopped", None) or Status("finished")
                return
            resumed = time.perf_counter()  # time in the queue is not the run's
            if (yield from self._open()):
                yield from self._go(max_steps, resumed - self._spent_s)
            else:
                yield self._end("stopped", None) or Status("finished")
        finally:
            self._spent_s += time.perf_counter() - resumed
            self.bench.places.leave(place)

    def _let_go(self) -> trace.Event | None:
        """From here on nobody reads; a paused run that was stopped meanwhile ends here, and this is its footer."""
        with self._guard:
            self._is_read = False
            is_left = self.state == "paused" and self.controls.values().stopped
            return self._end("stopped", None) if is_left else None

    def _open(self) -> Generator[Status | trace.Event, None, bool]:
        """Whether the run has begun, now or before; False if it was stopped while its models were loaded."""
        if self._steps is not None:
            return True
        self.state = "loading"
        while not (yield from self._take(self.controls.values())):
            if self.controls.values().stopped:
                return False
        target = self._active.target
        rendered, tokens = self._prompt()
        self._recorder = Recorder(target.text)
        self._steps = speculate(
            tokens,
            lambda: self._active.plan,
            Seeded(self.request.seed),
            max_new_tokens=self.request.max_new_tokens,
            eos_ids=frozenset(target.text.eos_ids),
        )
        yield self._add(header(self._active, rendered, tokens))
        return True

    def _prompt(self) -> tuple[str, list[int]]:
        """The prompt as the target reads it, and its ids; its end alone where the whole is too long and may be cut."""
        rendered, tokens = self._active.prompt()
        kept = self._active.cut(tokens) if self._may_cut else tokens
        if len(kept) == len(tokens):
            return rendered, tokens
        target = self._active.target
        self._note = (
            f"the prompt has {len(tokens):,} tokens and {target.name} reads at most {target.info.context_limit:,}, new "
            f"ones included: the first {len(tokens) - len(kept):,} were left out"
        )
        decoder = target.text.incremental()
        return "".join(decoder.push(token).text for token in kept), kept

    def _take(self, values: ControlValues) -> Generator[Status, None, bool]:
        """Loads the models of `values`, telling of it, and puts `values` into force.

        False, with nothing changed, if meanwhile the run was stopped or other models were chosen. Raises SpecvizError.
        """
        missing = self._active.unloaded(values)
        if not missing:
            self._active.take(values)
            return True
        self._gives_up.clear()
        yield Status("loading", f"loading {missing}")
        loading = Loading(partial(self._active.load, values))
        try:
            told = NO_NEWS
            while not loading.wait(SLICE_S):
                if self._gives_up.is_set() and self.trace.header is not None:
                    raise SpecvizError(f"loading {missing} was cancelled; the run goes on as it was")
                if _models(self.controls.values()) != _models(values):
                    return False
                if told != (told := loading.news):
                    message, fraction = told
                    yield Status("loading", message, fraction=fraction)
            loading.result()  # held by `loading`, so that no other run's model takes their room before they are used
            self._active.take(values)
        finally:
            loading.abandon()
        return True

    def _go(self, max_steps: int | None, started: float) -> Iterator[Status | trace.Event]:
        self.state = "running"
        note, self._note = self._note, ""
        yield Status("running", note)
        made = 0
        while True:
            waiting = time.perf_counter()
            values = self.controls.values() if made == max_steps else self._paced(started)
            if reason := self._reason_to_end(values, started):
                yield self._end(reason, None)
                return
            if values.paused or made == max_steps:
                self.state = "paused"
                yield Status("paused")
                return
            if not (yield from self._adopt(values)):
                continue
            ticket = self.bench.engine.join()
            try:
                yield from self._wait(ticket, self.bench.engine, "waiting for the engine")
                if not ticket.ready.is_set():
                    continue
                step, record = self._step(started, waiting)
            finally:
                self.bench.engine.leave(ticket)
            yield self._add(record)
            made += 1
            if step.finish:
                yield from self._close(step.finish)
                return

    def _paced(self, started: float) -> ControlValues:
        """Waits until the pace allows another step; a change of the controls is seen at once."""
        while True:
            values = self.controls.values()
            now = time.perf_counter()
            due = self._due + PACES[values.pace]
            if now >= due or values.paused or self._reason_to_end(values, started):
                self._due = now
                return values
            time.sleep(min(SLICE_S, due - now))

    def _reason_to_end(self, values: ControlValues, started: float) -> str | None:
        if values.stopped:
            return "stopped"
        limit = self.request.time_limit_s
        return "time" if limit is not None and time.perf_counter() - started > limit else None

    def _wait(self, ticket: Ticket, lock: FairLock, message: str) -> Iterator[Status]:
        """Until the ticket is ready or the run is stopped. Whoever does not come back for more holds nobody up."""
        while not ticket.ready.wait(0.25) and not self.controls.values().stopped:
            if lock.step_aside(ticket):
                yield Status("queued", message, lock.ahead(ticket))
                lock.step_back(ticket)

    def _adopt(self, values: ControlValues) -> Generator[Status | trace.Event, None, bool]:
        """Puts changed settings into force; a change that cannot be made is taken back and said in a Status.

        False if they have changed again before that was done.
        """
        if not self._active.is_current(values):
            try:
                if not (yield from self._take(values)):
                    return False
            except SpecvizError as error:
                if not self.trace.steps:
                    raise
                self.controls.restore(self._active.values, refused=values)
                yield Status("running", str(error))
                return (yield from self._adopt(self.controls.values()))
        if (models := self._active.models_event(len(self.trace.models))) is not None:
            yield self._add(models)
        return True

    def _step(self, started: float, waiting: float) -> tuple[Step, trace.Step]:
        begun = time.perf_counter()
        self.shared_engine |= len(self.bench.engine) > 1
        step = next(self._steps)
        settings_now = self._active.settings
        before = self.trace.steps[-1].settings if self.trace.steps else settings_now
        names = ("k", "temperature", "top_k", "top_p", "method", "rule", "draft_model", "target")
        situation = Situation(
            settings=settings_now,
            changed=tuple(name for name in names if getattr(before, name) != getattr(settings_now, name)),
            at_ms=(begun - started) * 1e3,
            wait_ms=(begun - waiting) * 1e3,
            started=begun,
        )
        return step, self._recorder.record(step, situation)

    def _close(self, reason: str) -> Iterator[Status | trace.Event]:
        """Scores the finished text; one that cannot be scored is finished all the same."""
        ticket = self.bench.engine.join()
        scored = message = None
        try:
            yield from self._wait(ticket, self.bench.engine, "waiting for the engine")
            if ticket.ready.is_set():
                scored = scores(self._active, self.trace)
        except Exception as error:  # as many kinds as a step
            message = f"the text was not scored: {_in_words(error, self._active, self._num_tokens)}"
        finally:
            self.bench.engine.leave(ticket)
        if scored is not None:
            yield self._add(scored)
        yield self._end(reason, message)

    @property
    def _num_tokens(self) -> int:
        """Of the text so far."""
        prompt = 0 if self.trace.header is None else len(self.trace.header.prompt.tokens)
        return prompt + sum(len(step.emitted) for step in self.trace.steps)

    def _end(self, reason: str, message: str | None) -> trace.Event | None:
        self.state = "finished"
        if self._steps is not None:
            self._steps.close()
        self._active.release()
        if self.trace.header is None or self.trace.footer is not None:
            return None
        extra = {"shared_engine": True} if self.shared_engine else {}
        baseline = self.bench.baselines.get(baseline_key(self._active.settings)) if self.trace.steps else None
        return self._add(trace.Footer(reason, message, baseline, extra))

    def _add(self, event: trace.Event) -> trace.Event:
        self.trace.append(event)
        return event


def _models(values: ControlValues) -> tuple[object, ...]:
    """What decides which models are needed, and whether they still are."""
    return (values.method, values.target, values.draft, values.stopped)


def baseline_key(settings_now: trace.Settings) -> tuple:
    """Runs with equal keys may be compared with the same measured baseline."""
    return (settings_now.target, settings_now.temperature, settings_now.top_k, settings_now.top_p)


def _named(kind: str, table: Mapping[str, Entry], name: str) -> Entry:
    if name not in table:
        raise SpecvizError(f"{kind} must be one of {', '.join(table)} (got {name!r})")
    return table[name]


def _in_words(error: Exception, active: ActiveSetup, num_tokens: int) -> str:
    if isinstance(error, SpecvizError):
        return str(error)
    name = "the model" if active.target is None else active.target.name
    if is_out_of_memory(error):
        others = () if active.setup is None else (active.setup.draft, *active.setup.others.values())
        held = [loaded for loaded in (active.target, *others) if loaded is not None]
        takes = ", ".join(loaded.memory_words(num_tokens) for loaded in held)
        advice = "shorten the text, lower K or choose a smaller model"
        return f"not enough memory on the device to go on with {name}; {advice}" + (f" ({takes})" if takes else "")
    return f"the run with {name} failed: {type(error).__name__}: {str(error)[:500]}"


def open_run(request: Request, *, bench: Workbench | None = None, pace: str = "full", may_cut: bool = False) -> Run:
    """A run that has not begun; iterate its `events()`."""
    suiting = (*catalog.drafts_for(request.target), *catalog.drafts_for(request.target, foreign=True))
    drafts, targets = tuple(dict.fromkeys(suiting)), catalog.targets()
    return Run(request, bench or workbench(), pace=pace, drafts=drafts, targets=targets, may_cut=may_cut)
