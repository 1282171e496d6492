"""Conversations: as "Role: words" lines in a plain text, for the one prompt field, and in a model's own chat form."""

from __future__ import annotations

import inspect
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from specviz.errors import SpecvizError
from specviz.request import Option

if TYPE_CHECKING:
    from jinja2.nodes import Template
    from transformers import PreTrainedTokenizerBase

Result = TypeVar("Result")

MOST_RENDER_S = 5.0
MOST_SWITCHES, MOST_LETTERS = 32, 100  # of a template, and of the name of one
ROLES = ("system", "user", "assistant")
CHAT_ROLES = (*ROLES, "developer", "tool")
REASONING = ("reasoning_content", "reasoning", "thinking")
"""What an assistant's message may call the reasoning before its answer."""
NO_OPTIONS: Mapping[str, Option] = MappingProxyType({})
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
    return {
        "role": role,
        "content": join_reasoning(message.get(REASONING[0], ""), message["content"]),
    }


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


def _in_time(work: Callable[[], Result]) -> Result:
    """What it returns. Raises TimeoutError in the midst of Python code that takes too long."""
    deadline, before = time.monotonic() + MOST_RENDER_S, sys.gettrace()

    def look(frame: FrameType, event: str, argument: object) -> Any:
        if time.monotonic() > deadline:
            raise TimeoutError(f"it takes more than {MOST_RENDER_S:g} s")
        return look

    sys.settrace(look)
    try:
        return work()
    finally:
        sys.settrace(before)


def has_chat_form(tokenizer: PreTrainedTokenizerBase) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str | Sequence[Mapping[str, Any]],
    options: Mapping[str, Option] = NO_OPTIONS,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The prompt, or a list of messages, in the model's chat form, ready for the answer. Encode it with special=False:
    it contains its start token. options: switches of the template; tools: the functions that the model may call, as
    transformers takes them. Raises SpecvizError without a template, for an option that it does not name, and where it
    leaves out tools or their answers."""
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
    options: Mapping[str, Option] = NO_OPTIONS,
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
    shorter = [
        [*prompt, {key: value for key, value in answer.items() if key != name}] for name in parts
    ]
    if not whole.startswith(begun) or any(
        _writes_same(whole, tokenizer, each, options, tools, is_prompt=False) for each in shorter
    ):
        names = " and ".join(parts)
        raise SpecvizError(
            f"the model's chat template does not write the {names} of the last answer where it begins"
        )
    marked = _render(
        tokenizer,
        [*prompt, {"role": "assistant", "content": _MARK}],
        options,
        tools,
        is_prompt=False,
    )
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
    options: Mapping[str, Option],
    tools: Sequence[Mapping[str, Any]],
    *,
    is_prompt: bool = True,
) -> str:
    if not has_chat_form(tokenizer):
        raise SpecvizError(
            "this model has no chat template (it was not trained for chat); turn the chat template off"
        )
    if options:
        _check_options(tokenizer, options)
    fitted = [_fit(tokenizer, message) for message in messages]
    asked = {**options, "tokenize": False, "add_generation_prompt": is_prompt} | (
        {"tools": list(tools)} if tools else {}
    )
    try:
        return _in_time(lambda: tokenizer.apply_chat_template(fitted, **asked))
    except Exception as error:  # the template is the model's own program: it may fail in any way
        raise SpecvizError(
            f"the model's chat template cannot render these messages: {error}"
        ) from error


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
        fewer = [
            {name: value for name, value in each.items() if name != "tool_calls"}
            for each in messages
        ]
        yield "tool calls", fewer, tools
    if any(message["role"] == "tool" and message["content"] for message in messages):
        fewer = [
            {**each, "content": ""} if each["role"] == "tool" else dict(each) for each in messages
        ]
        yield "answers of tools", fewer, tools


def _check_options(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Option]) -> None:
    reserved, switches = _provided(tokenizer), chat_switches(tokenizer)
    if taken := [name for name in options if name in reserved]:
        raise SpecvizError(
            f"chat_options cannot set {taken[0]!r:.80}: specviz or the tokenizer sets it"
        )
    if unknown := [name for name in options if name not in switches]:
        names = f"it has {', '.join(switches)}" if switches else "it has none"
        raise SpecvizError(f"this model's chat template has no option {unknown[0]!r:.80}; {names}")


def chat_switches(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """The names that the chat template reads and nobody sets, such as enable_thinking; the messages are none. Empty
    without a template, or where it is no program."""
    if not has_chat_form(tokenizer):
        return ()
    try:
        names = _in_time(lambda: _names_read(tokenizer.get_chat_template()))
    except Exception:  # as in render_chat, which will say what is wrong
        return ()
    found = sorted(name for name in names - _provided(tokenizer) if len(name) <= MOST_LETTERS)
    return tuple(found[:MOST_SWITCHES])


def _names_read(template: str) -> set[str]:
    """The names that a template reads from outside. A name that it sets somewhere counts only where it asks whether
    the name is defined: else it is set under one condition and read under the same."""
    from jinja2 import meta, nodes

    tree = _parse(template)
    own = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    tests = [test for test in tree.find_all(nodes.Test) if test.name in ("defined", "undefined")]
    asked = {test.node.name for test in tests if isinstance(test.node, nodes.Name)}
    return meta.find_undeclared_variables(tree) - (own - asked)


def _parse(template: str) -> Template:
    """The syntax tree of a chat template, with the tags that transformers adds to the language."""
    from jinja2 import nodes
    from jinja2.ext import Extension, LoopControlExtension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %}: the part that the assistant wrote."""

        tags: ClassVar = {"generation"}

        def parse(self, parser: Parser) -> list[nodes.Node]:
            parser.stream.skip(1)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(extensions=[Generation, LoopControlExtension])
    environment.intercepted_binops = frozenset(
        {"*", "**"}
    )  # which are then not worked out, however large their result
    return environment.parse(template)


def _provided(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """The names that a template gets from jinja2, transformers and the tokenizer, and the arguments of its call."""
    from jinja2.defaults import DEFAULT_NAMESPACE

    call = inspect.signature(tokenizer.apply_chat_template).parameters
    special = {*tokenizer.SPECIAL_TOKENS_ATTRIBUTES, *tokenizer.special_tokens_map}
    return {*DEFAULT_NAMESPACE, *call, *special, "messages", "raise_exception", "strftime_now"}
