"""Where two chat templates differ: three standard dialogues by both tokenizers, and the first difference in words.

Templates are untrusted programs: one that fails refuses the dialogue. Loads no torch by itself.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Protocol

from specviz.errors import SpecvizError
from specviz.models.chat import has_chat_form, render_chat
from specviz.views.explore.sentences import label

SHOWN_CHARACTERS = 24  # before and after the first difference
USER = {"role": "user", "content": "What is two and two?"}
ANSWER = {"role": "assistant", "content": "Four."}
DIALOGUES = (
    ("one question", (USER,)),
    ("a system message and a question", ({"role": "system", "content": "Answer briefly."}, USER)),
    ("a question, an answer and a question", (USER, ANSWER, {"role": "user", "content": "And three?"})),
)


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    chat_template: Any

    def apply_chat_template(self, conversation: Sequence[dict[str, str]], **options: Any) -> str: ...


def chat_difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """Where the two chat forms differ, in words; None where three dialogues render alike, or neither has a template."""
    ours, theirs = has_chat_form(target), has_chat_form(draft)
    if ours != theirs:
        has, lacks = ("target", "draft") if ours else ("draft", "target")
        return f"the {has} has a chat template and the {lacks} has none"
    differences = (_difference(name, messages, target, draft) for name, messages in DIALOGUES)
    return next(filter(None, differences), None)


def _difference(name: str, messages: Sequence[dict[str, str]], target: Tokenizer, draft: Tokenizer) -> str | None:
    ours, theirs = _render(target, messages), _render(draft, messages)
    if ours == theirs:
        return None
    if ours is None or theirs is None:
        refuses = "target" if ours is None else "draft"
        return f"{name}: the {refuses}'s chat template refuses it, the other does not"
    place = len([*takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))])
    after = f"after {_quote(ours[max(0, place - SHOWN_CHARACTERS) : place])} " if place else "at once "
    ours, theirs = (_quote(text[place : place + SHOWN_CHARACTERS]) for text in (ours, theirs))
    return f"{name}: {after}the target's chat form goes on with {ours}, the draft's with {theirs}"


def _render(tokenizer: Tokenizer, messages: Sequence[dict[str, str]]) -> str | None:
    try:
        return render_chat(tokenizer, messages)
    except SpecvizError:
        return None


def _quote(text: str) -> str:
    return f'"{label(text)}"' if text else "nothing"
