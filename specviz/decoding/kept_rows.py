"""KeptRows: readers of ended runs, each with the rows of its prompt alone, for the next run of the same visitor.

Rows hold a person's text, so nobody else's run gets them. A reader is here or in one run, never in both. What is kept
has bounds, goes first where a model needs room, and is freed when it has lain idle for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.forward.proof import Proof

MOST_VISITORS = 64
MOST_BYTES = 512 << 20
IDLE_S = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """The readers that a visitor's last run has left."""

    readers: dict[CachedLM, int]  # and the bytes of each one's rows
    since: float  # time.monotonic()


class KeptRows:
    """The readers of ended runs by visitor. Thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}  # the longest idle first
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def keep(self, visitor: str, readers: Mapping[CachedLM, int]) -> None:
        """Keeps the readers that a visitor's run has left, with the bytes of their rows, instead of his earlier ones.

        Those that have been idle longest make room.
        """
        with self._lock:
            self._kept.pop(visitor, None)
            self._kept[visitor] = _Kept(dict(readers), time.monotonic())
            while len(self._kept) > MOST_VISITORS or self.num_bytes() > MOST_BYTES:
                self.drop_oldest()
            if self._timer is None:
                self._await(IDLE_S)

    def take(self, visitor: str, proof: Proof) -> CachedLM | None:
        """A reader that the visitor's last run has left, of the very model with this proof; it is here no longer."""
        with self._lock:
            kept = self._kept.get(visitor)
            for reader in kept.readers if kept else ():
                if reader.proof is proof:
                    del kept.readers[reader]
                    return reader
        return None

    def drop_oldest(self) -> bool:
        """Drops what has been idle longest; False if nothing is kept."""
        with self._lock:
            oldest = next(iter(self._kept), None)
            return self._kept.pop(oldest, None) is not None

    def num_bytes(self, device: torch.device | None = None) -> int:
        """The bytes of all rows, on one device or on all."""
        with self._lock:
            return sum(
                size
                for kept in self._kept.values()
                for reader, size in kept.readers.items()
                if device in (None, reader.device)
            )

    def _await(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._drop_idle)
        self._timer.daemon = True
        self._timer.start()

    def _drop_idle(self) -> None:
        with self._lock:
            self._timer = None
            for kept in list(self._kept.values()):
                left_s = kept.since + IDLE_S - time.monotonic()
                if left_s > 0:
                    self._await(left_s)
                    return
                self.drop_oldest()
