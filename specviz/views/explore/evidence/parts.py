"""Reads evidence, and makes the parts of a panel.

`Said` returns a value only if it has the type asked for: evidence may come from any file. A chip is [text, mark, note]:
a token as it is shown, the status or role that marks it, and a short note.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specviz.trace import Step
from specviz.views.words import drafted_nodes, label, reveal, token_label

MOST_CHIPS = 64
MOST_LINES = 24
MOST_WORDS = 1_500
MOST_WHOLE = 10**9
Chip = list[str]
Part = dict[str, Any]


class Said:
    def __init__(self, value: object) -> None:
        self._value: Mapping[str, Any] = value if isinstance(value, Mapping) else {}

    def __bool__(self) -> bool:
        return bool(self._value)

    def __contains__(self, name: str) -> bool:
        return name in self._value

    def whole(self, name: str) -> int | None:
        return _whole(self._value.get(name))

    def number(self, name: str) -> float | None:
        return _number(self._value.get(name))

    def words(self, name: str) -> str:
        return reveal(self.passage(name))

    def passage(self, name: str) -> str:
        """The beginning of a text as it is, its line breaks kept; `flowing` makes it harmless."""
        value = self._value.get(name)
        return value[:MOST_WORDS] if isinstance(value, str) else ""

    def inside(self, name: str) -> Said:
        return Said(self._value.get(name))

    def items(self, name: str) -> list[Any]:
        value = self._value.get(name)
        return list(value) if isinstance(value, (list, tuple)) else []

    def wholes(self, name: str) -> list[int]:
        found = [_whole(item) for item in self.items(name)]
        return [] if None in found else found

    def numbers(self, name: str, size: int) -> list[float] | None:
        """As many numbers as there are nodes, or None."""
        found = [_number(item) for item in self.items(name)]
        return found if len(found) == size and None not in found else None

    def counts(self) -> list[tuple[str, int]]:
        """Its whole numbers by name, at most MOST_LINES."""
        known = [
            (reveal(str(name)[:MOST_WORDS]), _whole(value)) for name, value in self._value.items()
        ]
        return [(name, value) for name, value in known if value is not None][:MOST_LINES]

    def chip(self, mark: str = "") -> Chip:
        """A token: an object with a text, and bytes where they are half a character."""
        text, half = self._value.get("text"), self._value.get("bytes")
        shown = label(
            text if isinstance(text, str) else "", half if isinstance(half, str) else None
        )
        return [shown or "<?>", mark, ""]


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_WHOLE else None


def _number(value: object) -> float | None:
    return value if type(value) in (int, float) and math.isfinite(value) else None


def token_chips(tokens: object) -> list[Chip]:
    """The chips of a list of tokens; none for what is no list."""
    return [Said(token).chip() for token in tokens] if isinstance(tokens, (list, tuple)) else []


def draft_chips(step: Step) -> list[Chip]:
    """The drafted tokens, marked by their statuses."""
    tokens = (step.draft[node] for node in drafted_nodes(step))
    return [[token_label(token), token.status, ""] for token in tokens]


def line(name: str, chips: Sequence[Chip]) -> list[Any]:
    """[name, chips, how many more there are, in words]."""
    more = len(chips) - MOST_CHIPS
    return [name, list(chips[:MOST_CHIPS]), f"+{more:,} more" if more > 0 else ""]


def lines(
    title: str, rows: Sequence[list[Any]], note: str = "", *, lead: str = "", aligned: bool = False
) -> Part:
    """lead stands above the lines, note below them.

    aligned: chips are as wide as their texts, so that rows that spell one text stand above each other."""
    more = len(rows) - MOST_LINES
    note = " ".join(filter(None, (note, f"{more:,} more lines are not shown." if more > 0 else "")))
    shown = list(rows[:MOST_LINES])
    return {
        "kind": "lines",
        "title": title,
        "lead": lead,
        "note": note,
        "lines": shown,
        "aligned": aligned,
    }


def facts(title: str, items: Sequence[Sequence[str]]) -> list[Part]:
    """One part with these (name, words); none where there are no items."""
    part = {"kind": "facts", "title": title, "items": [list(item) for item in items[:MOST_LINES]]}
    return [part] if items else []
