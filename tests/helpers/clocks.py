"""A clock for tests of times: nothing takes any but what is said to."""

from __future__ import annotations

from collections.abc import Callable

TICK_MS = 1e-3  # a look at the clock


class Clock:
    """Stands for time.perf_counter and, with its `sleep`, for time.sleep; `meanwhile` is called in each sleep."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        self.ms += TICK_MS
        return self.ms / 1e3

    def sleep(self, seconds: float) -> None:
        self.ms += 1e3 * seconds
        self.meanwhile()
