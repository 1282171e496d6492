"""The section of measured costs: verify time against tokens, what a forward must read, what a batch changes.

Pure data in, props out. `costs` is what `specviz.analysis.costs` measures; every number is worded here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specviz.views import blocks
from specviz.views.blocks import Props, Words
from specviz.views.explore.charts import Chart, chart_of, line_of
from specviz.views.explore.sentences import label, percent

if TYPE_CHECKING:
    from specviz.analysis.costs import Costs, Measured

NAME, TITLE = "costs", "Costs, measured"
LEAD = (
    "What a drafted token costs on this machine, and what the large model takes to check several tokens in one pass. "
    "Speculative decoding gains while checking many tokens costs little more than writing one."
)
EMPTY = (
    "Nothing measured yet. Measuring takes a few seconds with the bundled models; the numbers are good only if "
    "nothing else runs meanwhile."
)
CACHE_NOTE = (
    "The dashed floor counts on weights that come from memory. A small model's weights can stay in the processor's "
    "cache, which is faster; then a pass can take less."
)
SHOWN = (1, 2, 3, 5, 9, 17, 33)
MOSTLY, HARDLY = 0.6, 0.4  # shares of a forward that reading the weights explains
ROOM = 1.6  # the height of the chart over the longest forward


def costs(
    measured: Costs | None,
    *,
    context_length: int,
    most_context: int,
    running: Measured | None = None,
    problem: str = "",
) -> Props:
    """`measured`: the latest result. `running`: how far a new one has come. `problem`: why there is none, in words."""
    controls = [
        blocks.count("context_length", "tokens of context", context_length, 1, most_context),
        blocks.button("measure", "Measure costs", primary=measured is None),
    ]
    shown = [] if running is None else [blocks.progress(running.done, running.total, running.doing)]
    if problem:
        shown.append(blocks.words(problem))
    if measured is not None:
        shown += _result(measured)
    elif not shown:
        shown.append(blocks.words(EMPTY))
    return blocks.section(NAME, TITLE, LEAD, controls, shown)


def _result(costs: Costs) -> list[Props]:
    numbers = blocks.details("Numbers", [_table(costs), blocks.words(CACHE_NOTE)])
    if costs.doubt:
        told = blocks.verdict("unsure", f"{costs.doubt} Until then no speedup and no best K is told.")
        return [blocks.words(_setting(costs), small=True), told, blocks.chart(chart(costs)), numbers]
    return [
        blocks.words(_setting(costs), small=True),
        blocks.words(_growth(costs)),
        blocks.chart(chart(costs)),
        blocks.words(_single(costs)),
        blocks.words(_floor(costs)),
        *([blocks.words(_batch_words(costs)), _batch_table(costs)] if costs.batch else []),
        numbers,
    ]


def _setting(costs: Costs) -> str:
    draft = "no draft model" if costs.draft is None else label(costs.draft)
    machine = f"{label(costs.device)}, {costs.threads} thread{'s' if costs.threads != 1 else ''}, {label(costs.dtype)}"
    return (
        f"{label(costs.target)} with {draft}, {costs.context_length:,} tokens of context; {machine}. Medians; the "
        f"middle half of repeated timings spans {percent(costs.spread)} of them."
    )


def _growth(costs: Costs) -> Words:
    one, most = costs.verify_ms[0], len(costs.verify_ms)
    words = ["The large model takes ", _ms(one), " for one token"]
    for n in sorted({min(5, most), most} - {1}):
        words[-1] += f"; for {n} tokens at once "
        words += [_ms(costs.verify_ms[n - 1]), f", which is {costs.verify_ms[n - 1] / one:.2f} times as long"]
    words[-1] += "."
    return words


def _single(costs: Costs) -> Words:
    rest = f" of every step is spent outside both models ({percent(costs.overhead_ms / costs.verify_ms[0])} of a pass)."
    if costs.draft is None:
        return ["No draft model was measured. ", _ms(costs.overhead_ms), rest]
    ratio = costs.draft_ms / costs.verify_ms[0]
    return [
        "A drafted token takes ", _ms(costs.draft_ms), ", which is ", f"{ratio:.2f}",
        " of a pass of the large model: the cost ratio c. ", _ms(costs.overhead_ms), rest,
    ]  # fmt: skip


def _floor(costs: Costs) -> Words:
    """The roofline reading: weight bytes over measured bandwidth, against the measured time."""
    told = [
        "One pass must read ", f"{costs.weight_bytes / 1e6:.1f} MB", " of weights. At the measured ",
        f"{costs.bandwidth_gb_s:.1f} GB/s", f" (reading {costs.bandwidth_bytes / 1e6:.0f} MB) that alone takes ",
        _ms(costs.floor_ms),
    ]  # fmt: skip
    share = costs.floor_share
    if share > 1:
        return [*told, ", more than the measured pass: part of the weights stays in a cache that is faster."]
    told += [", ", percent(share)]
    if share >= MOSTLY:
        return [*told, " of the measured pass. Reading is most of the work, so more tokens per pass cost little."]
    if share >= HARDLY:
        return [*told, " of the measured pass; the rest is arithmetic and starting each operation."]
    return [
        *told,
        " of the measured pass. Reading is not what limits this model here: most of the time goes into arithmetic and "
        "into starting many small operations, which a draft model must do too. So a small target gains little.",
    ]


def _batch_words(costs: Costs) -> Words:
    """Why a bigger batch stops gaining, where it does."""
    batches = sorted({cost.batch for cost in costs.batch})
    few, many = batches[0], batches[-1]
    tokens = min((cost.tokens for cost in costs.batch if cost.tokens > 1), default=1)
    before, after = (costs.verify_growth(batch, tokens) for batch in (few, many))
    reason = (
        "A bigger batch already uses the arithmetic that checking drafts would get almost for free, so drafts gain "
        "less the more texts are written at once."
        if after > before
        else "Up to this batch size this machine checks drafts as cheaply as with few texts."
    )
    return [
        f"With {few} text{'s' if few != 1 else ''} at once, a pass over {tokens} tokens of each takes ",
        f"{before:.2f}", f" times as long as one over a single token of each; with {many} texts ", f"{after:.2f}",
        f" times. {reason}",
    ]  # fmt: skip


def _batch_table(costs: Costs) -> Props:
    """Plain passes of the model, every text with its own cached context."""
    tokens = sorted({cost.tokens for cost in costs.batch})
    columns = ["texts at once", *(f"{n} token{'s' if n != 1 else ''} each" for n in tokens)]
    columns += [f"most that K = {n - 1} can gain" for n in tokens if n > 1]
    rows = []
    for batch in sorted({cost.batch for cost in costs.batch}):
        times = [_ms(cost.ms) for cost in costs.batch if cost.batch == batch]
        rows.append([str(batch), *times, *(f"{n / costs.verify_growth(batch, n):.2f}x" for n in tokens if n > 1)])
    caption = (
        "One pass of the large model over a batch, contexts cached (a plain forward, not the engine). The most that K "
        "can gain: every drafted token kept and drafting free."
    )
    return blocks.table(columns, rows, caption=caption)


def _table(costs: Costs) -> Props:
    one = costs.verify_ms[0]
    rows = [
        [str(n), _ms(costs.verify_ms[n - 1]), f"{costs.verify_ms[n - 1] / one:.2f}"]
        for n in SHOWN
        if n <= len(costs.verify_ms)
    ]
    return blocks.table(["tokens in one pass", "time", "times one token"], rows)


def chart(costs: Costs, theme: str = "light") -> Chart:
    """Verify time against tokens, beside as many single passes and beside the time that reading the weights takes."""
    count = len(costs.verify_ms)
    measured = line_of("one pass, measured", "verify", theme, "%{x} tokens in one pass: %{y:.2f} ms")
    measured |= {"mode": "lines+markers"}
    singly = line_of("as many passes over one token", "plain", theme, "%{x} passes over one token: %{y:.2f} ms")
    floor = line_of("reading the weights once", "ignored", theme, "reading the weights: %{y:.2f} ms")
    singly["line"] |= {"dash": "dot"}
    floor["line"] |= {"dash": "dash"}
    columns: list[Sequence[float]] = [
        costs.verify_ms,
        [costs.verify_ms[0] * n for n in range(1, count + 1)],
        [costs.floor_ms] * count,
    ]
    for line, column in zip((measured, singly, floor), columns, strict=True):
        line |= {"x": list(range(1, count + 1)), "y": [round(ms, 4) for ms in column]}
    top = ROOM * max(*costs.verify_ms, costs.floor_ms)
    axes = {
        "xaxis": {"title": {"text": "new tokens in one pass of the large model"}, "showgrid": False},
        "yaxis": {"title": {"text": "milliseconds"}, "range": [0, round(top, 4)]},
        "showlegend": True,
    }
    table = [["tokens", 0, "x"], *([line["name"], place, "y"] for place, line in enumerate((measured, singly, floor)))]
    return chart_of("Time to check several tokens at once", [measured, singly, floor], axes, table)


def _ms(ms: float) -> str:
    """Three or four digits, with the unit."""
    return f"{ms:,.{2 if ms < 10 else 1 if ms < 100 else 0}f}\u00a0ms"
