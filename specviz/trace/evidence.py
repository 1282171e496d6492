"""What a drafter tells of its draft, as a record holds it: plain JSON of bounded size, every token with its text.

A token in evidence is an object with an "id"; whoever shows evidence finds its "text" beside it, and its "bytes" where
they are not whole characters. Knows no method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from specviz.trace.file import round9
from specviz.trace.values import MAX_INTEGER

MOST_DEPTH = 8
MOST_VALUES = 8_192
MOST_TEXT = 4_000
Pieces = Mapping[int, tuple[str, str | None]]


def write_evidence(evidence: Mapping[str, Any], pieces: Pieces) -> dict[str, Any]:
    """The evidence of one draft for its record. What is too deep or too much is left out; numbers that are none, too.

    Raises ValueError for a value that JSON does not know.
    """
    return _Writer(pieces).object_(evidence, 0)


class _Writer:
    """Counts what it writes, so that no draft can make a record without end."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._left = MOST_VALUES

    def object_(self, value: Mapping[str, Any], depth: int) -> dict[str, Any]:
        made = {str(name): self.value(item, depth + 1) for name, item in value.items() if self._has_room(depth)}
        token = made.get("id")
        if type(token) is int and token >= 0 and "text" not in made:
            made["text"], half = self._pieces[token]
            if half is not None:
                made["bytes"] = half
        return made

    def value(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if isinstance(value, Mapping):
            return self.object_(value, depth)
        if isinstance(value, (list, tuple)):
            return [self.value(item, depth + 1) for item in value if self._has_room(depth)]
        if isinstance(value, str):
            return value[:MOST_TEXT]
        if value is None or isinstance(value, (bool, int, float)):
            return _number(value)
        raise ValueError(f"evidence must hold what JSON knows (got {type(value).__name__})")

    def _has_room(self, depth: int) -> bool:
        return depth < MOST_DEPTH and self._left > 0


def _number(value: float | bool | None) -> float | bool | None:
    if value is None or isinstance(value, bool):
        return value
    if not math.isfinite(value) or abs(value) > MAX_INTEGER:
        return None
    return round9(value) if isinstance(value, float) else value
