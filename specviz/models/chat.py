"""Conversations: as "Role: words" lines in a plain text, for the one prompt field, and in a model's own chat form."""

from __future__ import annotations

import inspect
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
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
NO_OPTIONS: Mapping[str, Option] = MappingProxyType({})
ROLES = ("system", "user", "assistant")
_HEAD = re.compile(r"^(System|User|Assistant):[ \t]*", re.MULTILINE)


def as_lines(messages: Sequence[Mapping[str, str]]) -> str:
    """The messages as text that ends where the assistant's answer begins."""
    lines = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
    return "\n".join([*lines, "Assistant:"])


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
    prompt: str | Sequence[Mapping[str, str]],
    options: Mapping[str, Option] = NO_OPTIONS,
) -> str:
    """The prompt, or a list of {"role", "content"} messages, in the model's chat form, ready for the answer. Encode it
    with special=False: it contains its start token. options: values of the template's switches. Raises SpecvizError
    without a template, and for an option that it does not name."""
    if not has_chat_form(tokenizer):
        raise SpecvizError("this model has no chat template (it was not trained for chat); turn the chat template off")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(item) for item in prompt]
    if options:
        _check_options(tokenizer, options)
    asked = {**options, "tokenize": False, "add_generation_prompt": True}
    try:
        return _in_time(lambda: tokenizer.apply_chat_template(messages, **asked))
    except Exception as error:  # the template is the model's own program: it may fail in any way
        raise SpecvizError(f"the model's chat template cannot render these messages: {error}") from error


def _check_options(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Option]) -> None:
    reserved, switches = _provided(tokenizer), chat_switches(tokenizer)
    if taken := [name for name in options if name in reserved]:
        raise SpecvizError(f"chat_options cannot set {taken[0]!r:.80}: specviz or the tokenizer sets it")
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

    return ImmutableSandboxedEnvironment(extensions=[Generation, LoopControlExtension]).parse(template)


def _provided(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """The names that a template gets from jinja2, transformers and the tokenizer, and the arguments of its call."""
    from jinja2.defaults import DEFAULT_NAMESPACE

    call = inspect.signature(tokenizer.apply_chat_template).parameters
    special = {*tokenizer.SPECIAL_TOKENS_ATTRIBUTES, *tokenizer.special_tokens_map}
    return {*DEFAULT_NAMESPACE, *call, *special, "messages", "raise_exception", "strftime_now"}
