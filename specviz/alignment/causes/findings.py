"""Faults of a draft by its numbers: a vocabulary that ends early, cliffs of agreement, tokens out of its reach, tags.

Also whether a stop at low confidence pays. Takes numbers, returns findings in words; `probes` examines the models.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from specviz.alignment.causes.verdict import LEAST_GAIN, least_explained
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

LEAST_FALL = 0.1  # of alpha, from one bucket to the next
LEAST_TIMES = 1.5  # of the loss on other texts, on those with a tag
LEAST_PROMPTS = 5  # to speak of a fall at all, and of a tag
USUAL_RATIO = 0.3  # stands in for c where no costs are known
WORTH_STOPPING = 0.05  # of draft tokens
ONE_HOT = 1e-6  # a mean confidence nearer to 1 belongs to a draft without a choice
NEXT_ONLY = "This looks at one drafted token at a time; for how many to draft, see Every K."
EARLY_END = "a vocabulary that ends early"
LONGER_CONTEXT = "a fall with longer context"
OUT_OF_REACH = "tokens out of reach"
DOMAIN = "a tag on which it fails"


@dataclass(frozen=True, slots=True)
class Cliff:
    """A fall of alpha from one bucket of tokens to the next, over the prompts with tokens in both."""

    part: DraftSlice
    """The bucket after the fall."""
    before: str
    """The bucket before the fall."""
    high: float
    """Alpha before the fall."""
    low: float
    """Alpha after the fall."""
    num_prompts: int
    interval: Interval  # of the fall
    significant: bool

    @property
    def fall(self) -> float:
        return self.high - self.low


def cliffs(parts: Parts) -> tuple[Cliff, ...]:
    """The cliffs by depth and by context of every draft.

    Alpha falls by LEAST_FALL or more, and the interval over prompts leaves out 0 as one of all steps of all drafts.
    Cliffs by context are judged by "settled" tokens: the first tokens of a text would pass for short context.
    """
    steps = list(_steps(parts))
    found = []
    for part, before, high, low in steps:
        cliff = _find_cliff(part, before, high, low, len(steps))
        if cliff is not None:
            found.append(cliff)
    return tuple(found)


_SERIES = {"depth": "depth", "settled": "context"}  # kind of the sums -> kind of the cliffs


def _steps(parts: Parts) -> Iterator[tuple[DraftSlice, str, PerPrompt, PerPrompt]]:
    """Pairs of neighbouring buckets: the part of the second, the name of the first, and the sums of each.

    The sums are over the prompts with tokens in both buckets.
    """
    buckets = [part for part in parts if part.kind in _SERIES]
    buckets.sort(key=lambda part: (part.draft, part.kind, bucket_start(part.value)))
    for before, after in pairwise(buckets):
        if (before.draft, before.kind) != (after.draft, after.kind):
            continue
        high, low = parts[before].among(parts[after])
        if len(high) >= LEAST_PROMPTS:
            yield after._replace(kind=_SERIES[after.kind]), before.value, high, low


def _find_cliff(
    part: DraftSlice, before: str, high: PerPrompt, low: PerPrompt, num_asked: int
) -> Cliff | None:
    size = len(high)
    fall_interval = interval(high.alphas_without - low.alphas_without)
    if fall_interval is None:
        return None
    is_enough = size >= ENOUGH_PROMPTS
    cliff = Cliff(part, before, _alpha(high), _alpha(low), size, fall_interval, is_enough)
    is_large = cliff.fall >= LEAST_FALL
    is_cliff = is_large and excludes_zero(fall_interval, cliff.fall, size, num_asked)
    return cliff if is_cliff else None


def _alpha(sums: PerPrompt) -> float:
    """The agreement over all tokens of all prompts."""
    return float(sums.overlap.sum() / sums.num_tokens.sum())


def looked_for(parts: Parts) -> tuple[str, ...]:
    """What is looked for in these numbers, in plain words."""
    words = [EARLY_END]
    if any(part.kind == "context" for part, *_ in _steps(parts)):
        words.append(LONGER_CONTEXT)
    words.append(OUT_OF_REACH)
    if any(True for _ in _tag_sums(parts)):
        words.append(DOMAIN)
    return tuple(words)


def of_draft(
    draft: DraftSummary,
    found: Iterable[Cliff],
    parts: Parts = MappingProxyType({}),
    ids: tuple[int, int] | None = None,
) -> tuple[Finding, ...]:
    """The findings on one draft.

    found: the cliffs of all drafts. ids: how many ids the draft can write and how many the target has; None: not known.
    """
    falls = []
    for cliff in found:
        if cliff.part.draft == draft.name and cliff.part.kind == "context":
            falls.append(cliff)
    findings = [_vocabulary(draft, ids)]
    if falls:
        findings.append(_context(max(falls, key=lambda cliff: (cliff.significant, cliff.fall))))
    findings += [_reach(draft), *_domains(draft.name, parts)]
    return tuple(finding for finding in findings if finding is not None)


def _vocabulary(draft: DraftSummary, ids: tuple[int, int] | None) -> Finding | None:
    if draft.ceiling is None or 1 - draft.ceiling < least_explained(draft.alpha):
        return None
    outside = 1 - draft.ceiling
    numbers = {"explained": outside, "ceiling": draft.ceiling}
    reach = "It cannot draft every id of the target."
    if ids is not None and ids[0] < ids[1]:
        num_draft, num_target = ids
        reach = f"It can draft {num_draft:,} of the target's {num_target:,} ids."
        numbers["num_ids"] = num_draft
    words = (
        f"{reach} On average, {percent(outside)} of the target's probability is on the others. These are "
        f"{100 * outside:.1f} of the {100 * (1 - draft.alpha):.1f} points of agreement that are lost: the agreement "
        f"cannot exceed {draft.ceiling:.3f}."
    )
    return Finding(draft.name, "vocabulary", words, numbers)


def _domains(draft: str, parts: Parts) -> list[Finding]:
    """The tags on which the draft clearly loses LEAST_TIMES as much as on other texts, the costliest first.

    Kinds of text differ for sound drafts too. The cost of a tag is what the agreement over all texts would gain if its
    texts agreed as the others do.
    """
    tagged = list(_tag_sums({part: sums for part, sums in parts.items() if part.draft == draft}))
    findings = []
    for part, whole, others in tagged:
        alpha = _alpha(parts[part])
        alpha_others = _alpha(others)
        cost = alpha_others - _alpha(whole)
        least = least_explained(_alpha(whole))
        is_large = cost >= least and 1 - alpha >= LEAST_TIMES * (1 - alpha_others)
        cost_interval = interval(others.alphas_without - whole.alphas_without)
        is_clear = excludes_zero(cost_interval, cost, len(whole), len(tagged))
        if not is_large or not is_clear or len(whole) < ENOUGH_PROMPTS:
            continue
        low, high = cost_interval
        words = (
            f"On texts tagged {label(part.value)} ({len(parts[part])} of {len(whole)}), the agreement is "
            f"{percent(alpha)}; on all others, {percent(alpha_others)}. This costs {100 * cost:.1f} points of the "
            f"agreement over all texts (95 % interval {100 * low:.1f} to {100 * high:.1f}). Was the "
            "draft trained on such texts?"
        )
        numbers = {"explained": cost, "low": low, "high": high}
        findings.append(Finding(draft, "domain", words, numbers))
    return sorted(findings, key=lambda finding: -finding.numbers["explained"])


def _tag_sums(parts: Parts) -> Iterator[tuple[DraftSlice, PerPrompt, PerPrompt]]:
    """Every tag with enough texts in and out of it: its part, the sums of all texts, the sums of the other texts.

    The last keep a place for every text, with zeros for texts that have the tag.
    """
    for part, sums in parts.items():
        whole = parts[DraftSlice(part.draft, "all", "all")]
        if part.kind == "tag" and LEAST_PROMPTS <= len(sums) <= len(whole) - LEAST_PROMPTS:
            is_other = ~np.isin(whole.prompts, sums.prompts)
            num_tokens = whole.num_tokens * is_other
            yield part, whole, PerPrompt(whole.prompts, num_tokens, whole.overlap * is_other)


def _context(cliff: Cliff) -> Finding:
    start = bucket_start(cliff.part.value)
    low, high = cliff.interval
    if cliff.significant:
        falls = "falls"
        caution = ""
    else:
        falls = "seems to fall"
        caution = f" It is {NOT_CALLED}."
    words = (
        f"The agreement {falls} off a cliff at about {start:,} tokens of context: from {cliff.high:.2f} to "
        f"{cliff.low:.2f} ({cliff.num_prompts:,} prompts, 95 % interval of the fall {low:.2f} to {high:.2f}).{caution} "
        "Was the draft trained on contexts this long?"
    )
    numbers = {
        "at": start,
        "before": cliff.high,
        "after": cliff.low,
        "low": low,
        "high": high,
        "num_prompts": cliff.num_prompts,
    }
    return Finding(cliff.part.draft, "context", words, numbers)


def _reach(draft: DraftSummary) -> Finding | None:
    if 1 - draft.readable < LEAST_GAIN:
        return None
    words = (
        f"The draft proposes nothing for {percent(1 - draft.readable)} of the tokens, so the target writes them one by "
        "one: they lie beyond its context, after a token that it has no id for, or where a lookup finds no match."
    )
    return Finding(draft.name, "reach", words, {"beyond": 1 - draft.readable})


def calibration(confidence: Array, cost_ratio: float | None) -> Calibration:
    """The draft's confidence against how often its tokens are accepted.

    confidence: the sums of q, q * q and min(p, q) by bin [BINS, 3]. cost_ratio: the time of a drafted token over a
    target step; None where no costs are known.
    """
    drafted, squared, accepted = np.asarray(confidence, dtype=np.float64).T  # [BINS] each
    total = max(drafted.sum(), 1e-300)
    divisor = np.where(drafted > 0, drafted, 1.0)
    shares = (drafted / total).tolist()
    mean_confidence = (squared / divisor).tolist()
    mean_accepted = (accepted / divisor).tolist()
    bins = []
    for place in range(BINS):
        low = place / BINS
        high = (place + 1) / BINS
        bins.append(Bin(low, high, shares[place], mean_confidence[place], mean_accepted[place]))
    ece = sum(found.share * abs(found.confidence - found.accepted) for found in bins)
    return Calibration(tuple(bins), ece, _stop_words(bins, cost_ratio))


def _stop_words(bins: Sequence[Bin], cost_ratio: float | None) -> str:
    """Whether it pays to stop a draft at low confidence: it does where the lowest bins are accepted too seldom."""
    drafted = [found for found in bins if found.share > 0]
    if not drafted:
        return "No token was drafted, so the draft's confidence says nothing."
    if len(drafted) == 1 and drafted[0].confidence > 1 - ONE_HOT:
        return "Every confidence is 1, as always at temperature 0, so it says nothing."
    if cost_ratio is None:
        threshold = USUAL_RATIO
        threshold_words = f"{USUAL_RATIO:.2f}, used because no costs are known"
    else:
        threshold = cost_ratio
        threshold_words = f"c = {cost_ratio:.2f}, the cost of a draft token in target steps"
    seldom = f"accepted, once reached, less often than {threshold_words}"
    num_poor = 0
    while num_poor < len(drafted) and drafted[num_poor].accepted < threshold:
        num_poor += 1
    if num_poor == len(drafted):
        return f"No confidence marks the tokens worth drafting: at every level they are {seldom}. {NEXT_ONLY}"
    share = sum(found.share for found in drafted[:num_poor])
    if share < WORTH_STOPPING:
        return f"Stopping at low confidence helps little: {percent(share)} of draft tokens are {seldom}. {NEXT_ONLY}"
    return (
        f"Stopping at low confidence could help: {percent(share)} of draft tokens have a confidence below "
        f"{drafted[num_poor - 1].high:.1f}, and they are {seldom}. {NEXT_ONLY}"
    )
