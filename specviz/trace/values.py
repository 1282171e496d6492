"""A Record is a frozen dataclass read from a JSON object; msgspec checks each field against its annotation.

`Record.from_dict` raises TraceError with the field's path, the allowed values and the value. `to_dict` gives the same
object back, unknown fields included. `Meta(title=...)` is an error's name for the allowed values. Numbers are bounded
so that views do not overflow and JavaScript keeps every digit.
"""

import math
import re
import reprlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from msgspec import inspect as kinds

from specviz.errors import SpecvizError

MAX_INTEGER = 2**53 - 1
MAX_NUMBER = 1e15
MAX_TEXT = 10_000
MAX_ITEMS = 1_024
MAX_PROMPT = 1 << 20
MAX_DEPTH = 12
MAX_VALUES = 200_000
SLACK = 1e-6  # float32 sums of probabilities may leave 0..1 by this much

Item = TypeVar("Item")
Value = TypeVar("Value")
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Number = Annotated[
    Annotated[int, Meta(ge=0, le=int(MAX_NUMBER))]
    | Annotated[float, Meta(ge=-SLACK, le=MAX_NUMBER)],
    Meta(title=f"a number from 0 to {MAX_NUMBER:g}"),
]
Probability = Annotated[
    Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=-SLACK, le=1 + SLACK)],
    Meta(title="a probability from 0 to 1", description="0 to 1, up to float32 rounding"),
]
Name = Annotated[str, Meta(max_length=1_000)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
LongText = Annotated[str, Meta(max_length=64 * MAX_TEXT)]
Hex = Annotated[
    str,
    Meta(
        pattern=r"^(?:[0-9a-f]{2}){1,1000}$(?!\n)",
        title="bytes as pairs of lower-case hexadecimal digits",
        description="the token's own bytes where they are not whole characters",
    ),
]
Items = Annotated[tuple[Item, ...], Meta(max_length=MAX_ITEMS)]
LongItems = Annotated[tuple[Item, ...], Meta(max_length=MAX_PROMPT)]
Object = Mapping[str, Any]

_PATH = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_KEY = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")
_RECORDS = (kinds.DataclassType, kinds.TypedDictType, kinds.StructType)
_LACKS = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
MOST_GOT = 120  # characters of what is wrong, in a message


class TraceError(SpecvizError):
    """A trace that cannot be read: the line, the field, what is wrong and what was got."""

    def __init__(self, problem: str, path: str = "", line: int | None = None) -> None:
        super().__init__(problem, path, line)
        self.problem = problem
        self.path = path
        self.line = line

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}: "
        path = f"{self.path} " if self.path else ""
        return f"{line}{path}{self.problem}"

    def within(self, name: str) -> "TraceError":
        """A copy of the error with `name` in front of its path."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        return TraceError(self.problem, f"{name}{dot}{self.path}", self.line)


def require(holds: object, path: str, problem: str) -> None:
    if not holds:
        raise TraceError(problem, path)


def stopwatch(max_cpu_s: float) -> Callable[[], None]:
    """A function to call now and then: it raises TraceError once this thread has computed for so long."""
    latest = time.thread_time() + max_cpu_s
    problem = f"the file takes more than {max_cpu_s:g} s of computing"
    return lambda: require(time.thread_time() <= latest, "", problem)


def format_got(value: object) -> str:
    """A short picture of a value from a file; never long, never deep."""
    return f"(got {reprlib.repr(value)[:MOST_GOT]})"


@dataclass(frozen=True, slots=True)
class Record:
    """A JSON object of a file. A field that may be missing has a default, and its default is not written."""

    extra: Any = field(default_factory=dict, kw_only=True)
    """The unknown fields by name, which `to_dict` puts last. It is no Mapping: a file may have a field of this name."""

    @classmethod
    def from_dict(cls: type[Value], data: Mapping[str, Any]) -> Value:
        """The record of a parsed JSON object. Raises TraceError."""
        record = convert(data, cls)
        _complete(record, data)
        record.check()
        return record

    def check(self) -> None:
        """Raises TraceError where the fields contradict each other."""

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON values in the order of the declaration, unknown fields last."""
        values = {}
        for name in _names(type(self)):
            value = getattr(self, name)
            if value != self.__dataclass_fields__[name].default:
                values[name] = _plain(value)
        return {**values, **self.extra}


def convert(data: Any, kind: type[Value]) -> Value:
    """Converts parsed JSON to a value of this type, lists to tuples.

    Raises TraceError with the field and the allowed values. A ValueError of a class's own `__post_init__` must begin
    with the name of the field.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        problem, full_path = _PATH.fullmatch(str(error)).groups()
        is_own = error.__cause__ is not None
    value = data
    allowed = kinds.type_info(kind)
    path = ""
    for key in _KEY.finditer(full_path or ""):
        index, name = key.groups()
        inner = _inner(allowed, value, index, name)
        if _title(allowed) and not _title(inner):  # it names what is allowed as a whole
            break
        allowed = inner
        path += key[0]
        value = value[int(index) if index else name]
    if is_own:
        name, _, problem = problem.partition(" ")
        path = f"{path}.{name}"
    elif lacking := _LACKS.fullmatch(problem):
        problem = f"must have the field {lacking[1]!r} (got none)"
    elif unknown := _UNKNOWN.fullmatch(problem):
        names = ", ".join(_fields(allowed, value)) or "none"
        problem = f"has no field {unknown[1]!r:.60}; it may have {names}"
    else:
        problem = f"must be {_words(allowed, value)} {format_got(value)}"
    raise TraceError(problem, path.removeprefix("."))


def _inner(kind: kinds.Type, value: Any, index: str, name: str) -> kinds.Type:
    """The type of the item at this index, or of the field of this name, in `value`, which should be of type `kind`."""
    if name:
        return _fields(kind, value).get(name, kinds.AnyType())
    for alternative in _alternatives(kind):
        if isinstance(alternative, kinds.TupleType):
            return alternative.item_types[int(index)]
        if isinstance(alternative, (kinds.VarTupleType, kinds.ListType)):
            return alternative.item_type
    return kinds.AnyType()


def _fields(kind: kinds.Type, value: Any) -> dict[str, kinds.Type]:
    """The types of an object's fields by name; where a tag tells classes apart, only the value's own class counts."""
    records = [record for record in _alternatives(kind) if isinstance(record, _RECORDS)]
    tagged = [record for record in records if getattr(record, "tag", None)]
    types: dict[str, kinds.Type] = {}
    for record in tagged:
        types[record.tag_field] = kinds.LiteralType(tuple(other.tag for other in records))
    for record in records:
        if not tagged or value.get(record.tag_field) == record.tag:
            types |= {item.encode_name: item.type for item in record.fields}
    return types


def _alternatives(kind: kinds.Type) -> Iterator[kinds.Type]:
    if isinstance(kind, kinds.Metadata):
        yield from _alternatives(kind.type)
    elif isinstance(kind, kinds.UnionType):
        for alternative in kind.types:
            yield from _alternatives(alternative)
    elif not isinstance(kind, kinds.NoneType):
        yield kind


def _title(kind: kinds.Type) -> str:
    """The Meta title of this type, or ""."""
    if not isinstance(kind, kinds.Metadata):
        return ""
    return (kind.extra_json_schema or {}).get("title", "")


def _words(kind: kinds.Type, value: Any) -> str:
    """An error's words for the values of this type, null left out; where a type has several, the value's own."""
    while isinstance(kind, kinds.UnionType):
        kind = _nearest(kind, value)
    match kind:
        case kinds.Metadata(type=inner):
            return _title(kind) or _words(inner, value)
        case kinds.IntType(ge=low, le=high):
            return f"a whole number from {low} to {high}"
        case kinds.BoolType():
            return "true or false"
        case kinds.StrType(min_length=low, max_length=most):
            least = f"{low} to" if low else "at most"
            return f"a text of {least} {most:,} characters"
        case kinds.LiteralType(values=values):
            return f"one of {', '.join(map(str, values))}"
        case kinds.VarTupleType(min_length=low, max_length=most) if low:
            return f"a list of {low} to {most:,} values"
        case kinds.VarTupleType(max_length=most):
            return f"a list of at most {most:,} items"
        case kinds.TupleType(item_types=items):
            return f"a list of {len(items)} items"
        case kinds.StructType(tag_field=tag, fields=fields):
            needed = ", ".join(item.encode_name for item in fields if item.required)
            if tag:
                needed = f"a {tag}"
            return f"an object with {needed or 'named fields'}"
    return "an object"


def _nearest(union: kinds.UnionType, value: Any) -> kinds.Type:
    """The first type of the union that is a list just where the value is one; else its first."""
    some = [kind for kind in union.types if not isinstance(kind, kinds.NoneType)]
    for kind in some:
        if isinstance(kind, kinds.VarTupleType) == isinstance(value, list):
            return kind
    return some[0]


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in kind.__dataclass_fields__ if name != "extra")


def _complete(record: Record, data: Mapping[str, Any], path: str = "") -> None:
    """Sets what msgspec drops, here and in each record inside: unknown fields, and objects as they were read."""
    names = _names(type(record))
    unknown = {name: data[name] for name in data if name not in names}
    if unknown or record.extra:
        object.__setattr__(record, "extra", json_value(unknown, path))
    for name in names:
        value = getattr(record, name)
        if isinstance(value, (int, float, str)):
            continue
        if isinstance(value, Record):
            _complete(value, data[name], f"{path}.{name}")
        elif isinstance(value, dict):
            object.__setattr__(record, name, json_value(data[name], f"{path}.{name}"))
        elif isinstance(value, tuple) and value and isinstance(value[0], Record):
            for index, item in enumerate(value):
                _complete(item, data[name][index], f"{path}.{name}[{index}]")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_dict() if isinstance(value, Record) else value


def json_value(value: Any, path: str = "") -> Any:
    """The value itself, if it is JSON of bounded depth, size and numbers. Raises TraceError with the value's path."""
    path = path.removeprefix(".")
    level = list(_items(value, path))
    depth = 0
    num_values = 1
    while level:
        depth += 1
        num_values += len(level)
        require(depth <= MAX_DEPTH, path, f"must not be nested deeper than {MAX_DEPTH} levels")
        require(num_values <= MAX_VALUES, path, f"must not hold more than {MAX_VALUES:,} values")
        below: list[Any] = []
        for item in level:
            below += _items(item, path)
        level = below
    return value


def _items(value: Any, path: str) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    """The values in an object or a list; nothing in any other value, which is checked if it is a number."""
    if isinstance(value, (int, float)):
        problem = f"must hold finite numbers up to 2^53 only {format_got(value)}"
        require(abs(value) <= MAX_INTEGER, path, problem)
    return value if isinstance(value, (list, tuple)) else ()


def round9(value: float | None) -> float | None:
    """The number to nine significant digits, as every recorded number has; None stays None.

    Raises ValueError for NaN and infinity.
    """
    if value is None:
        return None
    if not math.isfinite(value):
        raise ValueError(f"a trace holds finite numbers only (got {value})")
    return float(f"{value:.9g}") + 0.0  # no negative zero
