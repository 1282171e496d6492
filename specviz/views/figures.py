"""Summary charts of a run as plotly figures: stacked bars per step, and acceptance by depth.

A chart is plain data until somebody asks for a plotly Figure: `Figures` gives empty charts and, per step, the points to
append or the arrays to replace, in the shapes that Plotly's extendTraces and restyle take. Numbers come from Counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specviz.counters import Counters, DepthRates
from specviz.trace import Step, Trace
from specviz.views.palette import colour, short_label

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FEW = 20  # rates from fewer observations are drawn hollow
DEEPEST = 64  # a chart of more depths says no more, and each step would send it again
BAR_STATUSES = ("accepted", "rejected", "ignored")
PATTERNS = {"accepted": "", "rejected": "x", "ignored": "."}  # never colour alone
SELECTION_NOTE = "Selection effect: a depth is judged only where all before it were kept, and K decides where that is."
Chart = dict[str, Any]


def step_bars(trace: Trace, theme: str = "light") -> Figure:
    """One bar per step (kept, cut, not judged) and the running rate kept / judged on a second axis."""
    return _figure("step_bars", trace, theme)


def acceptance_by_depth(trace: Trace, theme: str = "light") -> Figure:
    """Joint and conditional rate per depth with 95 % Wilson intervals; hollow where n < 20."""
    return _figure("acceptance_by_depth", trace, theme)


class Figures:
    """Both charts of a run, growing: `initial` once, then `extend` with each step in order, in O(K)."""

    def __init__(self, theme: str = "light") -> None:
        self._theme = theme
        self._counters = Counters()

    def initial(self) -> dict[str, Chart]:
        """Empty charts by name, as plain JSON values {"data", "layout"}."""
        return {"step_bars": _empty_bars(self._theme), "acceptance_by_depth": _empty_depths(self._theme)}

    def extend(self, step: Step) -> dict[str, Chart]:
        """Per chart {"mode": "append" | "replace", "x": [a list per plotly trace], "y": ..., dotted attribute: ...}."""
        before = dict(self._counters.statuses)
        self._counters.add(step)
        return {
            "step_bars": _bar_points(step, before, self._counters),
            "acceptance_by_depth": _depth_points(self._counters.by_depth(DEEPEST)),
        }


def apply_points(chart: Chart, points: Chart) -> None:
    """What the browser does with `points`, done to a chart's data in place."""
    for name, columns in points.items():
        if name == "mode":
            continue
        *holders, last = name.split(".")
        for plotted, values in zip(chart["data"], columns, strict=True):
            for holder in holders:
                plotted = plotted[holder]
            if points["mode"] == "append":
                plotted[last].extend(values)
            else:
                plotted[last] = list(values)


def _figure(name: str, trace: Trace, theme: str) -> Figure:
    from plotly.graph_objects import Figure

    growing = Figures(theme)
    chart = growing.initial()[name]
    for step in trace.steps:
        apply_points(chart, growing.extend(step)[name])
    return Figure(chart)


def _bar_points(step: Step, before: dict[str, int], counters: Counters) -> Chart:
    counts = [[counters.statuses[status] - before[status]] for status in BAR_STATUSES]
    rate = counters.statuses["accepted"] / counters.num_judged if counters.num_judged else None
    return {"mode": "append", "x": [[step.index + 1]] * 4, "y": [*counts, [rate]]}


def _depth_points(rates: Sequence[DepthRates]) -> Chart:
    joint = [(rate.joint, rate.joint_low, rate.joint_high, rate.drafted) for rate in rates]
    conditional = [(rate.conditional, rate.conditional_low, rate.conditional_high, rate.judged) for rate in rates]
    both = (joint, conditional)
    return {
        "mode": "replace",
        "x": [[rate.depth for rate in rates]] * 2,
        "y": [[value for value, _, _, _ in rows] for rows in both],
        "error_y.array": [[_distance(high, value) for value, _, high, _ in rows] for rows in both],
        "error_y.arrayminus": [[_distance(value, low) for value, low, _, _ in rows] for rows in both],
        "marker.symbol": [["circle-open" if n < FEW else "circle" for *_, n in rows] for rows in both],
        "customdata": [[n for *_, n in rows] for rows in both],
    }


def _distance(high: float | None, low: float | None) -> float:
    return 0.0 if high is None or low is None else max(0.0, high - low)


def _empty_bars(theme: str) -> Chart:
    bars = [
        {
            "type": "bar",
            "name": short_label(status),
            "meta": {"status": status},
            "x": [],
            "y": [],
            "marker": {"color": colour(status, theme), "pattern": {"shape": PATTERNS[status], "size": 6}},
            "hovertemplate": f"step %{{x}}: %{{y}} {short_label(status)}<extra></extra>",
        }
        for status in BAR_STATUSES
    ]
    rate = {
        "type": "scatter",
        "mode": "lines",
        "name": "kept / judged so far",
        "meta": {"status": "plain"},
        "x": [],
        "y": [],
        "yaxis": "y2",
        "line": {"color": colour("plain", theme), "width": 2},
        "hovertemplate": "up to step %{x}: %{y:.0%} of judged kept<extra></extra>",
    }
    axes = {
        "xaxis": {"title": {"text": "step"}, "showgrid": False},
        "yaxis": {"title": {"text": "drafted tokens"}, "rangemode": "tozero"},
        "yaxis2": {**_rate_axis("kept / judged so far"), "overlaying": "y", "side": "right", "showgrid": False},
    }
    return {"data": [*bars, rate], "layout": {**_layout(), **axes, "barmode": "stack", "bargap": 0.15}}


def _empty_depths(theme: str) -> Chart:
    note = {
        "text": SELECTION_NOTE,
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": 0,
        "yshift": -60,
        "xanchor": "left",
        "yanchor": "top",
        "align": "left",
        "showarrow": False,
        "font": {"size": 11},
    }
    axes = {
        "xaxis": {"title": {"text": "depth in the draft"}, "dtick": 1, "showgrid": False},
        "yaxis": _rate_axis("rate"),
    }
    layout = {**_layout(), **axes, "annotations": [note], "showlegend": True}
    layout["margin"] = {**layout["margin"], "b": 84}
    return {"data": [_depth_line(*line, theme) for line in _DEPTH_LINES], "layout": layout}


_DEPTH_LINES = (
    ("kept this deep, of steps that drafted this deep", "plain", "dot"),
    ("kept, of tokens judged at this depth", "accepted", "solid"),
)


def _depth_line(name: str, status: str, dash: str, theme: str) -> Chart:
    shade = colour(status, theme)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "meta": {"status": status},
        "x": [],
        "y": [],
        "customdata": [],
        "error_y": {"type": "data", "symmetric": False, "array": [], "arrayminus": [], "color": shade, "thickness": 1},
        "line": {"color": shade, "dash": dash},
        "marker": {"color": shade, "size": 9, "symbol": []},
        "hovertemplate": "depth %{x}: %{y:.0%}, n = %{customdata}<extra></extra>",
    }


def _rate_axis(title: str) -> Chart:
    return {"title": {"text": title}, "range": [0, 1.02], "tickformat": ".0%", "tickmode": "linear", "dtick": 0.25}


def _layout() -> Chart:
    """No background and no text colour: the page's own show through."""
    return {
        "template": {},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 48, "r": 48, "t": 28, "b": 40},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
    }
