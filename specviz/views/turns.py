"""You are the draft model: one game as a block, with the last turn in words, the score and the stage's own message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from specviz.measures import METRICS, metrics
from specviz.trace import Step, Trace
from specviz.views.blocks import packed
from specviz.views.inspector import focus
from specviz.views.sentences import ENDINGS, Sentence, flowing, label, named, visible
from specviz.views.titles import last_token, telling_cut

PER_CALL = "tokens_per_target_call"
Props = dict[str, Any]


class RivalTurn(Protocol):
    drafted: Sequence[str]
    num_kept: int
    num_emitted: int


def turns_block(
    game: str, setup: Mapping[str, str], trace: Trace, rivals: Sequence[RivalTurn], *, prompt: str, rival: str | None,
    most: int, message: str = "",
) -> Props:  # fmt: skip
    """game: its id, empty before the first turn; setup: what a first turn sends along; rival: the draft model's name;
    most: characters of a turn; message: what a stage shows of the trace."""
    return {
        "kind": "turns",
        "game": game,
        "setup": dict(setup),
        "prompt": flowing(prompt),
        "most": most,
        "feed": packed(message) if message else None,
        "focus": [len(trace.steps) - 1, focus(trace.steps[-1])] if trace.steps else None,
        "said": _said(trace, rivals),
        "end": "" if trace.footer is None else f"{ENDINGS[trace.footer.reason].capitalize()}.",
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
        kept = f": {theirs.num_kept} of {len(theirs.drafted)} kept, {_tokens(theirs.num_emitted)} for one target call."
        said.append(["In the same place the draft model wrote ", drafted, kept])
    return said


def _judged(step: Step) -> Sentence:
    kept = sum(token.status == "accepted" for token in step.draft)
    cut, last = telling_cut(step), last_token(step)
    lead = f"You typed {_tokens(len(step.draft))}: "
    gave = f". That makes {_tokens(len(step.emitted))} for one target call."
    if last is None:
        return [f"{lead}{kept} kept, and there the text ends{gave}"]
    if cut is None:
        return [f"{lead}all kept, and the same call added ", named(last), f" for free{gave}"]
    return [f"{lead}{kept} kept, then ", named(cut), " was cut and replaced by ", named(last), gave]


def _tokens(number: int) -> str:
    return f"{number} token{'' if number == 1 else 's'}"


def _tiles(trace: Trace, rivals: Sequence[RivalTurn], rival: str | None) -> list[list[str]]:
    """The score as [number, words]."""
    if not trace.steps:
        return []
    turns = f"{len(trace.steps)} turn{'' if len(trace.steps) == 1 else 's'}"
    tiles = [[_spelled(metrics(trace)[PER_CALL]), f"your tokens per target call, in {turns}"]]
    if rivals:
        theirs = sum(each.num_emitted for each in rivals) / len(rivals)
        name = label(rival or "the draft model")
        tiles.append([_spelled(theirs), f"{name}, measured in the same places with as many tokens"])
    return [*tiles, [_spelled(1.0), "one by one, without a draft"]]


def _spelled(number: float) -> str:
    return METRICS[PER_CALL].spell(number)
