"""The charts of the plan: every K on one text, the paper's curve beside it, depths of other drafts, factors of a speed.

Whole figures as plain data, computed here, in `charts.py`'s format; colours follow the theme through `meta.status`.
What is not known is None, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from specviz.analysis.theory import cost_ratio, expected_tokens, measured_speedup, walltime_improvement
from specviz.views.explore.charts import Chart, chart_of, line_of
from specviz.views.explore.sentences import label
from specviz.views.palette import THEMES, colour

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
    """What this run really did. speedup is None where it was not measured; of_short_runs: it is that of other runs,
    shorter ones with the same settings, in turn with runs without a draft."""

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
        _curve("expected", "p", ks, [outcome.expected_target_calls for outcome in outcomes], hover),
        _edge("low end of the band (5 %)", ks, [outcome.calls_low for outcome in outcomes]),
        _edge("high end of the band (95 %)", ks, [outcome.calls_high for outcome in outcomes]) | {"fill": "tonexty"},
        *_mark(ks, point, None if point is None else point.target_calls, "this run: %{y} target calls at K %{x}"),
    ]
    return _figure(f"Target calls for these {what_if.num_tokens:,} tokens", data, "K", "target calls")


def tokens_chart(what_if: WhatIf, alpha: float | None, point: Point | None) -> Chart:
    """Tokens per target call against K: this text, and the paper's formula at the same alpha."""
    ks = [outcome.k for outcome in what_if.outcomes]
    hover = "K %{x}: %{y:.2f} tokens per target call"
    data = [_curve("this text, exactly", "p", ks, [outcome.tokens_per_call for outcome in what_if.outcomes], hover)]
    if alpha is not None:
        formula = [expected_tokens(alpha, k) for k in ks]
        data.append(_curve(f"the formula at alpha {alpha:.2f}", "q", ks, formula, hover, "dash"))
    data += _mark(ks, point, None if point is None else point.tokens_per_call, "this run: %{y:.2f} at K %{x}")
    return _figure("Tokens per target call", data, "K", "tokens per target call")


def speed_chart(what_if: WhatIf, alpha: float | None, costs: Costs | None, point: Point | None) -> Chart:
    """Speedup against K: predicted for this text, by the formula with flat and with measured times."""
    ks = [outcome.k for outcome in what_if.outcomes]
    hover = "K %{x}: %{y:.2f} times as fast"
    speeds = [outcome.speedup for outcome in what_if.outcomes]
    data = [_curve("this text, measured times", "p", ks, speeds, hover)]
    if alpha is not None and costs is not None:
        c = cost_ratio(costs)
        flat = [walltime_improvement(alpha, k, c) for k in ks]
        data.append(_curve(f"the formula, alpha {alpha:.2f}, c {c:.2f}", "q", ks, flat, hover, "dash"))
        measured = [measured_speedup(alpha, k, costs) for k in ks]
        data.append(_curve("the formula, measured times", "bonus", ks, measured, hover, "dot"))
    data.append(_curve("one by one", "ignored", ks, [1.0] * len(ks), "one by one: 1", "longdash"))
    name = "measured in short runs" if point is not None and point.of_short_runs else THIS_RUN
    data += _mark(ks, point, None if point is None else point.speedup, f"{name}: %{{y:.2f}} at K %{{x}}", name)
    return _figure("Speedup over one by one", data, "K", "times as fast")


def depths_chart(rows: Sequence[DraftOnText]) -> Chart:
    """Acceptance by depth of every draft that could read the text, begun at every place alike."""
    known = [row for row in rows if row.what_if is not None]
    deepest = min([MOST_DEPTHS, *(len(row.what_if.by_depth) for row in known)])
    depths, data = list(range(1, deepest + 1)), []
    for place, row in enumerate(known):
        status, dash, symbol = DRAFT_STYLES[place % len(DRAFT_STYLES)]
        hover = "%{fullData.name}: %{y:.0%} of all starts keep %{x} tokens"
        line = _curve(label(row.name), status, depths, row.what_if.by_depth[:deepest], hover, dash)
        data.append(line | {"mode": "lines+markers", "marker": {"color": colour(status), "symbol": symbol, "size": 8}})
    made = _figure("Kept by depth, from every place of the text", data, "depth in the draft", "kept so deep")
    made["layout"]["yaxis"] |= {"range": [0, 1.02], "tickformat": ".0%"}
    return made


def factors_chart(breakdown: Breakdown) -> Chart:
    """From the ideal to the measured speedup: each bar goes from one product to the next, on a log axis."""
    names = ["ideal", *(factor.name for factor in breakdown.factors), "measured"]
    products = [float(breakdown.ideal)]
    for factor in breakdown.factors:
        products.append(products[-1] * factor.value)
    spans = [(1.0, products[0]), *pairwise(products), (1.0, breakdown.speedup)]
    shown = [f"{breakdown.ideal}x", *(f"x {factor.value:.2f}" for factor in breakdown.factors)]
    shown.append(f"{breakdown.speedup:.2f}x")
    kinds = ["total", *("costs" if factor.value < 1 else "helps" for factor in breakdown.factors), "total"]
    data = [
        _span_bars(name, status, pattern, names, [s if k == kind else None for s, k in zip(spans, kinds, strict=True)])
        for kind, name, status, pattern in _SPAN_KINDS
    ]
    data[0]["text"] = shown
    made = _figure("From the ideal to the measured speedup", data, "", "times as fast as one by one (log)")
    made["layout"]["yaxis"]["type"] = "log"
    made["layout"] |= {"barmode": "overlay", "bargap": 0.25}
    made["layout"]["meta"]["table"] = [["factor", 0, "x"], ["value", 0, "text"]]
    return made


_SPAN_KINDS = (
    ("total", "start and end", "plain", ""),
    ("costs", "makes it slower", "rejected", "x"),
    ("helps", "makes it faster", "accepted", "/"),
)


def _span_bars(
    name: str, status: str, pattern: str, names: Sequence[str], spans: Sequence[tuple[float, float] | None]
) -> Chart:
    """Bars that hang between two heights, where there is a span."""
    ends = [None if span is None else (min(span), max(span)) for span in spans]
    return {
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


# ---- parts ----------------------------------------------------------------------------------------------------------


def _curve(name: str, status: str, x: Sequence[int], y: Sequence[float | None], hover: str, dash: str = "") -> Chart:
    made = line_of(name, status, THEMES[0], hover)
    made |= {"x": list(x), "y": [_finite(value) for value in y]}
    return made | {"line": {**made["line"], "dash": dash or "solid"}}


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), 4)


def _edge(name: str, x: Sequence[int], y: Sequence[float]) -> Chart:
    """One edge of a band."""
    edge = _curve(name, "p", x, y, f"K %{{x}}: %{{y}} ({name})", "dot")
    return edge | {"line": {**edge["line"], "width": 1}}


def _mark(ks: Sequence[int], point: Point | None, value: float | None, hover: str, name: str = THIS_RUN) -> list[Chart]:
    """The run's own mark, at its K among these."""
    if point is None or value is None or point.k not in ks:
        return []
    marked = _curve(name, "plain", ks, [value if k == point.k else None for k in ks], hover)
    return [marked | {"mode": "markers", "marker": {"color": colour("plain"), "size": 13, "symbol": "star"}}]


def _figure(title: str, data: list[Chart], x: str, y: str) -> Chart:
    axes = {
        "xaxis": {"title": {"text": x}, "showgrid": False, "automargin": True},
        "yaxis": {"title": {"text": y}, "rangemode": "tozero"},
        "showlegend": True,
    }
    return chart_of(title, data, axes, [[x, 0, "x"], *([each["name"], place, "y"] for place, each in enumerate(data))])
