"""A Request and live Controls become a stream of trace events. Owns the models of a run, its locks, pace and stop.

The engine's lock is held inside one step and never across a yield: runs of several people interleave fairly, and a
generator may be resumed on another thread.
"""

import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial

from specviz import trace
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import StepResult, speculate
from specviz.decoding.turns import (
    LOOK_S,
    NOBODY,
    Asker,
    FairQueue,
    Ticket,
    Turn,
    Unwanted,
    clock,
    waited_s,
)
from specviz.drafters import find_method
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.request import Request, RunSettings
from specviz.session.active_setup import ActiveSetup
from specviz.session.controls import PACES, Controls, ControlState
from specviz.session.recorder import Recorder
from specviz.session.whole_run import header, scores, stop_of, stop_watch
from specviz.session.workbench import NO_NEWS, BackgroundTask, Result, Workbench, workbench

SLICE_S = 0.05  # how long a waiting run sleeps before it looks at its controls again
TELL_S = 1.0  # how long a run waits before each word that it does: in a full room they would keep the server busy
_FOLLOWING = ("k_policy", "params", "lossless", "extra")  # method and rule decide these
SAID_TO_CHANGE = [name for name in trace.Settings.__annotations__ if name not in _FOLLOWING]
LOADED = [
    name for name in RunSettings.NAMES if name != "rule"
]  # what decides which models are needed


@dataclass(frozen=True, slots=True)
class Status:
    """News about a run that is no part of its trace.

    ahead: runs that go first while it is queued; fraction: how much is loaded, where that is known.
    """

    state: str  # "queued" | "loading" | "running" | "paused" | "finished"
    message: str = ""
    ahead: int = 0
    fraction: float | None = None


class Run:
    """One generation: its request, its live controls and its growing trace."""

    def __init__(
        self,
        request: Request,
        bench: Workbench,
        controls: Controls | None = None,
        *,
        may_cut: bool = False,
        so_far: trace.Trace | None = None,
        asker: Asker = NOBODY,
    ) -> None:
        """may_cut: of a prompt that is too long for the target, use the end and say so instead of raising an error.

        so_far: the trace of this run as it was paused in another process; this one goes on behind its last token.
        asker: who takes turns at the engine for it; one who has left stops it.
        """
        self.id = uuid.uuid4().hex
        self.request = request.validate()
        find_method(self.request.method).validate(self.request.params)
        self.bench = bench
        self.controls = controls or Controls(self.request.settings)
        self.trace = so_far or trace.Trace()
        self.state = "queued"
        self.shared_engine = (
            False  # whether another run used the engine meanwhile: such a run gives no speed
        )
        self._active = ActiveSetup(self.request, bench.pool)
        self._steps: Iterator[StepResult] | None = None
        self._recorder: Recorder | None = None
        self._guard = threading.Lock()  # over `_is_read` and the end of a run that nobody reads
        self._is_read = False
        self._unread: trace.Event | None = None
        last = self.trace.steps[-1] if self.trace.steps else None
        self._spent_s = 0.0 if last is None else (last.at_ms + last.timing.total_ms) / 1e3
        self._due = 0.0  # when the pace allows the next step
        self._may_cut = may_cut
        self._asker = asker
        self._turn = Turn(bench.engine, Asker(asker.visitor, self._is_unwanted), is_short=True)
        self._note = ""  # what the person should know about the prompt

    def pause(self) -> None:
        self.controls.set("paused", True)

    def cancel(self) -> None:
        """Stops waiting for what is being loaded: a change is taken back, a run that has not begun ends."""
        self.controls.set("cancelled", True)
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
            yield from self._hold_place(max_steps)
            with self._guard:  # a paused run that was stopped meanwhile ends too
                self._is_read = False
                is_left = self.state == "paused" and self.controls.read().stopped
                footer = self._end("stopped", None) if is_left else None
            if footer is not None:
                yield footer
        except GeneratorExit:
            self._end("stopped", "the stream was closed")
            raise
        except KeyboardInterrupt:
            self._end("stopped", "interrupted")
            raise
        except Exception as error:  # a stranger's model may fail in any way
            message = self._active.describe_failure(error, self._num_tokens)
            if (footer := self._end("error", message)) is not None:
                yield footer
            raise SpecvizError(message) from error

    def _hold_place(self, max_steps: int | None) -> Iterator[Status | trace.Event]:
        """Holds one of the places for runs while it goes on."""
        resumed, place = time.perf_counter(), self.bench.places.join(self._asker.visitor)
        try:
            yield from self._wait(place, self.bench.places, "waiting for a free place")
            resumed = time.perf_counter()  # time in the queue is not the run's
            yield from self._work(max_steps, resumed)
        finally:
            self._spent_s += time.perf_counter() - resumed
            self.bench.places.leave(place)

    def _work(self, max_steps: int | None, resumed: float) -> Iterator[Status | trace.Event]:
        """The events until the end, a pause or max_steps. resumed: time.perf_counter() when this began."""
        if not self._is_unwanted() and (yield from self._open()):
            yield from self._go(max_steps, resumed - self._spent_s)
        else:
            yield self._end("stopped", None) or Status("finished")

    def _open(self) -> Generator[Status | trace.Event, None, bool]:
        """Whether the run has begun, now or before; False if it was stopped while its models were loaded."""
        if self._steps is not None:
            return True
        self.state = "loading"
        while not (yield from self._take(self.controls.settings)):
            if self._is_unwanted():
                return False
        target, made = self._active.target, [token.id for token in self.trace.tokens]
        if is_new := self.trace.header is None:
            rendered, tokens, self._note = self._active.prompt_in_room(may_cut=self._may_cut)
        else:
            tokens = [token.id for token in self.trace.header.prompt.tokens]
        self._recorder = Recorder(target.text, made)
        self._steps = speculate(
            tokens + made,
            lambda: self._active.plan,
            Seeded(self.request.seed),
            max_new_tokens=self.request.max_new_tokens - len(made),
            eos_ids=target.text.eos_ids,
            first_index=len(self.trace.steps),
            is_stop=stop_watch(self._active, made),
        )
        if is_new:
            yield self.trace.append(header(self._active, rendered, tokens))
        return True

    def _take(self, settings: RunSettings) -> Generator[Status, None, bool]:
        """Loads the models of `settings`, with a Status of how far it is, and adopts them.

        False, with nothing changed, if meanwhile the run was stopped or other models were chosen. Raises SpecvizError.
        """
        missing = self._active.describe_missing(settings)
        if not missing:
            return (yield from self._take_in_turn(settings))
        self.controls.set("cancelled", False)
        yield Status("loading", f"loading {missing}")
        loading = BackgroundTask(partial(self._active.load, settings))
        try:
            told = NO_NEWS
            while not loading.wait(SLICE_S):
                state = self.controls.read()
                if state.cancelled and self.trace.header is not None:
                    raise SpecvizError(
                        f"loading {missing} was cancelled; the run goes on as it was"
                    )
                others = (
                    name
                    for name in LOADED
                    if getattr(state.settings, name) != getattr(settings, name)
                )
                if self._is_unwanted() or any(others):
                    return False
                if told != (told := loading.news):
                    message, fraction = told
                    yield Status("loading", message, fraction=fraction)
            loading.result()  # held by `loading`, so that no other run's model takes their room before they are used
            return (yield from self._take_in_turn(settings))
        finally:
            loading.abandon()

    def _take_in_turn(self, settings: RunSettings) -> Generator[Status, None, bool]:
        """Adopts `settings`, whose models are loaded. False, with nothing changed, if the run was stopped before."""
        yield from self._in_turn(partial(self._active.take, settings))
        return self._active.settings is settings

    def _go(self, max_steps: int | None, started: float) -> Iterator[Status | trace.Event]:
        self.state = "running"
        note, self._note = self._note, ""
        yield Status("running", note)
        made = 0
        while True:
            waiting = time.perf_counter()
            state = self.controls.read() if made == max_steps else self._await_pace(started)
            if reason := self._reason_to_end(state, started):
                yield self._end(reason, None)
                return
            if state.paused or made == max_steps:
                self.state = "paused"
                yield Status("paused")
                return
            if not (yield from self._adopt(state.settings)):
                continue
            records, failure, most = [], None, max_steps and max_steps - made
            try:
                finish = yield from self._in_turn(
                    partial(self._make_steps, records, state, started, waiting, most)
                )
            except Exception as error:  # as many kinds as models of strangers
                failure = error
            yield from records
            made += len(records)
            if failure is not None:
                raise failure
            if finish:
                yield from self._close(finish)
                return

    def _await_pace(self, started: float) -> ControlState:
        """Waits until the pace allows another step; a change of the controls is seen at once."""
        while True:
            state, now = self.controls.read(), time.perf_counter()
            due = self._due + PACES[state.pace]
            if now >= due or state.paused or self._reason_to_end(state, started):
                self._due = now
                return state
            time.sleep(min(SLICE_S, due - now))

    def _is_unwanted(self) -> bool:
        return self.controls.read().stopped or self._asker.has_left()

    def _reason_to_end(self, state: ControlState, started: float) -> str | None:
        if state.stopped or self._asker.has_left():
            return "stopped"
        limit = self.request.time_limit_s
        return "time" if limit is not None and time.perf_counter() - started > limit else None

    def _wait(self, ticket: Ticket, lock: FairQueue, message: str) -> Iterator[Status]:
        """Waits until the ticket is ready or the run is stopped; a reader that stops reading holds up no other run."""
        silent_since = time.monotonic()
        while not ticket.ready.wait(LOOK_S) and not self._is_unwanted():
            if time.monotonic() - silent_since >= TELL_S and lock.step_aside(ticket):
                yield Status("queued", message, lock.ahead(ticket))
                lock.step_back(ticket)
                silent_since = time.monotonic()

    def _in_turn(self, work: Callable[[], Result]) -> Generator[Status, None, Result | None]:
        """What `work` gives, which is done in a turn at the engine; None once the run is stopped."""
        ticket = self.bench.engine.join(self._asker.visitor)
        try:
            yield from self._wait(ticket, self.bench.engine, "waiting for the engine")
            if ticket.ready.is_set():
                with self._turn.at(ticket):
                    return work()
        except Unwanted:  # while a long prompt was read
            self.controls.set("stopped", True)
        finally:
            self.bench.engine.leave(ticket)
        return None

    def _adopt(self, settings: RunSettings) -> Generator[Status | trace.Event, None, bool]:
        """Adopts changed settings; a change that cannot be made is taken back, and a Status says why.

        False if they have changed again before that was done.
        """
        if settings != self._active.settings:
            try:
                if not (yield from self._take(settings)):
                    return False
            except SpecvizError as error:
                if not self.trace.steps:
                    raise
                self.controls.restore(self._active.settings, refused=settings)
                yield Status("running", str(error))
                return (yield from self._adopt(self.controls.settings))
        models, before = self._active.models_event(len(self.trace.models)), self.trace.models[-1:]
        if [replace(each, index=models.index) for each in before] != [models]:
            yield self.trace.append(models)
        return True

    def _make_steps(
        self,
        records: list[trace.Step],
        state: ControlState,
        started: float,
        waiting: float,
        most: int | None,
    ) -> str | None:
        """Adds the steps of one turn, at most so many, to the records and to the trace. Returns why the text ends with
        the last one, if it does.

        Mostly one. Beside long work, whose turns are long, as many as fit into half of such a turn.
        """
        while True:
            step, record = self._step(started, waiting)
            records.append(self.trace.append(record))
            waiting = time.perf_counter()
            is_last = (
                step.finish
                or len(records) == most
                or self._turn.is_over
                or not self.bench.engine.num_waiting
            )
            if (
                is_last
                or PACES[state.pace]
                or self.controls.read() != state
                or self._reason_to_end(state, started)
            ):
                return step.finish

    def _step(self, started: float, waiting: float) -> tuple[StepResult, trace.Step]:
        at, begun, waited = time.perf_counter(), clock(), waited_s()
        self.shared_engine |= len(self.bench.engine) > 1
        step = next(self._steps)
        self.shared_engine |= waited_s() > waited
        now = self._active.step_settings
        before = self.trace.steps[-1].settings if self.trace.steps else now
        changed = [name for name in SAID_TO_CHANGE if getattr(before, name) != getattr(now, name)]
        at_ms, wait_ms = (at - started) * 1e3, (at - waiting + waited_s() - waited) * 1e3
        return step, self._recorder.record(
            step, now, started=begun, at_ms=at_ms, wait_ms=wait_ms, changed=changed
        )

    def _close(self, reason: str) -> Iterator[Status | trace.Event]:
        """Scores the finished text; one that cannot be scored is finished all the same."""
        scored = message = None
        try:
            scored = yield from self._in_turn(lambda: scores(self._active, self.trace))
        except Exception as error:  # as many kinds as a step
            message = (
                f"the text was not scored: {self._active.describe_failure(error, self._num_tokens)}"
            )
        if scored is not None:
            yield self.trace.append(scored)
        yield self._end(reason, message)

    @property
    def _num_tokens(self) -> int:
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
        stop = stop_of(self.trace, self.request) if reason == "stop" else None
        return self.trace.append(trace.Footer(reason, message, None, stop, extra=extra))


def open_run(
    request: Request,
    *,
    bench: Workbench | None = None,
    pace: str = "full",
    may_cut: bool = False,
    asker: Asker = NOBODY,
) -> Run:
    """A run that has not begun; iterate its `events()`. The catalogue's models are on offer."""
    bench, names = (
        bench or workbench(),
        (catalog.targets(), catalog.drafts_for(request.target, foreign=True)),
    )
    if bench.open_in_worker and not catalog.needs_no_gpu(request.validate().target):
        return bench.open_in_worker(request, bench, pace, may_cut, names, asker)
    return Run(
        request,
        bench,
        Controls(request.validate().settings, *names, pace),
        may_cut=may_cut,
        asker=asker,
    )
