"""Sections of the Compare page: every K, other drafts, the draft's own temperature, why it is slow, other tools' names;
where one is empty, why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from specviz.analysis.given_text import is_own_plan
from specviz.trace.metrics import METRICS, metrics
from specviz.trace.tool_names import SGLANG, VLLM, WAYS_OF_DRAFTING, export, tool_numbers
from specviz.views import blocks
from specviz.views.blocks import Props, Words
from specviz.views.compare import plan_charts as charts
from specviz.views.explore.charts import Chart
from specviz.views.explore.speed import progress_words
from specviz.views.words import label, percent, prose

if TYPE_CHECKING:
    from specviz.analysis.breakdown import Breakdown
    from specviz.analysis.draft_temperature import OverlapCurve
    from specviz.analysis.every_k import DraftOnText, OtherDrafts
    from specviz.analysis.whatif import Cut, WhatIf
    from specviz.bench.speed import Measuring
    from specviz.trace import Trace

NO_RUN = "Nothing to plan yet. Start a run on Explore, or open a recorded one: its text is enough."
NO_COSTS = (
    "Speed is not known yet. Press “Measure costs” on this page to see the speedup for every K."
)


def run_point(recorded: Trace, speedup: float | None = None) -> charts.Point | None:
    """The run's own values; None where K changed or its steps do not follow the law of the what-if.

    speedup: measured in short runs of the same settings; None: the trace's own.
    """
    ks, values = {step.settings.k for step in recorded.steps}, metrics(recorded)
    if len(ks) != 1 or values["tokens_per_target_call"] is None or not is_own_plan(recorded):
        return None
    known = values["speedup"] if speedup is None else speedup
    return charts.Point(
        ks.pop(),
        values["target_calls"],
        values["tokens_per_target_call"],
        known,
        speedup is not None,
    )


EVERY_K = (
    "every-k",
    "Every K from one run",
    "How would speculative sampling have divided the same text into steps at another K? No model runs. A drafted token "
    "is accepted with probability min(1, p/q) (p: the target's probability, q: the draft's). This text already has the "
    "token: that it was drafted and accepted, and not resampled, then has probability min(1, q/p).",
)


def every_k(
    recorded: Trace | None,
    what_if: WhatIf | None,
    cuts: Mapping[int, Cut] | None = None,
    *,
    point: charts.Point | None = None,
    refusal: str = "",
) -> Props:
    """cuts: the same text at every K, one draw for all. refusal: why this run has no what-if, in words."""
    if refusal or what_if is None or recorded is None:
        return blocks.section(*EVERY_K, blocks=[blocks.words(refusal or NO_RUN)])
    shown = [blocks.words(what_if.note)]
    if cuts:
        shown.append(_segments_block(recorded, what_if, cuts, point))
    shown += [
        blocks.words(_calls_words(what_if, point)),
        blocks.chart(charts.calls_chart(what_if, point)),
    ]
    shown.append(blocks.chart(charts.tokens_chart(what_if, None, point)))
    if what_if.best is None:
        shown.append(blocks.words(NO_COSTS))
    else:
        shown += [
            blocks.words(_best_words(what_if)),
            blocks.chart(charts.speed_chart(what_if, None, None, point)),
        ]
    return blocks.section(*EVERY_K, blocks=shown)


def _segments_block(
    recorded: Trace, what_if: WhatIf, cuts: Mapping[int, Cut], point: charts.Point | None
) -> Props:
    texts = [
        prose(token.text) if token.bytes is None else label("", token.bytes)
        for token in recorded.tokens
    ]
    by_k = {}
    for k, cut in cuts.items():
        number, outcome = len(cut.lengths), what_if.at(k)
        average = "" if outcome is None else f"; on average {outcome.expected_target_calls:.1f}"
        calls = f"{number} target call{'s' if number != 1 else ''}"
        words = ["", calls, f" for {what_if.num_tokens:,} tokens{average}"]
        by_k[k] = {"lengths": list(cut.lengths), "kinds": list(cut.kinds), "words": words}
    own = point.k if point is not None and point.k in cuts else recorded.steps[-1].settings.k
    return blocks.segments(texts, by_k, own if own in cuts else min(cuts))


def _calls_words(what_if: WhatIf, point: charts.Point | None) -> Words:
    outcome = what_if.at(point.k) if point is not None else None
    if outcome is None:
        return "At least nine in ten draws fall between the dotted lines."
    return [
        "This run made ", f"{point.target_calls:,} target calls", f" at K = {point.k}. On average, this text takes ",
        f"{outcome.expected_target_calls:.1f}", f"; at least nine in ten draws fall between {outcome.calls_low} and "
        f"{outcome.calls_high} (the dotted lines).",
    ]  # fmt: skip


def _best_words(what_if: WhatIf) -> Words:
    low, high = what_if.best
    fastest = max(
        (each for each in what_if.outcomes if low <= each.k <= high), key=lambda each: each.speedup
    )
    which, near = f"K = {low} to {high}", ", within 2 % of the fastest: "
    if low == high:
        which, near = f"K = {low}", "; no other is within 2 %: "
    slower = (
        " This is slower than no draft: the draft does not pay off on this machine."
        if fastest.speedup < 1
        else ""
    )
    speed = f"{fastest.speedup:.2f}x"
    return [
        "With the measured costs, the best is ",
        which,
        near,
        speed,
        f" the speed without a draft.{slower}",
    ]


OTHER_DRAFTS = (
    "other-drafts",
    "Other drafts on the same text",
    "What would another draft model have done with this text? One pass of both models answers it. Depths are counted "
    "from every position in the text, so the choice of K does not matter.",
)


def other_drafts(recorded: Trace | None, result: OtherDrafts | None, k: int) -> Props:
    """k: the K at which the table compares the drafts."""
    controls = (
        []
        if recorded is None
        else [blocks.button("ask", "Ask the other drafts", primary=result is None)]
    )
    if recorded is None or result is None:
        missing = "Not asked yet. Press “Ask the other drafts”: each model is loaded if needed and reads the text once."
        words = NO_RUN if recorded is None else missing
        return blocks.section(*OTHER_DRAFTS, controls, [blocks.words(words)])
    shown = []
    if result.done < result.total:
        words = f"{result.done} of {result.total} draft models asked"
        shown.append(blocks.progress(result.done, result.total, words))
    if result.rows:
        shown.append(_drafts_table(result.rows, k))
    if any(row.what_if is not None for row in result.rows):
        shown.append(blocks.chart(charts.depths_chart(result.rows)))
    return blocks.section(*OTHER_DRAFTS, controls, shown)


def _drafts_table(rows: Sequence[DraftOnText], k: int) -> Props:
    columns = [
        "draft model",
        "agreement, sum min(p, q)",
        f"tokens per target call at K = {k}",
        "best K at its costs",
    ]
    cells, per_call = [], []
    for row in rows:
        outcome = None if row.what_if is None else row.what_if.at(k)
        per_call.append(-math.inf if outcome is None else outcome.tokens_per_call)
        if row.what_if is None:
            cells.append([label(row.name), row.refusal, "–", "–"])
            continue
        low, high = row.what_if.best or (None, None)
        best = "not known" if low is None else str(low) if low == high else f"{low} to {high}"
        tokens = "–" if outcome is None else f"{outcome.tokens_per_call:.2f}"
        cells.append([label(row.name), percent(row.alpha), tokens, best])
    marked = per_call.index(max(per_call)) if max(per_call) > 0 else -1
    caption = "Agreement is averaged over all positions in the text; the paper calls it alpha."
    return blocks.table(columns, cells, caption=caption, marked=marked)


DRAFT_TEMPERATURE = (
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


def draft_temperature(
    overlaps: OverlapCurve | None, *, may_ask: bool = False, refusal: str = ""
) -> Props:
    """may_ask: the run has a draft model that reads the target's tokens. refusal: why nothing is known, in words."""
    is_exact = overlaps is not None and overlaps.is_exact
    controls = [blocks.button("ask", "Ask the models", primary=not is_exact)] if may_ask else []
    if overlaps is None:
        hint = f" {READ[1]}" if may_ask else ""
        return blocks.section(*DRAFT_TEMPERATURE, controls, [blocks.words(refusal + hint)])
    places = f"{overlaps.num_positions:,} positions"
    words = (
        f"Exact: both models read the text, {places}."
        if is_exact
        else " ".join(READ[: 1 + may_ask])
    )
    shown = [blocks.words(words), blocks.chart(_overlap_chart(overlaps, places))]
    if best := overlaps.best:
        own = "" if overlaps.own is None else f" This run's draft was sampled at {overlaps.own:g}."
        shown.append(
            blocks.words(
                ["The overlap is largest at ", f"{best[0]:g}", f": {percent(best[1])}.{own}"]
            )
        )
    return blocks.section(*DRAFT_TEMPERATURE, controls, shown)


def _overlap_chart(overlaps: OverlapCurve, places: str) -> Chart:
    x = [f"{each:g}" for each in overlaps.temperatures]
    data = [charts.curve("overlap", "p", x, overlaps.known, HOVER)]
    if not overlaps.is_exact:
        data += [charts.curve("at least", "q", x, overlaps.low, HOVER, "dot")]
        data += [charts.curve("at most", "q", x, overlaps.high, HOVER, "dot") | {"fill": "tonexty"}]
    title, axes = (
        f"Overlap at each draft temperature, {places}",
        ("temperature of the draft", "sum min(p, q)"),
    )
    return charts.figure(title, data, *axes, in_percent=True)


WHY_SLOW = (
    "why-slow",
    "Why is it slow?",
    "Ideally, every draft is full and accepted, drafting is free and checking costs one target call: K + 1 times as "
    "fast. Each factor below takes its share. All but the last are computed from the run and the measured costs. The "
    "last, overhead, is the rest of the gap to the measured speedup.",
)


def why_slow(
    breakdown: Breakdown | None,
    *,
    has_run: bool = False,
    has_costs: bool = False,
    has_speed: bool = False,
    running: Measuring | None = None,
    refusal: str = "",
    instead: str = "",
) -> Props:
    """running: the progress of measuring. refusal: why there is no breakdown; instead: why the speedup says nothing."""
    controls = (
        [blocks.button("speed", "Measure the speed", primary=not has_speed)] if has_run else []
    )
    shown = []
    if running is not None:
        words = f"{progress_words(running)}: short runs, alternating with and without a draft"
        shown.append(blocks.progress(running.done, running.total, words))
    if breakdown is None:
        needed = ([] if has_costs else ["“Measure costs” above"]) + (
            [] if has_speed else ["“Measure the speed” here"]
        )
        missing = f"Not known yet: press {' and '.join(needed)}." if has_run else NO_RUN
        return blocks.section(*WHY_SLOW, controls, [*shown, blocks.words(refusal or missing)])
    formula = METRICS["speedup"].formula
    rows = [
        [
            "ideal",
            f"{breakdown.ideal}",
            "K + 1",
            "Every drafted token accepted, in the time of one target call.",
        ],
        *(
            [each.name, f"x {each.value:.2f}", each.formula, each.words]
            for each in breakdown.factors
        ),
        [
            "measured speedup",
            f"{breakdown.speedup:.2f}x",
            formula,
            "The product of all lines above.",
        ],
    ]
    shown += [
        blocks.words([f"Measured: {instead}."] if instead else _verdict_words(breakdown)),
        blocks.chart(charts.factors_chart(breakdown)),
        blocks.table(["factor", "value", "formula", "in words"], rows, marked=len(rows) - 1),
        *(blocks.words(note, small=True) for note in breakdown.notes),
    ]
    return blocks.section(*WHY_SLOW, controls, shown)


def _verdict_words(breakdown: Breakdown) -> Words:
    worst = min(breakdown.factors, key=lambda factor: factor.value)
    speed = f"{breakdown.speedup:.2f}x"
    how = (
        "faster than"
        if breakdown.speedup > 1
        else "slower than"
        if breakdown.speedup < 1
        else "as fast as"
    )
    return [
        "Measured: ",
        speed,
        f", {how} no draft. The largest loss is ",
        worst.name,
        f" (x {worst.value:.2f}).",
    ]


TOOL_NAMES = (
    "tool-names",
    "Other tools' names",
    "Engines and papers use similar names for different numbers. Here are this run's numbers as each would print them.",
)


def tool_names(recorded: Trace | None) -> Props:
    """The run's numbers under every tool's names, and as JSON under two tools' own field names."""
    if recorded is None:
        return blocks.section(*TOOL_NAMES, blocks=[blocks.words(NO_RUN)])
    rows = [
        [
            row.tool,
            row.name,
            f"n/a: {row.reason}" if row.reason else row.shown,
            row.label,
            row.formula,
        ]
        for row in tool_numbers(recorded)
    ]
    shown = [blocks.table(["tool", "its name", "value", "our name", "formula"], rows)]
    shown.append(blocks.words(WAYS_OF_DRAFTING, small=True))
    shown += [
        blocks.download(
            f"Save as JSON, {tool} field names",
            f"specviz-{tool.lower()}.json",
            export(recorded, tool),
        )
        for tool in (VLLM, SGLANG)
    ]
    return blocks.section(*TOOL_NAMES, blocks=shown)
