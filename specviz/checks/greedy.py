"""Temperature 0: compares the engine's text with the text of transformers' own `generate`, prompt by prompt.

Where they part, each token must still be the target's most likely one up to rounding, by a plain forward.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specviz.checks.scoring import ROUNDING, Outside, find_outside, plain_logits
from specviz.checks.statistics import CheckOutcome
from specviz.decoding.draft import common_prefix
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import speculate
from specviz.decoding.rule import Rule
from specviz.decoding.sampling import Sampling
from specviz.models.pool import LoadedModel
from specviz.session.setup import Setup

GREEDY = Sampling(0.0)


@dataclass(frozen=True, slots=True)
class TextDifference:
    """The first token at which the engine's text parts from the target's own."""

    prompt: int
    place: int
    ours: int
    expected: int  # what the target alone writes
    our_logit: float  # the target's, as is the next
    expected_logit: float


@dataclass(frozen=True, slots=True)
class Greedy:
    """The prompts compared so far."""

    done: int
    total: int
    num_tokens: int = 0
    differences: tuple[TextDifference, ...] = ()  # at most one per prompt
    wrong: tuple[Outside, ...] = ()  # tokens that are not the most likely ones even up to rounding
    ties: tuple[Outside, ...] = ()  # tokens that are the most likely ones only up to rounding
    num_cut: int = 0  # texts that only end at another place
    num_close: int = 0  # differences between two tokens that are equally likely up to rounding

    @property
    def outcome(self) -> CheckOutcome | None:
        """What the comparison came to; None before all prompts are compared, unless one differs."""
        if self.wrong:
            words = _describe_first(self.differences, self.wrong)
            return CheckOutcome("differs", f"{words} The target would not have written it.")
        if self.num_cut:
            return CheckOutcome(
                "differs", f"{self.num_cut} of the texts end where the target's own do not."
            )
        if self.done < self.total:
            return None
        compared = f"{self.num_tokens:,} tokens after {self.total} prompts"
        if not self.differences:
            return CheckOutcome(
                "exact", f"exact, token by token: {compared}, equal to the target's own greedy text"
            )
        words = f"no difference found, n = {self.num_tokens:,}: each of {compared} is the target's most likely token"
        first = _describe_first(self.differences, self.ties)
        if self.ties or self.num_close == len(self.differences):
            words += f" up to rounding. {first} The texts differ there by rounding."
        else:
            words += f". {first} There, the reference itself does not write the most likely token."
        return CheckOutcome("consistent", words)


def _describe_first(differences: Sequence[TextDifference], tokens: Sequence[Outside]) -> str:
    if differences:
        difference = differences[0]
        return (
            f"Prompt {difference.prompt + 1}, token {difference.place + 1}: written id {difference.ours} (logit "
            f"{difference.our_logit:.6f}), the target alone writes id {difference.expected} "
            f"(logit {difference.expected_logit:.6f})."
        )
    token = tokens[0]
    return (
        f"Token {token.place + 1} is id {token.token} (logit {token.logit:.6f}), the most likely token is id "
        f"{token.most_likely} (logit {token.most_likely_logit:.6f})."
    )


def greedy(
    pair: Setup,
    rule: Rule,
    prompts: Sequence[Sequence[int]],
    k: int,
    num_tokens: int,
    sampling: Sampling = GREEDY,
) -> Iterator[Greedy]:
    """Compares one prompt after the other; the first result stands before any.

    sampling: greedy for the target; the draft may have a sampling of its own.
    """
    so_far = Greedy(0, len(prompts))
    yield so_far
    plan = pair.plan(rule, sampling, k)
    target = pair.target
    for number, prompt in enumerate(prompts):
        steps = speculate(
            list(prompt),
            lambda: plan,
            Seeded(number),
            max_new_tokens=num_tokens,
            eos_ids=target.text.eos_ids,
        )
        ours = [token for step in steps for token in step.tokens]
        room = target.info.context_limit - len(prompt)
        expected = target.generate([prompt], min(num_tokens, room))[0]
        so_far = _compare(so_far, target, number, prompt, ours, expected)
        yield so_far


def _compare(
    so_far: Greedy,
    target: LoadedModel,
    number: int,
    prompt: Sequence[int],
    ours: list[int],
    expected: list[int],
) -> Greedy:
    so_far = replace(so_far, done=so_far.done + 1, num_tokens=so_far.num_tokens + len(ours))
    if ours == expected:
        return so_far
    rounding = ROUNDING[target.model.dtype]
    logits = plain_logits(target, [*prompt, *ours[:-1]], len(ours)).cpu().double()
    outside = find_outside(logits, GREEDY, ours, rounding)
    wrong = tuple(token for token in outside if not token.is_tie)
    ties = tuple(token for token in outside if token.is_tie)
    so_far = replace(so_far, wrong=so_far.wrong + wrong, ties=so_far.ties + ties)
    shorter = min(len(ours), len(expected))
    place = common_prefix(ours, expected, shorter)
    if place == shorter:
        return replace(so_far, num_cut=so_far.num_cut + 1)
    our_logit = float(logits[place, ours[place]])
    expected_logit = float(logits[place, expected[place]])
    difference = TextDifference(
        number, place, ours[place], expected[place], our_logit, expected_logit
    )
    num_close = so_far.num_close + (abs(our_logit - expected_logit) <= rounding)
    return replace(so_far, differences=(*so_far.differences, difference), num_close=num_close)
