"""The inspector's sentences: what happened to a token and why, with the trace's own numbers.

A sentence is a list of texts; every second one is a token to set off.
"""

from collections.abc import Iterable

from specviz.rules.facts import facts_of
from specviz.trace import DraftToken, EmittedToken, Step
from specviz.trace.counters import KEPT, grade_of
from specviz.views.words import (
    TINY,
    Sentence,
    divides,
    num_refused,
    percent,
    percents,
    quote,
    random_draw,
    why_nothing,
)

BOUNDS = {"<": "less", ">": "more"}  # how a percentage begins that is not spelled out
WAITING = (
    "waiting"  # for the end of the reasoning step that the target writes in place of a refused one
)
MOVES_NOTHING = 1e-6  # of the probability: rounding
GREEDY = "At temperature 0 the target accepts only its most likely token. The draft wrote "
NO_DRAW = "Typical acceptance looks at the target alone, without a random draw. It finds "
LOSSY_YET_SAME = "This rule is lossy, but here it changes nothing: the token comes as often as from the target alone."
LOSSY = "This rule is lossy. Here it moves {moved} of the probability away from the target's (total variation)."


def last_token(step: Step) -> EmittedToken | None:
    """The step's own last token: resampled, bonus or plain; None if the text ended before it."""
    return next((token for token in step.emitted if token.node is None), None)


def last_rejected(step: Step) -> DraftToken | None:
    """The drafted token whose failure ended the walk, or the last sibling that failed on the way."""
    return next((token for token in reversed(step.draft) if token.status == "rejected"), None)


def telling_rejection(step: Step) -> DraftToken | None:
    """The last rejected token; None where a sibling of it was accepted, because there the draft was right."""
    cut = last_rejected(step)
    kept = cut is not None and any(
        t.status == "accepted" and t.parent == cut.parent for t in step.draft
    )
    return None if kept else cut


def judged_title(step: Step, node: int, emitted: EmittedToken | None) -> Sentence:
    """Under speculative sampling: both probabilities, how often the token is accepted, where u fell, the verdict."""
    token = step.draft[node]
    verdict, *replacement = _verdict(token, emitted)
    if step.settings.temperature == 0:
        likely = "that token" if token.status == "accepted" else "another token"
        return [GREEDY, quote(token), f", {likely}: {verdict}", *replacement]
    p = token.p_judged or 0.0
    chance, u = random_draw(token.accept_prob or 0.0, token.u or 0.0)
    fell = f" The random draw fell at {u}: "
    if token.q is None:
        before = _sibling_words(step, node) or ", which counts as 100\u00a0%; the target gave it "
        gave = f"{before}{chance}: accept it that often."
        return ["The draft proposed ", quote(token), gave + fell + verdict, *replacement]
    target, drafted = percents(p, token.q)
    gave = f" {drafted}\u00a0%{_sibling_words(step, node) or ', the target '}"
    if p >= token.q:
        gave += f"{target}\u00a0%: no less, so it is always accepted."
    elif p == 0:
        gave += "0\u00a0%: never accepted."
    elif p < TINY:
        gave += f"less than {100 * TINY:g}\u00a0%: accept it {chance} of the time."
    else:
        gave += f"only {target}\u00a0%: {_quotient(target, drafted, chance)}"
    return ["The draft gave ", quote(token), gave + fell + verdict, *replacement]


def _quotient(target: str, drafted: str, chance: str) -> str:
    """How often to accept a token, and how that follows from both printed numbers, which were rounded before."""
    if chance[0] in BOUNDS:
        return f"accept it {BOUNDS[chance[0]]} than {chance[1:]} of the time."
    about = "" if divides(target, drafted, chance) else "about "
    return f"accept it {target}/{drafted} = {about}{chance} of the time."


def rule_title(step: Step, token: DraftToken, emitted: EmittedToken | None = None) -> Sentence:
    """Under any other rule: how often the token is accepted, where u fell if the rule draws one, the replacement."""
    rule = facts_of(step.settings.rule)
    kept = token.status == "accepted"
    verdict, *replacement = (
        _verdict(token, emitted) if emitted or step.truncated else [f"{token.status}."]
    )
    if rule.judges_graded:
        how = "was accepted with it." if kept else "was rejected."
        return [
            "The target graded the whole reasoning step, not single tokens; ",
            quote(token),
            f" {how}",
        ]
    if rule.writes_most_likely:
        enough = f" {'' if kept else 'not '}likely enough: {verdict}"
        return [NO_DRAW, quote(token), enough, *replacement]
    chance, u = random_draw(token.accept_prob or 0.0, token.u or 0.0)
    before, after = rule.keeps or (
        f"The rule “{rule.name.replace('_', ' ')}” accepts ",
        " {chance} of the time.",
    )
    if kept and (token.u or 0.0) >= (
        token.accept_prob or 0.0
    ):  # block verification looks at later tokens too
        verdict = "not here, but a later test passed, so this token is accepted too."
    after = after.format(chance=chance, own=percent(chance_accepted(step, token)))
    return [before, quote(token), f"{after} The random draw fell at {u}: {verdict}", *replacement]


def chance_accepted(step: Step, token: DraftToken) -> float:
    """The probability that a token of a chain is accepted. Under block verification it is averaged over what may be
    drafted behind the token: the weight w = min(1, w p / q), updated along the chain. Else that of its own test."""
    if not facts_of(step.settings.rule).judges_block:
        return token.accept_prob or 0.0
    weight = 1.0
    for each in step.draft[: step.draft.index(token) + 1]:
        weight = min(1.0, weight * (each.p or 0.0) / (each.q or 1.0))
    return weight


def ignored_words(step: Step, token: DraftToken) -> tuple[Sentence, Sentence]:
    """Why the token was not judged, and a note on what follows a rejection."""
    wrote = "" if token.q is None else f" at {percent(token.q)}"
    target = "" if token.p is None else f" The target gives it {percent(token.p)}."
    node = token.parent
    while node >= 0 and step.draft[node].status != "rejected":
        node = step.draft[node].parent
    lead = ["The draft wrote ", quote(token)]
    if node < 0:
        return [*lead, f"{wrote}, but the text took another branch: not judged.{target}"], []
    cut = quote(step.draft[node])
    title = [
        *lead,
        f"{wrote}, but it came after ",
        cut,
        f", which was rejected: not judged.{target}",
    ]
    return title, ["It is dropped: it continues a text that no longer exists."]


def drawn_title(step: Step, last: EmittedToken, share: float) -> Sentence:
    """The step's own token and the law it was drawn from, where it has `share`."""
    rule = facts_of(step.settings.rule)
    if last.kind == "resampled":
        cut = last_rejected(step)
        source = rule.replaces.format(share=percent(share))
        return [
            "After ",
            quote(cut) if cut else "the draft",
            " was rejected, ",
            quote(last),
            source,
        ]
    probabilities = f", drawn from the target's own probabilities, where it has {percent(share)}."
    if rule.writes_most_likely:
        probabilities = ", its most likely token."
    if last.kind == "bonus":
        kept = sum(token.status == "accepted" for token in step.draft)
        if grade_of(step) == KEPT:
            return [
                f"The target accepted the whole reasoning step of {kept} tokens and adds ",
                quote(last),
                probabilities,
            ]
        how_many = (
            f"All {kept} draft tokens were accepted" if kept > 1 else "The draft token was accepted"
        )
        return [
            f"{how_many}, so the same pass gives one more for free: ",
            quote(last),
            probabilities,
        ]
    if refused := num_refused(step):
        lead = f"The target rejected a reasoning step of {refused} tokens. It writes its own, beginning with "
        return [lead, quote(last), probabilities]
    if rule.judges_graded and step.evidence.get("verdict") == WAITING:
        return [
            "The target rejected a reasoning step and is still writing its own: ",
            quote(last),
            probabilities,
        ]
    why = why_nothing(step)
    lead = f"Nothing was drafted here{f', as {why}' if why else ''}: the target wrote "
    return [lead, quote(last), f" itself{probabilities}"]


def replacement_note(step: Step, token: DraftToken, residual: float | None = None) -> Sentence:
    """Where the replacement of `token` came from, if there is one. residual: its share of the shortfall, if known."""
    last, rule = last_token(step), facts_of(step.settings.rule)
    if last is None or last.kind != "resampled" or token is not last_rejected(step):
        return []
    if not rule.is_plain:
        if not step.positions:
            return []
        share = next((p for id_, _, p, *_ in step.positions[-1].top if id_ == last.id), 0.0)
        return ["", quote(last), rule.replaces.format(share=percent(share))]
    if not residual:
        return []
    if step.settings.temperature == 0:
        return ["", quote(last), " is the target's most likely token here."]
    return [
        "",
        quote(last),
        f" was resampled from the hatched parts; it makes up {percent(residual)} of them.",
    ]


def sibling_note(step: Step, node: int) -> Sentence:
    """The target's own probability beside the one judged against; empty where no sibling was rejected before."""
    token, cut = step.draft[node], rejected_siblings(step, node)
    if not cut or token.p is None or step.settings.temperature == 0:
        return []
    own = f" {percent(token.p)}. After "
    left = " was rejected" if len(cut) == 1 else f" and {len(cut) - 1} more were rejected"
    judged = f"{left}, the remaining probability gives it {percent(token.p_judged or 0.0)}."
    return ["The target itself gives ", quote(token), own, quote(cut[-1]), judged]


def lossy_note(step: Step, moved: float | None) -> Sentence:
    """How far a lossy rule's law of this one token lies from the target's; empty where it is not recorded."""
    if moved is None or step.settings.lossless:
        return []
    return [LOSSY_YET_SAME if moved < MOVES_NOTHING else LOSSY.format(moved=percent(moved))]


def end_note(step: Step, node: int) -> Sentence:
    """A token that was accepted, but behind the one that ended the text; empty where it is in the text."""
    if step.draft[node].status != "accepted" or any(token.node == node for token in step.emitted):
        return []
    return ["The text had already ended, so this token is not part of it."]


def join(sentences: Iterable[Sentence]) -> Sentence:
    """All of them as one; empty ones are left out."""
    whole: Sentence = []
    for sentence in filter(None, sentences):
        whole = [*whole[:-1], f"{whole[-1]} {sentence[0]}", *sentence[1:]] if whole else sentence
    return whole


def rejected_siblings(step: Step, node: int) -> list[DraftToken]:
    """The siblings of a token that were judged and rejected before it."""
    parent = step.draft[node].parent
    return [
        other
        for other in step.draft[:node]
        if other.parent == parent and other.status == "rejected"
    ]


def _sibling_words(step: Step, node: int) -> str:
    """The words before the target's share where siblings of this node were rejected before it; "" where none was."""
    cut = len(rejected_siblings(step, node))
    guesses = (
        "1 other guess for this place was"
        if cut == 1
        else f"{cut} other guesses for this place were"
    )
    return (
        f"; {guesses} rejected first. From the remaining probability the target gives it "
        if cut
        else ""
    )


def _verdict(token: DraftToken, emitted: EmittedToken | None) -> Sentence:
    if token.status == "accepted":
        return ["accepted."]
    if emitted is None:
        return ["rejected, and the text ended here."]
    if emitted.node is None:
        return ["rejected, resampled as ", quote(emitted), "."]
    return ["rejected; its sibling ", quote(emitted), " was accepted."]
