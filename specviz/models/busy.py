"""What takes this process's processor while a race measures: files being made, models being loaded.

Of other programs on the machine it knows nothing. Standard library only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class OtherWork:
    """Counts the pieces of work that go on. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running = self._started = 0

    @contextmanager
    def work(self) -> Iterator[None]:
        """For as long as a piece of work takes."""
        with self._guard:
            self._running += 1
            self._started += 1
        try:
            yield
        finally:
            with self._guard:
                self._running -= 1

    def watch(self) -> Callable[[], bool]:
        """Whether, from now on to the time it is asked, any work went on."""
        with self._guard:
            running, started = self._running, self._started
        return lambda: running > 0 or self._started != started


other_work = OtherWork()
"""The one of this process: its threads share the processor, whichever workbench they belong to."""
