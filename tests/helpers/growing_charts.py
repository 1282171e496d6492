"""The charts of a trace, grown step by step as the browser grows them."""

from collections.abc import Iterable, Iterator
from typing import Any

from specviz.trace import Step, Trace
from specviz.trace.counters import Counters
from specviz.views.explore.charts import Figures


def grown(made: Trace) -> dict[str, dict[str, Any]]:
    """Every chart by name, with the points of all steps."""
    charts = Figures(Counters()).initial()
    for added in points_of(made.steps):
        for name, points in added.items():
            apply_points(charts[name], points)
    return charts


def points_of(steps: Iterable[Step]) -> Iterator[dict[str, dict[str, Any]]]:
    """The points that each step adds to a run's charts, by chart."""
    counters = Counters()
    growing = Figures(counters)
    for step in steps:
        counters.add(step)
        yield growing.extend(step)


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
