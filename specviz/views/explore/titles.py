"""The inspector's sentences: they say what happened to a token and why, with the trace's own numbers.

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

BOUNDS = {"<": "less", ">": "more"}  # the first character of a percentage that is only a bound
WAITING = "waiting"  # the target still writes its own reasoning step in place of a rejected one
MOVES_NOTHING = 1e-6  # of the probability: rounding
GREEDY = "At temperature 0 the target accepts only its most likely token. The draft wrote "
NO_DRAW = "Typical acceptance looks at the target alone, without a random draw. It finds "
LOSSY_YET_SAME = "This rule is lossy, but here it changes nothing: the token comes as often as from the target alone."
LOSSY = "This rule is lossy. Here it moves {moved} of the probability away from the target's (total variation)."


def last_token(step: Step) -> EmittedToken | None:
    """The last token that the step added itself: resampled, bonus or plain; None if the text ended before it."""
    return next((token for token in step.emitted if token.node is None), None)


def last_rejected(step: Step) -> DraftToken | None:
    """The last rejected token: it ended the walk, or one of its siblings was accepted after it."""
    return next((token for token in reversed(step.draft) if token.status == "rejected"), None)


def telling_rejection(step: Step) -> DraftToken | None:
    """The last rejected token; None where a sibling of it was accepted, because there the draft was right."""
    rejected = last_rejected(step)
    if rejected is None:
        return None
    siblings = [token for token in step.draft if token.parent == rejected.parent]
    has_accepted = any(token.status == "accepted" for token in siblings)
    return None if has_accepted else rejected


def judged_title(step: Step, node: int, emitted: EmittedToken | None) -> Sentence:
    """The sentence under speculative sampling: both probabilities, the chance of acceptance, u, and the verdict."""
    token = step.draft[node]
    verdict, *replacement = _verdict(token, emitted)
    if step.settings.temperature == 0:
        likely = "that token" if token.status == "accepted" else "another token"
        return [GREEDY, quote(token), f", {likely}: {verdict}", *replacement]
    p = token.p_judged or 0.0
    chance, u = random_draw(token.accept_prob or 0.0, token.u or 0.0)
    outcome = f" The random draw fell at {u}: {verdict}"
    siblings = _sibling_words(step, node)
    if token.q is None:
        before = siblings or ", which counts as 100\u00a0%; the target gave it "
        gave = f"{before}{chance}: accept it that often."
        return ["The draft proposed ", quote(token), gave + outcome, *replacement]
    target, drafted = percents(p, token.q)
    gave = f" {drafted}\u00a0%{siblings or ', the target '}"
    if p >= token.q:
        gave += f"{target}\u00a0%: no less, so it is always accepted."
    elif p == 0:
        gave += "0\u00a0%: never accepted."
    elif p < TINY:
        gave += f"less than {100 * TINY:g}\u00a0%: accept it {chance} of the time."
    else:
        gave += f"only {target}\u00a0%: {_quotient(target, drafted, chance)}"
    return ["The draft gave ", quote(token), gave + outcome, *replacement]


def _quotient(target: str, drafted: str, chance: str) -> str:
    """The chance of acceptance, and how it follows from the two printed numbers, which are rounded."""
    if chance[0] in BOUNDS:
        return f"accept it {BOUNDS[chance[0]]} than {chance[1:]} of the time."
    roughly = "" if divides(target, drafted, chance) else "about "
    return f"accept it {target}/{drafted} = {roughly}{chance} of the time."


def rule_title(step: Step, token: DraftToken, emitted: EmittedToken | None = None) -> Sentence:
    """The sentence under any other rule: the chance of acceptance, u if the rule draws one, and the replacement."""
    rule = facts_of(step.settings.rule)
    is_accepted = token.status == "accepted"
    if rule.judges_graded:
        lead = "The target graded the whole reasoning step, not single tokens; "
        outcome = " was accepted with it." if is_accepted else " was rejected."
        return [lead, quote(token), outcome]
    if emitted or step.truncated:
        verdict, *replacement = _verdict(token, emitted)
    else:
        verdict = f"{token.status}."
        replacement = []
    if rule.writes_most_likely:
        enough = " likely enough" if is_accepted else " not likely enough"
        return [NO_DRAW, quote(token), f"{enough}: {verdict}", *replacement]
    chance, u = random_draw(token.accept_prob or 0.0, token.u or 0.0)
    if rule.acceptance:
        before, after = rule.acceptance
    else:
        before = f"The rule “{rule.name.replace('_', ' ')}” accepts "
        after = " {chance} of the time."
    if is_accepted and (token.u or 0.0) >= (token.accept_prob or 0.0):
        # block verification tests later tokens too
        verdict = "not here, but a later test passed, so this token is accepted too."
    after = after.format(chance=chance, own=percent(chance_accepted(step, token)))
    return [before, quote(token), f"{after} The random draw fell at {u}: {verdict}", *replacement]


def chance_accepted(step: Step, token: DraftToken) -> float:
    """The probability that a token of a chain is accepted.

    Under block verification it is an average over all tokens that may be drafted behind this one: the weight
    w = min(1, w p / q), updated along the chain. Every other rule tests the token alone.
    """
    if not facts_of(step.settings.rule).judges_block:
        return token.accept_prob or 0.0
    weight = 1.0
    for drafted in step.draft[: step.draft.index(token) + 1]:
        weight = min(1.0, weight * (drafted.p or 0.0) / (drafted.q or 1.0))
    return weight


def ignored_words(step: Step, token: DraftToken) -> tuple[Sentence, Sentence]:
    """Why the token was not judged, and a note on the tokens behind a rejection."""
    probability = "" if token.q is None else f" at {percent(token.q)}"
    target = "" if token.p is None else f" The target gives it {percent(token.p)}."
    node = token.parent
    while node >= 0 and step.draft[node].status != "rejected":
        node = step.draft[node].parent
    title = ["The draft wrote ", quote(token)]
    if node < 0:
        title.append(f"{probability}, but the text took another branch: not judged.{target}")
        return title, []
    title += [
        f"{probability}, but it came after ",
        quote(step.draft[node]),
        f", which was rejected: not judged.{target}",
    ]
    return title, ["It is dropped: it continues a text that no longer exists."]


def drawn_title(step: Step, last: EmittedToken, share: float) -> Sentence:
    """The last token of the step, and the distribution that it was drawn from, where it has `share`."""
    rule = facts_of(step.settings.rule)
    if last.kind == "resampled":
        rejected = last_rejected(step)
        before = quote(rejected) if rejected else "the draft"
        source = rule.replaces.format(share=percent(share))
        return ["After ", before, " was rejected, ", quote(last), source]
    probabilities = f", drawn from the target's own probabilities, where it has {percent(share)}."
    if rule.writes_most_likely:
        probabilities = ", its most likely token."
    if last.kind == "bonus":
        return [_bonus_words(step), quote(last), probabilities]
    if size := num_refused(step):
        lead = f"The target rejected a reasoning step of {size} tokens. It writes its own, beginning with "
    elif rule.judges_graded and step.evidence.get("verdict") == WAITING:
        lead = "The target rejected a reasoning step and is still writing its own: "
    else:
        why = why_nothing(step)
        reason = f", as {why}" if why else ""
        lead = f"Nothing was drafted here{reason}: the target wrote "
        probabilities = f" itself{probabilities}"
    return [lead, quote(last), probabilities]


def _bonus_words(step: Step) -> str:
    """The words before a bonus token."""
    num_accepted = sum(token.status == "accepted" for token in step.draft)
    if grade_of(step) == KEPT:
        return f"The target accepted the whole reasoning step of {num_accepted} tokens and adds "
    drafted = "The draft token was accepted"
    if num_accepted > 1:
        drafted = f"All {num_accepted} draft tokens were accepted"
    return f"{drafted}, so the same pass gives one more for free: "


def replacement_note(step: Step, token: DraftToken, residual: float | None = None) -> Sentence:
    """The source of the token that replaced `token`, if one did. residual: its share of the shortfall, if known."""
    last = last_token(step)
    if last is None or last.kind != "resampled" or token is not last_rejected(step):
        return []
    rule = facts_of(step.settings.rule)
    if not rule.is_plain:
        if not step.positions:
            return []
        share = next((p for id_, _, p, *_ in step.positions[-1].top if id_ == last.id), 0.0)
        return ["", quote(last), rule.replaces.format(share=percent(share))]
    if not residual:
        return []
    if step.settings.temperature == 0:
        return ["", quote(last), " is the target's most likely token here."]
    source = f" was resampled from the hatched parts; it makes up {percent(residual)} of them."
    return ["", quote(last), source]


def sibling_note(step: Step, node: int) -> Sentence:
    """The target's own probability beside the one judged against; empty where no sibling was rejected before."""
    token = step.draft[node]
    rejected = rejected_siblings(step, node)
    if not rejected or token.p is None or step.settings.temperature == 0:
        return []
    were_rejected = " was rejected"
    if len(rejected) > 1:
        were_rejected = f" and {len(rejected) - 1} more were rejected"
    judged = (
        f"{were_rejected}, the remaining probability gives it {percent(token.p_judged or 0.0)}."
    )
    probability = f" {percent(token.p)}. After "
    return ["The target itself gives ", quote(token), probability, quote(rejected[-1]), judged]


def lossy_note(step: Step, moved: float | None) -> Sentence:
    """The distance of a lossy rule's distribution of this token from the target's; empty where it is not recorded."""
    if moved is None or step.settings.lossless:
        return []
    if moved < MOVES_NOTHING:
        return [LOSSY_YET_SAME]
    return [LOSSY.format(moved=percent(moved))]


def end_note(step: Step, node: int) -> Sentence:
    """A note on an accepted token behind the one that ended the text; empty for any other."""
    if step.draft[node].status != "accepted" or node in [token.node for token in step.emitted]:
        return []
    return ["The text had already ended, so this token is not part of it."]


def join(sentences: Iterable[Sentence]) -> Sentence:
    """All sentences as one; empty ones are left out."""
    whole: Sentence = []
    for sentence in sentences:
        if not sentence:
            continue
        if whole:
            first, *others = sentence
            whole = [*whole[:-1], f"{whole[-1]} {first}", *others]
        else:
            whole = sentence
    return whole


def rejected_siblings(step: Step, node: int) -> list[DraftToken]:
    """The siblings of a token that were judged and rejected before it."""
    parent = step.draft[node].parent
    # nodes stand behind their parents
    siblings = [token for token in step.draft[parent + 1 : node] if token.parent == parent]
    return [token for token in siblings if token.status == "rejected"]


def _sibling_words(step: Step, node: int) -> str:
    """The words before the target's share if siblings of this node were rejected before it; else ""."""
    number = len(rejected_siblings(step, node))
    if not number:
        return ""
    guesses = f"{number} other guesses for this place were"
    if number == 1:
        guesses = "1 other guess for this place was"
    return f"; {guesses} rejected first. From the remaining probability the target gives it "


def _verdict(token: DraftToken, emitted: EmittedToken | None) -> Sentence:
    """Whether the token was accepted; if not, the token that stands in its place."""
    if token.status == "accepted":
        return ["accepted."]
    if emitted is None:
        return ["rejected, and the text ended here."]
    if emitted.node is None:
        return ["rejected, resampled as ", quote(emitted), "."]
    return ["rejected; its sibling ", quote(emitted), " was accepted."]
