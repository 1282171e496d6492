"""The formats of rows: specviz's own, public prompt sets, the rows of training and serving tools (`FORMATS`).

Each gives a row's fields under specviz's names; what nothing reads stays unread. Errors go on after "line 7".
"""

import re
import reprlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from specviz.alignment.prompts.fields import Fields, check_text
from specviz.alignment.prompts.messages import MOST_MESSAGES, is_messages
from specviz.alignment.prompts.rows import joined_tags, usable_id, usable_tag
from specviz.errors import SpecvizError
from specviz.models.chat import ROLES
from specviz.request import MAX_PROMPT_CHARACTERS
from specviz.trace.values import format_got

Own = dict[str, Any]
OTHER_IDS = ("prompt_id", "question_id", "task_id", "custom_id")
SYSTEM = ("system", "system_prompt")
PASSAGES = ("context", "passage")
UNREADABLE = (
    *("functions", "documents", "history"),
    *("image", "images", "audio", "audios", "video", "videos"),
)
"""Fields that change what the model reads, and that are not read here."""
SPEAKERS = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    **{role: role for role in ROLES},
}
"""Who speaks in ShareGPT's conversations -> the role."""
_GSM8K = re.compile(r"#### ?-?\$?[\d.,/]+%?")


class Format(NamedTuple):
    """A kind of rows. fields: what it is known by; own: such a row in specviz's fields; fits: what else must hold."""

    name: str
    fields: Sequence[str]
    own: Callable[[Fields], Own]
    fits: Callable[[Fields], bool] = lambda row: True


def own_fields(row: Fields) -> tuple[str, Own]:
    """The name of the row's format, and what is known of the row under specviz's names."""
    found = next(
        (item for item in FORMATS if all(name in row for name in item.fields) and item.fits(row)),
        None,
    )
    if found is None:
        allowed = ", ".join(dict.fromkeys(f'"{item.fields[0]}"' for item in FORMATS[1:]))
        raise SpecvizError(
            f'has neither "prompt" nor "messages" (its fields: {reprlib.repr([*row])}; formats are known by {allowed})'
        )
    own = {**row.take("completion", "sampled"), **found.own(row)}
    name = (
        "id"
        if "id" in row
        else next((name for name in OTHER_IDS if usable_id(row.peek(name))), None)
    )
    if name is not None:
        own["id"] = row.get(name)
    more = [
        *own.pop("kind", ()),
        *([row.get("category")] if usable_tag(row.peek("category")) else ()),
    ]
    return found.name, {**own, "tags": joined_tags(row.get("tags", ()), more)}


# ---- what stands beside a conversation -------------------------------------------------------------------------------


def _in_chat(row: Fields, **own: Any) -> Own:
    """These fields, and what else a chat server reads: words of the system, tools, switches of the template."""
    for name in UNREADABLE:
        if row.peek(name):
            raise SpecvizError(f'has "{name}", which belongs to the prompt and cannot be read')
        row.get(name)
    own |= row.take("tools", "chat_template_kwargs")
    for name in SYSTEM:
        if words := row.get(name):
            own["system"] = check_text(name, words, MAX_PROMPT_CHARACTERS)
    return own


def _passage(row: Fields) -> str:
    """The passage that a question is asked about; empty where there is none."""
    texts = []
    for name in PASSAGES:
        value = row.get(name) or ""
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, str) for part in parts):
            raise SpecvizError(
                f'needs "{name}", which belongs to the prompt, as a text {format_got(value)}'
            )
        texts += filter(None, parts)
    return "\n\n".join(texts)


def _behind_passage(row: Fields, text: str) -> str:
    passage = _passage(row)
    return text if passage in text else f"{passage}\n\n{text}"


def _ask(row: Fields, name: str, text: object) -> Own:
    """A question of the user, behind its passage."""
    text = _behind_passage(row, check_text(name, text, MAX_PROMPT_CHARACTERS))
    return _in_chat(row, messages=[{"role": "user", "content": text}])


def _answer(row: Fields) -> Own:
    """The response as the completion, if there is none of this name."""
    response = row.peek("response")
    is_used = "completion" not in row and isinstance(response, str) and bool(response)
    return {"completion": row.get("response")} if is_used else {}


# ---- formats ---------------------------------------------------------------------------------------------------------


def _prompt(row: Fields) -> Own:
    """A text, token ids, or messages. A text beside messages must be their first question, or empty."""
    prompt = row.get("prompt")
    if row.get("messages"):
        talk = _talk(row, row.get("messages"))
    elif is_messages(prompt):
        return _conversational(row, prompt)
    elif isinstance(prompt, list):
        return {"prompt": prompt}
    elif row.get("conversations"):
        talk = _conversation(row)
    else:
        text = _behind_passage(row, check_text("prompt", prompt, MAX_PROMPT_CHARACTERS))
        own = {**_in_chat(row), **_answer(row)}
        return own | (
            {"messages": [{"role": "user", "content": text}]}
            if "system" in own
            else {"prompt": text}
        )
    return talk if prompt == "" else {**talk, "prompt": prompt}


def _conversational(row: Fields, prompt: list[object]) -> Own:
    """A prompt of messages, as TRL has it; a completion of messages goes on with the same conversation."""
    completion = row.peek("completion")
    if not is_messages(completion):
        return _talk(row, prompt)
    return {**_talk(row, [*prompt, *completion]), "completion": None}


def _talk(row: Fields, messages: object) -> Own:
    return _in_chat(row, messages=messages, passage=_passage(row))


def _conversation(row: Fields) -> Own:
    """ShareGPT's turns; also those that name the role and the content as OpenAI does."""
    turns = row.get("conversations")
    if not isinstance(turns, list) or not 1 <= len(turns) <= MOST_MESSAGES:
        raise SpecvizError(
            f"needs the conversations as a list of 1 to {MOST_MESSAGES:,} turns {format_got(turns)}"
        )
    return _talk(row, [_turn(place, turn) for place, turn in enumerate(turns, 1)])


def _turn(place: int, turn: object) -> object:
    if not isinstance(turn, dict) or "from" not in turn:
        return turn  # a message of OpenAI's, or refused as one
    role = SPEAKERS.get(turn["from"]) if isinstance(turn["from"], str) else None
    if role is None:
        allowed = ", ".join(SPEAKERS)
        raise SpecvizError(
            f"has a speaker in turn {place} that is not one of {allowed} {format_got(turn['from'])}"
        )
    if not isinstance(turn.get("value"), str):
        raise SpecvizError(
            f"needs the value of turn {place} as a text {format_got(turn.get('value'))}"
        )
    others = {name: value for name, value in turn.items() if name not in ("from", "value")}
    return {**others, "role": role, "content": turn["value"]}


def _batch_request(row: Fields) -> Own:
    """A line of OpenAI's batch input; what the answer was sampled with is not known from it."""
    body = row.get("body")
    names = [
        name
        for name in ("messages", "prompt")
        if isinstance(body, dict) and body.get(name) is not None
    ]
    if len(names) != 1:
        raise SpecvizError(f'needs the body with either "messages" or "prompt" {format_got(body)}')
    inside = Fields(body, "body.")
    own = _prompt(inside) if names == ["prompt"] else _talk(inside, inside.get("messages"))
    row.take("method", "url")
    row.pass_over(inside)
    return own


def _batch_answer(row: Fields) -> Own:
    raise SpecvizError(
        "is an answer of OpenAI's batch API, which holds no prompt: give the file of requests"
    )


def _instruction(row: Fields) -> Own:
    """Alpaca and Dolly: the input stands below the instruction; the output or the response is an existing answer."""
    text = check_text("instruction", row.get("instruction"), MAX_PROMPT_CHARACTERS)
    if more := row.get("input"):
        text = f"{text}\n\n{check_text('instruction and the input', more, MAX_PROMPT_CHARACTERS)}"
    own = {**_ask(row, "instruction", text), **_answer(row)}
    output = None if "completion" in own else row.get("output")
    return own | ({} if output in (None, "") else {"completion": output})


def _first_message(row: Fields) -> Own:
    """SPEED-Bench as NeMo Skills prepares it: the turns of the user alone, without the answers in between."""
    return _talk(row, row.get("messages")[:1])


def _first_turn(row: Fields) -> Own:
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        raise SpecvizError(f"needs the turns as a list of at least one text {format_got(turns)}")
    return _ask(row, "first of the turns", turns[0])


def _samples(row: Fields, names: tuple[str, str]) -> Own:
    """Rows of token ids, as `prove --samples` and engines write them."""
    own = {
        as_own: row.get(name)
        for as_own, name in zip(("prompt", "completion"), names, strict=True)
        if name in row
    }
    for as_own, name in zip(("prompt", "completion"), names, strict=True):
        if not isinstance(own.get(as_own, []), list):
            raise SpecvizError(f"needs the {name} as a list of ids {format_got(own[as_own])}")
    return own


def _is_gsm8k(row: Fields) -> bool:
    """Whether the answer ends as those of GSM8K, and nothing else belongs to the question."""
    answer = row.peek("answer")
    last_line = answer.rstrip().rpartition("\n")[2] if isinstance(answer, str) else ""
    return bool(_GSM8K.fullmatch(last_line)) and not any(row.peek(name) for name in PASSAGES)


def _asks_only(row: Fields) -> bool:
    messages = row.peek("messages")
    return is_messages(messages) and all(
        isinstance(each, dict) and each.get("role") == "user" for each in messages
    )


FORMATS = (  # the first whose fields are all there, and that fits, reads the row
    Format(
        "HumanEval",
        ("task_id", "prompt", "entry_point"),
        lambda row: {"prompt": row.get("prompt"), "kind": ("code",)},
    ),
    Format(
        "SPEED-Bench, first turns",
        ("messages", "sub_category", "question_id"),
        _first_message,
        _asks_only,
    ),
    Format("specviz", ("prompt",), _prompt),
    Format("specviz", ("messages",), lambda row: _talk(row, row.get("messages"))),
    Format("conversations", ("conversations",), _conversation),
    Format("OpenAI batch", ("custom_id", "body"), _batch_request),
    Format("OpenAI batch", ("custom_id", "response"), _batch_answer),
    Format("token ids", ("prompt_ids",), partial(_samples, names=("prompt_ids", "ids"))),
    Format(
        "token ids",
        ("prompt_token_ids",),
        partial(_samples, names=("prompt_token_ids", "token_ids")),
    ),
    Format("Alpaca or Dolly", ("instruction",), _instruction),
    Format("SPEED-Bench, first turns", ("turns", "sub_category", "question_id"), _first_turn),
    Format("MT-Bench or Spec-Bench, first turns", ("turns",), _first_turn),
    Format(
        "GSM8K",
        ("question", "answer"),
        lambda row: {**_ask(row, "question", row.get("question")), "kind": ("math",)},
        _is_gsm8k,
    ),
    Format(
        "questions",
        ("question",),
        lambda row: {**_ask(row, "question", row.get("question")), **_answer(row)},
    ),
)
