"""The middle of an alignment report: where drafts differ, every K, parts of the text, reasons, confidence, training.

A `Summary` in, lists of `blocks` out, empty where there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from specviz.alignment.report import cells
from specviz.alignment.report.charts import (
    calibration_chart,
    checkpoint_series,
    checkpoints_chart,
    slices_chart,
    speed_chart,
    tokens_chart,
)
from specviz.alignment.summary import ENOUGH_PROMPTS, NOT_CALLED, DraftingMode
from specviz.alignment.tables.reasons import REASONS
from specviz.trace.tool_names import WAYS_OF_DRAFTING
from specviz.views import blocks
from specviz.views.blocks import Cell, Props, Words
from specviz.views.words import label, percent, reveal

if TYPE_CHECKING:
    from specviz.alignment.summary import (
        AlphaDifference,
        DraftComparison,
        DraftSummary,
        Loss,
        Pattern,
        Slice,
        Summary,
        Win,
    )

MOST_ROWS = 200  # of a table of slices
FEWEST_TOKENS = 30  # below, a slice has no K and no speed
ENDING = "special"  # the class of tokens that end a text: a step there can give one token only
MOST_NAMED = 5  # slices of a draft that lose more than their share
LOSSES_NOTE = (
    "A rejection ends its step and loses the tokens that the step could still have added. Each loss is counted once, "
    "at the rejected token, so the shares add up to 100 %."
)
REASON_ORDER = {name: place for place, name in enumerate(REASONS)}  # in which they are tried
REASON_TONES = ("ignored", "plain", "p", "q", "shortfall", "accepted", "rejected", "bonus")


def against(summary: Summary, texts: Collection[int] = ()) -> list[Props]:
    """texts: numbers of those that the page shows."""
    pairs = summary.comparisons
    if not pairs:
        return []
    places = {draft.name: place for place, draft in enumerate(summary.drafts)}
    rows = [(pair, each) for pair in pairs for each in pair.slices[:1]]
    columns = {
        "drafts": lambda row: _pair_title(row[0]),
        **_difference_columns("difference in agreement"),
    }
    return [
        *(
            blocks.chart(checkpoints_chart(own, summary.k))
            for own in checkpoint_series(summary.drafts)
        ),
        *(
            blocks.words(reveal(words))
            for words in dict.fromkeys(pair.words for pair in pairs)
            if words
        ),
        blocks.table_of(rows, columns, sortable=len(rows) > 1),
        *(blocks.details(_pair_title(pair), _pair(pair, places, texts)) for pair in pairs),
    ]


def _pair_title(pair: DraftComparison) -> str:
    return f"{label(pair.a)} against {label(pair.b)}"


def _pair(pair: DraftComparison, places: Mapping[str, int], texts: Collection[int]) -> list[Props]:
    rows = [(pair, each) for each in pair.slices[:MOST_ROWS]]
    both = (pair.a, pair.wins_a), (pair.b, pair.wins_b)
    wins = [_wins(name, won, places.get(name, 0), texts) for name, won in both]
    columns = _difference_columns(f"{label(pair.a)} less {label(pair.b)}")
    return [blocks.table_of(rows, columns, sortable=True), *filter(None, wins)]


def _difference_columns(title: str) -> blocks.Columns:
    return {
        "slice": lambda row: "all tokens" if row[1].kind == "all" else _slice_title(row[1]),
        "prompts": lambda row: cells.number(row[1].num_prompts),
        title: lambda row: cells.points(row[1].difference),
        "95 % interval": lambda row: cells.points_range(row[1].interval),
        "verdict": lambda row: _difference_verdict(*row),
    }


def _slice_title(each: AlphaDifference | Loss) -> str:
    return f"{label(each.kind)}: {label(each.value)}"


def _difference_verdict(pair: DraftComparison, found: AlphaDifference) -> Cell:
    if found.significant is None:
        return blocks.cell(NOT_CALLED, sort=NOT_CALLED, tone="ignored")
    if not found.significant:
        return blocks.cell("no significant difference", sort="no", tone="ignored")
    words = f"{label(pair.a if found.difference > 0 else pair.b)} agrees more"
    return blocks.cell(words, sort=words, tone="accepted")


def _wins(name: str, wins: Sequence[Win], draft: int, texts: Collection[int]) -> Props | None:
    columns = {
        "text": lambda win: _text_cell(win, draft, 0, texts),
        "ahead by": lambda win: cells.points(abs(win.difference)),
    }
    caption = f"Texts where {label(name)} leads most."
    return blocks.table_of(wins, columns, caption=caption, sortable=True) if wins else None


def _text_cell(found: Win | Pattern, draft: int, token: int, texts: Collection[int]) -> Cell:
    """The name of a text; it opens the text where the page shows it."""
    name = label(found.id)
    return blocks.opening_cell(name, found.prompt, draft, token) if found.prompt in texts else name


def every_k(summary: Summary) -> list[Props]:
    shown = [blocks.chart(tokens_chart(summary.drafts))]
    if any(draft.speedups for draft in summary.drafts):
        shown.append(blocks.chart(speed_chart(summary.drafts)))
    return shown


def ways(summary: Summary) -> list[Props]:
    """Each draft twice: drawn tokens, then its most likely ones."""
    k, rows = summary.k, []
    for draft in (draft for draft in summary.drafts if draft.by_argmax is not None):
        drawn = DraftingMode(
            draft.alpha, draft.tokens_per_call, draft.speedups, draft.best_k, draft.by_position
        )
        rows += [(draft.name, "drawn", drawn), (draft.name, "most likely", draft.by_argmax)]
    if not rows:
        return []
    columns = {
        "draft": lambda row: label(row[0]),
        "drafted token": lambda row: row[1],
        "first token accepted": lambda row: cells.share(row[2].alpha),
        f"tokens per target call at K = {k}": lambda row: cells.number(
            row[2].tokens_per_call[k - 1] if row[2].tokens_per_call else None, "{:.2f}".format
        ),
        "best K": lambda row: cells.best_k(row[2].best_k),
        "steps that accept 1, 2, ... K tokens": lambda row: (
            ", ".join(map(percent, row[2].by_position)) or cells.NONE
        ),
    }
    return [
        blocks.table_of(rows, columns, sortable=True),
        blocks.words(WAYS_OF_DRAFTING, small=True),
    ]


SLICES = (
    ("depth", "by depth", "tokens of text before"),
    ("context", "by context length", "tokens before, prompt included"),
    ("class", "by class of token", "class"),
    ("tag", "by tag", "tag"),
    ("ahead", "by depth in the draft", "drafted token, from 1"),
)
CHARTED = ("depth", "context", "ahead")


def slices(summary: Summary) -> list[Props]:
    found = {kind: [each for each in summary.slices if each.kind == kind] for kind, _, _ in SLICES}
    names = [draft.name for draft in summary.drafts]
    charts = [blocks.chart(slices_chart(f"Agreement {how}", x, found[kind], names)) for kind, how, x in SLICES
              if kind in CHARTED and found[kind]]  # fmt: skip
    tables = [
        (how, _slices_table(found[kind], x, summary.k)) for kind, how, x in SLICES if found[kind]
    ]
    axes = {kind: x for kind, _, x in SLICES}
    falls = [(each.draft, f": agreement falls at {label(each.value)} {axes[each.kind]}")
             for each in summary.slices if each.cliff]  # fmt: skip
    words = [blocks.verdict("differs", ["", label(draft), fall]) for draft, fall in falls]
    named = (
        each for draft in summary.drafts for each in losing_slices(summary, draft)[:MOST_NAMED]
    )
    words += [
        blocks.verdict("differs", ["", label(each.draft), ": the ", *loss_words(each)])
        for each in named
    ]
    few = (
        f"Hollow points and slices of fewer than {ENOUGH_PROMPTS} prompts are rough. Tokens per target call, best K "
        "and speedup of a slice cover the steps that begin at one of its tokens, wherever they end. They are left "
        f"out below {FEWEST_TOKENS} tokens, and for the tokens that end a text."
    )
    notes = [blocks.words(few, small=True)] if charts or tables else []
    folds = [blocks.details(f"All numbers {how}", [table]) for how, table in tables]
    return [*words, *charts, *notes, *folds]


def losing_slices(summary: Summary, draft: DraftSummary) -> list[Slice]:
    """Those of the draft that lose more than their share of the tokens, most first."""
    own = [each for each in summary.slices if each.draft == draft.name and each.stands_out]
    return sorted(own, key=lambda each: each.share - each.loss_share)


def loss_words(each: Slice) -> Words:
    low, high = (100 * end for end in each.excess)
    more = f"{low:.0f} to {high:.0f} points more, 95 % interval; agreement {percent(each.alpha)}"
    told = f" is {percent(each.share)} of the tokens but {percent(each.loss_share)} of the loss ({more})."
    return [f"{label(each.kind)} {label(each.value)}", told]


def _slices_table(found: Sequence[Slice], title: str, k: int) -> Props:
    places = {(each.draft, each.value): place for place, each in enumerate(found)}
    columns = {
        title: lambda each: blocks.cell(
            label(each.value),
            sort=places[each.draft, each.value] if each.kind in CHARTED else label(each.value),
        ),
        "draft model": lambda each: label(each.draft),
        "agreement, sum min(p, q)": _slice_agreement,
        **cells.INTERVAL_AND_MOST_LIKELY,
        "share of the tokens": lambda each: cells.share(each.share),
        "share of the loss": lambda each: cells.share(each.loss_share),
        f"tokens per target call at K = {k}": lambda each: cells.number(
            each.tokens_per_call, "{:.2f}".format
        ),
        "best K": lambda each: (
            cells.number(each.best_k, str) if _has_speed(each) else blocks.cell(cells.NONE)
        ),
        "predicted speedup at best K": lambda each: (
            cells.speedup(each.speedup) if _has_speed(each) else blocks.cell(cells.NONE)
        ),
        **cells.COUNTS,
    }
    if found[0].kind == "ahead":
        columns["accepted if the most likely token is drafted"] = columns.pop("same top token")
        lacking = ("speedup", "K", "share")
        columns = {
            name: of for name, of in columns.items() if not any(word in name for word in lacking)
        }
    is_cut = len(found) > MOST_ROWS
    caption = (
        f"The first {MOST_ROWS:,} of {len(found):,} rows; all are in slices.parquet."
        if is_cut
        else ""
    )
    return blocks.table_of(found[:MOST_ROWS], columns, caption=caption, sortable=True)


def _slice_agreement(each: Slice) -> Cell:
    if each.cliff:
        return blocks.cell(f"{percent(each.alpha)}, falls here", sort=each.alpha, tone="rejected")
    return cells.share(each.alpha)


def _has_speed(each: Slice) -> bool:
    return each.num_tokens >= FEWEST_TOKENS and (each.kind, each.value) != ("class", ENDING)


def reasons(summary: Summary) -> list[Props]:
    names = sorted(
        {reason.name for draft in summary.drafts for reason in draft.reasons}, key=_order
    )
    if not names:
        return []
    bars = [_reason_bar(draft, names) for draft in summary.drafts]
    rows = [(draft, reason) for draft in summary.drafts
            for reason in sorted(draft.reasons, key=lambda reason: _order(reason.name))]  # fmt: skip
    columns = {
        "draft model": lambda row: label(row[0].name),
        "share of the lost agreement": lambda row: cells.share(row[1].share),
        "reason": lambda row: blocks.cell(label(row[1].name), sort=names.index(row[1].name)),
        "tokens": lambda row: cells.number(row[1].num_tokens),
        "in words": lambda row: reveal(row[1].words),
    }
    heads = ["lost agreement", "upper limit from its vocabulary"]
    key = [(_tone(place), reveal(name)) for place, name in enumerate(names)]
    table = blocks.table_of(rows, columns, sortable=True)
    table = table if len(bars) == 1 else blocks.details("All numbers by reason", [table])
    return [blocks.bars(bars, heads=heads, key=key, first="draft model"), table]


def _order(name: str) -> tuple[int, str]:
    """A sort key; unknown names come last."""
    return REASON_ORDER.get(name, len(REASON_ORDER)), name


def _reason_bar(draft: DraftSummary, names: Sequence[str]) -> Props:
    """The draft's lost agreement, its parts in the order of the key."""
    shares = {reason.name: reason.share for reason in draft.reasons}
    parts = [(_tone(place), 100 * shares.get(name, 0.0)) for place, name in enumerate(names)]
    lost = 1 - draft.alpha if cells.is_known(draft.alpha) else None
    told = [cells.share_words(lost), cells.share_words(draft.ceiling)]
    return blocks.bar(label(draft.name), parts, told)


def _tone(place: int) -> str:
    return REASON_TONES[place % len(REASON_TONES)]


def calibration(summary: Summary) -> list[Props]:
    drafts = [draft for draft in summary.drafts if draft.calibration.bins]
    if not drafts:
        return []
    columns = {
        "draft model": lambda draft: label(draft.name),
        "mean gap between confidence and acceptance (ECE)": lambda draft: cells.share(
            draft.calibration.ece
        ),
    }
    named: dict[str, list[str]] = {}
    for draft in drafts:
        named.setdefault(reveal(draft.calibration.words), []).append(label(draft.name))
    return [
        *(blocks.verdict("unsure", ["", ", ".join(names), f": {words}"]) for words, names in named.items()),
        blocks.table_of(drafts, columns),
        *(blocks.chart(calibration_chart(draft)) for draft in drafts),
    ]  # fmt: skip


def training(summary: Summary, texts: Collection[int] = ()) -> list[Props]:
    """texts: numbers of those that the page shows."""
    made = [
        (draft, _rejections(draft, place, texts))
        for place, draft in enumerate(summary.drafts)
        if draft.losses
    ]
    if len(made) == 1:
        return made[0][1]
    return [block for draft, found in made
            for block in (found[0], blocks.details(f"{label(draft.name)}: what to train on", found[1:]))]  # fmt: skip


def _rejections(draft: DraftSummary, place: int, texts: Collection[int]) -> list[Props]:
    """What the patterns come to, the patterns, then what all rejections lose by class and by reason."""
    columns = {
        "rejected tokens, by class or reason": _slice_title,
        "tokens lost": lambda each: cells.number(each.lost, "{:,.1f}".format),
        "share of all lost tokens": lambda each: cells.share(each.share),
    }
    caption = f"Losses from rejections with {label(draft.name)}"
    losses = blocks.table_of(draft.losses, columns, caption=caption, sortable=True)
    found = [_patterns(draft.patterns, place, texts)] if draft.patterns else []
    return [
        blocks.words(_pattern_words(draft)),
        *found,
        losses,
        blocks.words(LOSSES_NOTE, small=True),
    ]


def _pattern_words(draft: DraftSummary) -> Words:
    if not draft.patterns:
        return [
            "",
            label(draft.name),
            ": no group of rejections recurs in so many texts that its cost is sure.",
        ]
    saved, number = sum(each.saved for each in draft.patterns), len(draft.patterns)
    part = f" ({percent(saved / draft.calls)})" if draft.calls > 0 else ""
    told = f": {'this group costs' if number == 1 else f'these {number:,} groups cost'} "
    return [
        "",
        label(draft.name),
        told,
        f"{saved:,.1f} of {draft.calls:,.0f}",
        f" target calls{part}.",
    ]


def _patterns(found: Sequence[Pattern], draft: int, texts: Collection[int]) -> Props:
    columns = {
        "after": lambda each: label(each.before),
        "the target's token": lambda each: label(each.token),
        "the draft's top token": lambda each: label(each.draft_token),
        "target calls to save": lambda each: cells.number(each.saved, "{:,.1f}".format),
        "95 % interval": lambda each: blocks.cell(f"{each.interval[0]:,.1f} to {each.interval[1]:,.1f}",
                                                  sort=each.interval[0]),
        "places": lambda each: cells.number(each.num_places),
        "texts": lambda each: cells.number(each.num_prompts),
        "for example": lambda each: _text_cell(each, draft, each.place, texts),
    }  # fmt: skip
    return blocks.table_of(found, columns, sortable=True)
