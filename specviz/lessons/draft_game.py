"""A game in which a person is the draft model: typed words go to the target as a draft without probabilities.

Each turn is one step of a real trace. A turn asks the target once about the typed tokens, and the draft model once for
as many tokens. Where a text ends in a letter, one more target call tells whether the word goes on. Between two turns a
game holds no model.
"""

import unicodedata
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from specviz import trace
from specviz.decoding.draft import Draft, chain
from specviz.decoding.drafter import Context, Drafter
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Plan, StepResult, speculate
from specviz.decoding.turns import clock
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.models.tokens import TokenText, encode_after
from specviz.request import Request
from specviz.rules import RULES
from specviz.session.active_setup import ActiveSetup
from specviz.session.recorder import Recorder
from specviz.session.whole_run import activate, header
from specviz.settings import settings

METHOD = "typed words"
RULE = "speculative_sampling"
MOST_TYPED = 8  # tokens a turn
MOST_CHARACTERS = 200
MOST_TOKENS = 24  # of a game's text
FINISHED = "stopped"  # how a game ends that a person ends
LOOKED_AT = 256  # most likely next tokens that tell whether a word goes on
UNWRITABLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""The Unicode categories that no typed word has: control characters, ends of lines and the like."""
JOINERS = "\u200c\u200d"  # within words of some scripts, and within some emoji
NO_SPACE_BEFORE = ".,;:!?)]}\u2026"


def most_tokens() -> int:
    """The most tokens of a game's text: MOST_TOKENS, or as many as the server allows. The turn that reaches it is the
    last."""
    return min(MOST_TOKENS, settings().max_new_tokens)


class RefusedDraft(SpecvizError):
    """Typed words that cannot be judged. The person can change them and try again."""


class Typed(Drafter):
    """Drafts the tokens that a person typed, without probabilities. It is not listed as a method: it needs a person."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tuple(tokens)

    def draft(self, context: Context, k: int) -> Draft:
        return chain(self._tokens[:k])


@dataclass(frozen=True, slots=True)
class Rival:
    """What the draft model did at the place where a person typed."""

    drafted: tuple[str, ...]
    num_accepted: int
    num_emitted: int  # by its step


@dataclass(frozen=True, slots=True)
class Ending:
    """The unfinished word that a text may end with."""

    letters: str
    """The last letters of the text."""
    goes_on: bool
    """Whether the target would probably write more letters."""


class Game:
    """One text, written in turns."""

    def __init__(self, request: Request) -> None:
        request = replace(
            request,
            chat=False,
            chat_options={},
            num_speculative_tokens=MOST_TYPED,
            max_new_tokens=most_tokens(),
        )
        self.request = request.validate()
        self.trace = trace.Trace()  # a step per turn
        self.rivals: list[Rival] = []  # one per turn where the request names a draft model
        self.ending: Ending | None = None  # None where the text does not end in a letter
        self._recorder: Recorder | None = None

    @property
    def is_over(self) -> bool:
        return self.trace.footer is not None

    def turn(self, words: str, pool: ModelPool, *, joined: bool = False) -> trace.Step:
        """Judges the typed words, adds the step to the trace and returns it. joined: the words go on in a word.

        Raises SpecvizError, and RefusedDraft where the words are the reason. Then nothing has changed.
        """
        self._check_going()
        request = self.request
        if request.draft is None:
            request = replace(request, method="none")
        active = activate(request, pool)
        new_header, ids = self._open_text(active)
        typed = typed_ids(active.target.text, ids, words, joined=joined)
        plan = replace(active.plan, drafter=Typed(typed), rule=RULES[RULE], k=MOST_TYPED)
        result = _one_step(plan, ids, active, self.request.seed, len(typed))
        rival = None if active.draft is None else self._ask_rival(active, ids, len(typed))
        ending = _find_ending(active, [*ids, *result.tokens])
        step = self._append(active, new_header, result, rival)
        self.ending = ending
        return step

    def finish(self) -> None:
        """Ends the text. Raises SpecvizError where the text has no turn yet, or has ended."""
        self._check_going()
        if not self.trace.steps:
            raise SpecvizError("this text has no turn yet")
        self.trace.append(trace.Footer(FINISHED, None, None))

    def _check_going(self) -> None:
        if self.is_over:
            raise SpecvizError("this text has ended: begin a new game")

    def _open_text(self, active: ActiveSetup) -> tuple[trace.Header | None, list[int]]:
        """The header where the trace has none yet, and all ids so far."""
        if self.trace.header is not None:
            tokens = [*self.trace.header.prompt.tokens, *self.trace.tokens]
            return None, [token.id for token in tokens]
        rendered, ids = active.prompt()
        new_header = header(active, rendered, ids)
        typed_request = {"method": METHOD, "rule": RULE, "draft": None, "params": {}}
        return replace(new_header, request={**new_header.request, **typed_request}), ids

    def _ask_rival(self, active: ActiveSetup, ids: list[int], k: int) -> Rival:
        """Runs one step of the draft model behind these ids."""
        result = _one_step(replace(active.plan, k=k), ids, active, self.request.seed, k)
        texts = tuple(active.target.text.piece(token)[0] for token in result.draft.tokens)
        return Rival(texts, len(result.verdict.path), len(result.tokens))

    def _append(
        self,
        active: ActiveSetup,
        new_header: trace.Header | None,
        result: StepResult,
        rival: Rival | None,
    ) -> trace.Step:
        """Adds the step to the trace, behind its header or before its footer where these are due."""
        if new_header is not None:
            self._recorder = Recorder(active.target.text)
            self.trace.append(new_header)
            self.trace.append(trace.Models(0, active.target.info, None))
        before = self.trace.steps
        result_settings = active.setup.settings(result.plan)
        typed_settings = replace(result_settings, method=METHOD, params={}, draft_model=None)
        timing = result.timing
        step_ms = timing.draft_ms + timing.verify_ms + timing.accept_ms
        step = self._recorder.record(
            replace(result, index=len(before)),
            typed_settings,
            started=clock() - step_ms / 1e3,
            at_ms=sum(earlier.timing.total_ms for earlier in before),
        )
        self.trace.append(step)
        if rival is not None:
            self.rivals.append(rival)
        reason = self._reason_to_end(result)
        if reason is not None:
            self.trace.append(trace.Footer(reason, None, None))
        return step

    def _reason_to_end(self, result: StepResult) -> str | None:
        """Why the text ends with this step; None where it goes on.

        Every step reaches its own length, so "length" is not taken from the step.
        """
        if result.finish in ("eos", "context"):
            return result.finish
        return "length" if len(self.trace.tokens) >= self.request.max_new_tokens else None


def typed_ids(
    text: TokenText, before: Sequence[int], words: str, *, joined: bool = False
) -> list[int]:
    """The ids of typed words behind a text of these ids, with a space before them where one belongs, unless `joined`.

    Raises RefusedDraft for words that are empty, too long or no ordinary text.
    """
    _check_words(words)
    end = b"".join(map(text.bytes_of, before[-64:]))
    words = "".join(" " if character.isspace() else character for character in words).strip()
    if not joined and not end[-1:].isspace() and words[0] not in NO_SPACE_BEFORE:
        words = f" {words}"
    ids = encode_after(text, end, words.encode())
    if not ids:
        raise RefusedDraft("the target model has no tokens for these words")
    special = text.special_ids | text.eos_ids
    for token in ids:
        if token in special:
            name = text.label(token)
            raise RefusedDraft(
                f"your words must be ordinary text (got {name!r:.60}, a sign of the model's own)"
            )
    if len(ids) > MOST_TYPED:
        first = " | ".join(text.label(token).strip() for token in ids[:MOST_TYPED])
        raise RefusedDraft(
            f"your words must be at most {MOST_TYPED} tokens (got {len(ids)}: {first} | …)"
        )
    return ids


def _check_words(words: str) -> None:
    if len(words) > MOST_CHARACTERS:
        raise RefusedDraft(
            f"your words must be at most {MOST_CHARACTERS} characters (got {len(words):,})"
        )
    if not words.strip():
        raise RefusedDraft("type at least one word")
    for character in words:
        if unicodedata.category(character) in UNWRITABLE and character not in JOINERS:
            raise RefusedDraft("your words must be on one line, without control characters")


def _find_ending(active: ActiveSetup, ids: Sequence[int]) -> Ending | None:
    """Asks the target, without temperature, whether its next token begins with a letter.

    None where the text does not end in a letter, or the target's context is full.
    """
    text = active.target.text
    written = b"".join(map(text.bytes_of, ids[-64:])).decode("utf-8", "replace")
    begin = len(written)
    while begin > 0 and written[begin - 1].isalnum():
        begin -= 1
    letters = written[begin:]
    if not letters or len(ids) >= active.target.info.context_limit:
        return None
    p = active.plan.target.forward(list(ids))[0].float().softmax(-1)  # [V]
    most_likely = p.topk(min(LOOKED_AT, len(p)))
    shares = []  # of tokens that begin with a letter
    for token, share in zip(most_likely.indices.tolist(), most_likely.values.tolist(), strict=True):
        start = text.bytes_of(token).decode("utf-8", "replace")[:1]
        if start.isalnum():
            shares.append(share)
    return Ending(letters, sum(shares) > 0.5)


def _one_step(
    plan: Plan, ids: list[int], active: ActiveSetup, seed: int, num_drafted: int
) -> StepResult:
    """The next step of a text of these ids, with room for all drafted tokens and one more."""
    most = num_drafted + 1
    eos = frozenset(active.target.text.eos_ids)
    steps = speculate(ids, lambda: plan, Seeded(seed), max_new_tokens=most, eos_ids=eos)
    with closing(steps):
        return next(steps)
