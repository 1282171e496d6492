"""Conversations: as "Role: words" lines in a plain text, for the one prompt field, and in a model's own chat form."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from specviz.errors import SpecvizError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_RENDER_S = 5.0
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


def render_chat(tokenizer: PreTrainedTokenizerBase, prompt: str | Sequence[Mapping[str, str]]) -> str:
    """The prompt, or a list of {"role", "content"} messages, in the model's chat form, ready for the answer. Encode it
    with special=False: it contains its start token. Raises SpecvizError without a template."""
    if not has_chat_form(tokenizer):
        raise SpecvizError("this model has no chat template (it was not trained for chat); turn the chat template off")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(item) for item in prompt]
    try:
        return _in_time(lambda: tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # the template is the model's own program: it may fail in any way
        raise SpecvizError(f"the model's chat template cannot render these messages: {error}") from error
