"""Faults of a draft by its numbers: a vocabulary that ends early, cliffs of agreement, tokens out of its reach.

Also what its confidence is worth. Numbers in, words and numbers out; models are examined by `probes`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from types import MappingProxyType

import numpy as np

from specviz.alignment.summary import (
    ENOUGH_PROMPTS,
    NOT_CALLED,
    Bin,
    Calibration,
    DraftSummary,
    Finding,
    Interval,
)
from specviz.alignment.tables.slices import (
    DraftSlice,
    Parts,
    PerPrompt,
    bucket_start,
    excludes_zero,
    interval,
)
from specviz.alignment.types import BINS, Array
from specviz.views.words import label, percent

MOST_OUTSIDE = 0.001  # of the target's probability, outside the draft's vocabulary
LEAST_FALL = 0.1  # of alpha, from one bucket to the next
LEAST_COST, LEAST_TIMES = (
    0.02,
    1.5,
)  # of alpha over all texts, by a tag; of its loss to that of all other texts
LEAST_PROMPTS = 5  # to speak of a fall at all, and of a tag
USUAL_RATIO = 0.3  # stands in for c where no costs are known
WORTH_STOPPING = 0.05  # of what is drafted
ONE_HOT = 1e-6  # a mean confidence nearer to 1 is that of a draft without a choice
NEXT_ONLY = "This looks at one drafted token at a time; for how many to draft, see Every K."
EARLY_END, LONGER_CONTEXT, OUT_OF_REACH, DOMAIN = (
    "a vocabulary that ends early", "a fall with longer context", "tokens out of reach", "a tag on which it fails"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cliff:
    """Alpha falls by `fall` from the bucket `before` to the one of `part`, over the prompts with tokens in both."""

    part: DraftSlice
    before: str
    high: float
    low: float
    num_prompts: int
    interval: Interval  # of the fall
    significant: bool

    @property
    def fall(self) -> float:
        return self.high - self.low


def cliffs(parts: Parts) -> tuple[Cliff, ...]:
    """The cliffs by depth and by context of every draft: alpha falls by LEAST_FALL or more, and the interval over
    prompts leaves out 0 with all steps of all drafts taken together. Those by context are told from the "settled"
    tokens: the first ones of a text would pass for short context."""
    steps = list(_steps(parts))
    found = (_cliff(part, before, high, low, len(steps)) for part, before, high, low in steps)
    return tuple(cliff for cliff in found if cliff is not None)


_SERIES = {"depth": "depth", "settled": "context"}  # kind of the sums -> kind of the cliffs


def _steps(parts: Parts) -> Iterator[tuple[DraftSlice, str, PerPrompt, PerPrompt]]:
    """From one bucket to the next: the part of the second, the name of the first, both over the prompts in both."""
    buckets = [part for part in parts if part.kind in _SERIES]
    buckets.sort(key=lambda part: (part.draft, part.kind, bucket_start(part.value)))
    for _, series in groupby(buckets, key=lambda part: (part.draft, part.kind)):
        for before, after in pairwise(series):
            high, low = parts[before].among(parts[after])
            if len(high) >= LEAST_PROMPTS:
                yield after._replace(kind=_SERIES[after.kind]), before.value, high, low


def _cliff(
    part: DraftSlice, before: str, high: PerPrompt, low: PerPrompt, num_asked: int
) -> Cliff | None:
    size, found = len(high), interval(high.alphas_without - low.alphas_without)
    alphas = (float(each.overlap.sum() / each.num_tokens.sum()) for each in (high, low))
    cliff = Cliff(part, before, *alphas, size, found, size >= ENOUGH_PROMPTS)
    is_fall = (
        cliff.fall >= LEAST_FALL
        and found is not None
        and excludes_zero(found, cliff.fall, size, num_asked)
    )
    return cliff if is_fall else None


def looked_for(parts: Parts) -> tuple[str, ...]:
    """What is looked for in these numbers, in plain words."""
    context = (LONGER_CONTEXT,) if any(part.kind == "context" for part, *_ in _steps(parts)) else ()
    domain = (DOMAIN,) if any(True for _ in _tagged(parts)) else ()
    return (EARLY_END, *context, OUT_OF_REACH, *domain)


def of_draft(
    draft: DraftSummary,
    found: Iterable[Cliff],
    parts: Parts = MappingProxyType({}),
    ids: tuple[int, int] | None = None,
) -> tuple[Finding, ...]:
    """The findings on one draft. ids: how many it can draft, and how many the target has, where that is known."""
    context = [
        cliff for cliff in found if cliff.part.draft == draft.name and cliff.part.kind == "context"
    ]
    steepest = max(context, key=lambda cliff: (cliff.significant, cliff.fall), default=None)
    findings = [
        _vocabulary(draft, ids),
        None if steepest is None else _context(steepest),
        _reach(draft),
    ]
    return (*(finding for finding in findings if finding is not None), *_domains(draft.name, parts))


def _vocabulary(draft: DraftSummary, ids: tuple[int, int] | None) -> Finding | None:
    if draft.ceiling is None or 1 - draft.ceiling <= MOST_OUTSIDE:
        return None
    outside, numbers = 1 - draft.ceiling, {}
    can = "It cannot draft every id of the target."
    if ids is not None and ids[0] < ids[1]:
        can, numbers = (
            "It can draft {:,} of the target's {:,} ids.".format(*ids),
            {"num_ids": ids[0]},
        )
    words = (
        f"{can} On average, {percent(outside)} of the target's probability is on the others. These are "
        f"{100 * outside:.1f} of the {100 * (1 - draft.alpha):.1f} points of agreement that are lost: the agreement "
        f"cannot exceed {draft.ceiling:.3f}."
    )
    return Finding(
        draft.name, "vocabulary", words, {"outside": outside, "ceiling": draft.ceiling, **numbers}
    )


def _domains(draft: str, parts: Parts) -> list[Finding]:
    """The tags on whose texts it clearly loses LEAST_TIMES as much as on all others, as kinds of text differ for sound
    drafts too; the costliest first. What a tag costs is what the agreement over all texts would gain if its texts
    agreed as the others do."""
    asked, found = [*_tagged({part: own for part, own in parts.items() if part.draft == draft})], []
    for part, whole, others in asked:
        alphas = [
            float(each.overlap.sum() / each.num_tokens.sum())
            for each in (parts[part], others, whole)
        ]
        cost, around = alphas[1] - alphas[2], interval(others.alphas_without - whole.alphas_without)
        is_clear = (
            excludes_zero(around, cost, len(whole), len(asked)) and len(whole) >= ENOUGH_PROMPTS
        )
        if is_clear and cost >= LEAST_COST and 1 - alphas[0] >= LEAST_TIMES * (1 - alphas[1]):
            numbers = {"cost": cost, "low": around[0], "high": around[1]}
            words = (
                f"On texts tagged {label(part.value)} ({len(parts[part])} of {len(whole)}), the agreement is "
                f"{percent(alphas[0])}; on all others, {percent(alphas[1])}. This costs {100 * cost:.1f} points of the "
                f"agreement over all texts (95 % interval {100 * around[0]:.1f} to {100 * around[1]:.1f}). Was the "
                "draft trained on such texts?"
            )
            found.append(Finding(draft, "domain", words, numbers))
    return sorted(found, key=lambda each: -each.numbers["cost"])


def _tagged(parts: Parts) -> Iterator[tuple[DraftSlice, PerPrompt, PerPrompt]]:
    """The parts that are tags with enough texts in and out of them: with all texts, and with those out of it, where
    a text within counts nothing."""
    for part, own in parts.items():
        whole = parts[DraftSlice(part.draft, "all", "all")]
        if part.kind == "tag" and LEAST_PROMPTS <= len(own) <= len(whole) - LEAST_PROMPTS:
            out = ~np.isin(whole.prompts, own.prompts)
            yield part, whole, PerPrompt(whole.prompts, whole.num_tokens * out, whole.overlap * out)


def _context(cliff: Cliff) -> Finding:
    at, (low, high) = bucket_start(cliff.part.value), cliff.interval
    falls = "falls" if cliff.significant else "seems to fall"
    called = "" if cliff.significant else f" It is {NOT_CALLED}."
    words = (
        f"The agreement {falls} off a cliff at about {at:,} tokens of context: from {cliff.high:.2f} to "
        f"{cliff.low:.2f} ({cliff.num_prompts:,} prompts, 95 % interval of the fall {low:.2f} to {high:.2f}).{called} "
        "Was the draft trained on contexts this long?"
    )
    numbers = {"at": at, "before": cliff.high, "after": cliff.low, "low": low, "high": high}
    return Finding(
        cliff.part.draft, "context", words, {**numbers, "num_prompts": cliff.num_prompts}
    )


def _reach(draft: DraftSummary) -> Finding | None:
    if draft.readable == 1:
        return None
    words = (
        f"The draft proposes nothing for {percent(1 - draft.readable)} of the tokens, so the target writes them one by "
        "one: they lie beyond its context, after a token that it has no id for, or where a lookup finds no match."
    )
    return Finding(draft.name, "reach", words, {"beyond": 1 - draft.readable})


def calibration(confidence: Array, cost_ratio: float | None) -> Calibration:
    """From the sums of q, q * q and min(p, q) by bin [BINS, 3]. cost_ratio: a drafted token over a plain target step,
    None where no costs are known."""
    drafted, squared, kept = np.asarray(confidence, dtype=np.float64).T
    total, some = max(drafted.sum(), 1e-300), np.where(drafted > 0, drafted, 1.0)
    values = zip(drafted / total, squared / some, kept / some, strict=True)
    bins = tuple(
        Bin(place / BINS, (place + 1) / BINS, float(share), float(sure), float(stays))
        for place, (share, sure, stays) in enumerate(values)
    )
    ece = sum(each.share * abs(each.confidence - each.kept) for each in bins)
    return Calibration(bins, float(ece), _stop_words(bins, cost_ratio))


def _stop_words(bins: tuple[Bin, ...], cost_ratio: float | None) -> str:
    """Whether a confidence stop pays, judged by the lowest bins, whose tokens are kept too seldom."""
    drafted = [each for each in bins if each.share > 0]
    if not drafted:
        return "No token was drafted, so the draft's confidence says nothing."
    if len(drafted) == 1 and drafted[0].confidence > 1 - ONE_HOT:
        return "Every confidence is 1, as always at temperature 0, so it says nothing."
    line, told = cost_ratio, f"c = {cost_ratio or 0:.2f}, the cost of a draft token in target steps"
    if line is None:
        line, told = USUAL_RATIO, f"{USUAL_RATIO:.2f}, used because no costs are known"
    poor = next((n for n, each in enumerate(drafted) if each.kept >= line), len(drafted))
    seldom = f"accepted, once reached, less often than {told}"
    if poor == len(drafted):
        return f"No confidence marks the tokens worth drafting: at every level they are {seldom}. {NEXT_ONLY}"
    share = sum(each.share for each in drafted[:poor])
    if share < WORTH_STOPPING:
        return f"Stopping at low confidence helps little: {percent(share)} of draft tokens are {seldom}. {NEXT_ONLY}"
    return (
        f"Stopping at low confidence could help: {percent(share)} of draft tokens have a confidence below "
        f"{drafted[poor - 1].high:.1f}, and they are {seldom}. {NEXT_ONLY}"
    )
