"""Sections of the Compare page: every K, other drafts, the draft's own temperature, why it is slow, other tools' names.

An empty section says why it is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from specviz.analysis.given_text import is_own_plan
from specviz.trace.metrics import METRICS, count, metrics
from specviz.trace.tool_names import SGLANG, VLLM, WAYS_OF_DRAFTING, export, tool_numbers
from specviz.views import blocks
from specviz.views.blocks import (
    PageBlock,
    PageSection,
    SegmentsBlock,
    TableBlock,
    TextDivision,
    Words,
)
from specviz.views.compare import plan_charts as charts
from specviz.views.explore.charts import Chart
from specviz.views.explore.speed import progress_words
from specviz.views.words import duration, label, percent, prose

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
    """The run's own values; None where K changed or its steps do not follow the what-if analysis.

    speedup: measured in short runs of the same settings; None: the trace's own.
    """
    ks = {step.settings.k for step in recorded.steps}
    values = metrics(recorded)
    if len(ks) != 1 or values["tokens_per_target_call"] is None or not is_own_plan(recorded):
        return None
    return charts.Point(
        k=ks.pop(),
        target_calls=values["target_calls"],
        tokens_per_call=values["tokens_per_target_call"],
        speedup=values["speedup"] if speedup is None else speedup,
        of_short_runs=speedup is not None,
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
) -> PageSection:
    """The section on every K. cuts: the same text at every K, one draw for all. refusal: why there is none."""
    if refusal or what_if is None or recorded is None:
        return blocks.PageSection(*EVERY_K, blocks=[blocks.WordsBlock(refusal or NO_RUN)])
    shown = [blocks.WordsBlock(what_if.note)]
    if cuts:
        shown.append(_segments_block(recorded, what_if, cuts, point))
    shown.append(blocks.WordsBlock(_calls_words(what_if, point)))
    shown.append(blocks.ChartBlock(charts.calls_chart(what_if, point)))
    shown.append(blocks.ChartBlock(charts.tokens_chart(what_if, None, point)))
    if what_if.best is None:
        shown.append(blocks.WordsBlock(NO_COSTS))
    else:
        shown.append(blocks.WordsBlock(_best_words(what_if)))
        shown.append(blocks.ChartBlock(charts.speed_chart(what_if, None, None, point)))
    return blocks.PageSection(*EVERY_K, blocks=shown)


def _segments_block(
    recorded: Trace, what_if: WhatIf, cuts: Mapping[int, Cut], point: charts.Point | None
) -> SegmentsBlock:
    """The text, divided into steps at every K."""
    texts = []
    for token in recorded.tokens:
        texts.append(prose(token.text) if token.bytes is None else label("", token.bytes))
    by_k = {}
    for k, division in cuts.items():
        number = len(division.lengths)
        calls = "1 target call" if number == 1 else f"{number} target calls"
        end = f" for {what_if.num_tokens:,} tokens"
        outcome = what_if.at(k)
        if outcome is not None:
            end += f"; on average {outcome.expected_target_calls:.1f}"
        words = ["", calls, end]
        by_k[k] = TextDivision(division.lengths, division.kinds, words)
    own_k = recorded.steps[-1].settings.k
    if point is not None and point.k in cuts:
        own_k = point.k
    return blocks.SegmentsBlock(texts, by_k, own_k if own_k in cuts else min(cuts))


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
    """The best K, or the range of K that is nearly as good."""
    low, high = what_if.best
    best = [outcome.speedup for outcome in what_if.outcomes if low <= outcome.k <= high]
    fastest = max(best)
    which = f"K = {low} to {high}"
    near = ", within 2 % of the fastest: "
    if low == high:
        which = f"K = {low}"
        near = "; no other is within 2 %: "
    words = " the speed without a draft."
    if fastest < 1:
        words += " This is slower than no draft: the draft does not pay off on this machine."
    return ["With the measured costs, the best is ", which, near, f"{fastest:.2f}x", words]


OTHER_DRAFTS = (
    "other-drafts",
    "Other drafts on the same text",
    "What would another draft model have done with this text? One pass of both models answers it. Depths are counted "
    "from every position in the text, so the choice of K does not matter.",
)


def other_drafts(recorded: Trace | None, result: OtherDrafts | None, k: int) -> PageSection:
    """The section on other drafts. k: the K at which the table compares them."""
    if recorded is None:
        return blocks.PageSection(*OTHER_DRAFTS, (), [blocks.WordsBlock(NO_RUN)])
    controls = [blocks.ButtonControl("ask", "Ask the other drafts", primary=result is None)]
    if result is None:
        missing = "Not asked yet. Press “Ask the other drafts”: each model is loaded if needed and reads the text once."
        return blocks.PageSection(*OTHER_DRAFTS, controls, [blocks.WordsBlock(missing)])
    shown = []
    if result.done < result.total:
        words = f"{result.done} of {result.total} draft models asked"
        shown.append(blocks.progress(result.done, result.total, words))
    if result.rows:
        shown.append(_drafts_table(result.rows, k))
    if any(row.what_if is not None for row in result.rows):
        shown.append(blocks.ChartBlock(charts.depths_chart(result.rows)))
    return blocks.PageSection(*OTHER_DRAFTS, controls, shown)


def _drafts_table(rows: Sequence[DraftOnText], k: int) -> TableBlock:
    columns = [
        "draft model",
        "agreement, sum min(p, q)",
        f"tokens per target call at K = {k}",
        "best K at its costs",
    ]
    cells = []
    marked = -1
    most = 0.0
    for row in rows:
        if row.what_if is None:
            cells.append([label(row.name), row.refusal, "–", "–"])
            continue
        outcome = row.what_if.at(k)
        tokens = "–"
        if outcome is not None:
            tokens = f"{outcome.tokens_per_call:.2f}"
            if outcome.tokens_per_call > most:
                most = outcome.tokens_per_call
                marked = len(cells)
        cells.append([label(row.name), percent(row.alpha), tokens, _range_words(row.what_if.best)])
    caption = "Agreement is averaged over all positions in the text; the paper calls it alpha."
    return blocks.TableBlock(columns, cells, caption=caption, marked=marked)


def _range_words(best: tuple[int, int] | None) -> str:
    """The lowest and the highest of the best K."""
    if best is None:
        return "not known"
    low, high = best
    return str(low) if low == high else f"{low} to {high}"


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
) -> PageSection:
    """The section on the draft's own temperature.

    may_ask: the run has a draft model that reads the target's tokens. refusal: why nothing is known, in words.
    """
    is_exact = overlaps is not None and overlaps.is_exact
    controls = (
        [blocks.ButtonControl("ask", "Ask the models", primary=not is_exact)] if may_ask else []
    )
    if overlaps is None:
        hint = f" {READ[1]}" if may_ask else ""
        return blocks.PageSection(*DRAFT_TEMPERATURE, controls, [blocks.WordsBlock(refusal + hint)])
    places = f"{overlaps.num_positions:,} positions"
    words = " ".join(READ) if may_ask else READ[0]
    if is_exact:
        words = f"Exact: both models read the text, {places}."
    shown = [blocks.WordsBlock(words), blocks.ChartBlock(_overlap_chart(overlaps, places))]
    if overlaps.best:
        temperature, overlap = overlaps.best
        end = f": {percent(overlap)}."
        if overlaps.own is not None:
            end += f" This run's draft was sampled at {overlaps.own:g}."
        best = ["The overlap is largest at ", f"{temperature:g}", end]
        shown.append(blocks.WordsBlock(best))
    return blocks.PageSection(*DRAFT_TEMPERATURE, controls, shown)


def _overlap_chart(overlaps: OverlapCurve, places: str) -> Chart:
    x = [f"{temperature:g}" for temperature in overlaps.temperatures]
    data = [charts.curve("overlap", "p", x, overlaps.known, HOVER)]
    if not overlaps.is_exact:
        low = charts.curve("at least", "q", x, overlaps.low, HOVER, "dot")
        high = charts.curve("at most", "q", x, overlaps.high, HOVER, "dot")
        data += [low, high | {"fill": "tonexty"}]
    title = f"Overlap at each draft temperature, {places}"
    return charts.figure(title, data, "temperature of the draft", "sum min(p, q)", in_percent=True)


WHY_SLOW = (
    "why-slow",
    "Why is it slow?",
    "Ideally, every draft is full and accepted, drafting is free and checking costs one target call: K + 1 times as "
    "fast. Each factor below takes its share. All but the last are computed from the run and the measured costs. The "
    "last, overhead, is the rest of the gap to the measured speedup.",
)


TIMES = (
    "Shorter drafts and rejections take their share first. Three more factors need measured times: draft cost, verify "
    "growth and overhead."
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
    seconds: float | None = None,
) -> PageSection:
    """The section on the factors of the speedup.

    running: the progress of measuring. refusal: why there is no breakdown. instead: why the speedup says nothing.
    seconds: how long measuring takes by the measured costs, where they tell.
    """
    takes = ""
    if seconds is not None:
        takes = f"By the costs measured on this machine, it takes about {duration(seconds)}."
    controls = []
    if has_run:
        controls.append(blocks.ButtonControl("speed", "Measure the speed", primary=not has_speed))
    shown = []
    if running is not None:
        words = f"{progress_words(running)}: short runs, alternating with and without a draft"
        shown.append(blocks.progress(running.done, running.total, words))
    if breakdown is None:
        missing = refusal or _missing_words(has_run, has_costs, has_speed)
        shown.append(blocks.WordsBlock(missing))
        return blocks.PageSection(*WHY_SLOW, controls, shown, takes=takes)
    verdict = [f"Measured: {instead}."] if instead else _verdict_words(breakdown)
    shown.append(blocks.WordsBlock(verdict))
    shown.append(blocks.ChartBlock(charts.factors_chart(breakdown)))
    shown.append(_factors_table(breakdown))
    shown += [blocks.WordsBlock(note, small=True) for note in breakdown.notes]
    return blocks.PageSection(*WHY_SLOW, controls, shown, takes=takes)


def tokens_left(recorded: Trace) -> list[PageBlock]:
    """The factors that need no times: the tokens of a step of this run, from the ideal to what was written."""
    counters = count(recorded)
    ideal = recorded.steps[-1].settings.k + 1
    left = {
        "ideal": float(ideal),
        "drafted": 1 + counters.num_drafted / counters.num_steps,
        "written": counters.num_emitted / counters.num_steps,
    }
    rows = []
    for name, tokens in left.items():
        rows.append(blocks.bar(name, [("accepted", 100 * tokens / ideal)], [f"{tokens:.2f}"]))
    return [
        blocks.BarsBlock(rows, heads=["tokens per target call"], first="count"),
        blocks.WordsBlock(TIMES),
    ]


def _missing_words(has_run: bool, has_costs: bool, has_speed: bool) -> str:
    """The words on the measurements that a breakdown still needs."""
    if not has_run:
        return NO_RUN
    needed = []
    if not has_costs:
        needed.append("“Measure costs” above")
    if not has_speed:
        needed.append("“Measure the speed” here")
    return f"Not known yet: press {' and '.join(needed)}."


def _factors_table(breakdown: Breakdown) -> TableBlock:
    explanation = "Every drafted token accepted, in the time of one target call."
    rows = [["ideal", f"{breakdown.ideal}", "K + 1", explanation]]
    for factor in breakdown.factors:
        rows.append([factor.name, f"x {factor.value:.2f}", factor.formula, factor.words])
    speed = f"{breakdown.speedup:.2f}x"
    formula = METRICS["speedup"].formula
    rows.append(["measured speedup", speed, formula, "The product of all lines above."])
    columns = ["factor", "value", "formula", "in words"]
    return blocks.TableBlock(columns, rows, marked=len(rows) - 1)


def _verdict_words(breakdown: Breakdown) -> Words:
    worst = min(breakdown.factors, key=lambda factor: factor.value)
    if breakdown.speedup > 1:
        how = "faster than"
    elif breakdown.speedup < 1:
        how = "slower than"
    else:
        how = "as fast as"
    return [
        "Measured: ",
        f"{breakdown.speedup:.2f}x",
        f", {how} no draft. The largest loss is ",
        worst.name,
        f" (x {worst.value:.2f}).",
    ]


TOOL_NAMES = (
    "tool-names",
    "Other tools' names",
    "Engines and papers use similar names for different numbers. Here are this run's numbers as each would print them.",
)


def tool_names(recorded: Trace | None) -> PageSection:
    """The run's numbers under every tool's names, and as JSON under two tools' own field names."""
    if recorded is None:
        return blocks.PageSection(*TOOL_NAMES, blocks=[blocks.WordsBlock(NO_RUN)])
    rows = []
    for row in tool_numbers(recorded):
        value = f"n/a: {row.reason}" if row.reason else row.shown
        rows.append([row.tool, row.name, value, row.label, row.formula])
    shown = [
        blocks.TableBlock(["tool", "its name", "value", "our name", "formula"], rows),
        blocks.WordsBlock(WAYS_OF_DRAFTING, small=True),
    ]
    for tool in (VLLM, SGLANG):
        words = f"Save as JSON, {tool} field names"
        file_name = f"specviz-{tool.lower()}.json"
        shown.append(blocks.DownloadBlock(words, file_name, export(recorded, tool)))
    return blocks.PageSection(*TOOL_NAMES, blocks=shown)
