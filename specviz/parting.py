"""Where two generated texts part, token by token. Standard library only."""

from __future__ import annotations

from specviz.trace import Trace


def parting(left: Trace, right: Trace) -> int | None:
    """How many tokens both texts share before the first that differs; None where one goes on as the other ends, or both
    end together. Tokens are the same when id and text are: two vocabularies may number alike."""
    pairs = zip(left.tokens, right.tokens, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if _of(one) != _of(other)), None)


def are_of_one_prompt(left: Trace, right: Trace) -> bool:
    """Whether both runs were given the same tokens to continue."""
    one, other = ([_of(token) for token in each.header.prompt.tokens] for each in (left, right))
    return one == other


def _of(token: object) -> tuple[int, str, str | None]:
    return token.id, token.text, token.bytes
