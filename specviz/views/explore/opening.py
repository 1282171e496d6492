"""The opening: one step of a run in at most seven beats, so that a newcomer sees what is drafted, judged and resampled.

It can show any step: every number is the run's own, and a beat with nothing to show is left out. `opening.js` moves
from beat to beat and computes nothing.
"""

from collections.abc import Iterator, Mapping
from statistics import median

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from specviz.drafters import facts_of as method_facts
from specviz.models.chat import as_messages
from specviz.rules.facts import facts_of
from specviz.trace import DraftToken, EmittedToken, Header, Step, Trace
from specviz.trace.metrics import METRICS, count, metrics
from specviz.views.explore.message import Beat, Chip, JudgedBar, Opening
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


def opening(trace: Trace, index: int) -> Opening:
    """The beats of step `index`, 0 <= index < len(trace.steps)."""
    before: list[EmittedToken] = []
    for step in trace.steps[:index]:
        before += step.emitted
    written = before[-WRITTEN:] if len(before) > WRITTEN else []
    earlier = before[: len(before) - len(written)]
    return Opening(
        step=index + 1,
        question=_end_of(question_of(trace.header)),
        before=_end_of("".join(token.text for token in earlier)),
        written=[token_label(token) for token in written],
        beats=list(_Beats(trace, trace.steps[index])),
    )


def telling_step(trace: Trace) -> int:
    """The first step that shows the most.

    A step may show text before it, a dropped token, an accepted token that might have been rejected, and a rejected
    token that might have been accepted.
    """
    numbers = [_num_shown(step) for step in trace.steps]
    return numbers.index(max(numbers))


def _num_shown(step: Step) -> int:
    """How many of the facts in `telling_step` this step shows."""
    statuses = {token.status for token in step.draft}
    number = len(statuses & {"accepted", "rejected", "ignored"})
    if step.draft:
        first = step.draft[0]
        number += first.status == "accepted" and SEEN < (first.accept_prob or 0) < OPEN
    rejected = [token for token in step.draft if token.status == "rejected"]
    number += any((token.accept_prob or 0) > SEEN for token in rejected)
    number += step.index > 0
    return number


class _Beats:
    """The beats of one step."""

    def __init__(self, trace: Trace, step: Step) -> None:
        self._trace = trace
        self._step = step
        self._rule = facts_of(step.settings.rule)
        self._last = last_token(step)
        self._rejected = telling_rejection(step)
        nodes, _ = most_telling(step)
        self._shown = [step.draft[node] for node in nodes]
        self._judged = [token for token in self._shown if token.is_judged]
        pass_ms = median(recorded.timing.verify_ms for recorded in trace.steps)
        self._pass_words = f"{two_digits(pass_ms)} ms"

    def __iter__(self) -> Iterator[Beat]:
        yield Beat("slow", SLOW.format(cost=self._pass_words))
        if self._shown:
            drafted = self._chips(0)
            yield Beat("draft", self._draft_sentence(), drafted)
            num_read = len(drafted_nodes(self._step))
            check = CHECK_ONE if num_read == 1 else CHECK.format(count=_count(num_read))
            yield Beat("check", check, drafted, sweep=True)
        if self._judged:
            first = self._judged[0]
            yield self._judge_beat(first, "judge", self._words(JUDGE, first))
            yield self._verdict_beat()
        if self._last is not None:
            yield self._last_beat()
        chips = self._chips(len(self._shown), with_last=True)
        yield Beat("point", self._point(), chips, numbers=self._numbers())

    def _draft_sentence(self) -> str:
        step = self._step
        method = method_facts(step.settings.method)
        who = method.title
        for role, words in DRAFTERS.items():
            if role in method.roles:
                who = words
                break
        number = len(drafted_nodes(step))
        if step.is_tree:
            return DRAFT_TREE.format(who=who, count=_tokens(number))
        count = "token" if number == 1 else _tokens(number)
        cost_ms = step.timing.draft_ms / number
        if cost_ms < LEAST_COST:
            return DRAFT_FREE.format(who=who, count=count)
        cost = f"{two_digits(cost_ms)} ms"
        return DRAFT.format(who=who, count=count, cost=cost, passes=self._pass_words)

    def _judge_beat(self, token: DraftToken, name: str, sentence: str) -> Beat:
        """The moment at which a token is judged; all tokens before it are settled."""
        draw = {}
        if self._rule.uses_draw and self._step.settings.temperature > 0:
            chance = token.accept_prob or 0.0
            u = token.u or 0.0
            _, u_words = random_draw(chance, u)
            draw = {"fill": round(100 * chance, 3), "x": round(100 * u, 3), "u": u_words}
        bar = JudgedBar(
            token=token_label(token),
            accepted=token.status == "accepted",
            target=percent(token.p_judged or 0.0),
            draft=UNSET if token.q is None else percent(token.q),
            **draw,
        )
        return Beat(name, sentence, self._chips(self._shown.index(token), judging=True), bar)

    def _verdict_beat(self) -> Beat:
        """The moment at which all tokens are judged."""
        chips = self._chips(len(self._shown))
        rejected = self._rejected
        if rejected is None:
            count = _count(sum(token.status == "accepted" for token in self._judged))
            return Beat("verdict", NONE_REJECTED.format(count=count), chips)
        sentence = self._words(REJECT, rejected)
        if self._shown[-1] is not rejected:
            sentence += DROPPED
        return replace(self._judge_beat(rejected, "verdict", sentence), chips=chips)

    def _last_beat(self) -> Beat:
        """The moment at which the target adds its own token."""
        last = self._last
        chips = self._chips(len(self._shown), with_last=True)
        if last.kind == "resampled":
            words = self._words(RESAMPLED, self._rejected, last)
            return Beat("last", words, chips, shares=self._shares())
        if last.kind == "bonus":
            return Beat("last", BONUS.format(token=_quoted(last)), chips)
        why = why_nothing(self._step)
        reason = f", as {why}" if why else ""
        return Beat("last", PLAIN.format(token=_quoted(last), why=reason), chips)

    def _shares(self) -> list[tuple[str, float, str, bool]] | UnsetType:
        """The distribution of the replacement: its most likely tokens, and the one that was drawn."""
        if self._step.settings.temperature == 0:
            return UNSET
        rows = next((draw.top for draw in self._step.positions if draw.child is None), ())
        shares = [(p, id_ == self._last.id, label(text)) for id_, text, p, *_ in rows]
        shares.sort(key=lambda share: (not share[1], -share[0]))
        shown = sorted(shares[:MOST_SHARES], key=lambda share: -share[0])
        longest = max((p for p, *_ in shown), default=0.0) or 1.0
        shares = []
        for p, drawn, text in shown:
            width = round(100 * p / longest, 1)
            shares.append((text, width, percent(p), drawn))
        return shares or UNSET

    def _words(
        self, table: Mapping[str, str], token: DraftToken | None, named: EmittedToken | None = None
    ) -> str:
        """A sentence on how `token` was judged that names `named`, or the token itself."""
        sentence = table.get(self._judging(token), table["other"])
        name = _quoted(named or token)
        if token is None:
            return sentence.format(
                rule=self._rule.title, token=name, chance=percent(0.0), draft="", target=""
            )
        return sentence.format(
            rule=self._rule.title,
            token=name,
            chance=percent(token.accept_prob or 0.0),
            draft=share_words(token.q),
            target=share_words(token.p_judged),
        )

    def _judging(self, token: DraftToken | None) -> str:
        """How the token is judged, as a key of JUDGE."""
        if self._step.settings.temperature == 0 and self._step.settings.lossless:
            return "greedy"
        if not self._rule.uses_draw:
            return "no draw"
        if not self._rule.is_plain:
            return "other"
        return "overlap" if token is None or token.q is not None else "alone"

    def _chips(
        self, num_settled: int, *, judging: bool = False, with_last: bool = False
    ) -> list[Chip]:
        """The first tokens as judged, the others as drafted.

        judging: the first token that is not settled is being judged. with_last: the step's own token stands in place of
        dropped ones.
        """
        chips = []
        for place, token in enumerate(self._shown):
            if with_last and token.status == "ignored":
                continue
            if place < num_settled:
                chips.append((token_label(token), token.status, ""))
                continue
            status = "judged" if judging and place == num_settled else "drafted"
            chips.append((token_label(token), status, share_words(token.q)))
        if with_last and self._last is not None:
            chips.append((token_label(self._last), self._last.kind, ""))
        return chips

    def _point(self) -> str:
        """The sentence on the step's gain, and on the promise for the text."""
        tokens = _tokens(len(self._step.emitted)).capitalize()
        if not self._step.settings.lossless:
            return POINT_LOSSY.format(tokens=tokens)
        why = WHY["other"]
        if self._judged:
            why = WHY.get(self._judging(self._judged[0]), why)
        return POINT.format(tokens=tokens, why=why)

    def _numbers(self) -> list[tuple[str, str]] | UnsetType:
        """The three numbers of the whole run, each if it is known."""
        counters = count(self._trace)
        values = metrics(counters)
        numbers = []
        for name in ("tokens_per_target_call", "acceptance_rate_judged"):
            if values[name] is not None:
                metric = METRICS[name]
                numbers.append((metric.spell(values[name]), f"{metric.label}, whole run"))
        speed = speed_words(counters, recorded=True)
        if speed.value:
            numbers.append((speed.value, speed.words))
        return numbers or UNSET


def question_of(header: Header) -> str:
    """The question that a person asked: a prompt, or the last turn of a conversation without the chat template."""
    prompt = header.request.get("prompt")
    if not header.request.get("chat") or not isinstance(prompt, str):
        return header.prompt.text
    messages = as_messages(prompt)
    return messages if isinstance(messages, str) else messages[-1]["content"]


def _end_of(text: str) -> str:
    """The text, or its last whole words if it is long."""
    if len(text) <= MOST_BEFORE:
        return prose(text)
    _, _, words = text[-MOST_BEFORE:].partition(" ")
    return f"… {prose(words)}"


def _quoted(token: DraftToken | EmittedToken) -> str:
    word = quote(token)
    return word if word.startswith("“") else f"“{word}”"


def _count(number: int) -> str:
    return COUNTS[number] if number < len(COUNTS) else f"{number:,}"


def _tokens(number: int) -> str:
    return f"{_count(number)} token" if number == 1 else f"{_count(number)} tokens"
