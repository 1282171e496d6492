"""Conversations, as "Role: words" lines in a plain text for the one prompt field, and in a model's own chat form."""

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
MOST_SWITCHES = 32  # of a template
MOST_LETTERS = 100  # of a switch's name
ROLES = ("system", "user", "assistant")
CHAT_ROLES = (*ROLES, "developer", "tool")
REASONING = ("reasoning_content", "reasoning", "thinking")
"""The names that an assistant's message may have for the reasoning before its answer."""
NO_OPTIONS: Mapping[str, Option] = MappingProxyType({})
_HEAD = re.compile(r"^(System|User|Assistant):[ \t]*", re.MULTILINE)
_MARK = "words of the answer"
_THINK = "<think>\n"
_THOUGHT = "\n</think>\n\n"


def as_lines(messages: Sequence[Mapping[str, Any]]) -> str:
    """The messages as text that ends where the assistant's answer begins; a developer speaks as the system."""
    plain = [_as_plain(message) for message in messages]
    lines = [f"{message['role'].capitalize()}: {message['content']}" for message in plain]
    return "\n".join([*lines, "Assistant:"])


def ready_text(prompt: Mapping[str, Any]) -> str:
    """The text of a ready prompt: a lone question as it is, a longer conversation as plain lines."""
    messages = prompt.get("messages", ())
    if len(messages) == 1:
        return messages[0]["content"]
    return prompt.get("text") or as_lines(messages)


def _as_plain(message: Mapping[str, Any]) -> dict[str, str]:
    role = "system" if message["role"] == "developer" else message["role"]
    content = join_reasoning(message.get(REASONING[0], ""), message["content"])
    return {"role": role, "content": content}


def join_reasoning(reasoning: str, answer: str) -> str:
    """The answer after its reasoning, in the tags that most reasoning models write; the answer alone without any."""
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
    """Runs the work and returns its result. Raises TimeoutError inside Python code that takes too long."""
    deadline = time.monotonic() + MOST_RENDER_S
    earlier_trace = sys.gettrace()

    def check_time(frame: FrameType, event: str, argument: object) -> Any:
        if time.monotonic() > deadline:
            raise TimeoutError(f"it takes more than {MOST_RENDER_S:g} s")
        return check_time

    sys.settrace(check_time)
    try:
        return work()
    finally:
        sys.settrace(earlier_trace)


def has_chat_form(tokenizer: PreTrainedTokenizerBase) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str | Sequence[Mapping[str, Any]],
    options: Mapping[str, Option] = NO_OPTIONS,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The prompt, or a list of messages, in the model's chat form, ready for the answer.

    Encode it with special=False: it contains its start token. options: switches of the template. tools: the functions
    that the model may call, as transformers takes them. Raises SpecvizError without a template, for an option that the
    template does not name, and if it leaves out tools or their answers.
    """
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
    """An answer with reasoning or tool calls, as the template writes it after the prompt that `render_chat` gives.

    The end of its turn is left out. Raises SpecvizError if the template does not write them there.
    """
    begun = render_chat(tokenizer, prompt, options, tools)
    parts = [name for name in (REASONING[0], "tool_calls") if name in answer]
    if parts == [REASONING[0]] and not _knows(tokenizer, *REASONING):
        text = join_reasoning(answer[REASONING[0]], answer["content"])
        return text.removeprefix(_THINK) if begun.rstrip().endswith(_THINK.strip()) else text
    whole = _render(tokenizer, [*prompt, answer], options, tools, is_prompt=False)
    is_complete = whole.startswith(begun)
    for name in parts:
        messages = [*prompt, _without(answer, name)]
        if is_complete and _writes_same(
            whole, tokenizer, messages, options, tools, is_prompt=False
        ):
            is_complete = False
    if not is_complete:
        names = " and ".join(parts)
        raise SpecvizError(
            f"the model's chat template does not write the {names} of the last answer where it begins"
        )
    marked_answer = {"role": "assistant", "content": _MARK}
    marked = _render(tokenizer, [*prompt, marked_answer], options, tools, is_prompt=False)
    _, _, end_of_turn = marked.rpartition(_MARK)
    return whole.removeprefix(begun).removesuffix(end_of_turn)


def _without(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != name}


def _writes_same(whole: str, *arguments: Any, **options: Any) -> bool:
    """Whether these arguments render as `whole` too. A template that fails now needs the part that was taken away."""
    try:
        return _render(*arguments, **options) == whole
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
    arguments = {**options, "tokenize": False, "add_generation_prompt": is_prompt}
    if tools:
        arguments["tools"] = list(tools)
    try:
        return _in_time(lambda: tokenizer.apply_chat_template(fitted, **arguments))
    except Exception as error:  # the template is the model's own program: it may fail in any way
        raise SpecvizError(
            f"the model's chat template cannot render these messages: {error}"
        ) from error


def _fit(tokenizer: PreTrainedTokenizerBase, message: Mapping[str, Any]) -> dict[str, Any]:
    """The message in words that the template knows.

    If it knows no developer, the system speaks. If it knows no reasoning, the reasoning stands in the content.
    """
    fitted = dict(message)
    if fitted["role"] == "developer" and not _knows(tokenizer, "developer"):
        fitted["role"] = "system"
    reasoning = fitted.pop(REASONING[0], "")
    if reasoning and _knows(tokenizer, *REASONING):
        fitted |= {name: reasoning for name in REASONING if _knows(tokenizer, name)}
    else:
        fitted["content"] = join_reasoning(reasoning, fitted["content"])
    return fitted


def _knows(tokenizer: PreTrainedTokenizerBase, *names: str) -> bool:
    """Whether the template, or one of several, compares with one of these words or reads a field of this name."""
    template = tokenizer.chat_template
    templates = template.values() if isinstance(template, Mapping) else [template]
    text = "\n".join(map(str, templates))
    word = "|".join(names)
    return bool(re.search(rf"""\.({word})\b|(['"])({word})\2""", text))


def _without_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, list[dict[str, Any]], Sequence[Mapping[str, Any]]]]:
    """Each part of a conversation that concerns tools: its name, and the messages and tools without it."""
    if tools:
        yield "tools", [*map(dict, messages)], ()
    if any("tool_calls" in message for message in messages):
        yield "tool calls", [_without(message, "tool_calls") for message in messages], tools
    emptied: list[dict[str, Any]] = []
    has_answers = False
    for message in messages:
        fewer = dict(message)
        if message["role"] == "tool":
            has_answers = has_answers or bool(message["content"])
            fewer["content"] = ""
        emptied.append(fewer)
    if has_answers:
        yield "answers of tools", emptied, tools


def _check_options(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Option]) -> None:
    reserved = _provided(tokenizer)
    switches = chat_switches(tokenizer)
    for name in options:
        if name in reserved:
            raise SpecvizError(
                f"chat_options cannot set {name!r:.80}: specviz or the tokenizer sets it"
            )
    for name in options:
        if name not in switches:
            words = f"it has {', '.join(switches)}" if switches else "it has none"
            raise SpecvizError(f"this model's chat template has no option {name!r:.80}; {words}")


def chat_switches(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """The names that the chat template reads and nobody sets, such as enable_thinking; the messages do not count.

    Empty without a template, or if it is no program.
    """
    if not has_chat_form(tokenizer):
        return ()
    try:
        names = _in_time(lambda: _names_read(tokenizer.get_chat_template()))
    except Exception:  # as in render_chat, which will say what is wrong
        return ()
    found = sorted(name for name in names - _provided(tokenizer) if len(name) <= MOST_LETTERS)
    return tuple(found[:MOST_SWITCHES])


def _names_read(template: str) -> set[str]:
    """The names that a template reads from outside.

    A name that the template sets somewhere counts only if it also asks whether the name is defined. Otherwise the
    template sets and reads it under the same condition.
    """
    from jinja2 import meta, nodes

    tree = _parse(template)
    stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    tests = [test for test in tree.find_all(nodes.Test) if test.name in ("defined", "undefined")]
    tested = {test.node.name for test in tests if isinstance(test.node, nodes.Name)}
    return meta.find_undeclared_variables(tree) - (stored - tested)


def _parse(template: str) -> Template:
    """The syntax tree of a chat template, with the tags that transformers adds to the language."""
    from jinja2 import nodes
    from jinja2.ext import Extension, LoopControlExtension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag {% generation %}, which marks the part that the assistant wrote."""

        tags: ClassVar = {"generation"}

        def parse(self, parser: Parser) -> list[nodes.Node]:
            parser.stream.skip(1)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(extensions=[Generation, LoopControlExtension])
    # these are then not worked out, however large their result
    environment.intercepted_binops = frozenset({"*", "**"})
    return environment.parse(template)


def _provided(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """The names that a template gets from jinja2, transformers and the tokenizer, and the arguments of its call."""
    from jinja2.defaults import DEFAULT_NAMESPACE

    call = inspect.signature(tokenizer.apply_chat_template).parameters
    special = {*tokenizer.SPECIAL_TOKENS_ATTRIBUTES, *tokenizer.special_tokens_map}
    return {*DEFAULT_NAMESPACE, *call, *special, "messages", "raise_exception", "strftime_now"}
