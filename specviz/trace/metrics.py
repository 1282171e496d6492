"""The numbers of a trace, computed from `Counters`. METRICS holds each number's label, formula, function and unit.

A live view adds events to `Counters` one by one; `metrics` adds all events of a trace. An undefined number is None with
a reason, never zero.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from specviz.trace.counters import Counters
from specviz.trace.file import Trace

ONE_PATH = "at most one path of a tree can be accepted, so a wider tree lowers this; see tokens per target call"
SIBLINGS = (
    "a tree tries several tokens for one place; see tokens per target call and acceptance by depth"
)
NOT_TIMED = "no time was measured"
NOTHING_DRAFTED = "no token was drafted"
GRADED = "the target judged whole reasoning steps, not single tokens; see reasoning steps accepted"
MOST_SPANS = 3
FEWEST_ROUNDS = 6  # five that agree come by chance in one case of 16


class Undefined(Exception):
    """An error that says why this trace does not define a number."""


@dataclass(frozen=True, slots=True)
class Metric:
    """The name of a number, and how it is computed and written."""

    label: str
    formula: str
    function: Callable[[Counters], Any]
    unit: str = "number"  # a key of _SPELL
    on_trees: str = ""  # a note after drafts with branches
    on_graded: str = ""  # a note where the target judged whole reasoning steps
    on_lossy: bool = False  # whether its note names lossy steps
    on_read: bool = False  # whether its note says that the first step was short

    def spell(self, value: Any) -> str:
        """The value as a person reads it; "n/a" for None."""
        return "n/a" if value is None else _SPELL[self.unit](value)

    def note(self, counters: Counters) -> str:
        """Words that a reader must know about this number here; "" for nothing."""
        notes = []
        if counters.num_trees:
            notes.append(self.on_trees)
        if counters.num_graded:
            notes.append(self.on_graded)
        if self.on_lossy:
            notes.append(lossy_words(counters))
        if self.on_read:
            notes.append(read_before_words(counters))
        return "; ".join(note for note in notes if note)


def _spell_percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.0f} %"


def _spell_or_not(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _spell_target(row: dict[str, Any]) -> str:
    per_call = _spell_or_not(row["per_call"])
    return f"{row['target']!r} {per_call} per call, {_spell_or_not(row['per_s'])} tokens/s"


def _spell_times(times: dict[str, float]) -> str:
    return ", ".join(f"{phase.removesuffix('_ms')} {ms:.0f}" for phase, ms in times.items())


_SPELL: dict[str, Callable[[Any], str]] = {
    "count": "{:,}".format,
    "number": "{:.2f}".format,
    "percent": _spell_percent,
    "speed": "{:.1f}".format,
    "factor": "{:.2f}x".format,
    "counts": lambda values: " ".join(map(str, values)),
    "rates": lambda values: " ".join(map(_spell_percent, values)),
    "depths": lambda rows: " ".join(_spell_percent(row["joint"]) for row in rows),
    "targets": lambda rows: "; ".join(map(_spell_target, rows)),
    "times": _spell_times,
}


def lossy_words(counters: Counters) -> str:
    """The word "lossy" where every step ran under a lossy rule, "lossy in part (steps 1–12)" where some did."""
    if not counters.is_lossy_in_part:
        return "lossy" if counters.num_lossy else ""
    spans = []
    for first, last in counters.lossy_spans[:MOST_SPANS]:
        spans.append(f"{first + 1:,}" if first == last else f"{first + 1:,}–{last + 1:,}")
    shown = ", ".join(spans)
    if len(counters.lossy_spans) > MOST_SPANS:
        shown += " …"
    noun = "steps" if counters.num_lossy > 1 else "step"
    return f"lossy in part ({noun} {shown})"


def read_before_words(counters: Counters) -> str:
    """The reason why the first step was short: a run before had read some of the prompt; "" where none had."""
    was_read = counters.footer is not None and counters.footer.extra.get("read_before")
    return "its prompt, or the beginning of it, had been read before" if was_read else ""


def rounding_words(counters: Counters) -> str:
    """The limit of an exact rule where the target computes in bfloat16 or float16; else, or with lossy steps, ""."""
    if not counters.rounds_in or counters.num_lossy:
        return ""
    return f"exact rule; {counters.rounds_in} rounding may change the text at near-ties"


def _finite(numerator: float, denominator: float) -> float | None:
    ratio = numerator / denominator if denominator > 0 else math.inf
    return ratio if math.isfinite(ratio) else None


def _ratio(numerator: float, denominator: float, why_not: str) -> float:
    ratio = _finite(numerator, denominator)
    if ratio is None:
        raise Undefined(why_not)
    return ratio


def _drafted_steps(c: Counters) -> int:
    if not c.num_drafting_steps:
        raise Undefined(NOTHING_DRAFTED)
    return c.num_drafting_steps


def _accepted_at_least(c: Counters) -> list[int]:
    """The number of steps that accepted at least 1, 2, ... tokens, up to the deepest draft."""
    _drafted_steps(c)
    num_missing = len(c.drafted_to) - len(c.accepted_to)
    return c.accepted_to + [0] * num_missing


def _per_call(c: Counters) -> float:
    return _ratio(c.num_emitted, c.calls["target"], "the target model was not called")


def _accepted_of_drafted(c: Counters) -> float:
    return _ratio(c.statuses["accepted"], c.num_drafted, NOTHING_DRAFTED)


def _scored_alpha(c: Counters) -> float:
    overlaps = c.scores.overlap if c.scores else ()
    known = [value for value in overlaps if value is not None]
    return _ratio(math.fsum(known), len(known), "the text has not been scored with both models")


def _speed(c: Counters) -> float:
    return _ratio(1000 * c.num_emitted, max(0.0, c.working_ms), NOT_TIMED)


def why_no_speedup(c: Counters) -> str:
    """The reason why the times of a run give no speedup, whatever it is compared with; empty where they may."""
    if c.distribution_changed:
        return "the target or the sampling changed during the run"
    is_shared = c.footer is not None and c.footer.extra.get("shared_engine")
    return "it ran under load, as another run used the machine" if is_shared else ""


def _speedup(c: Counters) -> float:
    if why_not := why_no_speedup(c):
        raise Undefined(why_not)
    if c.num_steps and not c.num_drafting_steps and not c.calls["draft"]:
        raise Undefined("nothing was drafted: this run is the baseline")
    baseline = c.footer.baseline if c.footer else None
    if baseline is None or baseline.get("rounds", 0) < FEWEST_ROUNDS:
        raise Undefined(
            f"the speed without a draft was not measured in {FEWEST_ROUNDS} turns with this run"
        )
    ratio = _ratio(
        _speed(c), baseline["tokens_per_s"], "the measured speed without a draft is zero"
    )
    if ratio > _per_call(c):
        raise Undefined(
            "it would be above the tokens per target call, so the machine was busy when it was measured"
        )
    low, high = baseline.get("between", (ratio, ratio))
    if not 0 < low <= ratio <= high:
        raise Undefined("the interval that was measured does not hold the ratio")
    return ratio


def _times(c: Counters) -> dict[str, float]:
    if c.num_steps and not any(c.times_ms.values()):
        raise Undefined(NOT_TIMED)
    return dict(c.times_ms)


def _lossy_steps(c: Counters) -> int:
    if c.num_foreign:
        raise Undefined("the record does not tell by which rule")
    return c.num_lossy


def _by_target(c: Counters) -> list[dict[str, Any]]:
    if len(c.targets) < 2:
        raise Undefined("no second target model had a part in this run")
    rows = []
    for name, (tokens, calls, ms) in c.targets.items():
        per_call = _finite(tokens, calls)
        per_s = _finite(1000 * tokens, ms)
        rows.append({"target": name, "per_call": per_call, "per_s": per_s})
    return rows


def _histogram(c: Counters) -> list[int]:
    """The number of drafting steps that accepted exactly 0, 1, 2, ... tokens."""
    at_least = [c.num_drafting_steps, *_accepted_at_least(c), 0]
    return [fewer - more for fewer, more in pairwise(at_least)]


def _conditional_by_depth(c: Counters) -> list[float | None]:
    """The share of steps that accepted j tokens among those that accepted j - 1."""
    rates: list[float | None] = []
    for fewer, more in pairwise([c.num_steps, *_accepted_at_least(c)]):
        rates.append(more / fewer if fewer else None)
    return rates


METRICS: dict[str, Metric] = {
    "tokens_per_target_call": Metric("tokens per target call", "emitted / target calls", _per_call),
    "acceptance_rate_judged": Metric(
        "acceptance rate",
        "accepted / (accepted + rejected)",
        lambda c: _ratio(c.statuses["accepted"], c.num_judged, "no drafted token was judged"),
        "percent",
        on_trees=SIBLINGS,
        on_graded=GRADED,
    ),
    "speedup": Metric(
        "speedup, measured",
        "tokens/s / tokens/s without a draft, run in turn",
        _speedup,
        "factor",
        on_lossy=True,
    ),
    "tokens_per_s": Metric(
        "tokens/s",
        "emitted / sum of (total - waiting) time",
        _speed,
        "speed",
        on_lossy=True,
        on_read=True,
    ),
    "acceptance_rate": Metric(
        "accepted of drafted",
        "accepted / drafted; falls as K grows, even with the same draft",
        _accepted_of_drafted,
        "percent",
        ONE_PATH,
    ),
    "mean_acceptance_length": Metric(
        "mean acceptance length",
        "1 + accepted / steps with a draft (the last token counts even if the text ended before it)",
        lambda c: 1 + c.statuses["accepted"] / _drafted_steps(c),
    ),
    "tokens_per_step": Metric(
        "tokens per step",
        "emitted / steps",
        lambda c: _ratio(c.num_emitted, c.num_steps, "no step was made"),
    ),
    "compression_ratio": Metric("compression ratio", "emitted / target forwards", _per_call),
    "lm_studio_percent": Metric(
        "drafted tokens accepted",
        "100 * accepted / drafted, not judged ones included",
        lambda c: 100 * _accepted_of_drafted(c),
        on_trees=ONE_PATH,
    ),
    "alpha": Metric("alpha", "mean of sum min(p, q) over all emitted positions", _scored_alpha),
    "alpha_judged": Metric(
        "alpha, judged positions only",
        "mean of sum min(p, q) over judged positions; biased low when K is small",
        lambda c: _ratio(
            c.overlap_sum, c.num_overlaps, "no judged position has one drafted token with q"
        ),
    ),
    "reasoning_steps_kept": Metric(
        "reasoning steps accepted",
        "accepted whole / graded by the target",
        lambda c: _ratio(c.num_graded_accepted, c.num_graded, "no reasoning step was graded"),
        "percent",
    ),
    "by_target": Metric(
        "by target model",
        "of each one's steps: tokens per target call, tokens/s",
        _by_target,
        "targets",
        on_read=True,
    ),
    "steps": Metric("steps", "draft-verify rounds", lambda c: c.num_steps, "count"),
    "lossy_steps": Metric(
        "lossy steps",
        "steps under a rule that does not preserve the target's distribution",
        _lossy_steps,
        "count",
        on_lossy=True,
    ),
    "drafted": Metric(
        "drafted", "accepted + rejected + not judged", lambda c: c.num_drafted, "count"
    ),
    "accepted": Metric(
        "accepted", "drafted tokens that passed", lambda c: c.statuses["accepted"], "count"
    ),
    "rejected": Metric(
        "rejected", "drafted tokens that failed", lambda c: c.statuses["rejected"], "count"
    ),
    "ignored": Metric(
        "not judged",
        "drafted after a rejected token or on another branch",
        lambda c: c.statuses["ignored"],
        "count",
    ),
    "emitted": Metric("emitted", "accepted + steps - truncated", lambda c: c.num_emitted, "count"),
    "resampled": Metric(
        "resampled", "replacements after a rejection", lambda c: c.kinds["resampled"], "count"
    ),
    "bonus": Metric(
        "bonus", "the target's token after a full accept", lambda c: c.kinds["bonus"], "count"
    ),
    "plain": Metric(
        "plain", "tokens of steps without a draft", lambda c: c.kinds["plain"], "count"
    ),
    "truncated": Metric(
        "truncated", "tokens left out at the end of the text", lambda c: c.num_truncated, "count"
    ),
    "target_calls": Metric(
        "target calls", "forwards of the target model", lambda c: c.calls["target"], "count"
    ),
    "draft_calls": Metric(
        "draft calls", "forwards of the draft model", lambda c: c.calls["draft"], "count"
    ),
    "acceptance_by_depth": Metric(
        "acceptance by depth",
        "joint: steps that accepted j / drafted j; conditional: steps that accepted j / judged depth j",
        lambda c: [rates._asdict() for rates in c.by_depth()] if _drafted_steps(c) else [],
        "depths",
    ),
    "acceptance_by_depth_all_steps": Metric(
        "acceptance by depth, all steps",
        "steps that accepted j / all steps with a draft, however short",
        lambda c: [number / c.num_drafting_steps for number in _accepted_at_least(c)],
        "rates",
    ),
    "acceptance_histogram": Metric(
        "accepted tokens per step",
        "steps with a draft that accepted exactly 0, 1, 2, ... tokens",
        _histogram,
        "counts",
    ),
    "nvidia_joint": Metric(
        "joint rate by depth, all steps",
        "steps that accepted j / all steps",
        lambda c: [number / c.num_steps for number in _accepted_at_least(c)],
        "rates",
    ),
    "nvidia_conditional": Metric(
        "conditional rate by depth, all steps",
        "steps that accepted j / steps that accepted j - 1",
        _conditional_by_depth,
        "rates",
    ),
    "times_ms": Metric(
        "time by phase (ms)",
        "sums over all steps",
        _times,
        "times",
        on_read=True,
    ),
}


def count(trace: Trace) -> Counters:
    counters = Counters()
    for event in trace.events():
        counters.add(event)
    return counters


def metrics(source: Trace | Counters) -> dict[str, Any]:
    """The numbers of METRICS by name, None where undefined, and "reasons": name -> why it is undefined."""
    counters = source if isinstance(source, Counters) else count(source)
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name, metric in METRICS.items():
        try:
            values[name] = metric.function(counters)
        except Undefined as undefined:
            values[name] = None
            reasons[name] = str(undefined)
    return {**values, "reasons": reasons}
