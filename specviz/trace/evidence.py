"""Writes a drafter's evidence about its draft as plain JSON of bounded size, as a record holds it.

A token in evidence is an object with an "id". It gets its "text", and its "bytes" where they are not whole characters.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from specviz.trace.values import MAX_INTEGER, round9

MOST_DEPTH = 8
MOST_VALUES = 8_192
MOST_TEXT = 4_000
Piece = Callable[[int], tuple[str, str | None]]
"""A function that gives the text of an id, and its bytes where the text is not whole."""


def write_evidence(evidence: Mapping[str, Any], piece: Piece) -> dict[str, Any]:
    """The evidence of one draft for its record; values beyond the limits are left out, impossible numbers are None.

    Raises ValueError for a value that JSON cannot hold.
    """
    left = 1 + MOST_VALUES  # the outermost object does not count

    def write(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if isinstance(value, Mapping):
            written = {}
            for name, item in value.items():
                if depth < MOST_DEPTH and left > 0:
                    written[str(name)] = write(item, depth + 1)
            token = written.get("id")
            if type(token) is int and token >= 0 and "text" not in written:
                text, token_bytes = piece(token)
                written["text"] = text
                if token_bytes is not None:
                    written["bytes"] = token_bytes
            return written
        if isinstance(value, (list, tuple)):
            return [write(item, depth + 1) for item in value if depth < MOST_DEPTH and left > 0]
        if isinstance(value, str):
            return value[:MOST_TEXT]
        if value is None or isinstance(value, bool):
            return value
        if not isinstance(value, (int, float)):
            raise ValueError(f"evidence must hold what JSON knows (got {type(value).__name__})")
        if not math.isfinite(value) or abs(value) > MAX_INTEGER:
            return None
        return round9(value) if isinstance(value, float) else value

    return write(evidence, 0)
