"""You are the draft model: one game as blocks: the last turn in words with the line to type in and the score, and, from
the first turn on, the stage's own message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specviz.trace.file import Step, Trace
from specviz.trace.metrics import METRICS, metrics
from specviz.views.blocks import packed
from specviz.views.explore.inspector import focus
from specviz.views.explore.sentences import ENDINGS, Sentence, counted, flowing, label, named, visible
from specviz.views.explore.titles import last_token, telling_cut

MOST_LETTERS = 24  # of the last word, where it is spelled
ENDED_BY_HAND = "You finished here. A new game begins from the same text or another one."
PER_CALL = "tokens_per_target_call"
Props = dict[str, Any]


class RivalTurn(Protocol):
    drafted: Sequence[str]
    num_kept: int
    num_emitted: int


class Ending(Protocol):
    letters: str
    goes_on: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why typed words were not judged, and the words, to be mended."""

    why: str
    typed: str


def turns_blocks(block: Props, trace: Trace, message: str) -> list[Props]:
    """The game's block, and the text on a stage behind it. message: what a stage shows of the trace; empty: nothing."""
    if not message or not trace.steps:
        return [block]
    at = [len(trace.steps) - 1, focus(trace.steps[-1])]
    return [block, {"kind": "turns-stage", "game": block["game"], "feed": packed(message), "focus": at}]


def turns_block(
    game: str, setup: Mapping[str, str], trace: Trace, rivals: Sequence[RivalTurn], *, prompt: str, rival: str | None,
    most: int, ending: Ending | None = None, refusal: Refusal | None = None,
) -> Props:  # fmt: skip
    """game: its id, empty before the first turn; setup: what a first turn sends along; rival: the draft model's name;
    most: characters of a turn; ending: the letters that the text ends with; refusal: of what was just typed."""
    is_begun = bool(trace.steps)
    return {
        "kind": "turns",
        "game": game,
        "setup": dict(setup),
        "prompt": "" if is_begun else flowing(prompt),
        "most": most,
        "said": _said(trace, rivals),
        "join": None if ending is None else _join(ending),
        "problem": "" if refusal is None else visible(f"{refusal.why[:1].upper()}{refusal.why[1:]}."),
        "typed": "" if refusal is None else refusal.typed,
        "can_finish": is_begun,
        "end": "" if trace.footer is None else _end(trace.footer.reason),
        "tiles": _tiles(trace, rivals, rival),
    }


def _said(trace: Trace, rivals: Sequence[RivalTurn]) -> list[Sentence]:
    """What became of the last turn, and what the draft model did in its place."""
    if not trace.steps:
        return []
    said = [_judged(trace.steps[-1])]
    if rivals:
        theirs = rivals[-1]
        drafted = f"“{visible(''.join(theirs.drafted)).strip()}”"
        gave = counted(theirs.num_emitted, "token")
        kept = f": {theirs.num_kept} of {len(theirs.drafted)} kept, {gave} for one target call."
        said.append(["In the same place the draft model wrote ", drafted, kept])
    return said


def _join(ending: Ending) -> Props:
    """The one choice where the text ends in a letter: with a space or without, and what looks likelier."""
    letters = visible(ending.letters[-MOST_LETTERS:])
    what = "which looks like the beginning of a word" if ending.goes_on else "which looks like a whole word"
    return {
        "words": ["The text ends with ", f"“{letters}”", f", {what}."],
        "label": "go on without a space",
        "is_on": ending.goes_on,
        "letters": letters,
    }


def _end(reason: str) -> str:
    return ENDED_BY_HAND if reason == "stopped" else f"{ENDINGS[reason].capitalize()}."


def _judged(step: Step) -> Sentence:
    kept = sum(token.status == "accepted" for token in step.draft)
    cut, last = telling_cut(step), last_token(step)
    lead = f"You typed {counted(len(step.draft), 'token')}: "
    gave = f". That makes {counted(len(step.emitted), 'token')} for one target call."
    if last is None:
        return [f"{lead}{kept} kept, and there the text ends{gave}"]
    if cut is None:
        return [f"{lead}all kept, and the same call added ", named(last), f" for free{gave}"]
    return [f"{lead}{kept} kept, then ", named(cut), " was cut and replaced by ", named(last), gave]


def _tiles(trace: Trace, rivals: Sequence[RivalTurn], rival: str | None) -> list[list[str]]:
    """The score as [number, words]."""
    if not trace.steps:
        return []
    turns = counted(len(trace.steps), "turn")
    tiles = [[_spelled(metrics(trace)[PER_CALL]), f"your tokens per target call, in {turns}"]]
    if rivals:
        theirs = sum(each.num_emitted for each in rivals) / len(rivals)
        name = label(rival or "the draft model")
        tiles.append([_spelled(theirs), f"{name}, measured in the same places with as many tokens"])
    return [*tiles, [_spelled(1.0), "one by one, without a draft"]]


def _spelled(number: float) -> str:
    return METRICS[PER_CALL].spell(number)
