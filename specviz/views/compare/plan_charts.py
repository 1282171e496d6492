"""The charts of the plan: every K on one text, the paper's formula, depths of other drafts, factors of a speedup.

Each is a whole figure in the format of `explore/charts.py`. Colours follow the theme through `meta.status`. An unknown
value is None, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specviz.analysis.theory import (
    cost_ratio,
    expected_tokens,
    measured_speedup,
    walltime_improvement,
)
from specviz.views.explore.charts import Chart, axes_of, chart_of, count_axis, line_of, list_columns
from specviz.views.palette import colour
from specviz.views.words import draft_label

if TYPE_CHECKING:
    from specviz.analysis.breakdown import Breakdown
    from specviz.analysis.costs import Costs
    from specviz.analysis.every_k import DraftOnText
    from specviz.analysis.whatif import WhatIf

DRAFT_STYLES = (
    ("q", "solid", "circle"), ("p", "dash", "square"), ("accepted", "dot", "diamond"), ("bonus", "dashdot", "cross"),
    ("plain", "longdash", "triangle-up"), ("rejected", "longdashdot", "x"),
)  # fmt: skip  # never colour alone
MOST_DEPTHS = 16
THIS_RUN = "this run"


@dataclass(frozen=True, slots=True)
class Point:
    """The values of this run."""

    k: int
    target_calls: int
    tokens_per_call: float
    speedup: float | None
    """The measured speedup, if there is one."""
    of_short_runs: bool = False
    """Whether the speedup was measured in shorter runs of the same settings."""


def calls_chart(what_if: WhatIf, point: Point | None) -> Chart:
    """Target calls against K, with the band of 5 % to 95 %."""
    outcomes = what_if.outcomes
    ks = [outcome.k for outcome in outcomes]
    expected = [outcome.expected_target_calls for outcome in outcomes]
    low = _edge("lower edge of the band (5 %)", ks, [outcome.calls_low for outcome in outcomes])
    high = _edge("upper edge of the band (95 %)", ks, [outcome.calls_high for outcome in outcomes])
    high["fill"] = "tonexty"
    data = [
        curve("expected", "p", ks, expected, "K %{x}: %{y:.1f} target calls"),
        low,
        high,
        *_mark(ks, point, "target_calls", "this run: %{y} target calls at K %{x}"),
    ]
    title = f"Target calls for these {what_if.num_tokens:,} tokens"
    return figure(title, data, "K", "target calls")


def tokens_chart(what_if: WhatIf, alpha: float | None, point: Point | None) -> Chart:
    """Tokens per target call against K: this text, and the paper's formula at the same alpha."""
    ks = [outcome.k for outcome in what_if.outcomes]
    hover = "K %{x}: %{y:.2f} tokens per target call"
    exact = [outcome.tokens_per_call for outcome in what_if.outcomes]
    data = [curve("this text, exactly", "p", ks, exact, hover)]
    if alpha is not None:
        formula = [expected_tokens(alpha, k) for k in ks]
        data.append(curve(f"formula at alpha {alpha:.2f}", "q", ks, formula, hover, "dash"))
    data += _mark(ks, point, "tokens_per_call", "this run: %{y:.2f} at K %{x}")
    return figure("Tokens per target call", data, "K", "tokens per target call")


def speed_chart(
    what_if: WhatIf, alpha: float | None, costs: Costs | None, point: Point | None
) -> Chart:
    """Speedup against K: predicted for this text, and by the formula with flat and with measured times."""
    ks = [outcome.k for outcome in what_if.outcomes]
    hover = "K %{x}: %{y:.2f} times as fast"
    predicted = [outcome.speedup for outcome in what_if.outcomes]
    data = [curve("this text, measured times", "p", ks, predicted, hover)]
    if alpha is not None and costs is not None:
        c = cost_ratio(costs)
        flat = [walltime_improvement(alpha, k, c) for k in ks]
        data.append(curve(f"formula, alpha {alpha:.2f}, c {c:.2f}", "q", ks, flat, hover, "dash"))
        measured = [measured_speedup(alpha, k, costs) for k in ks]
        data.append(curve("formula, measured times", "bonus", ks, measured, hover, "dot"))
    data.append(curve("no draft", "ignored", ks, [1.0] * len(ks), "no draft: 1", "longdash"))
    name = "measured in short runs" if point is not None and point.of_short_runs else THIS_RUN
    data += _mark(ks, point, "speedup", f"{name}: %{{y:.2f}} at K %{{x}}", name)
    return figure("Speedup over no draft", data, "K", "times as fast")


def depths_chart(rows: Sequence[DraftOnText]) -> Chart:
    """Acceptance by depth of every draft that could read the text, counted from every position."""
    known = [row for row in rows if row.what_if is not None]
    deepest = min([MOST_DEPTHS, *(len(row.what_if.by_depth) for row in known)])
    depths = range(1, deepest + 1)
    hover = "%{fullData.name}: from %{y:.0%} of positions, %{x} tokens are accepted"
    data = []
    for place, row in enumerate(known):
        shares = row.what_if.by_depth[:deepest]
        data.append(draft_curve(place, row.name, depths, shares, hover))
    title = "Acceptance by depth, from every position"
    return figure(title, data, "depth in the draft", "drafts surviving to it", in_percent=True)


def factors_chart(breakdown: Breakdown) -> Chart:
    """The way from the ideal to the measured speedup: each bar goes from one product to the next, on a log axis."""
    product = float(breakdown.ideal)
    names = ["ideal"]
    words = [f"{breakdown.ideal}x"]
    spans = [("total", 1.0, product)]  # (kind, start, end)
    for factor in breakdown.factors:
        names.append(factor.name)
        words.append(f"x {factor.value:.2f}")
        kind = "costs" if factor.value < 1 else "helps"
        spans.append((kind, product, product * factor.value))
        product *= factor.value
    names.append("measured")
    words.append(f"{breakdown.speedup:.2f}x")
    spans.append(("total", 1.0, breakdown.speedup))
    data = [_span_bars(spans, names, *kind) for kind in _SPAN_KINDS]
    data[0]["text"] = words
    title = "From the ideal to the measured speedup"
    chart = figure(title, data, "", "times as fast as no draft (log)")
    layout = chart["layout"]
    layout["yaxis"]["type"] = "log"
    layout |= {"barmode": "overlay", "bargap": 0.25}
    layout["meta"]["table"] = [["factor", 0, "x"], ["value", 0, "text"]]
    return chart


def _span_bars(
    spans: Sequence[tuple[str, float, float]],
    names: Sequence[str],
    kind: str,
    title: str,
    status: str,
    pattern: str,
) -> Chart:
    """The bars of one kind of span; None at the places of the others."""
    bases: list[float | None] = []
    heights: list[float | None] = []
    for span_kind, start, end in spans:
        is_shown = span_kind == kind
        low = min(start, end)
        bases.append(round(low, 4) if is_shown else None)
        heights.append(round(max(start, end) - low, 4) if is_shown else None)
    return {
        "type": "bar",
        "name": title,
        "meta": {"status": status},
        "x": list(names),
        "base": bases,
        "y": heights,
        "marker": {"color": colour(status), "pattern": {"shape": pattern, "size": 6}},
        "textposition": "none",
        "hovertemplate": f"%{{x}}: from %{{base:.2f}}<extra>{title}</extra>",
    }


_SPAN_KINDS = (  # (kind, title, status, pattern)
    ("total", "start and end", "plain", ""),
    ("costs", "makes it slower", "rejected", "x"),
    ("helps", "makes it faster", "accepted", "/"),
)


def draft_curve(
    place: int, name: str, x: Sequence[Any], y: Sequence[float | None], hover: str
) -> Chart:
    """The curve of the draft at this place among the drafts; it has the same colour, dash and symbol in all charts."""
    number = len(DRAFT_STYLES)
    status, _, _ = DRAFT_STYLES[place % number]
    _, dash, symbol = DRAFT_STYLES[(place + place // number) % number]
    chart = curve(draft_label(name), status, x, y, hover, dash)
    chart["mode"] = "lines+markers"
    chart["marker"] = {"color": colour(status), "symbol": symbol, "size": 8}
    return chart


def curve(
    name: str,
    status: str,
    x: Sequence[Any],
    y: Sequence[float | None],
    hover: str,
    dash: str = "solid",
) -> Chart:
    """A line through these points; a value that is not a finite number leaves a gap."""
    heights = []
    for value in y:
        is_known = value is not None and math.isfinite(value)
        heights.append(round(float(value), 4) if is_known else None)
    chart = line_of(name, status, hover)
    chart["x"] = list(x)
    chart["y"] = heights
    chart["line"]["dash"] = dash
    return chart


def _edge(name: str, x: Sequence[int], y: Sequence[float]) -> Chart:
    """The thin line at one side of a band."""
    edge = curve(name, "p", x, y, f"K %{{x}}: %{{y}} ({name})", "dot")
    edge["line"]["width"] = 1
    return edge


def _mark(
    ks: Sequence[int], point: Point | None, attribute: str, hover: str, name: str = THIS_RUN
) -> list[Chart]:
    """The run's own value as a star at its K, if that is one of these."""
    value = getattr(point, attribute, None)
    if value is None or point.k not in ks:
        return []
    y: list[float | None] = [None] * len(ks)
    y[ks.index(point.k)] = value
    star = curve(name, "plain", ks, y, hover)
    star["mode"] = "markers"
    star["marker"] = {"color": colour("plain"), "size": 13, "symbol": "star"}
    return [star]


def figure(title: str, data: list[Chart], x: str, y: str, *, in_percent: bool = False) -> Chart:
    """A whole figure of these traces; `x` and `y` are the titles of its axes."""
    y_axis = count_axis(y)
    if in_percent:
        y_axis |= {"range": [0, 1.02], "tickformat": ".0%"}
    axes = axes_of(x, y_axis, automargin=True)
    axes["showlegend"] = True
    return chart_of(title, data, axes, list_columns(x, data))
