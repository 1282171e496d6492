"""Sets what an engine counted beside what its draft's files allow on the same texts, and says what may lie between."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy.special import stdtrit

from specviz.alignment.causes.verdict import SERVED
from specviz.alignment.summary import (
    Allowed,
    AsServed,
    Counters,
    EngineFault,
    Finding,
    FittingFault,
    Interval,
)
from specviz.alignment.tables.slices import LEVEL, ratio_residuals, standard_error
from specviz.alignment.types import Array
from specviz.errors import SpecvizError
from specviz.views.words import quantity

ROUNDED = 0.01  # tokens per step: logs give two decimals
MOST_FITTING = 3
MOST_LEFT = 0.25  # of the gap, which a fault that is named may leave
LOOK_AT = "padding, the start token, the template, positions, and the number format of the cache"
WAYS = {False: "drawn", True: "most likely"}
"""Which tokens are drafted, in words, by whether it is the most likely ones."""


def check_k(counters: Counters, k: int) -> None:
    """Raises SpecvizError where the engine drafted more or fewer tokens than the job asks for."""
    if counters.k not in (None, k):
        raise SpecvizError(
            f"the counters are of drafts of up to {counters.k} tokens, and the job has K={k}: give --k {counters.k}"
        )


def beside(
    draft: str,
    counters: Counters,
    steps: Mapping[bool, Array],
    faults: Sequence[EngineFault],
    *,
    are_same_texts: bool,
) -> AsServed:
    """Compares the counters with the expected steps of a draft.

    steps: by whether the most likely tokens are drafted, for each text the steps that draft, then those that accept 1,
    2, ... K tokens or more [texts, K + 1]. are_same_texts: whether the engine wrote these very texts, so that only
    its draws are chance.
    """
    allowed = tuple(
        _allowed(by_argmax, own, counters, are_same_texts) for by_argmax, own in steps.items()
    )
    fitting: list[tuple[float, FittingFault]] = []
    if not any(way.fits for way in allowed):
        for way in allowed:
            for fault in faults:
                fitting += _fitting(way, fault, counters)
    fitting.sort(key=lambda each: each[0])
    named: dict[str, FittingFault] = {}
    for _, fault in fitting:
        named.setdefault(fault.words, fault)
    return AsServed(draft, counters, allowed, len(faults), tuple(named.values())[:MOST_FITTING])


def _allowed(by_argmax: bool, steps: Array, counters: Counters, are_same_texts: bool) -> Allowed:
    drafting = steps[:, 0]
    shares = steps[:, 1:].sum(0) / max(float(drafting.sum()), 1e-9)
    residuals = ratio_residuals(steps[:, 1:], drafting)  # [texts, K]
    errors = standard_error(residuals)
    error = float(standard_error(residuals.sum(1)))
    growth = float(stdtrit(len(steps) - 1, (1 + LEVEL) / 2))
    tokens = 1 + float(shares.sum())
    own_error = 0.0 if are_same_texts else error
    room = growth * math.hypot(own_error, _noise(counters, len(shares))) + ROUNDED
    low = max(1.0, tokens - growth * error)
    high = min(1.0 + len(shares), tokens + growth * error)
    return Allowed(
        by_argmax=by_argmax,
        tokens_per_step=tokens,
        interval=(low, high),
        by_position=tuple(shares.tolist()),
        intervals=tuple(map(_around, shares, growth * errors)),
        fits=abs(counters.tokens_per_step - tokens) <= room,
    )


def _around(share: float, room: float) -> Interval:
    return max(0.0, float(share - room)), min(1.0, float(share + room))


def _noise(counters: Counters, k: int) -> float:
    """The standard error of what the engine counted; at most, where it does not tell how its steps differ."""
    if counters.deviation is not None:
        return counters.deviation
    return k / 2 / math.sqrt(counters.num_steps)


def _fitting(
    way: Allowed, fault: EngineFault, counters: Counters
) -> Iterator[tuple[float, FittingFault]]:
    """The fault with its distance from the counters, if the draft would then be counted so."""
    change = fault.by_argmax if way.by_argmax else fault.drawn
    shares = np.clip(np.array(way.by_position) + np.array(change.by_position), 0.0, 1.0)
    tokens = 1 + float(shares.sum())
    gap = counters.tokens_per_step - way.tokens_per_step
    explained = tokens - way.tokens_per_step
    room = 2 * math.hypot(change.deviation, _noise(counters, len(shares))) + ROUNDED
    is_near = abs(counters.tokens_per_step - tokens) <= max(room, MOST_LEFT * abs(gap))
    if not is_near or gap > 0 or explained > 0:
        return
    distance = abs(counters.tokens_per_step - tokens)
    if counters.by_position:
        told = np.zeros(len(shares))
        told[: len(counters.by_position)] = counters.by_position
        distance = float(np.abs(told - shares).max())
    yield distance, FittingFault(fault.words, way.by_argmax, tokens, tuple(shares.tolist()))


# ---- words -----------------------------------------------------------------------------------------------------------


def finding_of(found: AsServed, k: int) -> Finding | None:
    """The gap as a finding; None where the counters are within chance of either way, or above both.

    Counters between the two ways are a gap, too: an engine that drafts most likely tokens cannot get more of them.
    """
    counted = found.counters.tokens_per_step
    above = [way.tokens_per_step for way in found.allowed if way.tokens_per_step > counted]
    if not above or any(way.fits for way in found.allowed):
        return None
    words = f"The engine gets {counted:.2f} tokens per step where these files allow {allowed_words(found)} (K={k}, on "
    words += f"these texts). Look at {LOOK_AT}. {fault_words(found)}"
    if found.counters.k is None:
        words += " The counters do not tell how many tokens a step drafts: another K would show in the same way."
    return Finding(found.draft, SERVED, words, {"served": counted, "allowed": min(above)})


def tokens_words(way: Allowed) -> str:
    """The tokens per step with their interval."""
    low, high = way.interval
    return f"{way.tokens_per_step:.2f} ({low:.2f} to {high:.2f})"


def allowed_words(found: AsServed) -> str:
    return " or ".join(
        f"{way.tokens_per_step:.2f} with {WAYS[way.by_argmax]} tokens" for way in found.allowed
    )


def fault_words(found: AsServed) -> str:
    """Says which faults would give these counters."""
    if not found.num_tried:
        return (
            "No fault of an engine was tried on the draft: that needs the weights, and more texts."
        )
    if not found.faults:
        tried = quantity(found.num_tried, "fault")
        return f"The draft alone gives so few with none of {tried} that an engine may have."
    named = [
        f"{fault.words} ({fault.tokens_per_step:.2f}, {WAYS[fault.by_argmax]} tokens)"
        for fault in found.faults
    ]
    return (
        f"Of {quantity(found.num_tried, 'fault')} that an engine may have, tried on the draft alone, about as few come "
        f"with {', or with '.join(named)}."
    )


def note_of(found: AsServed) -> Iterator[str]:
    """Says what else is to be known of the counters, in sentences."""
    counters = found.counters
    most = max(way.tokens_per_step for way in found.allowed)
    if counters.tokens_per_step > most and not any(way.fits for way in found.allowed):
        yield (
            f"The engine counts {counters.tokens_per_step:.2f} tokens per step, more than these files allow "
            f"({allowed_words(found)}): it drafted a tree, served other texts, or other weights."
        )
