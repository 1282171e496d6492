"""How a step's draft was made: parts that follow from the evidence alone, whichever method wrote it.

Each function of MAKERS reads its own keys of the evidence, and returns the parts that follow from them, or none.
Evidence comes from files too: a value of an unexpected shape is left out, never shown in part.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice
from operator import mul

from specviz.analysis.calibration import CalibrationBin, estimates_of
from specviz.drafters import METHODS
from specviz.drafters.policy import HEAD_K_PARAMS, K_PARAMS
from specviz.trace import Step
from specviz.views.explore.evidence import parts
from specviz.views.explore.evidence.parts import Evidence
from specviz.views.explore.evidence.tree import candidates, tree, tree_words
from specviz.views.explore.message import (
    Chip,
    ChipLine,
    DraftPart,
    MadeDraft,
    PassagePart,
)
from specviz.views.words import (
    between_words,
    drafted_nodes,
    how_filled,
    label,
    percent,
    prose,
    quantity,
    share_words,
    why_nothing,
)

AROUND = 6  # tokens of the text shown on either side of a match
MOST_LAYERS = 96
POLICIES = K_PARAMS[0].options
POLICIES_OF_HEADS = HEAD_K_PARAMS[0].options
BEST_BY_TIME = "the best by time on this run's device, as measured"
CHILDREN = {
    "top": "the most likely tokens at each place, nothing drawn",
    "independent": "drawn from the draft's distribution, each on its own",
    "without_replacement": "drawn from the draft's distribution, no token twice at one place",
}
OF_ROUNDS = (
    "The marks show what the checking model did with each token. The target judges afterwards."
)
ROUND_STATUSES = ("accepted", "rejected", "ignored")
LAST_KINDS = ("resampled", "bonus", "plain")
WINDOW = (  # (a key of lookahead's evidence, title, the name of its line number n, note)
    (
        "window",
        "The window",
        "level {}",
        "These tokens ride along in the same pass. None of them can be accepted, but they grow into n-grams.",
    ),
    (
        "guesses",
        "Guesses from the pool",
        "{}",
        "N-grams from the pool that begin with the text's last token. This step checked them.",
    ),
    ("found", "Added to the pool last time", "", ""),
)
WAYS_TO_TARGET = {
    "reencode": "the draft's text is split into the target's tokens",
    "shared": "only tokens that both vocabularies spell alike are drafted",
}
VERDICTS = {"kept": "accepted", "refused": "rejected"}  # the evidence's word -> our status
VERDICT_WORDS = {
    "kept": "accepted whole",
    "refused": "rejected: the target writes this reasoning step itself",
    "waiting": "nothing was drafted: the target is still replacing a rejected reasoning step",
}
JUDGES = {
    "mean_logprob": "the probability that the target gives its tokens (geometric mean)",
    "score": "the grade from 0 to 9 that the target writes",
}
FOUND = "The last {} also stood {}; what followed there is proposed."
OF_TEXT = "{} earlier"
OF_ANSWER = "in an earlier answer ({} back)"
COUNTED = "Beside a drafted token: how often it came there / how often any token did."
MASK = "mask"
HOW_FILLED = {
    "together": "No guess saw another one.",
    "in turn": "Each token was then chosen in turn, knowing the one before it.",
}
OF_BLOCK = "{} The draft takes the first {} of {} slots."
TAKEN_BACK = "the draft took back {} (“{}”) to spell the end of the text in its own tokens"


def show_making(
    step: Step, text: Sequence[str], calibrated: Sequence[CalibrationBin] = ()
) -> MadeDraft | None:
    """How the step's draft was made; None where there is nothing to show beside the lane.

    text: the labels of the tokens before this step. calibrated: the estimates up to this step, beside the verdicts.
    """
    if not (step.evidence or step.is_tree or step.settings.by_time):
        return None  # every maker needs one of them
    evidence = Evidence(step.evidence)
    shown = []
    for make_parts in MAKERS:
        shown += make_parts(step, evidence, text)
    if estimates_of(step):
        shown += _calibration(calibrated)
    return MadeDraft(tree_words(step), shown) if shown else None


def _nothing(step: Step, _evidence: Evidence, _text: Sequence[str]) -> list[DraftPart]:
    """Why nothing was drafted."""
    why = why_nothing(step)
    return parts.facts("Why K is 0", [("reason", why)] if why else [])


def _policy(step: Step, evidence: Evidence, _text: Sequence[str]) -> list[DraftPart]:
    """The K in force, the policy that chose it, and its estimates."""
    policy = evidence.words("policy")
    k = evidence.whole("k")
    if not policy or k is None:
        return []
    words = policy.replace("_", " ")
    policies = POLICIES_OF_HEADS if "doubt" in evidence else POLICIES
    if explanation := policies.get(policy):
        words = f"{words}: {explanation}"
    items = [("K in force", str(k)), ("policy", words)]
    if estimates := estimates_of(step):
        items.append(("estimated acceptance", _percents(estimates)))
        items.append(("estimated survival", _percents(accumulate(estimates, mul))))
    least = step.settings.params.get("least_acceptance")
    if (doubt := evidence.number("doubt")) is not None and type(least) is float:
        words = f"{100 * doubt:.1f} %, less than {100 * least:.1f} %"
        items.append(("expected of the next token, so it was not drafted", words))
    if (cost := evidence.number("cost_ratio")) is not None:
        items.append(("cost of a drafted token", f"{percent(cost)} of a target check"))
    return parts.facts("How long a draft may be", items)


def _calibration(rows: Sequence[CalibrationBin]) -> list[DraftPart]:
    """How often tokens were accepted so far, by what had been estimated for them."""
    items = []
    for row in rows:
        observed = f"{row.accepted} of {row.judged} accepted ({between_words(row.between)})"
        items.append((f"estimated {percent(row.estimate)}", observed))
    return parts.facts("Estimates of this run so far (95 % interval)", items)


def _percents(shares: Iterable[float]) -> str:
    """The shares of a draft's first tokens in words."""
    return ", ".join(percent(share) for share in islice(shares, parts.MOST_LINES))


def _growth(step: Step, evidence: Evidence, _text: Sequence[str]) -> list[DraftPart]:
    """How the nodes of a tree came to be."""
    items = []
    if children := CHILDREN.get(evidence.words("children")):
        items.append(("children", children))
    num_grown = evidence.whole("grown")
    num_proposed = evidence.whole("kept")
    if num_grown is not None and num_proposed is not None:
        words = f"{num_grown:,}, then the best {num_proposed:,}"
        items.append(("grown, then proposed", words))
    for name in step.settings.by_time or ():
        size = label(str(step.settings.params.get(name)))
        items.append(("size", f"{size}: {BEST_BY_TIME}"))
    return parts.facts("How the tree was grown", items)


def _block(step: Step, evidence: Evidence, text: Sequence[str]) -> list[DraftPart]:
    """The tokens that a head read to fill a block in one pass, above its guesses."""
    size = evidence.whole("block")
    masks = evidence.whole("masks")
    filled = how_filled(step)
    guessed = parts.draft_chips(step)
    if not (size and masks and filled and text) or len(text) != step.context_length:
        return []
    if not 0 < len(guessed) <= size or not 0 <= size - masks <= 1:
        return []
    note = HOW_FILLED[filled]
    if len(guessed) < size:
        note = OF_BLOCK.format(note, len(guessed), size)
    read = [*_chips(text, len(text) - 1, len(text)), *[(MASK, "off", "")] * masks]
    rows = [parts.line("read", read), parts.line("guessed", guessed)]
    return [parts.lines("Filled in one pass", rows, note)]


def _proposer(_step: Step, evidence: Evidence, _text: Sequence[str]) -> list[DraftPart]:
    """The name of the drafter that proposed, where there are several."""
    name = evidence.words("by")
    return parts.facts("Who proposed", [("drafter", _name(name))] if name else [])


def _lookup(step: Step, evidence: Evidence, text: Sequence[str]) -> list[DraftPart]:
    """The place where the last words stood before, above the end of the text as it is now."""
    start = evidence.whole("start")
    answers_back = evidence.whole("answers_back")
    matched = evidence.whole("matched")
    proposed = evidence.whole("proposed")
    if None in (matched, proposed) or len(text) != step.context_length:
        return []
    if not 0 < matched <= len(text) - (start or 0):
        return []
    if start is not None and start + matched + proposed <= len(text):
        rows = [_earlier(text, start, matched, proposed)]
        place = OF_TEXT.format(quantity(len(text) - matched - start, "token"))
    elif answers_back:
        rows = []
        place = OF_ANSWER.format(quantity(answers_back, "answer"))
    else:
        return []
    counted = _counted(evidence, proposed)
    now = len(text) - matched
    end_now = [
        *_chips(text, now - AROUND, now),
        *_chips(text, now, len(text), "same"),
        *parts.draft_chips(step, counted),
    ]
    rows.append(parts.line("now", end_now))
    note = FOUND.format(quantity(matched, "token"), place)
    if counted:
        note = f"{note} {COUNTED}"
    return [parts.lines("Where it was found", rows, note)]


def _earlier(text: Sequence[str], start: int, matched: int, proposed: int) -> ChipLine:
    """The line of the place in the text where the last words stood before, with what followed them there."""
    end = start + matched
    follows = end + proposed
    chips = [
        *_chips(text, start - AROUND, start),
        *_chips(text, start, end, "same"),
        *_chips(text, end, follows, "from"),
        *_chips(text, follows, follows + AROUND),
    ]
    return parts.line("earlier", chips)


def _chips(text: Sequence[str], first: int, behind: int, mark: str = "") -> list[Chip]:
    return [(label(word), mark, "") for word in text[max(0, first) : behind]]


def _counted(evidence: Evidence, size: int) -> list[str]:
    """How often each of `size` drafted tokens came, of all times; empty where that was not counted."""
    pairs = list(zip(evidence.wholes("counts"), evidence.wholes("totals"), strict=False))
    if len(pairs) != size or any(count > total for count, total in pairs):
        return []
    return [f"{count:,}/{total:,}" for count, total in pairs]


def _layers(_step: Step, evidence: Evidence, _text: Sequence[str]) -> list[DraftPart]:
    """The target's layers that wrote the draft."""
    used = evidence.wholes("layers")
    total = evidence.whole("of")
    if not used or total is None or not max(used) < total <= MOST_LAYERS:
        return []
    chips: list[Chip] = []
    for number in range(total):
        chips.append((str(number + 1), "on" if number in used else "off", ""))
    note = f"{len(used)} of the target's {total} layers wrote the draft, with the target's own output head."
    return [parts.lines("Layers used", [parts.line("", chips)], note)]


def _modules(_step: Step, evidence: Evidence, _text: Sequence[str]) -> list[DraftPart]:
    """How many modules for later tokens the target has."""
    modules = evidence.whole("modules")
    if modules is None:
        return []
    return parts.facts("Modules for later tokens", [("the target's modules", str(modules))])


def _rounds(step: Step, evidence: Evidence, _text: Sequence[str]) -> list[DraftPart]:
    """The draft model's own draft-verify rounds, and their outcome."""
    rounds = [Evidence(item) for item in evidence.items("rounds")]
    if not rounds:
        return []
    names = []
    for draft_round in rounds:
        drafter = _name(draft_round.words("by")) or "Nobody"
        checker = _name(draft_round.words("for")) or "?"
        names.append(f"{drafter} for {checker}")
    lead = OF_ROUNDS
    if len(set(names)) == 1:
        lead = f"{names[0]}. {OF_ROUNDS}"
        names = [f"round {number}" for number in range(1, len(rounds) + 1)]
    rows = []
    for name, draft_round in zip(names, rounds, strict=True):
        rows.append(parts.line(name, _round_chips(draft_round)))
    proposed = [(text, "", "") for text, *_ in parts.draft_chips(step)]
    rows = [*rows[: parts.MOST_LINES - 1], parts.line("proposed to the target", proposed)]
    calls = []
    for name, number in evidence.inside("calls").counts():
        if number:
            calls.append((f"forwards of {_name(name)}", f"{number:,}"))
    shown = parts.lines("Rounds inside the draft", rows, lead=lead)
    return [shown, *parts.facts("What drafting cost", calls)]


def _name(name: str) -> str:
    """The title of a method, for a drafter without a model; else the model's own name."""
    return METHODS[name].title if name in METHODS else label(name)


def _round_chips(draft_round: Evidence) -> list[Chip]:
    chips = []
    for item in draft_round.items("tokens"):
        token = Evidence(item)
        status = token.words("status")
        chips.append(token.chip(status if status in ROUND_STATUSES else ""))
    if last := draft_round.inside("last"):
        kind = draft_round.words("kind")
        chips.append(last.chip(kind if kind in LAST_KINDS else ""))
    return chips


def _window(_step: Step, evidence: Evidence, _text: Sequence[str]) -> list[DraftPart]:
    """Lookahead's window, the n-grams that it verified, the n-grams that it found last, and the size of its pool."""
    shown = []
    for key, title, name, note in WINDOW:
        rows = []
        for number, tokens in enumerate(evidence.items(key), 1):
            rows.append(parts.line(name.format(number), parts.token_chips(tokens)))
        if rows:
            shown.append(parts.lines(title, rows, note))
    pool = evidence.inside("pool")
    keys = pool.whole("keys")
    ngrams = pool.whole("ngrams")
    if keys is not None and ngrams is not None:
        items = [("n-grams", f"{ngrams:,}"), ("different first tokens", f"{keys:,}")]
        shown += parts.facts("The pool", items)
    return shown


def _tokenisations(step: Step, evidence: Evidence, _text: Sequence[str]) -> list[DraftPart]:
    """The draft's own tokens, above the target's tokens for the same text."""
    way = evidence.words("way")
    if way not in WAYS_TO_TARGET:
        return []
    drafted = [step.draft[node] for node in drafted_nodes(step)]
    tokens = [Evidence(item) for item in evidence.items("target_tokens")]
    is_draft = [token.whole("id") for token in tokens] == [token.id for token in drafted]
    marks = [token.status for token in drafted] if is_draft else [""] * len(tokens)
    target_chips = [token.chip(mark) for token, mark in zip(tokens, marks, strict=True)]
    rows = [
        parts.line("draft", parts.token_chips(evidence.items("draft_tokens"))),
        parts.line("target", target_chips),
    ]
    items = [("way", WAYS_TO_TARGET[way])]
    boundary = evidence.inside("boundary")
    if backed := boundary.whole("backed"):
        words = TAKEN_BACK.format(quantity(backed, "token"), label(boundary.words("text")))
        items.append(("at the boundary", words))
    if shared := share_words(evidence.number("shared")):
        items.append(("the draft's probability on shared tokens", shared))
    shown = parts.lines("The same text in both vocabularies", rows, aligned=True)
    return [shown, *parts.facts("Between the vocabularies", items)]


def _grade(_step: Step, evidence: Evidence, _text: Sequence[str]) -> list[DraftPart]:
    """A whole reasoning step, the target's grade of it, and the threshold."""
    verdict = evidence.words("verdict")
    threshold = evidence.number("threshold")
    judged_by = evidence.words("judged_by")
    if verdict not in VERDICT_WORDS or threshold is None:
        return []
    items = [("verdict", VERDICT_WORDS[verdict])]
    if (grade := evidence.number("grade")) is not None:
        items.append(("grade", _grade_words(judged_by, grade, threshold)))
    if judged_by in JUDGES:
        items.append(("judged by", JUDGES[judged_by]))
    if (tokens := evidence.whole("tokens")) is not None:
        items.append(("tokens", f"{tokens:,}"))
    shown = parts.facts("The grade", items)
    if text := evidence.inside("step").passage("text"):
        mark = VERDICTS.get(verdict, "")
        passage = PassagePart("The reasoning step", prose(text), mark, "")
        shown.insert(0, passage)
    return shown


def _grade_words(judged_by: str, grade: float, threshold: float) -> str:
    if judged_by == "score":
        return f"{grade:.1f} of 9; needed: {threshold:.1f}"
    if judged_by == "mean_logprob":
        found = percent(math.exp(min(0.0, grade)))
        needed = percent(math.exp(min(0.0, threshold)))
        return f"on average the target gives a token {found}; needed: {needed}"
    return f"{grade:.3f}; needed: {threshold:.3f}"


MAKERS = (
    _nothing,
    _policy,
    tree,
    _growth,
    candidates,
    _block,
    _proposer,
    _lookup,
    _window,
    _rounds,
    _tokenisations,
    _grade,
    _layers,
    _modules,
)
