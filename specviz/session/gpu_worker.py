"""Runs on a ZeroGPU Space: the package `spaces` forks a worker process that has the GPU and makes the steps.

A person's changes travel through memory that is shared before the fork; events come back as they are. A pause gives the
GPU back. Then another worker resumes the run behind the last token of the trace.
"""

import json
import math
import multiprocessing
import os
import struct
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing.context import BaseContext

from specviz import trace
from specviz.decoding.turns import NOBODY, Asker
from specviz.errors import SpecvizError
from specviz.request import Request, RunSettings
from specviz.session.controls import PACES, Controls, ControlState
from specviz.session.run import Run, Status
from specviz.session.setup import models_named
from specviz.session.workbench import Workbench, workbench
from specviz.settings import settings

NUM_BLOCKS = 256
"""Runs that a person may still control: also a paused run, and a run on somebody's stage."""
LONGEST_S = 120
START_S = 10  # of a worker
LOAD_S = 20  # of a model that this process does not have
TOKEN_S = 0.1  # on a slice of a GPU
WAITING = "waiting for a GPU"
WITHOUT = "Recorded runs, lessons and the bundled models work without it."
PATIENCE_S = 5.0
"""The longest wait for a block: it is held for microseconds, unless a process was killed that held it."""
Answer = Status | trace.Event | SpecvizError
_HEADER = struct.Struct("<QQ")  # number of changes so far, bytes of JSON that follow


class Block:
    """A store of controls in memory that processes share: one generates on the GPU, another has the sliders.

    It is an argument of a new process, or made before a process is forked.
    """

    SIZE = 1 << 14

    def __init__(self, context: BaseContext) -> None:
        self.memory = context.RawArray("B", self.SIZE)  # the header, then JSON
        self.lock = context.Lock()
        self._latest: tuple[int, ControlState | None] = (0, None)  # as it was last read here

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Locks the state. Raises SpecvizError if a process was killed that held it."""
        if not self.lock.acquire(timeout=PATIENCE_S):
            raise SpecvizError(
                "this run can no longer be controlled: the process that generates was ended; run again"
            )
        try:
            yield
        finally:
            self.lock.release()

    def read(self) -> ControlState:
        version, size = _HEADER.unpack_from(self.memory)
        if version != self._latest[0]:
            content = bytes(self.memory[_HEADER.size : _HEADER.size + size])
            values = json.loads(content)
            values["settings"] = RunSettings(**values["settings"])
            self._latest = version, ControlState(**values)
        return self._latest[1]

    def write(self, state: ControlState) -> None:
        content = json.dumps(asdict(state), ensure_ascii=False, separators=(",", ":")).encode()
        if len(content) > self.SIZE - _HEADER.size:
            raise SpecvizError(f"the settings of a run are too long (got {len(content):,} bytes)")
        version, _ = _HEADER.unpack_from(self.memory)
        _HEADER.pack_into(self.memory, 0, version + 1, len(content))
        self.memory[_HEADER.size : _HEADER.size + len(content)] = content


_context = multiprocessing.get_context("fork")
_blocks = [Block(_context) for _ in range(NUM_BLOCKS)] if settings().zero_gpu else []
_free = deque(range(len(_blocks)))


def _events(
    request: Request, so_far: trace.Trace, slot: int, may_cut: bool, max_steps: int | None
) -> Iterator[Answer]:
    """Yields, in the worker, the events behind the trace so far; an error that ends the run comes last."""
    controls = Controls(request.settings, store=_blocks[slot])
    run = Run(request, Workbench(workbench().pool), controls, may_cut=may_cut, so_far=so_far)
    try:
        yield from run.events(max_steps)
    except SpecvizError as error:  # `spaces` would hand over its class alone
        yield error


def _seconds(
    request: Request, so_far: trace.Trace, slot: int, may_cut: bool, max_steps: int | None
) -> int:
    """The seconds to ask the GPU for: by the models to load, the tokens to come and the pace."""
    with _blocks[slot].hold():
        state = _blocks[slot].read()
    pool = workbench().pool
    names = {pool.shown_name(name) for _, name in models_named(state.settings)}
    num_missing = len(names.difference(pool.loaded_names()))
    num_steps = max_steps
    if num_steps is None:
        num_steps = request.max_new_tokens - len(so_far.tokens)
    steps_s = num_steps * (TOKEN_S + PACES[state.pace])
    return math.ceil(min(LONGEST_S, START_S + LOAD_S * num_missing + steps_s))


if settings().zero_gpu:
    import spaces

    _events = spaces.GPU(_events, duration=_seconds)
    os.register_at_fork(after_in_child=lambda: workbench().pool.renew_locks())


class WorkerRun(Run):
    """A run that leaves its steps to a worker. When no GPU is left to it, it is paused and can be resumed."""

    def __init__(
        self,
        request: Request,
        bench: Workbench,
        pace: str,
        may_cut: bool,
        names: tuple[Sequence[str], Sequence[str]],
        asker: Asker = NOBODY,
    ) -> None:
        """names: the targets and drafts on offer. Raises SpecvizError if too many runs are still held."""
        if not _free:
            raise SpecvizError(
                f"at most {NUM_BLOCKS} runs can be open on this Space at once; try again in a minute"
            )
        self._slot = _free.popleft()
        weakref.finalize(self, _free.append, self._slot)
        block = _blocks[self._slot]
        targets, drafts = names
        controls = Controls(request.settings, targets, drafts, pace, block)
        with block.hold():
            block.write(ControlState(request.settings, pace))
        super().__init__(request, bench, controls, may_cut=may_cut, asker=asker)

    def _work(self, max_steps: int | None, resumed: float) -> Iterator[Status | trace.Event]:
        yield Status("queued", WAITING)
        events = _events(self.request, self.trace, self._slot, self._may_cut, max_steps)
        try:
            for event in events:
                if isinstance(event, SpecvizError):
                    raise event
                if isinstance(event, Status):
                    self.state = event.state
                    yield event
                    continue
                if isinstance(event, trace.Footer):
                    self.state = "finished"
                yield self.trace.append(event)
        except (SpecvizError, GeneratorExit):
            self.controls.set("stopped", True)  # the worker reads it before its next step
            raise
        except Exception as error:  # as `spaces` says it: no quota, no GPU in time, time over
            reason = getattr(error, "message", None) or str(error)
            words = f"no GPU is left for this run: {reason.rstrip('. '):.300}"
            if self.trace.header is None:
                raise SpecvizError(f"{words}. {WITHOUT}") from error
            self.state = "paused"
            self.controls.set("paused", True)
            yield Status("paused", f"{words}. Nothing is lost: press Resume later. {WITHOUT}")
        finally:
            events.close()
