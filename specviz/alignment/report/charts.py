"""The charts of an alignment report: every K per draft, agreement by depth and by context, the draft's confidence.

Whole figures as plain data in `charts.py`'s format. Drafts keep their colour, dash and symbol from chart to chart.
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from specviz.alignment.report.cells import NONE, is_known, share_words, spread_words
from specviz.alignment.summary import ENOUGH_PROMPTS, DraftSummary, Slice, natural_key
from specviz.views.compare.plan_charts import curve, draft_curve
from specviz.views.explore.charts import Chart, chart_of, line_of, list_columns
from specviz.views.palette import colour
from specviz.views.words import label

FEWEST_CHECKPOINTS = 3  # below, a curve says no more than the table
NUMBERED = {"showgrid": False, "automargin": True}
NAMED = {"type": "category", **NUMBERED}
LACKING = Slice(
    "", "", "", 0, ENOUGH_PROMPTS, math.nan, None, math.nan, None, None, None
)  # a gap in a draft's curve
SHARE = {"range": [0, 1.02], "tickformat": ".0%"}


def tokens_chart(drafts: Sequence[DraftSummary]) -> Chart:
    """Tokens per target call against K, one curve per draft."""
    data = [_k_line(place, draft.name, draft.tokens_per_call, "%{y:.2f} tokens per target call")
            for place, draft in enumerate(drafts)]  # fmt: skip
    return _k_chart("Tokens per target call", data, "tokens per target call")


def speed_chart(drafts: Sequence[DraftSummary]) -> Chart:
    """Speedup against K, of the drafts whose costs are known, and the line where a draft neither pays nor costs."""
    known = {place: draft for place, draft in enumerate(drafts) if draft.speedups is not None}
    data = [
        _k_line(place, draft.name, draft.speedups, "%{y:.2f} times as fast")
        for place, draft in known.items()
    ]
    most = max(len(draft.speedups) for draft in known.values())
    alone = curve(
        "no draft", "ignored", range(1, most + 1), [1.0] * most, "no draft: 1", "longdash"
    )
    return _k_chart(
        "Speedup over no draft", [*data, alone | {"customdata": [["1.00"]] * most}], "times as fast"
    )


def _k_line(place: int, name: str, values: Sequence[float], hover: str) -> Chart:
    line = draft_curve(
        place, name, range(1, len(values) + 1), values, f"%{{fullData.name}}, K %{{x}}: {hover}"
    )
    return line | {
        "customdata": [[f"{value:.2f}" if is_known(value) else NONE] for value in values]
    }


def _k_chart(title: str, data: list[Chart], y: str) -> Chart:
    return _chart(
        title,
        data,
        "K",
        y,
        list_columns("K", data, "customdata", 0),
        NUMBERED,
        {"rangemode": "tozero"},
    )


def checkpoint_series(drafts: Sequence[DraftSummary]) -> list[list[DraftSummary]]:
    """Drafts whose names differ in their numbers alone, as checkpoints of one training run do, in natural order."""
    series = defaultdict(list)
    for draft in filter(
        lambda draft: is_known(draft.alpha),
        sorted(drafts, key=lambda draft: natural_key(draft.name)),
    ):
        series[re.sub(r"\d+", "#", draft.name)].append(draft)
    return [own for own in series.values() if len(own) >= FEWEST_CHECKPOINTS]


def checkpoints_chart(drafts: Sequence[DraftSummary], k: int) -> Chart:
    """Agreement with its interval, and tokens per target call on an axis of its own, over the drafts as they come."""
    names, rates = (
        [label(draft.name) for draft in drafts],
        [draft.tokens_per_call[k - 1] for draft in drafts],
    )
    told = [[share_words(draft.alpha), spread_words(draft.alpha_interval)] for draft in drafts]
    hover = "%{x}: %{customdata[0]} (%{customdata[1]})"
    agreement = draft_curve(0, "agreement", names, [draft.alpha for draft in drafts], hover)
    agreement |= {"customdata": told, "error_y": _error_bars(agreement, drafts)}
    title = f"tokens per target call at K = {k}"
    tokens = draft_curve(1, title, names, rates, "%{x}: %{y:.2f} tokens per target call")
    tokens |= {"yaxis": "y2", "customdata": [[f"{rate:.2f}"] for rate in rates]}
    columns = [
        ["draft", 0, "x"],
        ["agreement", 0, "customdata", 0],
        ["95 % interval", 0, "customdata", 1],
    ]
    right = {
        "title": {"text": title},
        "overlaying": "y",
        "side": "right",
        "rangemode": "tozero",
        "tickformat": ".1f",
    }
    heading = "Agreement and tokens per call, draft by draft"
    columns.append([title, 1, "customdata", 0])
    return _chart(heading, [agreement, tokens], "draft", "agreement", columns, yaxis2=right)


def slices_chart(title: str, x: str, slices: Sequence[Slice], drafts: Sequence[str]) -> Chart:
    """Agreement by slice with its interval, one curve per draft; cliffs are marked, few prompts are drawn hollow.

    slices: of one kind, in the order of the axis; a draft may lack some.
    """
    values = list(dict.fromkeys(each.value for each in slices))
    by_draft = [{each.value: each for each in slices if each.draft == name} for name in drafts]
    found = [[own.get(value, LACKING) for value in values] for own in by_draft]  # [drafts, values]
    x_labels = [label(value) for value in values]
    data = [_slice_line(place, drafts[place], x_labels, own) for place, own in enumerate(found)]
    data += [
        _cliff_marks(line, own)
        for line, own in zip(data, found, strict=True)
        if any(each.cliff for each in own)
    ]
    columns = [[x, 0, "x"]]
    for place in range(len(drafts)):
        columns += [
            [data[place]["name"], place, "customdata", 0],
            ["95 % interval", place, "customdata", 1],
        ]
    return _chart(title, data, x, "agreement", columns)


def _slice_line(place: int, name: str, x: Sequence[str], slices: Sequence[Slice]) -> Chart:
    hover = "%{fullData.name}, %{x}: %{customdata[0]} (%{customdata[1]})"
    line = draft_curve(place, name, x, [each.alpha for each in slices], hover)
    symbol = line["marker"]["symbol"]
    line["marker"]["symbol"] = [
        f"{symbol}-open" if each.num_prompts < ENOUGH_PROMPTS else symbol for each in slices
    ]
    return line | {
        "customdata": [
            [share_words(each.alpha), spread_words(each.alpha_interval)] for each in slices
        ],
        "error_y": _error_bars(line, slices),
    }


def _error_bars(line: Chart, found: Sequence[Slice | DraftSummary]) -> Chart:
    low, high = zip(*map(_reach, found), strict=True)
    bars = {"type": "data", "symmetric": False, "array": list(high), "arrayminus": list(low)}
    return bars | {"color": colour(line["meta"]["status"]), "thickness": 1}


def _reach(found: Slice | DraftSummary) -> tuple[float, float]:
    """The distances from the value down and up to the ends of its interval."""
    if found.alpha_interval is None:
        return 0.0, 0.0
    low, high = found.alpha_interval
    return round(max(0.0, found.alpha - low), 4), round(max(0.0, high - found.alpha), 4)


def _cliff_marks(line: Chart, slices: Sequence[Slice]) -> Chart:
    marks = line_of(f"{line['name']} falls here", "rejected", "%{fullData.name}: %{x}")
    symbol = {
        "color": colour("rejected"),
        "symbol": "triangle-down-open",
        "size": 18,
        "line": {"width": 2},
    }
    y = [value if each.cliff else None for value, each in zip(line["y"], slices, strict=True)]
    return marks | {"mode": "markers", "x": line["x"], "y": y, "marker": symbol}


def calibration_chart(draft: DraftSummary) -> Chart:
    """What the draft's confidence promises and what is kept, by confidence; bars: how much is drafted so."""
    bins = [each for each in draft.calibration.bins if each.share > 0]
    names = [f"{100 * each.low:.0f}–{100 * each.high:.0f}" for each in bins]
    sure, stays, share = (
        [getattr(each, name) for each in bins] for name in ("confidence", "kept", "share")
    )
    promised = draft_curve(
        0, "the draft's mean confidence", names, sure, "confidence %{x} %: promised %{y:.0%}"
    )
    kept = draft_curve(1, "accepted", names, stays, "confidence %{x} %: %{y:.0%} accepted")
    drafted = {
        "type": "bar", "name": "share of draft tokens", "meta": {"status": "ignored"}, "x": names,
        "y": [round(value, 4) for value in share],
        "marker": {"color": colour("ignored"), "pattern": {"shape": "/", "size": 6}},
        "hovertemplate": "%{y:.0%} of all draft tokens have confidence %{x} %<extra></extra>",
    }  # fmt: skip
    shown = zip((promised, kept, drafted), (sure, stays, share), strict=True)
    data = [
        trace | {"customdata": [[share_words(value)] for value in values]}
        for trace, values in shown
    ]
    title, x = (
        f"Confidence and acceptance: {label(draft.name)}",
        "confidence: q of the drafted token, in percent",
    )
    return _chart(
        title,
        data,
        x,
        "share",
        list_columns("confidence in percent", data, "customdata", 0),
        bargap=0.35,
    )


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
