"""Workbench: what runs share, and how they share it: turns at the engine, and loading in the background."""

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from typing import Any, Generic, TypeVar

from specviz.decoding.turns import NOBODY, Asker, FairQueue, Turn, waited_s
from specviz.errors import SpecvizError
from specviz.models.busy import other_work
from specviz.models.files.hub import Progress
from specviz.models.pool import ModelPool
from specviz.settings import settings

Result = TypeVar("Result")
NO_NEWS: tuple[str, float | None] = ("", None)


class Workbench:
    """What runs share: the loaded models, the engine, the places for runs."""

    def __init__(
        self, pool: ModelPool | None = None, open_in_worker: Callable[..., Any] | None = None
    ) -> None:
        """open_in_worker: gpu_worker.WorkerRun where this process has no GPU for models that need one."""
        self.pool = pool or ModelPool()
        self.engine = FairQueue(1)
        self.places = FairQueue(settings().max_runs)
        self.open_in_worker = open_in_worker

    def in_turns(
        self, work: Generator[Result, None, None], asker: Asker = NOBODY
    ) -> Iterator[Result]:
        """Each result of `work` is made with the engine; between two of them, and wherever it gives way, others have
        their turn. Raises Unwanted once the asker has left."""
        turn = Turn(self.engine, asker)
        with closing(work), suppress(StopIteration):  # of the work, at its end
            while True:
                with turn.at(turn.wait()):
                    result = next(work)
                yield result

    def watch(self) -> Callable[[], bool]:
        """A function that says whether anything but the work that has the turn was done here since this call."""
        is_disturbed, waited = other_work.watch(), waited_s()
        return lambda: is_disturbed() or len(self.engine) > 1 or waited_s() > waited


_shared: list[Workbench] = []
_sharing = threading.Lock()


def workbench() -> Workbench:
    """The one that `run` and `stream` use when none is given."""
    with _sharing:
        if not _shared:
            _shared.append(Workbench())
    return _shared[0]


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
            self._outcome.set_result(
                None if self.is_abandoned else result
            )  # what nobody waits for is not held
        except (
            BaseException
        ) as error:  # whoever waits raises it: a library's panic too, or they would wait for ever
            self._outcome.set_exception(error)

    def _report(self, message: str, fraction: float | None) -> None:
        if self.is_abandoned:
            raise SpecvizError("nobody is waiting for this")
        self.news = (message, None if fraction is None else round(fraction, 2))
