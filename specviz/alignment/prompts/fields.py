"""The fields of a row, or of an object in it: null counts as missing, and what nothing reads is noted.

A value that JSON or UTF-8 does not know, as Python writes them, is refused where it is read, and nowhere else.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from specviz.errors import SpecvizError
from specviz.trace.lines import MAX_HOLDERS, parse_line
from specviz.trace.values import TraceError, format_got

MOST_DIGITS = 20


class Unusable:
    """What stands in the place of such a value. No reader takes it for one of its own types."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


class Fields:
    """Which fields there are, and which were read. prefix: of their names in the note."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._prefix = prefix
        self._read: set[str] = set()
        self._inside: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def peek(self, name: str) -> Any:
        """The field's value, which does not count as read; None where it is missing."""
        return self._values.get(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._read.add(name)
        value = self._values.get(name, default)
        if isinstance(value, Unusable):
            raise SpecvizError(
                f'holds {value} as "{self._prefix}{name}", which is not JSON in UTF-8'
            )
        return value

    def take(self, *names: str) -> dict[str, Any]:
        """Those of these fields that there are."""
        return {name: self.get(name) for name in names if name in self}

    def pass_over(self, inside: "Fields") -> None:
        """Notes what was not read of an object in this row."""
        self._inside |= dict.fromkeys(inside.unread())

    def unread(self) -> list[str]:
        """The names of fields that nothing read."""
        return [
            *(f"{self._prefix}{name}" for name in self if name not in self._read),
            *self._inside,
        ]


def parse_fields(line: bytes) -> Fields:
    """The fields of the JSON object on a line. TraceError for what is none."""
    try:
        values = parse_line(line, whole=True)
    except TraceError:
        if line.count(b"[") + line.count(b"{") > MAX_HOLDERS:
            raise
        values = _parse_in_part(line)
        if not isinstance(values, dict):
            raise
    return Fields(values)


def _parse_in_part(line: bytes) -> object:
    """The value on a line with `Unusable` in place of what is neither JSON nor UTF-8; None where nothing can be read.
    A field that is NaN is null: so data frames write a missing value."""
    try:
        values = json.loads(line.decode("utf-8"), parse_constant=Unusable, parse_int=_whole_number)
        if isinstance(values, dict):
            values = {
                name: None if repr(value) == "NaN" else value for name, value in values.items()
            }
        return _replace_halves(values)
    except (ValueError, RecursionError):
        return None


def _whole_number(digits: str) -> int | Unusable:
    return (
        int(digits)
        if len(digits) <= MOST_DIGITS
        else Unusable(f"a whole number of {len(digits):,} digits")
    )


def _replace_halves(value: object) -> object:
    if isinstance(value, str):
        return value if _is_whole(value) else Unusable("half a surrogate pair")
    if isinstance(value, list):
        return [_replace_halves(each) for each in value]
    if isinstance(value, dict):
        return {
            name.encode("utf-8", "replace").decode("utf-8"): _replace_halves(each)
            for name, each in value.items()
        }
    return value


def _is_whole(text: str) -> bool:
    try:
        return text.encode("utf-8") is not None
    except UnicodeEncodeError:
        return False


def check_text(name: str, value: object, most: int) -> str:
    if not isinstance(value, str) or not value:
        raise SpecvizError(f"needs the {name} as a non-empty text {format_got(value)}")
    if len(value) > most:
        raise SpecvizError(
            f"needs the {name} to have at most {most:,} characters (got {len(value):,})"
        )
    return value
