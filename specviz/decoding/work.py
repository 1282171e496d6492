"""Work: how much a model was asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """The cost of some forwards."""

    calls: int = 0
    fed: int = 0  # tokens read
    read_again: int = 0  # of them, those that had been read before

    def __add__(self, other: Work) -> Work:
        return Work(
            self.calls + other.calls, self.fed + other.fed, self.read_again + other.read_again
        )

    def __sub__(self, other: Work) -> Work:
        return Work(
            self.calls - other.calls, self.fed - other.fed, self.read_again - other.read_again
        )
