"""Numbers and token texts as words for the page: percentages, visible whitespace, sentences with a trace's own numbers.

Token texts are untrusted: what would steer the page or the reading direction is written out. A sentence is a list of
texts; every second one is a token or a number to set off.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

from specviz.drafters import METHODS, facts_of
from specviz.drafters.method import Method
from specviz.request import RunSettings
from specviz.rules.facts import FACTS, RuleFacts
from specviz.trace import Settings, Step, Token
from specviz.trace.counters import REFUSED, grade_of

MOST_REFUSED = 10**6
MOST_LABEL = 48  # characters of a token in a cell, a row or a sentence
LINE_BREAK = "\n"
GLYPHS = {LINE_BREAK: "⏎", "\r": "␍", "\t": "⇥"}
STEERING = ("Cc", "Cs", "Co", "Cn", "Zl", "Zp")
FORMAT_KEPT = "\u200c\u200d"  # joiners belong to emoji and to scripts
SPACE = "␣"
PERCENT = "\u00a0%"
ROUGH = 0.05  # a share rounded by more than this part of itself misleads
TINY = 1e-5  # shares below this are called less than 0.001 %
HALF_UP = 1e-9  # 62.5 reads 63, as people round
CHANGE_NAMES = {
    "k": "K",
    "draft_model": "draft",
    "target": "target",
    "method": "method",
    "rule": "rule",
    **{name: name.replace("top_", "top-").replace("_", " ") for name in RunSettings.ALL_SAMPLING},
}
OF_TARGET = "as the target's"
VERDICTS = {  # what a headline says after K, by what is drafted
    "chain": "{tokens} ahead. The large target model checks them all in one pass. It accepts those that pass and "
    "resamples the first that fails. ",
    "token tree": "{tokens} deep. The large target model checks all branches in one pass. It accepts the path that "
    "passes and adds a token of its own. ",
    "reasoning step": "{tokens}. The large target model grades each one, then accepts it whole or writes its own. ",
}
ALONE = "as if the target had written alone"
LOSSY = "This rule is lossy: the text is not distributed as if the target had written alone."
EXACT_AGAIN = "This rule is exact, but earlier steps were lossy."
TYPED, TYPIST = "typed words", "You type up to "  # a game, whose draft model is a person
ENDINGS = {
    "length": "done: length reached",
    "eos": "done: the model ended its text",
    "stop": "done: a stop text was reached",
    "context": "the model's context is full",
    "time": "the time is up",
    "stopped": "stopped",
    "error": "ended by an error",
}
TITLES = {"method": METHODS, "rule": FACTS}
Sentence = list[str]


def quantity(number: int, thing: str) -> str:
    """ "1 token", "2,560 tokens" """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


@lru_cache(maxsize=1 << 12)
def percent(share: float) -> str:
    """0.634 -> "63 %", 0.0634 -> "6.3 %"; never 0 % or 100 % for what is neither."""
    if 0 < share < 0.0005:
        return f"<0.1{PERCENT}"
    if 0.9995 <= share < 1 - 1e-9:
        return f">99.9{PERCENT}"
    return f"{_hundredths(share, 0)}{PERCENT}"


def share_words(share: float | None) -> str:
    """A share in percent; "" for what is none."""
    return percent(share) if share is not None and 0 <= share <= 1 else ""


def percents(first: float, second: float) -> tuple[str, str]:
    """Both shares as percent numbers without the sign, with as few digits as each needs, and as tell them apart."""
    for more in range(7):
        words = _round_share(first, more), _round_share(second, more)
        if words[0] != words[1] or first == second:
            break
    return words


def _round_share(share: float, more_digits: int) -> str:
    for digits in range(more_digits, 7):
        word = _hundredths(share, digits)
        if share < TINY or abs(float(word) - 100 * share) <= ROUGH * 100 * share:
            break
    return word


def divides(part: str, whole: str, words: str) -> bool:
    """Whether these two printed numbers give, when divided, what is printed as a percentage in `words`."""
    number = words.removesuffix(PERCENT)
    return (
        f"{100 * float(part) / float(whole) + HALF_UP:.{len(number.partition('.')[2])}f}" == number
    )


def _hundredths(share: float, more_digits: int) -> str:
    """One decimal below ten percent and close to a hundred, else whole numbers; and `more_digits`."""
    fine = 0 < share < 0.0995 or 0.995 <= share < 1 - 1e-9
    return f"{100 * share + HALF_UP:.{fine + more_digits}f}"


def random_draw(chance: float, u: float) -> tuple[str, str]:
    """The chance and the random draw `u`, with enough digits to see which is larger."""
    words = percent(chance), f"{u:.2f}"
    for digits in range(1, 7):
        bound, fell = float(words[0].strip("<>").removesuffix(PERCENT)), 100 * float(words[1])
        if bound != fell and (fell < bound) == (u < chance):
            break
        words = f"{100 * chance:.{digits}f}{PERCENT}", f"{u:.{digits + 2}f}"
    return words


def reveal(text: str) -> str:
    """`text` with control and direction characters written out; ordinary spaces stay."""
    return text if text.isprintable() else "".join(map(_visible_char, text))


def _visible_char(char: str) -> str:
    category = unicodedata.category(char)
    steers = category in STEERING or (category == "Cf" and char not in FORMAT_KEPT)
    return GLYPHS.get(char, f"⟨{ord(char):04X}⟩") if steers else char


def label(text: str, half: str | None = None) -> str:
    """A token as one short visible word: spaces at its ends as ␣, line breaks as ⏎, half characters as <F0 9F>."""
    if half and (not text or "\ufffd" in text):
        return f"<{' '.join(half[i : i + 2].upper() for i in range(0, min(len(half), 24), 2))}>"
    return _word(text[: MOST_LABEL + 1])


@lru_cache(maxsize=1 << 14)
def _word(text: str) -> str:
    shown = re.sub("^ +| +$", lambda spaces: SPACE * len(spaces[0]), reveal(text))
    return shown if len(shown) <= MOST_LABEL else f"{shown[: MOST_LABEL - 1]}…"


def prose(text: str) -> str:
    """Text for reading: line breaks shown and kept, everything that steers written out."""
    return f"{GLYPHS[LINE_BREAK]}{LINE_BREAK}".join(map(reveal, text.split(LINE_BREAK)))


def token_label(token: Token) -> str:
    return label(token.text, token.bytes)


def quote(token: Token) -> str:
    """A token inside a sentence: without the space that most begin with, in quotation marks where it is no word."""
    shown = token_label(token)
    word = shown.removeprefix(SPACE) if shown.strip(SPACE) else shown
    return word if any(char.isalnum() for char in word) else f"“{word}”"


def headline(settings: Settings, *, was_lossy: bool = False, rounding: str = "") -> Sentence:
    """What this run does, with K in it. was_lossy: earlier steps were made under a lossy rule; rounding: what the
    target's number format leaves of the promise, in words."""
    if settings.k == 0 or not settings.drafts:
        earlier = " Earlier steps were lossy." if was_lossy and settings.lossless else ""
        return [f"No draft: the target model writes every token itself, one per pass.{earlier}"]
    method = facts_of(settings.method).under(settings.params)
    proposer = TYPIST if settings.method == TYPED else method.proposer
    verdict = VERDICTS[method.drafts_as].format(tokens=" token" if settings.k == 1 else " tokens")
    return [proposer, str(settings.k), verdict + _promise(settings, was_lossy, rounding)]


def _promise(settings: Settings, was_lossy: bool, rounding: str) -> str:
    if not settings.lossless or was_lossy:
        return EXACT_AGAIN if settings.lossless else LOSSY
    how = f"{ALONE} ({rounding})" if rounding else f"exactly {ALONE}"
    return f"The text is {'' if settings.temperature == 0 else 'distributed '}{how}."


def changes(before: Settings | None, step: Step) -> list[str]:
    """What was changed live before this step: "K 4 → 8"."""
    if before is None:
        return []
    now = step.settings
    known = [name for name in step.changed if name in CHANGE_NAMES]
    both = (
        (name, *(_value_words(name, getattr(each, name)) for each in (before, now)))
        for name in known
    )
    return [f"{CHANGE_NAMES[name]} {old} → {new}" for name, old, new in both]


def own_sampling(settings: Settings) -> str:
    """ "draft temperature 0.5": what the draft alone is sampled with; "" where it is as the target's."""
    own = {name: getattr(settings, name) for name in RunSettings.DRAFT_SAMPLING}
    return ", ".join(
        f"{CHANGE_NAMES[name]} {value:g}" for name, value in own.items() if value is not None
    )


def _value_words(name: str, value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if value is None:
        return OF_TARGET if name in RunSettings.DRAFT_SAMPLING else "none"
    return title_of(str(value), TITLES[name]) if name in TITLES else label(str(value))


def title_of(name: str, known: Mapping[str, Method | RuleFacts]) -> str:
    """What a method or a rule is called; a name from elsewhere is made harmless."""
    return known[name].title if name in known else label(name.replace("_", " "))


def speech(step: Step) -> str:
    """One step for a screen reader."""
    judged = [token for token in step.draft if token.is_judged]
    drafted = len(drafted_nodes(step))
    words = [f"Step {step.index + 1}: "]
    if drafted:
        num = sum(token.status == "accepted" for token in judged)
        words.append(
            f"a path of {num} accepted, {drafted} drafted"
            if step.is_tree
            else f"{num} of {drafted} accepted"
        )
        cut = [quote(token) for token in judged if token.status == "rejected"]
        words.append(f", {', '.join(cut[:4])} rejected" if cut else "")
    else:
        refused = num_refused(step)
        nothing = ", as ".join(filter(None, ("nothing drafted", why_nothing(step))))
        words.append(f"a reasoning step of {refused} tokens rejected" if refused else nothing)
    last = [token for token in step.emitted if token.node is None]
    if last:
        how = {"resampled": "resampled", "bonus": "bonus", "plain": "target wrote"}[last[0].kind]
        words.append(f", {how} {quote(last[0])}")
    return "".join(words) + "."


def drafted_nodes(step: Step) -> list[int]:
    """The draft's nodes that were proposed to the target: all but the scratch."""
    return [node for node, token in enumerate(step.draft) if token.status != "scratch"]


def why_nothing(step: Step) -> str:
    """Why a step has no draft, as a clause; "" where it has one, and where its record does not say."""
    if drafted_nodes(step):
        return ""
    limit, unknown = step.evidence.get("full"), step.evidence.get("unknown")
    if type(limit) is int and limit > 0:
        return f"the draft model's context of {quantity(limit, 'token')} is full"
    if type(unknown) is int and unknown >= 0:
        return f"the draft model does not know the token id {unknown:,}, which stands in the text"
    return ""


def num_refused(step: Step) -> int:
    """Tokens of the drafted reasoning step that the target refused as a whole; 0 where it refused none."""
    size = step.evidence.get("tokens")
    is_size = type(size) is int and 0 < size <= MOST_REFUSED
    return size if grade_of(step) == REFUSED and is_size else 0


def state_words(name: str, message: str, ahead: int) -> str:
    """The state of a run, as one short phrase."""
    words = reveal(message) or ("waiting" if name == "queued" else label(name))
    return f"{words}, {ahead} ahead" if ahead else words
