"""The middle of an alignment report: where drafts differ, every K, parts of the text, reasons, confidence, training.

Each function takes a `Summary` and returns a list of `blocks`, empty where there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from specviz.alignment.report import cells
from specviz.alignment.report.charts import (
    DRAFTED,
    accepted_chart,
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
from specviz.views.blocks import BarRow, Cell, PageBlock, TableBlock, Tone, Words
from specviz.views.words import draft_label, label, percent, reveal

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
DEPTH_NOTE = (
    "Heads that guess all tokens of a draft at once agree less with depth: no guess sees the one before it. A Markov "
    "bias shows each guess the token before, and mends part of the fall. A head that goes on from its own features, "
    "as EAGLE's, falls slowly. A draft model reads every earlier token, so its line is flat."
)
ACCEPTED_NOTE = (
    "Of the steps that accepted all earlier tokens, the share that accepts this one too. Such steps stand at easier "
    "places, so a line can rise where agreement does not. A step that the end of the text shortens counts as one "
    "that does not accept."
)
REASON_ORDER = {name: place for place, name in enumerate(REASONS)}  # in which they are tried
REASON_TONES: tuple[Tone, ...] = (
    "ignored",
    "plain",
    "p",
    "q",
    "shortfall",
    "accepted",
    "rejected",
    "bonus",
)


def against(summary: Summary, texts: Collection[int] = ()) -> list[PageBlock]:
    """The drafts compared in pairs, with charts of checkpoints. texts: numbers of the texts that the page shows."""
    pairs = summary.comparisons
    if not pairs:
        return []
    shown = []
    for series in checkpoint_series(summary.drafts):
        shown.append(blocks.ChartBlock(checkpoints_chart(series, summary.k)))
    for words in dict.fromkeys(pair.words for pair in pairs):
        if words:
            shown.append(blocks.WordsBlock(reveal(words)))
    rows = []
    for pair in pairs:
        rows += [(pair, whole) for whole in pair.slices[:1]]
    columns = {
        "drafts": lambda row: _pair_title(row[0]),
        **_difference_columns("difference in agreement"),
    }
    shown.append(blocks.table_of(rows, columns, sortable=len(rows) > 1))
    places = {draft.name: place for place, draft in enumerate(summary.drafts)}
    for pair in pairs:
        shown.append(blocks.DetailsBlock(_pair_title(pair), _pair_blocks(pair, places, texts)))
    return shown


def _pair_title(pair: DraftComparison) -> str:
    return f"{draft_label(pair.a)} against {draft_label(pair.b)}"


def _pair_blocks(
    pair: DraftComparison, places: Mapping[str, int], texts: Collection[int]
) -> list[PageBlock]:
    rows = [(pair, difference) for difference in pair.slices[:MOST_ROWS]]
    columns = _difference_columns(f"{draft_label(pair.a)} less {draft_label(pair.b)}")
    shown = [blocks.table_of(rows, columns, sortable=True)]
    for name, wins in ((pair.a, pair.wins_a), (pair.b, pair.wins_b)):
        if wins:
            shown.append(_wins_table(name, wins, places.get(name, 0), texts))
    return shown


def _difference_columns(title: str) -> blocks.Columns:
    return {
        "slice": lambda row: _slice_title(row[1]),
        "prompts": lambda row: cells.number(row[1].num_prompts),
        title: lambda row: cells.points(row[1].difference),
        "95 % interval": lambda row: cells.points_range(row[1].interval),
        "verdict": lambda row: _difference_verdict(*row),
    }


def _slice_title(found: AlphaDifference | Loss) -> str:
    return "all tokens" if found.kind == "all" else f"{label(found.kind)}: {label(found.value)}"


def _difference_verdict(pair: DraftComparison, found: AlphaDifference) -> Cell:
    if found.significant is None:
        return blocks.TableCell(NOT_CALLED, sort=NOT_CALLED, tone="ignored")
    if not found.significant:
        return blocks.TableCell("no significant difference", sort="no", tone="ignored")
    better = pair.a if found.difference > 0 else pair.b
    words = f"{draft_label(better)} agrees more"
    return blocks.TableCell(words, sort=words, tone="accepted")


def _wins_table(name: str, wins: Sequence[Win], draft: int, texts: Collection[int]) -> TableBlock:
    columns = {
        "text": lambda win: _text_cell(win, draft, 0, texts),
        "ahead by": lambda win: cells.points(abs(win.difference)),
    }
    caption = f"Texts where {draft_label(name)} leads most."
    return blocks.table_of(wins, columns, caption=caption, sortable=True)


def _text_cell(found: Win | Pattern, draft: int, token: int, texts: Collection[int]) -> Cell:
    """The name of a text; it opens the text where the page shows it."""
    name = label(found.id)
    return blocks.opening_cell(name, found.prompt, draft, token) if found.prompt in texts else name


def every_k(summary: Summary) -> list[PageBlock]:
    """The charts of tokens per target call and, where costs are known, of speedup against K."""
    shown = [blocks.ChartBlock(tokens_chart(summary.drafts))]
    if any(draft.speedups for draft in summary.drafts):
        shown.append(blocks.ChartBlock(speed_chart(summary.drafts)))
    return shown


def ways(summary: Summary) -> list[PageBlock]:
    """Each draft twice: with drawn tokens, then with its most likely ones."""
    rows = []
    for draft in summary.drafts:
        if draft.by_argmax is None:
            continue
        drawn = DraftingMode(
            draft.alpha, draft.tokens_per_call, draft.speedups, draft.best_k, draft.by_position
        )
        rows.append((draft.name, "drawn", drawn))
        rows.append((draft.name, "most likely", draft.by_argmax))
    if not rows:
        return []
    columns = {
        "draft": lambda row: draft_label(row[0]),
        "drafted token": lambda row: row[1],
        "first token accepted": lambda row: cells.share(row[2].alpha),
        f"tokens per target call at K = {summary.k}": lambda row: cells.number(
            row[2].tokens_per_call[summary.k - 1] if row[2].tokens_per_call else None,
            "{:.2f}".format,
        ),
        "best K": lambda row: cells.best_k(row[2].best_k),
        "steps that accept 1, 2, ... K tokens": lambda row: (
            ", ".join(map(percent, row[2].by_position)) or cells.NONE
        ),
    }
    return [
        blocks.table_of(rows, columns, sortable=True),
        blocks.WordsBlock(WAYS_OF_DRAFTING, small=True),
    ]


SLICES = (  # kind, heading, title of the axis
    ("depth", "by depth", "tokens of text before"),
    ("context", "by context length", "tokens before, prompt included"),
    ("class", "by class of token", "class"),
    ("tag", "by tag", "tag"),
)
AHEAD = ("ahead", "by depth in the draft", DRAFTED)
CHARTED = ("depth", "context", AHEAD[0])


def slices(summary: Summary) -> list[PageBlock]:
    """The agreement of each kind of slices: what stands out in words, then charts, then all numbers in tables."""
    charts = []
    tables = []
    for kind in SLICES:
        chart, table = _of_kind(summary, kind)
        charts += chart
        tables += table
    shown = [*_fall_verdicts(summary), *_loss_verdicts(summary), *charts]
    if tables:
        few = (
            f"Hollow points and slices of fewer than {ENOUGH_PROMPTS} prompts are rough. Tokens per target call, best "
            "K and speedup of a slice cover the steps that begin at one of its tokens, wherever they end. They are "
            f"left out below {FEWEST_TOKENS} tokens, and for the tokens that end a text."
        )
        shown.append(blocks.WordsBlock(few, small=True))
    return [*shown, *tables]


def _of_kind(
    summary: Summary, kind: tuple[str, str, str]
) -> tuple[list[PageBlock], list[PageBlock]]:
    """The chart of the slices of one kind, and the table to be opened; empty lists where there are none."""
    name, heading, x = kind
    found = [part for part in summary.slices if part.kind == name]
    if not found:
        return [], []
    charts: list[PageBlock] = []
    if name in CHARTED:
        drafts = [draft.name for draft in summary.drafts]
        charts = [blocks.ChartBlock(slices_chart(f"Agreement {heading}", x, found, drafts))]
    table = _slices_table(found, x, summary.k)
    return charts, [blocks.DetailsBlock(f"All numbers {heading}", [table])]


def by_depth(summary: Summary) -> list[PageBlock]:
    """The agreement at each token of a draft, then each token's acceptance where all before it were accepted."""
    chart, table = _of_kind(summary, AHEAD)
    if not chart:
        return []
    shown = [*chart, blocks.WordsBlock(DEPTH_NOTE, small=True)]
    if summary.k > 1 and any(len(draft.by_position) > 1 for draft in summary.drafts):
        found = [
            blocks.ChartBlock(accepted_chart(summary.drafts)),
            blocks.WordsBlock(ACCEPTED_NOTE, small=True),
        ]
        shown.append(
            blocks.DetailsBlock("Acceptance by depth, where all before were accepted", found)
        )
    return [*shown, *table]


def _fall_verdicts(summary: Summary) -> list[PageBlock]:
    """The cliffs in words."""
    axes = {kind: x for kind, _, x in SLICES}
    verdicts = []
    for part in summary.slices:
        if part.cliff:
            fall = f": agreement falls at {label(part.value)} {axes[part.kind]}"
            verdicts.append(blocks.VerdictBlock("differs", ["", draft_label(part.draft), fall]))
    return verdicts


def _loss_verdicts(summary: Summary) -> list[PageBlock]:
    """The slices of each draft that lose more than their share, in words."""
    verdicts = []
    for draft in summary.drafts:
        for part in losing_slices(summary, draft)[:MOST_NAMED]:
            words = ["", draft_label(part.draft), ": the ", *loss_words(part)]
            verdicts.append(blocks.VerdictBlock("differs", words))
    return verdicts


def losing_slices(summary: Summary, draft: DraftSummary) -> list[Slice]:
    """The slices of the draft that lose more than their share of the tokens, the largest excess first."""
    losing = [part for part in summary.slices if part.draft == draft.name and part.stands_out]
    return sorted(losing, key=lambda part: part.share - part.loss_share)


def loss_words(part: Slice) -> Words:
    """What a slice loses, in words that go on after "the"."""
    low, high = (100 * end for end in part.excess)
    more = f"{low:.0f} to {high:.0f} points more, 95 % interval; agreement {percent(part.alpha)}"
    lost = f" is {percent(part.share)} of the tokens but {percent(part.loss_share)} of the loss ({more})."
    return [f"{label(part.kind)} {label(part.value)}", lost]


def _slices_table(found: Sequence[Slice], title: str, k: int) -> TableBlock:
    """All numbers of slices of one kind. title: of the column of their values."""
    kind = found[0].kind
    places = {(part.draft, part.value): place for place, part in enumerate(found)}

    def value_cell(part: Slice) -> Cell:
        value = label(part.value)
        place = places[part.draft, part.value]
        return blocks.TableCell(value, sort=place if kind in CHARTED else value)

    columns = {
        title: value_cell,
        "draft model": lambda part: draft_label(part.draft),
        "agreement, sum min(p, q)": _slice_agreement,
    }
    if kind == "ahead":
        most_likely = "accepted if the most likely token is drafted"
        columns["95 % interval"] = lambda part: cells.spread(part.alpha_interval)
        columns |= cells.COUNTS
        columns[most_likely] = lambda part: cells.share(part.greedy_agreement)
    else:
        columns |= {**cells.INTERVAL_AND_MOST_LIKELY, **_step_columns(k), **cells.COUNTS}
    caption = ""
    if len(found) > MOST_ROWS:
        caption = f"The first {MOST_ROWS:,} of {len(found):,} rows; all are in slices.parquet."
    return blocks.table_of(found[:MOST_ROWS], columns, caption=caption, sortable=True)


def _step_columns(k: int) -> blocks.Columns:
    """The columns of a slice's share in the loss, and of the steps that begin in it."""
    return {
        "share of the tokens": lambda part: cells.share(part.share),
        "share of the loss": lambda part: cells.share(part.loss_share),
        f"tokens per target call at K = {k}": lambda part: cells.number(
            part.tokens_per_call, "{:.2f}".format
        ),
        "best K": lambda part: (
            cells.number(part.best_k, str) if _has_speed(part) else blocks.TableCell(cells.NONE)
        ),
        "predicted speedup at best K": lambda part: (
            cells.speedup(part.speedup) if _has_speed(part) else blocks.TableCell(cells.NONE)
        ),
    }


def _slice_agreement(part: Slice) -> Cell:
    if part.cliff:
        return blocks.TableCell(
            f"{percent(part.alpha)}, falls here", sort=part.alpha, tone="rejected"
        )
    return cells.share(part.alpha)


def _has_speed(part: Slice) -> bool:
    return part.num_tokens >= FEWEST_TOKENS and (part.kind, part.value) != ("class", ENDING)


def reasons(summary: Summary) -> list[PageBlock]:
    """Why p and q differ: a bar per draft with its lost agreement by reason, then all numbers."""
    rows = []
    for draft in summary.drafts:
        in_order = sorted(draft.reasons, key=lambda reason: _order(reason.name))
        rows += [(draft, reason) for reason in in_order]
    names = sorted({reason.name for _, reason in rows}, key=_order)
    if not names:
        return []
    columns = {
        "draft model": lambda row: draft_label(row[0].name),
        "share of the lost agreement": lambda row: cells.share(row[1].share),
        "reason": lambda row: blocks.TableCell(label(row[1].name), sort=names.index(row[1].name)),
        "tokens": lambda row: cells.number(row[1].num_tokens),
        "in words": lambda row: reveal(row[1].words),
    }
    table = blocks.table_of(rows, columns, sortable=True)
    if len(summary.drafts) > 1:
        table = blocks.DetailsBlock("All numbers by reason", [table])
    bars = [_reason_bar(draft, names) for draft in summary.drafts]
    heads = ["lost agreement", "upper limit from its vocabulary"]
    key = [(_tone(place), reveal(name)) for place, name in enumerate(names)]
    return [blocks.BarsBlock(bars, heads=heads, key=key, first="draft model"), table]


def _order(name: str) -> tuple[int, str]:
    """A sort key; unknown names come last."""
    return REASON_ORDER.get(name, len(REASON_ORDER)), name


def _reason_bar(draft: DraftSummary, names: Sequence[str]) -> BarRow:
    """The draft's lost agreement, its parts in the order of the key."""
    shares = {reason.name: reason.share for reason in draft.reasons}
    parts = [(_tone(place), 100 * shares.get(name, 0.0)) for place, name in enumerate(names)]
    lost = 1 - draft.alpha if cells.is_known(draft.alpha) else None
    numbers = [cells.share_words(lost), cells.share_words(draft.ceiling)]
    return blocks.bar(draft_label(draft.name), parts, numbers)


def _tone(place: int) -> Tone:
    return REASON_TONES[place % len(REASON_TONES)]


def calibration(summary: Summary) -> list[PageBlock]:
    """What each draft's confidence is worth: in words, its gap to acceptance, and a chart per draft."""
    drafts = [draft for draft in summary.drafts if draft.calibration.bins]
    if not drafts:
        return []
    names_by_words: dict[str, list[str]] = {}
    for draft in drafts:
        names = names_by_words.setdefault(reveal(draft.calibration.words), [])
        names.append(draft_label(draft.name))
    shown: list[PageBlock] = []
    for words, names in names_by_words.items():
        shown.append(blocks.VerdictBlock("unsure", ["", ", ".join(names), f": {words}"]))
    columns = {
        "draft model": lambda draft: draft_label(draft.name),
        "mean gap between confidence and acceptance (ECE)": lambda draft: cells.share(
            draft.calibration.ece
        ),
    }
    shown.append(blocks.table_of(drafts, columns))
    shown += [blocks.ChartBlock(calibration_chart(draft)) for draft in drafts]
    return shown


def training(summary: Summary, texts: Collection[int] = ()) -> list[PageBlock]:
    """The rejections of each draft in groups. texts: numbers of the texts that the page shows."""
    by_draft = []
    for place, draft in enumerate(summary.drafts):
        if draft.losses:
            by_draft.append((draft, _rejections(draft, place, texts)))
    if len(by_draft) == 1:
        return by_draft[0][1]
    shown = []
    for draft, (words, *tables) in by_draft:
        shown.append(words)
        shown.append(blocks.DetailsBlock(f"{draft_label(draft.name)}: what to train on", tables))
    return shown


def _rejections(draft: DraftSummary, place: int, texts: Collection[int]) -> list[PageBlock]:
    """What the patterns cost in words, the patterns, then what all rejections lose by class and by reason."""
    shown = [blocks.WordsBlock(_pattern_words(draft))]
    if draft.patterns:
        shown.append(_patterns(draft.patterns, place, texts))
    columns = {
        "rejected tokens, by class or reason": _slice_title,
        "tokens lost": lambda loss: cells.number(loss.lost, "{:,.1f}".format),
        "share of all lost tokens": lambda loss: cells.share(loss.share),
    }
    caption = f"Losses from rejections with {draft_label(draft.name)}"
    shown.append(blocks.table_of(draft.losses, columns, caption=caption, sortable=True))
    shown.append(blocks.WordsBlock(LOSSES_NOTE, small=True))
    return shown


def _pattern_words(draft: DraftSummary) -> Words:
    """What all patterns of the draft cost."""
    name = draft_label(draft.name)
    if not draft.patterns:
        none = ": no group of rejections recurs in so many texts that its cost is sure."
        return ["", name, none]
    number = len(draft.patterns)
    costs = "this group costs" if number == 1 else f"these {number:,} groups cost"
    saved = sum(pattern.saved for pattern in draft.patterns)
    part = f" ({percent(saved / draft.calls)})" if draft.calls > 0 else ""
    calls = f"{saved:,.1f} of {draft.calls:,.0f}"
    return ["", name, f": {costs} ", calls, f" target calls{part}."]


def _patterns(found: Sequence[Pattern], draft: int, texts: Collection[int]) -> TableBlock:
    def interval_cell(pattern: Pattern) -> Cell:
        low, high = pattern.interval
        return blocks.TableCell(f"{low:,.1f} to {high:,.1f}", sort=low)

    columns = {
        "after": lambda pattern: label(pattern.before),
        "the target's token": lambda pattern: label(pattern.token),
        "the draft's first choice": lambda pattern: label(pattern.draft_token),
        "target calls to save": lambda pattern: cells.number(pattern.saved, "{:,.1f}".format),
        "95 % interval": interval_cell,
        "places": lambda pattern: cells.number(pattern.num_places),
        "texts": lambda pattern: cells.number(pattern.num_prompts),
        "for example": lambda pattern: _text_cell(pattern, draft, pattern.place, texts),
    }
    return blocks.table_of(found, columns, sortable=True)
