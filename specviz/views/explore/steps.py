"""One step as props: its lane of cells, its pieces of text, its bar, the counters after it, the inspector's looks."""

from specviz.rules.facts import facts_of
from specviz.trace import ROOT, DraftToken, EmittedToken, Step
from specviz.trace.counters import Counters
from specviz.trace.metrics import METRICS, Undefined
from specviz.views.blocks import Props
from specviz.views.explore.inspector import LAST, focus, looks, ref_of
from specviz.views.explore.titles import end_note, last_token, telling_rejection
from specviz.views.palette import word_of
from specviz.views.words import (
    SPACE,
    drafted_nodes,
    num_refused,
    percent,
    prose,
    random_draw,
    speech,
    token_label,
)

MOST_CELLS = 32
ACCEPTED = "accepted of judged"
ACCEPTED_OF_TREES = "accepted of judged, siblings included"
ACCEPTED_WHOLE = "reasoning steps accepted"


def step_props(step: Step, counters: Counters) -> Props:
    """`counters` already hold this step."""
    shown, num_others = most_telling(step)
    last, rule = last_token(step), facts_of(step.settings.rule)
    return {
        "index": step.index,
        "k": step.settings.k,
        "cells": [_cell(step, node) for node in shown],
        "more": num_others,
        "more_words": others_words(step, num_others),
        "refused": _refused(step),
        "last": last and _last_cell(last),
        "cut_off": step.truncated,
        "pieces": _pieces(step),
        "looks": looks(step),
        "focus": focus(step),
        "has_rejected": telling_rejection(step) is not None or num_refused(step) > 0,
        "drawless": not rule.uses_draw,
        "whole": rule.judges_block,
        "bar": {
            **{
                name: sum(token.status == name for token in step.draft)
                for name in ("accepted", "rejected", "ignored")
            },
            "refused": num_refused(step),
        },
        "totals": _totals(step, counters),
        "say": speech(step),
    }


def most_telling(step: Step) -> tuple[list[int], int]:
    """The nodes that a lane shows, and how many more were drafted. Of a tree: the path taken and the token rejected at
    its end; of a chain: every judged node, and the first of the others."""
    drafted = drafted_nodes(step)
    if step.is_tree:
        end = telling_rejection(step)
        shown = [
            node
            for node in drafted
            if step.draft[node].status == "accepted" or step.draft[node] is end
        ]
    else:
        judged = [node for node in drafted if step.draft[node].is_judged]
        others = [node for node in drafted if not step.draft[node].is_judged]
        shown = sorted([*judged, *others[: max(0, MOST_CELLS - len(judged))]])
    return shown, len(drafted) - len(shown)


def others_words(step: Step, num_others: int) -> list[str]:
    """The number, and words for it where there is room."""
    if not num_others:
        return []
    return [f"+{num_others:,}", " off this path"] if step.is_tree else [f"+{num_others:,}"]


def _refused(step: Step) -> Props | None:
    """The mark in a lane for a whole reasoning step that the target refused: none of its tokens is in the draft."""
    size = num_refused(step)
    words = [f"{size:,}", f" token{'' if size == 1 else 's'}"]
    return (
        {"text": words, "say": f"a reasoning step of {''.join(words)}, rejected"} if size else None
    )


def _cell(step: Step, node: int) -> Props:
    token = step.draft[node]
    cell: Props = {"ref": str(node), "status": token.status, "text": token_label(token)}
    say = f"{cell['text']}, {word_of(token.status)}"
    if end_note(step, node):
        cell["behind_end"] = True
        say += ", after the end of the text"
    if not token.is_judged:
        return cell | {"say": say}
    rule, chance, u = facts_of(step.settings.rule), token.accept_prob or 0.0, token.u or 0.0
    cell["fill"] = round(100 * chance, 1)
    if rule.uses_draw:
        probabilities, fell = random_draw(chance, u)
        cell |= {"tick": round(100 * u, 1), "label": percent(chance)}
        say += (
            f": {'stopping test' if rule.judges_block else 'chance'} {probabilities}, draw {fell}"
        )
    return cell | {"say": say}


def _last_cell(last: EmittedToken) -> Props:
    text = token_label(last)
    return {"ref": LAST, "status": last.kind, "text": text, "say": f"{text}, {word_of(last.kind)}"}


def _pieces(step: Step) -> list[list[str]]:
    """The step's text as [text, status, ref] in reading order: what was cut stands before what came instead.

    Of siblings that all failed the last one stands for them; where another one was kept, none.
    """
    pieces = []
    parent, end = ROOT, telling_rejection(step)
    for token in step.emitted:
        cut = [
            node for node, other in enumerate(step.draft) if other is end and other.parent == parent
        ]
        pieces += [[_cut_text(step.draft[node]), "rejected", str(node)] for node in cut]
        text = (
            prose(token.text) if token.text or not token.bytes else token_label(token)
        )  # half a character
        pieces.append([text, token.kind, ref_of(token)])
        parent = token.node
    return pieces


def _cut_text(token: DraftToken) -> str:
    """One short word that breaks no line, its leading space left plain."""
    shown = token_label(token)
    word = shown.lstrip(SPACE)
    return word.rjust(len(shown)) if word else shown


def _totals(step: Step, counters: Counters) -> Props:
    """The numbers after this step, so that the player can show any moment."""
    whole = facts_of(step.settings.rule).judges_graded
    kept = _find_value("reasoning_steps_kept" if whole else "acceptance_rate_judged", counters)
    per_call = _find_value("tokens_per_target_call", counters)
    if whole:
        count, words = (
            f"{counters.num_graded_accepted:,} of {counters.num_graded:,}",
            ACCEPTED_WHOLE,
        )
    else:
        count = METRICS["acceptance_rate_judged"].spell(kept)
        words = ACCEPTED_OF_TREES if counters.num_trees else ACCEPTED
    return {
        "tokens_per_call": "" if per_call is None else f"{per_call:.1f}",
        "accepted": "" if kept is None else count,
        "accepted_words": words,
        "accepted_share": None if kept is None else round(100 * kept, 1),
        "counts": {
            **counters.kinds,
            **{name: counters.statuses[name] for name in ("rejected", "ignored")},
        },
    }


def _find_value(name: str, counters: Counters) -> float | None:
    try:
        return METRICS[name].function(counters)
    except Undefined:
        return None
