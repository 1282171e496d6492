"""The fields of a row, or of an object in it. Null counts as missing, and unread fields are noted.

Python writes some values that are not JSON or UTF-8. Such a value is refused where it is read, and nowhere else.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from specviz.errors import SpecvizError
from specviz.trace.lines import MAX_HOLDERS, parse_line
from specviz.trace.values import TraceError, format_got

MOST_DIGITS = 20


class Unusable:
    """A stand-in for a value that is not JSON in UTF-8. No reader takes it for one of its own types."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


class Fields:
    """The fields of one object, which notes what was read."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        """Takes the values that are not null. prefix: stands before the names of unread fields."""
        self._values = {name: value for name, value in values.items() if value is not None}
        self._names = values.keys()
        self._prefix = prefix
        self._read: set[str] = set()
        self._inside: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def names(self, name: str) -> bool:
        """Whether there is such a field, maybe null."""
        return name in self._names

    def peek(self, name: str) -> Any:
        """The field's value without counting as read; None where the field is missing."""
        return self._values.get(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Reads a field, returns its value. Raises SpecvizError for a value that is not JSON in UTF-8."""
        self._read.add(name)
        value = self._values.get(name, default)
        if isinstance(value, Unusable):
            raise SpecvizError(
                f'holds {value} as "{self._prefix}{name}", which is not JSON in UTF-8'
            )
        return value

    def take(self, *names: str) -> dict[str, Any]:
        """Reads the fields of these names that there are."""
        return {name: self.get(name) for name in names if name in self}

    def pass_over(self, inside: "Fields") -> None:
        """Notes the unread fields of an object in this row."""
        self._inside |= dict.fromkeys(inside.unread())

    def unread(self) -> list[str]:
        """The names of fields that nothing read."""
        unread = [f"{self._prefix}{name}" for name in self if name not in self._read]
        return [*unread, *self._inside]


def parse_fields(line: bytes) -> Fields:
    """The fields of the JSON object on a line. Raises TraceError for any other line."""
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
    """The value on a line, with `Unusable` in place of values that are not JSON in UTF-8.

    None where nothing can be read. A field that is NaN becomes None: so data frames write a missing value.
    """
    try:
        values = json.loads(line.decode("utf-8"), parse_constant=Unusable, parse_int=_whole_number)
        if isinstance(values, dict):
            for name, value in values.items():
                if repr(value) == "NaN":
                    values[name] = None
        return _replace_halves(values)
    except (ValueError, RecursionError):
        return None


def _whole_number(digits: str) -> int | Unusable:
    if len(digits) > MOST_DIGITS:
        return Unusable(f"a whole number of {len(digits):,} digits")
    return int(digits)


def _replace_halves(value: object) -> object:
    """The value with `Unusable` in place of texts that hold half a surrogate pair."""
    if isinstance(value, str):
        return value if _is_whole(value) else Unusable("half a surrogate pair")
    if isinstance(value, list):
        return [_replace_halves(item) for item in value]
    if isinstance(value, dict):
        replaced = {}
        for name, item in value.items():
            whole_name = name.encode("utf-8", "replace").decode("utf-8")
            replaced[whole_name] = _replace_halves(item)
        return replaced
    return value


def _is_whole(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check_text(name: str, value: object, most: int) -> str:
    """Returns a text of 1 to `most` characters. Raises SpecvizError for any other value."""
    if not isinstance(value, str) or not value:
        raise SpecvizError(f"needs the {name} as a non-empty text {format_got(value)}")
    if len(value) > most:
        raise SpecvizError(
            f"needs the {name} to have at most {most:,} characters (got {len(value):,})"
        )
    return value
