"""A row in specviz's own fields becomes a checked `PromptRow`. Rows are not trusted; errors go on after "line 7"."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from specviz.alignment.prompts.fields import Fields, check_text
from specviz.alignment.prompts.messages import (
    is_messages,
    read_messages,
    read_options,
    read_tools,
    split_answer,
)
from specviz.alignment.types import Message, PromptRow
from specviz.errors import SpecvizError
from specviz.models.chat import join_reasoning
from specviz.models.tokens import MAX_CHARACTERS
from specviz.request import MAX_ID, MAX_PROMPT_CHARACTERS, MAX_SEED, Request
from specviz.trace.values import format_got

MOST_ID = 200
MOST_TAGS = 20
MOST_TAG = 80
MOST_IDS = 100_000  # of a prompt or a completion

Ids = tuple[int, ...]
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""How SPEED-Bench begins a text that it may not hand on."""
SAMPLED_FIELDS = ("target", *Request.SAMPLING)
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_row(values: Mapping[str, Any], row: Fields, line: int, number: int) -> PromptRow:
    """Checks the fields of a row, returns the row. Raises SpecvizError.

    values: the fields under specviz's names. row: the fields as they were read; unused fields of messages are noted
    there. line: where the row stands in the file. number: its place, and its id if it has none.
    """
    prompt = None
    messages = None
    answer = None
    if "messages" in values:
        messages, answer = split_answer(read_messages(values["messages"], row))
        if "prompt" in values:
            _check_same(values["prompt"], messages)
        messages = _with_system(values, messages)
        _check_passage(values, messages)
    else:
        prompt = _ids_or_text("prompt", values.get("prompt"), MAX_PROMPT_CHARACTERS)
    _check_placeholder([turn.content for turn in messages or ()] if prompt is None else [prompt])
    completion, answer = _read_completion(values, answer, row)
    if isinstance(prompt, tuple) and answer is not None:
        raise SpecvizError(
            "has an answer with reasoning or tool calls behind token ids, where no chat template writes it: give the "
            "answer's ids"
        )
    if "sampled" in values and completion is None:
        raise SpecvizError(
            'has "sampled", which says how a "completion" was sampled, but no "completion"'
        )
    row_id = _id(values.get("id", number))
    tags = _tags(values.get("tags", ()))
    sampled_from = _read_sampled(values["sampled"]) if "sampled" in values else None
    tools = read_tools(values.get("tools"))
    has_options = "chat_template_kwargs" in values
    chat_options = read_options(values["chat_template_kwargs"]) if has_options else {}
    return PromptRow(
        number=number,
        line=line,
        id=row_id,
        tags=tags,
        prompt=prompt,
        messages=messages,
        completion=completion,
        told=sampled_from,
        answer=answer,
        tools=tools,
        chat_options=chat_options,
    )


def is_usable_id(value: object) -> bool:
    """Whether a row can have this value as its id."""
    try:
        return bool(_id(value))
    except SpecvizError:
        return False


def is_usable_tag(value: object) -> bool:
    """Whether this value is one tag."""
    try:
        return isinstance(value, str) and len(_tags(value)) == 1
    except SpecvizError:
        return False


def is_usable_sampled(values: object) -> bool:
    """Whether this says how a completion was sampled."""
    try:
        return bool(_read_sampled(values))
    except SpecvizError:
        return False


def join_tags(values: object, more: Sequence[str]) -> tuple[str, ...]:
    """The tags of a row, then `more` tags from its format or its category, each once."""
    tags = list(_tags(values))
    for value in more:
        tags += _tags(value)
    return tuple(dict.fromkeys(tags))


def _check_same(prompt: object, messages: Sequence[Message]) -> None:
    """Refuses a prompt beside messages, unless it repeats the user's first message, as in many training sets."""
    first = next((turn.content for turn in messages if turn.role == "user"), None)
    if not isinstance(prompt, str) or first is None or prompt.strip() != first.strip():
        raise SpecvizError(
            'has both "prompt" and "messages", and the first message of the user is not the prompt: give only one'
        )


def _with_system(values: Mapping[str, Any], messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages behind the system message that stands in a field beside them."""
    if "system" not in values:
        return messages
    system = values["system"]
    if messages[0].role not in ("system", "developer"):
        return (Message("system", system), *messages)
    if messages[0].content.strip() != system.strip():
        raise SpecvizError(
            "has other words of the system beside the messages than in their first one: give only one"
        )
    return messages


def _check_passage(values: Mapping[str, Any], messages: Sequence[Message]) -> None:
    """Refuses a passage that stands in none of the messages."""
    passage = values.get("passage", "")
    if not any(passage in turn.content for turn in messages):
        raise SpecvizError(
            "has a passage beside the messages that none of them holds: write it into one of them"
        )


def _check_placeholder(texts: Sequence[str | Ids]) -> None:
    for text in texts:
        if isinstance(text, str) and text.lstrip().startswith(PLACEHOLDER):
            raise SpecvizError(
                "is a placeholder of SPEED-Bench, whose text is elsewhere: write the file with the benchmark's own "
                "prepare_data.py first"
            )


def _read_completion(
    values: Mapping[str, Any], answer: Message | None, row: Fields
) -> tuple[str | Ids | None, Message | None]:
    """The completion and the assistant's answer.

    The completion is None where there is none, or where only a chat template can write it. The answer is None where its
    text does not depend on a chat template. answer: the last message of the row, if it is the assistant's.
    """
    completion = values.get("completion")
    if is_messages(completion):
        turns = read_messages(completion, row)
        if len(turns) > 1 or turns[0].role != "assistant" or answer is not None:
            raise SpecvizError(
                f"needs the completion as one message of the assistant {format_got(completion)}"
            )
        answer = turns[0]
        completion = None
    if answer is None:
        return None if completion is None else _ids_or_text("completion", completion), None
    if completion is not None and completion != answer.content:
        raise SpecvizError(
            'has an answer twice: as last message of the assistant and as "completion"'
        )
    if answer.tool_calls:
        return None, answer
    text = check_text("assistant's answer", answer.content, MAX_CHARACTERS)
    return join_reasoning(answer.reasoning, text), answer if answer.reasoning else None


def _id(value: object) -> str:
    """The id as a text. 7.0, as tables write 7 in a column that lacks ids, is 7."""
    is_number = type(value) in (int, float) and abs(value) <= MAX_SEED
    if is_number and value == int(value):
        return str(int(value))
    return _clean_text("id", check_text("id", value, MOST_ID))


def _tags(values: object) -> tuple[str, ...]:
    """The tags of a text, a list of texts, or {name: value}, which reads "name:value". Each tag counts once."""
    if isinstance(values, dict):
        present = {name: value for name, value in values.items() if value is not None}
        values = [f"{name}:{_tag_value(name, value)}" for name, value in present.items()]
    elif isinstance(values, str):
        values = [values]
    if not isinstance(values, (list, tuple)) or len(values) > MOST_TAGS:
        raise SpecvizError(
            f"needs the tags as a text or a list of at most {MOST_TAGS} texts {format_got(values)}"
        )
    tags = [_clean_text("tag", check_text("tag", value, MOST_TAG)) for value in values]
    return tuple(dict.fromkeys(tags))


def _tag_value(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return json.dumps(value)
    shown_name = format_got(name)[5:-1]
    raise SpecvizError(f"needs the tag {shown_name} as a text or a number {format_got(value)}")


def _clean_text(name: str, text: str) -> str:
    """The text on one line, without characters that steer a terminal."""
    words = " ".join(text.split())
    if not words or CONTROL.search(words):
        raise SpecvizError(
            f"needs the {name} as a text without control characters {format_got(text)}"
        )
    return words


def _ids_or_text(name: str, value: object, most: int = MAX_CHARACTERS) -> str | Ids:
    if not isinstance(value, list):
        return check_text(name, value, most)
    if not 1 <= len(value) <= MOST_IDS:
        raise SpecvizError(f"needs 1 to {MOST_IDS:,} ids in the {name} (got {len(value):,})")
    for token in value:
        if type(token) is not int or not 0 <= token <= MAX_ID:
            raise SpecvizError(
                f"needs whole numbers from 0 to {MAX_ID:,} as ids in the {name} {format_got(token)}"
            )
    return tuple(value)


def _read_sampled(values: object) -> dict[str, object]:
    """The model and the sampling of a completion. A filter that is not named did not filter."""
    needed = {"target", "temperature"}
    if not isinstance(values, dict) or not needed <= set(values) <= set(SAMPLED_FIELDS):
        raise SpecvizError(
            f'needs "sampled" as an object with target, temperature, top_k, top_p and min_p {format_got(values)}'
        )
    try:
        request = Request(prompt="-", **values).validate()
    except SpecvizError as error:
        raise SpecvizError(f'has in "sampled": {error}') from None
    return {name: getattr(request, name) for name in SAMPLED_FIELDS}
