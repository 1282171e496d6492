"""Prompt files: JSON lines, or values in memory, become checked `PromptRow`s; what cannot be used is named by its line.

The file is not trusted. Every line is read and checked once when the set is opened; `rows()` reads it again, so memory
stays flat but for the ids, and refuses to end well if what it read is no longer what was checked.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from specviz.alignment.prompts.rows import Format, format_of
from specviz.alignment.types import PromptRow, Refused
from specviz.errors import SpecvizError
from specviz.trace.lines import parse_line

MOST_BYTES = 1 << 30
MOST_LINE_BYTES = 8 << 20
MOST_REFUSED = 20  # refused rows that are kept with their reasons; all are counted
MOST_IGNORED = 50  # names of fields that nothing reads
MOST_NAME = 80  # characters of such a name
MOST_NAMED = 5  # bad lines in the error for a file without a usable row

Line = tuple[int, bytes] | Refused


@dataclass(frozen=True, slots=True, eq=False)
class PromptSet:
    """Prompts that were counted and checked. refused: the first of them; ignored: fields that nothing reads, by name.

    fingerprint: a hash of every row, accepted or refused: equal where the same work follows.
    """

    name: str
    num_rows: int
    num_refused: int
    refused: tuple[Refused, ...]
    format: str
    ignored: tuple[str, ...]
    fingerprint: str
    _lines: Callable[[], Iterator[Line]] = field(repr=False)

    def __len__(self) -> int:
        return self.num_rows

    def rows(self) -> Iterator[PromptRow]:
        """The accepted rows in order, read anew. SpecvizError at the end if they are not those that were counted."""
        reading = _Reading()
        yield from (item for item in reading.items(self._lines()) if isinstance(item, PromptRow))
        if reading.fingerprint != self.fingerprint:
            raise SpecvizError(f"{self.name} has changed since it was first read; start again")


def open_prompts(path: str | Path) -> PromptSet:
    """The prompts of a file of JSON lines. SpecvizError where it cannot be read or holds no usable row."""
    try:
        path = Path(path).expanduser()
    except RuntimeError as error:
        raise SpecvizError(f"{Path(path).name} cannot be read: there is no such home folder") from error
    return _checked(path.name, lambda: _file_lines(path))


def of_values(values: Iterable[str | Mapping[str, Any]]) -> PromptSet:
    """The same for texts and mappings in memory, or a data frame; their "line" is their place, from 1."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise ValueError(f"values must be a list of texts or mappings (got {type(values).__name__})")
    kept = tuple(_records(values) if hasattr(values, "columns") else values)
    return _checked("the list of prompts", lambda: _value_lines(kept))


def _records(frame: Any) -> Sequence[Mapping[str, Any]]:
    """The rows of a data frame, of pandas or Polars; a cell without a value is None."""
    if hasattr(frame, "to_dicts"):
        return frame.to_dicts()
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def _checked(name: str, lines: Callable[[], Iterator[Line]]) -> PromptSet:
    reading = _Reading()
    refused: list[Refused] = []
    num_refused = 0
    for item in reading.items(lines()):
        if isinstance(item, Refused):
            num_refused += 1
            refused += [item] if len(refused) < MOST_REFUSED else []
    if not reading.num_rows:
        raise SpecvizError(f"{name} holds no prompt that can be used{_first_words(refused, num_refused)}")
    formats, ignored = ", ".join(reading.formats), tuple(reading.ignored)
    return PromptSet(name, reading.num_rows, num_refused, tuple(refused), formats, ignored, reading.fingerprint, lines)


def _first_words(refused: Sequence[Refused], num_refused: int) -> str:
    if not refused:
        return ': one JSON object with "prompt" or "messages" per line is expected'
    words = "; ".join(f"line {item.line} {item.reason}" for item in refused[:MOST_NAMED])
    more = f"; and {num_refused - MOST_NAMED:,} more lines" if num_refused > MOST_NAMED else ""
    return f": {words}{more}"


# ---- lines ----------------------------------------------------------------------------------------------------------


def _file_lines(path: Path) -> Iterator[Line]:
    """Every line that holds something, without the mark that some editors put before the first."""
    _check_file(path)
    try:
        with path.open("rb") as stream:
            yield from _filled(stream, path.name)
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
        raise SpecvizError(f"{path.name!r} is no file: name a file of JSON lines")
    if size > MOST_BYTES:
        raise SpecvizError(f"{path.name} is too large: at most {MOST_BYTES:,} bytes are read (got {size:,})")


def _filled(stream: BinaryIO, name: str) -> Iterator[Line]:
    is_first = True
    for number in count(1):
        line = stream.readline(MOST_LINE_BYTES)
        if not line:
            return
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if not text.strip():
            continue
        if is_first and text.lstrip().startswith(b"["):
            raise SpecvizError(f"{name} is one JSON list: write one JSON object per line, without brackets and commas")
        is_first = False
        if len(line) == MOST_LINE_BYTES and not line.endswith(b"\n"):
            _pass_over(stream)
            yield _too_long(number)
        else:
            yield number, text


def _pass_over(stream: BinaryIO) -> None:
    """Reads on to the end of a line, piece by piece."""
    while (piece := stream.readline(MOST_LINE_BYTES)) and not piece.endswith(b"\n"):
        pass


def _too_long(number: int) -> Refused:
    return Refused(number, f"is too long: at most {MOST_LINE_BYTES:,} bytes are read")


def _value_lines(values: Sequence[object]) -> Iterator[Line]:
    """Values as the lines they would be in a file, so that there is one check for both."""
    for number, value in enumerate(values, start=1):
        try:
            line = json.dumps(_row_of(value), default=_plain).encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            yield Refused(number, f"cannot be written as JSON ({error})")
        else:
            yield _too_long(number) if len(line) > MOST_LINE_BYTES else (number, line)


def _row_of(value: object) -> object:
    if isinstance(value, str):
        return {"prompt": value}
    if not isinstance(value, Mapping):
        return value
    return {name: held for name, held in value.items() if not (isinstance(held, float) and math.isnan(held))}


def _plain(value: object) -> object:
    """NumPy's numbers and arrays, and times, as JSON has them."""
    for name in ("tolist", "isoformat"):
        if hasattr(value, name):
            return getattr(value, name)()
    raise TypeError(f"{type(value).__name__} is no kind of JSON value")


# ---- rows -----------------------------------------------------------------------------------------------------------


class _Reading:
    """One pass over the lines: what was read so far, and a hash of it."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.formats: dict[str, None] = {}
        self.ignored: dict[str, None] = {}
        self._digest = hashlib.sha256()
        self._next_number: dict[str, int] = {}  # by id that was given away

    @property
    def fingerprint(self) -> str:
        return self._digest.hexdigest()[:16]

    def items(self, lines: Iterator[Line]) -> Iterator[PromptRow | Refused]:
        for line in lines:
            item = line if isinstance(line, Refused) else self._item(*line)
            self._digest.update(repr(item).encode("utf-8"))
            yield item

    def _item(self, line: int, raw: bytes) -> PromptRow | Refused:
        try:
            values = {name: value for name, value in parse_line(raw, whole=True).items() if value is not None}
            found = format_of(values)
            row = found.row(values, line, self.num_rows)
        except SpecvizError as error:
            return Refused(line, str(error))
        self._note(found, values)
        self.num_rows += 1
        return replace(row, id=self._unique(row.id))

    def _note(self, found: Format, values: Mapping[str, Any]) -> None:
        self.formats[found.name] = None
        for name in values:
            if name not in found.used and len(self.ignored) < MOST_IGNORED:
                self.ignored[name[:MOST_NAME]] = None

    def _unique(self, name: str) -> str:
        """The id, or "id (2)" and so on where it was given away already: results are paired by it."""
        number = self._next_number.get(name)
        if number is None:
            self._next_number[name] = 2
            return name
        while (free := f"{name} ({number})") in self._next_number:
            number += 1
        self._next_number[name] = number + 1
        self._next_number[free] = 2
        return free
