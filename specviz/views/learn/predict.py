"""Predict the verdict: a recorded run as a game. A draft token has the text before it, both probabilities, a verdict.

Only packed data holds the verdicts, so that no page shows one before the guess. Loads no model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from specviz.rules.facts import facts_of
from specviz.trace import DraftToken, Step, Trace
from specviz.trace.counters import Counters
from specviz.views.blocks import PageBlock, PageRecord, WordsBlock, pack
from specviz.views.explore.inspector import LOG_TICKS, NUMBERS, looks
from specviz.views.explore.message import PieceStatus, TokenLook
from specviz.views.explore.steps import show_step
from specviz.views.words import PERCENT, Sentence, percent, percents, prose, quote

MOST_PLACES = 20
PROMPT_SHOWN = 400  # characters of a prompt, its end
NO_DRAWS = (
    "This run has nothing to guess: a random draw decides only where speculative sampling judges a draft token "
    "without siblings."
)
CERTAIN = " times: at temperature 0 nothing is left to chance."
BY_CHANCE = (
    " of the time. Nobody can do better for long: the probabilities say how often such a token is accepted, the random "
    "draw alone says which one. A rejected token may still be a fine word."
)
ASK = "Accepted or rejected?"
TextPiece = tuple[str, PieceStatus]
"""A piece of the text, and its status."""


class PlaceToGuess(PageRecord):
    """A draft token with its verdict."""

    step: int
    ref: str  # the number of its node in the draft
    before: Sequence[TextPiece]  # the text since the place before
    after: Sequence[TextPiece]  # the text of its verdict
    ask: TokenLook  # before the guess
    look: TokenLook  # after it
    accepted: bool
    bet: str  # how often betting on the likelier side was right so far


class PredictGame(PageRecord):
    """A recorded run as a game."""

    prompt: str
    places: Sequence[PlaceToGuess]
    learned: Sentence


class PredictBlock(PageBlock, tag="predict"):
    """The game over some runs."""

    runs: Sequence[tuple[str, str]]  # titles, each with its packed game
    look_numbers: Sequence[tuple[str, str]]  # of a look's numbers: label and formula
    log_ticks: Sequence[tuple[float, str]]  # places in percent on the log axis, and their labels


def predict_block(traces: Mapping[str, Trace]) -> PredictBlock | WordsBlock:
    """The game over these runs by their titles; words if no run has a verdict to guess."""
    runs = []
    for title, trace in traces.items():
        if (game := predict_props(trace)) is not None:
            runs.append((title, pack(game)))
    if not runs:
        return WordsBlock(NO_DRAWS)
    return PredictBlock(runs, NUMBERS, LOG_TICKS)


def predict_props(trace: Trace) -> PredictGame | None:
    """The first places of a run in reading order, each with the text since the place before; None without a place.

    A bet on the likelier side is right with the probability max(a, 1 - a), where a is the probability of acceptance.
    """
    places = []
    num_right = 0
    expected = 0.0
    for step, node, before, after, look in islice(_walk(trace), MOST_PLACES):
        token = step.draft[node]
        is_accepted = token.status == "accepted"
        chance = token.accept_prob or 0.0
        num_right += (chance >= 0.5) == is_accepted
        expected += max(chance, 1 - chance)
        num = len(places) + 1
        bet = f"{num_right} of {num} (on average {percent(expected / num)})"
        ask = _look_before(step, node)
        place = PlaceToGuess(step.index, str(node), before, after, ask, look, is_accepted, bet)
        places.append(place)
    if not places:
        return None
    text = trace.header.prompt.text if trace.header is not None else ""
    prompt = prose(text) if len(text) <= PROMPT_SHOWN else f"… {prose(text[-PROMPT_SHOWN:])}"
    learned = _lesson_words(num_right, len(places), expected / len(places))
    return PredictGame(prompt, places, learned)


def _lesson_words(num_right: int, num: int, share: float) -> Sentence:
    """The sentence that the bets teach. share: the expected share of right bets."""
    words = ["Always betting on the likelier side would have been right ", f"{num_right} of {num}"]
    if share > 1 - 1e-9:
        return [*words, CERTAIN]
    return [*words, " times here, and over many games ", percent(share), BY_CHANCE]


def _nodes(step: Step) -> Iterator[int]:
    """The drafted tokens of a step that speculative sampling judged, by a recorded u."""
    if not facts_of(step.settings.rule).is_plain or step.is_tree:
        return
    recorded = {position.child for position in step.positions}
    for node, token in enumerate(step.draft):
        is_known = None not in (token.u, token.accept_prob, token.p_judged)
        if node in recorded and token.is_judged and is_known:
            yield node


def _walk(
    trace: Trace,
) -> Iterator[tuple[Step, int, list[TextPiece], list[TextPiece], TokenLook]]:
    """Each place to guess, in reading order.

    Yields the step, the drafted token, the pieces of text since the place before, the pieces of its verdict, and its
    whole look.
    """
    counters = Counters()
    before: list[TextPiece] = []
    for step in trace.steps:
        counters.add(step)
        shown = show_step(step, counters)
        refs = {str(node) for node in _nodes(step)}
        pieces = iter(shown.pieces)
        for text, status, ref in pieces:
            if ref not in refs:
                before.append((text, status))
                continue
            after = [(text, status)]
            replacement = next(pieces, None) if status == "rejected" else None
            if replacement is not None:
                text, status, _ = replacement
                after.append((text, status))
            yield step, int(ref), before, after, shown.looks[ref]
            before = []


def _look_before(step: Step, node: int) -> TokenLook:
    """The look without random draw, verdict and replacement."""
    whole = looks(replace(step, emitted=()))[str(node)]
    return TokenLook(
        status="undecided",
        view=whole.view,
        title=_question(step.draft[node]),
        axis=whole.axis,
        rows=whole.rows,
        foot=whole.foot,
    )


def _question(token: DraftToken) -> Sentence:
    """The question, with both probabilities as their bars show them; more digits only if these would look equal."""
    p = token.p_judged or 0.0
    q = token.q
    if q is None:
        gave = f" without a probability, which counts as 100\u00a0%. The target gave it {percent(p)}. {ASK}"
        return ["The draft proposed ", quote(token), gave]
    target = percent(p)
    drafted = percent(q)
    if target == drafted and p != q:
        target, drafted = (f"{words}{PERCENT}" for words in percents(p, q))
    return ["The draft gave ", quote(token), f" {drafted}, the target {target}. {ASK}"]
