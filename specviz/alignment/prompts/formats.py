"""The formats of rows (`FORMATS`): specviz's own, public prompt sets, the rows of training and serving tools.

Each format returns a row's fields under specviz's names and leaves other fields unread. Errors go on after "line 7".
"""

import re
import reprlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from specviz.alignment.prompts.fields import Fields, check_text
from specviz.alignment.prompts.messages import MOST_MESSAGES, is_messages
from specviz.alignment.prompts.rows import is_usable_id, is_usable_tag, join_tags
from specviz.errors import SpecvizError
from specviz.models.chat import ROLES
from specviz.request import MAX_PROMPT_CHARACTERS
from specviz.trace.values import format_got

Values = dict[str, Any]
"""The fields of a row under specviz's names."""
OTHER_IDS = ("prompt_id", "question_id", "task_id", "custom_id")
SYSTEM = ("system", "system_prompt")
PASSAGES = ("context", "passage")
UNREADABLE = (
    *("functions", "documents", "history"),
    *("image", "images", "audio", "audios", "video", "videos"),
)
"""Fields that change what the model reads and that are not read here."""
SPEAKERS = {"human": "user", "gpt": "assistant", "chatgpt": "assistant"}
SPEAKERS |= {role: role for role in ROLES}
"""The speakers of ShareGPT's conversations -> their roles."""
_GSM8K = re.compile(r"#### ?-?\$?[\d.,/]+%?")


class Format(NamedTuple):
    """A format of rows."""

    name: str
    fields: Sequence[str]
    """The fields that such a row must have."""
    read: Callable[[Fields], Values]
    """Returns such a row in specviz's fields."""
    fits: Callable[[Fields], bool] = lambda row: True
    """Whether a row with these fields is of this format."""


def read_values(row: Fields) -> tuple[str, Values]:
    """The name of the row's format, and the row's fields under specviz's names."""
    found = _find_format(row)
    values = {**row.take("completion", "sampled"), **found.read(row)}
    id_name = _find_id_name(row)
    if id_name is not None:
        values["id"] = row.get(id_name)
    more_tags = [*values.pop("kind", ())]
    if is_usable_tag(row.peek("category")):
        more_tags.append(row.get("category"))
    values["tags"] = join_tags(row.get("tags", ()), more_tags)
    return found.name, values


def _find_format(row: Fields) -> Format:
    for item in FORMATS:
        if all(name in row for name in item.fields) and item.fits(row):
            return item
    allowed = ", ".join(dict.fromkeys(f'"{item.fields[0]}"' for item in FORMATS[1:]))
    raise SpecvizError(
        f'has neither "prompt" nor "messages" (its fields: {reprlib.repr([*row])}; formats are known by {allowed})'
    )


def _find_id_name(row: Fields) -> str | None:
    """The field that holds the row's id; None where it has none that can be used."""
    if "id" in row:
        return "id"
    return next((name for name in OTHER_IDS if is_usable_id(row.peek(name))), None)


# ---- what stands beside a conversation -------------------------------------------------------------------------------


def _in_chat(row: Fields, **values: Any) -> Values:
    """The given fields, with the others that a chat server reads: system message, tools, switches of the template."""
    for name in UNREADABLE:
        if row.peek(name):
            raise SpecvizError(f'has "{name}", which belongs to the prompt and cannot be read')
        row.get(name)
    values |= row.take("tools", "chat_template_kwargs")
    for name in SYSTEM:
        system = row.get(name)
        if system:
            values["system"] = check_text(name, system, MAX_PROMPT_CHARACTERS)
    return values


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


def _ask(row: Fields, name: str, text: object) -> Values:
    """A message of the user that asks the question, behind its passage."""
    text = _behind_passage(row, check_text(name, text, MAX_PROMPT_CHARACTERS))
    return _in_chat(row, messages=[{"role": "user", "content": text}])


def _answer(row: Fields) -> Values:
    """The response as the completion, unless the row has a completion."""
    response = row.peek("response")
    if "completion" in row or not isinstance(response, str) or not response:
        return {}
    return {"completion": row.get("response")}


# ---- formats ---------------------------------------------------------------------------------------------------------


def _prompt(row: Fields) -> Values:
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
        values = {**_in_chat(row), **_answer(row)}
        if "system" in values:
            values["messages"] = [{"role": "user", "content": text}]
        else:
            values["prompt"] = text
        return values
    return talk if prompt == "" else {**talk, "prompt": prompt}


def _conversational(row: Fields, prompt: list[object]) -> Values:
    """A prompt of messages, as TRL has it. A completion of messages continues the conversation."""
    completion = row.peek("completion")
    if not is_messages(completion):
        return _talk(row, prompt)
    return {**_talk(row, [*prompt, *completion]), "completion": None}


def _talk(row: Fields, messages: object) -> Values:
    return _in_chat(row, messages=messages, passage=_passage(row))


def _conversation(row: Fields) -> Values:
    """ShareGPT's turns. Turns may also be messages as OpenAI has them."""
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


def _batch_request(row: Fields) -> Values:
    """A line of OpenAI's batch input. It does not tell how an answer was sampled."""
    body = row.get("body")
    inside = Fields(body if isinstance(body, dict) else {}, "body.")
    if ("messages" in inside) == ("prompt" in inside):
        raise SpecvizError(f'needs the body with either "messages" or "prompt" {format_got(body)}')
    values = _prompt(inside) if "prompt" in inside else _talk(inside, inside.get("messages"))
    row.take("method", "url")
    row.pass_over(inside)
    return values


def _batch_answer(row: Fields) -> Values:
    raise SpecvizError(
        "is an answer of OpenAI's batch API, which holds no prompt: give the file of requests"
    )


def _instruction(row: Fields) -> Values:
    """A row of Alpaca or Dolly: an instruction, its input below; the output or the response is an existing answer."""
    text = check_text("instruction", row.get("instruction"), MAX_PROMPT_CHARACTERS)
    more = row.get("input")
    if more:
        more = check_text("instruction and the input", more, MAX_PROMPT_CHARACTERS)
        text = f"{text}\n\n{more}"
    values = {**_ask(row, "instruction", text), **_answer(row)}
    if "completion" not in values:
        output = row.get("output")
        if output not in (None, ""):
            values["completion"] = output
    return values


def _first_message(row: Fields) -> Values:
    """The first message of a SPEED-Bench row as NeMo Skills prepares it: the user's turns, without answers."""
    return _talk(row, row.get("messages")[:1])


def _first_turn(row: Fields) -> Values:
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        raise SpecvizError(f"needs the turns as a list of at least one text {format_got(turns)}")
    return _ask(row, "first of the turns", turns[0])


def _samples(row: Fields, names: tuple[str, str]) -> Values:
    """A row of token ids, as `prove --samples` and engines write it. names: of the prompt's and the text's fields."""
    values = {}
    pairs = list(zip(("prompt", "completion"), names, strict=True))
    for value_name, name in pairs:
        if name in row:
            values[value_name] = row.get(name)
    for value_name, name in pairs:
        if value_name in values and not isinstance(values[value_name], list):
            raise SpecvizError(
                f"needs the {name} as a list of ids {format_got(values[value_name])}"
            )
    return values


def _is_gsm8k(row: Fields) -> bool:
    """Whether the answer ends as answers of GSM8K do, and the row has no passage."""
    answer = row.peek("answer")
    last_line = answer.rstrip().rpartition("\n")[2] if isinstance(answer, str) else ""
    return bool(_GSM8K.fullmatch(last_line)) and not any(row.peek(name) for name in PASSAGES)


def _asks_only(row: Fields) -> bool:
    """Whether all messages are of the user."""
    messages = row.peek("messages")
    if not is_messages(messages):
        return False
    return all(isinstance(turn, dict) and turn.get("role") == "user" for turn in messages)


def _human_eval(row: Fields) -> Values:
    return {"prompt": row.get("prompt"), "kind": ("code",)}


def _messages(row: Fields) -> Values:
    return _talk(row, row.get("messages"))


def _gsm8k(row: Fields) -> Values:
    return {**_ask(row, "question", row.get("question")), "kind": ("math",)}


def _question(row: Fields) -> Values:
    return {**_ask(row, "question", row.get("question")), **_answer(row)}


FORMATS = (  # the first whose fields are all there, and that fits, reads the row
    Format("HumanEval", ("task_id", "prompt", "entry_point"), _human_eval),
    Format(
        "SPEED-Bench, first turns",
        ("messages", "sub_category", "question_id"),
        _first_message,
        _asks_only,
    ),
    Format("specviz", ("prompt",), _prompt),
    Format("specviz", ("messages",), _messages),
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
    Format("GSM8K", ("question", "answer"), _gsm8k, _is_gsm8k),
    Format("questions", ("question",), _question),
)
