"""Prompt files: JSON lines, or values in memory, become checked `PromptRow`s; what cannot be used is named by its line.

The file is not trusted. Every line is read and checked once when the set is opened; `rows()` reads it again, so memory
stays flat but for the ids, and fails at the end if the file has changed. Rows of public prompt sets are read as they
are (`FORMATS`). Errors of a row go on after "line 7".
"""

import codecs
import hashlib
import json
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from specviz.alignment.types import Message, PromptRow, Refused
from specviz.errors import SpecvizError
from specviz.models.chat import ROLES
from specviz.models.tokens import MAX_CHARACTERS
from specviz.request import MAX_ID, MAX_PROMPT_CHARACTERS, MAX_SEED, Request
from specviz.trace.lines import parse_line
from specviz.trace.values import format_got

MOST_BYTES = 1 << 30
MOST_LINE_BYTES = 8 << 20
MOST_REFUSED = 20  # refused rows that are kept with their reasons; all are counted
MOST_IGNORED = 50  # names of fields that nothing reads
MOST_NAME = 80  # characters of such a name
MOST_NAMED = 5  # bad lines in the error for a file without a usable row

MOST_MESSAGES = 1_000
MOST_ID = 200
MOST_TAGS = 20
MOST_TAG = 80
MOST_COMPLETION_IDS = 100_000

Line = tuple[int, bytes] | Refused
Values = Mapping[str, Any]
OWN = ("prompt", "messages", "id", "tags", "completion", "sampled")
SERVED = ("completion", "sampled")  # rows of a public set may carry these beside their own fields
SAMPLED_FIELDS = ("target", *Request.SAMPLING)
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


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
        """The accepted rows in order, read again. SpecvizError at the end if they are not those that were counted."""
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
    return _check_set(path.name, lambda: _file_lines(path))


def from_values(values: Iterable[str | Mapping[str, Any]]) -> PromptSet:
    """The same for texts and mappings in memory, or a data frame; their "line" is their place, from 1."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise ValueError(f"values must be a list of texts or mappings (got {type(values).__name__})")
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
        raise SpecvizError(f"{name} holds no usable prompt{_list_refused(found.refused, found.num_refused)}")
    formats, ignored, refused = ", ".join(found.formats), tuple(found.ignored), tuple(found.refused)
    return PromptSet(name, found.num_rows, found.num_refused, refused, formats, ignored, found.fingerprint, lines)


def _list_refused(refused: Sequence[Refused], num_refused: int) -> str:
    if not refused:
        return ': one JSON object with "prompt" or "messages" per line is expected'
    words = "; ".join(f"line {item.line} {item.reason}" for item in refused[:MOST_NAMED])
    more = f"; and {num_refused - MOST_NAMED:,} more lines" if num_refused > MOST_NAMED else ""
    return f": {words}{more}"


def _file_lines(path: Path) -> Iterator[Line]:
    """Every line that holds something, without the mark that some editors put before the first."""
    _check_file(path)
    try:
        with path.open("rb") as stream:
            yield from _lines_with_text(stream, path.name)
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
        raise SpecvizError(f"{path.name!r} is not a file: name a file of JSON lines")
    if size > MOST_BYTES:
        raise SpecvizError(f"{path.name} is too large: at most {MOST_BYTES:,} bytes are read (got {size:,})")


def _lines_with_text(stream: BinaryIO, name: str) -> Iterator[Line]:
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
            while line and not line.endswith(b"\n"):
                line = stream.readline(MOST_LINE_BYTES)
            yield _too_long(number)
        else:
            yield number, text


def _too_long(number: int) -> Refused:
    return Refused(number, f"is too long: at most {MOST_LINE_BYTES:,} bytes are read")


def _value_lines(values: Sequence[object]) -> Iterator[Line]:
    """Values as the lines they would be in a file, so that there is one check for both."""
    for number, value in enumerate(values, start=1):
        try:
            value = {"prompt": value} if isinstance(value, str) else value
            if isinstance(value, Mapping):
                cells = value.items()
                value = {name: cell for name, cell in cells if not (isinstance(cell, float) and math.isnan(cell))}
            line = json.dumps(value, default=_to_json).encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            yield Refused(number, f"cannot be written as JSON ({error})")
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
        self.refused: list[Refused] = []
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
            if isinstance(item, Refused):
                self.num_refused += 1
                self.refused += [item] if len(self.refused) < MOST_REFUSED else []
            yield item

    def _item(self, line: int, raw: bytes) -> PromptRow | Refused:
        try:
            values = {name: value for name, value in parse_line(raw, whole=True).items() if value is not None}
            found = format_of(values)
            served = {name: values[name] for name in SERVED if name in values}
            row = _own_row({**served, **found.own(values)}, line, self.num_rows)
        except SpecvizError as error:
            return Refused(line, str(error))
        self.formats[found.name] = None
        for name in values:
            if name not in (*found.used, *SERVED) and len(self.ignored) < MOST_IGNORED:
                self.ignored[name[:MOST_NAME]] = None
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


def _own_row(values: Values, line: int, number: int) -> PromptRow:
    """A row in specviz's own fields, checked. line: where it stands; number: its place, and its id if it has none."""
    if "prompt" in values and "messages" in values:
        raise SpecvizError('has both "prompt" and "messages": give only one of them')
    completion = _completion(values["completion"]) if "completion" in values else None
    if "sampled" in values and completion is None:
        raise SpecvizError('has "sampled", which says how a "completion" was sampled, but no "completion"')
    return PromptRow(
        number=number,
        line=line,
        id=_id(values.get("id", number)),
        tags=_tags(values.get("tags", ())),
        prompt=_check_text("prompt", values["prompt"], MAX_PROMPT_CHARACTERS) if "prompt" in values else None,
        messages=_messages(values["messages"]) if "messages" in values else None,
        completion=completion,
        told=_sampled_from(values["sampled"]) if "sampled" in values else None,
    )


def _check_text(name: str, value: object, most: int) -> str:
    if not isinstance(value, str) or not value:
        raise SpecvizError(f"needs the {name} as a non-empty text {format_got(value)}")
    if len(value) > most:
        raise SpecvizError(f"needs the {name} to have at most {most:,} characters (got {len(value):,})")
    return value


def _messages(values: object) -> tuple[Message, ...]:
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_MESSAGES:
        raise SpecvizError(f"needs the messages as a list of 1 to {MOST_MESSAGES:,} messages {format_got(values)}")
    messages = tuple(_message(place, value) for place, value in enumerate(values, start=1))
    if messages[-1].role == "assistant":
        raise SpecvizError('ends with an assistant message: put an existing answer into "completion"')
    _check_text("last message", messages[-1].content, MAX_PROMPT_CHARACTERS)
    if (total := sum(len(message.content) for message in messages)) > MAX_PROMPT_CHARACTERS:
        raise SpecvizError(f"needs the messages to have at most {MAX_PROMPT_CHARACTERS:,} characters (got {total:,})")
    return messages


def _message(place: int, value: object) -> Message:
    fields = {name for name, held in value.items() if held is not None} if isinstance(value, dict) else set()
    if fields != {"role", "content"}:
        raise SpecvizError(f'needs message {place} to be an object with only "role" and "content" {format_got(value)}')
    role, content = value["role"], value["content"]
    if role not in ROLES:
        raise SpecvizError(f"has a role in message {place} that is not one of {', '.join(ROLES)} {format_got(role)}")
    if not isinstance(content, str):
        raise SpecvizError(f"needs the content of message {place} as a text {format_got(content)}")
    return Message(role, content)


def _id(value: object) -> str:
    if type(value) in (int, float) and abs(value) <= MAX_SEED and value == int(value):  # 7.0 in a table that lacks ids
        return str(int(value))
    return _clean_text("id", _check_text("id", value, MOST_ID))


def _tags(values: object) -> tuple[str, ...]:
    """A text, a list of texts, or {name: value}, which reads "name:value"; a tag given twice counts once."""
    if isinstance(values, dict):
        values = [f"{name}:{_tag_value(name, value)}" for name, value in values.items() if value is not None]
    values = [values] if isinstance(values, str) else values
    if not isinstance(values, (list, tuple)) or len(values) > MOST_TAGS:
        raise SpecvizError(f"needs the tags as a text or a list of at most {MOST_TAGS} texts {format_got(values)}")
    return tuple(dict.fromkeys(_clean_text("tag", _check_text("tag", value, MOST_TAG)) for value in values))


def _tag_value(name: str, value: object) -> str:
    if isinstance(value, (str, int, float)):
        return value if isinstance(value, str) else json.dumps(value)
    raise SpecvizError(f"needs the tag {format_got(name)[5:-1]} as a text or a number {format_got(value)}")


def _clean_text(name: str, text: str) -> str:
    """On one line, without characters that steer a terminal."""
    words = " ".join(text.split())
    if not words or CONTROL.search(words):
        raise SpecvizError(f"needs the {name} as a text without control characters {format_got(text)}")
    return words


def _completion(value: object) -> str | tuple[int, ...]:
    if not isinstance(value, list):
        return _check_text("completion", value, MAX_CHARACTERS)
    if not 1 <= len(value) <= MOST_COMPLETION_IDS:
        raise SpecvizError(f"needs 1 to {MOST_COMPLETION_IDS:,} ids in the completion (got {len(value):,})")
    for token in value:
        if type(token) is not int or not 0 <= token <= MAX_ID:
            raise SpecvizError(f"needs whole numbers from 0 to {MAX_ID:,} as ids in the completion {format_got(token)}")
    return tuple(value)


def _sampled_from(values: object) -> dict[str, object]:
    """What a completion was sampled from; a filter that is not named did not filter."""
    if not isinstance(values, dict) or not {"target", "temperature"} <= set(values) <= set(SAMPLED_FIELDS):
        raise SpecvizError(
            f'needs "sampled" as an object with target, temperature, top_k and top_p {format_got(values)}'
        )
    try:
        request = Request(prompt="-", **values).validate()
    except SpecvizError as error:
        raise SpecvizError(f'has in "sampled": {error}') from None
    return {name: getattr(request, name) for name in SAMPLED_FIELDS}


class Format(NamedTuple):
    """A kind of rows. fields: what it is known by; used: what is read of it; own: such a row in specviz's fields."""

    name: str
    fields: Sequence[str]
    used: Sequence[str]
    own: Callable[[Values], Values]


def _first_turn(values: Values) -> Values:
    turns = values["turns"]
    if not isinstance(turns, list) or not turns:
        raise SpecvizError(f"needs the turns as a list of at least one text {format_got(turns)}")
    messages = [{"role": "user", "content": turns[0]}]
    return {"messages": messages, "id": values["question_id"], "tags": values["category"]}


_TURNS = ("question_id", "category", "turns")
FORMATS = (  # the first whose fields are all there reads the row
    Format("HumanEval", ("task_id", "prompt", "entry_point"), ("task_id", "prompt"),
           lambda row: {"prompt": row["prompt"], "id": row["task_id"], "tags": "code"}),
    Format("specviz", ("prompt",), OWN, dict),
    Format("specviz", ("messages",), OWN, dict),
    Format("MT-Bench or Spec-Bench, first turns", _TURNS, _TURNS, _first_turn),
    Format("GSM8K", ("question", "answer"), ("question",),
           lambda row: {"messages": [{"role": "user", "content": row["question"]}], "tags": "math"}),
)  # fmt: skip


def format_of(values: Values) -> Format:
    found = next((item for item in FORMATS if values.keys() >= set(item.fields)), None)
    if found is None:
        raise SpecvizError(f'has neither "prompt" nor "messages" (its fields: {reprlib.repr(list(values))})')
    return found
