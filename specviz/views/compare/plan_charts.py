"""The charts of the plan: every K on one text, the paper's formula, depths of other drafts, factors of a speedup.

Whole figures in the format of `explore/charts.py`; colours follow the theme through `meta.status`. An unknown value is
None, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from typing import TYPE_CHECKING, Any

from specviz.analysis.theory import (
    cost_ratio,
    expected_tokens,
    measured_speedup,
    walltime_improvement,
)
from specviz.views.explore.charts import Chart, axes_of, chart_of, count_axis, line_of, list_columns
from specviz.views.palette import colour
from specviz.views.words import label

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
    """What this run did. speedup: None where none was measured; of_short_runs: in shorter runs of the same settings."""

    k: int
    target_calls: int
    tokens_per_call: float
    speedup: float | None
    of_short_runs: bool = False


def calls_chart(what_if: WhatIf, point: Point | None) -> Chart:
    """Target calls against K, with the band of 5 % to 95 %."""
    outcomes = what_if.outcomes
    ks = [outcome.k for outcome in outcomes]
    hover = "K %{x}: %{y:.1f} target calls"
    data = [
        curve("expected", "p", ks, [outcome.expected_target_calls for outcome in outcomes], hover),
        _edge("lower edge of the band (5 %)", ks, [outcome.calls_low for outcome in outcomes]),
        _edge("upper edge of the band (95 %)", ks, [outcome.calls_high for outcome in outcomes])
        | {"fill": "tonexty"},
        *_mark(ks, point, "target_calls", "this run: %{y} target calls at K %{x}"),
    ]
    return figure(
        f"Target calls for these {what_if.num_tokens:,} tokens", data, "K", "target calls"
    )


def tokens_chart(what_if: WhatIf, alpha: float | None, point: Point | None) -> Chart:
    """Tokens per target call against K: this text, and the paper's formula at the same alpha."""
    ks = [outcome.k for outcome in what_if.outcomes]
    hover = "K %{x}: %{y:.2f} tokens per target call"
    data = [
        curve(
            "this text, exactly",
            "p",
            ks,
            [outcome.tokens_per_call for outcome in what_if.outcomes],
            hover,
        )
    ]
    if alpha is not None:
        formula = [expected_tokens(alpha, k) for k in ks]
        data.append(curve(f"formula at alpha {alpha:.2f}", "q", ks, formula, hover, "dash"))
    data += _mark(ks, point, "tokens_per_call", "this run: %{y:.2f} at K %{x}")
    return figure("Tokens per target call", data, "K", "tokens per target call")


def speed_chart(
    what_if: WhatIf, alpha: float | None, costs: Costs | None, point: Point | None
) -> Chart:
    """Speedup against K: predicted for this text, by the formula with flat and with measured times."""
    ks = [outcome.k for outcome in what_if.outcomes]
    hover = "K %{x}: %{y:.2f} times as fast"
    data = [
        curve(
            "this text, measured times",
            "p",
            ks,
            [outcome.speedup for outcome in what_if.outcomes],
            hover,
        )
    ]
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
    """Acceptance by depth of every draft that could read the text, begun at every place alike."""
    known = [row for row in rows if row.what_if is not None]
    deepest = min([MOST_DEPTHS, *(len(row.what_if.by_depth) for row in known)])
    depths, hover = (
        range(1, deepest + 1),
        "%{fullData.name}: from %{y:.0%} of positions, %{x} tokens are accepted",
    )
    kept = [row.what_if.by_depth[:deepest] for row in known]
    data = [
        draft_curve(place, known[place].name, depths, shares, hover)
        for place, shares in enumerate(kept)
    ]
    title, survivors = "Acceptance by depth, from every position", "drafts surviving to it"
    return figure(title, data, "depth in the draft", survivors, in_percent=True)


def factors_chart(breakdown: Breakdown) -> Chart:
    """From the ideal to the measured speedup: each bar goes from one product to the next, on a log axis."""
    factors = breakdown.factors
    names = ["ideal", *(factor.name for factor in factors), "measured"]
    products = [
        *accumulate((factor.value for factor in factors), mul, initial=float(breakdown.ideal))
    ]
    spans = [(1.0, products[0]), *pairwise(products), (1.0, breakdown.speedup)]
    kinds = ["total", *("costs" if factor.value < 1 else "helps" for factor in factors), "total"]
    data = []
    for kind, name, status, pattern in _SPAN_KINDS:
        ends = [
            sorted(span) if each == kind else None for span, each in zip(spans, kinds, strict=True)
        ]
        bars = {
            "type": "bar",
            "name": name,
            "meta": {"status": status},
            "x": list(names),
            "base": [None if end is None else round(end[0], 4) for end in ends],
            "y": [None if end is None else round(end[1] - end[0], 4) for end in ends],
            "marker": {"color": colour(status), "pattern": {"shape": pattern, "size": 6}},
            "textposition": "none",
            "hovertemplate": f"%{{x}}: from %{{base:.2f}}<extra>{name}</extra>",
        }
        data.append(bars)
    shown = (f"x {factor.value:.2f}" for factor in factors)
    data[0]["text"] = [f"{breakdown.ideal}x", *shown, f"{breakdown.speedup:.2f}x"]
    made = figure(
        "From the ideal to the measured speedup", data, "", "times as fast as no draft (log)"
    )
    made["layout"]["yaxis"]["type"] = "log"
    made["layout"] |= {"barmode": "overlay", "bargap": 0.25}
    made["layout"]["meta"]["table"] = [["factor", 0, "x"], ["value", 0, "text"]]
    return made


_SPAN_KINDS = (
    ("total", "start and end", "plain", ""),
    ("costs", "makes it slower", "rejected", "x"),
    ("helps", "makes it faster", "accepted", "/"),
)


def draft_curve(
    place: int, name: str, x: Sequence[Any], y: Sequence[float | None], hover: str
) -> Chart:
    """The curve of the draft at this place among the drafts, which keeps its colour, dash and symbol in all charts."""
    status, dash, symbol = DRAFT_STYLES[place % len(DRAFT_STYLES)]
    marker = {"color": colour(status), "symbol": symbol, "size": 8}
    return curve(label(name), status, x, y, hover, dash) | {
        "mode": "lines+markers",
        "marker": marker,
    }


def curve(
    name: str,
    status: str,
    x: Sequence[Any],
    y: Sequence[float | None],
    hover: str,
    dash: str = "solid",
) -> Chart:
    """A line through these points; not-a-number is left out."""
    made = line_of(name, status, hover)
    known = [
        None if value is None or not math.isfinite(value) else round(float(value), 4) for value in y
    ]
    return made | {"x": list(x), "y": known, "line": {**made["line"], "dash": dash}}


def _edge(name: str, x: Sequence[int], y: Sequence[float]) -> Chart:
    edge = curve(name, "p", x, y, f"K %{{x}}: %{{y}} ({name})", "dot")
    return edge | {"line": {**edge["line"], "width": 1}}


def _mark(
    ks: Sequence[int], point: Point | None, attribute: str, hover: str, name: str = THIS_RUN
) -> list[Chart]:
    """The run's own value as a star at its K, if that is one of these."""
    value = getattr(point, attribute, None)
    if value is None or point.k not in ks:
        return []
    marked = curve(name, "plain", ks, [value if k == point.k else None for k in ks], hover)
    return [
        marked
        | {"mode": "markers", "marker": {"color": colour("plain"), "size": 13, "symbol": "star"}}
    ]


def figure(title: str, data: list[Chart], x: str, y: str, *, in_percent: bool = False) -> Chart:
    own = {"range": [0, 1.02], "tickformat": ".0%"} if in_percent else {}
    axes = axes_of(x, count_axis(y) | own, automargin=True) | {"showlegend": True}
    return chart_of(title, data, axes, list_columns(x, data))
