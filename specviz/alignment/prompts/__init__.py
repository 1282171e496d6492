"""Prompt files, or values in memory, become checked `PromptRow`s; what cannot be used is named by its line.

The file is not trusted. Every line is read and checked once when the set is opened; `rows()` reads it again, so memory
stays flat but for the ids, and fails at the end if the file has changed. `formats` and `rows` read a row, `tables` the
files that are not JSON lines. Errors of a row go on after "line 7".
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
from specviz.alignment.prompts.formats import own_fields
from specviz.alignment.prompts.rows import own_row
from specviz.alignment.prompts.tables import MOST_BYTES, table_of
from specviz.alignment.types import PromptRow, RefusedRow
from specviz.errors import SpecvizError

MOST_LINE_BYTES = 8 << 20
MOST_REFUSED = 20  # refused rows that are kept with their reasons; all are counted
MOST_IGNORED = 50  # names of fields that nothing reads
MOST_NAME = 80  # characters of such a name
MOST_NAMED = 5  # bad lines in the error for a file without a usable row

Line = tuple[int, bytes] | RefusedRow


@dataclass(frozen=True, slots=True, eq=False)
class PromptSet:
    """Prompts that were counted and checked. refused: the first of them; ignored: fields that nothing reads, by name.

    fingerprint: a hash of every row, accepted or refused: equal where the same work follows.
    """

    name: str
    num_rows: int
    num_refused: int
    refused: tuple[RefusedRow, ...]
    format: str
    ignored: tuple[str, ...]
    fingerprint: str
    _lines: Callable[[], Iterator[Line]] = field(repr=False)

    def __len__(self) -> int:
        return self.num_rows

    def rows(self) -> Iterator[PromptRow]:
        """The accepted rows in order, read again. SpecvizError at the end if they are not those that were counted."""
        reading = _Reading()
        yield from (item for item in reading.items(self._lines()) if isinstance(item, PromptRow))
        if reading.fingerprint != self.fingerprint:
            raise SpecvizError(f"{self.name} has changed since it was first read; start again")


def open_prompts(path: str | Path) -> PromptSet:
    """The prompts of a file: JSON lines, one JSON list, CSV, TSV, Parquet or text. SpecvizError where it cannot be read
    or holds no usable row."""
    try:
        path = Path(path).expanduser()
    except RuntimeError as error:
        raise SpecvizError(
            f"{Path(path).name} cannot be read: there is no such home folder"
        ) from error
    return _check_set(path.name, lambda: _file_lines(path))


def from_values(values: Iterable[str | Mapping[str, Any]]) -> PromptSet:
    """The same for texts and mappings in memory, or a data frame; their "line" is their place, from 1."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise ValueError(
            f"values must be a list of texts or mappings (got {type(values).__name__})"
        )
    if hasattr(values, "to_dicts"):  # a data frame of Polars, then one of pandas
        values = values.to_dicts()
    elif hasattr(values, "columns"):
        values = values.astype(object).where(values.notna(), None).to_dict("records")
    rows = tuple(values)
    return _check_set("the list of prompts", lambda: _value_lines(rows))


def _check_set(name: str, lines: Callable[[], Iterator[Line]]) -> PromptSet:
    found = _Reading()
    for _ in found.items(lines()):
        pass
    if not found.num_rows:
        raise SpecvizError(
            f"{name} holds no usable prompt{_list_refused(found.refused, found.num_refused)}"
        )
    formats, ignored, refused = ", ".join(found.formats), tuple(found.ignored), tuple(found.refused)
    return PromptSet(
        name, found.num_rows, found.num_refused, refused, formats, ignored, found.fingerprint, lines
    )


def _list_refused(refused: Sequence[RefusedRow], num_refused: int) -> str:
    if not refused:
        return ': one JSON object with "prompt" or "messages" per line is expected'
    words = "; ".join(f"line {item.line} {item.reason}" for item in refused[:MOST_NAMED])
    more = f"; and {num_refused - MOST_NAMED:,} more lines" if num_refused > MOST_NAMED else ""
    return f": {words}{more}"


def _file_lines(path: Path) -> Iterator[Line]:
    """Every line that holds something, without the mark that some editors put before the first, or a table's rows."""
    _check_file(path)
    try:
        if (rows := table_of(path)) is not None:
            yield from _value_lines(rows)
            return
        with path.open("rb") as stream:
            lines = _lines_with_text(stream)
            yield from map(_as_prompt, lines) if path.suffix.lower() == ".txt" else lines
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
    """Of a text file every line is a prompt."""
    if isinstance(line, RefusedRow):
        return line
    try:
        return line[0], json.dumps({"prompt": line[1].decode("utf-8").strip()}).encode()
    except UnicodeDecodeError:
        return RefusedRow(line[0], "is not text in UTF-8")


def _too_long(number: int) -> RefusedRow:
    return RefusedRow(number, f"is too long: at most {MOST_LINE_BYTES:,} bytes are read")


def _value_lines(values: Iterable[object]) -> Iterator[Line]:
    """Values as the lines they would be in a file, so that there is one check for both."""
    for number, value in enumerate(values, start=1):
        if isinstance(value, RefusedRow):
            yield replace(value, line=number)
            continue
        try:
            value = {"prompt": value} if isinstance(value, str) else value
            if isinstance(value, Mapping):
                cells = value.items()
                value = {
                    name: cell
                    for name, cell in cells
                    if not (isinstance(cell, float) and math.isnan(cell))
                }
            line = json.dumps(value, default=_to_json).encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            yield RefusedRow(number, f"cannot be written as JSON ({error})")
        else:
            yield _too_long(number) if len(line) > MOST_LINE_BYTES else (number, line)


def _to_json(value: object) -> object:
    """NumPy's numbers and arrays, and times, as JSON has them."""
    for name in ("tolist", "isoformat"):
        if hasattr(value, name):
            return getattr(value, name)()
    raise TypeError(f"{type(value).__name__} is not a JSON type")


class _Reading:
    """One pass over the lines: what was read so far, and a hash of it."""

    def __init__(self) -> None:
        self.num_rows = self.num_refused = 0
        self.refused: list[RefusedRow] = []
        self.formats: dict[str, None] = {}
        self.ignored: dict[str, None] = {}
        self._digest = hashlib.sha256()
        self._next_number: dict[str, int] = {}  # by id that was given away

    @property
    def fingerprint(self) -> str:
        return self._digest.hexdigest()[:16]

    def items(self, lines: Iterator[Line]) -> Iterator[PromptRow | RefusedRow]:
        for line in lines:
            item = line if isinstance(line, RefusedRow) else self._item(*line)
            self._digest.update(
                (repr(item) if isinstance(item, RefusedRow) else item.decisive()).encode("utf-8")
            )
            if isinstance(item, RefusedRow):
                self.num_refused += 1
                self.refused += [item] if len(self.refused) < MOST_REFUSED else []
            yield item

    def _item(self, line: int, raw: bytes) -> PromptRow | RefusedRow:
        try:
            fields = parse_fields(raw)
            name, own = own_fields(fields)
            row = own_row(own, fields, line, self.num_rows)
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
        while (free := f"{name} ({number})") in self._next_number:
            number += 1
        self._next_number |= {name: number + 1, free: 2}
        return free
