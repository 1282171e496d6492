"""Numbers and token texts as words for the page: percentages, visible whitespace, sentences with a trace's own numbers.

Token texts are untrusted: characters that would steer the page or the reading direction are written out. A sentence is
a list of texts; every second one is a token or a number to set off.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from specviz.drafters import METHODS, facts_of, split_draft
from specviz.drafters.method import Method
from specviz.drafters.params import IN_TURN, LEFT_OUT, TOGETHER
from specviz.request import RunSettings
from specviz.rules.facts import FACTS, RuleFacts
from specviz.trace import Settings, Step, Token
from specviz.trace.counters import REFUSED, grade_of

MOST_REFUSED = 10**6
MOST_LABEL = 48  # characters of a token in a cell, a row or a sentence
LINE_BREAK = "\n"
GLYPHS = {LINE_BREAK: "⏎", "\r": "␍", "\t": "⇥"}
STEERING = ("Cc", "Cs", "Co", "Cn", "Zl", "Zp")
JOINERS = "\u200c\u200d"  # they stay: emoji and scripts need them
SPACE = "␣"
NO_BREAK = "\u00a0"
PERCENT = f"{NO_BREAK}%"
WHOLES = [f"{number}{PERCENT}" for number in range(101)]
TENTHS = [f"{number / 10}{PERCENT}" for number in range(1_001)]
BELOW_ALL = f"<{TENTHS[1]}"
ABOVE_ALL = f">{TENTHS[-2]}"
ROUGH = 0.05  # relative; a share that was rounded by more misleads
TINY = 1e-5  # a smaller share is called less than 0.001 %
NEAR_TIE = 1e-6  # so close to a tie, a product of floats may lie on its other side
HALF_UP = 1e-9  # added so that 62.5 reads 63, as people round
ROUND_UP = 0.5 + HALF_UP  # added before the digits behind the point are dropped
CHANGE_NAMES = {
    "k": "K",
    "draft_model": "draft",
    "target": "target",
    "method": "method",
    "rule": "rule",
    **{
        name: name.replace("_k", "-k").replace("_p", "-p").replace("_", " ")
        for name in RunSettings.ALL_SAMPLING
    },
}
OF_TARGET = "as the target's"
VERDICTS = {  # kind of draft -> the words of a headline after K
    "chain": "{tokens} ahead. The large target model checks them all in one pass. It accepts those that pass and "
    "resamples the first that fails. ",
    "token tree": "{tokens} deep. The large target model checks all branches in one pass. It accepts the path that "
    "passes and adds a token of its own. ",
    "reasoning step": "{tokens}. The large target model grades each one, then accepts it whole or writes its own. ",
}
ALONE = "as if the target had written alone"
LOSSY = "This rule is lossy: the text is not distributed as if the target had written alone."
FOREIGN = "Another engine drafted with K = "
NOT_TOLD = (
    ". Its record tells which were accepted, but no probabilities and no sampling, so nothing is said "
    "of the text's distribution."
)
EXACT_AGAIN = "This rule is exact, but earlier steps were lossy."
TYPED = "typed words"  # the method of a game in which a person drafts
TYPIST = "You type up to "
ENDINGS = {
    "length": "done: length reached",
    "eos": "done: the model ended its text",
    "stop": "done: a stop text was reached",
    "context": "the model's context is full",
    "time": "the time is up",
    "stopped": "stopped",
    "error": "ended by an error",
}
SPEECH = {  # one step for a screen reader, in parts
    "step": "Step {number}: ",
    "nothing": "nothing drafted",
    "some": "{accepted} of {drafted} accepted",
    "rejected": ", {tokens} rejected",
    "resampled": ", resampled {tokens}",
    "bonus": ", bonus {tokens}",
    "plain": ", target wrote {tokens}",
}
TITLES = {"method": METHODS, "rule": FACTS}
Sentence = list[str]


def quantity(number: int, thing: str) -> str:
    """ "1 token", "2,560 tokens" """
    ending = "" if number == 1 else "s"
    return f"{number:,} {thing}{ending}"


def percent(share: float) -> str:
    """A share in percent: 0.634 -> "63 %", 0.0634 -> "6.3 %"; 0 % and 100 % only if it is exactly that."""
    if 0.0005 <= share < 0.0995 or 0.995 <= share < 0.9995:
        return TENTHS[int(1000 * share + ROUND_UP)]
    if 0 < share < 0.0005:
        return BELOW_ALL
    if 0.9995 <= share < 1 - 1e-9:
        return ABOVE_ALL
    if 0 <= share <= 1:
        return WHOLES[int(100 * share + ROUND_UP)]
    return f"{_hundredths(share, 0)}{PERCENT}"


def share_words(share: float | None) -> str:
    """A share in percent; "" for None and for a number that is no share."""
    if share is None or not 0 <= share <= 1:
        return ""
    return percent(share)


def shorten(value: float, digits: int = 2) -> float:
    """Rounds a number below a million to 1 or 2 digits: the same float as `round` gives, in half the time."""
    scale = 100 if digits == 2 else 10
    scaled = value * scale + 0.5
    whole = int(scaled)
    if NEAR_TIE < scaled - whole < 1 - NEAR_TIE:
        return whole / scale
    return round(value, digits)


def duration(seconds: float) -> str:
    """A time for people, without false digits: "less than 1 s", "42 s", "3 min"."""
    if seconds < 1:
        return f"less than 1{NO_BREAK}s"
    if seconds < 100:
        return f"{seconds:.0f}{NO_BREAK}s"
    return f"{seconds / 60:.0f}{NO_BREAK}min"


def between_words(interval: tuple[float, float]) -> str:
    """An interval of shares in words."""
    low, high = interval
    return f"{percent(low)} to {percent(high)}"


def percents(first: float, second: float) -> tuple[str, str]:
    """Two shares as percent numbers without the sign, with few digits, but enough to tell different shares apart."""
    for more_digits in range(7):
        words = (_round_share(first, more_digits), _round_share(second, more_digits))
        if words[0] != words[1] or first == second:
            break
    return words


def _round_share(share: float, more_digits: int) -> str:
    """The share with at least so many more digits, and as many as it needs to be true within ROUGH."""
    for digits in range(more_digits, 7):
        word = _hundredths(share, digits)
        if share < TINY or abs(float(word) - 100 * share) <= ROUGH * 100 * share:
            break
    return word


def divides(part: str, whole: str, words: str) -> bool:
    """Whether the two printed numbers, divided, give the percentage that is printed in `words`."""
    number = words.removesuffix(PERCENT)
    _, _, decimals = number.partition(".")
    share = 100 * float(part) / float(whole)
    return f"{share + HALF_UP:.{len(decimals)}f}" == number


def _hundredths(share: float, more_digits: int) -> str:
    """The share in percent: one decimal below ten and close to a hundred, else none; and `more_digits`."""
    fine = 0 < share < 0.0995 or 0.995 <= share < 1 - 1e-9
    return f"{100 * share + HALF_UP:.{fine + more_digits}f}"


@lru_cache(maxsize=1 << 12)
def random_draw(chance: float, u: float) -> tuple[str, str]:
    """The chance and the random draw `u`, with enough digits to see which is larger."""
    words = (percent(chance), f"{u:.2f}")
    for digits in range(1, 7):
        bound = float(words[0].strip("<>").removesuffix(PERCENT))
        fell = 100 * float(words[1])
        if bound != fell and (fell < bound) == (u < chance):
            break
        words = (f"{100 * chance:.{digits}f}{PERCENT}", f"{u:.{digits + 2}f}")
    return words


def reveal(text: str) -> str:
    """The text with control and direction characters written out; ordinary spaces stay."""
    if text.isprintable():
        return text
    return "".join(_visible_char(char) for char in text)


def _visible_char(char: str) -> str:
    category = unicodedata.category(char)
    steers = category in STEERING or (category == "Cf" and char not in JOINERS)
    return GLYPHS.get(char, f"⟨{ord(char):04X}⟩") if steers else char


def label(text: str, half: str | None = None) -> str:
    """A token as one short visible word: spaces at its ends as ␣, line breaks as ⏎, half characters as <F0 9F>."""
    if half and (not text or "\ufffd" in text):
        pairs = [half[i : i + 2].upper() for i in range(0, min(len(half), 24), 2)]
        return f"<{' '.join(pairs)}>"
    return _word(text[: MOST_LABEL + 1])


def draft_label(name: str) -> str:
    """The name of a draft as one short visible word: METHOD:HEADS,NAME=VALUE as "HEADS, NAME VALUE"."""
    method, heads, pairs = split_draft(name)
    if not pairs:
        return label(name)
    words = [pair.replace("=", " ").replace("_", " ") for pair in pairs]
    return label(", ".join([heads or METHODS[method].title, *words]))


@lru_cache(maxsize=1 << 14)
def _word(text: str) -> str:
    shown = re.sub("^ +| +$", lambda spaces: SPACE * len(spaces[0]), reveal(text))
    return shown if len(shown) <= MOST_LABEL else f"{shown[: MOST_LABEL - 1]}…"


def prose(text: str) -> str:
    """Text for reading: line breaks shown and kept, all other steering characters written out."""
    lines = [reveal(line) for line in text.split(LINE_BREAK)]
    return f"{GLYPHS[LINE_BREAK]}{LINE_BREAK}".join(lines)


def token_label(token: Token) -> str:
    return label(token.text, token.bytes)


def quote(token: Token) -> str:
    """A token inside a sentence: without its leading space, and in quotation marks if it is no word."""
    return _quote(token_label(token))


@lru_cache(maxsize=1 << 14)
def _quote(shown: str) -> str:
    word = shown.removeprefix(SPACE) if shown.strip(SPACE) else shown
    return word if any(char.isalnum() for char in word) else f"“{word}”"


def headline(settings: Settings, *, was_lossy: bool = False, rounding: str = "") -> Sentence:
    """The sentence that says how this run drafts and verifies, with its K.

    was_lossy: earlier steps were made under a lossy rule. rounding: how far the target's number format limits the
    promise, in words.
    """
    if settings.k == 0 or not settings.drafts:
        earlier = " Earlier steps were lossy." if was_lossy and settings.lossless else ""
        return [f"No draft: the target model writes every token itself, one per pass.{earlier}"]
    if settings.is_foreign:
        return [FOREIGN, str(settings.k), NOT_TOLD]
    method = facts_of(settings.method).under(settings.params)
    proposer = TYPIST if settings.method == TYPED else method.proposer
    tokens = " token" if settings.k == 1 else " tokens"
    verdict = VERDICTS[method.drafts_as].format(tokens=tokens)
    return [proposer, str(settings.k), verdict + _promise(settings, was_lossy, rounding)]


def _promise(settings: Settings, was_lossy: bool, rounding: str) -> str:
    if not settings.lossless:
        return LOSSY
    if was_lossy:
        return EXACT_AGAIN
    how = f"{ALONE} ({rounding})" if rounding else f"exactly {ALONE}"
    return f"The text is {how}." if settings.temperature == 0 else f"The text is distributed {how}."


def changes(before: Settings | None, step: Step) -> list[str]:
    """The settings that were changed live before this step: "K 4 → 8"."""
    if before is None:
        return []
    changed = []
    for name in step.changed:
        if name in CHANGE_NAMES:
            old = _value_words(name, getattr(before, name))
            new = _value_words(name, getattr(step.settings, name))
            changed.append(f"{CHANGE_NAMES[name]} {old} → {new}")
    return changed


def filter_words(settings: Settings | RunSettings) -> list[str]:
    """The filters of the target's distribution that are on: ["top-k 20", "min-p 0.1"]."""
    words = []
    for name, off in RunSettings.FILTERS.items():
        value = getattr(settings, name)
        if value != off:
            words.append(f"{CHANGE_NAMES[name]} {_value_words(name, value)}")
    return words


def own_sampling(settings: Settings) -> str:
    """The sampling of the draft alone: "draft temperature 0.5"; "" where it is as the target's."""
    words = []
    for name in RunSettings.DRAFT_SAMPLING:
        value = getattr(settings, name)
        if value is not None:
            words.append(f"{CHANGE_NAMES[name]} {value:g}")
    return ", ".join(words)


def _value_words(name: str, value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if value is None:
        return OF_TARGET if name in RunSettings.DRAFT_SAMPLING else "none"
    if name in TITLES:
        return title_of(str(value), TITLES[name])
    return label(str(value))


def title_of(name: str, known: Mapping[str, Method | RuleFacts]) -> str:
    """The title of a method or a rule; a name from elsewhere is made harmless."""
    if name in known:
        return known[name].title
    return label(name.replace("_", " "))


def speech(step: Step) -> str:
    """One step for a screen reader."""
    words = SPEECH["step"].format(number=step.index + 1) + _draft_speech(step)
    last = next((token for token in step.emitted if token.node is None), None)
    if last is not None:
        words += SPEECH[last.kind].format(tokens=quote(last))
    return f"{words}."


def _draft_speech(step: Step) -> str:
    """The outcome of a step's draft, or why there is none."""
    num_drafted = len(drafted_nodes(step))
    if not num_drafted:
        if size := num_refused(step):
            return f"a reasoning step of {size} tokens rejected"
        why = why_nothing(step)
        return SPEECH["nothing"] + (f", as {why}" if why else "")
    num_accepted = sum(token.status == "accepted" for token in step.draft)
    if step.is_tree:
        words = f"a path of {num_accepted} accepted, {num_drafted} drafted"
    else:
        words = SPEECH["some"].format(accepted=num_accepted, drafted=num_drafted)
    rejected = [quote(token) for token in step.draft if token.status == "rejected"]
    if rejected:
        words += SPEECH["rejected"].format(tokens=", ".join(rejected[:4]))
    return words


def drafted_nodes(step: Step) -> list[int]:
    """The draft's nodes that were proposed to the target: all but scratch nodes."""
    return [node for node, token in enumerate(step.draft) if token.status != "scratch"]


def how_filled(step: Step) -> Literal["together", "in turn"] | None:
    """How the draft of a step was filled in one pass; None where it was written token by token, or nothing tells.

    Medusa's older records do not say it: their heads had no bias yet.
    """
    told = step.evidence.get("filled")
    if told == IN_TURN:
        return IN_TURN
    is_bare = "heads" in step.evidence and step.settings.params.get("bias", LEFT_OUT) == LEFT_OUT
    return TOGETHER if told == TOGETHER or is_bare else None


def why_nothing(step: Step) -> str:
    """Why a step has no draft, as a clause; "" where it has one, and where its record does not say."""
    if drafted_nodes(step):
        return ""
    limit = step.evidence.get("full")
    unknown = step.evidence.get("unknown")
    if type(limit) is int and limit > 0:
        return f"the draft model's context of {quantity(limit, 'token')} is full"
    if type(unknown) is int and unknown >= 0:
        return f"the draft model does not know the token id {unknown:,}, which stands in the text"
    doubt = step.evidence.get("doubt")
    if type(doubt) is float and 0 <= doubt <= 1:
        return f"the head expects that its first token would be accepted {percent(doubt)} of the time: too seldom"
    return ""


def num_refused(step: Step) -> int:
    """The size of the drafted reasoning step that the target rejected as a whole, in tokens; 0 without one."""
    size = step.evidence.get("tokens")
    is_size = type(size) is int and 0 < size <= MOST_REFUSED
    return size if grade_of(step) == REFUSED and is_size else 0


def state_words(name: str, message: str, ahead: int) -> str:
    """The state of a run, as one short phrase."""
    words = reveal(message) or ("waiting" if name == "queued" else label(name))
    return f"{words}, {ahead} ahead" if ahead else words
