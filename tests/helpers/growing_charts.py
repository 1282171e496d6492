"""The charts of a trace, grown step by step as the browser grows them."""

from typing import Any

from specviz.trace import Trace
from specviz.views.explore.charts import Figures


def grown(made: Trace) -> dict[str, dict[str, Any]]:
    """Every chart by name, with the points of all steps."""
    growing = Figures()
    charts = growing.initial()
    for step in made.steps:
        for name, points in growing.extend(step).items():
            apply_points(charts[name], points)
    return charts


def apply_points(chart: dict[str, Any], points: dict[str, Any]) -> None:
    """Adds `points` to a chart's data in place, as Plotly's extendTraces and restyle do."""
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
