"""Counts this process's other work, such as loading models, which would slow a measured race."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class OtherWork:
    """Counts the pieces of work in progress. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running = self._started = 0

    @contextmanager
    def work(self) -> Iterator[None]:
        """Marks a piece of work for as long as the block runs."""
        with self._guard:
            self._running += 1
            self._started += 1
        try:
            yield
        finally:
            with self._guard:
                self._running -= 1

    def watch(self) -> Callable[[], bool]:
        """A function that says whether any work was in progress since this call."""
        with self._guard:
            running, started = self._running, self._started
        return lambda: running > 0 or self._started != started


other_work = OtherWork()
"""The counter of this process: the threads of all workbenches share the processor."""
