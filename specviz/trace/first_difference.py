"""Compares two generated texts token by token. Standard library only."""

from specviz.trace.events import Token
from specviz.trace.file import Trace


def first_difference(left: Trace, right: Trace) -> int | None:
    """The index of the first token that differs; None where the shorter text begins the longer one.

    Tokens are equal when id and text are: two vocabularies may give one id to different texts.
    """
    pairs = zip(left.tokens, right.tokens, strict=False)
    return next(
        (index for index, (one, other) in enumerate(pairs) if _key(one) != _key(other)), None
    )


def are_of_one_prompt(left: Trace, right: Trace) -> bool:
    """Whether both runs continue the same tokens."""
    one, other = (list(map(_key, each.header.prompt.tokens)) for each in (left, right))
    return one == other


def should_be_one_text(left: Trace, right: Trace) -> bool:
    """Whether both must give one text apart from rounding: one target at temperature 0, in one number format, after one
    prompt, and one of the two runs without drafts."""
    distributions = {
        (step.settings.target, step.settings.temperature)
        for each in (left, right)
        for step in each.steps
    }
    formats = {models.target.dtype for each in (left, right) for models in each.models}
    plain = [not any(step.settings.drafts for step in each.steps) for each in (left, right)]
    is_greedy = all(temperature == 0 for _, temperature in distributions)
    return (
        len(distributions) == len(formats) == sum(plain) == 1
        and is_greedy
        and are_of_one_prompt(left, right)
    )


def _key(token: Token) -> tuple[int, str, str | None]:
    return token.id, token.text, token.bytes
