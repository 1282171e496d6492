"""Compares the chat forms of two tokenizers by three dialogues; templates are untrusted programs, and may fail."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from specviz.errors import SpecvizError
from specviz.models.chat import NO_OPTIONS, has_chat_form, render_chat
from specviz.views.words import label

SHOWN_CHARACTERS = 24  # before and after the first difference
USER = {"role": "user", "content": "What is two and two?"}
ANSWER = {"role": "assistant", "content": "Four."}
DIALOGUES = (
    ("one question", (USER,)),
    ("a system message and a question", ({"role": "system", "content": "Answer briefly."}, USER)),
    (
        "a question, an answer and a question",
        (USER, ANSWER, {"role": "user", "content": "And three?"}),
    ),
)
"""The dialogues that both chat forms render: name and messages."""


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    chat_template: Any

    def apply_chat_template(
        self, conversation: Sequence[dict[str, str]], **options: Any
    ) -> str: ...


def chat_difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """The difference of the two chat forms, in words.

    None where three dialogues render alike, or neither tokenizer has a template.
    """
    target_has_form = has_chat_form(target)
    if target_has_form != has_chat_form(draft):
        has, lacks = ("target", "draft") if target_has_form else ("draft", "target")
        return f"the {has} has a chat template and the {lacks} has none"
    for name, messages in DIALOGUES:
        difference = _dialogue_difference(name, messages, target, draft)
        if difference is not None:
            return difference
    return None


def chat_words(target: Tokenizer, draft: Tokenizer) -> str:
    """How the two chat forms compare, in words."""
    difference = chat_difference(target, draft)
    if difference is not None:
        return f"differs: {difference}"
    if not has_chat_form(target):
        return "neither model has a chat template"
    is_one = target.chat_template == draft.chat_template
    return "the same template" if is_one else "two templates that render three dialogues alike"


def _dialogue_difference(
    name: str, messages: Sequence[dict[str, str]], target: Tokenizer, draft: Tokenizer
) -> str | None:
    """The difference of the two forms of one dialogue, in words; None where they are alike."""
    ours = render(target, messages)
    theirs = render(draft, messages)
    if ours == theirs:
        return None
    if ours is None or theirs is None:
        refuses = "target" if ours is None else "draft"
        return f"{name}: the {refuses}'s chat template refuses it, the other does not"
    place = 0
    while ours[place : place + 1] == theirs[place : place + 1]:
        place += 1
    after = "at once"
    if place:
        after = f"after {_quote(ours[max(0, place - SHOWN_CHARACTERS) : place])}"
    ours_next = _quote(ours[place : place + SHOWN_CHARACTERS])
    theirs_next = _quote(theirs[place : place + SHOWN_CHARACTERS])
    return (
        f"{name}: {after} the target's chat format continues with {ours_next}, the draft's with "
        f"{theirs_next}"
    )


def render(
    tokenizer: Tokenizer,
    messages: str | Sequence[Mapping[str, Any]],
    options: Mapping[str, bool | int | float | str] = NO_OPTIONS,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str | None:
    """The messages, or one question, in the tokenizer's chat form.

    None where the tokenizer has no chat form or refuses the messages.
    """
    try:
        return render_chat(tokenizer, messages, options, tools)
    except SpecvizError:
        return None


def _quote(text: str) -> str:
    return f'"{label(text)}"' if text else "nothing"
