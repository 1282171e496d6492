"""The third number of the page: how much faster, as words, and only where it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specviz.analysis.rounds import is_far
from specviz.trace.counters import Counters
from specviz.trace.metrics import METRICS, metrics
from specviz.views.explore.sentences import visible

NO_DRAFT = "no draft reached the target: nothing to compare"
NONE_BESIDE = "no run without draft was measured beside it"
SAME = "1.0"  # a ratio that reads so is called the same speed


def speed_words(counters: Counters, measured: Mapping[str, Any] | None, *, recorded: bool) -> dict[str, Any]:
    """{"value", "words", "note", "can_measure"}: value is "" where nothing was measured, and words says why."""
    reason = _cannot_be_told(counters)
    if reason:
        return _unknown(reason)
    if measured is not None and measured.get("instead"):
        note = visible(str(measured.get("note") or ""))
        return _unknown(f"{measured['instead']}{_mark(counters)}") | {"note": note, "can_measure": True}
    if measured is not None:
        speeds = measured["baseline_tokens_per_s"], measured["tokens_per_s"]
        return _known(counters, measured["speedup"], *speeds, "measured here", str(measured.get("note") or ""))
    values = metrics(counters)
    if values["speedup"] is not None and not _was_paced(counters):
        baseline = counters.footer.baseline["tokens_per_s"]
        where = "measured where it was recorded" if recorded else "measured here"
        if not counters.num_drafted:
            return _unknown(NO_DRAFT)
        if not is_far(values["speedup"]):
            words = f"no clear difference in one run{_mark(counters)}: {values['speedup']:.2g}×"
            return _unknown(words) | {"can_measure": not recorded}
        speeds = baseline, values["tokens_per_s"]
        return _known(counters, values["speedup"], *speeds, where, METRICS["speedup"].formula)
    if recorded:
        return _unknown(_alone(counters, values["tokens_per_s"]))
    return _unknown("not measured yet") | {"can_measure": counters.num_steps > 0}


def _cannot_be_told(counters: Counters) -> str:
    if counters.law_changed:
        return "no speedup: the target or the sampling changed on the way"
    if counters.footer and counters.footer.extra.get("shared_engine"):
        return "under load: another run used the machine, so no speedup"
    return ""


def _was_paced(counters: Counters) -> bool:
    """Speed is taken at full pace only: a processor that waits between steps is another processor."""
    return counters.times_ms["wait_ms"] > 0.05 * counters.times_ms["total_ms"]


def _alone(counters: Counters, speed: float | None) -> str:
    """Of a recorded run with nothing beside it."""
    lead = NONE_BESIDE if counters.num_drafted else NO_DRAFT
    return lead if speed is None or _was_paced(counters) else f"{_rate(speed)} tokens/s; {lead}"


def _known(counters: Counters, speedup: float, baseline: float, speed: float, where: str, note: str) -> dict[str, Any]:
    shown = f"{speedup:.1f}"
    how = "the same speed" if shown == SAME else "faster" if speedup > 1 else "slower"
    words = f"{how}{_mark(counters)}, {where}: {_rate(baseline)}\u00a0→\u00a0{_rate(speed)} tokens/s"
    return {"value": f"{shown}×", "words": words, "note": visible(note), "can_measure": False}


def _mark(counters: Counters) -> str:
    """A speed of a text that does not follow the target's own odds says so."""
    return " (lossy in part)" if counters.is_lossy_in_part else " (lossy)" if counters.num_lossy else ""


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.0f}" if tokens_per_s >= 10 else f"{tokens_per_s:.1f}"


def _unknown(words: str) -> dict[str, Any]:
    return {"value": "", "words": words, "note": "", "can_measure": False}
