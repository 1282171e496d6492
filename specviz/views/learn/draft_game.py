"""The blocks of the game "You are the draft model": the last turn in words, the input line, the score, the stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from specviz.trace import Step, Trace
from specviz.trace.metrics import METRICS, metrics
from specviz.views.blocks import PageBlock, PageRecord, pack
from specviz.views.explore.inspector import focus
from specviz.views.explore.titles import last_token, telling_rejection
from specviz.views.words import ENDINGS, Sentence, label, prose, quantity, quote, reveal

if TYPE_CHECKING:
    from specviz.lessons.draft_game import Ending, Rival

MOST_LETTERS = 24  # of the last word, where it is spelled
END_WORDS = {reason: f"{words.capitalize()}." for reason, words in ENDINGS.items()}
END_WORDS["stopped"] = "You finished here. Begin a new game from this text or another one."
PER_CALL = "tokens_per_target_call"


class JoinChoice(PageRecord):
    """The choice to go on without a space where the text ends in a letter."""

    words: Sentence
    label: str
    is_on: bool
    letters: str  # the last letters of the text


class DraftGameBlock(PageBlock, tag="draft_game"):
    """The game: the last turn in words, the line to type in, the score."""

    game: str  # its id; "" before the first turn
    setup: Mapping[str, str]  # values that the first turn sends
    prompt: str  # "" from the first turn on
    most: int  # characters of a turn
    said: Sequence[Sentence]  # the verdicts of the last turn
    join: JoinChoice | None
    problem: str  # why the typed words were not judged
    typed: str
    can_finish: bool
    end: str  # why the game is over
    tiles: Sequence[tuple[str, str]]  # the score: numbers and words


class DraftGameStageBlock(PageBlock, tag="draft-game-stage"):
    """A stage with the text of the game."""

    game: str
    feed: str  # what the stage shows, packed
    focus: tuple[int, str]  # the step and the token to begin with


def turns_blocks(
    game: str, setup: Mapping[str, str], trace: Trace, rivals: Sequence[Rival], *, prompt: str, rival: str | None,
    most: int, message: str = "", ending: Ending | None = None, refusal: str = "", typed: str = "",
) -> list[PageBlock]:  # fmt: skip
    """The game's block, and from the first turn on a stage with its text.

    game: its id, empty before the first turn. setup: values that the first turn sends. rival: the draft model's name.
    most: the number of characters that a turn may have. message: what the stage shows. ending: the letters at the end
    of the text. refusal: why the words `typed` were not judged; the player can change them.
    """
    is_begun = bool(trace.steps)
    problem = reveal(f"{refusal[:1].upper()}{refusal[1:]}.") if refusal else ""
    block = DraftGameBlock(
        game=game,
        setup=setup,
        prompt="" if is_begun else prose(prompt),
        most=most,
        said=_turn_words(trace, rivals),
        join=None if ending is None else _join_choice(ending),
        problem=problem,
        typed=typed,
        can_finish=is_begun,
        end="" if trace.footer is None else END_WORDS[trace.footer.reason],
        tiles=_tiles(trace, rivals, rival),
    )
    if not is_begun:
        return [block]
    at = (len(trace.steps) - 1, focus(trace.steps[-1]))
    return [block, DraftGameStageBlock(game, pack(message), at)]


def _turn_words(trace: Trace, rivals: Sequence[Rival]) -> list[Sentence]:
    """The verdict on the last turn, and the verdict on the draft model after the same text."""
    if not trace.steps:
        return []
    sentences = [_verdict_words(trace.steps[-1])]
    if rivals:
        rival = rivals[-1]
        drafted = f"“{reveal(''.join(rival.drafted)).strip()}”"
        gave = f"{quantity(rival.num_emitted, 'token')} for one target call."
        accepted = f": {rival.num_accepted} of {len(rival.drafted)} accepted, {gave}"
        sentences.append(["In the same place the draft model wrote ", drafted, accepted])
    return sentences


def _join_choice(ending: Ending) -> JoinChoice:
    letters = reveal(ending.letters[-MOST_LETTERS:])
    looks_like = "the beginning of a word" if ending.goes_on else "a whole word"
    words = ["The text ends with ", f"“{letters}”", f", which looks like {looks_like}."]
    return JoinChoice(words, "go on without a space", ending.goes_on, letters)


def _verdict_words(step: Step) -> Sentence:
    """The verdict on the tokens of one turn."""
    num_accepted = sum(token.status == "accepted" for token in step.draft)
    rejected = telling_rejection(step)
    last = last_token(step)
    lead = f"You typed {quantity(len(step.draft), 'token')}: "
    gain = f". That makes {quantity(len(step.emitted), 'token')} for one target call."
    if last is None:
        return [f"{lead}{num_accepted} accepted, and there the text ends{gain}"]
    if rejected is None:
        return [f"{lead}all accepted, and the same call added ", quote(last), f" for free{gain}"]
    return [
        f"{lead}{num_accepted} accepted, then ",
        quote(rejected),
        " was rejected and resampled as ",
        quote(last),
        gain,
    ]


def _tiles(trace: Trace, rivals: Sequence[Rival], rival: str | None) -> list[tuple[str, str]]:
    """The score as (number, words)."""
    if not trace.steps:
        return []
    spell = METRICS[PER_CALL].spell
    turns = quantity(len(trace.steps), "turn")
    tiles = [(spell(metrics(trace)[PER_CALL]), f"your tokens per target call, in {turns}")]
    if rivals:
        mean = sum(turn.num_emitted for turn in rivals) / len(rivals)
        name = label(rival or "the draft model")
        tiles.append((spell(mean), f"{name}, measured in the same places with as many tokens"))
    return [*tiles, (spell(1.0), "without a draft")]
