"""One row of a prompt file, in whichever format, becomes a checked `PromptRow`: specviz's own fields, public prompt
sets, and the rows of training and serving tools (`FORMATS`). Rows are not trusted; errors go on after "line 7".
"""

import json
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from specviz.alignment.types import Message, PromptRow
from specviz.errors import SpecvizError
from specviz.models.chat import ROLES
from specviz.models.tokens import MAX_CHARACTERS
from specviz.request import MAX_ID, MAX_PROMPT_CHARACTERS, MAX_SEED, Request
from specviz.trace.values import format_got

MOST_MESSAGES = 1_000
MOST_PARTS = 100
MOST_ID = 200
MOST_TAGS = 20
MOST_TAG = 80
MOST_IDS = 100_000  # of a prompt or a completion

Values = Mapping[str, Any]
OWN = ("prompt", "messages", "id", "tags", "completion", "sampled")
SERVED = ("completion", "sampled")  # rows of a public set may carry these beside their own fields
SAMPLED_FIELDS = ("target", *Request.SAMPLING)
SPEAKERS = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", **{role: role for role in ROLES}}
"""Who speaks in ShareGPT's conversations -> the role."""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def own_row(values: Values, line: int, number: int) -> PromptRow:
    """A row in specviz's own fields, checked. line: where it stands; number: its place, and its id if it has none."""
    if "prompt" in values and "messages" in values:
        raise SpecvizError('has both "prompt" and "messages": give only one of them')
    messages, answer = _messages(values["messages"]) if "messages" in values else (None, None)
    if answer is not None and "completion" in values:
        raise SpecvizError('has an answer twice: as last message of the assistant and as "completion"')
    completion = _ids_or_text("completion", values["completion"]) if "completion" in values else answer
    if "sampled" in values and completion is None:
        raise SpecvizError('has "sampled", which says how a "completion" was sampled, but no "completion"')
    return PromptRow(
        number=number,
        line=line,
        id=_id(values.get("id", number)),
        tags=_tags(values.get("tags", ())),
        prompt=_ids_or_text("prompt", values["prompt"], MAX_PROMPT_CHARACTERS) if "prompt" in values else None,
        messages=messages,
        completion=completion,
        told=_sampled_from(values["sampled"]) if "sampled" in values else None,
    )


def _check_text(name: str, value: object, most: int) -> str:
    if not isinstance(value, str) or not value:
        raise SpecvizError(f"needs the {name} as a non-empty text {format_got(value)}")
    if len(value) > most:
        raise SpecvizError(f"needs the {name} to have at most {most:,} characters (got {len(value):,})")
    return value


def _messages(values: object) -> tuple[tuple[Message, ...], str | None]:
    """The messages before the assistant's answer, if they end with one, and that answer."""
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_MESSAGES:
        raise SpecvizError(f"needs the messages as a list of 1 to {MOST_MESSAGES:,} messages {format_got(values)}")
    messages = tuple(_message(place, value) for place, value in enumerate(values, start=1))
    answer = None
    if messages[-1].role == "assistant":
        *asked, last = messages
        messages, answer = tuple(asked), _check_text("assistant's answer", last.content, MAX_CHARACTERS)
    if not messages or messages[-1].role == "assistant":
        raise SpecvizError("needs a message of the user or the system before the assistant's last one")
    _check_text("last message", messages[-1].content, MAX_PROMPT_CHARACTERS)
    if (total := sum(len(message.content) for message in messages)) > MAX_PROMPT_CHARACTERS:
        raise SpecvizError(f"needs the messages to have at most {MAX_PROMPT_CHARACTERS:,} characters (got {total:,})")
    return messages, answer


def _message(place: int, value: object) -> Message:
    fields = {name for name, held in value.items() if held is not None} if isinstance(value, dict) else set()
    if fields != {"role", "content"}:
        raise SpecvizError(f'needs message {place} to be an object with only "role" and "content" {format_got(value)}')
    role, content = value["role"], value["content"]
    if role not in ROLES:
        raise SpecvizError(f"has a role in message {place} that is not one of {', '.join(ROLES)} {format_got(role)}")
    return Message(role, _content(place, content))


def _content(place: int, content: object) -> str:
    """A text, or the texts of a list of parts, as OpenAI's API has them."""
    if not isinstance(content, list):
        if not isinstance(content, str):
            raise SpecvizError(f"needs the content of message {place} as a text {format_got(content)}")
        return content
    texts = []
    for part in content[: MOST_PARTS + 1]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
            got = format_got(part if kind is None else kind)
            raise SpecvizError(f"has a part in message {place} that is not a text: only parts of the type text {got}")
        texts.append(part["text"])
    if len(texts) > MOST_PARTS:
        raise SpecvizError(f"needs at most {MOST_PARTS} parts in message {place} (got {len(content):,})")
    return "\n".join(texts)


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


def _ids_or_text(name: str, value: object, most: int = MAX_CHARACTERS) -> str | tuple[int, ...]:
    if not isinstance(value, list):
        return _check_text(name, value, most)
    if not 1 <= len(value) <= MOST_IDS:
        raise SpecvizError(f"needs 1 to {MOST_IDS:,} ids in the {name} (got {len(value):,})")
    for token in value:
        if type(token) is not int or not 0 <= token <= MAX_ID:
            raise SpecvizError(f"needs whole numbers from 0 to {MAX_ID:,} as ids in the {name} {format_got(token)}")
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


def _conversation(values: Values) -> Values:
    """ShareGPT's turns; also those that name the role and the content as OpenAI does."""
    turns = values["conversations"]
    if not isinstance(turns, list) or not 1 <= len(turns) <= MOST_MESSAGES:
        raise SpecvizError(f"needs the conversations as a list of 1 to {MOST_MESSAGES:,} turns {format_got(turns)}")
    return {**_named(values, "id", "tags"), "messages": [_turn(place, turn) for place, turn in enumerate(turns, 1)]}


def _turn(place: int, turn: object) -> object:
    if not isinstance(turn, dict) or "from" not in turn:
        return turn  # a message of OpenAI's, or refused as one
    role = SPEAKERS.get(turn["from"]) if isinstance(turn["from"], str) else None
    if role is None:
        allowed = ", ".join(SPEAKERS)
        raise SpecvizError(f"has a speaker in turn {place} that is not one of {allowed} {format_got(turn['from'])}")
    if not isinstance(turn.get("value"), str):
        raise SpecvizError(f"needs the value of turn {place} as a text {format_got(turn.get('value'))}")
    return {"role": role, "content": turn["value"]}


def _batch_request(values: Values) -> Values:
    """A line of OpenAI's batch input; what the answer was sampled with is not known from it."""
    body = values["body"]
    names = [name for name in ("messages", "prompt") if isinstance(body, dict) and body.get(name) is not None]
    if len(names) != 1:
        raise SpecvizError(f'needs the body with either "messages" or "prompt" {format_got(body)}')
    return {"id": values["custom_id"], names[0]: body[names[0]]}


def _batch_answer(values: Values) -> Values:
    raise SpecvizError("is an answer of OpenAI's batch API, which holds no prompt: give the file of requests")


def _instruction(values: Values) -> Values:
    """Alpaca: the input stands below the instruction; the output is an existing answer."""
    words = [values[name] for name in ("instruction", "input") if values.get(name) not in (None, "")]
    texts = [_check_text("instruction and the input", each, MAX_PROMPT_CHARACTERS) for each in words]
    _check_text("instruction", values["instruction"], MAX_PROMPT_CHARACTERS)
    answer = {"completion": values["output"]} if values.get("output") not in (None, "") else {}
    return {"messages": [{"role": "user", "content": "\n\n".join(texts)}], **answer, **_named(values, "id", "tags")}


def _samples(values: Values, names: tuple[str, str]) -> Values:
    """Rows of token ids, as `prove --samples` and engines write them."""
    for name in names:
        if not isinstance(values.get(name, []), list):
            raise SpecvizError(f"needs the {name} as a list of ids {format_got(values[name])}")
    own = {as_own: values[name] for as_own, name in zip(("prompt", "completion"), names, strict=True) if name in values}
    return own | _named(values, "id", "tags")


def _named(values: Values, *names: str) -> Values:
    return {name: values[name] for name in names if name in values}


_TURNS = ("question_id", "category", "turns")
_PROVE, _ENGINE = ("prompt_ids", "ids"), ("prompt_token_ids", "token_ids")
FORMATS = (  # the first whose fields are all there reads the row
    Format("HumanEval", ("task_id", "prompt", "entry_point"), ("task_id", "prompt"),
           lambda row: {"prompt": row["prompt"], "id": row["task_id"], "tags": "code"}),
    Format("specviz", ("prompt",), OWN, dict),
    Format("specviz", ("messages",), OWN, dict),
    Format("conversations", ("conversations",), ("conversations", "id", "tags"), _conversation),
    Format("OpenAI batch", ("custom_id", "body"), ("custom_id", "body", "method", "url"), _batch_request),
    Format("OpenAI batch", ("custom_id", "response"), (), _batch_answer),
    Format("token ids", ("prompt_ids",), (*_PROVE, "id", "tags"), partial(_samples, names=_PROVE)),
    Format("token ids", ("prompt_token_ids",), (*_ENGINE, "id", "tags"), partial(_samples, names=_ENGINE)),
    Format("Alpaca", ("instruction",), ("instruction", "input", "output", "id", "tags"), _instruction),
    Format("MT-Bench or Spec-Bench, first turns", _TURNS, _TURNS, _first_turn),
    Format("GSM8K", ("question", "answer"), ("question",),
           lambda row: {"messages": [{"role": "user", "content": row["question"]}], "tags": "math"}),
)  # fmt: skip


def format_of(values: Values) -> Format:
    found = next((item for item in FORMATS if values.keys() >= set(item.fields)), None)
    if found is None:
        allowed = ", ".join(dict.fromkeys(f'"{item.fields[0]}"' for item in FORMATS[1:]))
        raise SpecvizError(
            f'has neither "prompt" nor "messages" (its fields: {reprlib.repr(list(values))}; formats are known by '
            f"{allowed})"
        )
    return found
