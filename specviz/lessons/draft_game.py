"""You are the draft model: typed words go to the target as a draft without odds, one step of a real trace a turn.

A turn asks the target once about the typed tokens, and the draft model once about the same place with as many tokens;
where a text ends in a letter, one more look at the target's odds tells whether the word goes on. Between two turns a
game holds no model. The caller has the engine.
"""

import unicodedata
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import takewhile

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
LOOKED_AT = 256  # likeliest next tokens that tell whether a word goes on
UNWRITABLE = (
    "Cc",
    "Cf",
    "Cs",
    "Co",
    "Cn",
    "Zl",
    "Zp",
)  # categories: control characters, ends of lines and the like
JOINERS = "\u200c\u200d"  # within words of some scripts, and within some emoji
NO_SPACE_BEFORE = ".,;:!?)]}\u2026"


def most_tokens() -> int:
    """Of a game's text here: MOST_TOKENS, or as many as the server allows. The turn that reaches it is the last."""
    return min(MOST_TOKENS, settings().max_new_tokens)


class RefusedDraft(SpecvizError):
    """Words that cannot be judged: they can be mended and handed over again."""


class Typed(Drafter):
    """Hands over the tokens that a person typed, without odds; no method, because it needs that person."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tuple(tokens)

    def draft(self, context: Context, k: int) -> Draft:
        return chain(self._tokens[:k])


@dataclass(frozen=True, slots=True)
class Rival:
    """What the draft model did at the same place: its tokens, how many were kept, and how many its step gave."""

    drafted: tuple[str, ...]
    num_accepted: int
    num_emitted: int


@dataclass(frozen=True, slots=True)
class Ending:
    """The letters that a text ends with, and whether the target would rather go on with their word."""

    letters: str
    goes_on: bool


class Game:
    """One text, written in turns. `trace` grows by a step a turn, `rivals` by an entry where the request names a draft
    model. `ending`: None before the first turn, and where the text does not end in a letter."""

    def __init__(self, request: Request) -> None:
        request = replace(
            request,
            chat=False,
            chat_options={},
            num_speculative_tokens=MOST_TYPED,
            max_new_tokens=most_tokens(),
        )
        self.request = request.validate()
        self.trace = trace.Trace()
        self.rivals: list[Rival] = []
        self.ending: Ending | None = None
        self._recorder: Recorder | None = None

    @property
    def is_over(self) -> bool:
        return self.trace.footer is not None

    def turn(self, words: str, pool: ModelPool, *, joined: bool = False) -> trace.Step:
        """Judges the typed words and adds what came of it. joined: they go on in the middle of a word. Raises
        SpecvizError, Refused where it is for the words, and then nothing has changed."""
        self._check_going()
        request = (
            self.request if self.request.draft is not None else replace(self.request, method="none")
        )
        active = activate(request, pool)
        begun, ids = self._open_text(active)
        typed = typed_ids(active.target.text, ids, words, joined=joined)
        plan = replace(active.plan, drafter=Typed(typed), rule=RULES[RULE], k=MOST_TYPED)
        step = _one_step(plan, ids, active, self.request.seed, len(typed))
        rival = None if active.draft is None else self._rival(active, ids, len(typed))
        ending = _ending(active, [*ids, *step.tokens])
        made, self.ending = self._append(active, begun, step, rival), ending
        return made

    def finish(self) -> None:
        """Ends the text here. Raises SpecvizError where it has no turn yet, or has ended."""
        self._check_going()
        if not self.trace.steps:
            raise SpecvizError("this text has no turn yet")
        self.trace.append(trace.Footer(FINISHED, None, None))

    def _check_going(self) -> None:
        if self.is_over:
            raise SpecvizError("this text has ended: begin a new game")

    def _open_text(self, active: ActiveSetup) -> tuple[trace.Header | None, list[int]]:
        """The header if it is still to come, and all ids so far."""
        if self.trace.header is not None:
            return None, [
                token.id for token in (*self.trace.header.prompt.tokens, *self.trace.tokens)
            ]
        rendered, tokens = active.prompt()
        begun = header(active, rendered, tokens)
        said = {"method": METHOD, "rule": RULE, "draft": None, "params": {}}
        return replace(begun, request={**begun.request, **said}), tokens

    def _rival(self, active: ActiveSetup, ids: list[int], k: int) -> Rival:
        step = _one_step(replace(active.plan, k=k), ids, active, self.request.seed, k)
        texts = tuple(active.target.text.piece(token)[0] for token in step.draft.tokens)
        return Rival(texts, len(step.verdict.path), len(step.tokens))

    def _append(
        self, active: ActiveSetup, begun: trace.Header | None, step: StepResult, rival: Rival | None
    ) -> trace.Step:
        if begun is not None:
            self._recorder = Recorder(active.target.text)
            self.trace.append(begun)
            self.trace.append(trace.Models(0, active.target.info, None))
        before, timing = self.trace.steps, step.timing
        settings = replace(
            active.setup.settings(step.plan), method=METHOD, params={}, draft_model=None
        )
        at_ms = sum(each.timing.total_ms for each in before)
        started = clock() - (timing.draft_ms + timing.verify_ms + timing.accept_ms) / 1e3
        made = self._recorder.record(
            replace(step, index=len(before)), settings, started=started, at_ms=at_ms
        )
        self.trace.append(made)
        if rival is not None:
            self.rivals.append(rival)
        if reason := self._reason_to_end(step):
            self.trace.append(trace.Footer(reason, None, None))
        return made

    def _reason_to_end(self, step: StepResult) -> str | None:
        """Each step reaches the length that it was given: only what is more than that ends the text."""
        if step.finish in ("eos", "context"):
            return step.finish
        return "length" if len(self.trace.tokens) >= self.request.max_new_tokens else None


def typed_ids(
    text: TokenText, before: Sequence[int], words: str, *, joined: bool = False
) -> list[int]:
    """The ids of typed words behind a text of these ids. A space is put before them where one belongs, unless `joined`.
    Raises Refused for words that no person would be asked for."""
    _check_words(words)
    raw = b"".join(map(text.bytes_of, before[-64:]))
    words = "".join(" " if character.isspace() else character for character in words).strip()
    has_space = joined or raw[-1:].isspace() or words[0] in NO_SPACE_BEFORE
    ids = encode_after(text, raw, (words if has_space else f" {words}").encode())
    if not ids:
        raise RefusedDraft("the target model has no tokens for these words")
    if special := [token for token in ids if token in text.special_ids | text.eos_ids]:
        name = text.label(special[0])
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
    if any(unicodedata.category(each) in UNWRITABLE and each not in JOINERS for each in words):
        raise RefusedDraft("your words must be on one line, without control characters")


def _ending(active: ActiveSetup, ids: Sequence[int]) -> Ending | None:
    """Asks the target's own odds, without temperature, for the next token: does it begin with a letter?"""
    text = active.target.text
    written = b"".join(map(text.bytes_of, ids[-64:])).decode("utf-8", "replace")
    letters = "".join(takewhile(str.isalnum, reversed(written)))[::-1]
    if not letters or len(ids) >= active.target.info.context_limit:
        return None
    probabilities = active.plan.target.forward(list(ids))[0].float().softmax(-1)
    shares, likeliest = (
        each.tolist() for each in probabilities.topk(min(LOOKED_AT, len(probabilities)))
    )
    starts = (text.bytes_of(token).decode("utf-8", "replace")[:1] for token in likeliest)
    return Ending(
        letters,
        sum(share for start, share in zip(starts, shares, strict=True) if start.isalnum()) > 0.5,
    )


def _one_step(
    plan: Plan, ids: list[int], active: ActiveSetup, seed: int, num_drafted: int
) -> StepResult:
    """The next step of a text of these ids, with room for all that may be drafted and one token more."""
    eos = frozenset(active.target.text.eos_ids)
    with closing(
        speculate(ids, lambda: plan, Seeded(seed), max_new_tokens=num_drafted + 1, eos_ids=eos)
    ) as steps:
        return next(steps)
