"""Waiting for what other threads and processes do: for the thing itself, never for a time that should be enough."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 60  # on the busiest machine; who is quicker is not waited for


def until(is_so: Callable[[], bool]) -> None:
    """Returns as soon as it is so. Fails the test where it never becomes so."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
