"""Lookahead decoding: no second model. The target guesses many later tokens at once, in a window of scratch nodes that
its ordinary calls read; the n-grams that result are proposed where their first token is written again.

Nothing is sampled. The state belongs to one text; another list of tokens resets it. Fu et al. 2024.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from specviz.decoding.draft import EMPTY, ROOT, Draft, DraftBuilder
from specviz.decoding.drafter import Context, Drafter
from specviz.drafters.method import TREE_RULES, Method
from specviz.drafters.params import IntParam

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.decoding.rule import Verdict

MOST_FOUND = 8  # n-grams in the evidence


class Lookahead(Drafter):
    """window: W, how many places are guessed; ahead: tokens of a guess, N - 1; guesses: how many are checked in a call.

    The window has `ahead` levels of W tokens, the oldest first. Level 0 is a chain behind the text; a token of a later
    level hangs from the one above it, so that a column and the target's next token behind it are an n-gram.
    """

    def __init__(self, window: int, ahead: int, guesses: int, context_limit: int) -> None:
        self._size, self._ahead, self._most, self._context_limit = (
            window,
            ahead,
            guesses,
            context_limit,
        )
        self._reset(())

    def _reset(self, tokens: Sequence[int]) -> None:
        self._text = tokens
        self._levels = (
            [self._slice(tokens, level) for level in range(self._ahead)] if tokens else []
        )
        self._pool: dict[
            int, list[tuple[int, ...]]
        ] = {}  # first token -> what followed it, the newest last
        self._found: list[tuple[int, ...]] = []

    def _slice(self, tokens: Sequence[int], level: int) -> list[int]:
        """A level of the first window: the end of the text, so that it holds words of this text."""
        start = len(tokens) - self._size - self._ahead + level
        return [tokens[(start + place) % len(tokens)] for place in range(self._size)]

    def draft(self, context: Context, k: int) -> Draft:
        is_new = context.tokens is not self._text
        if is_new:
            self._reset(context.tokens)
        if (
            is_new or k < 1
        ):  # nothing is known of a new text, and a mask over all of it would be its square in size
            return EMPTY
        builder = DraftBuilder()
        guesses = [guess[:k] for guess in reversed(self._pool.get(context.tokens[-1], ()))]
        _add_guesses(builder, guesses)
        num_scratch = self._add_window(builder, len(context.tokens))
        return builder.build(num_scratch=num_scratch, evidence=self._evidence(guesses))

    def _add_window(self, builder: DraftBuilder, num_tokens: int) -> int:
        """The window's nodes, level by level; none where the target has no positions left for them."""
        if num_tokens + self._size + self._ahead - 1 > self._context_limit:
            return 0
        above = [ROOT]
        for level, tokens in enumerate(self._levels):
            nodes: list[int] = []
            for place, token in enumerate(tokens):
                nodes.append(builder.add(token, above[place] if level else (nodes or above)[-1]))
            above = nodes
        return self._size * self._ahead

    def observe(self, draft: Draft, probs: Tensor, verdict: Verdict) -> None:
        """What the target finds likeliest behind each column becomes the newest level; the oldest one goes."""
        from specviz.decoding.device import to_host  # loads torch

        if not draft.num_scratch:
            return
        newest = to_host(probs[-self._size :].argmax(-1)).tolist()
        self._found = list(zip(*self._levels, newest, strict=True))
        for first, *rest in self._found:
            known = self._pool.setdefault(first, [])
            if tuple(rest) in known:
                known.remove(tuple(rest))
            known.append(tuple(rest))
            del known[: -self._most]
        self._levels = [*self._levels[1:], newest]

    def _evidence(self, guesses: Sequence[Sequence[int]]) -> dict[str, object]:
        return {
            "window": [_list_ids(level) for level in self._levels],
            "guesses": [_list_ids(guess) for guess in guesses],
            "pool": {"keys": len(self._pool), "ngrams": sum(map(len, self._pool.values()))},
            "found": [_list_ids(ngram) for ngram in self._found[:MOST_FOUND]],
        }


def _add_guesses(builder: DraftBuilder, guesses: Iterable[Sequence[int]]) -> None:
    """Hangs the guesses from the text, each beginning that several share only once."""
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
    proposer="The target guesses later words on the side. Its remembered guesses propose up to ",
    why_no_what_if="lookahead's proposals depend on its earlier steps",
)
