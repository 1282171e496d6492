"""Explains a speedup by factors, from the ideal of K + 1 tokens per target call down to the measured speedup.

All factors but the last predict a speed, from the run and the measured costs. The last, overhead, closes the gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.drafters import facts_of
from specviz.errors import SpecvizError
from specviz.trace import Trace
from specviz.trace.counters import Counters
from specviz.trace.events import Step
from specviz.trace.metrics import count

if TYPE_CHECKING:
    from specviz.analysis.costs import Costs

FAR = 2  # a context so many times longer or shorter has other costs


@dataclass(frozen=True, slots=True)
class Factor:
    """One reason; above 1 it helps, below 1 it costs."""

    name: str
    value: float
    formula: str
    words: str


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A measured speedup as a product of factors."""

    ideal: int  # K + 1: every draft is full and accepted, and a target call costs as much as for one token
    factors: tuple[Factor, ...]
    predicted: float  # the speedup if all time went into the two models
    speedup: float
    notes: tuple[str, ...] = ()  # where costs, speeds and run were not measured alike


@dataclass(frozen=True, slots=True)
class _Step:
    """Means over the steps of a run. Milliseconds."""

    k: int
    drafted: float
    emitted: float
    one_token_ms: float
    draft_ms: float
    verify_ms: float
    read_again: float
    """Tokens that the target reads twice."""
    read_ms: float
    """The time of a target call over the draft and those tokens."""


def why_slow(
    recorded: Trace,
    costs: Costs,
    *,
    tokens_per_s: float,
    baseline_tokens_per_s: float,
    most_timed: int | None = None,
) -> Breakdown:
    """Explains the speedup of a run by the costs of its models.

    tokens_per_s: this run's speed; baseline_tokens_per_s: without a draft, measured in the same session.
    most_timed: the most tokens that the timed runs wrote, where they are other runs than this one.
    Raises SpecvizError where K, method, rule, models or sampling changed, or the costs are not of the run's models.
    """
    speeds = {"tokens_per_s": tokens_per_s, "baseline_tokens_per_s": baseline_tokens_per_s}
    for name, speed in speeds.items():
        if not 0 < speed < math.inf:
            raise ValueError(f"{name} must be above 0 (got {speed})")
    step = _mean_step(recorded, costs)
    factors = tuple(_factors(step))
    predicted = (step.k + 1) * math.prod(factor.value for factor in factors)
    speedup = tokens_per_s / baseline_tokens_per_s
    last = _overhead(step, predicted, tokens_per_s, baseline_tokens_per_s)
    notes = tuple(_notes(recorded, costs, most_timed))
    return Breakdown(step.k + 1, (*factors, last), predicted, speedup, notes)


def _mean_step(recorded: Trace, costs: Costs) -> _Step:
    counters = count(recorded)
    for refusal in _refusals(recorded, counters, costs):
        raise SpecvizError(refusal)
    num_steps = counters.num_steps
    verify_ms = []
    read_ms = []
    for step in recorded.steps:
        length = len(step.draft)
        verify_ms.append(costs.verify_ms[length])
        read_ms.append(costs.verify_ms[length + _read_again(step)])
    used = recorded.steps[-1].settings
    drafted = counters.num_drafted / num_steps
    return _Step(
        k=used.k,
        drafted=drafted,
        emitted=counters.num_emitted / num_steps,
        one_token_ms=costs.verify_ms[0],
        draft_ms=0.0 if used.draft_model is None else drafted * costs.draft_ms,
        verify_ms=math.fsum(verify_ms) / num_steps,
        read_again=counters.read_again["target"] / num_steps,
        read_ms=math.fsum(read_ms) / num_steps,
    )


def _read_again(step: Step) -> int:
    return step.read_again["target"] if step.read_again else 0


def _refusals(recorded: Trace, counters: Counters, costs: Costs) -> Iterator[str]:
    """Yields the reasons why these costs cannot explain this run.

    They hold for chains that a draft model writes, or that cost nothing.
    """
    used = recorded.steps[-1].settings
    if not counters.num_drafted or not counters.num_emitted:
        yield "nothing was drafted in this run, so there is no loss to explain"
    if counters.num_drafted != sum(counters.drafted_to):
        yield "this run drafted trees; the costs are measured for chains only"
    if counters.statuses["scratch"]:
        yield "the target read more tokens than the draft in this run; the costs are measured for drafts alone"
    if not facts_of(used.method).cost_is_known:
        words = used.method.replace("_", " ")
        yield f"the cost of drafting by {words} was not measured; only a draft model's was"
    longest = len(costs.verify_ms) - 1
    if len(counters.drafted_to) > longest:
        yield f"the drafts were longer than measured: at most {longest} tokens"
    elif any(len(step.draft) + _read_again(step) > longest for step in recorded.steps):
        yield f"the target read longer drafts and texts again than were measured: at most {longest} tokens"
    names = {"k": "K", "method": "the method", "rule": "the rule", "draft_model": "the draft model"}
    for name, words in names.items():
        if len({getattr(step.settings, name) for step in recorded.steps}) > 1:
            yield f"{words} changed during the run, so the run has no single ideal and no single speed"
    if counters.distribution_changed:
        yield "the target model or the sampling changed during the run, so it has no single speed"
    if costs.target != used.target or used.draft_model not in (None, costs.draft):
        yield "the costs were measured for other models; measure them for this pair"
    if costs.doubt:
        yield costs.doubt


def _notes(recorded: Trace, costs: Costs, most_timed: int | None) -> Iterator[str]:
    """Yields notes where costs and speeds were measured at other lengths than the run's: longer contexts cost more."""
    num_tokens = len(recorded.tokens)
    first = recorded.steps[0].context_length
    last = recorded.steps[-1].context_length
    middle = max(1, (first + last) // 2)
    if max(middle, costs.context_length) > FAR * min(middle, costs.context_length):
        yield (
            f"The costs were measured after {costs.context_length:,} tokens of context; the middle of this run has "
            f"{middle:,}. Measure them at that length."
        )
    if most_timed is not None and num_tokens > most_timed:
        yield (
            f"The speed was measured on runs of at most {most_timed:,} tokens; all other factors come from this whole "
            f"text of {num_tokens:,}."
        )


def _factors(step: _Step) -> Iterator[Factor]:
    """Yields all factors but the last."""
    yield Factor(
        "shorter drafts",
        (step.drafted + 1) / (step.k + 1),
        "(drafted per step + 1) / (K + 1)",
        f"A step drafted {step.drafted:.2f} tokens on average of the {step.k} asked for. Drafts end early at the end "
        "of the text and where nothing matches.",
    )
    yield Factor(
        "rejections",
        step.emitted / (step.drafted + 1),
        "tokens per step / (drafted per step + 1)",
        f"Of {step.drafted + 1:.2f} possible tokens, a step gave {step.emitted:.2f}; the others were rejected, or not "
        "judged after a rejection.",
    )
    yield Factor(
        "draft cost",
        step.one_token_ms / (step.one_token_ms + step.draft_ms),
        "target time for 1 token / (that + draft time per step)",
        f"Drafting took {step.draft_ms:.2f} ms per step; one token of the target takes {step.one_token_ms:.2f} ms.",
    )
    yield Factor(
        "verify growth",
        (step.one_token_ms + step.draft_ms) / (step.verify_ms + step.draft_ms),
        "(target time for 1 token + draft time) / (target time for the whole draft + draft time)",
        f"Checking a whole draft took {step.verify_ms:.2f} ms instead of {step.one_token_ms:.2f} ms.",
    )
    if step.read_again:
        yield Factor(
            "read again",
            (step.verify_ms + step.draft_ms) / (step.read_ms + step.draft_ms),
            "(target time for the draft + draft time) / (target time for draft and tokens read again + draft time)",
            f"The target keeps a state that a rejection cannot shorten: it went back and read {step.read_again:.2f} "
            f"tokens per step twice, which took {step.read_ms - step.verify_ms:.2f} ms.",
        )


def _overhead(
    step: _Step, predicted: float, tokens_per_s: float, baseline_tokens_per_s: float
) -> Factor:
    """The last factor: it makes the product equal to the measured speedup, whatever the others miss."""
    share = (step.draft_ms + step.verify_ms) / (1000 * step.emitted / tokens_per_s)
    alone = step.one_token_ms / (1000 / baseline_tokens_per_s)
    words = (
        f"The rest: the lines above predict {predicted:.2f}x. By these costs, the models fill {100 * share:.0f} % of "
        f"the time with a draft and {100 * alone:.0f} % without. The remainder is judging, recording, reading the "
        "prompt, and whatever the measured costs miss."
    )
    if max(share, alone) > 1:
        words += " More than 100 % is impossible: the costs are not those of the timed runs. Measure both again."
    formula = "measured speedup / product of the lines above"
    return Factor("overhead", tokens_per_s / baseline_tokens_per_s / predicted, formula, words)
