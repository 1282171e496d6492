"""The section of measured costs: verify time against tokens, the memory bound, batches (see specviz.analysis.costs)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.views import blocks
from specviz.views.blocks import Props, Words
from specviz.views.compare.plan_charts import curve
from specviz.views.explore.charts import Chart, axes_of, chart_of, list_columns
from specviz.views.words import label, percent, quantity, reveal

if TYPE_CHECKING:
    from specviz.analysis.costs import Costs, Measured

NAME, TITLE = "costs", "Costs, measured"
LEAD = (
    "What a drafted token costs on this machine, and how long the target model takes to check several tokens in one "
    "pass. Speculative decoding pays off while checking many tokens takes little longer than writing one."
)
EMPTY = (
    "Nothing measured yet. It takes a few seconds with the bundled models. The numbers are only good if nothing else "
    "runs meanwhile."
)
CACHE_NOTE = (
    "The dashed floor assumes that the weights come from memory. A small model's weights can stay in the processor's "
    "cache, which is faster, so a pass can fall below the floor."
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
) -> Props:
    """measured: the latest result; running: the progress of a new one."""
    controls = [
        blocks.count("context_length", "tokens of context", context_length, 1, most_context),
        blocks.button("measure", "Measure costs", primary=measured is None),
    ]
    shown = [] if running is None else [blocks.progress(running.done, running.total, running.doing)]
    if measured is not None:
        shown += _result_blocks(measured)
    elif not shown:
        shown.append(blocks.words(EMPTY))
    return blocks.section(NAME, TITLE, LEAD, controls, shown)


def _result_blocks(costs: Costs) -> list[Props]:
    draft = "no draft model" if costs.draft is None else label(costs.draft)
    machine = f"{label(costs.device)}, {quantity(costs.threads, 'thread')}, {reveal(costs.dtype)}"
    setting = (
        f"{label(costs.target)} with {draft}, {costs.context_length:,} tokens of context; {machine}. Medians; the "
        f"middle half of the repeated timings spans {percent(costs.spread)} of the median."
    )
    shown = [blocks.words(setting, small=True)]
    if costs.doubt:
        doubt = blocks.verdict(
            "unsure", f"{costs.doubt} Until then no speedup and no best K are given."
        )
        shown += [doubt, blocks.chart(chart(costs))]
    else:
        shown += [blocks.words(_growth_words(costs)), blocks.chart(chart(costs))]
        shown += [blocks.words(_draft_words(costs)), blocks.words(_floor_words(costs))]
        if costs.batch:
            shown += [blocks.words(_batch_words(costs)), _batch_table(costs)]
    one = costs.verify_ms[0]
    rows = [
        [str(n), _format_ms(ms), f"{ms / one:.2f}"]
        for n, ms in enumerate(costs.verify_ms, 1)
        if n in SHOWN
    ]
    table = blocks.table(["tokens in one pass", "time", "relative to one token"], rows)
    return [*shown, blocks.details("Numbers", [table, blocks.words(CACHE_NOTE)])]


def _growth_words(costs: Costs) -> Words:
    one, most = costs.verify_ms[0], len(costs.verify_ms)
    words = ["The target model takes ", _format_ms(one), " for one token"]
    for n in sorted({min(5, most), most} - {1}):
        words[-1] += f"; for {n} tokens at once "
        words += [
            _format_ms(costs.verify_ms[n - 1]),
            f", {costs.verify_ms[n - 1] / one:.2f} times as long",
        ]
    words[-1] += "."
    return words


def _draft_words(costs: Costs) -> Words:
    rest = f" of every step is spent outside both models ({percent(costs.overhead_ms / costs.verify_ms[0])} of a pass)."
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
        return [
            *words,
            ", more than the measured pass: some of the weights stay in a faster cache.",
        ]
    words += [", ", percent(share)]
    if share >= MOSTLY:
        return [
            *words,
            " of the measured pass. Reading is most of the work, so more tokens per pass cost little.",
        ]
    if share >= HARDLY:
        return [
            *words,
            " of the measured pass. The rest is arithmetic and starting each operation.",
        ]
    return [
        *words,
        " of the measured pass. Reading does not limit this model here: most of the time goes into arithmetic and "
        "into starting many small operations. A draft model must do these too, so a small target gains little.",
    ]


def _batch_words(costs: Costs) -> Words:
    """Why a bigger batch stops gaining, where it does."""
    batches = sorted({cost.batch for cost in costs.batch})
    few, many = batches[0], batches[-1]
    tokens = min((cost.tokens for cost in costs.batch if cost.tokens > 1), default=1)
    before, after = (costs.verify_growth(batch, tokens) for batch in (few, many))
    reason = (
        "Checking drafts is nearly free while the processor has arithmetic to spare. A bigger batch uses it up, so "
        "drafts gain less."
        if after > before
        else "Up to this batch size, this machine checks drafts as cheaply as with few texts."
    )
    return [
        f"With {quantity(few, 'text')} at once, a pass over {tokens} tokens of each takes ",
        f"{before:.2f}", f" times as long as a pass over one token of each; with {many} texts ", f"{after:.2f}",
        f" times. {reason}",
    ]  # fmt: skip


def _batch_table(costs: Costs) -> Props:
    """Plain passes of the model, every text with its own cached context."""
    tokens = sorted({cost.tokens for cost in costs.batch})
    columns = ["texts at once", *(f"{quantity(n, 'token')} each" for n in tokens)]
    columns += [f"upper limit for K = {n - 1}" for n in tokens if n > 1]
    rows = []
    for batch in sorted({cost.batch for cost in costs.batch}):
        times = [_format_ms(cost.ms) for cost in costs.batch if cost.batch == batch]
        rows.append(
            [
                str(batch),
                *times,
                *(f"{n / costs.verify_growth(batch, n):.2f}x" for n in tokens if n > 1),
            ]
        )
    caption = (
        "One target pass over a batch, contexts cached (a plain forward, not the engine). The upper limit assumes "
        "that every drafted token is accepted and drafting is free."
    )
    return blocks.table(columns, rows, caption=caption)


def chart(costs: Costs) -> Chart:
    """Verify time against tokens, with as many single passes and the time that reading the weights takes."""
    ns = list(range(1, len(costs.verify_ms) + 1))
    hover = "%{x} tokens in one pass: %{y:.2f} ms"
    measured = curve("one pass, measured", "verify", ns, costs.verify_ms, hover) | {
        "mode": "lines+markers"
    }
    passes, hover = [costs.verify_ms[0] * n for n in ns], "%{x} passes over one token: %{y:.2f} ms"
    singly = curve("as many passes over one token", "plain", ns, passes, hover, "dot")
    floor, hover = [costs.floor_ms] * len(ns), "reading the weights: %{y:.2f} ms"
    lines = [
        measured,
        singly,
        curve("reading the weights once", "ignored", ns, floor, hover, "dash"),
    ]
    top = ROOM * max(*costs.verify_ms, costs.floor_ms)
    time = {"title": {"text": "milliseconds"}, "range": [0, round(top, 4)]}
    axes = axes_of("new tokens in one pass of the target model", time) | {"showlegend": True}
    return chart_of(
        "Time to check several tokens at once", lines, axes, list_columns("tokens", lines)
    )


def _format_ms(ms: float) -> str:
    """Three or four digits, with the unit."""
    return f"{ms:,.{2 if ms < 10 else 1 if ms < 100 else 0}f}\u00a0ms"
