"""A row's messages, tools and switches, as chat servers and agents log them, become checked values.

Rows are not trusted. Fields that change no text are passed over and noted in the row; fields that change the text and
cannot be read are refused. Errors go on after "line 7".
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from specviz.alignment.prompts.fields import Fields, check_text
from specviz.alignment.types import Message
from specviz.errors import SpecvizError
from specviz.models.chat import CHAT_ROLES, REASONING
from specviz.models.tokens import MAX_CHARACTERS
from specviz.request import MAX_PROMPT_CHARACTERS, check_chat_options
from specviz.trace.values import format_got

MOST_MESSAGES = 1_000
MOST_PARTS = 100
MOST_CALLS = 100  # of one message
MOST_TOOLS = 1_000
MOST_NAME = 1_000  # characters of the name of a function or a call
TEXT_PARTS = ("text", "input_text", "output_text")
UNREADABLE = ("function_call", "audio", "image", "images", "video", "videos")
"""Fields of a message that would change what the model reads."""


def is_messages(value: object) -> bool:
    """Whether a prompt or a completion is a list of messages, not of token ids."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def read_messages(values: object, row: Fields) -> tuple[Message, ...]:
    """Checks and returns a list of messages. Their unused fields are noted in the row."""
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_MESSAGES:
        raise SpecvizError(
            f"needs the messages as a list of 1 to {MOST_MESSAGES:,} messages {format_got(values)}"
        )
    return tuple(_read_message(place, value, row) for place, value in enumerate(values, start=1))


def split_answer(messages: Sequence[Message]) -> tuple[tuple[Message, ...], Message | None]:
    """The messages before the assistant's answer, and the answer; None where the messages end without one."""
    asked = tuple(messages)
    answer = None
    if messages[-1].role == "assistant":
        *before, answer = messages
        asked = tuple(before)
    if not asked or asked[-1].role == "assistant":
        raise SpecvizError(
            "needs a message of the user or the system before the assistant's last one"
        )
    if answer is not None and not answer.tool_calls:
        check_text("assistant's answer", answer.content, MAX_CHARACTERS)
    if asked[-1].role != "tool":  # a tool may answer nothing
        check_text("last message", asked[-1].content, MAX_PROMPT_CHARACTERS)
    total = sum(_num_characters(turn) for turn in asked)
    if total > MAX_PROMPT_CHARACTERS:
        raise SpecvizError(
            f"needs the messages to have at most {MAX_PROMPT_CHARACTERS:,} characters (got {total:,})"
        )
    return asked, answer


def _num_characters(turn: Message) -> int:
    return sum(len(str(value)) for name, value in turn.to_dict().items() if name != "role")


def _read_message(place: int, value: object, row: Fields) -> Message:
    """Checks and returns one message. place: from 1."""
    if not isinstance(value, dict):
        raise SpecvizError(
            f'needs message {place} to be an object with "role" and "content" {format_got(value)}'
        )
    fields = Fields(value, "messages.")
    role = fields.get("role")
    if role not in CHAT_ROLES:
        allowed = ", ".join(CHAT_ROLES)
        raise SpecvizError(
            f"has a role in message {place} that is not one of {allowed} {format_got(role)}"
        )
    for name in UNREADABLE:
        if fields.get(name):
            raise SpecvizError(
                f'has "{name}" in message {place}, which belongs to the text and cannot be read'
            )
    calls: tuple[Mapping[str, Any], ...] = ()
    reasoning = ""
    call_id = ""
    name = ""
    if role == "assistant":
        calls = _read_tool_calls(place, fields.get("tool_calls"))
        reasoning = _read_reasoning(place, fields)
    elif fields.get("tool_calls"):
        raise SpecvizError(
            f"has tool calls in message {place} of the {role}: only the assistant calls tools"
        )
    if role == "tool":
        call_id = _read_short_text(place, "tool_call_id", fields)
        name = _read_short_text(place, "name", fields)
    content = fields.get("content", "" if calls else None)
    if isinstance(content, list):
        content = _join_parts(place, content)
    if not isinstance(content, str):
        raise SpecvizError(f"needs the content of message {place} as a text {format_got(content)}")
    row.pass_over(fields)
    return Message(role, content, reasoning, calls, call_id, name)


def _join_parts(place: int, content: list[object]) -> str:
    """The texts of a list of parts, as OpenAI's API has them, line by line."""
    texts = []
    for part in content[: MOST_PARTS + 1]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
            got = format_got(part if kind is None else kind)
            raise SpecvizError(
                f"has a part in message {place} that is not a text: only parts of the type text {got}"
            )
        texts.append(part["text"])
    if len(texts) > MOST_PARTS:
        raise SpecvizError(
            f"needs at most {MOST_PARTS} parts in message {place} (got {len(content):,})"
        )
    return "\n".join(texts)


def _read_reasoning(place: int, message: Fields) -> str:
    """The text of the first field of REASONING that the message has."""
    for name in REASONING:
        if name not in message:
            continue
        value = message.get(name)
        if not isinstance(value, str):
            raise SpecvizError(f"needs the {name} of message {place} as a text {format_got(value)}")
        return value if value.strip() else ""
    return ""


def _read_short_text(place: int, name: str, message: Fields) -> str:
    """The text of a field; empty where it is missing."""
    value = message.get(name)
    if value is not None and (not isinstance(value, str) or len(value) > MOST_NAME):
        raise SpecvizError(
            f"needs the {name} of message {place} as a short text {format_got(value)}"
        )
    return value or ""


def _read_tool_calls(place: int, values: object) -> tuple[Mapping[str, Any], ...]:
    values = _parse_json(values) or []
    if not isinstance(values, list) or len(values) > MOST_CALLS:
        raise SpecvizError(
            f"needs the tool_calls of message {place} as a list of at most {MOST_CALLS} {format_got(values)}"
        )
    calls = []
    for number, value in enumerate(values, start=1):
        calls.append(_read_tool_call(f"tool call {number} of message {place}", value))
    return tuple(calls)


def _read_tool_call(where: str, value: object) -> Mapping[str, Any]:
    """A call as OpenAI logs it, or only its name and arguments. Arguments may be the JSON text of an object."""
    function = value.get("function", value) if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not 1 <= len(name) <= MOST_NAME:
        raise SpecvizError(f"needs {where} to name its function {format_got(value)}")
    arguments = _parse_json(function.get("arguments")) or {}
    if not isinstance(arguments, dict):
        raise SpecvizError(
            f"needs the arguments of {where} as an object or its JSON {format_got(arguments)}"
        )
    _check_size(f"arguments of {where}", arguments)
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    call_id = value.get("id")
    return {"id": call_id, **call} if isinstance(call_id, str) else call


def read_tools(values: object) -> tuple[Mapping[str, Any], ...]:
    """The functions that the assistant may call: a list of objects, or its JSON text."""
    values = _parse_json(values) or []
    if not isinstance(values, list) or len(values) > MOST_TOOLS:
        raise SpecvizError(
            f"needs the tools as a list of at most {MOST_TOOLS:,} objects {format_got(values)}"
        )
    tools = tuple(map(_parse_json, values))
    for tool in tools:
        if not isinstance(tool, dict):
            raise SpecvizError(f"needs each of the tools as an object {format_got(tool)}")
    _check_size("tools", tools)
    return tools


def read_options(values: object) -> Mapping[str, bool | int | float | str]:
    """The switches of the chat template: `chat_template_kwargs`, as chat servers call them, or their JSON text."""
    values = _parse_json(values)
    if isinstance(values, dict):
        values = {name: value for name, value in values.items() if value is not None}
    try:
        return check_chat_options("chat_template_kwargs", values)
    except SpecvizError as error:
        raise SpecvizError(f"has switches that cannot be used: {error}") from None


def _parse_json(value: object) -> object:
    """The list or object that a JSON text holds; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return msgspec.json.decode(value)
        except (ValueError, RecursionError):
            return value
    return value


def _check_size(name: str, value: object) -> None:
    try:
        size = len(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        raise SpecvizError(f"needs the {name} as plain JSON that is not nested deeply") from None
    if size > MAX_PROMPT_CHARACTERS:
        raise SpecvizError(
            f"needs the {name} to have at most {MAX_PROMPT_CHARACTERS:,} characters (got {size:,})"
        )
