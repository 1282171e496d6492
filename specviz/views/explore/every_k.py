"""Every K of a finished run, sent once: the sentence, numbers and lanes that follow while a person drags K.

Where the text leaves nothing to chance (temperature 0, proposals without a model), the lanes are those of a real run.
Elsewhere each token has its exact chance to be drafted and accepted: no rejection is invented. Loads no model, except a
target that is named.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import UNSET, UnsetType

from specviz.analysis import whatif
from specviz.analysis.given_text import GivenText, is_own_plan, judge_run
from specviz.analysis.whatif import Array, Chances
from specviz.drafters import facts_of
from specviz.errors import SpecvizError
from specviz.trace import Step, Trace
from specviz.trace.metrics import METRICS
from specviz.views.explore.inspector import ref_of
from specviz.views.explore.message import EveryK, KTotals, NoOtherK, OtherK
from specviz.views.explore.steps import ACCEPTED
from specviz.views.words import drafted_nodes, percent, quantity, token_label

MOST_K = 16
# of a step's last token; accepted: the text ends within the step
KINDS = ("resampled", "bonus", "plain", "accepted")
SURE = " The lanes below are those of a real run with this K."
LIKELY = " Each cell shows the exact chance that the token is drafted and accepted."
UNKNOWN = (
    "its other drafts are unknown"  # of heads, modules and layers that cannot read the text again
)
CURVE = (96, 24)  # units of the drawing of all Ks
EDGE = 5  # of it, on all sides but the lower one


def every_k(recorded: Trace, target: str | None = None) -> EveryK | NoOtherK:
    """The run under every K from 1 to MOST_K.

    target: a model, for methods that read the text again with it.
    """
    try:
        judged = _judge(recorded, target)
    except SpecvizError as error:
        return _refuse(recorded, str(error))
    chances = judged.chances
    is_sure = bool(np.isin(chances.accept, (0, 1)).all())
    labels: dict[str, float] = {}
    lanes = _sure_lanes(chances) if is_sure else _likely_lanes(chances, labels)
    last = recorded.steps[-1].settings
    is_own = is_own_plan(recorded) and len({step.settings.k for step in recorded.steps}) == 1
    by_k = []
    for k, shown in enumerate(lanes, 1):
        by_k.append(_other_k(recorded, k, shown, is_own, is_sure))
    per_call = [len(recorded.tokens) / shown.num_calls for shown in lanes]
    tokens = []
    for step in recorded.steps:
        for token in step.emitted:
            tokens.append((token_label(token), step.index, ref_of(token)))
    return EveryK(
        own=last.k if is_own else None,
        at=min(last.k, MOST_K),
        sure=is_sure,
        by_k=by_k,
        tokens=tokens,
        drafted=_drafted(recorded, judged) if is_sure else {},
        kinds=KINDS,
        labels=list(labels.items()),
        curve=_curve(per_call),
        curve_words=_curve_words(per_call),
    )


def _refuse(recorded: Trace, reason: str) -> NoOtherK:
    """The refusal with a short reason, and the whole reason without the advice behind it, which is for other places."""
    whole, _, _ = reason.partition(";")
    short = re.split(r"[,:]| \(", whole)[0]
    used = recorded.steps[-1].settings if recorded.steps else None
    if used is not None and facts_of(used.method).under(used.params).reads_ahead:
        short = UNKNOWN
    return NoOtherK(f"No other K here: {short}.", f"No other K here: {whole}.")


def _curve(per_call: Sequence[float]) -> list[tuple[float, float]]:
    """The places of the tokens per target call for each K. The lower edge is one token per call, as without a draft."""
    width, height = CURVE
    gains = [value - 1 for value in per_call]
    most = max(*gains, 1e-9)
    places = []
    for index, gain in enumerate(gains):
        x = EDGE + (width - 2 * EDGE) * index / (len(gains) - 1)
        y = height - (height - EDGE) * gain / most
        places.append((round(x, 1), round(y, 1)))
    return places


def _curve_words(per_call: Sequence[float]) -> str:
    best = per_call.index(max(per_call))
    named = [f"{per_call[k - 1]:.1f} with K {k}" for k in sorted({1, best + 1, len(per_call)})]
    return f"tokens per pass: {', '.join(named)}"


def _judge(recorded: Trace, target: str | None) -> GivenText:
    """The text of a run that drafted chains. Raises SpecvizError."""
    for step in recorded.steps:
        method = facts_of(step.settings.method).under(step.settings.params)
        if method.drafts_as not in ("chain", "nothing"):
            raise SpecvizError(
                f"this run drafted {method.drafts_as}s ({method.title}), and K is the length of a chain"
            )
    return judge_run(recorded, target=target, deepest=MOST_K)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of one K, and the sums over them."""

    num_calls: float
    num_judged: float
    num_accepted: float
    steps: list[tuple[int, int, int]] | UnsetType = UNSET
    chances: list[int] | UnsetType = UNSET


def _sure_lanes(chances: Chances) -> list[Lanes]:
    """The lanes of a text that leaves nothing to chance, for each K."""
    by_k = []
    for k in range(1, MOST_K + 1):
        division = whatif.split_into_steps(chances, chances.accept == 1, k)
        depths = chances.depths(k)
        steps = []
        num_accepted = 0
        start = 0
        for length, kind in zip(division.lengths, division.kinds, strict=True):
            accepted = length if kind == "accepted" else length - 1
            steps.append((accepted, int(depths[start]), KINDS.index(kind)))
            num_accepted += accepted
            start += length
        num_judged = num_accepted + division.kinds.count("resampled")
        by_k.append(Lanes(len(steps), num_judged, num_accepted, steps=steps))
    return by_k


def _likely_lanes(chances: Chances, labels: dict[str, float]) -> list[Lanes]:
    """The lanes of any other text, for each K. Adds to `labels` the words of each chance -> its width in percent."""
    by_k = []
    for k in range(1, MOST_K + 1):
        judged, accepted = whatif.fates_along_text(chances, k)
        calls = float(whatif.start_chances(chances, [k]).sum())
        chances_by_place = _places(accepted, labels)
        sums = (calls, float(judged.sum()), float(accepted.sum()))
        by_k.append(Lanes(*sums, chances=chances_by_place))
    return by_k


def _places(accepted: Array, labels: dict[str, float]) -> list[int]:
    """The place of each token's chance in `labels`, to which it adds new ones."""
    words = []
    for chance in accepted.tolist():
        words.append(percent(chance))
        labels.setdefault(words[-1], round(100 * chance, 1))
    order = {label: place for place, label in enumerate(labels)}
    return [order[label] for label in words]


def _other_k(recorded: Trace, k: int, lanes: Lanes, is_own: bool, is_sure: bool) -> OtherK:
    calls = lanes.num_calls
    number = f"{calls:,.1f} target calls on average"
    if is_sure:
        number = quantity(round(calls), "target call")
    own_calls = sum(step.calls["target"] for step in recorded.steps)
    own_k = f" with K {recorded.steps[-1].settings.k}" if is_own else ""
    words = f", this text takes {number}. This run made {own_calls:,}{own_k}."
    words += SURE if is_sure else LIKELY
    how = "With " if is_own else "With speculative sampling and "
    share = ""
    if lanes.num_judged:
        share = METRICS["acceptance_rate_judged"].spell(lanes.num_accepted / lanes.num_judged)
    return OtherK(
        k=k,
        sentence=[how, f"K {k}", words],
        totals=KTotals(f"{len(recorded.tokens) / calls:.1f}", share, ACCEPTED),
        steps=lanes.steps,
        chances=lanes.chances,
    )


def _drafted(recorded: Trace, judged: GivenText) -> dict[str, list[str]]:
    """Place in the text -> the texts drafted from there on, for each step with a rejected token.

    They hold for every K: at temperature 0 a draft model writes the same wherever its step began.
    """
    known = {}
    start = 0
    for step in recorded.steps:
        place, texts = _rejected(step)
        settings = step.settings
        if texts and facts_of(settings.method).is_plain and settings.draft_model == judged.draft:
            known[str(start + place)] = texts
        start += len(step.emitted)
    return known


def _rejected(step: Step) -> tuple[int, list[str]]:
    """The distance of the rejected token from the step's start, and the drafted texts from it on."""
    drafted = [step.draft[node] for node in drafted_nodes(step)]
    statuses = [token.status for token in drafted]
    place = statuses.index("rejected") if "rejected" in statuses else len(drafted)
    return place, [token_label(token) for token in drafted[place:]]
