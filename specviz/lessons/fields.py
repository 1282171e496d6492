"""One value of a lesson file and where it stands there: every check names that place, what must be and what was got.

A paragraph is a text or a list of texts of which every second one is set off.
"""

from __future__ import annotations

import json
import re
import reprlib
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from specviz.errors import SpecvizError

Paragraph = tuple[str, ...]

MOST_PARAGRAPHS, MOST_PIECES = 8, 24
LINE, TEXT = 160, 800  # characters of a title, and of a paragraph
MOST_GOT = 120  # characters of what is wrong, in a message


def parse(content: str, file: str) -> Part:
    """The whole of a file of JSON. Raises SpecvizError."""
    try:
        return Part(json.loads(content, object_pairs_hook=_distinct, parse_constant=_no_constant), file)
    except (ValueError, RecursionError) as error:
        raise SpecvizError(f"{file} must be JSON ({str(error)[:200]})") from None


@dataclass(frozen=True, slots=True)
class Part:
    """A value of a file, and where it stands there."""

    value: Any
    where: str

    def refuse(self, must: str) -> NoReturn:
        try:
            got = reprlib.repr(self.value)[:MOST_GOT]
        except ValueError:  # a whole number with more digits than Python prints
            got = "a huge number"
        raise SpecvizError(f"{self.where} must be {must} (got {got})")

    def within(self, name: str | int) -> str:
        return f"{self.where}[{name}]" if isinstance(name, int) else f"{self.where}: {name}"

    def parts(self, needed: Sequence[str], also: Sequence[str] = ()) -> dict[str, Part]:
        """The fields of an object: all that are needed, and no others than those named."""
        if not isinstance(self.value, dict):
            self.refuse(f"an object with {', '.join(needed) or 'named fields'}")
        if unknown := [name for name in self.value if name not in (*needed, *also)]:
            raise SpecvizError(
                f"{self.where} has no field {unknown[0]!r:.60}; it may have {', '.join((*needed, *also))}"
            )
        if absent := [name for name in needed if name not in self.value]:
            raise SpecvizError(f"{self.where} must have the field {absent[0]!r} (got none)")
        return {name: Part(value, self.within(name)) for name, value in self.value.items()}

    def entries(self, low: int, high: int) -> list[Part]:
        """The values of a list, counted from 1 as people do."""
        if not isinstance(self.value, list) or not low <= len(self.value) <= high:
            self.refuse(f"a list of {low} to {high} values")
        return [Part(value, self.within(number)) for number, value in enumerate(self.value, 1)]

    def text(self, most: int = LINE) -> str:
        if not isinstance(self.value, str) or not 1 <= len(self.value) <= most:
            self.refuse(f"a text of 1 to {most} characters")
        if any(unicodedata.category(char).startswith("C") for char in self.value):
            self.refuse("a text without control characters")
        return self.value

    def matched(self, pattern: re.Pattern[str], what: str) -> str:
        if not isinstance(self.value, str) or len(self.value) > LINE or not pattern.fullmatch(self.value):
            self.refuse(what)
        return self.value

    def one_of(self, allowed: Collection[str]) -> str:
        if not isinstance(self.value, str) or self.value not in allowed:
            self.refuse(f"one of {', '.join(allowed)}")
        return self.value

    def whole(self, low: int, high: int) -> int:
        if type(self.value) is not int or not low <= self.value <= high:
            self.refuse(f"a whole number from {low} to {high:,}")
        return self.value

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            self.refuse("true or false")
        return self.value

    def paragraph(self) -> Paragraph:
        """A text, or a list of texts of which every second one is set off; the whole is bounded."""
        if isinstance(self.value, str):
            return (self.text(TEXT),)
        pieces = tuple(part.text(TEXT) if part.value != "" else "" for part in self.entries(1, MOST_PIECES))
        if not 1 <= sum(map(len, pieces)) <= TEXT:
            self.refuse(f"a paragraph of 1 to {TEXT} characters")
        return pieces

    def paragraphs(self) -> tuple[Paragraph, ...]:
        return tuple(part.paragraph() for part in self.entries(1, MOST_PARAGRAPHS))


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field stands there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
