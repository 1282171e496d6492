"""The fields of a row, or of an object in it: null counts as missing, and what nothing reads is noted."""

from collections.abc import Iterator, Mapping
from typing import Any

from specviz.errors import SpecvizError
from specviz.trace.values import format_got


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
        return self._values.get(name, default)

    def take(self, *names: str) -> dict[str, Any]:
        """Those of these fields that there are."""
        return {name: self.get(name) for name in names if name in self}

    def pass_over(self, inside: "Fields") -> None:
        """Notes what was not read of an object in this row."""
        self._inside |= dict.fromkeys(inside.unread())

    def unread(self) -> list[str]:
        """The names of fields that nothing read."""
        return [*(f"{self._prefix}{name}" for name in self if name not in self._read), *self._inside]


def check_text(name: str, value: object, most: int) -> str:
    if not isinstance(value, str) or not value:
        raise SpecvizError(f"needs the {name} as a non-empty text {format_got(value)}")
    if len(value) > most:
        raise SpecvizError(f"needs the {name} to have at most {most:,} characters (got {len(value):,})")
    return value
