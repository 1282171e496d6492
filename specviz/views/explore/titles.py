"""The inspector's sentences: they say what happened to a token and why, with the trace's own numbers.

A sentence is a list of texts; every second one is a token to set off.
"""

import re
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
    share_words,
    why_nothing,
)

BOUNDS = {"<": "less", ">": "more"}  # the first character of a percentage that is only a bound
TO_SET_OFF = re.compile(r"\[(\w+)\]")
WAITING = "waiting"  # the target still writes its own reasoning step in place of a rejected one
MOVES_NOTHING = 1e-6  # of the probability: rounding
SENTENCES = {  # parts of them: "{name}" stands for a number, "[name]" for a token to set off
    "greedy": "At temperature 0 the target accepts only its most likely token. The draft wrote [token], ",
    "same token": "that token: ",
    "another token": "another token: ",
    "gave": "The draft gave [token] {q}\u00a0%",
    "the target": ", the target ",
    "always": "{p}\u00a0%: no less, so it is always accepted.",
    "never": "0\u00a0%: never accepted.",
    "hardly": f"less than {100 * TINY:g}\u00a0%: accept it {{chance}} of the time.",
    "less": "only {p}\u00a0%: accept it less than {bound} of the time.",
    "more": "only {p}\u00a0%: accept it more than {bound} of the time.",
    "exactly": "only {p}\u00a0%: accept it {p}/{q} = {chance} of the time.",
    "about": "only {p}\u00a0%: accept it {p}/{q} = about {chance} of the time.",
    "fell": " The random draw fell at {u}: ",
    "accepted": "accepted.",
    "ended": "rejected, and the text ended here.",
    "replaced": "rejected, resampled as [emitted].",
    "wrote": "The draft wrote [token]",
    "at": " at {q}",
    "behind": ", but it came after [rejected], which was rejected: not judged.",
    "target gives": " The target gives it {p}.",
    "dropped": "It is dropped: it continues a text that no longer exists.",
    "resampled": "After [rejected] was rejected, [token]",
    "all accepted": "All {number} draft tokens were accepted, so the same pass gives one more for free: [token]",
    "one accepted": "The draft token was accepted, so the same pass gives one more for free: [token]",
    "nothing drafted": "Nothing was drafted here: the target wrote [token] itself",
    "drawn": ", drawn from the target's own probabilities, where it has {share}.",
    "hatched": "[token] was resampled from the hatched parts; it makes up {share} of them.",
    "most likely": "[token] is the target's most likely token here.",
    "not checked": "The draft wrote [token]. The target was to check {checked} of this draft: not judged.",
    "was accepted": "[token] was accepted. No probabilities are recorded.",
    "was rejected": "[token] was rejected, and the target wrote [emitted]. No probabilities are recorded.",
    "sure": "The draft's confidence that it is accepted, if all before it are: {sure}.",
    "foreign resampled": "After [rejected] was rejected, the target wrote [token].",
    "foreign bonus": "All tokens that were checked were accepted, and the same pass gave one more: [token].",
    "foreign plain": "No drafted token was sent to the target: it wrote [token] itself.",
    "behind the end": "The text had already ended, so this token is not part of it.",
}
GRADED = "The target graded the whole reasoning step, not single tokens; "
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


def say(template: str, **values: str) -> Sentence:
    """The sentence of a template, or of several in a row."""
    parts = TO_SET_OFF.split(template)
    return [values[part] if at % 2 else part.format(**values) for at, part in enumerate(parts)]


def judged_title(step: Step, node: int, emitted: EmittedToken | None) -> Sentence:
    """The sentence under speculative sampling: both probabilities, the chance of acceptance, u, and the verdict."""
    token = step.draft[node]
    verdict, values = _verdict(token, emitted)
    if step.settings.temperature == 0:
        which = "same token" if token.status == "accepted" else "another token"
        return say(SENTENCES["greedy"] + SENTENCES[which] + verdict, **values)
    p = token.p_judged or 0.0
    chance, u = random_draw(token.accept_prob or 0.0, token.u or 0.0)
    siblings = _sibling_words(step, node)
    target, drafted = percents(p, 1.0 if token.q is None else token.q)
    if token.q is None:
        before = siblings or ", which counts as 100\u00a0%; the target gave it "
        gave = f"The draft proposed [token]{before}{{chance}}: accept it that often."
    else:
        gave = SENTENCES["gave"] + (siblings or SENTENCES["the target"])
        if p >= token.q:
            gave += SENTENCES["always"]
        elif p < TINY:
            gave += SENTENCES["hardly" if p else "never"]
        else:
            gave += _quotient(target, drafted, chance)
    values |= {"p": target, "q": drafted, "u": u, "chance": chance, "bound": chance[1:]}
    return say(gave + SENTENCES["fell"] + verdict, **values)


def _quotient(target: str, drafted: str, chance: str) -> str:
    """The words for how the chance of acceptance follows from the two printed numbers, which are rounded."""
    if chance[0] in BOUNDS:
        return SENTENCES[BOUNDS[chance[0]]]
    return SENTENCES["exactly" if divides(target, drafted, chance) else "about"]


def rule_title(step: Step, token: DraftToken, emitted: EmittedToken | None = None) -> Sentence:
    """The sentence under any other rule: the chance of acceptance, u if the rule draws one, and the replacement."""
    rule = facts_of(step.settings.rule)
    is_accepted = token.status == "accepted"
    verdict, values = _verdict(token, emitted)
    if rule.judges_graded:
        outcome = " was accepted with it." if is_accepted else " was rejected."
        return say(f"{GRADED}[token]{outcome}", **values)
    if not emitted and not step.truncated:
        verdict = f"{token.status}."
    if rule.writes_most_likely:
        enough = " likely enough: " if is_accepted else " not likely enough: "
        return say(f"{NO_DRAW}[token]{enough}{verdict}", **values)
    chance, u = random_draw(token.accept_prob or 0.0, token.u or 0.0)
    before, after = rule.acceptance or ("The rule “{rule}” accepts ", " {chance} of the time.")
    if is_accepted and (token.u or 0.0) >= (token.accept_prob or 0.0):
        # block verification tests later tokens too
        verdict = "not here, but a later test passed, so this token is accepted too."
    own = percent(chance_accepted(step, token))
    values |= {"rule": rule.name.replace("_", " "), "chance": chance, "own": own, "u": u}
    return say(f"{before}[token]{after}{SENTENCES['fell']}{verdict}", **values)


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
    values = {"token": quote(token), "q": share_words(token.q), "p": share_words(token.p)}
    wrote = SENTENCES["wrote"] + (SENTENCES["at"] if token.q is not None else "")
    gives = SENTENCES["target gives"] if token.p is not None else ""
    node = token.parent
    while node >= 0 and step.draft[node].status != "rejected":
        node = step.draft[node].parent
    if node < 0:
        return say(f"{wrote}, but the text took another branch: not judged.{gives}", **values), []
    values["rejected"] = quote(step.draft[node])
    return say(wrote + SENTENCES["behind"] + gives, **values), [SENTENCES["dropped"]]


def outcome_words(step: Step, node: int) -> tuple[Sentence, Sentence]:
    """What became of a drafted token in a record without probabilities, and how sure the draft was of it."""
    token = step.draft[node]
    checked = step.evidence.get("checked")
    values = {"token": quote(token), "checked": str(checked)}
    if token.status == "ignored" and type(checked) is int and node >= checked:
        title, note = say(SENTENCES["not checked"], **values), []
    elif token.status == "ignored":
        title, note = ignored_words(step, token)
    else:
        last = last_token(step)
        values["emitted"] = "" if last is None else quote(last)
        title, note = say(SENTENCES[f"was {token.status}"], **values), []
    confidence = step.evidence.get("confidence")
    if isinstance(confidence, list) and len(confidence) == len(step.draft):
        sure = confidence[node]
        if type(sure) in (int, float) and (words := share_words(sure)):
            note = join([note, say(SENTENCES["sure"], sure=words)])
    return title, note


def written_words(step: Step, last: EmittedToken) -> Sentence:
    """The sentence for the target's own token in a record without probabilities."""
    rejected = last_rejected(step)
    values = {"token": quote(last), "rejected": "" if rejected is None else quote(rejected)}
    return say(SENTENCES[f"foreign {last.kind}"], **values)


def drawn_title(step: Step, last: EmittedToken, share: float) -> Sentence:
    """The last token of the step, and the distribution that it was drawn from, where it has `share`."""
    rule = facts_of(step.settings.rule)
    values = {"token": quote(last), "share": percent(share)}
    if last.kind == "resampled":
        rejected = last_rejected(step)
        values["rejected"] = quote(rejected) if rejected else "the draft"
        return say(SENTENCES["resampled"] + rule.replaces, **values)
    probabilities = ", its most likely token." if rule.writes_most_likely else SENTENCES["drawn"]
    if last.kind == "bonus":
        values["number"] = str(sum(token.status == "accepted" for token in step.draft))
        lead = _bonus_words(step)
    elif size := num_refused(step):
        lead = f"The target rejected a reasoning step of {size} tokens. It writes its own, beginning with [token]"
    elif rule.judges_graded and step.evidence.get("verdict") == WAITING:
        lead = "The target rejected a reasoning step and is still writing its own: [token]"
    elif why := why_nothing(step):
        lead = f"Nothing was drafted here, as {why}: the target wrote [token] itself"
    else:
        lead = SENTENCES["nothing drafted"]
    return say(lead + probabilities, **values)


def _bonus_words(step: Step) -> str:
    """The words before a bonus token, and the token."""
    if grade_of(step) == KEPT:
        return "The target accepted the whole reasoning step of {number} tokens and adds [token]"
    num_accepted = sum(token.status == "accepted" for token in step.draft)
    return SENTENCES["all accepted" if num_accepted > 1 else "one accepted"]


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
        return say(f"[token]{rule.replaces}", token=quote(last), share=percent(share))
    if not residual:
        return []
    words = SENTENCES["most likely" if step.settings.temperature == 0 else "hatched"]
    return say(words, token=quote(last), share=percent(residual))


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
    return [SENTENCES["behind the end"]]


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


def _verdict(token: DraftToken, emitted: EmittedToken | None) -> tuple[str, dict[str, str]]:
    """The words for whether the token was accepted, if not with the one in its place; and both tokens, to fill in."""
    values = {"token": quote(token), "emitted": "" if emitted is None else quote(emitted)}
    if token.status == "accepted":
        return SENTENCES["accepted"], values
    if emitted is None:
        return SENTENCES["ended"], values
    if emitted.node is None:
        return SENTENCES["replaced"], values
    return "rejected; its sibling [emitted] was accepted.", values
