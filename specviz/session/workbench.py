"""Workbench: the things that runs share, with turns at the engine and loading in the background."""

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
    """The things that runs share: the loaded models, the engine, the places for runs."""

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
        """Yields each result of `work`, made with the engine. Raises Unwanted once the asker has left.

        Others have their turn between two results, and wherever the work gives way.
        """
        turn = Turn(self.engine, asker)
        with closing(work), suppress(StopIteration):  # which the work raises at its end
            while True:
                with turn.at(turn.wait()):
                    result = next(work)
                yield result

    def watch(self) -> Callable[[], bool]:
        """A function that says whether other work than the present turn's was done here since this call."""
        is_disturbed = other_work.watch()
        waited_before = waited_s()
        return lambda: is_disturbed() or len(self.engine) > 1 or waited_s() > waited_before


_shared: list[Workbench] = []
_sharing = threading.Lock()


def workbench() -> Workbench:
    """The workbench that `run` and `stream` use when none is given."""
    with _sharing:
        if not _shared:
            _shared.append(Workbench())
    return _shared[0]


class BackgroundTask(Generic[Result]):
    """A piece of work in a thread of its own, begun at once."""

    def __init__(self, work: Callable[[Progress], Result]) -> None:
        self.news = NO_NEWS
        """The last report of its progress: (message, fraction done or None)."""
        self.is_abandoned = False
        self._outcome: Future[Result | None] = Future()
        threading.Thread(target=self._do, args=(work,), daemon=True, name="loading").start()

    def wait(self, seconds: float) -> bool:
        """Waits at most this long; whether the work is done."""
        return bool(wait([self._outcome], seconds).done)

    def result(self) -> Result:
        """The result of work that is done. Raises what the work raised."""
        return self._outcome.result()

    def abandon(self) -> None:
        """Tells the work that nobody waits for it any more."""
        self.is_abandoned = True

    def _do(self, work: Callable[[Progress], Result]) -> None:
        try:
            with other_work.work():
                result = work(self._report)
            if self.is_abandoned:
                result = None  # to free what nobody waits for
            self._outcome.set_result(result)
        # A library's panic counts too, or whoever waits would wait for ever.
        except BaseException as error:
            self._outcome.set_exception(error)

    def _report(self, message: str, fraction: float | None) -> None:
        if self.is_abandoned:
            raise SpecvizError("nobody is waiting for this")
        self.news = (message, None if fraction is None else round(fraction, 2))
