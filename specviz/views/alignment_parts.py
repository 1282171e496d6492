"""The middle of an alignment report: where drafts differ, every K, parts of the text, reasons, confidence, rejections.

A `Summary` in, lists of `blocks` out, empty where there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specviz.alignment.summary import ENOUGH_PROMPTS
from specviz.views import alignment_cells as cells
from specviz.views import blocks
from specviz.views.alignment_charts import calibration_chart, slices_chart, speed_chart, spread, tokens_chart
from specviz.views.blocks import Cell, Props, Words
from specviz.views.sentences import label, percent, visible

if TYPE_CHECKING:
    from specviz.alignment.summary import Comparison, Difference, DraftSummary, Rejection, Slice, Summary, Win

NOT_CALLED = f"not called significant: fewer than {ENOUGH_PROMPTS} prompts"
MOST_ROWS = 200  # of a table of slices
MOST_AROUND = 80  # characters before and after a rejected token
REASON_TONES = ("ignored", "plain", "p", "q", "owed", "accepted", "rejected", "bonus")

# ---- draft A against draft B ----------------------------------------------------------------------------------------


def against(summary: Summary) -> list[Props]:
    if not summary.comparisons:
        return []
    rows = [row for pair in summary.comparisons for row in _difference_rows(pair, pair.slices[:1])]
    columns = ["drafts", "slice", "prompts", "difference of agreement", "95 % interval", "verdict"]
    return [
        blocks.table(columns, rows, sortable=len(rows) > 1),
        *(blocks.details(f"{label(pair.a)} against {label(pair.b)}", _pair(pair)) for pair in summary.comparisons),
    ]


def _pair(pair: Comparison) -> list[Props]:
    columns = ["slice", "prompts", f"{label(pair.a)} less {label(pair.b)}", "95 % interval", "verdict"]
    rows = [row[1:] for row in _difference_rows(pair, pair.slices[:MOST_ROWS])]
    wins = [_wins(pair.a, pair.wins_a), _wins(pair.b, pair.wins_b)]
    return [blocks.table(columns, rows, sortable=True), *filter(None, wins)]


def _difference_rows(pair: Comparison, differences: Sequence[Difference]) -> list[list[Cell]]:
    return [
        [
            f"{label(pair.a)} against {label(pair.b)}",
            "all tokens" if each.kind == "all" else f"{label(each.kind)}: {label(each.value)}",
            cells.number(each.num_prompts),
            cells.points(each.difference),
            cells.points_range(each.interval),
            _difference_verdict(pair, each),
        ]
        for each in differences
    ]


def _difference_verdict(pair: Comparison, found: Difference) -> Cell:
    if found.significant is None:
        return blocks.cell(NOT_CALLED, sort=NOT_CALLED, tone="ignored")
    if not found.significant:
        return blocks.cell("no significant difference", sort="no", tone="ignored")
    words = f"{label(pair.a if found.difference > 0 else pair.b)} agrees more"
    return blocks.cell(words, sort=words, tone="accepted")


def _wins(name: str, wins: Sequence[Win]) -> Props | None:
    rows = [[label(win.id), cells.points(abs(win.difference))] for win in wins]
    caption = f"Texts where {label(name)} is ahead most."
    return blocks.table(["text", "ahead by"], rows, caption=caption, sortable=True) if rows else None


# ---- every K --------------------------------------------------------------------------------------------------------


def every_k(summary: Summary) -> list[Props]:
    shown = [blocks.chart(tokens_chart(summary.drafts))]
    if any(draft.speedups for draft in summary.drafts):
        shown.append(blocks.chart(speed_chart(summary.drafts)))
    return [*(blocks.words(_speed_words(draft)) for draft in summary.drafts if draft.speedups), *shown]


def _speed_words(draft: DraftSummary) -> Words:
    fastest = max(draft.speedups)
    at = draft.speedups.index(fastest) + 1
    told = f"{fastest:.2f}x"
    words = ["", label(draft.name), " is fastest at ", f"K = {at}", ": ", told, " the speed of one by one."]
    if fastest < 1:
        words[-1] += " That is slower than one by one: with these costs this draft does not pay."
    return words


# ---- slices ---------------------------------------------------------------------------------------------------------

SLICES = (
    ("depth", "by depth", "tokens of text before"),
    ("context", "by context length", "tokens before, prompt included"),
    ("class", "by class of token", "class"),
    ("tag", "by tag", "tag"),
)
CHARTED = ("depth", "context")


def slices(summary: Summary) -> list[Props]:
    found = {kind: [each for each in summary.slices if each.kind == kind] for kind, _, _ in SLICES}
    names = [draft.name for draft in summary.drafts]
    charts = [blocks.chart(slices_chart(f"Agreement {how}", x, found[kind], names)) for kind, how, x in SLICES
              if kind in CHARTED and found[kind]]  # fmt: skip
    tables = [(how, _slices_table(found[kind], x, summary.k)) for kind, how, x in SLICES if found[kind]]
    axes = {kind: x for kind, _, x in SLICES}
    words = [
        blocks.verdict(
            "differs", ["", label(each.draft), f": agreement falls at {label(each.value)} {axes[each.kind]}"]
        )
        for each in summary.slices
        if each.cliff
    ]
    few = f"Hollow points and slices of fewer than {ENOUGH_PROMPTS} prompts are rough."
    notes = [blocks.words(few, small=True)] if charts or tables else []
    folds = [blocks.details(f"Agreement {how}, as a table", [table]) for how, table in tables]
    return [*words, *charts, *notes, *folds]


def _slices_table(found: Sequence[Slice], title: str, k: int) -> Props:
    columns = [
        title, "draft model", "agreement, sum min(p, q)", "95 % interval", "same favourite",
        f"tokens per target call at K = {k}", "best K", "speedup there", "prompts", "tokens",
    ]  # fmt: skip
    rows = [_slice_row(each, place) for place, each in enumerate(found[:MOST_ROWS])]
    left_out = f"The first {MOST_ROWS:,} of {len(found):,} rows; all are in slices.parquet."
    return blocks.table(columns, rows, caption=left_out if len(found) > MOST_ROWS else "", sortable=True)


def _slice_row(each: Slice, place: int) -> list[Cell]:
    return [
        blocks.cell(label(each.value), sort=place if each.kind in CHARTED else label(each.value)),
        label(each.draft),
        blocks.cell(f"{percent(each.alpha)}, falls here", sort=each.alpha, tone="rejected")
        if each.cliff
        else cells.share(each.alpha),
        spread(each.alpha_interval),
        cells.share(each.greedy_agreement),
        cells.number(each.tokens_per_call, "{:.2f}"),
        cells.number(each.best_k, "{}"),
        cells.speedup(each.speedup),
        cells.number(each.num_prompts),
        cells.number(each.num_tokens),
    ]


# ---- why p and q part -----------------------------------------------------------------------------------------------


def reasons(summary: Summary) -> list[Props]:
    names = list(dict.fromkeys(reason.name for draft in summary.drafts for reason in draft.reasons))
    if not names:
        return []
    bars = [_reason_bar(draft, names) for draft in summary.drafts]
    heads = ["lost agreement", "most that its vocabulary allows"]
    rows = [
        [label(reason.name), label(draft.name), cells.share(reason.share), cells.number(reason.num_tokens),
         visible(reason.words)]
        for draft in summary.drafts for reason in draft.reasons
    ]  # fmt: skip
    columns = ["reason", "draft model", "of the lost agreement", "tokens", "in words"]
    key = [(_tone(place), visible(name)) for place, name in enumerate(names)]
    return [blocks.bars(bars, heads=heads, key=key), blocks.table(columns, rows, sortable=True)]


def _reason_bar(draft: DraftSummary, names: Sequence[str]) -> Props:
    """The draft's lost agreement, its parts in the order of the key."""
    shares = {reason.name: reason.share for reason in draft.reasons}
    parts = [(_tone(place), 100 * shares.get(name, 0.0)) for place, name in enumerate(names)]
    told = [cells.share_words(1 - draft.alpha), cells.share_words(draft.ceiling)]
    return blocks.bar(label(draft.name), parts, told)


def _tone(place: int) -> str:
    return REASON_TONES[place % len(REASON_TONES)]


# ---- calibration ----------------------------------------------------------------------------------------------------


def calibration(summary: Summary) -> list[Props]:
    drafts = [draft for draft in summary.drafts if draft.calibration.bins]
    if not drafts:
        return []
    rows = [
        [label(draft.name), cells.share(draft.calibration.ece), visible(draft.calibration.words)] for draft in drafts
    ]
    columns = ["draft model", "expected calibration error", "is a confidence stop useful?"]
    return [blocks.table(columns, rows), *(blocks.chart(calibration_chart(draft)) for draft in drafts)]


# ---- the costliest rejections ---------------------------------------------------------------------------------------


def costliest(summary: Summary) -> list[Props]:
    made = [(draft, _rejections(draft.costliest)) for draft in summary.drafts if draft.costliest]
    if len(made) == 1:
        return [made[0][1]]
    titles = [f"{label(draft.name)}: the {len(draft.costliest)} costliest" for draft, _ in made]
    return [blocks.details(title, [table]) for title, (_, table) in zip(titles, made, strict=True)]


def _rejections(found: Sequence[Rejection]) -> Props:
    columns = [
        "target calls to save", "the token, in its text", "p", "q", "chance to be kept", "the target's favourite",
        "the draft's favourite", "why p and q part", "text", "place",
    ]  # fmt: skip
    return blocks.table(columns, [_rejection_row(each) for each in found], sortable=True)


def _rejection_row(each: Rejection) -> list[Cell]:
    token = label(each.token)
    around = [f"…{visible(each.before)[-MOST_AROUND:]}", token, f"{visible(each.after)[:MOST_AROUND]}…"]
    return [
        blocks.cell(f"{each.saved:.2f}", sort=each.saved),
        blocks.cell(around, sort=token),
        cells.share(each.p),
        cells.share(each.q),
        cells.share(each.keep),
        label(each.target_favourite),
        label(each.draft_favourite),
        visible(each.reason),
        label(each.id),
        cells.number(each.place),
    ]
