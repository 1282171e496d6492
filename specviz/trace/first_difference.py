"""Where two generated texts part, token by token. Standard library only."""

from __future__ import annotations

from specviz.trace.file import Trace


def first_difference(left: Trace, right: Trace) -> int | None:
    """How many tokens both texts share before the first that differs; None where one goes on as the other ends, or both
    end together. Tokens are the same when id and text are: two vocabularies may number alike."""
    pairs = zip(left.tokens, right.tokens, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if _of(one) != _of(other)), None)


def are_of_one_prompt(left: Trace, right: Trace) -> bool:
    """Whether both runs were given the same tokens to continue."""
    one, other = ([_of(token) for token in each.header.prompt.tokens] for each in (left, right))
    return one == other


def should_be_one_text(left: Trace, right: Trace) -> bool:
    """Whether one of both drafted nothing and neither drew: the same target at temperature 0, in one number format,
    after one prompt. Without rounding a lossless rule then writes one text."""
    laws = {(step.settings.target, step.settings.temperature) for each in (left, right) for step in each.steps}
    formats = {models.target.dtype for each in (left, right) for models in each.models}
    plain = [not any(step.settings.drafts for step in each.steps) for each in (left, right)]
    is_greedy = all(temperature == 0 for _, temperature in laws)
    return len(laws) == len(formats) == sum(plain) == 1 and is_greedy and are_of_one_prompt(left, right)


def _of(token: object) -> tuple[int, str, str | None]:
    return token.id, token.text, token.bytes
