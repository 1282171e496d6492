"""The formats of rows (`FORMATS`): specviz's own, public prompt sets, the rows of training and serving tools.

Each format returns a row's fields under specviz's names and leaves other fields unread. Errors go on after "line 7".
"""

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from specviz.alignment.prompts.answers import find_answer
from specviz.alignment.prompts.fields import Fields, check_text
from specviz.alignment.prompts.messages import MOST_MESSAGES, is_messages, read_messages
from specviz.alignment.prompts.rows import is_usable_id, is_usable_tag, join_tags
from specviz.errors import SpecvizError
from specviz.models.chat import ROLES
from specviz.request import MAX_PROMPT_CHARACTERS
from specviz.trace.values import format_got

Values = dict[str, Any]
"""The fields of a row under specviz's names."""
OTHER_IDS = ("prompt_id", "question_id", "task_id", "custom_id", "request_id")
SYSTEM = ("system", "system_prompt")
PASSAGES = ("context", "passage")
MEDIA = (
    *("image", "images", "audio", "audios", "video", "videos"),
    *("image_data", "audio_data", "video_data", "multi_modal_data"),
)
"""Fields that change what the model reads and that are not read here, even beside token ids."""
UNREADABLE = ("functions", "documents", "history", *MEDIA)
"""Such fields beside words."""
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
    name = found.name
    request = values.pop("request", row)
    if "completion" not in values:
        answered, values = _with_answer(values, row, request)
        name += answered
    if request is not row:
        row.pass_over(request)
    id_name = _find_id_name(row)
    if id_name is not None:
        values["id"] = row.get(id_name)
    more_tags = [*values.pop("kind", ())]
    if is_usable_tag(row.peek("category")):
        more_tags.append(row.get("category"))
    values["tags"] = join_tags(row.get("tags", ()), more_tags)
    return name, values


def _with_answer(values: Values, row: Fields, request: Fields) -> tuple[str, Values]:
    """The values with the answer that an engine wrote, and what a format's name adds for it.

    Where the row has the prompt's ids, which the engine read, they count before its words.
    """
    turns = values.get("messages")
    is_answered = is_messages(turns) and _role_of(turns[-1]) == "assistant"
    answer = find_answer(row, request, is_answered=is_answered)
    if answer is None:
        return "", values
    values = {**values, "completion": answer.completion}
    if answer.prompt_ids is not None:
        if "messages" in values:
            read_messages(values["messages"], row)
        kept = {name: values[name] for name in ("completion", "sampled", "kind") if name in values}
        values = {**kept, "prompt": answer.prompt_ids}
    if "prompt" not in values and "messages" not in values:
        raise SpecvizError(
            "is an answer without its prompt: log the prompt's ids with it (return_token_ids), or join it with its "
            "request in one row, as custom_id, body and response of OpenAI's batch API or as request and response"
        )
    if answer.sampled is not None and isinstance(values.get("prompt"), list):
        values.setdefault("sampled", answer.sampled)
    return f", {answer.shape}", values


def _role_of(turn: object) -> object:
    return turn.get("role") if isinstance(turn, dict) else None


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
    _check_readable(row, UNREADABLE)
    values |= row.take("tools", "chat_template_kwargs")
    for name in SYSTEM:
        system = row.get(name)
        if system:
            values["system"] = check_text(name, system, MAX_PROMPT_CHARACTERS)
    return values


def _check_readable(row: Fields, names: Sequence[str]) -> None:
    """Refuses a row with one of these fields."""
    for name in names:
        if row.peek(name):
            raise SpecvizError(f'has "{name}", which belongs to the prompt and cannot be read')
        row.get(name)


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
        values = _in_chat(row)
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


def _request(row: Fields, name: str) -> Values:
    """A request to a server in a field of the row, as in OpenAI's batch input. Its answer may stand beside it."""
    body = row.get(name)
    inside = Fields(body if isinstance(body, dict) else {}, f"{name}.")
    asked = next((field for field in ASKED if field in inside), None)
    if asked is None:
        allowed = " or ".join(f'"{field}"' for field in ASKED)
        raise SpecvizError(f"needs the {name} with {allowed} {format_got(body)}")
    row.take("method", "url")
    return {**ASKED[asked](inside), "request": inside}


def _holds_request(row: Fields) -> bool:
    """Whether the request is an object, as servers log it, and no words."""
    return isinstance(row.peek("request"), dict)


def _is_for_sglang(row: Fields) -> bool:
    """Whether the row is more than ids that a model is trained on."""
    return any(name in row for name in ("sampling_params", "meta_info", "output_ids"))


def _is_only_asked(row: Fields) -> bool:
    """Whether the row's text is SGLang's prompt. In an answer it is what was written."""
    return "meta_info" not in row and "output_ids" not in row


def _nothing(row: Fields) -> Values:
    """An answer alone, which may hold the ids of its prompt."""
    return {}


def _instruction(row: Fields) -> Values:
    """A row of Alpaca or Dolly: an instruction, its input below; the output or the response is an existing answer."""
    text = check_text("instruction", row.get("instruction"), MAX_PROMPT_CHARACTERS)
    more = row.get("input")
    if more:
        more = check_text("instruction and the input", more, MAX_PROMPT_CHARACTERS)
        text = f"{text}\n\n{more}"
    row.get("output")  # may be empty
    return _ask(row, "instruction", text)


def _first_message(row: Fields) -> Values:
    """The first message of a SPEED-Bench row as NeMo Skills prepares it: the user's turns, without answers."""
    return _talk(row, row.get("messages")[:1])


def _first_turn(row: Fields) -> Values:
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        raise SpecvizError(f"needs the turns as a list of at least one text {format_got(turns)}")
    return _ask(row, "first of the turns", turns[0])


def _samples(row: Fields) -> Values:
    """A row of token ids, as `prove --samples` reads them."""
    values = _ids(row, "prompt_ids")
    return {**values, "completion": _ids(row, "ids")["prompt"]} if "ids" in row else values


def _ids(row: Fields, name: str) -> Values:
    """A prompt of token ids, as an engine read it."""
    ids = row.get(name)
    if not isinstance(ids, list):
        raise SpecvizError(f"needs the {name} as a list of ids {format_got(ids)}")
    _check_readable(row, MEDIA)
    return {"prompt": ids}


def _text(row: Fields) -> Values:
    """The text that SGLang was asked to continue."""
    _check_readable(row, MEDIA)
    return {"prompt": check_text("text", row.get("text"), MAX_PROMPT_CHARACTERS)}


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
    return _ask(row, "question", row.get("question"))


ASKED: Mapping[str, Callable[[Fields], Values]] = {
    "prompt_token_ids": partial(_ids, name="prompt_token_ids"),
    "input_ids": partial(_ids, name="input_ids"),
    "text": _text,
    "messages": _messages,
    "prompt": _prompt,
}
"""The fields of a request that hold what was asked; the first that is there counts."""
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
    Format("OpenAI batch", ("custom_id", "body"), partial(_request, name="body")),
    Format("request", ("request",), partial(_request, name="request"), _holds_request),
    Format("token ids", ("prompt_ids",), _samples),
    Format("token ids", ("prompt_token_ids",), partial(_ids, name="prompt_token_ids")),
    Format("SGLang", ("input_ids",), partial(_ids, name="input_ids"), _is_for_sglang),
    Format("SGLang", ("text", "sampling_params"), _text, _is_only_asked),
    Format("Alpaca or Dolly", ("instruction",), _instruction),
    Format("SPEED-Bench, first turns", ("turns", "sub_category", "question_id"), _first_turn),
    Format("MT-Bench or Spec-Bench, first turns", ("turns",), _first_turn),
    Format("GSM8K", ("question", "answer"), _gsm8k, _is_gsm8k),
    Format("questions", ("question",), _question),
    Format("answer", ("outputs",), _nothing),
    Format("answer", ("choices",), _nothing),
    Format("answer", ("response",), _nothing),
)
