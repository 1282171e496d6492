"""Summary charts of a run as plotly figures, one function per chart.

A chart is plain data until somebody asks for a plotly Figure: `Figures` gives empty charts and, per step, the points to
append or the arrays to replace, in the shapes that Plotly's extendTraces and restyle take. Numbers come from Counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.trace.file import Step, Trace
from specviz.views.explore.charts import DEEPEST, FEW, KINDS, SELECTION_NOTE, Chart, SoFar

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = [
    "DEEPEST",
    "FEW",
    "SELECTION_NOTE",
    "Figures",
    "acceptance_by_depth",
    "apply_points",
    "overlap_strip",
    "step_bars",
    "time_by_step",
    "tokens_by_calls",
]


def step_bars(trace: Trace, theme: str = "light") -> Figure:
    """One bar per step (kept, cut, not judged) and the running rate kept / judged on a second axis."""
    return _figure("step_bars", trace, theme)


def acceptance_by_depth(trace: Trace, theme: str = "light") -> Figure:
    """Joint and conditional rate per depth with 95 % Wilson intervals; hollow where n < 20."""
    return _figure("acceptance_by_depth", trace, theme)


def overlap_strip(trace: Trace, theme: str = "light") -> Figure:
    """Per token of the text, how far both models agreed where it was decided: the recorded sum of min(p, q)."""
    return _figure("overlap_strip", trace, theme)


def tokens_by_calls(trace: Trace, theme: str = "light") -> Figure:
    """Tokens written so far against target calls so far, beside one token per call."""
    return _figure("tokens_by_calls", trace, theme)


def time_by_step(trace: Trace, theme: str = "light") -> Figure:
    """Milliseconds of each step: draft, verify, accept, record, and what is left of its total; waiting is left out."""
    return _figure("time_by_step", trace, theme)


class Figures:
    """All charts of a run, growing: `initial` once, then `extend` with each step in order, in O(K)."""

    def __init__(self, theme: str = "light") -> None:
        self._theme = theme
        self._so_far = SoFar()

    def initial(self) -> dict[str, Chart]:
        """Empty charts by name, as plain JSON values {"data", "layout"}."""
        return {name: kind.empty(self._theme) for name, kind in KINDS.items()}

    def extend(self, step: Step) -> dict[str, Chart]:
        """Per chart {"mode": "append" | "replace", "x": [a list per plotly trace], "y": ..., dotted attribute: ...}."""
        self._so_far.add(step)
        return {name: kind.points(step, self._so_far) for name, kind in KINDS.items()}


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
