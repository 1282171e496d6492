"""The inspector of one step: for each token a sentence, bars of both models' probabilities, and where u fell.

Takes a step of a trace; knows nothing of runs or pages. Everything is computed here, widths included, in percent of one
axis. A row has the bars `both` = min(p, q), `excess` = max(0, q - p) and `shortfall` = max(0, p - q).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from specviz.rules.facts import facts_of
from specviz.trace import DraftToken, EmittedToken, Position, Step
from specviz.views.explore import titles
from specviz.views.explore.message import DrawOnBar, LookRows, Sibling, TokenLook
from specviz.views.words import drafted_nodes, label, percent, quote, random_draw, token_label

MOST_ROWS = 8
MOST_SIBLINGS = 5
LAST = "last"  # names a step's own last token; a drafted one is named by its node
OTHERS = "all others"
LOG_DECADES = 4  # the log axis reaches from 0.01 % to 100 %
LOG_TICKS = [
    (25 * i, f"{100 * 10.0 ** (i - LOG_DECADES):g}\u00a0%") for i in range(LOG_DECADES + 1)
]
AXES = (  # (end of the axis, distance of its ticks)
    (0.05, 0.01),
    (0.1, 0.02),
    (0.2, 0.05),
    (0.3, 0.1),
    (0.4, 0.1),
    (0.5, 0.1),
    (0.6, 0.2),
    (0.8, 0.2),
    (1.0, 0.2),
)
SMALL_BAR = 0.2  # of the axis; a shorter drafted bar is shown enlarged as well
RAW_MATTERS = 5e-4
RAW_TELLS = 0.01  # a filtered-out token is shown if the unfiltered distribution gave it this much
# a bar of a row -> the field of the row that is its width
OVERLAY = {"both": "both", "excess": "excess", "shortfall": "shortfall"}
DISTRIBUTION = {"distribution": "p"}
NUMBERS = (
    ("probability of acceptance", "min(1, p / q) under speculative sampling"),
    ("agreement (overlap)", "sum of min(p, q) over the vocabulary"),
    ("entropy of the target", "- sum p ln p"),
    ("entropy of the draft", "- sum q ln q"),
    ("divergence KL(p || q)", "sum p ln(p / q)"),
    (
        "the target's own probability",
        "p before any sibling was rejected; the token is judged against what they left",
    ),
    (
        "distance from the target",
        "total variation between p and this rule's distribution; lossy rules only",
    ),
    (
        "stopping test",
        "probability that u falls below it and accepts the draft at least up to here; block verification only",
    ),
)


class TokenRow(NamedTuple):
    """One token's probabilities."""

    text: str
    role: str
    p: float
    q: float = 0.0
    """0 where the draft gave none."""
    both: float = 0.0
    residual: float | None = None
    """The token's probability in the distribution of replacements."""
    p_raw: float | None = None
    """The target's probability before the sampling filters, at temperature 1."""
    q_raw: float | None = None
    """The draft's probability before the sampling filters, at temperature 1."""

    @property
    def excess(self) -> float:
        return max(0.0, self.q - self.both)

    @property
    def shortfall(self) -> float:
        return max(0.0, self.p - self.both)

    @property
    def is_telling(self) -> bool:
        """Whether any bar of the row can be seen."""
        return max(self.p, self.q) > 0 or max(self.p_raw or 0.0, self.q_raw or 0.0) > RAW_TELLS

    @property
    def has_raw(self) -> bool:
        """Whether the unfiltered distribution at temperature 1 differs visibly from the one judged against."""
        p_differs = self.p_raw is not None and abs(self.p_raw - self.p) > RAW_MATTERS
        return p_differs or (self.q_raw is not None and abs(self.q_raw - self.q) > RAW_MATTERS)


def ref_of(token: EmittedToken) -> str:
    """The name of a token of the text in its step."""
    return LAST if token.node is None else str(token.node)


def looks(step: Step) -> dict[str, TokenLook]:
    """The look of each token of the step, by its draft node or "last"."""
    shown: dict[str, TokenLook] = {}
    last = titles.last_token(step)
    for position in step.positions:
        node = position.child
        if node is not None and step.draft[node].is_judged:
            shown[str(node)] = _show_judged(step, node, position)
        elif node is None and last is not None:
            shown[LAST] = _show_last(step, last, position)
    reached = {token.parent for token in step.draft if token.is_judged}
    for node, token in enumerate(step.draft):
        if token.status == "ignored":
            title, note = titles.ignored_words(step, token)
            is_reached = token.parent in reached  # else there is no order of judging to show
            shown[str(node)] = TokenLook(
                status="ignored",
                view="words",
                title=title,
                note=note,
                siblings=(_siblings(step, node) if is_reached else ()) or UNSET,
            )
    return shown


def focus(step: Step) -> str:
    """The token of a step that says most: the one that was rejected at its end, else the last token."""
    if (rejected := titles.telling_rejection(step)) is not None:
        return str(step.draft.index(rejected))
    if titles.last_token(step):
        return LAST
    return str(max((token.node for token in step.emitted), default=0))


def _show_judged(step: Step, node: int, position: Position) -> TokenLook:
    """The look of a judged draft token."""
    token = step.draft[node]
    emitted = step.emitted[token.depth - 1] if len(step.emitted) >= token.depth else None
    rows, shortfall = _read_rows(token, emitted, position)
    bars = _with_raw(OVERLAY, rows)
    axis, ticks = _axis(rows, bars)
    later = bool(titles.rejected_siblings(step, node))
    siblings = _siblings(step, node)
    heading = "judged" if later else "target"
    if is_plain := facts_of(step.settings.rule).is_plain:
        title = titles.judged_title(step, node, emitted)
    else:
        title = titles.rule_title(step, token, emitted)
    look = TokenLook(
        status=token.status,
        view="overlay" if is_plain else "threshold",
        title=title,
        heading=heading if siblings else UNSET,
        axis=ticks,
        rows=_columns(rows, axis, bars),
        numbers=_numbers(step, token, position, shortfall, later=later),
        siblings=siblings or UNSET,
    )
    if not is_plain:
        return _add_threshold(look, step, node, position)
    residual = next((row.residual for row in rows if row.role == "emitted"), None)
    notes = [
        titles.end_note(step, node),
        titles.sibling_note(step, node),
        titles.replacement_note(step, token, residual),
    ]
    bar = (1.0 if token.q is None else token.q) / axis
    zoom = UNSET
    if bar < SMALL_BAR:
        zoom = _random_draw(token, 1.0, f"the bar of {quote(token)}, enlarged")
    return replace(
        look,
        note=titles.join(notes),
        draw=_random_draw(token, bar),
        zoom=zoom,
        foot=(round(100 * (1 - shortfall), 2), percent(1 - shortfall), percent(shortfall)),
    )


def _add_threshold(look: TokenLook, step: Step, node: int, position: Position) -> TokenLook:
    """The look with the draw and the notes of a rule that is not speculative sampling."""
    token = step.draft[node]
    rule = facts_of(step.settings.rule)
    draw = UNSET
    if rule.uses_draw:
        draw = _random_draw(token, 1.0, "the stopping test" if rule.judges_block else UNSET)
    notes = [
        titles.end_note(step, node),
        titles.replacement_note(step, token),
        titles.lossy_note(step, position.one_step_tv),
    ]
    return replace(look, note=titles.join(notes), draw=draw)


def _read_rows(
    token: DraftToken, emitted: EmittedToken | None, position: Position
) -> tuple[list[TokenRow], float]:
    """Rows of the drafted token, the emitted one, others by p, and one row for the rest; and 1 - sum min(p, q)."""
    roles = {token.id: "drafted"}
    if emitted is not None:
        roles[emitted.id] = "both" if emitted.id == token.id else "emitted"
    rows = []
    for id_, text, p, q, residual, p_raw, q_raw in position.top:
        if q is None:
            q = float(id_ == token.id)  # a point mass on the drafted token
        word = label(text, token.bytes if id_ == token.id else None)
        row = TokenRow(
            text=word,
            role=roles.get(id_, ""),
            p=p,
            q=q,
            both=min(p, q),
            residual=residual,
            p_raw=p_raw,
            q_raw=q_raw,
        )
        rows.append((id_, row))
    shortfall = _shortfall(token, position, [row for _, row in rows])
    shown = _choose_rows(rows, list(roles))
    return [*shown, *_rest_row(shown, shortfall)], shortfall


def _choose_rows(rows: Sequence[tuple[int, TokenRow]], first: Sequence[int]) -> list[TokenRow]:
    """The tokens `first`, then the others that matter most to either model, by p."""
    by_id = dict(rows)
    chosen = [by_id[id_] for id_ in first if id_ in by_id]
    others = [row for id_, row in rows if id_ not in first and row.is_telling]
    others.sort(key=lambda row: -max(row.p, row.q))
    most = others[: MOST_ROWS - len(chosen)]
    return chosen + sorted(most, key=lambda row: (-row.p, -row.q))


def _shortfall(token: DraftToken, position: Position, rows: Sequence[TokenRow]) -> float:
    """1 - sum min(p, q); if the trace lacks it, from residual = (p - q) / shortfall at the largest residual."""
    if position.overlap is not None:
        return 1 - position.overlap
    if token.q is None:
        return 1 - (token.p_judged or 0.0)
    most = max(rows, key=lambda row: row.residual or 0.0)
    return min(1.0, most.shortfall / most.residual) if most.residual else 0.0


def _rest_row(shown: Sequence[TokenRow], shortfall: float) -> list[TokenRow]:
    """One row for all tokens that are not shown, so that every column of a look sums to one."""
    p = _rest_of(shown, "p")
    q = _rest_of(shown, "q")
    if p + q < 1e-6:
        return []
    both = min(max(0.0, _rest_of(shown, "both") - shortfall), p, q)
    p_raw = _rest_of(shown, "p_raw")
    q_raw = _rest_of(shown, "q_raw")
    return [TokenRow(OTHERS, "others", p, q, both, None, p_raw, q_raw)]


def _rest_of(shown: Sequence[TokenRow], name: str) -> float | None:
    """1 minus the sum of a column; None if a value of it is unknown."""
    values = [getattr(row, name) for row in shown]
    return None if None in values else max(0.0, 1 - math.fsum(values))


def _with_raw(bars: Mapping[str, str], rows: Sequence[TokenRow]) -> Mapping[str, str]:
    """The bars, and those of the unfiltered probabilities where they differ visibly."""
    has_raw = any(row.has_raw for row in rows)
    return {**bars, "p_raw": "p_raw", "q_raw": "q_raw"} if has_raw else bars


def _axis(
    rows: Sequence[TokenRow], bars: Mapping[str, str]
) -> tuple[float, list[tuple[float, str]]]:
    """The right end of the scale, and its ticks as (percent of the axis, label)."""
    shares = []
    for row in rows:
        shares += [row.p, row.q]
        if "p_raw" in bars:
            shares += [row.p_raw or 0.0, row.q_raw or 0.0]
    longest = max(shares, default=1.0)
    end, distance = next((axis for axis in AXES if longest <= axis[0]), AXES[-1])
    ticks = []
    for number in range(round(end / distance) + 1):
        share = number * distance
        ticks.append((round(100 * number * distance / end, 2), percent(share)))
    return end, ticks


def _columns(rows: Sequence[TokenRow], axis: float, bars: Mapping[str, str]) -> LookRows:
    """The rows as columns: widths in percent of the axis, labels, places on the log axis."""
    columns: dict[str, list] = {}
    for distribution in ("p", "q") if "both" in bars else ("p",):
        shares = [getattr(row, distribution) for row in rows]
        columns[distribution] = [percent(share) for share in shares]
        columns[f"{distribution}_dot"] = [_log_place(share) for share in shares]
    for bar, field in bars.items():
        values = [getattr(row, field) for row in rows]
        columns[bar] = [None if value is None else round(100 * value / axis, 2) for value in values]
    texts = [row.text for row in rows]
    return LookRows(texts, [row.role for row in rows], **columns)


def _log_place(share: float) -> float | None:
    """The place of a share on the log axis, in percent; None for 0."""
    if share <= 0:
        return None
    return round(max(0.0, 100 * (1 + math.log10(share) / LOG_DECADES)), 1)


def _random_draw(token: DraftToken, bar: float, words: str | UnsetType = UNSET) -> DrawOnBar:
    """The place at which u falls on a bar of this width, a share of the axis. words: what the bar is."""
    u = token.u or 0.0
    chance = token.accept_prob or 0.0
    _, u_words = random_draw(chance, u)
    return DrawOnBar(
        x=round(100 * (u * bar), 2),
        bar=round(100 * bar, 2),
        fill=round(100 * (chance * bar), 2),
        u=u_words,
        accepted=token.status == "accepted",
        words=words,
    )


def _show_last(step: Step, last: EmittedToken, position: Position) -> TokenLook:
    """The look of the step's last token: bars of the distribution that it was drawn from."""
    is_resampled = last.kind == "resampled"
    rows = []
    for id_, text, p, _, _, p_raw, _ in position.top:
        is_last = id_ == last.id
        word = label(text, last.bytes if is_last else None)
        if is_resampled:
            p_raw = None  # a replacement is not drawn from the model's own distribution
        row = TokenRow(word, "emitted" if is_last else "", p, p_raw=p_raw)
        rows.append((id_, row))
    shown = _choose_rows(rows, [last.id])
    share = shown[0].p if shown else 0.0
    rest = max(0.0, 1 - math.fsum(row.p for row in shown))
    if rest > 1e-6:
        shown.append(TokenRow(OTHERS, "others", rest, p_raw=_rest_of(shown, "p_raw")))
    bars = _with_raw(DISTRIBUTION, shown)
    axis, ticks = _axis(shown, bars)
    return TokenLook(
        status=last.kind,
        view="draw",
        title=titles.drawn_title(step, last, share),
        heading="share" if is_resampled else "target",
        axis=ticks,
        rows=_columns(shown, axis, bars),
        numbers=["", "", _nats(position.p_entropy), "", "", "", "", ""],
    )


def _siblings(step: Step, node: int) -> list[Sibling]:
    """The drafted tokens at this place, in the order in which they are judged; none for an only child."""
    parent = step.draft[node].parent
    here = [sibling for sibling in drafted_nodes(step) if step.draft[sibling].parent == parent]
    if len(here) < 2:
        return []
    shown = []
    for place, sibling in enumerate(here):
        if sibling == node or place < MOST_SIBLINGS - 1:
            token = step.draft[sibling]
            q = 1.0 if token.q is None else token.q
            words = []
            for share in (token.p, token.p_judged, q):
                words.append("–" if share is None else percent(share))
            shown.append((str(sibling), token_label(token), token.status, *words))
    return shown


def _numbers(
    step: Step, token: DraftToken, position: Position, shortfall: float, *, later: bool
) -> list[str]:
    """Values in the order of NUMBERS; `later`: siblings of this token were rejected before it."""
    rule = facts_of(step.settings.rule)
    p = token.p_judged or 0.0
    q = 1.0 if token.q is None else token.q
    chance = token.accept_prob or 0.0
    if rule.is_plain:
        acceptance = f"min(1, {p:.4f} / {q:.4f}) = {chance:.4f}"
    else:
        acceptance = f"{titles.chance_accepted(step, token):.4f}, by this rule's own formula"
    is_infinite = position.kl is None and position.q_entropy is not None
    distance = position.one_step_tv
    return [
        acceptance,
        f"{1 - shortfall:.4f}",
        _nats(position.p_entropy),
        _nats(position.q_entropy),
        "infinite" if is_infinite else _nats(position.kl),
        f"{token.p or 0.0:.4f}" if later else "",
        "" if distance is None else f"{distance:.4f}",
        f"{chance:.4f}" if rule.judges_block else "",
    ]


def _nats(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} nats"
