"""What a value in a trace may be: one check per kind of field, and `Record`, the frozen value built from them.

A check takes a parsed JSON value and returns it (lists as tuples) or raises TraceError saying what is wrong, what was
got and where. Numbers are bounded so that no view overflows and JavaScript keeps every digit. Knows no event.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar, get_type_hints

from specviz.errors import SpecvizError

MAX_INTEGER = 2**53 - 1
MAX_NUMBER = 1e15
MAX_TEXT = 10_000
MAX_ITEMS = 4_096
MAX_DEPTH = 12
MAX_VALUES = 200_000
SLACK = 1e-6  # float32 sums of probabilities may leave 0..1 by this much
HEX = re.compile(r"(?:[0-9a-f]{2}){1,1000}")
MISSING = object()

Check = Callable[[Any], Any]
RecordType = TypeVar("RecordType", bound="Record")


class TraceError(SpecvizError):
    """A trace that cannot be read: the line, the field, what is wrong and what was got."""

    def __init__(self, problem: str, path: str = "", line: int | None = None) -> None:
        super().__init__(problem, path, line)
        self.problem, self.path, self.line = problem, path, line

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}: "
        return f"{line}{self.path} {self.problem}" if self.path else f"{line}{self.problem}"

    def within(self, name: str) -> TraceError:
        """The same error seen from the value that holds the bad one under `name`."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        return TraceError(self.problem, f"{name}{dot}{self.path}", self.line)

    def at_line(self, line: int) -> TraceError:
        return TraceError(self.problem, self.path, line)


def got(value: object) -> str:
    """A short picture of a value from a file; never long, never deep."""
    return f"(got {reprlib.repr(value)})"


def integer(low: int = 0, high: int = MAX_INTEGER) -> Check:
    def check(value: Any) -> int:
        if type(value) is int and low <= value <= high:
            return value
        raise TraceError(f"must be a whole number from {low} to {high} {got(value)}")

    return check


def number(low: float = 0.0, high: float = MAX_NUMBER, words: str = "a number") -> Check:
    def check(value: Any) -> float:
        if type(value) in (float, int) and low - SLACK <= value <= high + SLACK:  # NaN fails both comparisons
            return value
        raise TraceError(f"must be {words} from {low:g} to {high:g} {got(value)}")

    return check


def boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise TraceError(f"must be true or false {got(value)}")


def text(most: int = MAX_TEXT) -> Check:
    def check(value: Any) -> str:
        if type(value) is str and len(value) <= most:
            return value
        raise TraceError(f"must be a text of at most {most:,} characters {got(value)}")

    return check


def hexadecimal(value: Any) -> str:
    if type(value) is str and HEX.fullmatch(value):
        return value
    raise TraceError(f"must be bytes as pairs of lower-case hexadecimal digits {got(value)}")


def one_of(*names: str) -> Check:
    def check(value: Any) -> str:
        if type(value) is str and value in names:
            return value
        raise TraceError(f"must be one of {', '.join(names)} {got(value)}")

    return check


def maybe(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def tuple_of(check: Check, most: int = MAX_ITEMS) -> Check:
    def check_all(value: Any) -> tuple:
        if type(value) not in (list, tuple) or len(value) > most:
            raise TraceError(f"must be a list of at most {most:,} items {got(value)}")
        items = []
        for index, item in enumerate(value):
            try:
                items.append(check(item))
            except TraceError as error:
                raise error.within(f"[{index}]") from None
        return tuple(items)

    return check_all


def row_of(*checks: Check) -> Check:
    """A list of fixed length whose items each have their own check."""

    def check_row(value: Any) -> tuple:
        if type(value) not in (list, tuple) or len(value) != len(checks):
            raise TraceError(f"must be a list of {len(checks)} items {got(value)}")
        try:
            return tuple([check(item) for check, item in zip(checks, value, strict=True)])
        except TraceError:
            return tuple_of(lambda pair: pair[0](pair[1]))(list(zip(checks, value, strict=True)))  # names the item

    return check_row


def object_of(checks: Mapping[str, Check]) -> Check:
    """A small object with these fields at least; others are kept."""

    def check_object(value: Any) -> dict:
        json_object(value)
        for name, check in checks.items():
            _checked(check, value, name)
        return value

    return check_object


def json_object(value: Any) -> dict:
    if type(value) is not dict:
        raise TraceError(f"must be an object {got(value)}")
    return json_value(value)


def json_value(value: Any) -> Any:
    """Any JSON value of bounded depth, size and numbers."""
    level, depth, num_values = [value], 0, 1
    while level := [item for holder in level for item in _items(holder)]:
        depth, num_values = depth + 1, num_values + len(level)
        if depth > MAX_DEPTH:
            raise TraceError(f"must not be nested deeper than {MAX_DEPTH} levels")
        if num_values > MAX_VALUES:
            raise TraceError(f"must not hold more than {MAX_VALUES:,} values")
    return value


def _items(value: Any) -> tuple | list:
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (int, float)) and not abs(value) <= MAX_INTEGER:
        raise TraceError(f"must hold finite numbers up to 2^53 only {got(value)}")
    return ()


def _checked(check: Check, data: Mapping[str, Any], name: str) -> Any:
    value = data.get(name, MISSING)
    if value is MISSING:
        raise TraceError(f"lacks the field {name!r}")
    try:
        return check(value)
    except TraceError as error:
        raise error.within(name) from None


def round9(value: float | None) -> float | None:
    """Nine significant digits, as every recorded number has; None stays None, NaN and infinity are a ValueError."""
    if value is None:
        return None
    if not math.isfinite(value):
        raise ValueError(f"a trace holds finite numbers only (got {value})")
    return float(f"{value:.9g}") + 0.0  # no negative zero


class Record:
    """A value of the trace: `from_dict` checks every field, `to_dict` gives them back, unknown ones (`extra`) last."""

    __slots__ = ()
    CHECKS: ClassVar[Mapping[str, Check]] = {}
    OMITTED_WHEN_NONE: ClassVar[tuple[str, ...]] = ("bytes",)

    @classmethod
    def from_dict(cls: type[RecordType], data: Mapping[str, Any]) -> RecordType:
        if not isinstance(data, Mapping):
            raise TraceError(f"must be an object {got(data)}")
        values = {name: None for name in cls.OMITTED_WHEN_NONE if name in cls.CHECKS}
        for name, check in cls.CHECKS.items():
            if name in data or name not in values:
                values[name] = _checked(check, data, name)
        unknown = {name: data[name] for name in data if name not in cls.CHECKS}
        made = cls(**values, extra=json_value(unknown))
        made.check()
        return made

    def check(self) -> None:
        """What one field alone cannot say; raises TraceError."""

    def to_dict(self) -> dict[str, Any]:
        plain = {name: _plain(getattr(self, name)) for name in self.CHECKS}
        for name in self.OMITTED_WHEN_NONE:
            if plain.get(name, MISSING) is None:
                del plain[name]
        return {**plain, **self.extra}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_dict() if isinstance(value, Record) else value


def record(cls: type) -> type:
    """Class decorator: a frozen slotted dataclass whose checks are read from its `Annotated` field types."""
    made = dataclass(frozen=True, slots=True)(cls)
    hints = get_type_hints(made, include_extras=True)
    made.CHECKS = {field.name: hints[field.name].__metadata__[0] for field in fields(made) if field.name != "extra"}
    return made
