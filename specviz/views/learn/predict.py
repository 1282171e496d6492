"""Predict the verdict: a recorded run as a game. Per place the text before it and both models' odds; then what befell.

Everything is computed here: what betting on the likelier side would have got so far, too. What is to be guessed lies in
packed data and in nothing that a page shows before the guess. Loads no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from specviz.rules.facts import facts_of
from specviz.trace.counters import Counters
from specviz.trace.file import DraftToken, Step, Trace
from specviz.views.blocks import packed, words
from specviz.views.explore.inspector import LOG_TICKS, NUMBERS, looks
from specviz.views.explore.sentences import PERCENT, Sentence, apart, flowing, named, percent
from specviz.views.explore.steps import step_props

MOST_PLACES = 20
PROMPT_SHOWN = 400  # characters of a prompt, its end
UNDECIDED = "undecided"
ASKED = ("axis", "rows", "foot", "view")  # what a look may show before the guess
NO_DARTS = (
    "This run has no place to guess at: a dart is thrown only where speculative sampling judges a drafted token that "
    "has no siblings."
)
Props = dict[str, Any]


def predict_block(traces: Mapping[str, Trace]) -> Props:
    """The game over these runs by their titles; words where none of them has a place to guess at."""
    runs = [[title, packed(game)] for title, trace in traces.items() if (game := predict_props(trace)) is not None]
    if not runs:
        return words(NO_DARTS)
    return {"kind": "predict", "runs": runs, "look_numbers": NUMBERS, "log_ticks": LOG_TICKS}


def predict_props(trace: Trace) -> Props | None:
    """The first places of a run in reading order, each with the pieces of text since the place before; None where
    there are none."""
    places, bets = [], _Bets()
    for step, node, before, after, look in _walk(trace):
        token = step.draft[node]
        bets.take(token)
        places.append(
            {
                "step": step.index,
                "ref": str(node),
                "before": before,
                "after": after,
                "ask": _asked(step, node),
                "look": look,
                "kept": token.status == "accepted",
                "bet": bets.words(),
            }
        )
        if len(places) == MOST_PLACES:
            break
    return {"prompt": _prompt(trace), "places": places, "learned": bets.learned()} if places else None


class _Bets:
    """What always betting on the likelier side has got, and could expect to."""

    def __init__(self) -> None:
        self._num = self._right = 0
        self._expected = 0.0

    def take(self, token: DraftToken) -> None:
        chance = token.accept_prob or 0.0
        self._num += 1
        self._right += (chance >= 0.5) == (token.status == "accepted")
        self._expected += max(chance, 1 - chance)

    @property
    def _share(self) -> float:
        return self._expected / self._num

    def words(self) -> str:
        return f"{self._right} of {self._num} (on average {percent(self._share)})"

    def learned(self) -> Sentence:
        lead = "Always betting on the likelier side would have been right "
        if self._share > 1 - 1e-9:
            return [lead, f"{self._right} of {self._num}", " times: at temperature 0 nothing is left to chance."]
        return [
            lead,
            f"{self._right} of {self._num}",
            " times here, and over many games ",
            percent(self._share),
            " of the time. Nobody can do better for long: the odds tell how often such a token is kept, the dart alone "
            "which one. A token that was cut may still be a fine word.",
        ]


def _nodes(step: Step) -> Iterator[int]:
    """The drafted tokens of a step at which a dart can be guessed."""
    if not facts_of(step.settings.rule).is_plain or step.is_tree:
        return
    told = {position.child for position in step.positions}
    for node, token in enumerate(step.draft):
        has_dart = token.is_judged and None not in (token.u, token.accept_prob, token.p_judged)
        if has_dart and node in told:
            yield node


def _walk(trace: Trace) -> Iterator[tuple[Step, int, list[list[str]], list[list[str]], Props]]:
    """Every place with the pieces since the one before, the pieces that its verdict gives, and its whole look."""
    counters, waiting = Counters(), []
    for step in trace.steps:
        counters.add(step)
        props = step_props(step, counters)
        left, nodes = props["pieces"], set(map(str, _nodes(step)))
        while left:
            (text, status, ref), *left = left
            if ref not in nodes:
                waiting.append([text, status])
                continue
            after = [[text, status]]
            if status == "rejected" and left:  # what came in its place
                (text, status, _), *left = left
                after.append([text, status])
            yield step, int(ref), waiting, after, props["looks"][ref]
            waiting = []


def _asked(step: Step, node: int) -> Props:
    """The look without what the guess is about: no dart, no verdict, no token that came instead."""
    look = looks(replace(step, emitted=()))[str(node)]
    return {name: look[name] for name in ASKED} | {"status": UNDECIDED, "title": _question(step.draft[node])}


def _question(token: DraftToken) -> Sentence:
    p = token.p_judged or 0.0
    if token.q is None:
        return ["The draft proposed ", named(token), f" without odds, which counts as 100\u00a0%. The target gave it "
                f"{percent(p)}. Kept or cut?"]  # fmt: skip
    target, drafted = _as_the_bars_say(p, token.q)
    return ["The draft gave ", named(token), f" {drafted}, the target {target}. Kept or cut?"]


def _as_the_bars_say(p: float, q: float) -> tuple[str, str]:
    """Both odds as they stand beside their bars; with more digits only where these would not tell them apart."""
    if p == q or percent(p) != percent(q):
        return percent(p), percent(q)
    target, drafted = apart(p, q)
    return f"{target}{PERCENT}", f"{drafted}{PERCENT}"


def _prompt(trace: Trace) -> str:
    text = trace.header.prompt.text if trace.header is not None else ""
    return flowing(text) if len(text) <= PROMPT_SHOWN else f"… {flowing(text[-PROMPT_SHOWN:])}"
