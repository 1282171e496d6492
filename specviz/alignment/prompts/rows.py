"""Rows of a prompt file: what a row may hold, and the table of public prompt sets whose rows are read as they are.

A row is a parsed JSON object that nobody has checked. SpecvizError says what is wrong in words that go on after
"line 7".
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specviz.alignment.types import Message, PromptRow
from specviz.errors import SpecvizError
from specviz.models.chat import ROLES
from specviz.models.tokens import MAX_CHARACTERS
from specviz.request import MAX_ID, MAX_PROMPT_CHARACTERS, MAX_SEED, Request
from specviz.trace.values import got

MOST_MESSAGES = 1_000
MOST_ID = 200
MOST_TAGS = 20
MOST_TAG = 80
MOST_COMPLETION_IDS = 100_000

Values = Mapping[str, Any]
OWN = "prompt messages id tags completion sampled"
SERVED = ("completion", "sampled")  # rows of a public set may carry these beside their own fields
SAMPLED_FIELDS = ("target", *Request.SAMPLING)
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _own_row(values: Values, line: int, number: int) -> PromptRow:
    """A row in specviz's own fields, checked. line: where it stands; number: its place, and its id if it has none."""
    if "prompt" in values and "messages" in values:
        raise SpecvizError('has both "prompt" and "messages": one of them says what to go on with')
    completion = _completion(values["completion"]) if "completion" in values else None
    if "sampled" in values and completion is None:
        raise SpecvizError('has "sampled", which says how a "completion" was sampled, but no "completion"')
    return PromptRow(
        number=number,
        line=line,
        id=_id(values.get("id", number)),
        tags=_tags(values.get("tags", ())),
        prompt=_text("prompt", values["prompt"], MAX_PROMPT_CHARACTERS) if "prompt" in values else None,
        messages=_messages(values["messages"]) if "messages" in values else None,
        completion=completion,
        told=_told(values["sampled"]) if "sampled" in values else None,
    )


def _text(name: str, value: object, most: int) -> str:
    if not isinstance(value, str) or not value:
        raise SpecvizError(f"needs the {name} as a text that is not empty {got(value)}")
    if len(value) > most:
        raise SpecvizError(f"needs the {name} to have at most {most:,} characters (got {len(value):,})")
    return value


def _messages(values: object) -> tuple[Message, ...]:
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_MESSAGES:
        raise SpecvizError(f"needs the messages as a list of 1 to {MOST_MESSAGES:,} messages {got(values)}")
    messages = tuple(_message(place, value) for place, value in enumerate(values, start=1))
    if messages[-1].role == "assistant":
        raise SpecvizError('ends with an assistant message: put an answer that is there already into "completion"')
    _text("last message", messages[-1].content, MAX_PROMPT_CHARACTERS)
    if (total := sum(len(message.content) for message in messages)) > MAX_PROMPT_CHARACTERS:
        raise SpecvizError(f"needs the messages to have at most {MAX_PROMPT_CHARACTERS:,} characters (got {total:,})")
    return messages


def _message(place: int, value: object) -> Message:
    fields = {name for name, held in value.items() if held is not None} if isinstance(value, dict) else set()
    if fields != {"role", "content"}:
        raise SpecvizError(f'needs message {place} to be an object with "role" and "content" alone {got(value)}')
    role, content = value["role"], value["content"]
    if role not in ROLES:
        raise SpecvizError(f"has a role in message {place} that is not one of {', '.join(ROLES)} {got(role)}")
    if not isinstance(content, str):
        raise SpecvizError(f"needs the content of message {place} as a text {got(content)}")
    return Message(role, content)


def _id(value: object) -> str:
    if type(value) is int and abs(value) <= MAX_SEED:
        return str(value)
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_SEED:  # of a table that lacks other ids
        return str(int(value))
    return _clean("id", _text("id", value, MOST_ID))


def _tags(values: object) -> tuple[str, ...]:
    """A text, a list of texts, or {name: value}, which reads "name:value"; a tag given twice counts once."""
    if isinstance(values, dict):
        values = [f"{name}:{_plain(name, value)}" for name, value in values.items() if value is not None]
    values = [values] if isinstance(values, str) else values
    if not isinstance(values, (list, tuple)) or len(values) > MOST_TAGS:
        raise SpecvizError(f"needs the tags as a text or a list of at most {MOST_TAGS} texts {got(values)}")
    return tuple(dict.fromkeys(_clean("tag", _text("tag", value, MOST_TAG)) for value in values))


def _plain(name: str, value: object) -> str:
    if isinstance(value, (str, int, float)):
        return value if isinstance(value, str) else json.dumps(value)
    raise SpecvizError(f"needs the tag {got(name)[5:-1]} as a text or a number {got(value)}")


def _clean(name: str, text: str) -> str:
    """On one line, without characters that steer a terminal."""
    words = " ".join(text.split())
    if not words or CONTROL.search(words):
        raise SpecvizError(f"needs the {name} as a text without control characters {got(text)}")
    return words


def _completion(value: object) -> str | tuple[int, ...]:
    if not isinstance(value, list):
        return _text("completion", value, MAX_CHARACTERS)
    if not 1 <= len(value) <= MOST_COMPLETION_IDS:
        raise SpecvizError(f"needs 1 to {MOST_COMPLETION_IDS:,} ids in the completion (got {len(value):,})")
    for token in value:
        if type(token) is not int or not 0 <= token <= MAX_ID:
            raise SpecvizError(f"needs whole numbers from 0 to {MAX_ID:,} as ids in the completion {got(token)}")
    return tuple(value)


def _told(values: object) -> dict[str, object]:
    """What a completion was sampled from; a filter that is not named did not filter."""
    if (
        not isinstance(values, dict)
        or set(values) - set(SAMPLED_FIELDS)
        or not {"target", "temperature"} <= set(values)
    ):
        raise SpecvizError(f'needs "sampled" as an object with target, temperature, top_k and top_p {got(values)}')
    try:
        request = Request(prompt="-", **values).validate()
    except SpecvizError as error:
        raise SpecvizError(f'has in "sampled": {error}') from None
    return {name: getattr(request, name) for name in SAMPLED_FIELDS}


# ---- formats --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of rows. fields: what it is known by; used: what is read of it; own: such a row in specviz's fields."""

    name: str
    fields: frozenset[str]
    used: frozenset[str]
    own: Callable[[Values], Values]

    def row(self, values: Values, line: int, number: int) -> PromptRow:
        served = {name: values[name] for name in SERVED if name in values}
        return _own_row({**served, **self.own(values)}, line, number)


def _first_turn(values: Values) -> Values:
    turns = values["turns"]
    if not isinstance(turns, list) or not turns:
        raise SpecvizError(f"needs the turns as a list of at least one text {got(turns)}")
    return {"messages": _one_user(turns[0]), "id": values["question_id"], "tags": values["category"]}


def _one_user(content: object) -> list[Values]:
    return [{"role": "user", "content": content}]


def _format(name: str, fields: str, used: str, own: Callable[[Values], Values]) -> Format:
    return Format(name, frozenset(fields.split()), frozenset(used.split()) | set(SERVED), own)


FORMATS = (  # the first whose fields are all there reads the row
    _format(
        "HumanEval",
        "task_id prompt entry_point",
        "task_id prompt",
        lambda values: {"prompt": values["prompt"], "id": values["task_id"], "tags": "code"},
    ),
    _format("specviz", "prompt", OWN, dict),
    _format("specviz", "messages", OWN, dict),
    _format(
        "MT-Bench or Spec-Bench, first turns", "question_id category turns", "question_id category turns", _first_turn
    ),
    _format(
        "GSM8K",
        "question answer",
        "question",
        lambda values: {"messages": _one_user(values["question"]), "tags": "math"},
    ),
)


def format_of(values: Values) -> Format:
    found = next((item for item in FORMATS if item.fields <= values.keys()), None)
    if found is None:
        raise SpecvizError(f'has neither "prompt" nor "messages" (its fields: {reprlib.repr(list(values))})')
    return found
