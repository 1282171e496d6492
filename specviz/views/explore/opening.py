"""The opening: one step of a run in at most seven beats, so that a newcomer sees what is drafted, judged and resampled.

A way of seeing any step: every number is the run's own, and a beat that has nothing to show in a step is left out.
Gives props for opening.js, which moves from beat to beat and computes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from specviz.drafters import facts_of as method_facts
from specviz.models.chat import as_messages
from specviz.rules.facts import facts_of
from specviz.trace import DraftToken, EmittedToken, Header, Step, Trace
from specviz.trace.metrics import METRICS, count, metrics
from specviz.views.blocks import Props
from specviz.views.explore.speed import speed_words, two_digits
from specviz.views.explore.steps import most_telling
from specviz.views.explore.titles import last_token, telling_rejection
from specviz.views.words import (
    drafted_nodes,
    label,
    percent,
    prose,
    quote,
    random_draw,
    share_words,
    token_label,
    why_nothing,
)

SLOW = "A large model, the target, writes one token at a time. Each token costs one full pass: {cost} in this run."
DRAFT = "{who} drafts the next {count}. Below each stands its probability. A guess takes {cost}, not {passes}."
DRAFT_FREE = "{who} drafts the next {count}. That costs no pass of the target."
DRAFT_TREE = "{who} drafts a tree of {count}. Shown is the branch that the target follows."
CHECK = "The target checks once per step: one pass reads all {count} guesses. It has a probability of its own for each."
CHECK_ONE = "The target checks once per step: one pass reads the guess. It has a probability of its own for it."
JUDGE = {
    "overlap": "The bar is the draft's probability for {token}; solid is what both models agree on. Accept {token} if "
    "the random draw falls in the solid part.",
    "alone": "Solid is the target's probability for {token}. Accept it if the random draw falls there.",
    "greedy": "At temperature 0 the target accepts only its own most likely token. No random draw is needed.",
    "other": "The rule “{rule}” accepts this token {chance} of the time: the solid part.",
    "no draw": "The rule “{rule}” accepts a token that the target finds likely enough. It draws nothing.",
}
REJECT = {
    "overlap": "{token} is rejected: the random draw falls outside the solid part. "
    "The draft gave it {draft}, the target {target}.",
    "alone": "{token} is rejected: the random draw falls outside the solid part. The target gave it {target}.",
    "greedy": "{token} is not the target's most likely token. It is rejected.",
    "other": "{token}: the rule “{rule}” rejects it.",
}
NONE_REJECTED = "Every guess is accepted: {count} of {count}."
DROPPED = " The guesses after it are dropped: they continue from it."
RESAMPLED = {
    "overlap": "The target model writes {token} instead. It is drawn from the shortfall: what the target wanted and "
    "the draft left out.",
    "alone": "The target model writes {token} instead. It is drawn from its probabilities of all other tokens.",
    "greedy": "The target writes its own most likely token instead: {token}.",
    "other": "The rule “{rule}” writes {token} instead.",
}
BONUS = "The same pass also gives the next token for free: {token}, the bonus."
PLAIN = "Nothing was drafted here{why}. The target wrote {token} itself."
POINT = "{tokens} for one pass. {why} the text is distributed exactly as if the target had written alone."
WHY = {
    "overlap": "What both models agree on and the shortfall add up to the target's own probabilities. So",
    "greedy": "Each is the target's own most likely token. So",
    "other": "And",
}
POINT_LOSSY = "{tokens} for one pass. But this rule is lossy: the text is not distributed as the target's own."
DRAFTERS = {
    "draft": "A small draft model",
    "heads": "A draft head, a small part added to the target,",
}
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
WRITTEN = 3  # tokens of the text so far that the first beat writes one by one
MOST_BEFORE = 110  # characters of the question and of the answer so far
MOST_SHARES = 4
OPEN = 0.9  # a chance below this leaves something to guess
SEEN = 0.1  # of a bar: a solid part that can be seen
LEAST_COST = 0.01  # milliseconds for a drafted token; below, there is nothing to tell


@dataclass(frozen=True, slots=True)
class Beat:
    """One moment. chips: the step's tokens as they stand then, each [text, status, words below it], with the trace's
    statuses and `drafted`. bar: the random draw on the token that is judged. shares: what a replacement was drawn from,
    each [text, percent of the longest, words, whether it was drawn]. sweep: the target makes a pass."""

    name: str
    sentence: str
    chips: Sequence[Sequence[str]] = ()
    bar: Mapping[str, Any] = field(default_factory=dict)
    shares: Sequence[Sequence[Any]] = ()
    numbers: Sequence[Sequence[str]] = ()
    sweep: bool = False

    def props(self) -> Props:
        return {name: value for name in self.__slots__ if (value := getattr(self, name))}


def opening(trace: Trace, index: int) -> Props:
    """The beats of step `index`, 0 <= index < len(trace.steps)."""
    before = [token for step in trace.steps[:index] for token in step.emitted]
    written = before[-WRITTEN:] if len(before) > WRITTEN else []
    return {
        "step": index + 1,
        "question": _end_of(question_of(trace.header)),
        "before": _end_of("".join(token.text for token in before[: len(before) - len(written)])),
        "written": [token_label(token) for token in written],
        "beats": [beat.props() for beat in _Opening(trace, trace.steps[index]).beats()],
    }


def telling_step(trace: Trace) -> int:
    """The first step with everything in it: text before it, a token accepted that might have been rejected, a rejected
    one that might have been accepted, and a dropped one. Else the first that has most of that."""
    return max(range(len(trace.steps)), key=lambda index: (_num_told(trace.steps[index]), -index))


def _num_told(step: Step) -> int:
    statuses = {token.status for token in step.draft}
    was_open = any(
        token.status == "accepted" and SEEN < (token.accept_prob or 0) < OPEN
        for token in step.draft[:1]
    )
    is_seen = any(
        token.status == "rejected" and (token.accept_prob or 0) > SEEN for token in step.draft
    )
    return (
        len(statuses & {"accepted", "rejected", "ignored"}) + was_open + is_seen + (step.index > 0)
    )


class _Opening:
    """One step's beats. The way a token is judged is one of the keys of JUDGE."""

    def __init__(self, trace: Trace, step: Step) -> None:
        self._trace, self._step = trace, step
        self._rule, self._last, self._cut = (
            facts_of(step.settings.rule),
            last_token(step),
            telling_rejection(step),
        )
        self._shown = [step.draft[node] for node in most_telling(step)[0]]
        self._passes = f"{two_digits(median(each.timing.verify_ms for each in trace.steps))} ms"
        self._judged = [token for token in self._shown if token.is_judged]

    def beats(self) -> Iterator[Beat]:
        step = self._step
        yield Beat("slow", SLOW.format(cost=self._passes))
        if self._shown:
            drafted = [
                [token_label(token), "drafted", share_words(token.q)] for token in self._shown
            ]
            yield Beat("draft", self._draft_sentence(), drafted)
            num_read = len(drafted_nodes(step))
            check = CHECK_ONE if num_read == 1 else CHECK.format(count=_count(num_read))
            yield Beat("check", check, drafted, sweep=True)
        if self._judged:
            yield self._judge(self._judged[0], "judge", self._words(JUDGE, self._judged[0]))
            yield self._verdict()
        if self._last is not None:
            yield self._last_beat()
        yield Beat(
            "point",
            self._point(),
            self._chips(len(self._shown), with_last=True),
            numbers=self._numbers(),
        )

    def _draft_sentence(self) -> str:
        step, method = self._step, method_facts(self._step.settings.method)
        who = next(
            (words for role, words in DRAFTERS.items() if role in method.roles), method.title
        )
        number = len(drafted_nodes(step))
        if step.is_tree:
            return DRAFT_TREE.format(who=who, count=_tokens(number))
        cost = step.timing.draft_ms / number
        known = {
            "who": who,
            "count": "token" if number == 1 else _tokens(number),
            "cost": f"{two_digits(cost)} ms",
        }
        known["passes"] = self._passes
        return (DRAFT if cost >= LEAST_COST else DRAFT_FREE).format(**known)

    def _judge(self, token: DraftToken, name: str, sentence: str) -> Beat:
        """The moment at which a token is judged, all before it being settled."""
        bar = {
            "token": token_label(token),
            "accepted": token.status == "accepted",
            "target": percent(token.p_judged or 0.0),
        }
        bar |= {} if token.q is None else {"draft": percent(token.q)}
        if self._rule.uses_draw and self._step.settings.temperature > 0:
            chance, u = token.accept_prob or 0.0, token.u or 0.0
            bar |= {
                "fill": round(100 * chance, 3),
                "x": round(100 * u, 3),
                "u": random_draw(chance, u)[1],
            }
        return Beat(name, sentence, self._chips(self._shown.index(token), judging=True), bar)

    def _verdict(self) -> Beat:
        if self._cut is None:
            count = _count(sum(token.status == "accepted" for token in self._judged))
            return Beat("verdict", NONE_REJECTED.format(count=count), self._chips(len(self._shown)))
        sentence = self._words(REJECT, self._cut)
        is_last = self._shown[-1] is self._cut
        beat = self._judge(self._cut, "verdict", sentence if is_last else sentence + DROPPED)
        return Beat(beat.name, beat.sentence, self._chips(len(self._shown)), beat.bar)

    def _last_beat(self) -> Beat:
        last, chips = self._last, self._chips(len(self._shown), with_last=True)
        if last.kind != "resampled":
            why = why_nothing(self._step)
            words = BONUS if last.kind == "bonus" else PLAIN
            return Beat(
                "last", words.format(token=_quoted(last), why=f", as {why}" if why else ""), chips
            )
        return Beat("last", self._words(RESAMPLED, self._cut, last), chips, shares=self._shares())

    def _shares(self) -> list[list[Any]]:
        """The law that the replacement was drawn from: its likeliest tokens, and the one that was drawn."""
        if self._step.settings.temperature == 0:
            return []
        rows = next((each.top for each in self._step.positions if each.child is None), ())
        distributions = [(p, id_ == self._last.id, label(text)) for id_, text, p, *_ in rows]
        distributions.sort(key=lambda distribution: (not distribution[1], -distribution[0]))
        shown = sorted(distributions[:MOST_SHARES], key=lambda distribution: -distribution[0])
        most = max((p for p, *_ in shown), default=0.0) or 1.0
        return [[text, round(100 * p / most, 1), percent(p), drawn] for p, drawn, text in shown]

    def _words(
        self, table: Mapping[str, str], token: DraftToken | None, named: EmittedToken | None = None
    ) -> str:
        """A sentence on how `token` was judged that names `named`, or the token itself."""
        words, name = table.get(self._way(token), table["other"]), named or token
        chance = percent((token and token.accept_prob) or 0.0)
        gave = {
            "draft": share_words(token and token.q),
            "target": share_words(token and token.p_judged),
        }
        return words.format(
            rule=self._rule.title, token=name and _quoted(name), chance=chance, **gave
        )

    def _way(self, token: DraftToken | None) -> str:
        if self._step.settings.temperature == 0 and self._step.settings.lossless:
            return "greedy"
        if not self._rule.uses_draw:
            return "no draw"
        if not self._rule.is_plain:
            return "other"
        return "overlap" if token is None or token.q is not None else "alone"

    def _chips(
        self, num_settled: int, *, judging: bool = False, with_last: bool = False
    ) -> list[list[str]]:
        """The first tokens as judged, the others as drafted. with_last: the step's own in place of dropped ones."""
        chips = []
        for place, token in enumerate(self._shown):
            is_settled = place < num_settled
            if with_last and token.status == "ignored":
                continue
            status = (
                token.status
                if is_settled
                else "judged"
                if judging and place == num_settled
                else "drafted"
            )
            chips.append([token_label(token), status, "" if is_settled else share_words(token.q)])
        if with_last and self._last is not None:
            chips.append([token_label(self._last), self._last.kind, ""])
        return chips

    def _point(self) -> str:
        tokens = _tokens(len(self._step.emitted))
        why = WHY.get(self._way(self._judged[0]), WHY["other"]) if self._judged else WHY["other"]
        return (POINT if self._step.settings.lossless else POINT_LOSSY).format(
            tokens=tokens.capitalize(), why=why
        )

    def _numbers(self) -> list[list[str]]:
        """The three numbers of the whole run; one that it does not have is left out."""
        counters = count(self._trace)
        values, speed = metrics(counters), speed_words(counters, recorded=True)
        names = ("tokens_per_target_call", "acceptance_rate_judged")
        known = [
            [METRICS[name].spell(values[name]), f"{METRICS[name].label}, whole run"]
            for name in names
            if values[name] is not None
        ]
        return [*known, [speed["value"], speed["words"]]] if speed["value"] else known


def question_of(header: Header) -> str:
    """What a person asked; of a conversation the last turn, without the form in which a chat model reads it."""
    asked = header.request.get("prompt")
    if not header.request.get("chat") or not isinstance(asked, str):
        return header.prompt.text
    messages = as_messages(asked)
    return messages if isinstance(messages, str) else messages[-1]["content"]


def _end_of(text: str) -> str:
    return (
        prose(text)
        if len(text) <= MOST_BEFORE
        else f"… {prose(text[-MOST_BEFORE:].partition(' ')[2])}"
    )


def _quoted(token: DraftToken | EmittedToken) -> str:
    word = quote(token)
    return word if word.startswith("“") else f"“{word}”"


def _count(number: int) -> str:
    return COUNTS[number] if number < len(COUNTS) else f"{number:,}"


def _tokens(number: int) -> str:
    return f"{_count(number)} token{'' if number == 1 else 's'}"
