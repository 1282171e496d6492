"""The section of the Compare page on the draft's own temperature: how much p and q overlap at each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.views import blocks
from specviz.views.blocks import Props
from specviz.views.compare.plan_charts import curve, figure
from specviz.views.explore.charts import Chart
from specviz.views.explore.sentences import percent

if TYPE_CHECKING:
    from specviz.analysis.draft_temperature import OverlapCurve

ABOUT = (
    "draft-temperature",
    "The draft's own temperature",
    "The draft may be sampled at another temperature than the target. An exact rule keeps the text's distribution at "
    "every one. What changes is how much is accepted: the overlap, sum min(p, q).",
)
READ = (
    "Computed from what this run recorded: the most likely tokens of both models. Where the unrecorded rest could "
    "change the overlap, the chart shows the least and the most that it can be.",
    "For the exact curve, press “Ask the models”.",
)
HOVER = "draft temperature %{x}: overlap %{y:.1%}"


def draft_temperature(overlaps: OverlapCurve | None, *, may_ask: bool = False, refusal: str = "") -> Props:
    """may_ask: the run has a draft model that reads the target's tokens. refusal: why nothing is known, in words."""
    is_exact = overlaps is not None and overlaps.is_exact
    controls = [blocks.button("ask", "Ask the models", primary=not is_exact)] if may_ask else []
    if overlaps is None:
        hint = f" {READ[1]}" if may_ask else ""
        return blocks.section(*ABOUT, controls, [blocks.words(refusal + hint)])
    places = f"{overlaps.num_positions:,} positions"
    words = f"Exact: both models read the text, {places}." if is_exact else " ".join(READ[: 1 + may_ask])
    shown = [blocks.words(words), blocks.chart(_chart(overlaps, places))]
    if best := overlaps.best:
        own = "" if overlaps.own is None else f" This run's draft was sampled at {overlaps.own:g}."
        shown.append(blocks.words(["The overlap is largest at ", f"{best[0]:g}", f": {percent(best[1])}.{own}"]))
    return blocks.section(*ABOUT, controls, shown)


def _chart(overlaps: OverlapCurve, places: str) -> Chart:
    x = [f"{each:g}" for each in overlaps.temperatures]
    data = [curve("overlap", "p", x, overlaps.known, HOVER)]
    if not overlaps.is_exact:
        data += [curve("at least", "q", x, overlaps.low, HOVER, "dot")]
        data += [curve("at most", "q", x, overlaps.high, HOVER, "dot") | {"fill": "tonexty"}]
    made = figure(f"Overlap at each draft temperature, {places}", data, "temperature of the draft", "sum min(p, q)")
    made["layout"]["yaxis"] |= {"range": [0, 1.02], "tickformat": ".0%"}
    return made
