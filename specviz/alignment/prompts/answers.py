"""The answers of engines, in the shapes in which servers and clients log them, become a row's completion.

An answer lies in a field of the row (`HOLDERS`), inside objects or lists of one, or in the row itself. Its ids count
before its text. An answer that cannot be used is refused by name, so that no other text takes its place. Errors go on
after "line 7".
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from specviz.alignment.prompts.fields import Fields
from specviz.alignment.prompts.messages import is_messages
from specviz.alignment.prompts.rows import is_usable_sampled
from specviz.errors import SpecvizError
from specviz.models.chat import REASONING
from specviz.request import Request, has_one_law
from specviz.trace.values import format_got

HOLDERS = ("response", "output", "outputs", "choices", "generated_text", "output_text")
"""The fields that hold an answer: a text, an object, or a list of one."""
IDS = ("token_ids", "output_ids", "tokens")
TEXTS = ("text", "content")
LIKE_ROWS = ("meta_info", "stop_type", "generation_settings", "token_ids", "output_ids")
MARKS = (
    {"choices", "object"},
    {"outputs", "finished"},
    {"status_code", "body"},
    {"meta_info"},
    {"stop_type"},
    {"finish_reason"},
)
"""The fields by which an object is an engine's answer, whatever holds it."""
PUBLIC = ("instruction", "question", "turns")
"""The fields by which public sets are known."""
LEFT = (
    *("finish_reason", "finished", "stop_reason", "usage", "timings", "tokens_predicted"),
    *("cumulative_logprob", "completion_probabilities", "output_token_logprobs"),
    *("output_token_ids", "completion_token_ids", "response_token_ids", "completion_ids"),
)
"""Fields that only a row with an answer has."""
BESIDE_PROMPTS = (*TEXTS, *IDS)
"""Fields that beside "prompt" or token ids may be an answer, and are common elsewhere."""
SHAPES = {
    "meta_info": "SGLang's answers",
    "generation_settings": "llama.cpp's answers",
    "stop_type": "llama.cpp's answers",
    "outputs": "vLLM's outputs",
    "choices": "OpenAI's choices",
}
STOPS = ("eos", "limit", "word")
"""How llama.cpp's whole answers end."""
FAILED = ("abort", "aborted", "error", "content_filter", "cancelled", "timeout")
"""The reasons to finish that leave no whole answer."""
ID_AS_TEXT = re.compile(r"token_id:([0-9]{1,10})")
"""How vLLM writes a token's id in the place of its text."""
HARMLESS = (
    *("model", "prompt", "messages", "text", "input_ids", "prompt_token_ids", "sampling_params"),
    *("max_tokens", "max_completion_tokens", "max_new_tokens", "seed", "sampling_seed", "user"),
    *("stream", "stream_options", "logprobs", "top_logprobs", "prompt_logprobs", "return_logprob"),
    *("return_token_ids", "return_tokens_as_token_ids", "logprob_start_len", "top_logprobs_num"),
    *("request_id", "rid", "chat_template_kwargs", "skip_special_tokens", *Request.SAMPLING),
)
"""Fields of a request that leave the distribution of its answer's next token as it is, or say what it is."""
NEUTRAL = {
    **dict.fromkeys(
        ("presence_penalty", "frequency_penalty", "min_tokens", "ignore_eos", "echo"), 0
    ),
    **dict.fromkeys(("repetition_penalty", "n", "best_of"), 1),
    "stop": [],
    "stop_token_ids": [],
    "bad_words": [],
    "logit_bias": {},
}
"""Fields that change it, and the values with which they do not."""


class Answer(NamedTuple):
    """An engine's answer under specviz's names."""

    completion: object
    """Token ids, a text, or a list with the assistant's message."""
    prompt_ids: object
    """The ids that the engine read; None where the row has none, or where the completion cannot follow ids."""
    shape: str
    sampled: Mapping[str, Any] | None


def find_answer(row: Fields, request: Fields, *, is_answered: bool) -> Answer | None:
    """The row's answer; None where nothing in the row looks like one.

    request: the fields of what was asked, which may be the row itself. is_answered: whether the messages end with an
    answer already. Raises SpecvizError.
    """
    levels = _levels(row, is_answered)
    part = levels[-1]
    if part is row and is_answered:
        return None
    if is_answered:
        raise SpecvizError(
            "has an answer twice: as last message of the assistant and from an engine"
        )
    if part is row and not _is_like(row):
        _check_nothing_left(row)
        return None
    for name in ("echo", "suffix"):
        if request.get(name):
            raise SpecvizError(f'has "{name}", so that its answer is not what follows the prompt')
    completion = _completion(part, _count(levels))
    prompt_ids = None
    if not _needs_template(completion):
        prompt_ids = _innermost("prompt_token_ids", levels)
    if prompt_ids is not None and not isinstance(prompt_ids, list):
        raise SpecvizError(f"needs the prompt_token_ids as a list of ids {format_got(prompt_ids)}")
    shape = next((words for name, words in SHAPES.items() if _innermost(name, levels)), "answers")
    sampled = None if request is row else _sampled(request, _innermost("model", levels[1:]))
    for level in levels[1:]:
        row.pass_over(level)
    return Answer(completion, prompt_ids, shape, sampled)


def _levels(row: Fields, is_answered: bool) -> list[Fields]:
    """The row, and the objects in it down to the one that is the answer."""
    if not is_answered:
        _check_whole(row)
    levels = [row]
    prefix = ""
    name = _holder(row, is_answered)
    while name is not None:
        value = _only(f"{prefix}{name}", levels[-1].get(name))
        prefix = f"{prefix}{name}."
        level = Fields(value, prefix)
        _check_whole(level)
        levels.append(level)
        name = next((name for name in ("body", *HOLDERS) if level.names(name)), None)
    return levels


def _holder(row: Fields, is_answered: bool) -> str | None:
    """The field of a row that holds its answer, by name or by what it holds, maybe null; None where it has none.

    Public sets have such names for other things. Texts in "choices" are what to choose from.
    """
    is_public = any(name in row for name in PUBLIC)
    for name in HOLDERS:
        value = row.peek(name)
        is_options = is_public or ("object" not in row and _is_texts(value))
        if name == "choices" and is_options and not is_messages(value):
            continue
        if is_answered:
            holds = isinstance(value, dict) or is_messages(value)
        elif is_public:
            holds = bool(value)
        else:
            holds = row.names(name)
        if holds:
            return name
    if is_answered or _is_like(row):
        return None
    return next((name for name in row if _is_logged(row.peek(name))), None)


def _is_like(row: Fields) -> bool:
    """Whether the row is itself the answer, beside its prompt."""
    return any(row.names(name) for name in LIKE_ROWS)


def _is_texts(value: object) -> bool:
    """Whether this is a list of texts."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _only(name: str, value: object) -> Mapping[str, Any]:
    """The object that a field holds, alone or in a list; a text and ids become one."""
    if isinstance(value, str):
        value = _logged_as_text(value) or {"text": value}
    if isinstance(value, list) and all(type(item) is int for item in value):
        return {"token_ids": value}
    if isinstance(value, list) and len(value) > 1:
        raise SpecvizError(f'has {len(value):,} answers in "{name}": write a row for each')
    if isinstance(value, list):
        (value,) = value
    if isinstance(value, str):
        return {"text": value}
    if not isinstance(value, dict):
        raise SpecvizError(f'has "{name}" as its answer, which cannot be read {format_got(value)}')
    return value


def _logged_as_text(text: str) -> object:
    """An engine's answer that was logged as its JSON text. Other JSON may be what the model wrote."""
    if text[:1] not in ("{", "["):
        return None
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if _is_logged(value) else None


def _is_logged(value: object) -> bool:
    """Whether this is an engine's answer by its fields, alone or in a list."""
    first = value[0] if is_messages(value) else value
    return isinstance(first, dict) and any(marks <= first.keys() for marks in MARKS)


def _check_whole(level: Fields) -> None:
    """Refuses an error, a part of a stream, and an answer that did not end by itself or at its length."""
    meta = level.peek("meta_info")
    for fields in (level, Fields(meta if isinstance(meta, dict) else {}, "meta_info.")):
        error = fields.get("error")
        status = fields.get("status_code", 200)
        kind = fields.peek("object")
        if error or status not in (200, "200") or kind == "error":
            got = format_got(error or status)
            raise SpecvizError(f"has an error in the place of an answer {got}")
        reason = fields.get("finish_reason")
        reason = reason.get("type") if isinstance(reason, dict) else reason
        if reason in FAILED:
            raise SpecvizError(f"has an answer that was broken off {format_got(reason)}")
        is_open = reason is None and fields.names("finish_reason")
        is_open |= fields.get("stop_type", STOPS[0]) not in STOPS
        is_open |= fields.peek("finished") is False or fields.peek("stop") is False
        if is_open or kind == "chat.completion.chunk" or fields.names("delta"):
            raise SpecvizError("has a piece of a stream, or an answer that had not ended")


def _check_nothing_left(row: Fields) -> None:
    """Refuses a row with fields of an answer where no answer was found."""
    asked = ("prompt", "prompt_token_ids", "input_ids")
    names = (*LEFT, *BESIDE_PROMPTS) if any(name in row for name in asked) else LEFT
    for name in names:
        if name in row:
            raise SpecvizError(
                f'has "{name}", as rows with an answer have, but no answer that can be read: call it "completion", or '
                "leave the field out"
            )


def _completion(part: Fields, counted: object) -> object:
    """The answer's ids, else its message or its text. counted: how many tokens it has by its own account."""
    entries = _logged_tokens(part)
    logged = [_id_of(entry) for entry in entries]
    has_logged = bool(logged) and None not in logged
    if not has_logged and any(token is not None for token in logged):
        raise SpecvizError("has tokens with and without an id in its logprobs")
    ids = next((part.get(name) for name in IDS if part.peek(name)), None)
    if ids is not None:
        if not isinstance(ids, list):
            raise SpecvizError(f"needs the answer's ids as a list {format_got(ids)}")
        lengths = {len(ids), *([len(entries)] if entries else ())}
        if type(counted) is int:
            lengths.add(counted)
        if len(lengths) > 1 or (has_logged and logged != ids):
            raise SpecvizError(
                f"has other tokens in its logprobs or its count than the {len(ids):,} ids of its answer"
            )
        return ids
    if has_logged and counted in (None, len(logged)):  # llama.cpp leaves out parts of a letter
        return logged
    message = part.get("message")
    if isinstance(message, dict):
        return [{"role": "assistant", **message}]
    text = next((part.get(name) for name in TEXTS if name in part), None)
    if not isinstance(text, str) or not text:
        raise SpecvizError(f"has an answer without a text and without ids {format_got(text)}")
    return text


def _logged_tokens(part: Fields) -> Sequence[object]:
    """An entry for every token of the answer; empty where none are logged."""
    meta = part.get("meta_info")
    entries = part.get("logprobs")
    if isinstance(meta, dict):
        entries = meta.get("output_token_logprobs")
    if isinstance(entries, dict):
        entries = entries.get("content") or entries.get("tokens")
    return entries if isinstance(entries, list) else ()


def _id_of(entry: object) -> object:
    """The id in the entry of a token; None where it has none."""
    if isinstance(entry, list):  # SGLang: [logprob, id, text], both numbers of one type in Parquet
        token = entry[1] if len(entry) > 1 else None
        return int(token) if isinstance(token, float) and token.is_integer() else token
    token = entry
    if isinstance(entry, dict):
        if "id" in entry:  # llama.cpp
            return entry["id"]
        token = entry.get("token")
    found = ID_AS_TEXT.fullmatch(token) if isinstance(token, str) else None
    return int(found[1]) if found else None


def _count(levels: Sequence[Fields]) -> object:
    """How many tokens the answer has, by what it says of itself."""
    for name in ("usage", "meta_info"):
        told = _innermost(name, levels)
        if isinstance(told, dict) and "completion_tokens" in told:
            return told["completion_tokens"]
    return None


def _innermost(name: str, levels: Sequence[Fields]) -> Any:
    """Reads a field in the innermost object that has it; None where none has."""
    return next((level.get(name) for level in reversed(levels) if name in level), None)


def _needs_template(completion: object) -> bool:
    """Whether the answer has parts that only a chat template writes behind messages."""
    if not isinstance(completion, list) or not isinstance(completion[0], dict):
        return False
    return any(completion[0].get(name) for name in ("tool_calls", *REASONING))


def _sampled(request: Fields, served: object) -> Mapping[str, Any] | None:
    """The model and the sampling of an answer; None where the request leaves them open.

    A server has its own defaults for what a request does not name, and two filters together differ from engine to
    engine.
    """
    inside = request.peek("sampling_params")
    settings = {name: request.peek(name) for name in request}
    if isinstance(inside, dict):
        settings |= {name: value for name, value in inside.items() if value is not None}
    if any(
        name not in HARMLESS and NEUTRAL.get(name, "") != value for name, value in settings.items()
    ):
        return None
    model = settings.get("model", served)
    if served not in (None, model):
        return None
    named = {name: settings[name] for name in Request.SAMPLING if name in settings}
    if named.get("temperature") == 0:  # nothing is left to filter
        named |= Request.FILTERS
    if named.get("top_k") == -1:
        named["top_k"] = 0
    sampled = {"target": model, **named}
    if len(named) < len(Request.SAMPLING) or not has_one_law(named):
        return None
    if not is_usable_sampled(sampled):
        return None
    request.take("model", "sampling_params", *Request.SAMPLING)
    return sampled
