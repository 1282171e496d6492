"""Every K of a finished run, sent once: what the sentence, the numbers and the lanes show while a person drags K.

Where the text leaves nothing to chance (temperature 0, proposals without a model), the lanes are those of a real run.
Elsewhere each token has its exact chance to be drafted and accepted: no rejection is invented. Loads no model but a
target that is named.
"""

from itertools import accumulate

import numpy as np

from specviz.analysis import whatif
from specviz.analysis.given_text import GivenText, is_own_plan, judge_run
from specviz.analysis.whatif import Array, Chances
from specviz.drafters import facts_of
from specviz.errors import SpecvizError
from specviz.trace import Step, Trace
from specviz.trace.metrics import METRICS
from specviz.views.blocks import Props
from specviz.views.explore.inspector import ref_of
from specviz.views.explore.steps import ACCEPTED
from specviz.views.words import drafted_nodes, percent, quantity, token_label

MOST_K = 16
KINDS = (
    "resampled",
    "bonus",
    "plain",
    "accepted",
)  # of a step's last token; accepted: the text ends within the step
SURE = " The lanes below are those of a real run with this K."
LIKELY = " Each cell shows the exact chance that the token is drafted and accepted."


def every_k(recorded: Trace, target: str | None = None) -> Props:
    """target: for methods that read the text again with it.

    by_k: for K = 1, 2, ... its sentence, totals, and either `steps` (tokens accepted, tokens drafted, place in
    `kinds`) or `chances` (per token a place in `labels`, each [words, width]). tokens: [text, step, ref] each; drafted:
    place in the text -> what the run drafted there and behind it, from the rejected token on; own: the K whose lanes
    are the run's own. Only `refusal`, a sentence, where this run does not tell of another K.
    """
    try:
        judged = _judge(recorded, target)
    except SpecvizError as error:
        reason, _, _ = str(error).partition(";")  # what can be asked instead is for other places
        return {"refusal": f"No other K here: {reason}."}
    is_sure, labels = bool(np.isin(judged.chances.accept, (0, 1)).all()), {}
    shown = _sure(judged.chances) if is_sure else _likely(judged.chances, labels)
    last, ks = recorded.steps[-1].settings, {step.settings.k for step in recorded.steps}
    is_own = is_own_plan(recorded) and len(ks) == 1
    return {
        "own": last.k if is_own else None,
        "at": min(last.k, MOST_K),
        "sure": is_sure,
        "by_k": [_about(recorded, k, *each, is_own, is_sure) for k, each in enumerate(shown, 1)],
        "tokens": [
            [token_label(each), step.index, ref_of(each)]
            for step in recorded.steps
            for each in step.emitted
        ],
        "drafted": _drafted(recorded, judged) if is_sure else {},
        "kinds": KINDS,
        "labels": [[words, width] for words, width in labels.items()],
    }


def _judge(recorded: Trace, target: str | None) -> GivenText:
    """The text of a run that drafted chains. Raises SpecvizError."""
    for settings in (step.settings for step in recorded.steps):
        method = facts_of(settings.method).under(settings.params)
        if method.drafts_as not in ("chain", "nothing"):
            raise SpecvizError(
                f"this run drafted {method.drafts_as}s ({method.title}), and K is the length of a chain"
            )
    return judge_run(recorded, target=target, deepest=MOST_K)


Shown = tuple[float, float, float, Props]
"""Target calls, tokens judged, tokens accepted, and what the lanes are made from."""


def _sure(chances: Chances) -> list[Shown]:
    shown = []
    for k in range(1, MOST_K + 1):
        cut, depths = whatif.split_into_steps(chances, chances.accept == 1, k), chances.depths(k)
        starts = accumulate(cut.lengths, initial=0)
        steps = [
            [length - (kind != "accepted"), int(depths[start]), KINDS.index(kind)]
            for start, length, kind in zip(starts, cut.lengths, cut.kinds, strict=False)
        ]
        accepted = sum(number for number, *_ in steps)
        judged = accepted + cut.kinds.count("resampled")
        shown.append((len(steps), judged, accepted, {"steps": steps}))
    return shown


def _likely(chances: Chances, labels: dict[str, float]) -> list[Shown]:
    """labels: words of a chance -> its width in percent; it is filled."""
    shown = []
    for k in range(1, MOST_K + 1):
        judged, accepted = whatif.fates_along_text(chances, k)
        calls = float(whatif.start_chances(chances, [k]).sum())
        shown.append(
            (
                calls,
                float(judged.sum()),
                float(accepted.sum()),
                {"chances": _places(accepted, labels)},
            )
        )
    return shown


def _places(accepted: Array, labels: dict[str, float]) -> list[int]:
    words = [percent(chance) for chance in accepted.tolist()]
    for each, chance in zip(words, accepted.tolist(), strict=True):
        labels.setdefault(each, round(100 * chance, 1))
    order = {each: place for place, each in enumerate(labels)}
    return [order[each] for each in words]


def _about(
    recorded: Trace,
    k: int,
    calls: float,
    judged: float,
    accepted: float,
    lanes: Props,
    is_own: bool,
    is_sure: bool,
) -> Props:
    how = "With " if is_own else "With speculative sampling and "
    number = (
        quantity(round(calls), "target call")
        if is_sure
        else f"{calls:,.1f} target calls on average"
    )
    made = sum(step.calls["target"] for step in recorded.steps)
    own = f" with K {recorded.steps[-1].settings.k}" if is_own else ""
    words = f", this text takes {number}. This run made {made:,}{own}.{SURE if is_sure else LIKELY}"
    kept = METRICS["acceptance_rate_judged"].spell(accepted / judged) if judged else ""
    totals = {
        "tokens_per_call": f"{len(recorded.tokens) / calls:.1f}",
        "accepted": kept,
        "accepted_words": ACCEPTED,
    }
    return {"k": k, "sentence": [how, f"K {k}", words], "totals": totals, **lanes}


def _drafted(recorded: Trace, judged: GivenText) -> dict[str, list[str]]:
    """At temperature 0 a draft model writes the same wherever its step began."""
    known = {}
    starts = accumulate((len(step.emitted) for step in recorded.steps), initial=0)
    for start, step in zip(starts, recorded.steps, strict=False):
        place, texts = _rejected(step)
        is_its = (
            facts_of(step.settings.method).is_plain and step.settings.draft_model == judged.draft
        )
        if texts and is_its:
            known[str(start + place)] = texts
    return known


def _rejected(step: Step) -> tuple[int, list[str]]:
    """How far behind the step's start its rejected token stands, and the texts from it on."""
    drafted = [step.draft[node] for node in drafted_nodes(step)]
    place = next(
        (place for place, token in enumerate(drafted) if token.status == "rejected"), len(drafted)
    )
    return place, [token_label(token) for token in drafted[place:]]
