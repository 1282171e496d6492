"""Record: a frozen dataclass read from a JSON object; msgspec checks each field against its annotation.

`Record.from_dict` raises TraceError with the field's path, the allowed values and the value; `to_dict` gives the same
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
Made = TypeVar("Made")
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
        self.problem, self.path, self.line = problem, path, line

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}: "
        return f"{line}{self.path} {self.problem}" if self.path else f"{line}{self.problem}"

    def within(self, name: str) -> "TraceError":
        """The same error with `name` in front of its path."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        return TraceError(self.problem, f"{name}{dot}{self.path}", self.line)


def require(holds: object, path: str, problem: str) -> None:
    if not holds:
        raise TraceError(problem, path)


def stopwatch(max_cpu_s: float) -> Callable[[], None]:
    """To be called now and then: raises TraceError once this thread has computed for so long."""
    latest, problem = (
        time.thread_time() + max_cpu_s,
        f"the file takes more than {max_cpu_s:g} s of computing",
    )
    return lambda: require(time.thread_time() <= latest, "", problem)


def format_got(value: object) -> str:
    """A short picture of a value from a file; never long, never deep."""
    return f"(got {reprlib.repr(value)[:MOST_GOT]})"


@dataclass(frozen=True, slots=True)
class Record:
    """A JSON object of a file. `extra`: its unknown fields by name, which `to_dict` puts after the known ones.

    A field that may be missing has the default None, and None is not written.
    """

    extra: Any = field(
        default_factory=dict, kw_only=True
    )  # no Mapping: a file may have a field of this name

    @classmethod
    def from_dict(cls: type[Made], data: Mapping[str, Any]) -> Made:
        """The record of a parsed JSON object. Raises TraceError."""
        made = convert(data, cls)
        _complete(made, data)
        made.check()
        return made

    def check(self) -> None:
        """Raises TraceError where the fields contradict each other."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values in the order of the declaration, unknown fields last."""
        values = {name: getattr(self, name) for name in _names(type(self))}
        kept = {
            name: _plain(value)
            for name, value in values.items()
            if value is not None or self.__dataclass_fields__[name].default is not None
        }
        return {**kept, **self.extra}


def convert(data: Any, kind: type[Made]) -> Made:
    """Parsed JSON as a value of this type, lists as tuples. Raises TraceError with the field and the allowed values.

    A ValueError of a class's own `__post_init__` must begin with the name of the field.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        (problem, told), is_own = _PATH.fullmatch(str(error)).groups(), error.__cause__ is not None
    value, allowed, path = data, kinds.type_info(kind), ""
    for key in _KEY.finditer(told or ""):
        index, name = key.groups()
        inner = _inner(allowed, value, index, name)
        if _title(allowed) and not _title(inner):  # it names what is allowed as a whole
            break
        allowed, path = inner, path + key[0]
        value = value[int(index) if index else name]
    if is_own:
        name, _, problem = problem.partition(" ")
        path = f"{path}.{name}"
    elif lacking := _LACKS.fullmatch(problem):
        problem = f"must have the field {lacking[1]!r} (got none)"
    elif unknown := _UNKNOWN.fullmatch(problem):
        problem = f"has no field {unknown[1]!r:.60}; it may have {', '.join(_fields(allowed, value)) or 'none'}"
    else:
        problem = f"must be {_words(allowed, value)} {format_got(value)}"
    raise TraceError(problem, path.removeprefix("."))


def _inner(kind: kinds.Type, value: Any, index: str, name: str) -> kinds.Type:
    """The type of the item at this index, or of the field of this name, in `value`, which should be of type `kind`."""
    if name:
        return _fields(kind, value).get(name, kinds.AnyType())
    for each in _alternatives(kind):
        if isinstance(each, kinds.TupleType):
            return each.item_types[int(index)]
        if isinstance(each, (kinds.VarTupleType, kinds.ListType)):
            return each.item_type
    return kinds.AnyType()


def _fields(kind: kinds.Type, value: Any) -> dict[str, kinds.Type]:
    """The types of an object's fields by name; of several classes that a tag tells apart, those of the value's own."""
    records = [each for each in _alternatives(kind) if isinstance(each, _RECORDS)]
    tags = {each.tag_field: each.tag for each in records if getattr(each, "tag", None)}
    found = {name: kinds.LiteralType(tuple(each.tag for each in records)) for name in tags}
    for each in records:
        if not tags or value.get(each.tag_field) == each.tag:
            found |= {item.encode_name: item.type for item in each.fields}
    return found


def _alternatives(kind: kinds.Type) -> Iterator[kinds.Type]:
    if isinstance(kind, kinds.Metadata):
        yield from _alternatives(kind.type)
    elif isinstance(kind, kinds.UnionType):
        for each in kind.types:
            yield from _alternatives(each)
    elif not isinstance(kind, kinds.NoneType):
        yield kind


def _title(kind: kinds.Type) -> str:
    """The Meta title of this type, or ""."""
    return (
        (kind.extra_json_schema or {}).get("title", "") if isinstance(kind, kinds.Metadata) else ""
    )


def _words(kind: kinds.Type, value: Any) -> str:
    """An error's words for the values of this type, null left out; of several types, of the value's own."""
    while isinstance(kind, kinds.UnionType):
        some = (each for each in kind.types if not isinstance(each, kinds.NoneType))
        kind = min(
            some, key=lambda each: isinstance(each, kinds.VarTupleType) != isinstance(value, list)
        )
    match kind:
        case kinds.Metadata(type=inner):
            return _title(kind) or _words(inner, value)
        case kinds.IntType(ge=low, le=high):
            return f"a whole number from {low} to {high}"
        case kinds.BoolType():
            return "true or false"
        case kinds.StrType(min_length=low, max_length=most):
            return f"a text of {f'{low} to' if low else 'at most'} {most:,} characters"
        case kinds.LiteralType(values=values):
            return f"one of {', '.join(map(str, values))}"
        case kinds.VarTupleType(min_length=low, max_length=most):
            return (
                f"a list of {low} to {most:,} values"
                if low
                else f"a list of at most {most:,} items"
            )
        case kinds.TupleType(item_types=items):
            return f"a list of {len(items)} items"
        case kinds.StructType(tag_field=tag, fields=fields):
            needed = ", ".join(item.encode_name for item in fields if item.required)
            return f"an object with {f'a {tag}' if tag else needed or 'named fields'}"
    return "an object"


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
            for index, each in enumerate(value):
                _complete(each, data[name][index], f"{path}.{name}[{index}]")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_dict() if isinstance(value, Record) else value


def json_value(value: Any, path: str = "") -> Any:
    """The value itself, if it is JSON of bounded depth, size and numbers. Raises TraceError. path: of the value."""
    path = path.removeprefix(".")
    level, depth, num_values = [value], 0, 1
    while level := [item for holder in level for item in _items(holder, path)]:
        depth, num_values = depth + 1, num_values + len(level)
        require(depth <= MAX_DEPTH, path, f"must not be nested deeper than {MAX_DEPTH} levels")
        require(num_values <= MAX_VALUES, path, f"must not hold more than {MAX_VALUES:,} values")
    return value


def _items(value: Any, path: str) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (int, float)):
        require(
            abs(value) <= MAX_INTEGER,
            path,
            f"must hold finite numbers up to 2^53 only {format_got(value)}",
        )
    return value if isinstance(value, (list, tuple)) else ()


def round9(value: float | None) -> float | None:
    """Nine significant digits, as every recorded number has; None stays None, NaN and infinity are a ValueError."""
    if value is None:
        return None
    if not math.isfinite(value):
        raise ValueError(f"a trace holds finite numbers only (got {value})")
    return float(f"{value:.9g}") + 0.0  # no negative zero
