"""The buttons under a run that is over: why a token was rejected, another K, another prompt, a picture.

Takes what a feed knows of its run; loads no model and computes nothing again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from specviz.drafters import facts_of
from specviz.models.chat import as_messages, ready_text
from specviz.prompts import prompts_file
from specviz.trace import Header, Settings, Step
from specviz.views.explore.message import NextStep, PictureWords, TokenPlace
from specviz.views.explore.opening import num_shown, question_of
from specviz.views.explore.titles import telling_rejection
from specviz.views.words import SPACE, prose, quote, token_label

HIGH_K, LOW_K = 8, 4
DEPENDS = "Acceptance depends on the text."
MOST_ASKED = 40  # characters of a prompt on a button
MOST_QUESTION = 240  # characters of a question in a picture
MOST_START = 160  # characters of a text's start in a picture


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejected token of a run."""

    place: TokenPlace
    words: str
    worth: tuple[int, int]
    """How much it tells: what its step shows, as the opening counts it; 2 for a whole word, 1 for a part of one."""


def rejection_in(step: Step, best: Rejection | None) -> Rejection | None:
    """The most telling rejected token of a run so far. best: that of the steps before this one."""
    token = telling_rejection(step)
    if token is None:
        return best
    shown = token_label(token)
    is_word = len(shown) > 2 and shown[0] == SPACE and shown[1:].isalpha()
    has_letters = any(char.isalpha() for char in shown)
    worth = (num_shown(step), 2 if is_word else int(has_letters))
    if best is not None and worth <= best.worth:
        return best
    place = TokenPlace(step.index, str(step.draft.index(token)))
    return Rejection(place, quote(token), worth)


def next_steps(header: Header, last: Settings, rejection: Rejection | None) -> list[NextStep]:
    """The buttons of a run. last: the settings of its last step; rejection: its most telling one."""
    steps = []
    if rejection is not None:
        words = ["Why was ", rejection.words, " rejected?"]
        steps.append(NextStep(does="pin", words=words, at=rejection.place))
    prompt = header.request.get("prompt")
    if isinstance(prompt, str) and prompt:  # a run from token ids cannot be made again here
        if facts_of(last.method).under(last.params).sets_k:
            k = HIGH_K if last.k < HIGH_K else LOW_K
            steps.append(NextStep(does="run", words=[f"Try K {k}"], asks={"k": k}))
        steps.append(_ask_other(prompt, answers=_answers(header)))
    shows = _picture_words(header)
    steps.append(NextStep(does="picture", words=["Save picture"], shows=shows))
    return steps


def _answers(header: Header) -> bool:
    """Whether the run answers a question; else it goes on with a text."""
    return header.request.get("chat") is True


def _ask_other(prompt: str, *, answers: bool) -> NextStep:
    """The button for a ready prompt on which fewer drafted tokens are accepted; after that one, for an easier one."""
    ready = _ready_prompts(answers=answers)
    hard = next(text for text, is_hard in ready.items() if is_hard)
    easy = next(text for text, is_hard in ready.items() if not is_hard)
    other = easy if prompt == hard else hard
    verb = "ask" if answers else "begin"
    return NextStep(
        does="run",
        words=[f"Now {verb}: {_short(_last_words(other) if answers else other)}"],
        note=DEPENDS,
        asks={"prompt": other},
    )


@cache
def _ready_prompts(*, answers: bool) -> Mapping[str, bool]:
    """The texts of the ready prompts, each with whether it is hard; the first one is what the page begins with."""
    file = prompts_file()
    kinds: list[Mapping[str, Any]] = [file["dialogues"]] if answers else file["kinds"]
    ready = {}
    for kind in kinds:
        for prompt in kind["prompts"]:
            ready[ready_text(prompt)] = prompt.get("hard", False)
    return ready


def _last_words(prompt: str) -> str:
    """The last question of a conversation."""
    messages = as_messages(prompt)
    return messages if isinstance(messages, str) else messages[-1]["content"]


def _short(text: str) -> str:
    """The text's first line, or whole words from its beginning."""
    line, _, _ = text.partition("\n")
    if len(line) <= MOST_ASKED:
        return line
    start, _, _ = line[:MOST_ASKED].rpartition(" ")
    return f"{start} …"


def _picture_words(header: Header) -> PictureWords:
    asked = question_of(header)
    if _answers(header):
        return PictureWords(prose(asked[:MOST_QUESTION]), "")
    start = asked if len(asked) <= MOST_START else f"… {asked[-MOST_START:]}"
    return PictureWords("", prose(start))
