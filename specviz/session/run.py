"""Run: turns a Request and live Controls into a stream of trace events. It owns a run's models, turns, pace and stop.

The engine is held inside one step and never across a yield. So the runs of several people interleave fairly, and a
generator may be resumed on another thread.
"""

import math
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from specviz import trace
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Plan, StepResult, speculate
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
from specviz.session.scorer import Scorer
from specviz.session.whole_run import header, stop_of, stop_watch
from specviz.session.workbench import NO_NEWS, BackgroundTask, Result, Workbench, workbench

SLICE_S = 0.05
"""The time that a waiting run sleeps before it looks at its controls again."""
TELL_S = 1.0
"""The time between two messages of a waiting run: in a full room more would keep the server busy."""
_FOLLOWING = ("k_policy", "params", "lossless", "by_time", "extra")  # method and rule decide these
SAID_TO_CHANGE = [name for name in trace.Settings.__annotations__ if name not in _FOLLOWING]
LOADED = [name for name in RunSettings.NAMES if name != "rule"]
"""The settings that decide which models are needed."""


@dataclass(frozen=True, slots=True)
class Status:
    """News about a run that is no part of its trace."""

    state: str  # "queued" | "loading" | "running" | "paused" | "finished"
    message: str = ""
    ahead: int = 0  # runs that go first while it is queued
    fraction: float | None = None  # loaded so far, where that is known


class Run:
    """A generation: its request, its live controls and its growing trace."""

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
        """may_cut: shorten a prompt that is too long for the target to its end and say so, instead of an error.

        so_far: the trace of this run as it was paused in another process; this one goes on behind its last token.
        asker: the person who waits for the run and takes turns at the engine; it stops when he leaves.
        """
        self.id = uuid.uuid4().hex
        self.request = request.validate()
        find_method(self.request.method).validate(self.request.params)
        self.bench = bench
        self.controls = controls or Controls(self.request.settings)
        self.trace = so_far or trace.Trace()
        self.state = "queued"
        self.shared_engine = False
        """Whether another run used the engine meanwhile: such a run gives no speed."""
        self.num_read_before: int | None = None
        """Tokens of the prompt that the visitor's last run had read: the first step is short. None before that step."""
        visitor = asker.visitor if asker.keeps_rows else ""
        self._active = ActiveSetup(self.request, bench.pool, visitor)
        self._steps: Iterator[StepResult] | None = None
        self._recorder: Recorder | None = None
        self._scorer: Scorer | None = None
        self._guard = threading.Lock()  # over `_is_read` and the end of a run that nobody reads
        self._is_read = False
        self._unread: trace.Event | None = None
        last = self.trace.steps[-1] if self.trace.steps else None
        self._spent_s = 0.0 if last is None else (last.at_ms + last.timing.total_ms) / 1e3
        self._settings_before = None if last is None else last.settings  # of the last step
        self._due = 0.0  # when the pace allows the next step
        self._may_cut = may_cut
        self._asker = asker
        self._turn = Turn(bench.engine, Asker(asker.visitor, self._is_unwanted), is_short=True)
        self._note = ""  # what the person should know about the prompt

    def pause(self) -> None:
        """Pauses the run before its next step."""
        self.controls.set("paused", True)

    def cancel(self) -> None:
        """Stops waiting for models that are being loaded: a change is taken back, a run that has not begun ends."""
        self.controls.set("cancelled", True)
        if self.trace.header is None:
            self.controls.set("stopped", True)

    def stop(self) -> bool:
        """Ends the run before its next step, a paused one at once. Returns whether it ended at once.

        Its footer then comes when its events are asked for.
        """
        self.controls.set("stopped", True)
        with self._guard:
            if self._is_read or self.state != "paused":
                return False
            self._unread = self._end("stopped", None)
            return True

    def events(self, max_steps: int | None = None) -> Iterator[Status | trace.Event]:
        """Yields the run's events until it ends, is paused, or has made max_steps steps; call again to go on.

        Raises SpecvizError after recording it in the footer. Closing the iterator ends the run. One reader at a time.
        """
        with self._guard:
            is_over = self.state == "finished"
            unread = self._unread
            self._unread = None
            if self._is_read and not is_over:
                raise ValueError("the events of this run are being read already")
            self._is_read = not is_over
        if is_over:
            if unread is not None:
                yield unread
            return
        self.controls.set("paused", False)
        try:
            yield from self._hold_place(max_steps)
            footer = None
            with self._guard:
                self._is_read = False
                if self.state == "paused" and self.controls.read().stopped:  # stopped meanwhile
                    footer = self._end("stopped", None)
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
        """Holds one of the places for runs while the run goes on."""
        resumed = time.perf_counter()
        place = self.bench.places.join(self._asker.visitor)
        try:
            yield from self._wait(place, self.bench.places, "waiting for a free place")
            resumed = time.perf_counter()  # time in the queue is not the run's
            yield from self._work(max_steps, resumed)
        finally:
            self._spent_s += time.perf_counter() - resumed
            self.bench.places.leave(place)

    def _work(self, max_steps: int | None, resumed: float) -> Iterator[Status | trace.Event]:
        """Yields the events until the end, a pause or max_steps. resumed: time.perf_counter() when this began."""
        has_begun = not self._is_unwanted() and (yield from self._open())
        if has_begun:
            yield from self._go(max_steps, resumed - self._spent_s)
            return
        footer = self._end("stopped", None)
        yield Status("finished") if footer is None else footer

    def _open(self) -> Generator[Status | trace.Event, None, bool]:
        """Begins the run if it has not begun; False if it was stopped while its models were loaded."""
        if self._steps is not None:
            return True
        self.state = "loading"
        while not (yield from self._take(self.controls.settings)):
            if self._is_unwanted():
                return False
        is_new = self.trace.header is None
        if is_new:
            rendered, prompt, self._note = self._active.prompt_in_room(may_cut=self._may_cut)
        else:
            prompt = [token.id for token in self.trace.header.prompt.tokens]
        text = self._active.target.text
        written = [token.id for token in self.trace.tokens]
        self._recorder = Recorder(text, written)
        self._scorer = Scorer(self._active, prompt + written)
        self._steps = speculate(
            prompt + written,
            partial(self._plan, prompt),
            Seeded(self.request.seed),
            max_new_tokens=self.request.max_new_tokens - len(written),
            eos_ids=text.eos_ids,
            first_index=len(self.trace.steps),
            is_stop=stop_watch(self._active, written),
        )
        if is_new:
            yield self.trace.append(header(self._active, rendered, prompt))
        return True

    def _plan(self, prompt: Sequence[int]) -> Plan:
        """The plan of the next step.

        A drafter that waits until the target has read the prompt drafts nothing in the first step, also where a run
        before has read it: so the same seed gives the same text.
        """
        plan = self._active.plan
        if self.num_read_before is None:
            self.num_read_before = self._active.num_read(prompt)
            if self.num_read_before and plan.drafter.waits:
                plan = replace(plan, k=0)
        return plan

    def _take(self, settings: RunSettings) -> Generator[Status, None, bool]:
        """Loads the models of `settings`, with a Status of its progress, and adopts them.

        False, with nothing changed, if meanwhile the run was stopped or other models were chosen. Raises SpecvizError.
        """
        missing = self._active.describe_missing(settings)
        if not missing:
            return (yield from self._take_in_turn(settings))
        self.controls.set("cancelled", False)
        yield Status("loading", f"loading {missing}")
        loading = BackgroundTask(partial(self._active.load, settings))
        try:
            news = NO_NEWS
            while not loading.wait(SLICE_S):
                state = self.controls.read()
                if state.cancelled and self.trace.header is not None:
                    raise SpecvizError(
                        f"loading {missing} was cancelled; the run goes on as it was"
                    )
                if self._is_unwanted() or _needs_other_models(state.settings, settings):
                    return False
                latest = loading.news
                if latest != news:
                    news = latest
                    message, fraction = latest
                    yield Status("loading", message, fraction=fraction)
            loading.result()  # `loading` holds the models: no other run's take their room before their use
            return (yield from self._take_in_turn(settings))
        finally:
            loading.abandon()

    def _take_in_turn(self, settings: RunSettings) -> Generator[Status, None, bool]:
        """Adopts `settings` with loaded models. False, with nothing changed, if the run was stopped before."""
        yield from self._in_turn(partial(self._active.take, settings))
        return self._active.settings is settings

    def _go(self, max_steps: int | None, started: float) -> Iterator[Status | trace.Event]:
        """Yields steps until the end, a pause or max_steps."""
        self.state = "running"
        note = self._note
        self._note = ""
        yield Status("running", note)
        first = self._num_steps
        while True:
            may_wait_long = len(self.bench.engine) or PACES[self.controls.read().pace]
            if may_wait_long or self._recorder.is_due:
                yield from self._flush()
            waiting = time.perf_counter()
            is_full = self._num_steps - first == max_steps
            state = self.controls.read() if is_full else self._await_pace(started)
            reason = self._reason_to_end(state, started)
            is_paused = state.paused or is_full
            if reason is not None or is_paused or state.settings != self._active.settings:
                yield from self._flush()
            if reason is not None:
                yield self._end(reason, None)
                return
            if is_paused:
                self.state = "paused"
                yield Status("paused")
                return
            if not (yield from self._adopt(state.settings)):
                continue
            last = math.inf if max_steps is None else first + max_steps
            make_steps = partial(self._make_steps, state, started, waiting, last)
            try:
                finish = yield from self._in_turn(make_steps)
            except Exception:  # as many kinds as models of strangers
                yield from self._flush()
                raise
            if finish is not None:
                yield from self._flush()
                yield from self._close(finish)
                return

    @property
    def _num_steps(self) -> int:
        """How many steps were made so far."""
        return len(self.trace.steps) + self._recorder.num_kept

    def _flush(self) -> Iterator[Status | trace.Event]:
        """Adds the records of the steps that were made to the trace, while others have the engine, and yields them."""
        records: list[trace.Step] = []
        try:
            self._add_records(records)
        finally:
            yield from records
        if self._scorer.is_full:
            with suppress(Exception):  # the end tries again, and says why it cannot
                yield from self._in_turn(self._scorer.read)

    def _await_pace(self, started: float) -> ControlState:
        """Waits until the pace allows another step; a change of the controls is seen at once."""
        while True:
            state = self.controls.read()
            now = time.perf_counter()
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
        if limit is not None and time.perf_counter() - started > limit:
            return "time"
        return None

    def _wait(self, ticket: Ticket, lock: FairQueue, message: str) -> Iterator[Status]:
        """Waits until the ticket is ready or the run is stopped; a reader that stops reading holds up no other run."""
        silent_since = time.monotonic()
        while not ticket.ready.wait(LOOK_S) and not self._is_unwanted():
            if time.monotonic() - silent_since >= TELL_S and lock.step_aside(ticket):
                yield Status("queued", message, lock.ahead(ticket))
                lock.step_back(ticket)
                silent_since = time.monotonic()

    def _in_turn(self, work: Callable[[], Result]) -> Generator[Status, None, Result | None]:
        """Does `work` in a turn at the engine and returns its result; None once the run is stopped."""
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
        """Adopts changed settings, or takes back a change that cannot be made, with a Status that says why.

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
        models = self._active.models_event(len(self.trace.models))
        before = self.trace.models[-1] if self.trace.models else None
        if before is None or replace(before, index=models.index) != models:
            yield self.trace.append(models)
        return True

    def _make_steps(
        self, state: ControlState, started: float, waiting: float, last: float
    ) -> str | None:
        """Makes the steps of one turn, at most until there are `last`.

        Mostly that is one step. When others do long work, their turns are long: then it is as many as fit into half of
        such a turn. Returns why the text ends with the last step, if it does.
        """
        while True:
            finish = self._step(started, waiting)
            waiting = time.perf_counter()
            is_full = self._num_steps == last or self._turn.is_over
            if finish or is_full or not self.bench.engine.num_waiting:
                return finish
            is_changed = self.controls.read() != state
            if is_changed or PACES[state.pace] or self._reason_to_end(state, started):
                return finish

    def _step(self, started: float, waiting: float) -> str | None:
        """Makes one step and keeps it for its record. waiting: time.perf_counter() when the wait for it began."""
        at = time.perf_counter()
        step_started = clock()
        waited_before = waited_s()
        self.shared_engine |= len(self.bench.engine) > 1
        step = next(self._steps)
        waited_in_step = waited_s() - waited_before
        self.shared_engine |= waited_in_step > 0
        now = self._active.step_settings
        before = self._settings_before or now
        self._settings_before = now
        self._recorder.keep(
            step,
            now,
            started=step_started,
            at_ms=(at - started) * 1e3,
            wait_ms=(at - waiting + waited_in_step) * 1e3,
            changed=[
                name for name in SAID_TO_CHANGE if getattr(before, name) != getattr(now, name)
            ],
        )
        return step.finish

    def _add_records(self, records: list[trace.Step]) -> None:
        """Adds the records of the kept steps to the trace and to these."""
        for step, record in self._recorder.flush():
            records.append(self.trace.append(record))
            self._scorer.add(step, record)

    def _close(self, reason: str) -> Iterator[Status | trace.Event]:
        """Scores the finished text; a text that cannot be scored is finished all the same."""
        scored = None
        message = None
        try:
            scored = yield from self._in_turn(lambda: self._scorer.scores(self.trace))
        except Exception as error:  # as many kinds as a step
            failure = self._active.describe_failure(error, self._num_tokens)
            message = f"the text was not scored: {failure}"
        if scored is not None:
            yield self.trace.append(scored)
        yield self._end(reason, message)

    @property
    def _num_tokens(self) -> int:
        prompt = 0 if self.trace.header is None else len(self.trace.header.prompt.tokens)
        return prompt + sum(len(step.emitted) for step in self.trace.steps)

    def _end(self, reason: str, message: str | None) -> trace.Event | None:
        """Ends the run and frees its models; the footer, or None where the trace has not begun or has one.

        Without an error, the rows of its prompt and its answer are left to its visitor's next run.
        """
        self.state = "finished"
        if self._steps is not None:
            self._steps.close()
            with suppress(Exception):  # the run ends all the same
                self._add_records([])  # those that nobody asked for
        self._scorer = None
        if self.trace.header is not None and reason != "error":
            prompt = [token.id for token in self.trace.header.prompt.tokens]
            self._active.keep_rows(prompt, self._num_tokens)
            self._active.keep_answer([token.id for token in self.trace.tokens])
        self._active.release()
        if self.trace.header is None or self.trace.footer is not None:
            return None
        extra: dict[str, object] = {"shared_engine": True} if self.shared_engine else {}
        if self.num_read_before:
            extra["read_before"] = self.num_read_before
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
    bench = bench or workbench()
    targets = catalog.targets()
    drafts = catalog.drafts_for(request.target, foreign=True)
    checked = request.validate()
    if bench.open_in_worker and not catalog.needs_no_gpu(checked.target):
        return bench.open_in_worker(request, bench, pace, may_cut, (targets, drafts), asker)
    controls = Controls(checked.settings, targets, drafts, pace)
    return Run(request, bench, controls, may_cut=may_cut, asker=asker)


def _needs_other_models(now: RunSettings, before: RunSettings) -> bool:
    return any(getattr(now, name) != getattr(before, name) for name in LOADED)
