"""Workbench: what runs share, and how they share it: turns at the engine, and loading in the background."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

from specviz.errors import SpecvizError
from specviz.models.busy import other_work
from specviz.models.files.hub import Progress
from specviz.models.library import Library
from specviz.settings import settings

Result = TypeVar("Result")
NO_NEWS: tuple[str, float | None] = ("", None)


class Workbench:
    """What runs share: the loaded models, the engine, the places for runs."""

    def __init__(self, library: Library | None = None, open_in_worker: Callable[..., Any] | None = None) -> None:
        """open_in_worker: gpu_worker.WorkerRun where this process has no GPU for models that need one."""
        self.library = library or Library()
        self.engine = FairQueue(1)
        self.places = FairQueue(settings().max_runs)
        self.open_in_worker = open_in_worker

    def in_turns(self, work: Generator[Result, None, None]) -> Iterator[Result]:
        """Each result of `work` is made with the engine to itself; between two of them others have their turn."""
        with closing(work), suppress(StopIteration):  # of the work, at its end
            while True:
                ticket = self.engine.join()
                try:
                    ticket.ready.wait()
                    result = next(work)
                finally:
                    self.engine.leave(ticket)
                yield result


_shared: list[Workbench] = []
_sharing = threading.Lock()


def workbench() -> Workbench:
    """The one that `run` and `stream` use when none is given."""
    with _sharing:
        if not _shared:
            _shared.append(Workbench())
    return _shared[0]


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the line. `ready` when its holder may go; give it back with `FairQueue.leave`."""

    ready: threading.Event = field(default_factory=threading.Event)
    is_aside: bool = False


class FairQueue:
    """At most `capacity` holders at a time, in the order in which they joined. Tickets belong to no thread."""

    def __init__(self, capacity: int = 1) -> None:
        self._capacity = capacity
        self._line: deque[Ticket] = deque()
        self._guard = threading.Lock()

    def join(self) -> Ticket:
        ticket = Ticket()
        with self._guard:
            self._line.append(ticket)
            self._admit()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Ends a turn or gives up a place; leaving twice is harmless."""
        with self._guard:
            if ticket in self._line:
                self._line.remove(ticket)
            self._admit()

    def step_aside(self, ticket: Ticket) -> bool:
        """Keeps the place but lets others go first until `step_back`; False if it is this ticket's turn already."""
        with self._guard:
            ticket.is_aside = not ticket.ready.is_set()
            return ticket.is_aside

    def step_back(self, ticket: Ticket) -> None:
        with self._guard:
            ticket.is_aside = False
            self._admit()

    def ahead(self, ticket: Ticket) -> int:
        """How many must go before this ticket may; 0 when it may now."""
        with self._guard:
            place = self._line.index(ticket) if ticket in self._line else 0
        return max(0, place + 1 - self._capacity)

    def __len__(self) -> int:
        """Holders and waiting ones together."""
        return len(self._line)

    def _admit(self) -> None:
        num_free = self._capacity - sum(ticket.ready.is_set() for ticket in self._line)
        waiting = (ticket for ticket in self._line if not (ticket.is_aside or ticket.ready.is_set()))
        for ticket in islice(waiting, num_free):
            ticket.ready.set()


class BackgroundTask(Generic[Result]):
    """One piece of work, begun at once. `news`: what it said last, as (message, fraction done or None)."""

    def __init__(self, work: Callable[[Progress], Result]) -> None:
        self.news = NO_NEWS
        self.is_abandoned = False
        self._outcome: Future[Result | None] = Future()
        threading.Thread(target=self._do, args=(work,), daemon=True, name="loading").start()

    def wait(self, seconds: float) -> bool:
        """Whether it is done, after at most this long."""
        return bool(wait([self._outcome], seconds).done)

    def result(self) -> Result:
        """What a work that is done gave. Raises what it raised."""
        return self._outcome.result()

    def abandon(self) -> None:
        """Nobody waits any more."""
        self.is_abandoned = True

    def _do(self, work: Callable[[Progress], Result]) -> None:
        try:
            with other_work.work():
                result = work(self._report)
            self._outcome.set_result(None if self.is_abandoned else result)  # what nobody waits for is not held
        except BaseException as error:  # whoever waits raises it: a library's panic too, or they would wait for ever
            self._outcome.set_exception(error)

    def _report(self, message: str, fraction: float | None) -> None:
        if self.is_abandoned:
            raise SpecvizError("nobody is waiting for this")
        self.news = (message, None if fraction is None else round(fraction, 2))
