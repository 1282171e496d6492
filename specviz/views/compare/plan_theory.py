"""The section that compares the paper's formula with this text and run, and lists the paper's published numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from specviz.analysis import theory as paper
from specviz.analysis.given_text import judge_run
from specviz.errors import SpecvizError
from specviz.trace.metrics import metrics
from specviz.views import blocks
from specviz.views.blocks import DetailsBlock, PageSection, TableCell, Words
from specviz.views.compare.plan import NO_COSTS, every_k, run_point
from specviz.views.compare.plan_charts import Point, speed_chart, tokens_chart

if TYPE_CHECKING:
    from specviz.analysis.costs import Costs
    from specviz.analysis.whatif import WhatIf
    from specviz.trace import Trace

GAP = 0.05  # formula and text agree below this difference, in tokens per target call
THEORY = (
    "theory",
    "Theory and this run",
    "The paper's formula uses two numbers: alpha, the probability that a drafted token is accepted, and c, the time "
    "to draft one token divided by the time of one target call. It treats every token as equally hard. Real texts "
    "have easy and hard stretches, so the formula and this text differ.",
)


def given_text(
    recorded: Trace | None, costs: Costs | None = None, speedup: float | None = None
) -> tuple[PageSection, PageSection]:
    """The sections on every K and on the theory, as far as the run's text tells. speedup: see `run_point`."""
    if recorded is None:
        return every_k(None, None), theory(None, None, None)
    try:
        judged = judge_run(recorded)
        what_if = judged.every_k(costs=costs)
    except SpecvizError as why:
        refusal = f"The recorded numbers do not tell: {why}."
        return every_k(recorded, None, refusal=refusal), theory(None, None, None)
    point = run_point(recorded, speedup)
    alpha = metrics(recorded)["alpha"]
    section = every_k(recorded, what_if, judged.cuts(), point=point)
    return section, theory(what_if, alpha, costs, point)


def theory(
    what_if: WhatIf | None, alpha: float | None, costs: Costs | None, point: Point | None = None
) -> PageSection:
    """The section on the paper's formula. alpha: the metric of that name, over all places of the text."""
    if what_if is None or alpha is None:
        missing = "No alpha yet. It needs a finished run with a draft model, scored by both models."
        return blocks.PageSection(
            *THEORY, blocks=[blocks.WordsBlock(missing), _published_numbers()]
        )
    shown = [
        blocks.WordsBlock(_gap_words(what_if, alpha, point)),
        blocks.ChartBlock(tokens_chart(what_if, alpha, point)),
    ]
    if alpha < 1:
        most: Words = [
            "Even if every step knew in advance how many drafted tokens will be accepted, the formula gives at most ",
            f"{paper.oracle_tokens(alpha):.2f}", " tokens per target call: the first rejection ends a step.",
        ]  # fmt: skip
        shown.append(blocks.WordsBlock(most))
    if costs is None or what_if.best is None:
        doubt = "" if costs is None else costs.doubt
        shown.append(blocks.WordsBlock(doubt or NO_COSTS))
    else:
        shown.append(blocks.WordsBlock(_speed_words(what_if, alpha, costs)))
        shown.append(blocks.ChartBlock(speed_chart(what_if, alpha, costs, point)))
    return blocks.PageSection(*THEORY, blocks=[*shown, _published_numbers()])


def _gap_words(what_if: WhatIf, alpha: float, point: Point | None) -> Words:
    """How far the formula and the text are apart at the run's own K, else at a low one, and why."""
    outcome = what_if.at(point.k) if point is not None else None
    if outcome is None:
        outcome = what_if.outcomes[len(what_if.outcomes) // 4]
    formula = paper.expected_tokens(alpha, outcome.k)
    text = outcome.tokens_per_call
    words = [
        "At alpha = ", f"{alpha:.2f}", f" and K = {outcome.k}, the formula gives ", f"{formula:.2f}",
        " tokens per target call; this text gives ", f"{text:.2f}",
    ]  # fmt: skip
    if abs(text - formula) < GAP:
        return [*words, ". Here they agree."]
    reason = "Its hard tokens are spread out, its end shortens a step, or it is harder than its alpha says"
    if text > formula:
        reason = "Its easy tokens come in stretches, or it is easier than its alpha says"
    average = (
        f"its own tokens are accepted with an average probability of {what_if.by_depth[0]:.2f}"
    )
    return [*words, f". {reason} ({average})."]


def _speed_words(what_if: WhatIf, alpha: float, costs: Costs) -> Words:
    c = paper.cost_ratio(costs)
    if not paper.can_improve(alpha, c):
        return [
            "The paper's condition alpha > c fails: ",
            f"c = {c:.2f}",
            ". No K makes this pair faster here.",
        ]
    ks = [outcome.k for outcome in what_if.outcomes]
    formula = paper.best_k(alpha, c, ks)
    known = [outcome for outcome in what_if.outcomes if not math.isnan(outcome.speedup)]
    best = max(known, key=lambda outcome: outcome.speedup)
    return [
        "c = ", f"{c:.2f}", ", below alpha, so the formula promises a gain: K = 1 gives ",
        f"{paper.least_improvement(alpha, c):.2f}x", ", the best ",
        f"{paper.walltime_improvement(alpha, formula, c):.2f}x", f" at K = {formula}. It assumes that checking K + 1 "
        "tokens takes as long as one. With the times measured here, this text gives ",
        f"{best.speedup:.2f}x at K = {best.k}", ".",
    ]  # fmt: skip


def _published_numbers() -> DetailsBlock:
    above = sum(row.measured > row.by_formula for row in paper.TABLES_2_AND_4)
    below = sum(row.measured < row.by_formula for row in paper.TABLES_2_AND_4)
    words = (
        f"The measured speedup is above the formula's in {above} of these {len(paper.TABLES_2_AND_4)} rows and below "
        f"it in {below}. The formula is a guide; only a measurement decides."
    )
    rows = []
    for row in paper.TABLE_1:
        arithmetic = paper.arithmetic_factor(row.alpha, row.k, 0)
        improvement = paper.walltime_improvement(row.alpha, row.k, 0)
        operations = [f"{row.operations:.2f}x", f"{arithmetic:.2f}x"]
        speed = [f"{row.speed:.2f}x", f"{improvement:.2f}x"]
        rows.append([f"{row.alpha}", f"{row.k}", *operations, *speed])
    tables = [
        blocks.TableBlock(
            ["alpha", "K", "operations, printed", "by the formula", "speed, printed", "by the formula"], rows,
            caption=f"{paper.PAPER}, Table 1: a draft that costs no time.",
        ),
        blocks.TableBlock(
            ["task", "draft model", "temperature", "K", "alpha", "c", "expected, printed", "by the formula",
             "measured"],
            [_published_row(row) for row in paper.TABLES_2_AND_4],
            caption=f"{paper.PAPER}, Tables 2 and 4: published numbers for T5-XXL (11B), measured on the authors' "
            "machines.",
        ),
        blocks.WordsBlock(words),
    ]  # fmt: skip
    return blocks.DetailsBlock("Published numbers, for comparison", tables)


def _published_row(row: paper.PublishedRun) -> list[blocks.Cell]:
    measured = TableCell(f"{row.measured:.1f}x below", tone="rejected")
    if row.measured > row.by_formula:
        measured = TableCell(f"{row.measured:.1f}x above", tone="accepted")
    return [row.task, row.draft, f"{row.temperature:g}", str(row.k), f"{row.alpha:.2f}", f"{row.c:.2f}",
            f"{row.expected:.1f}x", f"{row.by_formula:.2f}x", measured]  # fmt: skip
