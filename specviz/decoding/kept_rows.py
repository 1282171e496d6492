"""KeptRows: readers of ended runs, each with the rows of its prompt alone, for the next run of the same visitor.

Rows hold a person's text, so nobody else's run gets them. A reader is here or in one run, never in both. What is kept
has bounds, goes first where a model needs room, and is freed when it has lain idle for a while: see `Kept`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.forward.proof import Proof

MOST_VISITORS = 64
MOST_BYTES = 512 << 20
IDLE_S = 300.0
Left = TypeVar("Left")


@dataclass(frozen=True, slots=True, eq=False)
class _Kept(Generic[Left]):
    """The things that a visitor's last run has left."""

    left: Left
    since: float  # time.monotonic()


class Kept(Generic[Left]):
    """What ended runs have left, by visitor. Thread-safe.

    Those that have been idle longest make room, and what has been idle for IDLE_S is dropped.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _Kept[Left]] = {}  # the longest idle first
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def _put(self, visitor: str, left: Left) -> None:
        """Keeps what a visitor's run has left, instead of what is kept for him."""
        with self._lock:
            self._kept.pop(visitor, None)
            self._kept[visitor] = _Kept(left, time.monotonic())
            while len(self._kept) > MOST_VISITORS or self._is_too_much():
                self.drop_oldest()
            if self._timer is None:
                self._await(IDLE_S)

    def _is_too_much(self) -> bool:
        """Whether something must go, however few visitors there are."""
        return False

    def drop_oldest(self) -> bool:
        """Drops what has been idle longest; False if nothing is kept."""
        with self._lock:
            oldest = next(iter(self._kept), None)
            return self._kept.pop(oldest, None) is not None

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


class KeptRows(Kept[dict[CachedLM, int]]):
    """The readers of ended runs by visitor, and the bytes of each one's rows."""

    def keep(self, visitor: str, readers: Mapping[CachedLM, int]) -> None:
        """Keeps the readers that a visitor's run has left, with the bytes of their rows, instead of earlier ones."""
        self._put(visitor, dict(readers))

    def take(self, visitor: str, proof: Proof) -> CachedLM | None:
        """A reader that the visitor's last run has left, of the very model with this proof; it is here no longer."""
        with self._lock:
            kept = self._kept.get(visitor)
            for reader in kept.left if kept else ():
                if reader.proof is proof:
                    del kept.left[reader]
                    return reader
        return None

    def num_bytes(self, device: torch.device | None = None) -> int:
        """The bytes of all rows, on one device or on all."""
        with self._lock:
            return sum(
                size
                for kept in self._kept.values()
                for reader, size in kept.left.items()
                if device in (None, reader.device)
            )

    def _is_too_much(self) -> bool:
        return self.num_bytes() > MOST_BYTES
