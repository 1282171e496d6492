"""The inspector of one step: for each token a sentence, bars of both models' probabilities, and where u fell.

Takes a step of a trace; knows nothing of runs or pages. Everything is computed here, widths included, in percent of one
axis. A row has the bars `both` = min(p, q), `excess` = max(0, q - p) and `shortfall` = max(0, p - q).
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from specviz.rules.facts import RuleFacts, facts_of
from specviz.trace import DraftToken, EmittedToken, Position, Step
from specviz.views.explore import titles
from specviz.views.explore.message import DrawOnBar, LookRows, Sibling, TokenLook
from specviz.views.words import (
    drafted_nodes,
    label,
    percent,
    quote,
    random_draw,
    shorten,
    token_label,
)

MOST_ROWS = 8
MOST_SIBLINGS = 5
LAST = "last"  # names a step's own last token; a drafted one is named by its node
OTHERS = "all others"
LOG_DECADES = 4  # the log axis reaches from 0.01 % to 100 %
LOG_START = 10.0**-LOG_DECADES
LOG_TICKS = [
    (25 * i, f"{100 * 10.0 ** (i - LOG_DECADES):g}\u00a0%") for i in range(LOG_DECADES + 1)
]
AXES = {  # end of the axis -> distance of its ticks
    0.05: 0.01,
    0.1: 0.02,
    0.2: 0.05,
    0.3: 0.1,
    0.4: 0.1,
    0.5: 0.1,
    0.6: 0.2,
    0.8: 0.2,
    1.0: 0.2,
}
ENDS = (*AXES,)
SMALL_BAR = 0.2  # of the axis; a shorter drafted bar is shown enlarged as well
RAW_MATTERS = 5e-4
RAW_TELLS = 0.01  # a filtered-out token is shown if the unfiltered distribution gave it this much
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
    def is_telling(self) -> bool:
        """Whether any bar of the row can be seen."""
        if self.p > 0 or self.q > 0:
            return True
        return (self.p_raw or 0.0) > RAW_TELLS or (self.q_raw or 0.0) > RAW_TELLS


NOTHING = TokenRow("", "", 0.0, p_raw=0.0, q_raw=0.0)


def ref_of(token: EmittedToken) -> str:
    """The name of a token of the text in its step."""
    return LAST if token.node is None else str(token.node)


def looks(step: Step) -> dict[str, TokenLook]:
    """The look of each token of the step, by its draft node or "last"."""
    if step.settings.is_foreign:
        return _outcomes(step)
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


def _outcomes(step: Step) -> dict[str, TokenLook]:
    """The looks in a record without probabilities: what became of each token, and what the draft itself said."""
    shown = {}
    for node, token in enumerate(step.draft):
        if token.status != "scratch":
            title, note = titles.outcome_words(step, node)
            shown[str(node)] = TokenLook(status=token.status, view="words", title=title, note=note)
    last = titles.last_token(step)
    if last is not None:
        title = titles.written_words(step, last)
        shown[LAST] = TokenLook(status=last.kind, view="words", title=title)
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
    axis, columns = _lay_out(rows, is_overlay=True)
    later = bool(titles.rejected_siblings(step, node))
    siblings = _siblings(step, node)
    heading = "judged" if later else "target"
    rule = facts_of(step.settings.rule)
    title = (
        titles.judged_title(step, node, emitted)
        if rule.is_plain
        else titles.rule_title(step, token, emitted)
    )
    look = TokenLook(
        status=token.status,
        view="overlay" if rule.is_plain else "threshold",
        title=title,
        heading=heading if siblings else UNSET,
        axis=_ticks(axis),
        rows=columns,
        numbers=_numbers(step, token, position, shortfall, rule, later=later),
        siblings=siblings or UNSET,
    )
    if not rule.is_plain:
        return _add_threshold(look, step, node, position, rule)
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
        foot=(shorten(100 * (1 - shortfall)), percent(1 - shortfall), percent(shortfall)),
    )


def _add_threshold(
    look: TokenLook, step: Step, node: int, position: Position, rule: RuleFacts
) -> TokenLook:
    """The look with the draw and the notes of a rule that is not speculative sampling."""
    token = step.draft[node]
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
    rows = {}
    for id_, text, p, q, residual, p_raw, q_raw in position.top:
        if q is None:
            q = float(id_ == token.id)  # a point mass on the drafted token
        word = label(text, token.bytes if id_ == token.id else None)
        role = roles.get(id_, "")
        rows[id_] = TokenRow(word, role, p, q, min(p, q), residual, p_raw, q_raw)
    shortfall = _shortfall(token, position, rows.values())
    shown = _choose_rows(rows, list(roles))
    return [*shown, *_rest_row(shown, shortfall)], shortfall


def _choose_rows(rows: Mapping[int, TokenRow], first: Sequence[int]) -> list[TokenRow]:
    """The tokens `first`, then the others that matter most to either model, by p. rows: by the tokens' ids."""
    chosen = [rows[id_] for id_ in first if id_ in rows]
    others = [row for id_, row in rows.items() if id_ not in first and row.is_telling]
    others.sort(key=lambda row: -max(row.p, row.q))
    most = others[: MOST_ROWS - len(chosen)]
    return chosen + sorted(most, key=attrgetter("p", "q"), reverse=True)


def _shortfall(token: DraftToken, position: Position, rows: Iterable[TokenRow]) -> float:
    """1 - sum min(p, q); if the trace lacks it, from residual = (p - q) / shortfall at the largest residual."""
    if position.overlap is not None:
        return 1 - position.overlap
    if token.q is None:
        return 1 - (token.p_judged or 0.0)
    most = max(rows, key=lambda row: row.residual or 0.0, default=NOTHING)
    return min(1.0, (most.p - most.both) / most.residual) if most.residual else 0.0


def _rest_row(shown: Sequence[TokenRow], shortfall: float) -> list[TokenRow]:
    """One row for all tokens that are not shown, so that every column of a look sums to one."""
    _, _, p, q, both, _, *raw = zip(*shown or [NOTHING], strict=True)
    p, q, both, *raw = map(_rest_of, (p, q, both, *raw))
    if p + q < 1e-6:
        return []
    both = min(max(0.0, both - shortfall), p, q)
    return [TokenRow(OTHERS, "others", p, q, both, None, *raw)]


def _rest_of(column: Sequence[float | None]) -> float | None:
    """1 minus the sum of a column; None if a value of it is unknown."""
    return None if None in column else max(0.0, 1 - math.fsum(column))


def _lay_out(rows: Sequence[TokenRow], *, is_overlay: bool) -> tuple[float, LookRows]:
    """The right end of the scale, and the rows as columns: widths in percent of it, labels, places on the log axis.

    The unfiltered probabilities have columns only if they differ.
    """
    text, role, p, q, both, _, p_raw, q_raw = zip(*rows, strict=True)
    shares = {"p": p}
    widths = {"distribution": p}
    if is_overlay:
        shares["q"] = q
        widths = {"both": both, "excess": _parts_above(both, q), "shortfall": _parts_above(both, p)}
    longest = max(*p, *q)
    if _differ(p_raw, p) or _differ(q_raw, q):
        widths |= {"p_raw": p_raw, "q_raw": q_raw}
        longest = max(share or 0.0 for share in (longest, *p_raw, *q_raw))
    axis = ENDS[bisect_left(ENDS, longest, hi=len(ENDS) - 1)]
    columns: dict[str, list] = {}
    for name, values in shares.items():
        columns[name] = [*map(percent, values)]
        columns[f"{name}_dot"] = [*map(_log_place, values)]
    for name, values in widths.items():
        columns[name] = [share and shorten(100 * share / axis) for share in values]
    return axis, LookRows(text, role, **columns)


def _parts_above(both: Sequence[float], shares: Sequence[float]) -> list[float]:
    """The part of each share that only one model has."""
    pairs = zip(both, shares, strict=True)
    return [share - common if share > common else 0.0 for common, share in pairs]


def _differ(raw: Sequence[float | None], judged: Sequence[float]) -> bool:
    """Whether the unfiltered probabilities at temperature 1 differ visibly from those judged against."""
    if raw == judged:
        return False
    pairs = zip(raw, judged, strict=True)
    return any(one is not None and abs(one - other) > RAW_MATTERS for one, other in pairs)


@cache
def _ticks(axis: float) -> list[tuple[float, str]]:
    """The ticks of a scale that ends here, as (percent of the axis, label)."""
    distance = AXES[axis]
    ticks = []
    for number in range(round(axis / distance) + 1):
        share = number * distance
        ticks.append((round(100 * share / axis, 2), percent(share)))
    return ticks


def _log_place(share: float) -> float | None:
    """The place of a share on the log axis, in percent; None for 0."""
    if share > LOG_START:
        return shorten(100 * (1 + math.log10(share) / LOG_DECADES), 1)
    return 0.0 if share > 0 else None


def _random_draw(token: DraftToken, bar: float, words: str | UnsetType = UNSET) -> DrawOnBar:
    """The place at which u falls on a bar of this width, a share of the axis. words: what the bar is."""
    u = token.u or 0.0
    chance = token.accept_prob or 0.0
    _, u_words = random_draw(chance, u)
    return DrawOnBar(
        x=shorten(100 * (u * bar)),
        bar=shorten(100 * bar),
        fill=shorten(100 * (chance * bar)),
        u=u_words,
        accepted=token.status == "accepted",
        words=words,
    )


def _show_last(step: Step, last: EmittedToken, position: Position) -> TokenLook:
    """The look of the step's last token: bars of the distribution that it was drawn from."""
    is_resampled = last.kind == "resampled"
    rows = {}
    for id_, text, p, _, _, p_raw, _ in position.top:
        is_last = id_ == last.id
        word = label(text, last.bytes if is_last else None)
        if is_resampled:
            p_raw = None  # a replacement is not drawn from the model's own distribution
        rows[id_] = TokenRow(word, "emitted" if is_last else "", p, p_raw=p_raw)
    shown = _choose_rows(rows, [last.id])
    share = shown[0].p if shown else 0.0
    rest = _rest_of([row.p for row in shown])
    if rest > 1e-6:
        p_raw = _rest_of([row.p_raw for row in shown])
        shown.append(TokenRow(OTHERS, "others", rest, p_raw=p_raw))
    axis, columns = _lay_out(shown, is_overlay=False)
    return TokenLook(
        status=last.kind,
        view="draw",
        title=titles.drawn_title(step, last, share),
        heading="share" if is_resampled else "target",
        axis=_ticks(axis),
        rows=columns,
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
    step: Step,
    token: DraftToken,
    position: Position,
    shortfall: float,
    rule: RuleFacts,
    *,
    later: bool,
) -> list[str]:
    """Values in the order of NUMBERS; `later`: siblings of this token were rejected before it."""
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
