"""What else this process works at: pieces of work that take the processor while a race measures. Standard library only.

Files that are made and models that are loaded enter it. Of other programs on the machine it knows nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Beside:
    """Counts the pieces of work that go on. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._now = self._begun = 0

    @contextmanager
    def work(self) -> Iterator[None]:
        """For as long as a piece of work takes."""
        with self._guard:
            self._now += 1
            self._begun += 1
        try:
            yield
        finally:
            with self._guard:
                self._now -= 1

    def watch(self) -> Callable[[], bool]:
        """Whether, from now on to the time it is asked, any work went on."""
        with self._guard:
            now, begun = self._now, self._begun
        return lambda: now > 0 or self._begun != begun


others = Beside()
"""The one of this process: its threads share the processor, whichever workbench they belong to."""
