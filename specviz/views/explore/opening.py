"""The opening: one step of a run told in six beats, each with a sentence and what is drawn beside it.

Every number and sentence is the recorded step's. `tests/views/test_opening.py` compares them; `opening.js` moves
from beat to beat and computes nothing.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

from msgspec import UNSET, UnsetType

from specviz.drafters import facts_of as method_facts
from specviz.models.chat import as_messages
from specviz.rules.facts import facts_of
from specviz.trace import DraftToken, EmittedToken, Header, Step, Trace
from specviz.trace.metrics import METRICS, count, metrics
from specviz.views.explore.message import Beat, GuessedToken, Opening, RaceToAlone
from specviz.views.explore.speed import speed_words, two_digits
from specviz.views.explore.steps import most_telling
from specviz.views.explore.titles import last_token, telling_rejection
from specviz.views.words import (
    PERCENT,
    divides,
    drafted_nodes,
    how_filled,
    label,
    percent,
    percents,
    prose,
    quote,
    random_draw,
    share_words,
    token_label,
    why_nothing,
)

TITLES = {
    "draft": "A small model guesses. A large one checks.",
    "heads": "A small head guesses. A large model checks.",
}
TITLE = "A guess is cheap. The large model checks it."
TITLE_ALONE = "The large model writes alone: one pass for each token."
SAME_TEXT = " Same text, fewer passes."
DRAFT = "{who} guesses {count} (words or parts of words), {cost} each."
DRAFT_AT_ONCE = "{who} guesses {count} (words or parts of words) at once, in one pass: {cost}."
DRAFT_IN_TURN = " Each is then chosen in turn, knowing the one before it."
DRAFT_FREE = "{who} proposes {count}. That costs no pass of the target."
DRAFT_TREE = "{who} writes a tree of {count}. Shown is the branch that the target follows."
CHECK = "The large target model checks {count} at once, in one pass: {cost}."
DRAFT_BAR = " The outlined bar shows how likely it finds each."
TARGET_BAR = " The solid bar shows how likely it finds each."
CHANCE_BAR = " The solid part is the chance to be accepted."
JUDGE = {
    "overlap": "Chance decides, so that no token comes more often than from the target alone. A random draw falls on "
    "the outlined bar. If it hits the solid bar, {token} is accepted.",
    "alone": "Chance decides, so that no token comes more often than from the target alone. A random draw falls on "
    "the whole bar. If it hits the target's solid part, {token} is accepted.",
    "greedy": "At temperature 0 the target accepts only its own most likely token. No random draw is needed.",
    "other": "The rule “{rule}” accepts this token {chance} of the time: the solid part.",
    "no draw": "The rule “{rule}” accepts a token that the target finds likely enough. It draws nothing.",
}
REJECT = {
    "overlap": "{token} is rejected: its draw misses the solid bar. The draft gave it {draft}, the target only "
    "{target}.",
    "alone": "{token} is rejected: its draw misses the solid part. The target gave it {target}.",
    "greedy": "{token} is not the target's most likely token. It is rejected.",
    "other": "{token}: the rule “{rule}” rejects it.",
}
NONE_REJECTED = "Every guess is accepted: {count} of {count}."
DROPPED = " The guesses after it are dropped: they continue from it."
RESAMPLED = {
    "overlap": "The target writes {token} instead. It is drawn at random from the shortfall: the part of the target's "
    "probabilities that the draft left out.",
    "alone": "The target writes {token} instead. It is drawn at random from its probabilities of all other tokens.",
    "greedy": "The target writes its own most likely token instead: {token}.",
    "other": "The rule “{rule}” writes {token} instead.",
}
BONUS = "The same pass also gives the next token for free: {token}, the bonus."
PLAIN = "Nothing was drafted here{why}. The target wrote {token} itself: {cost}."
POINT = (
    "This step: {tokens} for one pass. {why} every text comes out exactly as often as if the target "
    "had written alone."
)
WHY = {
    "overlap": "What both bars share and the shortfall add up to exactly the target's own probabilities. So",
    "greedy": "Each is the target's own most likely token. So",
    "other": "And",
}
POINT_LOSSY = (
    "This step: {tokens} for one pass. But this rule is lossy: the text is not distributed as the "
    "target's own."
)
FELL = "The draw falls at {u} of the outlined bar{end}: {status}."
END = ", and the solid one reaches to {chance}"
RACED = "One text, at the speeds that were measured without and with the draft: {part} tokens."
RUN_IT = "Run it yourself"
WHOLE_RUN = {
    "tokens_per_target_call": "tokens per pass, whole run",
    "acceptance_rate_judged": "acceptance rate, whole run",
}
DRAFTERS = {"draft": "The small draft model", "heads": "The small draft head"}
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MOST_BEFORE = 150  # characters of the question and of the answer so far
MOST_RACED = 56  # tokens of the race
MOST_SHARES = 4
SMALL = 0.1  # probabilities below it are drawn on a longer axis
LENGTHENED = 0.6  # of the longer axis: the larger of two small probabilities
SEEN = 0.05  # of a bar: a part that can be seen
MOST_TELLING = 6  # more than all other facts together
LEAST_COST = 0.01  # milliseconds for a drafted token; below, there is nothing to tell


def opening(trace: Trace, index: int, run: str = RUN_IT, note: str = "") -> Opening:
    """The beats of step `index`, 0 <= index < len(trace.steps).

    run: the words of the button that makes such a run. note: what is to be known before it is pressed.
    """
    return _Beats(trace, trace.steps[index]).opening(run, note)


def telling_step(trace: Trace) -> int:
    """The first step that shows the most.

    A step may show text before it, an accepted token that might have been rejected, a dropped token, and a rejected
    word that both models know.
    """
    numbers = [num_shown(step) for step in trace.steps]
    return numbers.index(max(numbers))


def num_shown(step: Step) -> int:
    """How much this step shows: each fact in `telling_step` counts once, the rejected word most."""
    number = len({token.status for token in step.draft} & {"accepted", "rejected", "ignored"})
    number += any(token.status == "accepted" and _is_open(token) for token in step.draft)
    rejected = telling_rejection(step)
    if rejected is not None and rejected.text.strip().isalpha():
        drafted = 1.0 if rejected.q is None else rejected.q
        number += MOST_TELLING * (min(rejected.p_judged or 0.0, drafted) > SEEN)
    return number + (step.index > 0)


def _is_open(token: DraftToken) -> bool:
    """Whether the verdict on the token could be guessed wrong."""
    return abs((token.accept_prob or 0.0) - 0.5) < 0.4


class _Beats:
    """The beats of one step."""

    def __init__(self, trace: Trace, step: Step) -> None:
        self._trace = trace
        self._step = step
        self._rule = facts_of(step.settings.rule)
        self._method = method_facts(step.settings.method)
        self._last = last_token(step)
        self._rejected = telling_rejection(step)
        nodes, _ = most_telling(step)
        self._shown = [step.draft[node] for node in nodes]
        self._judged = [token for token in self._shown if token.is_judged]
        self._counters = count(trace)
        self._values = metrics(self._counters)
        # of one token of the target alone, where that was measured in turn with the run
        self._alone_ms: float | None = None
        if self._values["speedup"] is not None:
            self._alone_ms = 1000 / self._counters.footer.baseline["tokens_per_s"]

    def opening(self, run: str, note: str) -> Opening:
        step = self._step
        before = "".join(
            token.text for earlier in self._trace.steps[: step.index] for token in earlier.emitted
        )
        settings = step.settings
        last = UNSET if self._last is None else (token_label(self._last), self._last.kind)
        return Opening(
            step=step.index + 1,
            title=self._title(),
            question=_end_of(question_of(self._trace.header)),
            before=_end_of(before),
            drafter=self._drafter(),
            target=("target model", label(Path(settings.target).name)),
            tokens=[self._guessed(token) for token in self._shown],
            filled=how_filled(step) or UNSET,
            last=last,
            beats=list(self._beats()),
            race=self._race(),
            run=run,
            note=note,
        )

    def _title(self) -> str:
        if not self._method.drafts:
            return TITLE_ALONE
        title = next((TITLES[role] for role in self._method.roles if role in TITLES), TITLE)
        return title + SAME_TEXT if self._step.settings.lossless else title

    def _drafter(self) -> tuple[str, str]:
        """The part that drafts: its role, and its name."""
        if "draft" in self._method.roles:
            return "draft model", label(Path(self._step.settings.draft_model or "").name)
        return "draft", self._method.title

    def _guessed(self, token: DraftToken) -> GuessedToken:
        """The token with both bars, in percent of their axis."""
        drafted = 1.0 if token.q is None else token.q  # a proposal without a model counts as sure
        target = token.p_judged if token.is_judged else token.p
        axis = {}
        if self._judging(token) == "other" and token.is_judged:
            drafted, target = 1.0, token.accept_prob
        longest = max(drafted, target or 0.0)
        scale = 100.0
        if 0 < longest < SMALL:
            scale = 100 * LENGTHENED / longest
            axis = {"longer": True}
        draw = {}
        if self._draws and token.is_judged:
            u = token.u or 0.0
            draw = {"draw": round(scale * u * drafted, 3), "fell": self._fell(token)}
        return GuessedToken(
            text=token_label(token),
            status=token.status,
            draft=share_words(token.q),
            target=share_words(target),
            q=round(scale * drafted, 3),
            p=UNSET if target is None else round(scale * target, 3),
            **draw,
            **axis,
        )

    def _fell(self, token: DraftToken) -> str:
        """What the draw said of the token. Under some rules later tokens save it, whatever its own bars show."""
        chance, u = random_draw(token.accept_prob or 0.0, token.u or 0.0)
        end = ""
        if self._judging(token) != "other":
            end = END.format(chance=_quotient(token, chance))
        return FELL.format(u=f"{Decimal(u).scaleb(2)}{PERCENT}", end=end, status=token.status)

    @property
    def _draws(self) -> bool:
        """Whether a random draw decides on a drafted token of this step."""
        return self._rule.uses_draw and self._step.settings.temperature > 0

    def _beats(self) -> Iterator[Beat]:
        step = self._step
        drafting = step.timing.draft_ms
        working = step.timing.working_ms
        settled = len(self._shown)
        if self._shown:
            yield Beat("draft", self._draft_sentence(), clocks=self._clocks(drafting, 0))
            yield Beat(
                "check", self._check_sentence(working - drafting), clocks=self._clocks(working, 0)
            )
        if self._judged:
            asked = self._asked()
            token = self._shown[asked]
            clocks = self._clocks(working, asked)
            yield Beat("judge", self._words(JUDGE, token), asked, asked=asked, clocks=clocks)
            accepted = sum(token.status == "accepted" for token in self._shown)
            clocks = self._clocks(working, accepted)
            yield Beat("verdict", self._verdict(), settled, clocks=clocks)
        clocks = self._clocks(working, len(step.emitted))
        if self._last is not None:
            yield Beat("last", self._last_sentence(), settled, shares=self._shares(), clocks=clocks)
        yield Beat("point", self._point(), settled, numbers=self._numbers(), clocks=clocks)

    def _asked(self) -> int:
        """The place of the token whose verdict is hardest to guess."""
        chances = [abs((token.accept_prob or 0.0) - 0.5) for token in self._judged]
        return self._shown.index(self._judged[chances.index(min(chances))])

    def _draft_sentence(self) -> str:
        who = next((DRAFTERS[role] for role in self._method.roles if role in DRAFTERS), None)
        who = who or self._method.title
        number = len(drafted_nodes(self._step))
        if self._step.is_tree:
            return DRAFT_TREE.format(who=who, count=_tokens(number))
        cost_ms = self._step.timing.draft_ms / number
        if cost_ms < LEAST_COST:
            return DRAFT_FREE.format(who=who, count=_tokens(number))
        filled = how_filled(self._step)
        sentence = DRAFT
        if filled:
            sentence = DRAFT_AT_ONCE
            cost_ms = self._step.timing.draft_ms
        sentence = sentence.format(who=who, count=_tokens(number), cost=_ms(cost_ms))
        if filled == "in turn":
            sentence += DRAFT_IN_TURN
        has_bar = self._judging(self._shown[0]) in ("overlap", "greedy")
        return sentence + DRAFT_BAR if has_bar else sentence

    def _check_sentence(self, cost_ms: float) -> str:
        number = len(drafted_nodes(self._step))
        read = "it" if number == 1 else f"all {_count(number)}"
        is_chance = self._judging(self._shown[0]) == "other"
        return CHECK.format(count=read, cost=_ms(cost_ms)) + (
            CHANCE_BAR if is_chance else TARGET_BAR
        )

    def _verdict(self) -> str:
        rejected = self._rejected
        if rejected is None:
            accepted = sum(token.status == "accepted" for token in self._judged)
            return NONE_REJECTED.format(count=_count(accepted))
        sentence = self._words(REJECT, rejected)
        return sentence if self._shown[-1] is rejected else sentence + DROPPED

    def _last_sentence(self) -> str:
        last = self._last
        if last.kind == "resampled":
            return self._words(RESAMPLED, self._rejected, last)
        if last.kind == "bonus":
            return BONUS.format(token=_quoted(last))
        why = why_nothing(self._step)
        reason = f", as {why}" if why else ""
        cost = _ms(self._step.timing.verify_ms)
        return PLAIN.format(token=_quoted(last), why=reason, cost=cost)

    def _shares(self) -> list[tuple[str, float, str, bool]] | UnsetType:
        """The distribution of the replacement: its most likely tokens, and the one that was drawn."""
        if self._last.kind != "resampled" or self._step.settings.temperature == 0:
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

    def _point(self) -> str:
        """The sentence on the step's gain, and on the promise for the text."""
        tokens = _tokens(len(self._step.emitted))
        if not self._step.settings.lossless:
            return POINT_LOSSY.format(tokens=tokens)
        why = WHY["other"]
        if self._judged:
            why = WHY.get(self._judging(self._judged[0]), why)
        return POINT.format(tokens=tokens, why=why)

    def _numbers(self) -> list[tuple[str, str]] | UnsetType:
        """The three numbers of the whole run, each if it is known."""
        numbers = []
        for name, words in WHOLE_RUN.items():
            value = self._values[name]
            if value is not None:
                numbers.append((METRICS[name].spell(value), words))
        speed = speed_words(self._counters, recorded=True)
        if speed.value:
            numbers.append((speed.value, speed.words))
        return numbers or UNSET

    def _clocks(self, here_ms: float, num_tokens: int) -> list[tuple[str, str]]:
        """The time of this step so far, and what the target alone takes for the same tokens, where that was
        measured."""
        if not num_tokens:
            return [("this step so far", _ms(here_ms))]
        written = _tokens(num_tokens)
        clocks = [(f"with the draft: {written}", _ms(here_ms))]
        if self._alone_ms is not None:
            clocks.append((f"target alone: {written}", _ms(num_tokens * self._alone_ms)))
        return clocks

    def _race(self) -> RaceToAlone | UnsetType:
        """When each token of the text was there, here and with the target alone at its measured pace."""
        if self._alone_ms is None:
            return UNSET
        tokens = []
        here_ms = 0.0
        for step in self._trace.steps:
            here_ms += step.timing.working_ms
            for token in step.emitted:
                alone_ms = self._alone_ms * (len(tokens) + 1)
                token_text = prose(token.text)
                tokens.append((token_text, token.kind, round(here_ms, 1), round(alone_ms, 1)))
        shown = tokens[:MOST_RACED]
        *_, here, alone = shown[-1]
        part = "all" if len(tokens) <= MOST_RACED else f"the first {MOST_RACED} of {len(tokens)}"
        return RaceToAlone(shown, _seconds(here), _seconds(alone), RACED.format(part=part))


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


def _quotient(token: DraftToken, chance: str) -> str:
    """The chance of acceptance behind the two printed probabilities that give it: "39/63 = 62 %"."""
    if token.q and token.p_judged < token.q:
        target, drafted = percents(token.p_judged, token.q)
        if divides(target, drafted, chance):
            return f"{target}/{drafted} = {chance}"
    return chance


def _count(number: int) -> str:
    return COUNTS[number] if number < len(COUNTS) else f"{number:,}"


def _tokens(number: int) -> str:
    return f"{_count(number)} token" if number == 1 else f"{_count(number)} tokens"


def _ms(number: float) -> str:
    return f"{two_digits(number) if number else 0}\u00a0ms"


def _seconds(ms: float) -> str:
    return f"{ms / 1000:.1f}\u00a0s"
