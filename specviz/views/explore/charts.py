"""The charts of a run as plain data: for each an empty plotly figure, and the points that one step adds to it.

Every trace of a chart has the same places. At each place the first trace's `customdata` begins with what a click there
selects: "step" or "step:token". `layout.meta.table` lists the table's columns as [title, trace, attribute, index...].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specviz.trace.counters import Counters, DepthRates
from specviz.trace.file import EmittedToken, Step
from specviz.views.explore.inspector import LAST
from specviz.views.explore.sentences import label, percent
from specviz.views.palette import colour, short_label

FEW = 20  # rates from fewer observations are drawn hollow
DEEPEST = 64  # a chart of more depths says no more, and each step would send it again
BAR_STATUSES = ("accepted", "rejected", "ignored")
PHASES = ("draft", "verify", "accept", "record", "other")
PATTERNS = {
    "accepted": "", "rejected": "x", "ignored": ".", "resampled": "/",
    "draft": "/", "verify": "", "accept": "x", "record": ".", "other": "-",
}  # fmt: skip  # never colour alone
SELECTION_NOTE = "Selection effect: a depth is judged only where all before it were kept, and K decides where that is."
Chart = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SoFar:
    """What all steps up to and with this one have come to; `judged_at`: depth -> its newest judged token's place."""

    counters: Counters = field(default_factory=Counters)
    judged_at: dict[int, str] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        self.counters.add(step)
        for node, token in enumerate(step.draft):
            if token.is_judged:
                self.judged_at[token.depth] = f"{step.index}:{node}"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of chart. `points` gives {"mode": "append" | "replace", attribute: [a list per plotly trace]}."""

    empty: Callable[[str], Chart]
    points: Callable[[Step, SoFar], Chart]


# ---- kept, cut, not judged per step ---------------------------------------------------------------------------------


def _bar_points(step: Step, so_far: SoFar) -> Chart:
    counts = [[sum(token.status == status for token in step.draft)] for status in BAR_STATUSES]
    counters = so_far.counters
    rate = counters.statuses["accepted"] / counters.num_judged if counters.num_judged else None
    return _appended(step, [[step.index + 1]] * 4, [*counts, [rate]])


def _empty_bars(theme: str) -> Chart:
    bars = [
        _bars(short_label(status), status, theme, f"step %{{x}}: %{{y}} {short_label(status)}")
        for status in BAR_STATUSES
    ]
    hover = "up to step %{x}: %{y:.0%} of judged kept"
    rate = line_of("kept / judged so far", "plain", theme, hover) | {"yaxis": "y2"}
    axes = {
        "xaxis": {"title": {"text": "step"}, "showgrid": False},
        "yaxis": {"title": {"text": "drafted tokens"}, "rangemode": "tozero"},
        "yaxis2": {**_rate_axis("kept / judged so far"), "overlaying": "y", "side": "right", "showgrid": False},
    }
    return chart_of("Kept and cut, step by step", [*bars, rate], axes | _stacked(), _columns("step", [*bars, rate]))


# ---- acceptance by depth --------------------------------------------------------------------------------------------


def _depth_points(step: Step, so_far: SoFar) -> Chart:
    rates = so_far.counters.by_depth(DEEPEST)
    places = [so_far.judged_at.get(rate.depth, "") for rate in rates]
    both = ([_joint(rate) for rate in rates], [_conditional(rate) for rate in rates])
    return {
        "mode": "replace",
        "x": [[rate.depth for rate in rates]] * 2,
        "y": [[value for value, _, _, _ in rows] for rows in both],
        "error_y.array": [[_distance(high, value) for value, _, high, _ in rows] for rows in both],
        "error_y.arrayminus": [[_distance(value, low) for value, low, _, _ in rows] for rows in both],
        "marker.symbol": [["circle-open" if n < FEW else "circle" for *_, n in rows] for rows in both],
        "customdata": [[[at, n, *_spelled(*row)] for at, (*row, n) in zip(places, rows, strict=True)] for rows in both],
    }


def _joint(rate: DepthRates) -> tuple[float | None, float | None, float | None, int]:
    return rate.joint, rate.joint_low, rate.joint_high, rate.drafted


def _conditional(rate: DepthRates) -> tuple[float | None, float | None, float | None, int]:
    return rate.conditional, rate.conditional_low, rate.conditional_high, rate.judged


def _spelled(value: float | None, low: float | None, high: float | None) -> list[str]:
    """The rate and its interval, in words."""
    if value is None or low is None or high is None:
        return ["–", "–"]
    return [percent(value), f"{percent(low)} to {percent(high)}"]


def _distance(high: float | None, low: float | None) -> float:
    return 0.0 if high is None or low is None else max(0.0, high - low)


def _empty_depths(theme: str) -> Chart:
    axes = {
        "xaxis": {"title": {"text": "depth in the draft"}, "dtick": 1, "showgrid": False},
        "yaxis": _rate_axis("rate"),
        "annotations": [_note(SELECTION_NOTE)],
        "showlegend": True,
    }
    columns = [["depth", 0, "x"]]
    for trace, (name, _, _) in enumerate(_DEPTH_LINES):
        columns += [[name, trace, "customdata", 2], ["n", trace, "customdata", 1]]
        columns += [["95 % interval (Wilson)", trace, "customdata", 3]]
    chart = chart_of("Kept by depth", [_depth_line(*line, theme) for line in _DEPTH_LINES], axes, columns)
    chart["layout"]["margin"] = {**chart["layout"]["margin"], "b": 84}
    return chart


_DEPTH_LINES = (
    ("kept this deep, of steps that drafted this deep", "plain", "dot"),
    ("kept, of tokens judged at this depth", "accepted", "solid"),
)


def _depth_line(name: str, status: str, dash: str, theme: str) -> Chart:
    shade = colour(status, theme)
    hover = "depth %{x}: %{customdata[2]}, n = %{customdata[1]}, 95 % interval %{customdata[3]}"
    return line_of(name, status, theme, hover) | {
        "mode": "lines+markers",
        "error_y": {"type": "data", "symmetric": False, "array": [], "arrayminus": [], "color": shade, "thickness": 1},
        "line": {"color": shade, "dash": dash},
        "marker": {"color": shade, "size": 9, "symbol": []},
        "cliponaxis": False,
    }


# ---- agreement of the models along the text -------------------------------------------------------------------------


def _overlap_points(step: Step, so_far: SoFar) -> Chart:
    first = so_far.counters.num_emitted - len(step.emitted) + 1
    values = [_overlap(step, token) for token in step.emitted]
    own = [[value if token.kind == kind else None for token, value in zip(step.emitted, values, strict=True)]
           for kind in _OVERLAP_KINDS]  # fmt: skip
    none = [0 if value is None else None for value in values]
    picks = [f"{step.index}:{LAST if token.node is None else token.node}" for token in step.emitted]
    words = [label(token.text, token.bytes) for token in step.emitted]
    return {
        "mode": "append",
        "x": [[first + place for place in range(len(values))]] * 3,
        "y": [*own, none],
        "customdata": [[list(pair) for pair in zip(picks, words, strict=True)], [], []],
    }


_OVERLAP_KINDS = ("accepted", "resampled")


def _overlap(step: Step, token: EmittedToken) -> float | None:
    """The recorded sum of min(p, q) where this token was decided: its own draw's, or the cut's that it replaces."""
    if token.kind not in _OVERLAP_KINDS:
        return None
    draws = [position for position in step.positions if position.child is not None]
    fitting = draws if token.node is None else [position for position in draws if position.child == token.node]
    return fitting[-1].overlap if fitting else None


def _empty_overlap(theme: str) -> Chart:
    bars = [_bars(short_label(kind), kind, theme, "token %{x}: the models agree %{y:.0%}") for kind in _OVERLAP_KINDS]
    hover = "token %{x}: no single draft was judged here, so no agreement was recorded"
    none = line_of("not recorded", "ignored", theme, hover) | {"mode": "markers"}
    none["marker"] = {"color": colour("ignored", theme), "size": 5, "symbol": "x"}
    axes = {
        "xaxis": {"title": {"text": "token of the text"}, "showgrid": False},
        "yaxis": _rate_axis("sum of min(p, q)"),
    }
    columns = [["token", 0, "x"], ["text", 0, "customdata", 1]]
    columns += [[f"agreement, {short_label(kind)}", trace, "y"] for trace, kind in enumerate(_OVERLAP_KINDS)]
    return chart_of("Agreement of both models along the text", [*bars, none], axes | _stacked(), columns)


# ---- tokens against target calls ------------------------------------------------------------------------------------


def _call_points(step: Step, so_far: SoFar) -> Chart:
    calls = so_far.counters.calls["target"]
    return _appended(step, [[calls]] * 2, [[so_far.counters.num_emitted], [calls]])


def _empty_calls(theme: str) -> Chart:
    hover = "after %{x} target calls: %{y} tokens"
    run = line_of("this run", "accepted", theme, hover)
    alone = line_of("one by one: a token per call", "ignored", theme, hover)
    alone["line"] |= {"dash": "dash"}
    for trace in (run, alone):
        trace |= {"x": [0], "y": [0]}
    run["customdata"] = [[""]]
    axes = {
        "xaxis": {"title": {"text": "target calls"}, "rangemode": "tozero", "showgrid": False},
        "yaxis": {"title": {"text": "tokens"}, "rangemode": "tozero"},
    }
    columns = [["target calls", 0, "x"], ["tokens", 0, "y"], ["one by one", 1, "y"]]
    return chart_of("Tokens against target calls", [run, alone], axes, columns)


# ---- time per step --------------------------------------------------------------------------------------------------


def _time_points(step: Step, so_far: SoFar) -> Chart:
    timing = step.timing
    phases = [timing.draft_ms, timing.verify_ms, timing.accept_ms, timing.record_ms]
    other = max(0.0, timing.working_ms - sum(phases))
    times = [[round(spent, 2)] for spent in (*phases, other)]
    return _appended(step, [[step.index + 1]] * len(PHASES), times)


def _empty_times(theme: str) -> Chart:
    bars = [_bars(short_label(name), name, theme, f"step %{{x}}: %{{y:.1f}} ms {short_label(name)}") for name in PHASES]
    axes = {
        "xaxis": {"title": {"text": "step"}, "showgrid": False},
        "yaxis": {"title": {"text": "milliseconds, waiting left out"}, "rangemode": "tozero"},
    }
    return chart_of("Time per step", bars, axes | _stacked(), _columns("step", bars))


KINDS: Mapping[str, Kind] = {
    "step_bars": Kind(_empty_bars, _bar_points),
    "acceptance_by_depth": Kind(_empty_depths, _depth_points),
    "overlap_strip": Kind(_empty_overlap, _overlap_points),
    "tokens_by_calls": Kind(_empty_calls, _call_points),
    "time_by_step": Kind(_empty_times, _time_points),
}

# ---- parts ----------------------------------------------------------------------------------------------------------


def _appended(step: Step, x: Sequence[list], y: Sequence[list]) -> Chart:
    """One place for this step in every trace."""
    picks = [[[str(step.index)]], *([] for _ in x[1:])]
    return {"mode": "append", "x": list(x), "y": list(y), "customdata": picks}


def _columns(first: str, traces: Sequence[Chart]) -> list[list[Any]]:
    return [[first, 0, "x"], *([trace["name"], place, "y"] for place, trace in enumerate(traces))]


def _bars(name: str, status: str, theme: str, hover: str) -> Chart:
    marker = {"color": colour(status, theme), "pattern": {"shape": PATTERNS[status], "size": 6}}
    return _trace("bar", name, status, hover) | {"marker": marker}


def line_of(name: str, status: str, theme: str, hover: str) -> Chart:
    return _trace("scatter", name, status, hover) | {
        "mode": "lines",
        "line": {"color": colour(status, theme), "width": 2},
    }


def _trace(kind: str, name: str, status: str, hover: str) -> Chart:
    return {
        "type": kind,
        "name": name,
        "meta": {"status": status},
        "x": [],
        "y": [],
        "customdata": [],
        "hovertemplate": f"{hover}<extra></extra>",
    }


def _rate_axis(title: str) -> Chart:
    return {"title": {"text": title}, "range": [0, 1.02], "tickformat": ".0%", "tickmode": "linear", "dtick": 0.25}


def _stacked() -> Chart:
    return {"barmode": "stack", "bargap": 0.15}


def _note(text: str) -> Chart:
    """A line of words below a chart."""
    place = {"xref": "paper", "yref": "paper", "x": 0, "y": 0, "yshift": -60, "xanchor": "left", "yanchor": "top"}
    return {"text": text, **place, "align": "left", "showarrow": False, "font": {"size": 11}}


def chart_of(title: str, data: list[Chart], axes: Chart, columns: list[list[Any]]) -> Chart:
    """No background and no text colour: the page's own show through."""
    layout = {
        "template": {},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 48, "r": 48, "t": 28, "b": 40},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
        "meta": {"title": title, "table": columns},
    }
    return {"data": data, "layout": layout | axes}
