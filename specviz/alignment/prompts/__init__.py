"""Prompt files, or values in memory, become checked `PromptRow`s; a row that cannot be used is named by its line.

Files are not trusted. Every line is read and checked once when the set is opened. `rows()` reads the file again: memory
stays flat but for the ids. It fails at the end if the file has changed. `formats` and `rows` read a row,
`tables` reads files that are not JSON lines. Errors of a row go on after "line 7".
"""

import codecs
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from specviz.alignment.prompts.fields import parse_fields
from specviz.alignment.prompts.formats import read_values
from specviz.alignment.prompts.rows import check_row
from specviz.alignment.prompts.tables import MOST_BYTES, table_of, without_nulls
from specviz.alignment.types import PromptRow, RefusedRow
from specviz.errors import SpecvizError

MOST_LINE_BYTES = 8 << 20
MOST_REFUSED = 20  # refused rows that are stored with their reasons; all are counted
MOST_IGNORED = 50  # names of fields that nothing reads
MOST_NAME = 80  # characters of such a name
MOST_NAMED = 5  # bad lines in the error for a file without a usable row

Line = tuple[int, bytes] | RefusedRow
"""The number of a line, from 1, and its content; or why it cannot be read."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptSet:
    """Prompts that were counted and checked."""

    name: str
    num_rows: int
    num_refused: int
    refused: tuple[RefusedRow, ...]  # the first of them
    format: str
    ignored: tuple[str, ...]
    """The names of fields that nothing reads."""
    fingerprint: str
    """A hash of every row, usable or refused. Equal hashes mean equal work."""
    _lines: Callable[[], Iterator[Line]] = field(repr=False)

    def __len__(self) -> int:
        return self.num_rows

    def rows(self) -> Iterator[PromptRow]:
        """Reads the usable rows again, in order. Raises SpecvizError at the end if the file has changed."""
        reading = _Reading()
        for item in reading.items(self._lines()):
            if isinstance(item, PromptRow):
                yield item
        if reading.fingerprint != self.fingerprint:
            raise SpecvizError(f"{self.name} has changed since it was first read; start again")


def open_prompts(path: str | Path) -> PromptSet:
    """The prompts of a file: JSON lines, one JSON list, CSV, TSV, Parquet or text.

    Raises SpecvizError where the file cannot be read or holds no usable row.
    """
    try:
        path = Path(path).expanduser()
    except RuntimeError as error:
        raise SpecvizError(
            f"{Path(path).name} cannot be read: there is no such home folder"
        ) from error
    return _check_set(path.name, lambda: _file_lines(path))


def from_values(values: Iterable[str | Mapping[str, Any]]) -> PromptSet:
    """The prompts of texts and mappings in memory, or of a data frame. A row's "line" is its place, from 1."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise ValueError(
            f"values must be a list of texts or mappings (got {type(values).__name__})"
        )
    if hasattr(values, "to_dicts"):  # a data frame of Polars, then one of pandas
        values = map(without_nulls, values.to_dicts())
    elif hasattr(values, "columns"):
        values = values.astype(object).where(values.notna(), None).to_dict("records")
        values = map(without_nulls, values)
    rows = tuple(values)
    return _check_set("the list of prompts", lambda: _value_lines(rows))


def _check_set(name: str, lines: Callable[[], Iterator[Line]]) -> PromptSet:
    reading = _Reading()
    for _ in reading.items(lines()):
        pass
    if not reading.num_rows:
        reasons = _list_refused(reading.refused, reading.num_refused)
        raise SpecvizError(f"{name} holds no usable prompt{reasons}")
    return PromptSet(
        name=name,
        num_rows=reading.num_rows,
        num_refused=reading.num_refused,
        refused=tuple(reading.refused),
        format=", ".join(reading.formats),
        ignored=tuple(reading.ignored),
        fingerprint=reading.fingerprint,
        _lines=lines,
    )


def _list_refused(refused: Sequence[RefusedRow], num_refused: int) -> str:
    if not refused:
        return ': one JSON object with "prompt" or "messages" per line is expected'
    words = "; ".join(f"line {item.line} {item.reason}" for item in refused[:MOST_NAMED])
    more = f"; and {num_refused - MOST_NAMED:,} more lines" if num_refused > MOST_NAMED else ""
    return f": {words}{more}"


def _file_lines(path: Path) -> Iterator[Line]:
    """The lines of a file that hold something, or the rows of a table."""
    _check_file(path)
    try:
        rows = table_of(path)
        if rows is not None:
            yield from _value_lines(rows)
            return
        is_text = path.suffix.lower() == ".txt"
        with path.open("rb") as stream:
            for line in _lines_with_text(stream):
                yield _as_prompt(line) if is_text else line
    except OSError as error:
        raise SpecvizError(f"{path.name} cannot be read ({error.strerror})") from None


def _check_file(path: Path) -> None:
    try:
        size = path.stat().st_size
        is_file = path.is_file()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or "no file can have this name"
        raise SpecvizError(f"{path.name!r} cannot be read ({reason})") from None
    if not is_file:
        raise SpecvizError(f"{path.name!r} is not a file: name one that holds prompts")
    if size > MOST_BYTES:
        raise SpecvizError(
            f"{path.name} is too large: at most {MOST_BYTES:,} bytes are read (got {size:,})"
        )


def _lines_with_text(stream: BinaryIO) -> Iterator[Line]:
    """The lines that are not blank, without the mark that some editors put before the first."""
    for number in count(1):
        line = stream.readline(MOST_LINE_BYTES)
        if not line:
            return
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if not text.strip():
            continue
        if len(line) == MOST_LINE_BYTES and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = stream.readline(MOST_LINE_BYTES)
            yield _too_long(number)
        else:
            yield number, text


def _as_prompt(line: Line) -> Line:
    """The JSON line with the prompt that a line of a text file holds."""
    if isinstance(line, RefusedRow):
        return line
    number, raw = line
    try:
        prompt = raw.decode("utf-8").strip()
    except UnicodeDecodeError:
        return RefusedRow(number, "is not text in UTF-8")
    return number, json.dumps({"prompt": prompt}).encode()


def _too_long(number: int) -> RefusedRow:
    return RefusedRow(number, f"is too long: at most {MOST_LINE_BYTES:,} bytes are read")


def _value_lines(values: Iterable[object]) -> Iterator[Line]:
    """The lines that values would be in a file, so that one check serves both."""
    for number, value in enumerate(values, start=1):
        if isinstance(value, RefusedRow):
            yield replace(value, line=number)
            continue
        try:
            line = _write_line(value)
        except (TypeError, ValueError, RecursionError) as error:
            yield RefusedRow(number, f"cannot be written as JSON ({error})")
            continue
        yield _too_long(number) if len(line) > MOST_LINE_BYTES else (number, line)


def _write_line(value: object) -> bytes:
    """A JSON line for a prompt or a mapping; fields that are NaN are left out."""
    if isinstance(value, str):
        value = {"prompt": value}
    elif isinstance(value, Mapping):
        value = {name: cell for name, cell in value.items() if not _is_nan(cell)}
    return json.dumps(value, default=_to_json).encode("utf-8")


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _to_json(value: object) -> object:
    """A JSON value for NumPy's numbers and arrays, and for times."""
    for name in ("tolist", "isoformat"):
        if hasattr(value, name):
            return getattr(value, name)()
    raise TypeError(f"{type(value).__name__} is not a JSON type")


class _Reading:
    """One pass over the lines: what was read so far, and its hash."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.num_refused = 0
        self.refused: list[RefusedRow] = []
        self.formats: dict[str, None] = {}  # an ordered set
        self.ignored: dict[str, None] = {}  # an ordered set
        self._digest = hashlib.sha256()
        self._next_number: dict[str, int] = {}  # by id that was given away

    @property
    def fingerprint(self) -> str:
        return self._digest.hexdigest()[:16]

    def items(self, lines: Iterator[Line]) -> Iterator[PromptRow | RefusedRow]:
        for line in lines:
            item = line if isinstance(line, RefusedRow) else self._read_row(*line)
            if isinstance(item, RefusedRow):
                self.num_refused += 1
                if len(self.refused) < MOST_REFUSED:
                    self.refused.append(item)
                decisive = repr(item)
            else:
                decisive = item.decisive()
            self._digest.update(decisive.encode("utf-8"))
            yield item

    def _read_row(self, line: int, raw: bytes) -> PromptRow | RefusedRow:
        try:
            fields = parse_fields(raw)
            name, values = read_values(fields)
            row = check_row(values, fields, line, self.num_rows)
        except SpecvizError as error:
            return RefusedRow(line, str(error))
        self.formats[name] = None
        for unread in fields.unread():
            if len(self.ignored) < MOST_IGNORED:
                self.ignored[unread[:MOST_NAME]] = None
        self.num_rows += 1
        return replace(row, id=self._free_id(row.id))

    def _free_id(self, name: str) -> str:
        """The id, or "id (2)" and so on where it was given away already: results are paired by it."""
        number = self._next_number.get(name)
        if number is None:
            self._next_number[name] = 2
            return name
        while f"{name} ({number})" in self._next_number:
            number += 1
        free = f"{name} ({number})"
        self._next_number[name] = number + 1
        self._next_number[free] = 2
        return free
