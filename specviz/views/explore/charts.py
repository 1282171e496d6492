"""The charts of a run as plain data: empty plotly figures, and the points that each step adds to them.

All traces of a chart have the same places. At each place, the first trace's `customdata` begins with "step" or
"step:token", which a click selects. `layout.meta.table` lists the table's columns: [title, trace, attribute, index...].
Points have the shapes that Plotly's extendTraces and restyle take; numbers come from Counters.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from specviz.trace import Step
from specviz.trace.counters import Counters, rate_of
from specviz.views.explore.inspector import ref_of
from specviz.views.explore.message import Chart
from specviz.views.palette import colour, word_of
from specviz.views.words import percent, token_label

FEW = 20  # a rate of fewer observations is drawn hollow
DIGITS = 4  # decimals of a share
OF_RATE = ("y", "error_y.array", "error_y.arrayminus", "marker.symbol", "customdata")
DEEPEST = 64  # more depths would tell nothing new, and each step sends them all
BAR_STATUSES = ("accepted", "rejected", "ignored")
OVERLAP_KINDS = ("accepted", "resampled")
PHASES = ("draft", "verify", "accept", "record", "other")
PATTERNS = {
    "accepted": "", "rejected": "x", "ignored": ".", "resampled": "/",
    "draft": "/", "verify": "", "accept": "x", "record": ".", "other": "-",
}  # fmt: skip  # never colour alone
DEPTH_LINES = (
    ("drafts surviving to this depth", "plain", "dot"),
    ("acceptance rate at this depth", "accepted", "solid"),
)
SELECTION_NOTE = "Selection effect: a later depth is judged only after all earlier ones passed."
STACKED = {"barmode": "stack", "bargap": 0.15}


class Figures:
    """All charts of a run while it grows: `initial` once, then `extend` with each step in order, in O(K)."""

    def __init__(self, counters: Counters) -> None:
        """counters: of all steps so far; somebody else adds each step to them before it comes here."""
        self.counters = counters
        self.judged_at: dict[int, str] = {}  # depth -> the place of its newest judged token

    def initial(self) -> dict[str, Chart]:
        """Empty charts by name, as plain JSON values {"data", "layout"}."""
        return {name: empty() for name, (empty, _) in KINDS.items()}

    def extend(self, step: Step) -> dict[str, Chart]:
        """The points that a step adds, by chart.

        {"mode": "append" | "replace", "x": [a list per plotly trace], "y": ..., dotted attribute: ...}
        """
        for node, token in enumerate(step.draft):
            if token.is_judged:
                self.judged_at[token.depth] = f"{step.index}:{node}"
        return {name: points(step, self) for name, (_, points) in KINDS.items()}


def _bar_points(step: Step, so_far: Figures) -> Chart:
    """How many tokens were accepted, rejected and not judged, and the rate accepted / judged so far."""
    statuses = [token.status for token in step.draft]
    counts = [[statuses.count(status)] for status in BAR_STATUSES]
    counters = so_far.counters
    judged = counters.num_judged
    rate = round(counters.statuses["accepted"] / judged, DIGITS) if judged else None
    return _append(step, step.index + 1, [*counts, [rate]])


def _empty_bars() -> Chart:
    bars = [_bars(status, f"step %{{x}}: %{{y}} {word_of(status)}") for status in BAR_STATUSES]
    hover = "up to step %{x}: acceptance rate %{y:.0%}"
    rate = line_of("acceptance rate so far", "plain", hover) | {"yaxis": "y2"}
    right = {
        **_rate_axis("acceptance rate so far"),
        "overlaying": "y",
        "side": "right",
        "showgrid": False,
    }
    axes = axes_of("step", count_axis("draft tokens")) | {"yaxis2": right} | STACKED
    traces = [*bars, rate]
    return chart_of("Accepted and rejected", traces, axes, list_columns("step", traces))


def _depth_points(step: Step, so_far: Figures) -> Chart:
    """Joint and conditional rate with 95 % Wilson intervals; hollow where n < FEW."""
    counts = so_far.counters.counts_by_depth(DEEPEST)
    depths = range(1, len(counts) + 1)
    places = [so_far.judged_at.get(depth, "") for depth in depths]
    chart: Chart = {"mode": "replace", "x": [list(depths)] * 2, **{name: [] for name in OF_RATE}}
    for whole in (1, 2):  # drafted, judged
        points = []
        for place, row in zip(places, counts, strict=True):
            *point, words = _rate_point(row[0], row[whole])
            points.append((*point, [place, row[whole], *words]))
        for index, name in enumerate(OF_RATE):
            chart[name].append([point[index] for point in points])
    return chart


@lru_cache(maxsize=1 << 12)
def _rate_point(accepted: int, n: int) -> tuple[float | None, float, float, str, Sequence[str]]:
    """The values of OF_RATE for accepted / n; of the last one, the words for the rate and for its interval."""
    value, low, high = rate_of(accepted, n)
    if value is None:
        return None, 0.0, 0.0, "circle-open", ("–", "–")
    distances = [round(max(0.0, distance), DIGITS) for distance in (high - value, value - low)]
    words = (percent(value), f"{percent(low)} to {percent(high)}")
    return round(value, DIGITS), *distances, "circle-open" if n < FEW else "circle", words


def _empty_depths() -> Chart:
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
    axes = axes_of("depth in the draft", _rate_axis("rate"), dtick=1)
    axes |= {"annotations": [note], "showlegend": True}
    columns = [["depth", 0, "x"]]
    for trace, (name, _, _) in enumerate(DEPTH_LINES):
        columns += [[name, trace, "customdata", 2], ["n", trace, "customdata", 1]]
        columns += [["95 % interval (Wilson)", trace, "customdata", 3]]
    lines = [_depth_line(*line) for line in DEPTH_LINES]
    chart = chart_of("Accepted by depth", lines, axes, columns)
    chart["layout"]["margin"]["b"] = 84
    return chart


def _depth_line(name: str, status: str, dash: str) -> Chart:
    shade = colour(status)
    hover = "depth %{x}: %{customdata[2]}, n = %{customdata[1]}, 95 % interval %{customdata[3]}"
    return line_of(name, status, hover) | {
        "mode": "lines+markers",
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [],
            "arrayminus": [],
            "color": shade,
            "thickness": 1,
        },
        "line": {"color": shade, "dash": dash},
        "marker": {"color": shade, "size": 9, "symbol": []},
        "cliponaxis": False,
    }


def _overlap_points(step: Step, so_far: Figures) -> Chart:
    """The recorded sum of min(p, q) at the draw of each token of the text, or at the rejection before it."""
    first = so_far.counters.num_emitted - len(step.emitted) + 1
    places = list(range(first, first + len(step.emitted)))
    by_kind: dict[str, list[float | None]] = {kind: [] for kind in OVERLAP_KINDS}
    missing: list[int | None] = []
    words = []
    overlaps: dict[int | None, float | None] = {}  # None: of a token that was not drafted
    for position in step.positions:
        if position.child is not None:
            overlaps[position.child] = overlaps[None] = position.overlap
    for token in step.emitted:
        overlap = overlaps.get(token.node) if token.kind in OVERLAP_KINDS else None
        for kind, values in by_kind.items():
            is_known = overlap is not None and token.kind == kind
            values.append(round(overlap, DIGITS) if is_known else None)
        missing.append(0 if overlap is None else None)
        words.append([f"{step.index}:{ref_of(token)}", token_label(token)])
    y = [*by_kind.values(), missing]
    return {"mode": "append", "x": [places] * 3, "y": y, "customdata": [words, [], []]}


def _empty_overlap() -> Chart:
    bars = [_bars(kind, "token %{x}: the models agree %{y:.0%}") for kind in OVERLAP_KINDS]
    hover = "token %{x}: agreement not recorded, as no single draft token was judged here"
    none = line_of("not recorded", "ignored", hover) | {"mode": "markers"}
    none["marker"] = {"color": colour("ignored"), "size": 5, "symbol": "x"}
    axes = axes_of("token of the text", _rate_axis("sum of min(p, q)"))
    columns = [["token", 0, "x"], ["text", 0, "customdata", 1]]
    for trace, kind in enumerate(OVERLAP_KINDS):
        columns.append([f"agreement, {word_of(kind)}", trace, "y"])
    title = "Agreement of both models along the text"
    return chart_of(title, [*bars, none], axes | STACKED, columns)


def _call_points(step: Step, so_far: Figures) -> Chart:
    """Tokens written so far against target calls so far, and one token per call."""
    calls = so_far.counters.calls["target"]
    return _append(step, calls, [[so_far.counters.num_emitted], [calls]])


def _empty_calls() -> Chart:
    hover = "after %{x} target calls: %{y} tokens"
    run = line_of("this run", "accepted", hover)
    alone = line_of("without a draft: one token per call", "ignored", hover)
    alone["line"]["dash"] = "dash"
    for trace in (run, alone):
        trace |= {"x": [0], "y": [0]}
    run["customdata"] = [[""]]
    axes = axes_of("target calls", count_axis("tokens"), rangemode="tozero")
    columns = [["target calls", 0, "x"], ["tokens", 0, "y"], ["without a draft", 1, "y"]]
    return chart_of("Tokens against target calls", [run, alone], axes, columns)


def _time_points(step: Step, _so_far: Figures) -> Chart:
    """Milliseconds of each phase, and the rest of the step's total without waiting."""
    if step.settings.is_foreign:
        return _append(step, step.index + 1, [[None]] * len(PHASES))
    timing = step.timing
    phases = [timing.draft_ms, timing.verify_ms, timing.accept_ms, timing.record_ms]
    phases.append(max(0.0, timing.working_ms - sum(phases)))
    return _append(step, step.index + 1, [[round(spent, 2)] for spent in phases])


def _empty_times() -> Chart:
    bars = [_bars(name, f"step %{{x}}: %{{y:.1f}} ms {word_of(name)}") for name in PHASES]
    axes = axes_of("step", count_axis("milliseconds, without waiting"))
    return chart_of("Time per step", bars, axes | STACKED, list_columns("step", bars))


KINDS = {  # name -> (makes the empty chart, makes a step's points)
    "step_bars": (_empty_bars, _bar_points),
    "acceptance_by_depth": (_empty_depths, _depth_points),
    "overlap_strip": (_empty_overlap, _overlap_points),
    "tokens_by_calls": (_empty_calls, _call_points),
    "time_by_step": (_empty_times, _time_points),
}


def _append(step: Step, x: int, y: Sequence[list]) -> Chart:
    """The points of a chart that has one place per step, which stands at `x`."""
    clicks: list[list] = [[] for _ in y]
    clicks[0] = [[str(step.index)]]
    return {"mode": "append", "x": [[x]] * len(y), "y": list(y), "customdata": clicks}


def list_columns(x: str, traces: Sequence[Chart], *values: str | int) -> list[list[Any]]:
    """The columns of a chart's table: the axis `x`, then one per trace.

    values: the attribute that a trace's column shows, and an index in it; y if left out.
    """
    columns: list[list[Any]] = [[x, 0, "x"]]
    for place, trace in enumerate(traces):
        columns.append([trace["name"], place, *(values or ("y",))])
    return columns


def _bars(status: str, hover: str) -> Chart:
    marker = {"color": colour(status), "pattern": {"shape": PATTERNS[status], "size": 6}}
    return _trace("bar", word_of(status), status, hover) | {"marker": marker}


def line_of(name: str, status: str, hover: str) -> Chart:
    return _trace("scatter", name, status, hover) | {
        "mode": "lines",
        "line": {"color": colour(status), "width": 2},
    }


def _trace(kind: str, name: str, status: str, hover: str) -> Chart:
    points: Chart = {"x": [], "y": [], "customdata": [], "hovertemplate": f"{hover}<extra></extra>"}
    return {"type": kind, "name": name, "meta": {"status": status}} | points


def axes_of(x: str, y: Chart, **more: Any) -> Chart:
    """The layout's axes; `more` belongs to the x axis."""
    return {"xaxis": {"title": {"text": x}, **more, "showgrid": False}, "yaxis": y}


def count_axis(title: str) -> Chart:
    return {"title": {"text": title}, "rangemode": "tozero"}


def _rate_axis(title: str) -> Chart:
    return {
        "title": {"text": title},
        "range": [0, 1.02],
        "tickformat": ".0%",
        "tickmode": "linear",
        "dtick": 0.25,
    }


def chart_of(title: str, data: list[Chart], axes: Chart, columns: list[list[Any]]) -> Chart:
    """A whole figure without a background or a text colour: the page's own show through."""
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
