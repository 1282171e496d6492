"""Loading: work of a thread of its own, so that whoever waits for it hears how far it is and may stop waiting.

What is abandoned ends where it next tells of its progress; until then nobody waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from specviz.errors import SpecvizError
from specviz.models.busy import others
from specviz.models.hub import Progress

Result = TypeVar("Result")
NO_NEWS: tuple[str, float | None] = ("", None)


class Loading(Generic[Result]):
    """One piece of work, begun at once. `news`: what it said last, as (message, fraction done or None)."""

    def __init__(self, work: Callable[[Progress], Result]) -> None:
        self.news = NO_NEWS
        self._is_abandoned = False
        self._is_done = threading.Event()
        self._result: Result | None = None
        self._error: Exception | None = None
        threading.Thread(target=self._do, args=(work,), daemon=True, name="loading").start()

    def wait(self, seconds: float) -> bool:
        """Whether it is done, after at most this long."""
        return self._is_done.wait(seconds)

    def result(self) -> Result:
        """What a work that is done gave. Raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def abandon(self) -> None:
        """Nobody waits any more."""
        self._is_abandoned = True

    def _do(self, work: Callable[[Progress], Result]) -> None:
        try:
            with others.work():
                self._result = work(self._tell)
        except Exception as error:  # whoever waits raises it
            self._error = error
        if self._is_abandoned:
            self._result = None  # a model that nobody waits for is not held
        self._is_done.set()

    def _tell(self, message: str, fraction: float | None) -> None:
        if self._is_abandoned:
            raise SpecvizError("nobody waits for this any more")
        self.news = (message, None if fraction is None else round(fraction, 2))
