"""Lookahead decoding (Fu et al. 2024) drafts without a second model.

The target guesses many later tokens at once, in a window of scratch nodes that its ordinary calls read. The guesses
make n-grams, which are proposed when their first token is written again. Nothing is drawn at random. The state belongs
to one text; another list of tokens resets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from specviz.decoding.draft import EMPTY, ROOT, Draft, DraftBuilder
from specviz.decoding.drafter import Context, Drafter, PhaseTimes
from specviz.drafters.method import TREE_RULES, Method
from specviz.drafters.params import IntParam

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.decoding.rule import Verdict

MOST_FOUND = 8  # n-grams in the evidence


class Lookahead(Drafter):
    """Drafts the n-grams that the target guessed in earlier calls.

    The window has `ahead` levels of W tokens, the oldest first. Level 0 is a chain after the text. A token of a later
    level hangs from the one above it. So a column and the target's next token after it are an n-gram.
    """

    def __init__(self, window: int, ahead: int, guesses: int, context_limit: int) -> None:
        """Takes W, how many places are guessed; N - 1, a guess's length; and how many guesses a call checks."""
        self._size = window
        self._ahead = ahead
        self._most = guesses
        self._context_limit = context_limit
        self._reset(())

    def _reset(self, tokens: Sequence[int]) -> None:
        self._text = tokens
        self._levels: list[list[int]] = []
        if tokens:
            self._levels = [self._first_level(tokens, level) for level in range(self._ahead)]
        # first token -> what followed it, the newest last
        self._ngrams: dict[int, list[tuple[int, ...]]] = {}
        self._found: list[tuple[int, ...]] = []

    def _first_level(self, tokens: Sequence[int], level: int) -> list[int]:
        """A level of the first window, taken from the end of the text, so that it holds words of this text."""
        start = len(tokens) - self._size - self._ahead + level
        return [tokens[(start + place) % len(tokens)] for place in range(self._size)]

    def draft(self, context: Context, k: int) -> Draft:
        is_new = context.tokens is not self._text
        if is_new:
            self._reset(context.tokens)
        # nothing is known of a new text, and a mask over all of it would be its square in size
        if is_new or k < 1:
            return EMPTY
        builder = DraftBuilder()
        known = self._ngrams.get(context.tokens[-1], ())
        guesses = [ngram[:k] for ngram in reversed(known)]
        _add_guesses(builder, guesses)
        num_scratch = self._add_window(builder, len(context.tokens))
        return builder.build(num_scratch=num_scratch, evidence=self._evidence(guesses))

    def _add_window(self, builder: DraftBuilder, num_tokens: int) -> int:
        """Adds the window's nodes, level by level, and returns their number; 0 if the target has no positions left."""
        if num_tokens + self._size + self._ahead - 1 > self._context_limit:
            return 0
        above: list[int] = []
        for tokens in self._levels:
            nodes: list[int] = []
            parent = ROOT
            for place, token in enumerate(tokens):
                if above:
                    parent = above[place]
                node = builder.add(token, parent)
                nodes.append(node)
                parent = node
            above = nodes
        return self._size * self._ahead

    def observe(self, draft: Draft, probs: Tensor, verdict: Verdict, timing: PhaseTimes) -> None:
        """Makes the target's most likely tokens after each column the newest level, and drops the oldest level."""
        from specviz.decoding.device import to_host  # loads torch

        if not draft.num_scratch:
            return
        newest = to_host(probs[-self._size :].argmax(-1)).tolist()
        self._found = list(zip(*self._levels, newest, strict=True))
        for ngram in self._found:
            rest = ngram[1:]
            known = self._ngrams.setdefault(ngram[0], [])
            if rest in known:
                known.remove(rest)
            known.append(rest)
            del known[: -self._most]
        self._levels = [*self._levels[1:], newest]

    def _evidence(self, guesses: Sequence[Sequence[int]]) -> dict[str, object]:
        num_ngrams = sum(map(len, self._ngrams.values()))
        return {
            "window": [_list_ids(level) for level in self._levels],
            "guesses": [_list_ids(guess) for guess in guesses],
            "pool": {"keys": len(self._ngrams), "ngrams": num_ngrams},
            "found": [_list_ids(ngram) for ngram in self._found[:MOST_FOUND]],
        }


def _add_guesses(builder: DraftBuilder, guesses: Iterable[Sequence[int]]) -> None:
    """Hangs the guesses from the text; guesses with a common beginning share its nodes."""
    places: dict[tuple[int, ...], int] = {(): ROOT}
    for guess in guesses:
        for end in range(1, len(guess) + 1):
            beginning = tuple(guess[:end])
            if beginning not in places:
                places[beginning] = builder.add(guess[end - 1], places[beginning[:-1]])


def _list_ids(tokens: Iterable[int]) -> list[dict[str, int]]:
    return [{"id": token} for token in tokens]


METHOD = Method(
    name="lookahead",
    title="Lookahead",
    summary="No second model: while it reads, the target guesses many later tokens and proposes them afterwards.",
    source="Fu et al., arXiv:2402.02057",
    params=(
        IntParam(
            "window",
            "window",
            5,
            "How many places ahead the target guesses in each call (W).",
            1,
            12,
        ),
        IntParam(
            "ahead",
            "tokens per guess",
            3,
            "How many tokens a guess has (K here, N - 1 in the paper).",
            1,
            6,
        ),
        IntParam(
            "guesses", "guesses", 5, "How many guesses are checked at most in one call (G).", 1, 12
        ),
    ),
    rules=TREE_RULES,
    depth="ahead",
    build=lambda parts, params: Lookahead(**params, context_limit=parts.target.lm.context_limit),
    caution="Pays where the target has arithmetic to spare, as on a GPU, and the text repeats itself. Every call also "
    "reads the whole window: on a CPU that costs more than it saves, except where text repeats.",
    proposer="The target also guesses later words in the same pass. Its remembered guesses propose up to ",
    why_no_what_if="lookahead's proposals depend on its earlier steps",
)
