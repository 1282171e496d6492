"""The third number of the page: how much faster, as words, and only where it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specviz.analysis.rounds import ONE_RUN, WORDS, is_far, spell_ratio
from specviz.trace.counters import Counters
from specviz.trace.metrics import metrics, why_no_speedup
from specviz.views.blocks import Props
from specviz.views.words import reveal

if TYPE_CHECKING:
    from specviz.bench.speed import Measuring, Speed

NO_DRAFT = "baseline: no draft"
NONE_BESIDE = "no baseline was measured beside it"
NOT_YET = "not measured yet"
HERE, THERE = "measured here", "measured where it was recorded"
SAME = "1.0"  # a ratio that reads so is called the same speed
IMPOSSIBLE = (
    "No ratio: the rounds gave more than the tokens per target call, which cannot be. The machine was busy. "
    "Measure again."
)
DOUBTS = {
    "baseline": "this is the baseline (no draft)",
    "shared": "under load: others used the engine meanwhile, so no speedup is given; measure again",
    "impossible": IMPOSSIBLE,
}
BUSY = "this machine was busy: two runs of the same kind lay {:.0%} apart (median)"


def speed_words(
    counters: Counters,
    measured: Speed | None = None,
    *,
    recorded: bool,
    measuring: Measuring | None = None,
) -> Props:
    """{"value", "words", "note", "can_measure", "progress"}: value is "" where no ratio is told, and words says why.

    measuring: the measurement that goes on; recorded: nothing can be measured any more.
    """
    if measuring is not None:
        words = "measuring: runs with and without a draft, in turn"
        return _props(words) | {
            "progress": {"words": progress_words(measuring), "width": _share(measuring)}
        }
    may_measure = {
        "can_measure": not recorded and counters.num_steps > 0 and not counters.distribution_changed
    }
    if measured is not None and not counters.distribution_changed:
        return _measured(counters, measured, THERE if recorded else HERE) | may_measure
    if reason := why_no_speedup(counters):
        return _props(f"no speedup: {reason}") | may_measure
    return (_recorded(counters) if recorded else _unmeasured(counters)) | may_measure


def progress_words(measuring: Measuring) -> str:
    if not measuring.total:
        return "waiting for its turn"
    return f"round {measuring.round} of {measuring.rounds}" if measuring.round else "warming up"


def _share(measuring: Measuring) -> float:
    return round(100 * measuring.done / max(1, measuring.total), 1)


def doubt_words(speed: Speed) -> str:
    """Why a measurement tells of no speedup; empty where it does."""
    if not speed.doubt:
        return ""
    return DOUBTS.get(speed.doubt) or f"{WORDS[speed.doubt]} ({_between(speed, speed.found.most)})"


def _between(speed: Speed, most: float) -> str:
    """The ratio and between what it lies, none above `most`."""
    ratio, *ends = (
        spell_ratio(min(each, most), most) for each in (speed.found.ratio, *speed.found.between)
    )
    return f"{ratio}×, between {ends[0]}× and {ends[1]}×"


def _measured(counters: Counters, speed: Speed, where: str) -> Props:
    rounds = f"median of {len(speed.found.ratios)} rounds of runs of {speed.num_tokens} tokens"
    notes = [f"{rounds}, warmed up, with and without a draft in turn, each alone on the engine"]
    notes += [BUSY.format(speed.found.spread)] if speed.found.spread >= ONE_RUN else []
    if speed.doubt:
        return _props(f"{doubt_words(speed)}{_mark(counters)}", note="; ".join(notes))
    own, found = metrics(counters)["tokens_per_target_call"], speed.found
    most = min(speed.tokens_per_call, own or speed.tokens_per_call)
    speeds = speed.baseline_tokens_per_s, speed.tokens_per_s
    if found.ratio > most:
        written = f"the measured runs wrote {speed.tokens_per_call:.2f} tokens per target call, this run {own:.2f}"
        return _props(
            f"{two_digits(speed.tokens_per_s)} tokens/s; no ratio: {written}", note="; ".join(notes)
        )
    notes.append(_between(speed, most))
    return _comparison(counters, found.ratio, most, speeds, where, "; ".join(notes), found.between)


def _recorded(counters: Counters) -> Props:
    """What a recording tells: a ratio only of what was measured in turn with it."""
    values, footer = metrics(counters), counters.footer
    speed, speedup = values["tokens_per_s"], values["speedup"]
    if speedup is None or _was_paced(counters):
        reason = NO_DRAFT if counters.num_steps and not counters.may_draft else NONE_BESIDE
        return _props(
            reason
            if speed is None or _was_paced(counters)
            else f"{two_digits(speed)} tokens/s; {reason}"
        )
    most = values["tokens_per_target_call"]
    if not is_far(speedup):
        return _props(f"about as fast{_mark(counters)} ({spell_ratio(speedup, most)}×)")
    speeds, rounds = (footer.baseline["tokens_per_s"], speed), footer.baseline["rounds"]
    note = f"the median run of {rounds}, over the median without a draft, in turn"
    return _comparison(
        counters, speedup, most, speeds, THERE, note, footer.baseline.get("between", ())
    )


def _unmeasured(counters: Counters) -> Props:
    """Of a run that was made here: its own tokens/s, once they are known, and no ratio."""
    speed = metrics(counters)["tokens_per_s"]
    if counters.footer is None or speed is None or _was_paced(counters):
        return _props(NOT_YET)
    return _props(f"{two_digits(speed)} tokens/s; the ratio is {NOT_YET}")


def _was_paced(counters: Counters) -> bool:
    """Speed is taken at full pace only: a processor that waits between steps is another processor."""
    return counters.times_ms["wait_ms"] > 0.05 * counters.times_ms["total_ms"]


def _comparison(
    counters: Counters,
    ratio: float,
    most: float,
    speeds: tuple[float, float],
    where: str,
    note: str,
    between: Sequence[float],
) -> Props:
    """most: what no ratio is shown above. speeds: without a draft and with it."""
    shown = spell_ratio(ratio, most)
    how = "the same speed" if shown == SAME else "faster" if ratio > 1 else "slower"
    ends = [f"{spell_ratio(min(each, most), most)}×" for each in between]
    span = f" ({ends[0]} to {ends[1]})" if ends else ""
    return _props(
        f"{how}{_mark(counters)}, {where}: {_arrow(speeds)}{span}", value=f"{shown}×", note=note
    )


def _arrow(speeds: tuple[float, float]) -> str:
    return f"{two_digits(speeds[0])}\u00a0→\u00a0{two_digits(speeds[1])} tokens/s"


def _mark(counters: Counters) -> str:
    """A speed of a text that is not distributed as the target's own says so."""
    return (
        " (lossy in part)"
        if counters.is_lossy_in_part
        else " (lossy)"
        if counters.num_lossy
        else ""
    )


def two_digits(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"


def _props(words: str, *, value: str = "", note: str = "") -> Props:
    return {
        "value": value,
        "words": words,
        "note": reveal(note),
        "can_measure": False,
        "progress": None,
    }
