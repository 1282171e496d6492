"""The middle of an alignment report: where drafts differ, every K, parts of the text, reasons, confidence, rejections.

A `Summary` in, lists of `blocks` out, empty where there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from specviz.alignment.report import cells
from specviz.alignment.report.charts import calibration_chart, slices_chart, speed_chart, tokens_chart
from specviz.alignment.summary import ENOUGH_PROMPTS
from specviz.alignment.tables.reasons import REASONS
from specviz.views import blocks
from specviz.views.blocks import Cell, Props, Words
from specviz.views.explore.sentences import label, percent, visible

if TYPE_CHECKING:
    from specviz.alignment.summary import Comparison, Difference, DraftSummary, Rejection, Slice, Summary, Win

NOT_CALLED = f"not called significant: fewer than {ENOUGH_PROMPTS} prompts"
MOST_ROWS = 200  # of a table of slices
FEWEST_TOKENS = 30  # below, a slice has no K and no speed
ENDING = "special"  # the class of tokens that end a text: a step there can give one token only
MOST_AROUND = 80  # characters before and after a rejected token
LOSSES_NOTE = (
    "A rejection ends its step and loses the tokens that the step could still have added; each loss is counted once, "
    "at the rejected token, so the shares add up to the whole."
)
REASON_NAMES = tuple(reason.name for reason in REASONS)
REASON_TONES = ("ignored", "plain", "p", "q", "owed", "accepted", "rejected", "bonus")

# ---- draft A against draft B ----------------------------------------------------------------------------------------


def against(summary: Summary, texts: Collection[int] = ()) -> list[Props]:
    """texts: numbers of those that the page shows."""
    if not summary.comparisons:
        return []
    places = {draft.name: place for place, draft in enumerate(summary.drafts)}
    rows = [row for pair in summary.comparisons for row in _difference_rows(pair, pair.slices[:1])]
    columns = ["drafts", "slice", "prompts", "difference of agreement", "95 % interval", "verdict"]
    return [
        *(blocks.words(visible(words)) for words in dict.fromkeys(pair.words for pair in summary.comparisons) if words),
        blocks.table(columns, rows, sortable=len(rows) > 1),
        *(blocks.details(f"{label(pair.a)} against {label(pair.b)}", _pair(pair, places, texts))
          for pair in summary.comparisons),
    ]  # fmt: skip


def _pair(pair: Comparison, places: Mapping[str, int], texts: Collection[int]) -> list[Props]:
    columns = ["slice", "prompts", f"{label(pair.a)} less {label(pair.b)}", "95 % interval", "verdict"]
    rows = [row[1:] for row in _difference_rows(pair, pair.slices[:MOST_ROWS])]
    both = (pair.a, pair.wins_a), (pair.b, pair.wins_b)
    wins = [_wins(name, won, places.get(name, 0), texts) for name, won in both]
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


def _wins(name: str, wins: Sequence[Win], draft: int, texts: Collection[int]) -> Props | None:
    rows = [[_text_cell(win.id, win.prompt, draft, 0, texts), cells.points(abs(win.difference))] for win in wins]
    caption = f"Texts where {label(name)} is ahead most."
    return blocks.table(["text", "ahead by"], rows, caption=caption, sortable=True) if rows else None


def _text_cell(name: str, number: int, draft: int, token: int, texts: Collection[int]) -> Cell:
    """The name of a text; it opens the text where the page shows it."""
    return blocks.opener(label(name), number, draft, token) if number in texts else label(name)


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
    words = ["", label(draft.name), " is predicted to be fastest at ", f"K = {at}", ": ", told,
             " the speed of one by one."]  # fmt: skip
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
    few = (
        f"Hollow points and slices of fewer than {ENOUGH_PROMPTS} prompts are rough. Tokens per target call, best K "
        "and speedup of a slice count the steps that begin at such a token, wherever they end. There is no K and no "
        f"speedup for fewer than {FEWEST_TOKENS} tokens, nor for the tokens that end a text."
    )
    notes = [blocks.words(few, small=True)] if charts or tables else []
    folds = [blocks.details(f"All numbers {how}", [table]) for how, table in tables]
    return [*words, *charts, *notes, *folds]


def _slices_table(found: Sequence[Slice], title: str, k: int) -> Props:
    columns = [
        title, "draft model", "agreement, sum min(p, q)", "95 % interval", "same favourite",
        f"tokens per target call at K = {k}", "best K", "predicted speedup at best K", "prompts", "tokens",
    ]  # fmt: skip
    rows = [_slice_row(each, place) for place, each in enumerate(found[:MOST_ROWS])]
    left_out = f"The first {MOST_ROWS:,} of {len(found):,} rows; all are in slices.parquet."
    return blocks.table(columns, rows, caption=left_out if len(found) > MOST_ROWS else "", sortable=True)


def _slice_row(each: Slice, place: int) -> list[Cell]:
    speed: list[Cell] = [cells.number(each.best_k, "{}"), cells.speedup(each.speedup)]
    if each.num_tokens < FEWEST_TOKENS or (each.kind, each.value) == ("class", ENDING):
        speed = [blocks.cell(cells.NONE)] * 2
    return [
        blocks.cell(label(each.value), sort=place if each.kind in CHARTED else label(each.value)),
        label(each.draft),
        blocks.cell(f"{percent(each.alpha)}, falls here", sort=each.alpha, tone="rejected")
        if each.cliff
        else cells.share(each.alpha),
        cells.spread(each.alpha_interval),
        cells.share(each.greedy_agreement),
        cells.number(each.tokens_per_call, "{:.2f}"),
        *speed,
        cells.number(each.num_prompts),
        cells.number(each.num_tokens),
    ]


# ---- why p and q part -----------------------------------------------------------------------------------------------


def reasons(summary: Summary) -> list[Props]:
    names = sorted({reason.name for draft in summary.drafts for reason in draft.reasons}, key=_order)
    if not names:
        return []
    bars = [_reason_bar(draft, names) for draft in summary.drafts]
    heads = ["lost agreement", "most that its vocabulary allows"]
    rows = [
        [label(draft.name), cells.share(reason.share), blocks.cell(label(reason.name), sort=names.index(reason.name)),
         cells.number(reason.num_tokens), visible(reason.words)]
        for draft in summary.drafts for reason in sorted(draft.reasons, key=lambda reason: _order(reason.name))
    ]  # fmt: skip
    columns = ["draft model", "of the lost agreement", "reason", "tokens", "in words"]
    key = [(_tone(place), visible(name)) for place, name in enumerate(names)]
    return [blocks.bars(bars, heads=heads, key=key, first="draft model"), blocks.table(columns, rows, sortable=True)]


def _order(name: str) -> tuple[int, str]:
    """As the reasons are tried: the last one is what is left."""
    return REASON_NAMES.index(name) if name in REASON_NAMES else len(REASON_NAMES), name


def _reason_bar(draft: DraftSummary, names: Sequence[str]) -> Props:
    """The draft's lost agreement, its parts in the order of the key."""
    shares = {reason.name: reason.share for reason in draft.reasons}
    parts = [(_tone(place), 100 * shares.get(name, 0.0)) for place, name in enumerate(names)]
    lost = 1 - draft.alpha if cells.is_known(draft.alpha) else None
    told = [cells.share_words(lost), cells.share_words(draft.ceiling)]
    return blocks.bar(label(draft.name), parts, told)


def _tone(place: int) -> str:
    return REASON_TONES[place % len(REASON_TONES)]


# ---- calibration ----------------------------------------------------------------------------------------------------


def calibration(summary: Summary) -> list[Props]:
    drafts = [draft for draft in summary.drafts if draft.calibration.bins]
    if not drafts:
        return []
    rows = [[label(draft.name), cells.share(draft.calibration.ece)] for draft in drafts]
    columns = ["draft model", "mean gap between confidence and kept (ECE)"]
    return [
        *(blocks.verdict("unsure", ["", label(draft.name), f": {visible(draft.calibration.words)}"])
          for draft in drafts),
        blocks.table(columns, rows),
        *(blocks.chart(calibration_chart(draft)) for draft in drafts),
    ]  # fmt: skip


# ---- the costliest rejections ---------------------------------------------------------------------------------------


def costliest(summary: Summary, texts: Collection[int] = ()) -> list[Props]:
    """texts: numbers of those that the page shows."""
    made = [(draft, _costly(draft, place, texts)) for place, draft in enumerate(summary.drafts) if draft.costliest]
    if len(made) == 1:
        return made[0][1]
    return [block for draft, found in made
            for block in (found[0], blocks.details(f"{label(draft.name)}: what to train on", found[1:]))]  # fmt: skip


def _costly(draft: DraftSummary, place: int, texts: Collection[int]) -> list[Props]:
    """What the list comes to, what all rejections lose by class and by reason, then the list."""
    listed = _rejections(draft.costliest, place, texts)
    losses = [_losses(draft), blocks.words(LOSSES_NOTE, small=True)] if draft.losses else []
    return [blocks.words(_listed_words(draft)), *losses, listed]


def _listed_words(draft: DraftSummary) -> Words:
    saved, number = sum(each.saved for each in draft.costliest), len(draft.costliest)
    part = f" ({percent(saved / draft.calls)})" if draft.calls > 0 else ""
    these = "This one saves " if number == 1 else f"These {number:,} save "
    return ["", label(draft.name), f": {these[0].lower()}{these[1:]}", f"{saved:,.1f} of {draft.calls:,.0f}",
            f" target calls{part}."]  # fmt: skip


def _losses(draft: DraftSummary) -> Props:
    rows = [
        [f"{label(each.kind)}: {label(each.value)}", cells.number(each.lost, "{:,.1f}"), cells.share(each.share)]
        for each in draft.losses
    ]
    columns = ["rejected tokens of this class, or for this reason", "tokens lost", "of all lost tokens"]
    return blocks.table(columns, rows, caption=f"What rejections lose with {label(draft.name)}", sortable=True)


def _rejections(found: Sequence[Rejection], draft: int, texts: Collection[int]) -> Props:
    columns = [
        "target calls to save", "the token, in its text", "text", "place, from 1", "p", "q", "chance to be kept",
        "the target's favourite", "the draft's favourite", "why p and q part",
    ]  # fmt: skip
    caption = f"The {len(found):,} costliest, a token at most twice per text"
    return blocks.table(columns, [_rejection_row(each, draft, texts) for each in found], caption=caption, sortable=True)


def _rejection_row(each: Rejection, draft: int, texts: Collection[int]) -> list[Cell]:
    token = label(each.token)
    around = [f"…{visible(each.before)[-MOST_AROUND:]}", token, f"{visible(each.after)[:MOST_AROUND]}…"]
    return [
        blocks.cell(f"{each.saved:.2f}", sort=each.saved),
        blocks.cell(around, sort=token),
        _text_cell(each.id, each.prompt, draft, each.place, texts),
        cells.number(each.place + 1),
        cells.share(each.p),
        cells.share(each.q),
        cells.share(each.keep),
        label(each.target_favourite),
        label(each.draft_favourite),
        visible(each.reason),
    ]
