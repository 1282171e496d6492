"""What the inspector shows of one step: per token a sentence, bars of both models' probabilities, and where u fell.

Everything is computed here, widths included, in percent of one axis: a row has the bars `both` = min(p, q), `excess` =
max(0, q - p) and `owed` = max(0, p - q). Takes a step of a trace; knows nothing of runs or pages.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specviz.rules.facts import facts_of
from specviz.trace import DraftToken, EmittedToken, Position, Step
from specviz.views.explore import titles
from specviz.views.words import drafted_nodes, label, percent, quote, random_draw, token_label

MOST_ROWS = 8
MOST_SIBLINGS = 5
LAST = "last"  # names a step's own last token; a drafted one is named by its node
OTHERS = "all others"
LOG_DECADES = 4  # the log axis reaches from 0.01 % to 100 %
LOG_TICKS = [
    [25 * i, f"{100 * 10.0 ** (i - LOG_DECADES):g}\u00a0%"] for i in range(LOG_DECADES + 1)
]
AXES = (
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
RAW_TELLS = 0.01  # a token that the sampling filters out is shown where the unfiltered law gave it this much
OVERLAY = {
    "both": "both",
    "excess": "excess",
    "shortfall": "shortfall",
}  # the bars of a row -> the share each is as wide as
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
Look = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One token's probabilities. residual: in the distribution of replacements; q: 0 where the draft gave none."""

    text: str
    role: str
    p: float
    q: float = 0.0
    both: float = 0.0
    residual: float | None = None
    p_raw: float | None = None
    q_raw: float | None = None

    @property
    def excess(self) -> float:
        return max(0.0, self.q - self.both)

    @property
    def shortfall(self) -> float:
        return max(0.0, self.p - self.both)

    @property
    def is_telling(self) -> bool:
        """Whether any of its bars can be seen."""
        return max(self.p, self.q) > 0 or max(self.p_raw or 0.0, self.q_raw or 0.0) > RAW_TELLS

    @property
    def has_raw(self) -> bool:
        """Whether the unfiltered law at temperature 1 differs visibly from the one judged against."""
        p_differs = self.p_raw is not None and abs(self.p_raw - self.p) > RAW_MATTERS
        return p_differs or (self.q_raw is not None and abs(self.q_raw - self.q) > RAW_MATTERS)


def ref_of(token: EmittedToken) -> str:
    """The name of a token of the text in its step."""
    return LAST if token.node is None else str(token.node)


def looks(step: Step) -> dict[str, Look]:
    """Per token of the step, by draft node index or "last", what the inspector shows."""
    shown: dict[str, Look] = {}
    for position in step.positions:
        if position.child is not None and step.draft[position.child].is_judged:
            shown[str(position.child)] = _show_judged(step, position.child, position)
        elif position.child is None and (last := titles.last_token(step)) is not None:
            shown[LAST] = _show_last(step, last, position)
    reached = {token.parent for token in step.draft if token.is_judged}
    for node, token in enumerate(step.draft):
        if token.status == "ignored":
            title, note = titles.ignored_words(step, token)
            shown[str(node)] = {"status": "ignored", "view": "words", "title": title, "note": note}
            is_reached = token.parent in reached  # else there is no order of judging to show
            if is_reached and (siblings := _siblings(step, node)):
                shown[str(node)]["siblings"] = siblings
    return shown


def focus(step: Step) -> str:
    """The token of a step that says most: the one that was rejected at its end, else the last token."""
    if (rejected := titles.telling_rejection(step)) is not None:
        return str(step.draft.index(rejected))
    return (
        LAST
        if titles.last_token(step)
        else str(max((token.node for token in step.emitted), default=0))
    )


def _show_judged(step: Step, node: int, position: Position) -> Look:
    token = step.draft[node]
    emitted = step.emitted[token.depth - 1] if len(step.emitted) >= token.depth else None
    rows, shortfall = _read_rows(token, emitted, position)
    (axis, ticks), later = _axis(rows), bool(titles.rejected_siblings(step, node))
    look: Look = {
        "status": token.status,
        "axis": ticks,
        "rows": _columns(rows, axis, OVERLAY),
        "numbers": _numbers(step, token, position, shortfall, later=later),
    }
    if siblings := _siblings(step, node):
        look |= {"siblings": siblings, "heading": "judged" if later else "target"}
    rule, notes = facts_of(step.settings.rule), [titles.end_note(step, node)]
    if not rule.is_plain:
        look["view"] = "threshold"
        if rule.uses_draw:
            look["draw"] = _random_draw(token, 1.0) | (
                {"words": "the stopping test"} if rule.judges_block else {}
            )
        notes += [
            titles.replacement_note(step, token),
            titles.lossy_note(step, position.one_step_tv),
        ]
        return look | {"title": titles.rule_title(step, token, emitted), "note": titles.join(notes)}
    residual = next((row.residual for row in rows if row.role == "emitted"), None)
    notes += [titles.sibling_note(step, node), titles.replacement_note(step, token, residual)]
    bar = (1.0 if token.q is None else token.q) / axis
    if bar < SMALL_BAR:
        look["zoom"] = _random_draw(token, 1.0) | {"words": f"the bar of {quote(token)}, enlarged"}
    return look | {
        "view": "overlay",
        "title": titles.judged_title(step, node, emitted),
        "note": titles.join(notes),
        "draw": _random_draw(token, bar),
        "foot": [round(100 * (1 - shortfall), 2), percent(1 - shortfall), percent(shortfall)],
    }


def _read_rows(
    token: DraftToken, emitted: EmittedToken | None, position: Position
) -> tuple[list[TokenRow], float]:
    """Rows of the drafted token, the emitted one, others by p, and one row for the rest; and 1 - sum min(p, q)."""
    roles = {token.id: "drafted"}
    if emitted is not None:
        roles[emitted.id] = "both" if emitted.id == token.id else "emitted"
    rows = []
    for id_, text, p, q, residual, p_raw, q_raw in position.top:
        drafted = (
            float(id_ == token.id) if q is None else q
        )  # without q, a point mass on the drafted token
        half = token.bytes if id_ == token.id else None
        row = TokenRow(
            label(text, half),
            roles.get(id_, ""),
            p,
            drafted,
            min(p, drafted),
            residual,
            p_raw,
            q_raw,
        )
        rows.append((id_, row))
    shortfall = _shortfall(token, position, [row for _, row in rows])
    shown = _choose_rows(rows, list(roles))
    return [*shown, *_rest_row(shown, shortfall)], shortfall


def _choose_rows(rows: Sequence[tuple[int, TokenRow]], first: Sequence[int]) -> list[TokenRow]:
    """`first`, then of the others those that matter most to either model, by p."""
    known = dict(rows)
    ahead = [known[id_] for id_ in first if id_ in known]
    others = [row for id_, row in rows if id_ not in first and row.is_telling]
    others.sort(key=lambda row: -max(row.p, row.q))
    return ahead + sorted(others[: MOST_ROWS - len(ahead)], key=lambda row: (-row.p, -row.q))


def _shortfall(token: DraftToken, position: Position, rows: Sequence[TokenRow]) -> float:
    """1 - sum min(p, q); where the trace does not say it, from residual = (p - q) / owed at its largest row."""
    if position.overlap is not None:
        return 1 - position.overlap
    if token.q is None:
        return 1 - (token.p_judged or 0.0)
    most = max(rows, key=lambda row: row.residual or 0.0)
    return min(1.0, most.shortfall / most.residual) if most.residual else 0.0


def _rest_row(shown: Sequence[TokenRow], shortfall: float) -> list[TokenRow]:
    """One row for all tokens that are not shown, so that every column of a look sums to one."""
    p, q, both, *raw = (_rest_of(shown, name) for name in ("p", "q", "both", "p_raw", "q_raw"))
    if p + q < 1e-6:
        return []
    return [TokenRow(OTHERS, "others", p, q, min(max(0.0, both - shortfall), p, q), None, *raw)]


def _rest_of(shown: Sequence[TokenRow], name: str) -> float | None:
    values = [getattr(row, name) for row in shown]
    return None if None in values else max(0.0, 1 - math.fsum(values))


def _axis(rows: Sequence[TokenRow]) -> tuple[float, list[list[Any]]]:
    """The right end of the scale, and its ticks as [percent of the axis, label]."""
    shares = [share for row in rows for share in (row.p, row.q)]
    if any(row.has_raw for row in rows):
        shares += [raw for row in rows for raw in (row.p_raw, row.q_raw) if raw is not None]
    most = max(shares, default=1.0)
    end, step = next((axis for axis in AXES if most <= axis[0]), AXES[-1])
    return end, [
        [round(100 * i * step / end, 2), percent(i * step)] for i in range(round(end / step) + 1)
    ]


def _columns(rows: Sequence[TokenRow], axis: float, bars: dict[str, str]) -> dict[str, list[Any]]:
    """The rows as columns: widths in percent of the axis, labels, places on the log axis."""
    columns: dict[str, list[Any]] = {
        "text": [row.text for row in rows],
        "role": [row.role for row in rows],
    }
    for distribution in ("p", "q") if bars is OVERLAY else ("p",):
        shares = [getattr(row, distribution) for row in rows]
        columns |= {
            distribution: [percent(share) for share in shares],
            f"{distribution}_dot": [_log_place(share) for share in shares],
        }
    if any(row.has_raw for row in rows):
        bars = bars | {"p_raw": "p_raw", "q_raw": "q_raw"}
    for bar, share in bars.items():
        values = [getattr(row, share) for row in rows]
        columns[bar] = [None if value is None else round(100 * value / axis, 2) for value in values]
    return columns


def _log_place(share: float) -> float | None:
    return None if share <= 0 else round(max(0.0, 100 * (1 + math.log10(share) / LOG_DECADES)), 1)


def _random_draw(token: DraftToken, bar: float) -> dict[str, Any]:
    """Where u falls on a bar of this width, a share of the axis, and the part `fill` of it that accepts the token."""
    u, chance = token.u or 0.0, token.accept_prob or 0.0
    places = {"x": u * bar, "bar": bar, "fill": chance * bar}
    words = {"u": random_draw(chance, u)[1], "accepted": token.status == "accepted"}
    return {name: round(100 * place, 2) for name, place in places.items()} | words


def _show_last(step: Step, last: EmittedToken, position: Position) -> Look:
    """The look of the step's last token: bars of the distribution that it was drawn from."""
    raw_fits = (
        last.kind != "resampled"
    )  # a replacement is drawn from another law than the model's own
    rows = []
    for id_, text, p, _, _, p_raw, _ in position.top:
        role, half = ("emitted", last.bytes) if id_ == last.id else ("", None)
        rows.append((id_, TokenRow(label(text, half), role, p, p_raw=p_raw if raw_fits else None)))
    shown = _choose_rows(rows, [last.id])
    share = shown[0].p if shown else 0.0
    left = max(0.0, 1 - math.fsum(row.p for row in shown))
    if left > 1e-6:
        shown.append(TokenRow(OTHERS, "others", left, p_raw=_rest_of(shown, "p_raw")))
    axis, ticks = _axis(shown)
    return {
        "status": last.kind,
        "title": titles.drawn_title(step, last, share),
        "view": "draw",
        "heading": "share" if last.kind == "resampled" else "target",
        "axis": ticks,
        "rows": _columns(shown, axis, DISTRIBUTION),
        "numbers": ["", "", _nats(position.p_entropy), "", "", "", "", ""],
    }


def _siblings(step: Step, node: int) -> list[list[str]]:
    """The drafted tokens at this place, in the order in which they are judged: [ref, token, status, the target's own
    probability, the one judged against, the draft's]; none for an only child."""
    here = [
        each for each in drafted_nodes(step) if step.draft[each].parent == step.draft[node].parent
    ]
    shown = []
    for place, each in enumerate(here if len(here) > 1 else []):
        if each == node or place < MOST_SIBLINGS - 1:
            token = step.draft[each]
            probabilities = (token.p, token.p_judged, 1.0 if token.q is None else token.q)
            words = ["–" if share is None else percent(share) for share in probabilities]
            shown.append([str(each), token_label(token), token.status, *words])
    return shown


def _numbers(
    step: Step, token: DraftToken, position: Position, shortfall: float, *, later: bool
) -> list[str]:
    """Values in the order of NUMBERS; `later`: siblings of this token were rejected before it."""
    p, q, chance = (
        token.p_judged or 0.0,
        1.0 if token.q is None else token.q,
        token.accept_prob or 0.0,
    )
    kl = (
        "infinite" if position.kl is None and position.q_entropy is not None else _nats(position.kl)
    )
    rule = facts_of(step.settings.rule)
    stopping = f"{chance:.4f}" if rule.judges_block else ""
    plain = f"min(1, {p:.4f} / {q:.4f}) = {chance:.4f}"
    chances = (
        plain
        if rule.is_plain
        else f"{titles.chance_accepted(step, token):.4f}, by this rule's own formula"
    )
    own = f"{token.p or 0.0:.4f}" if later else ""
    moved = "" if position.one_step_tv is None else f"{position.one_step_tv:.4f}"
    return [
        chances,
        f"{1 - shortfall:.4f}",
        _nats(position.p_entropy),
        _nats(position.q_entropy),
        kl,
        own,
        moved,
        stopping,
    ]


def _nats(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} nats"
