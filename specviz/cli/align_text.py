"""A job's summary as a short text for a terminal. What is not known is said in words, never as a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.alignment.summary import NOT_CALLED
from specviz.views.explore.sentences import quantity

if TYPE_CHECKING:
    from specviz.alignment.summary import Difference, DraftSummary, Interval, Summary
    from specviz.alignment.tables.compare import Change

SHOWN_LINES = 5  # of what was refused
NOT_KNOWN = "not known"
SIGNIFICANCE = {None: NOT_CALLED, False: "not significant", True: "significant"}


def summary_text(summary: Summary) -> str:
    """The drafts' numbers, what is wrong with them, how they compare, what was left out."""
    lines = [
        f"{summary.target}: {quantity(summary.num_prompts, 'prompt')}, {quantity(summary.num_tokens, 'token')}",
        summary.note,
        "",
        *_table(summary),
        "agreement: sum min(p, q), p = the target's probability, q = the draft's; the paper calls its mean alpha",
        *(f"! {draft.name}: {finding.words}" for draft in summary.drafts for finding in draft.findings),
        *_comparisons(summary),
        *(f"note: {warning}" for warning in summary.warnings),
    ]
    if summary.num_refused:
        lines.append(f"{quantity(summary.num_refused, 'row')} could not be used:")
        lines += [f"  line {line}: {reason}" for line, reason in summary.refused[:SHOWN_LINES]]
    return "\n".join(lines)


def _table(summary: Summary) -> list[str]:
    head = ("draft", "agreement, 95 %", "same favourite", f"tokens per target call, K={summary.k}", "best K", "speedup")
    rows = [head, *(_row(draft, summary.k) for draft in summary.drafts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(draft: DraftSummary, k: int) -> tuple[str, ...]:
    best = NOT_KNOWN if draft.best_k is None else "-".join(str(each) for each in dict.fromkeys(draft.best_k))
    speedup = "no costs" if draft.speedups is None else f"{max(draft.speedups):.2f}x"
    cells = (
        f"{_format(draft.alpha, '.3f')}{_format_interval(draft.alpha_interval)}",
        _format(draft.greedy_agreement, ".1%"),
        _format(draft.tokens_per_call[k - 1], ".2f"),
    )
    return (draft.name, *cells, best, speedup)


def _format(value: float | None, form: str) -> str:
    return NOT_KNOWN if value is None else format(value, form)


def _format_interval(interval: Interval | None) -> str:
    return "" if interval is None else f" ({interval[0]:.3f} to {interval[1]:.3f})"


def _comparisons(summary: Summary) -> list[str]:
    pairs = ((each, _difference(each.slices[0]) if each.slices else NOT_KNOWN) for each in summary.comparisons)
    return [f"{each.a} less {each.b}: {found}{f'; {each.words}' if each.words else ''}" for each, found in pairs]


def _difference(found: Difference) -> str:
    number = f"{found.difference:+.3f}".replace("-", "−") + _format_interval(found.interval)
    return f"agreement {number}, n = {quantity(found.num_prompts, 'prompt')}, {SIGNIFICANCE[found.significant]}"


def change_line(change: Change) -> str:
    """A draft against the older job."""
    old = "" if change.old_draft == change.draft else f" (there {change.old_draft})"
    if not old and change.is_same_model is False:
        old = " (other weights or settings than there)"
    return f"{change.draft} against the older job{old}: {change.verdict}; {_difference(change.difference)}"
