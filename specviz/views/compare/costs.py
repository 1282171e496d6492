"""The section of measured costs: verify time against tokens, the memory bound, batches (see specviz.analysis.costs)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specviz.views import blocks
from specviz.views.blocks import PageBlock, PageSection, TableBlock, Words
from specviz.views.compare.plan_charts import curve
from specviz.views.explore.charts import Chart, axes_of, chart_of, list_columns
from specviz.views.words import label, percent, quantity, reveal

if TYPE_CHECKING:
    from specviz.analysis.costs import Costs, Measured

NAME = "costs"
TITLE = "Costs, measured"
LEAD = (
    "What a drafted token costs on this machine, and how long the target model takes to check several tokens in one "
    "pass. Speculative decoding pays off while checking many tokens takes little longer than writing one."
)
EMPTY = "Nothing measured yet. The numbers are only good if nothing else runs meanwhile."
CACHE_NOTE = (
    "The dashed floor assumes that the weights come from memory. A small model's weights can stay in the processor's "
    "cache, which is faster, so a pass can fall below the floor."
)
SHOWN = (1, 2, 3, 5, 9, 17, 33)
# the share of a forward that reading the weights takes
MOSTLY = 0.6
HARDLY = 0.4
ROOM = 1.6  # the height of the chart relative to the longest forward


def costs(
    measured: Costs | None,
    *,
    context_length: int,
    most_context: int,
    running: Measured | None = None,
) -> PageSection:
    """The section of measured costs. measured: the latest result; running: the progress of a new one."""
    controls = [
        blocks.CountControl("context_length", "tokens of context", context_length, 1, most_context),
        blocks.ButtonControl("measure", "Measure costs", primary=measured is None),
    ]
    shown: list[PageBlock] = []
    if running is not None:
        shown.append(blocks.progress(running.done, running.total, running.doing))
    if measured is not None:
        shown += _result_blocks(measured)
    elif not shown:
        shown.append(blocks.WordsBlock(EMPTY))
    return blocks.PageSection(NAME, TITLE, LEAD, controls, shown)


def _result_blocks(costs: Costs) -> list[PageBlock]:
    draft = "no draft model" if costs.draft is None else label(costs.draft)
    machine = f"{label(costs.device)}, {quantity(costs.threads, 'thread')}, {reveal(costs.dtype)}"
    setting = (
        f"{label(costs.target)} with {draft}, {costs.context_length:,} tokens of context; {machine}. Medians; the "
        f"middle half of the repeated timings spans {percent(costs.spread)} of the median."
    )
    shown: list[PageBlock] = [blocks.WordsBlock(setting, small=True)]
    if costs.doubt:
        doubt = f"{costs.doubt} Until then no speedup and no best K are given."
        shown += [blocks.VerdictBlock("unsure", doubt), blocks.ChartBlock(chart(costs))]
    else:
        shown += [blocks.WordsBlock(_growth_words(costs)), blocks.ChartBlock(chart(costs))]
        shown += [blocks.WordsBlock(_draft_words(costs)), blocks.WordsBlock(_floor_words(costs))]
        if costs.batch:
            shown += [blocks.WordsBlock(_batch_words(costs)), _batch_table(costs)]
    one = costs.verify_ms[0]
    rows = []
    for n, ms in enumerate(costs.verify_ms, 1):
        if n in SHOWN:
            rows.append([str(n), _format_ms(ms), f"{ms / one:.2f}"])
    table = blocks.TableBlock(["tokens in one pass", "time", "relative to one token"], rows)
    return [*shown, blocks.DetailsBlock("Numbers", [table, blocks.WordsBlock(CACHE_NOTE)])]


def _growth_words(costs: Costs) -> Words:
    """The time for one token, and for several at once."""
    one = costs.verify_ms[0]
    most = len(costs.verify_ms)
    words = ["The target model takes ", _format_ms(one), " for one token"]
    for n in sorted({min(5, most), most} - {1}):
        ms = costs.verify_ms[n - 1]
        words[-1] += f"; for {n} tokens at once "
        words += [_format_ms(ms), f", {ms / one:.2f} times as long"]
    words[-1] += "."
    return words


def _draft_words(costs: Costs) -> Words:
    overhead = costs.overhead_ms / costs.verify_ms[0]
    rest = f" of every step is spent outside both models ({percent(overhead)} of a pass)."
    if costs.draft is None:
        return ["No draft model was measured. ", _format_ms(costs.overhead_ms), rest]
    ratio = costs.draft_ms / costs.verify_ms[0]
    return [
        "A drafted token takes ", _format_ms(costs.draft_ms), ", which is ", f"{ratio:.2f}",
        " of a target pass. This is the cost ratio c. ", _format_ms(costs.overhead_ms), rest,
    ]  # fmt: skip


def _floor_words(costs: Costs) -> Words:
    """The time that reading the weights takes at the measured bandwidth, beside the measured time (roofline)."""
    words = [
        "One pass must read ", f"{costs.weight_bytes / 1e6:.1f} MB", " of weights. At the measured ",
        f"{costs.bandwidth_gb_s:.1f} GB/s", f" (reading {costs.bandwidth_bytes / 1e6:.0f} MB), this alone takes ",
        _format_ms(costs.floor_ms),
    ]  # fmt: skip
    share = costs.floor_share
    if share > 1:
        more = ", more than the measured pass: some of the weights stay in a faster cache."
        return [*words, more]
    if share >= MOSTLY:
        meaning = "Reading is most of the work, so more tokens per pass cost little."
    elif share >= HARDLY:
        meaning = "The rest is arithmetic and starting each operation."
    else:
        meaning = (
            "Reading does not limit this model here: most of the time goes into arithmetic and into starting many "
            "small operations. A draft model must do these too, so a small target gains little."
        )
    return [*words, ", ", percent(share), f" of the measured pass. {meaning}"]


def _batch_words(costs: Costs) -> Words:
    """Why a bigger batch stops gaining, where it does."""
    few = min(cost.batch for cost in costs.batch)
    many = max(cost.batch for cost in costs.batch)
    tokens = min((cost.tokens for cost in costs.batch if cost.tokens > 1), default=1)
    before = costs.verify_growth(few, tokens)
    after = costs.verify_growth(many, tokens)
    reason = "Up to this batch size, this machine checks drafts as cheaply as with few texts."
    if after > before:
        reason = (
            "Checking drafts is nearly free while the processor has arithmetic to spare. A bigger batch uses it up, so "
            "drafts gain less."
        )
    return [
        f"With {quantity(few, 'text')} at once, a pass over {tokens} tokens of each takes ",
        f"{before:.2f}", f" times as long as a pass over one token of each; with {many} texts ", f"{after:.2f}",
        f" times. {reason}",
    ]  # fmt: skip


def _batch_table(costs: Costs) -> TableBlock:
    """Plain passes of the model, every text with its own cached context."""
    sizes = sorted({cost.tokens for cost in costs.batch})
    drafted = [n for n in sizes if n > 1]
    columns = ["texts at once"]
    columns += [f"{quantity(n, 'token')} each" for n in sizes]
    columns += [f"upper limit for K = {n - 1}" for n in drafted]
    rows = []
    for batch in sorted({cost.batch for cost in costs.batch}):
        times = [_format_ms(cost.ms) for cost in costs.batch if cost.batch == batch]
        limits = [f"{n / costs.verify_growth(batch, n):.2f}x" for n in drafted]
        rows.append([str(batch), *times, *limits])
    caption = (
        "One target pass over a batch, contexts cached (a plain forward, not the engine). The upper limit assumes "
        "that every drafted token is accepted and drafting is free."
    )
    return blocks.TableBlock(columns, rows, caption=caption)


def chart(costs: Costs) -> Chart:
    """Verify time against tokens, beside as many single passes, and the time that reading the weights takes."""
    return growth_chart(range(1, len(costs.verify_ms) + 1), costs.verify_ms, costs.floor_ms)


def growth_chart(
    ns: Sequence[int], verify_ms: Sequence[float], floor_ms: float | None = None
) -> Chart:
    """The chart of these numbers of tokens in one pass. floor_ms: to read the weights once, where it is known."""
    hover = "%{x} tokens in one pass: %{y:.2f} ms"
    measured = curve("one pass, measured", "verify", ns, verify_ms, hover)
    measured["mode"] = "lines+markers"
    passes = [verify_ms[0] * n for n in ns]
    hover = "%{x} passes over one token: %{y:.2f} ms"
    lines = [measured, curve("as many passes over one token", "plain", ns, passes, hover, "dot")]
    if floor_ms is not None:
        hover = "reading the weights: %{y:.2f} ms"
        floor = [floor_ms] * len(ns)
        lines.append(curve("reading the weights once", "ignored", ns, floor, hover, "dash"))
    top = ROOM * max(*verify_ms, floor_ms or 0)
    time = {"title": {"text": "milliseconds"}, "range": [0, round(top, 4)]}
    axes = axes_of("new tokens in one pass of the target model", time) | {"showlegend": True}
    title = "Time to check several tokens at once"
    return chart_of(title, lines, axes, list_columns("tokens", lines))


def _format_ms(ms: float) -> str:
    """A time with three or four digits and its unit."""
    if ms < 10:
        return f"{ms:.2f}\u00a0ms"
    return f"{ms:.1f}\u00a0ms" if ms < 100 else f"{ms:,.0f}\u00a0ms"
