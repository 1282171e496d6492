"""Temperature 0: compares the engine's text with that of transformers' own `generate`, prompt by prompt.

Where they part, each token must still be the target's favourite up to rounding, by a plain forward.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specviz.checks.scoring import ROUNDING, Outside, find_outside, plain_logits
from specviz.checks.statistics import CheckOutcome
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import speculate
from specviz.decoding.rule import Rule
from specviz.decoding.sampling import Sampling
from specviz.models.pool import LoadedModel
from specviz.session.setup import Setup

GREEDY = Sampling(0.0)


@dataclass(frozen=True, slots=True)
class TextDifference:
    """Where the engine's text first parts from the target's own, with the target's logits of both tokens there."""

    prompt: int
    place: int
    ours: int
    expected: int
    our_logit: float
    expected_logit: float


@dataclass(frozen=True, slots=True)
class Greedy:
    """Prompts compared so far. differences: at most one per prompt; wrong: tokens that are no favourite even up to
    rounding; ties: those that are one only up to rounding; num_cut: texts that only end at another place; num_close:
    differences between two tokens that are equally good up to rounding."""

    done: int
    total: int
    num_tokens: int = 0
    differences: tuple[TextDifference, ...] = ()
    wrong: tuple[Outside, ...] = ()
    ties: tuple[Outside, ...] = ()
    num_cut: int = 0
    num_close: int = 0

    @property
    def outcome(self) -> CheckOutcome | None:
        """None before all prompts have been compared, unless one differs."""
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
        words = f"consistent, n = {self.num_tokens:,}: each of {compared} is the target's most likely token"
        up_to, why = "", "There, the reference itself does not write the most likely token."
        if self.ties or self.num_close == len(self.differences):
            up_to, why = " up to rounding", "The texts differ there by rounding."
        return CheckOutcome(
            "consistent", f"{words}{up_to}. {_describe_first(self.differences, self.ties)} {why}"
        )


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
    """One prompt after the other; the first result stands before any. sampling: greedy but for the draft's own part."""
    so_far = Greedy(0, len(prompts))
    yield so_far
    plan, target = pair.plan(rule, sampling, k), pair.target
    for number, prompt in enumerate(prompts):
        limits = {"max_new_tokens": num_tokens, "eos_ids": target.text.eos_ids}
        steps = speculate(list(prompt), lambda: plan, Seeded(number), **limits)
        ours = [token for step in steps for token in step.tokens]
        (expected,) = target.generate(
            [prompt], min(num_tokens, target.info.context_limit - len(prompt))
        )
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
    wrong, ties = (
        tuple(token for token in outside if token.is_tie == is_tie) for is_tie in (False, True)
    )
    so_far = replace(so_far, wrong=so_far.wrong + wrong, ties=so_far.ties + ties)
    both = zip(ours, expected, strict=False)
    place = next((place for place, (mine, other) in enumerate(both) if mine != other), None)
    if place is None:
        return replace(so_far, num_cut=so_far.num_cut + 1)
    mine, other = (float(logits[place, text[place]]) for text in (ours, expected))
    difference = TextDifference(number, place, ours[place], expected[place], mine, other)
    num_close = so_far.num_close + (abs(mine - other) <= rounding)
    return replace(so_far, differences=(*so_far.differences, difference), num_close=num_close)
