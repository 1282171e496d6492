"""End to end: texts by the real engine, judged token by token against the target's exact distribution.

The evidence may be watched while it grows; the cells of the first token have their n fixed before the first draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from specviz.checks.rows import total_variation
from specviz.checks.scoring import (
    ROUNDING,
    Scored,
    beyond_edge,
    distribution_of,
    features,
    plain_logits,
    score_text,
)
from specviz.checks.statistics import (
    COARSE,
    STAKES,
    SUSPICION,
    Cells,
    CheckOutcome,
    Evidence,
    bet_prices,
    count_cells,
    outcome_of_cells,
    tokens_needed,
)
from specviz.decoding.draws import Seeded, seed_of
from specviz.decoding.engine import speculate
from specviz.decoding.rule import Rule
from specviz.decoding.sampling import Sampling
from specviz.rules import ANY_CHAIN
from specviz.rules.broken import BROKEN, tamper_if_broken
from specviz.rules.chain import ChainRule
from specviz.session.setup import Setup

TEXT_LENGTH = 32  # tokens of one text
MOST_TOKENS = 10_000_000  # a rule that would need more counts as undetected
RUNS = 32  # first tokens between two results


@dataclass(frozen=True, slots=True)
class Power:
    """A rule that is not exact, and how many tokens it takes to detect it."""

    rule: Rule
    tokens_needed: int | None  # to detect it nine times in ten; None: too many


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """The texts judged so far."""

    done: int  # tokens
    total: int
    num_texts: int
    evidence: Evidence
    impossible: int = 0  # written tokens that the target's filters do not allow
    distance: float | None = None
    """The largest total variation at these places between p and what the rule writes where it judges one token, by
    formula; None without a draft model."""
    track: tuple[tuple[int, float], ...] = ()
    """(tokens, log10 E) after each text, and at each new peak that is the highest of its text: the verdict rests on the
    highest peak."""
    power: tuple[Power, ...] = ()
    log_probs: tuple[float, ...] = ()  # the mean log p of each text's tokens, in nats
    distances: tuple[float, ...] = ()  # the mean total variation over each text's tokens

    @property
    def outcome(self) -> CheckOutcome | None:
        """What the texts came to; None while nothing can be said. "differs" may come at any time."""
        if self.impossible:
            words = f"{self.impossible} of them have probability 0 under the target"
            return CheckOutcome("differs", f"differs, n = {self.done:,} tokens: {words}")
        return judge_evidence(self.evidence, self.done >= self.total, self._power_words())

    def _power_words(self) -> str:
        """Words for the wrong rules that so many tokens would have shown."""
        if not self.power:
            return ""
        missed = []
        for one in self.power:
            if one.tokens_needed is None or one.tokens_needed > self.done:
                missed.append(one.rule.title)
        caught = f"{len(self.power) - len(missed)} of {len(self.power)} rules known to be wrong"
        words = f"; {caught} would have been detected nine times in ten"
        return f"{words}, not {', '.join(missed)}" if missed else words


def judge_evidence(evidence: Evidence, is_complete: bool, more: str) -> CheckOutcome | None:
    """What the evidence came to; None while nothing can be said. "differs" may come at any time.

    more: words that the other outcomes add.
    """
    n = f"n = {evidence.num_tokens:,} tokens"
    if evidence.differs():
        return CheckOutcome("differs", f"differs, {n}: {_describe_strongest(evidence)}")
    if not is_complete:
        return None
    seen = max(evidence.smallest_shifts())
    if evidence.differs(SUSPICION):
        odds = float(f"{math.exp(evidence.peak):.2g}")
        words = (
            f"suspicious, {n}: {_describe_strongest(evidence)}; the evidence is {odds:,.0f} to 1 against the target's "
            f"distribution: draw about {evidence.tokens_to_go:,} more tokens and judge all of them together{more}"
        )
        return CheckOutcome("suspicious", words)
    if seen > COARSE:
        return CheckOutcome(
            "unsure", f"cannot tell, {n}: too few to see a shift of {100 * COARSE:.0f} points{more}"
        )
    words = (
        f"no difference found, {n}; one of {100 * seen:.1f} points per token would have shown{more}"
    )
    return CheckOutcome("consistent", words)


def _describe_strongest(evidence: Evidence) -> str:
    """Words for the feature that lies farthest off."""
    place = int(np.argmax(np.abs(evidence.z)))
    share = evidence.observed[place] / evidence.num_tokens
    expected = evidence.expected[place] / evidence.num_tokens
    return (
        f"{evidence.features[place]} was written {100 * share:.1f} % of the time; the target's probability is "
        f"{100 * expected:.1f} % (z = {evidence.z[place]:+.1f})"
    )


def end_to_end(
    pair: Setup,
    rule: Rule,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    k: int,
    tokens: int,
    seed: int = 0,
) -> Iterator[EndToEnd]:
    """Writes texts after the prompts in turn until there are `tokens` tokens; text i has seed_of(seed, i).

    Yields a result after each text; the first result stands before any.
    """
    so_far = EndToEnd(0, tokens, 0, Evidence.empty(features(pair.comparable_draft is not None)))
    yield so_far
    plan = pair.plan(rule, sampling, k)
    growth = Growth()
    while so_far.done < tokens:
        prompt = list(prompts[so_far.num_texts % len(prompts)])
        steps = speculate(
            prompt,
            lambda: plan,
            tamper_if_broken(rule, Seeded(seed_of(seed, so_far.num_texts))),
            max_new_tokens=min(TEXT_LENGTH, tokens - so_far.done),
            eos_ids=pair.target.text.eos_ids,
        )
        written = []
        unjudged = []
        for step in steps:
            written += step.tokens
            # The last token is the target's own, without a judged draft, unless it was resampled.
            is_own = step.verdict.kind != "resampled"
            num_accepted = len(step.verdict.path)
            unjudged += [is_own and place == num_accepted for place in range(len(step.tokens))]
        scored = score_text(pair, prompt, written, sampling)
        growth = growth.add(scored, unjudged)
        so_far = _add(so_far, rule, scored, growth)
        yield so_far


def _add(so_far: EndToEnd, rule: Rule, scored: Scored, growth: Growth) -> EndToEnd:
    distance = so_far.distance
    means = so_far.distances
    if scored.q is not None:
        distances = total_variation(rule.one_step_distribution(scored.p, scored.q), scored.p)
        distance = max(distance or 0.0, float(distances.max()))
        means = (*means, float(distances.mean()))
    chances = scored.p.gather(1, torch.tensor(scored.tokens)[:, None])
    evidence = so_far.evidence.add(scored.holds, scored.chances())
    points = {}
    if evidence.peak > so_far.evidence.peak:
        points[evidence.peak_at] = evidence.peak
    points[evidence.num_tokens] = evidence.level
    track = [(place, level / math.log(10)) for place, level in points.items()]
    return replace(
        so_far,
        done=evidence.num_tokens,
        num_texts=so_far.num_texts + 1,
        evidence=evidence,
        impossible=so_far.impossible + sum(not token.is_tie for token in scored.outside),
        distance=distance,
        track=(*so_far.track, *track),
        power=growth.power(),
        log_probs=(*so_far.log_probs, float(chances.log().mean())),
        distances=means,
    )


@dataclass(frozen=True, slots=True)
class Growth:
    """What each bet would gain at these places if another rule had written them, by its one-step distribution."""

    gains: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Rule -> the expected gains [F, L], summed over the tokens."""
    squares: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Rule -> the expected squares of the gains [F, L], summed likewise."""
    num_tokens: int = 0

    def add(self, scored: Scored, unjudged: Sequence[bool]) -> Growth:
        """The growth with a further text. unjudged: which tokens the target wrote without judging a drafted one."""
        if scored.q is None:
            return self
        paid = bet_prices(scored.chances())
        gains = {}
        squares = {}
        for rule in _inexact_rules():
            distribution = rule.one_step_distribution(scored.p, scored.q).double()
            unaided = rule.bonus(scored.p) if isinstance(rule, ChainRule) else scored.p
            distribution = torch.where(torch.tensor(unjudged)[:, None], unaided, distribution)
            chances = scored.chances(distribution)[..., None]
            gain = STAKES * chances - paid
            square = gain**2 + STAKES**2 * chances * (1 - chances)
            gains[rule.name] = self.gains.get(rule.name, 0.0) + gain.sum(0)
            squares[rule.name] = self.squares.get(rule.name, 0.0) + square.sum(0)
        return Growth(gains, squares, self.num_tokens + len(unjudged))

    def power(self) -> tuple[Power, ...]:
        if not self.gains:
            return ()
        power = []
        for rule in _inexact_rules():
            gain = self.gains[rule.name] / self.num_tokens
            square = self.squares[rule.name] / self.num_tokens
            needed = tokens_needed(gain, square - gain**2)
            power.append(Power(rule, math.ceil(needed) if needed <= MOST_TOKENS else None))
        return tuple(power)


def _inexact_rules() -> list[Rule]:
    """The rules that are not exact, as far as one place tells what they write."""
    rules = (*ANY_CHAIN.values(), *BROKEN.values())
    return [rule for rule in rules if rule.judges_alone and not rule.lossless]


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token after one prompt, drawn with many seeds; there is no verdict before n = total."""

    done: int
    total: int
    tokens: tuple[int, ...]
    cells: Cells

    @property
    def outcome(self) -> CheckOutcome | None:
        return None if self.done < self.total else outcome_of_cells(self.cells, " first tokens")


def first_token(
    pair: Setup,
    rule: Rule,
    prompt: Sequence[int],
    sampling: Sampling,
    k: int,
    n: int,
    seed: int = 0,
) -> Iterator[FirstToken]:
    """Runs the engine's first step n times, each with its own seed, and compares the counts with one plain forward.

    A token that only rounding lets through the filters counts as the least likely one that they allow.
    """
    logits = plain_logits(pair.target, prompt, 1)[0].cpu().double()
    distribution = distribution_of(logits, sampling)
    plan = pair.plan(rule, sampling, k)
    text = list(prompt)
    rounding = ROUNDING[pair.target.model.dtype]
    least_likely = int(torch.where(distribution > 0, distribution, math.inf).argmin())

    def draw(numbers: range) -> Iterator[int]:
        for number in numbers:
            draws = tamper_if_broken(rule, Seeded(seed_of(seed, number)))
            token = next(speculate(text, lambda: plan, draws, max_new_tokens=k + 1)).tokens[0]
            if distribution[token] == 0 and beyond_edge(logits, sampling, token) <= rounding:
                token = least_likely
            yield token

    for done, tokens, cells in count_cells(distribution.numpy(), n, RUNS, draw):
        yield FirstToken(done, n, tokens, cells)
