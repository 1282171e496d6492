"""The third number of the page: how much faster, as words, and only where it was measured."""

from collections.abc import Mapping
from typing import Any

from specviz.analysis.rounds import is_far
from specviz.trace.counters import Counters
from specviz.trace.metrics import METRICS, metrics, why_no_speedup
from specviz.views.blocks import Props
from specviz.views.explore.sentences import reveal

NO_DRAFT = "baseline: no draft"
NONE_BESIDE = "no baseline was measured beside it"
HERE, THERE = "measured here", "measured where it was recorded"
SAME = "1.0"  # a ratio that reads so is called the same speed


def speed_words(counters: Counters, measured: Mapping[str, Any] | None, *, recorded: bool) -> Props:
    """{"value", "words", "note", "can_measure"}: value is "" where nothing was measured, and words says why.

    measured: the fields of a bench.speed.Speed; recorded: nothing can be measured any more.
    """
    if reason := why_no_speedup(counters):
        return _props(f"no speedup: {reason}")
    if measured is not None:
        note = str(measured.get("note") or "")
        if measured.get("instead"):
            return _props(f"{measured['instead']}{_mark(counters)}", note=note, can_measure=True)
        speeds = measured["baseline_tokens_per_s"], measured["tokens_per_s"]
        return _comparison(counters, measured["speedup"], *speeds, HERE, note)
    values = metrics(counters)
    speedup, speed = values["speedup"], values["tokens_per_s"]
    if speedup is None or _was_paced(counters):
        if not recorded:
            return _props("not measured yet", can_measure=counters.num_steps > 0)
        reason = NONE_BESIDE if counters.num_drafted else NO_DRAFT
        return _props(reason if speed is None or _was_paced(counters) else f"{two_digits(speed)} tokens/s; {reason}")
    if not counters.num_drafted:
        return _props(NO_DRAFT)
    if not is_far(speedup):
        return _props(f"about as fast{_mark(counters)} ({speedup:.2g}×)", can_measure=not recorded)
    baseline = counters.footer.baseline["tokens_per_s"]
    return _comparison(counters, speedup, baseline, speed, THERE if recorded else HERE, METRICS["speedup"].formula)


def _was_paced(counters: Counters) -> bool:
    """Speed is taken at full pace only: a processor that waits between steps is another processor."""
    return counters.times_ms["wait_ms"] > 0.05 * counters.times_ms["total_ms"]


def _comparison(counters: Counters, speedup: float, baseline: float, speed: float, where: str, note: str) -> Props:
    shown = f"{speedup:.1f}"
    how = "the same speed" if shown == SAME else "faster" if speedup > 1 else "slower"
    words = f"{how}{_mark(counters)}, {where}: {two_digits(baseline)}\u00a0→\u00a0{two_digits(speed)} tokens/s"
    return _props(words, value=f"{shown}×", note=note)


def _mark(counters: Counters) -> str:
    """A speed of a text that is not distributed as the target's own says so."""
    return " (lossy in part)" if counters.is_lossy_in_part else " (lossy)" if counters.num_lossy else ""


def two_digits(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"


def _props(words: str, *, value: str = "", note: str = "", can_measure: bool = False) -> Props:
    return {"value": value, "words": words, "note": reveal(note), "can_measure": can_measure}
