"""The third number of the page: how much faster, as words, and only where it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specviz.analysis.rounds import ONE_RUN, WORDS, is_far, spell_ratio
from specviz.trace.counters import Counters
from specviz.trace.metrics import metrics, read_before_words, why_no_speedup
from specviz.views.explore.message import ProgressBar, SpeedWords
from specviz.views.words import reveal

if TYPE_CHECKING:
    from specviz.bench.speed import Measuring, Speed

NO_DRAFT = "baseline: no draft"
NONE_BESIDE = "no baseline was measured beside it"
NOT_YET = "not measured yet"
HERE = "measured here"
THERE = "measured where it was recorded"
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
) -> SpeedWords:
    """The speed of a run; without a ratio, its words say why.

    measuring: the measurement that goes on. recorded: nothing can be measured any more.
    """
    if measuring is not None:
        words = "measuring: runs with and without a draft, in turn"
        bar = ProgressBar(_share(measuring), progress_words(measuring))
        return SpeedWords("", words, "", progress=bar)
    if measured is not None and not counters.distribution_changed:
        speed = _measured(counters, measured, THERE if recorded else HERE)
    elif reason := why_no_speedup(counters):
        speed = _say(f"no speedup: {reason}")
    else:
        speed = _recorded(counters) if recorded else _unmeasured(counters)
    has_steps = counters.num_steps > 0
    can_measure = not recorded and has_steps and not counters.distribution_changed
    return replace(speed, can_measure=can_measure)


def progress_words(measuring: Measuring) -> str:
    """How far the measurement is."""
    if not measuring.total:
        return "waiting for its turn"
    if not measuring.round:
        return "warming up"
    return f"round {measuring.round} of {measuring.rounds}"


def _share(measuring: Measuring) -> float:
    return round(100 * measuring.done / max(1, measuring.total), 1)


def doubt_words(speed: Speed) -> str:
    """Why a measurement gives no speedup; empty where it does."""
    if not speed.doubt:
        return ""
    return DOUBTS.get(speed.doubt) or f"{WORDS[speed.doubt]} ({_between(speed, speed.found.most)})"


def _between(speed: Speed, most: float) -> str:
    """The ratio and the ends of its interval, none above `most`."""
    ratio = spell_ratio(min(speed.found.ratio, most), most)
    low, high = (spell_ratio(min(end, most), most) for end in speed.found.between)
    return f"{ratio}×, between {low}× and {high}×"


def _measured(counters: Counters, speed: Speed, where: str) -> SpeedWords:
    """The words on a measurement of this run."""
    comparison = speed.found
    rounds = f"median of {len(comparison.ratios)} rounds of runs of {speed.num_tokens} tokens"
    note = f"{rounds}, warmed up, with and without a draft in turn, each alone on the engine"
    if comparison.spread >= ONE_RUN:
        note += f"; {BUSY.format(comparison.spread)}"
    if speed.doubt:
        return _say(f"{doubt_words(speed)}{_mark(counters)}", note=note)
    per_call = metrics(counters)["tokens_per_target_call"]
    most = min(speed.tokens_per_call, per_call or speed.tokens_per_call)
    if comparison.ratio > most:
        written = f"the measured runs wrote {speed.tokens_per_call:.2f} tokens per target call, this run {per_call:.2f}"
        words = f"{two_digits(speed.tokens_per_s)} tokens/s; no ratio: {written}"
        return _say(words, note=note)
    speeds = (speed.baseline_tokens_per_s, speed.tokens_per_s)
    note += f"; {_between(speed, most)}"
    return _comparison(counters, comparison.ratio, most, speeds, where, note, comparison.between)


def _recorded(counters: Counters) -> SpeedWords:
    """The words on a recording: it has a ratio only if a baseline was measured in turn with it."""
    values = metrics(counters)
    speed = values["tokens_per_s"]
    speedup = values["speedup"]
    was_paced = _was_paced(counters)
    if speedup is None or was_paced:
        reason = NO_DRAFT if counters.num_steps and not counters.may_draft else NONE_BESIDE
        if speed is None or was_paced:
            return _say(reason)
        return _say(f"{_own_speed(counters, speed)}; {reason}")
    most = values["tokens_per_target_call"]
    if not is_far(speedup):
        return _say(f"about as fast{_mark(counters)} ({spell_ratio(speedup, most)}×)")
    baseline = counters.footer.baseline
    speeds = (baseline["tokens_per_s"], speed)
    between = baseline.get("between", ())
    note = f"the median run of {baseline['rounds']}, over the median without a draft, in turn"
    return _comparison(counters, speedup, most, speeds, THERE, note, between)


def _unmeasured(counters: Counters) -> SpeedWords:
    """The words on a run that was made here: its own tokens/s, once they are known, and no ratio."""
    speed = None if counters.footer is None else metrics(counters)["tokens_per_s"]
    if speed is None or _was_paced(counters):
        return _say(NOT_YET)
    return _say(f"{_own_speed(counters, speed)}; the ratio is {NOT_YET}")


def _own_speed(counters: Counters, speed: float) -> str:
    read_before = read_before_words(counters)
    words = f"{two_digits(speed)} tokens/s"
    return f"{words} ({read_before})" if read_before else words


def _was_paced(counters: Counters) -> bool:
    """Whether the run waited between its steps: a processor that waits runs at another speed."""
    return counters.times_ms["wait_ms"] > 0.05 * counters.times_ms["total_ms"]


def _comparison(
    counters: Counters,
    ratio: float,
    most: float,
    speeds: tuple[float, float],
    where: str,
    note: str,
    between: Sequence[float],
) -> SpeedWords:
    """The words on a known ratio, which is shown as `most` at most. speeds: without a draft and with it."""
    shown = spell_ratio(ratio, most)
    how = "faster" if ratio > 1 else "slower"
    if shown == SAME:
        how = "the same speed"
    words = f"{how}{_mark(counters)}, {where}: {_arrow(speeds)}"
    if between:
        low, high = (spell_ratio(min(end, most), most) for end in between)
        words += f" ({low}× to {high}×)"
    return _say(words, value=f"{shown}×", note=note)


def _arrow(speeds: tuple[float, float]) -> str:
    without, drafted = speeds
    return f"{two_digits(without)}\u00a0→\u00a0{two_digits(drafted)} tokens/s"


def _mark(counters: Counters) -> str:
    """The mark on the speed of a text that is not distributed as the target's own."""
    if counters.is_lossy_in_part:
        return " (lossy in part)"
    return " (lossy)" if counters.num_lossy else ""


def two_digits(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"


def _say(words: str, *, value: str = "", note: str = "") -> SpeedWords:
    return SpeedWords(value, words, reveal(note))
