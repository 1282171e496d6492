"""Compares two generated texts token by token. Standard library only."""

from specviz.trace.events import Token
from specviz.trace.file import Trace


def first_difference(left: Trace, right: Trace) -> int | None:
    """The index of the first token that differs; None where the shorter text begins the longer one.

    Tokens are equal when id and text are: two vocabularies may give one id to different texts.
    """
    for index, (one, other) in enumerate(zip(left.tokens, right.tokens, strict=False)):
        if _identity(one) != _identity(other):
            return index
    return None


def are_of_one_prompt(left: Trace, right: Trace) -> bool:
    """Whether both runs continue the same tokens."""
    left_prompt = [_identity(token) for token in left.header.prompt.tokens]
    right_prompt = [_identity(token) for token in right.header.prompt.tokens]
    return left_prompt == right_prompt != []  # another engine's record holds no prompt


def should_be_one_text(left: Trace, right: Trace) -> bool:
    """Whether both runs must give one text apart from rounding.

    They must with one target at temperature 0, one number format, one prompt, and no drafts in one of the runs.
    """
    targets = set()
    temperatures = set()
    formats = set()
    num_plain_runs = 0
    for run in (left, right):
        targets |= {step.settings.target for step in run.steps}
        temperatures |= {step.settings.temperature for step in run.steps}
        formats |= {models.target.dtype for models in run.models}
        num_plain_runs += not any(step.settings.drafts for step in run.steps)
    is_one_reader = len(targets) == 1 and len(formats) == 1
    is_greedy = temperatures == {0}
    return is_one_reader and is_greedy and num_plain_runs == 1 and are_of_one_prompt(left, right)


def _identity(token: Token) -> tuple[int, str, str | None]:
    return token.id, token.text, token.bytes
