"""Conversations: as "Role: words" lines in a plain text, for the one prompt field, and in a model's own chat form."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any

from specviz.errors import SpecvizError
from specviz.trace.values import format_got

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_RENDER_S = 5.0
MOST_OPTIONS = 32
MOST_OPTION_CHARACTERS = 1_000
ROLES = ("system", "user", "assistant")
CHAT_ROLES = (*ROLES, "developer", "tool")
REASONING = ("reasoning_content", "reasoning", "thinking")
"""What an assistant's message may call the reasoning before its answer."""
NO_OPTIONS: Mapping[str, bool | int | float | str] = MappingProxyType({})
RESERVED_OPTIONS = (
    *("self", "conversation", "conversations", "messages", "tools", "documents", "chat_template", "tokenize"),
    *("add_generation_prompt", "continue_final_message", "sanitize_control_tokens", "padding", "truncation"),
    *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
)
"""What transformers' apply_chat_template takes for itself; every other name is a switch of the template."""
_HEAD = re.compile(r"^(System|User|Assistant):[ \t]*", re.MULTILINE)
_MARK = "words of the answer"
_THINK, _THOUGHT = "<think>\n", "\n</think>\n\n"


def as_lines(messages: Sequence[Mapping[str, Any]]) -> str:
    """The messages as text that ends where the assistant's answer begins; a developer speaks as the system."""
    plain = [_as_plain(message) for message in messages]
    lines = [f"{message['role'].capitalize()}: {message['content']}" for message in plain]
    return "\n".join([*lines, "Assistant:"])


def _as_plain(message: Mapping[str, Any]) -> dict[str, str]:
    role = "system" if message["role"] == "developer" else message["role"]
    return {"role": role, "content": join_reasoning(message.get(REASONING[0], ""), message["content"])}


def join_reasoning(reasoning: str, answer: str) -> str:
    """The answer behind its reasoning, in the tags that most reasoning models write around it; without, as it is."""
    return f"{_THINK}{reasoning.strip()}{_THOUGHT}{answer}" if reasoning else answer


def as_messages(text: str) -> str | list[dict[str, str]]:
    """The messages of a text that begins with a "Role: words" line; any other text unchanged, as one user message."""
    if not _HEAD.match(text):
        return text
    _, *parts = _HEAD.split(text)
    messages = [
        {"role": role.lower(), "content": content.strip()}
        for role, content in zip(parts[::2], parts[1::2], strict=True)
    ]
    return messages[:-1] if messages[-1] == {"role": "assistant", "content": ""} else messages


def _in_time(render: Callable[[], str]) -> str:
    """What it returns. Raises TimeoutError in the midst of Python code that takes too long."""
    deadline, before = time.monotonic() + MOST_RENDER_S, sys.gettrace()

    def look(frame: FrameType, event: str, argument: object) -> Any:
        if time.monotonic() > deadline:
            raise TimeoutError(f"it takes more than {MOST_RENDER_S:g} s")
        return look

    sys.settrace(look)
    try:
        return render()
    finally:
        sys.settrace(before)


def has_chat_form(tokenizer: PreTrainedTokenizerBase) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def check_options(options: object) -> dict[str, bool | int | float | str]:
    """The switches of a chat template, such as {"enable_thinking": False}. SpecvizError for what cannot be one."""
    if not isinstance(options, Mapping) or len(options) > MOST_OPTIONS:
        raise SpecvizError(f"must be an object of at most {MOST_OPTIONS} named switches {format_got(options)}")
    for name, value in options.items():
        if not isinstance(name, str) or not name.isidentifier() or len(name) > MOST_OPTION_CHARACTERS:
            raise SpecvizError(f"must name each switch as a template does, in letters, digits and _ {format_got(name)}")
        if name in RESERVED_OPTIONS:
            raise SpecvizError(f"must not hold {name}, which is no switch of a chat template but set by specviz")
        if not isinstance(value, (bool, int, float, str)):
            raise SpecvizError(f"must hold true, false, a number or a text as {name} {format_got(value)}")
        if isinstance(value, str) and len(value) > MOST_OPTION_CHARACTERS:
            raise SpecvizError(
                f"must hold at most {MOST_OPTION_CHARACTERS:,} characters as {name} (got {len(value):,})"
            )
    return dict(options)


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str | Sequence[Mapping[str, Any]],
    options: Mapping[str, bool | int | float | str] = NO_OPTIONS,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The prompt, or a list of messages, in the model's chat form, ready for the answer. Encode it with special=False:
    it contains its start token. options: switches of the template; tools: the functions that the model may call, as
    transformers takes them. Raises SpecvizError without a template, and where it leaves out tools or their answers."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    whole = _render(tokenizer, messages, options, tools)
    for name, fewer, fewer_tools in _without_tools(messages, tools):
        if _writes_same(whole, tokenizer, fewer, options, fewer_tools):
            raise SpecvizError(f"the model's chat template leaves out the {name}")
    return whole


def render_answer(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Sequence[Mapping[str, Any]],
    answer: Mapping[str, Any],
    options: Mapping[str, bool | int | float | str] = NO_OPTIONS,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """An answer with reasoning or tool calls as the template writes it behind `render_chat` of the prompt, without what
    ends its turn. Raises SpecvizError where the template does not write them there."""
    begun = render_chat(tokenizer, prompt, options, tools)
    parts = [name for name in (REASONING[0], "tool_calls") if name in answer]
    if parts == [REASONING[0]] and not _knows(tokenizer, *REASONING):
        text = join_reasoning(answer[REASONING[0]], answer["content"])
        return text.removeprefix(_THINK) if begun.rstrip().endswith(_THINK.strip()) else text
    whole = _render(tokenizer, [*prompt, answer], options, tools, is_prompt=False)
    shorter = [[*prompt, {key: value for key, value in answer.items() if key != name}] for name in parts]
    if not whole.startswith(begun) or any(
        _writes_same(whole, tokenizer, each, options, tools, is_prompt=False) for each in shorter
    ):
        names = " and ".join(parts)
        raise SpecvizError(f"the model's chat template does not write the {names} of the last answer where it begins")
    marked = _render(tokenizer, [*prompt, {"role": "assistant", "content": _MARK}], options, tools, is_prompt=False)
    return whole.removeprefix(begun).removesuffix(marked.rpartition(_MARK)[2])


def _writes_same(whole: str, *asked: Any, **more: Any) -> bool:
    """Whether this too renders as `whole`. A template that fails now misses what was taken away."""
    try:
        return _render(*asked, **more) == whole
    except SpecvizError:
        return False


def _render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    options: Mapping[str, bool | int | float | str],
    tools: Sequence[Mapping[str, Any]],
    *,
    is_prompt: bool = True,
) -> str:
    if not has_chat_form(tokenizer):
        raise SpecvizError("this model has no chat template (it was not trained for chat); turn the chat template off")
    fitted = [_fit(tokenizer, message) for message in messages]
    more = {**options, **({"tools": list(tools)} if tools else {})}
    try:
        return _in_time(
            lambda: tokenizer.apply_chat_template(fitted, tokenize=False, add_generation_prompt=is_prompt, **more)
        )
    except Exception as error:  # the template is the model's own program: it may fail in any way
        raise SpecvizError(f"the model's chat template cannot render these messages: {error}") from error


def _fit(tokenizer: PreTrainedTokenizerBase, message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with only what the template knows: a developer is the system, and reasoning stands in the content,
    to a template that names neither."""
    fitted = dict(message)
    if fitted["role"] == "developer" and not _knows(tokenizer, "developer"):
        fitted["role"] = "system"
    if (reasoning := fitted.pop(REASONING[0], "")) and _knows(tokenizer, *REASONING):
        fitted |= {name: reasoning for name in REASONING if _knows(tokenizer, name)}
    else:
        fitted["content"] = join_reasoning(reasoning, fitted["content"])
    return fitted


def _knows(tokenizer: PreTrainedTokenizerBase, *names: str) -> bool:
    """Whether the template, or one of several, compares with one of these words or reads a field of this name."""
    template, word = tokenizer.chat_template, "|".join(names)
    text = "\n".join(map(str, template.values() if isinstance(template, Mapping) else [template]))
    return bool(re.search(rf"""\.({word})\b|(['"])({word})\2""", text))


def _without_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, list[dict[str, Any]], Sequence[Mapping[str, Any]]]]:
    """What of tools there is, by name, with the messages and the tools that are left without it."""
    if tools:
        yield "tools", [*map(dict, messages)], ()
    if any("tool_calls" in message for message in messages):
        fewer = [{name: value for name, value in each.items() if name != "tool_calls"} for each in messages]
        yield "tool calls", fewer, tools
    if any(message["role"] == "tool" and message["content"] for message in messages):
        fewer = [{**each, "content": ""} if each["role"] == "tool" else dict(each) for each in messages]
        yield "answers of tools", fewer, tools
