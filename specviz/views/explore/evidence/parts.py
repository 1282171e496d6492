"""Reads evidence, and makes the parts of a panel.

Evidence may come from any file, so `Evidence` returns a value only if it has the type asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specviz.trace import Step
from specviz.views.explore.message import Chip, ChipLine, FactsPart, LinesPart
from specviz.views.words import drafted_nodes, label, reveal, token_label

MOST_CHIPS = 64
MOST_LINES = 24
MOST_WORDS = 1_500
MOST_WHOLE = 10**9


class Evidence:
    """An object of the evidence, empty where the value is no object."""

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
        """The beginning of a text as it is, with its line breaks; it is not harmless yet."""
        value = self._value.get(name)
        return value[:MOST_WORDS] if isinstance(value, str) else ""

    def inside(self, name: str) -> Evidence:
        return Evidence(self._value.get(name))

    def items(self, name: str) -> list[Any]:
        value = self._value.get(name)
        return list(value) if isinstance(value, (list, tuple)) else []

    def wholes(self, name: str) -> list[int]:
        """The whole numbers of a list; none if an item is something else."""
        numbers = [_whole(item) for item in self.items(name)]
        return [] if None in numbers else numbers

    def numbers(self, name: str, size: int) -> list[float] | None:
        """The numbers of a list; None unless there are `size` of them and nothing else."""
        numbers = [_number(item) for item in self.items(name)]
        return numbers if len(numbers) == size and None not in numbers else None

    def counts(self) -> list[tuple[str, int]]:
        """The whole numbers by name, at most MOST_LINES."""
        counts = []
        for name, value in self._value.items():
            if (number := _whole(value)) is not None:
                counts.append((reveal(str(name)[:MOST_WORDS]), number))
        return counts[:MOST_LINES]

    def chip(self, mark: str = "") -> Chip:
        """The chip of a token, which has a text, and bytes where it is half a character."""
        text = self._value.get("text")
        if not isinstance(text, str):
            text = ""
        half = self._value.get("bytes")
        if not isinstance(half, str):
            half = None
        return label(text, half) or "<?>", mark, ""


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_WHOLE else None


def _number(value: object) -> float | None:
    return value if type(value) in (int, float) and math.isfinite(value) else None


def token_chips(tokens: object) -> list[Chip]:
    """The chips of a list of tokens; none for any other value."""
    if not isinstance(tokens, (list, tuple)):
        return []
    return [Evidence(token).chip() for token in tokens]


def draft_chips(step: Step, notes: Sequence[str] = ()) -> list[Chip]:
    """The drafted tokens, marked by their statuses, each with its note where there are notes."""
    tokens = [step.draft[node] for node in drafted_nodes(step)]
    beside = [*notes, *[""] * len(tokens)]
    pairs = zip(tokens, beside, strict=False)
    return [(token_label(token), token.status, note) for token, note in pairs]


def line(name: str, chips: Sequence[Chip]) -> ChipLine:
    more = len(chips) - MOST_CHIPS
    return name, chips[:MOST_CHIPS], f"+{more:,} more" if more > 0 else ""


def lines(
    title: str, rows: Sequence[ChipLine], note: str = "", *, lead: str = "", aligned: bool = False
) -> LinesPart:
    """A part with these lines, its `lead` above them and its `note` below.

    aligned: chips are as wide as their texts, so that rows that spell one text stand above each other.
    """
    more = len(rows) - MOST_LINES
    if more > 0:
        hidden = f"{more:,} more lines are not shown."
        note = f"{note} {hidden}" if note else hidden
    return LinesPart(title, lead, note, rows[:MOST_LINES], aligned)


def facts(title: str, items: Sequence[tuple[str, str]]) -> list[FactsPart]:
    """One part with these (name, words); none where there are no items."""
    return [FactsPart(title, items[:MOST_LINES])] if items else []
