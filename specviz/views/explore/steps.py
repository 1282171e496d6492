"""One step as the page gets it: its lane, its pieces of text, its bar, the totals after it, the inspector's looks."""

from msgspec import UNSET

from specviz.rules.facts import RuleFacts, facts_of
from specviz.trace import ROOT, DraftToken, EmittedToken, Step
from specviz.trace.counters import Counters
from specviz.trace.metrics import METRICS, Undefined
from specviz.views.explore.inspector import LAST, focus, looks, ref_of
from specviz.views.explore.message import (
    LaneCell,
    Piece,
    RefusedStep,
    ShownStep,
    StepBar,
    StepTotals,
)
from specviz.views.explore.titles import end_note, last_token, telling_rejection
from specviz.views.palette import word_of
from specviz.views.words import (
    SPACE,
    drafted_nodes,
    how_filled,
    num_refused,
    percent,
    prose,
    random_draw,
    shorten,
    speech,
    token_label,
)

MOST_CELLS = 32
ACCEPTED = METRICS["acceptance_rate_judged"].label
ACCEPTED_OF_TREES = f"{ACCEPTED}, siblings included"
ACCEPTED_WHOLE = "reasoning steps accepted"
SPOKEN_CELL = {  # a cell for a screen reader, in parts
    "token": "{text}, {status}",
    "behind the end": ", after the end of the text",
    "drawn": ": {test} {chance}, draw {u}",
}


def show_step(step: Step, counters: Counters) -> ShownStep:
    """One step, without what only a run knows. `counters` already hold this step."""
    shown, num_others = most_telling(step)
    last = last_token(step)
    rule = facts_of(step.settings.rule)
    statuses = [token.status for token in step.draft]
    counts = [statuses.count(name) for name in ("accepted", "rejected", "ignored")]
    return ShownStep(
        index=step.index,
        k=step.settings.k,
        filled=how_filled(step) or UNSET,
        cells=[_cell(step, node, rule) for node in shown],
        more=num_others,
        more_words=others_words(step, num_others),
        refused=_refused(step),
        last=None if last is None else _last_cell(last),
        cut_off=step.truncated,
        pieces=_pieces(step),
        looks=looks(step),
        focus=focus(step),
        has_rejected=telling_rejection(step) is not None or num_refused(step) > 0,
        drawless=step.settings.is_foreign or not rule.uses_draw,
        whole=rule.judges_block,
        bar=StepBar(*counts, num_refused(step)),
        totals=_totals(step, counters),
        say=speech(step),
    )


def most_telling(step: Step) -> tuple[list[int], int]:
    """The nodes that a lane shows, and how many more were drafted.

    A tree shows the accepted path and the token rejected at its end; a chain shows every judged node, and the first of
    the others.
    """
    drafted = drafted_nodes(step)
    if step.is_tree:
        end = telling_rejection(step)
        shown = []
        for node in drafted:
            token = step.draft[node]
            if token.status == "accepted" or token is end:
                shown.append(node)
    else:
        judged = [node for node in drafted if step.draft[node].is_judged]
        others = [node for node in drafted if not step.draft[node].is_judged]
        shown = sorted([*judged, *others[: max(0, MOST_CELLS - len(judged))]])
    return shown, len(drafted) - len(shown)


def others_words(step: Step, num_others: int) -> list[str]:
    """The number of tokens that a lane leaves out, and words for it where there is room."""
    if not num_others:
        return []
    number = f"+{num_others:,}"
    return [number, " on other branches"] if step.is_tree else [number]


def _refused(step: Step) -> RefusedStep | None:
    """The mark in a lane for a whole reasoning step that the target rejected; its tokens are not in the draft."""
    size = num_refused(step)
    if not size:
        return None
    words = [f"{size:,}", " token" if size == 1 else " tokens"]
    return RefusedStep(words, f"a reasoning step of {''.join(words)}, rejected")


def _cell(step: Step, node: int, rule: RuleFacts) -> LaneCell:
    """The cell of a drafted token; `say` is for a screen reader."""
    token = step.draft[node]
    text = token_label(token)
    say = SPOKEN_CELL["token"].format(text=text, status=word_of(token.status))
    more = {}
    if end_note(step, node):
        more["behind_end"] = True
        say += SPOKEN_CELL["behind the end"]
    if token.is_judged and token.accept_prob is not None:
        chance = token.accept_prob or 0.0
        more["fill"] = shorten(100 * chance, 1)
        if rule.uses_draw:
            u = token.u or 0.0
            probability, fell = random_draw(chance, u)
            test = "stopping test" if rule.judges_block else "chance"
            more["tick"] = shorten(100 * u, 1)
            more["label"] = percent(chance)
            say += SPOKEN_CELL["drawn"].format(test=test, chance=probability, u=fell)
    return LaneCell(ref=str(node), status=token.status, text=text, say=say, **more)


def _last_cell(last: EmittedToken) -> LaneCell:
    text = token_label(last)
    say = SPOKEN_CELL["token"].format(text=text, status=word_of(last.kind))
    return LaneCell(ref=LAST, status=last.kind, text=text, say=say)


def _pieces(step: Step) -> list[Piece]:
    """The step's text in reading order; a rejected token stands before its replacement.

    Of siblings that were all rejected, only the last is shown; where one of them was accepted, none.
    """
    rejected = telling_rejection(step)
    pieces = []
    parent = ROOT
    for token in step.emitted:
        for node, drafted in enumerate(step.draft):
            if drafted is rejected and drafted.parent == parent:
                pieces.append((_rejected_text(drafted), "rejected", str(node)))
        is_half = token.bytes and not token.text  # half a character
        text = token_label(token) if is_half else prose(token.text)
        pieces.append((text, token.kind, ref_of(token)))
        parent = token.node
    return pieces


def _rejected_text(token: DraftToken) -> str:
    """One short word that breaks no line, its leading space left plain."""
    shown = token_label(token)
    word = shown.lstrip(SPACE)
    return word.rjust(len(shown)) if word else shown


def _totals(step: Step, counters: Counters) -> StepTotals:
    """The numbers after this step, so that the player can show any moment."""
    judges_graded = facts_of(step.settings.rule).judges_graded
    name = "reasoning_steps_kept" if judges_graded else "acceptance_rate_judged"
    share = _find_value(name, counters)
    if judges_graded:
        accepted = f"{counters.num_graded_accepted:,} of {counters.num_graded:,}"
        words = ACCEPTED_WHOLE
    else:
        accepted = METRICS[name].spell(share)
        words = ACCEPTED_OF_TREES if counters.num_trees else ACCEPTED
    per_call = _find_value("tokens_per_target_call", counters)
    statuses = {status: counters.statuses[status] for status in ("rejected", "ignored")}
    return StepTotals(
        tokens_per_call="" if per_call is None else f"{per_call:.1f}",
        accepted="" if share is None else accepted,
        accepted_words=words,
        accepted_share=None if share is None else round(100 * share, 1),
        counts={**counters.kinds, **statuses},
    )


def _find_value(name: str, counters: Counters) -> float | None:
    """The value of a metric; None where it is undefined."""
    try:
        return METRICS[name].function(counters)
    except Undefined:
        return None
