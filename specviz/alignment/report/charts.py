"""The charts of an alignment report: every K per draft, agreement by depth and by context, the draft's confidence.

Takes drafts and slices of a summary, returns whole figures as plain data in `views.explore.charts`'s format. Each draft
has one colour, dash and symbol in all charts.
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from specviz.alignment.report.cells import NONE, is_known, share_words, spread_words
from specviz.alignment.summary import ENOUGH_PROMPTS, DraftSummary, Slice, natural_key
from specviz.views.compare.plan_charts import curve, draft_curve
from specviz.views.explore.charts import Chart, chart_of, line_of, list_columns
from specviz.views.palette import colour
from specviz.views.words import draft_label, label

FEWEST_CHECKPOINTS = 3  # below, a curve says no more than the table
NUMBERED = {"showgrid": False, "automargin": True}
NAMED = {"type": "category", **NUMBERED}
LACKING = Slice(
    "", "", "", 0, ENOUGH_PROMPTS, math.nan, None, math.nan, None, None, None
)  # a gap in a draft's curve
DRAFTED = "drafted token, from 1"
SHARE = {"range": [0, 1.02], "tickformat": ".0%"}


def tokens_chart(drafts: Sequence[DraftSummary]) -> Chart:
    """Tokens per target call against K, one curve per draft."""
    hover = "%{y:.2f} tokens per target call"
    lines = []
    for place, draft in enumerate(drafts):
        lines.append(_k_line(place, draft.name, draft.tokens_per_call, hover))
    return _k_chart("Tokens per target call", lines, "tokens per target call")


def speed_chart(drafts: Sequence[DraftSummary]) -> Chart:
    """Speedup against K, one curve per draft with known costs, and a line at 1: as fast as no draft."""
    lines = []
    most_k = 0
    for place, draft in enumerate(drafts):
        if draft.speedups is not None:
            hover = "%{y:.2f} times as fast"
            lines.append(_k_line(place, draft.name, draft.speedups, hover))
            most_k = max(most_k, len(draft.speedups))
    ks = range(1, most_k + 1)
    no_draft = curve("no draft", "ignored", ks, [1.0] * most_k, "no draft: 1", "longdash")
    no_draft["customdata"] = [["1.00"]] * most_k
    return _k_chart("Speedup over no draft", [*lines, no_draft], "times as fast")


def _k_line(place: int, name: str, values: Sequence[float], hover: str) -> Chart:
    ks = range(1, len(values) + 1)
    line = draft_curve(place, name, ks, values, f"%{{fullData.name}}, K %{{x}}: {hover}")
    words = []
    for value in values:
        words.append([f"{value:.2f}" if is_known(value) else NONE])
    line["customdata"] = words
    return line


def accepted_chart(drafts: Sequence[DraftSummary]) -> Chart:
    """The acceptance of each drafted token in the steps that accepted all before it, one curve per draft."""
    lines = []
    for place, draft in enumerate(drafts):
        shares = []
        for before, own in pairwise((1.0, *draft.by_position)):
            shares.append(own / before if before else math.nan)
        depths = range(1, len(shares) + 1)
        hover = "%{fullData.name}, token %{x}: %{y:.0%} accepted"
        line = draft_curve(place, draft.name, depths, shares, hover)
        line["customdata"] = [[share_words(share)] for share in shares]
        lines.append(line)
    columns = list_columns(DRAFTED, lines, "customdata", 0)
    title = "Acceptance by depth, where all before were accepted"
    return _chart(title, lines, DRAFTED, "accepted", columns, NUMBERED | {"dtick": 1})


def _k_chart(title: str, lines: list[Chart], y: str) -> Chart:
    columns = list_columns("K", lines, "customdata", 0)
    return _chart(title, lines, "K", y, columns, NUMBERED, {"rangemode": "tozero"})


def checkpoint_series(drafts: Sequence[DraftSummary]) -> list[list[DraftSummary]]:
    """Groups of drafts that differ only in the numbers in their names, as checkpoints of a training run do.

    Drafts stand in natural order.
    """
    series = defaultdict(list)
    for draft in sorted(drafts, key=lambda draft: natural_key(draft.name)):
        if is_known(draft.alpha):
            pattern = re.sub(r"\d+", "#", draft.name)
            series[pattern].append(draft)
    return [group for group in series.values() if len(group) >= FEWEST_CHECKPOINTS]


def checkpoints_chart(drafts: Sequence[DraftSummary], k: int) -> Chart:
    """Agreement with its interval (left axis) and tokens per target call at K = k (right axis), draft by draft."""
    names = [draft_label(draft.name) for draft in drafts]
    hover = "%{x}: %{customdata[0]} (%{customdata[1]})"
    agreement = draft_curve(0, "agreement", names, [draft.alpha for draft in drafts], hover)
    agreement["customdata"] = _agreement_words(drafts)
    agreement["error_y"] = _error_bars(agreement, drafts)
    title = f"tokens per target call at K = {k}"
    rates = [draft.tokens_per_call[k - 1] for draft in drafts]
    tokens = draft_curve(1, title, names, rates, "%{x}: %{y:.2f} tokens per target call")
    tokens["customdata"] = [[f"{rate:.2f}"] for rate in rates]
    tokens["yaxis"] = "y2"
    columns = [
        ["draft", 0, "x"],
        ["agreement", 0, "customdata", 0],
        ["95 % interval", 0, "customdata", 1],
        [title, 1, "customdata", 0],
    ]
    right_axis = {
        "title": {"text": title},
        "overlaying": "y",
        "side": "right",
        "rangemode": "tozero",
        "tickformat": ".1f",
    }
    heading = "Agreement and tokens per call, draft by draft"
    return _chart(heading, [agreement, tokens], "draft", "agreement", columns, yaxis2=right_axis)


def slices_chart(title: str, x: str, slices: Sequence[Slice], drafts: Sequence[str]) -> Chart:
    """Agreement by slice with its interval, one curve per draft; cliffs are marked, few prompts are drawn hollow.

    slices: of one kind, in the order of the axis; a draft may lack some.
    """
    by_draft_and_value = {(found.draft, found.value): found for found in slices}
    values = list(dict.fromkeys(found.value for found in slices))
    x_labels = [label(value) for value in values]
    lines = []
    marks = []
    columns = [[x, 0, "x"]]
    for place, name in enumerate(drafts):
        draft_slices = [by_draft_and_value.get((name, value), LACKING) for value in values]
        line = _slice_line(place, name, x_labels, draft_slices)
        lines.append(line)
        if any(found.cliff for found in draft_slices):
            marks.append(_cliff_marks(line, draft_slices))
        columns.append([line["name"], place, "customdata", 0])
        columns.append(["95 % interval", place, "customdata", 1])
    return _chart(title, [*lines, *marks], x, "agreement", columns)


def _slice_line(place: int, name: str, x: Sequence[str], slices: Sequence[Slice]) -> Chart:
    hover = "%{fullData.name}, %{x}: %{customdata[0]} (%{customdata[1]})"
    line = draft_curve(place, name, x, [found.alpha for found in slices], hover)
    symbol = line["marker"]["symbol"]
    symbols = []
    for found in slices:
        symbols.append(f"{symbol}-open" if found.num_prompts < ENOUGH_PROMPTS else symbol)
    line["marker"]["symbol"] = symbols
    line["customdata"] = _agreement_words(slices)
    line["error_y"] = _error_bars(line, slices)
    return line


def _agreement_words(found: Sequence[Slice | DraftSummary]) -> list[list[str]]:
    """The agreement and its interval at each point, in words."""
    return [[share_words(point.alpha), spread_words(point.alpha_interval)] for point in found]


def _error_bars(line: Chart, found: Sequence[Slice | DraftSummary]) -> Chart:
    down = []
    up = []
    for point in found:
        if point.alpha_interval is None:
            down.append(0.0)
            up.append(0.0)
        else:
            low, high = point.alpha_interval
            down.append(round(max(0.0, point.alpha - low), 4))
            up.append(round(max(0.0, high - point.alpha), 4))
    return {
        "type": "data",
        "symmetric": False,
        "array": up,
        "arrayminus": down,
        "color": colour(line["meta"]["status"]),
        "thickness": 1,
    }


def _cliff_marks(line: Chart, slices: Sequence[Slice]) -> Chart:
    y = []
    for value, found in zip(line["y"], slices, strict=True):
        y.append(value if found.cliff else None)
    marks = line_of(f"{line['name']} falls here", "rejected", "%{fullData.name}: %{x}")
    symbol = {
        "color": colour("rejected"),
        "symbol": "triangle-down-open",
        "size": 18,
        "line": {"width": 2},
    }
    return marks | {"mode": "markers", "x": line["x"], "y": y, "marker": symbol}


def calibration_chart(draft: DraftSummary) -> Chart:
    """The draft's mean confidence and the share accepted, by confidence; bars show how many tokens are drafted so."""
    bins = [found for found in draft.calibration.bins if found.share > 0]
    names = [f"{100 * found.low:.0f}–{100 * found.high:.0f}" for found in bins]
    confidence = [found.confidence for found in bins]
    accepted = [found.accepted for found in bins]
    shares = [found.share for found in bins]
    confidence_hover = "confidence %{x} %: promised %{y:.0%}"
    confidence_line = draft_curve(
        0, "the draft's mean confidence", names, confidence, confidence_hover
    )
    accepted_line = draft_curve(
        1, "accepted", names, accepted, "confidence %{x} %: %{y:.0%} accepted"
    )
    share_bars = {
        "type": "bar",
        "name": "share of draft tokens",
        "meta": {"status": "ignored"},
        "x": names,
        "y": [round(share, 4) for share in shares],
        "marker": {"color": colour("ignored"), "pattern": {"shape": "/", "size": 6}},
        "hovertemplate": "%{y:.0%} of all draft tokens have confidence %{x} %<extra></extra>",
    }
    traces = [confidence_line, accepted_line, share_bars]
    for trace, values in zip(traces, (confidence, accepted, shares), strict=True):
        trace["customdata"] = [[share_words(value)] for value in values]
    title = f"Confidence and acceptance: {draft_label(draft.name)}"
    x = "confidence: q of the drafted token, in percent"
    columns = list_columns("confidence in percent", traces, "customdata", 0)
    return _chart(title, traces, x, "share", columns, bargap=0.35)


def _chart(
    title: str,
    data: list[Chart],
    x: str,
    y: str,
    columns: list[list[Any]],
    of_x=NAMED,
    of_y=SHARE,
    **layout: Any,
) -> Chart:
    axes = {"xaxis": {"title": {"text": x}, **of_x}, "yaxis": {"title": {"text": y}, **of_y}}
    return chart_of(title, data, {**axes, "showlegend": True, **layout}, columns)
