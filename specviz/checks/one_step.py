"""One place of a run: the identity that makes speculative sampling exact, a rule's exact law there, and redraws.

The law comes from the rule's formula. The redraws are its illustration: each is judged by the rule's own __call__.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specviz import trace
from specviz.checks.rows import normalise, step_rows, total_variation
from specviz.checks.statistics import (
    Cells,
    CheckOutcome,
    count_cells,
    draws_needed,
    likeliest_outcomes,
    outcome_of_cells,
    pool_shares,
)
from specviz.decoding.draft import chain
from specviz.decoding.draws import DRAFT, Draws, Seeded
from specviz.decoding.rule import Rule
from specviz.models.pool import LoadedModel
from specviz.rules.broken import BrokenRule

MOST_PLACES = 512
MOST_STORED = 20_000_000  # numbers in the places' rows, two of the vocabulary each
BATCH = 256
MOST_NUMBERS = 4_000_000  # held at once
SAME = 1e-6  # laws from rows in float32 that lie no farther apart are equal
TELLING = (0.3, 0.7)  # agreements at which a wrong rule shows


@dataclass(frozen=True, slots=True, eq=False)
class DraftedPlace:
    """A drafted token of a run. p: the target's law there, q: the draft's, both [V] in float64 on the CPU."""

    step: int
    node: int
    token: int
    is_judged: bool
    p: Tensor
    q: Tensor

    @property
    def agreement(self) -> float:
        """sum min(p, q)"""
        return float(torch.minimum(self.p, self.q).sum())


def places(
    recorded: trace.Trace, target: LoadedModel, draft: LoadedModel | None
) -> Iterator[DraftedPlace]:
    """The places at which this draft model gave odds, in order, as many as may be kept. Raises SpecvizError."""
    found, most = 0, min(MOST_PLACES, max(1, MOST_STORED // (2 * target.info.vocab_size)))
    for rows in step_rows(recorded, target, draft):
        for node in range(len(rows.draft)):
            if rows.draft.probs[node] is None:
                break
            if found == most:
                return
            token, p, q = (
                rows.record.draft[node],
                normalise(rows.probs[node]),
                normalise(rows.draft.probs[node]),
            )
            yield DraftedPlace(rows.record.index, node, token.id, token.is_judged, p, q)
            found += 1


@dataclass(frozen=True, slots=True)
class Share:
    """One token's share of everything; token None: all others together."""

    token: int | None
    p: float
    q: float
    overlap: float  # min(p, q): what the draft may keep
    shortfall: float  # max(0, p - q): what the replacement brings
    excess: float  # max(0, q - p): what the check throws away

    @property
    def written(self) -> float:
        """Kept and replaced together: p again."""
        return self.overlap + self.shortfall


@dataclass(frozen=True, slots=True)
class SumIdentity:
    """min(p, q) + max(0, p - q) = p, token by token. rows: the likeliest tokens and all others; sums: the whole."""

    step: int
    node: int
    rows: tuple[Share, ...]
    sums: Share
    num_tokens: int  # of the whole vocabulary
    largest_error: float  # of the identity, over all of it


def identity(place: DraftedPlace, most: int = 8) -> SumIdentity:
    p, q = place.p, place.q
    columns = torch.stack(
        [p, q, torch.minimum(p, q), (p - q).clamp_min(0), (q - p).clamp_min(0)]
    )  # [5, V]
    union = torch.maximum(p, q).topk(min(most, len(p))).indices.tolist()
    shown = sorted(
        {place.token, *union}, key=lambda token: (token != place.token, -float(p[token]))
    )
    sums = columns.sum(1)
    rest = Share(None, *(sums - columns[:, shown].sum(1)).clamp_min(0).tolist())
    rows = (*(Share(token, *columns[:, token].tolist()) for token in shown), rest)
    error = float((columns[2] + columns[3] - p).abs().max())
    return SumIdentity(place.step, place.node, rows, Share(None, *sums.tolist()), len(p), error)


@dataclass(frozen=True, slots=True)
class RuleHere:
    """A rule at one place, by its formula for a token that is judged alone: how a rule judges a whole draft is not in
    it. distance: total variation between what it writes and p."""

    rule: Rule
    kept: float  # how often the drafted token is kept
    distance: float
    draws_needed: int | None  # until cells show the difference; None: too many, or no difference


def rule_here(place: DraftedPlace, rule: Rule) -> RuleHere:
    distribution = rule.one_step_distribution(place.p, place.q).double()
    distance, needed = float(total_variation(distribution, place.p)), None
    if distance > SAME:
        outcomes = likeliest_outcomes(place.p.numpy())
        needed = draws_needed(
            *(pool_shares(row.numpy(), outcomes) for row in (place.p, distribution))
        )
    return RuleHere(rule, float(rule.one_step_accepted(place.p, place.q).sum()), distance, needed)


def worst_place(candidates: Sequence[DraftedPlace], rule: Rule) -> DraftedPlace:
    """The judged place where `rule` strays farthest from p, one with an agreement in TELLING if there is any; for a
    rule that strays nowhere the one whose agreement is nearest to a half. Raises ValueError for no place."""
    judged = [place for place in candidates if place.is_judged]
    if not judged:
        raise ValueError("candidates must hold a judged place (got none)")
    telling = [place for place in judged if TELLING[0] <= place.agreement <= TELLING[1]] or judged
    distances = [
        float(total_variation(rule.one_step_distribution(place.p, place.q), place.p))
        for place in telling
    ]
    if max(distances) <= SAME:
        return min(telling, key=lambda place: abs(place.agreement - 0.5))
    return telling[distances.index(max(distances))]


@dataclass(frozen=True, slots=True)
class Redraws:
    """The first token written, counted over redraws of one place. tokens: those with a cell of their own; the last
    cell is all others. n = total was fixed before the first draw: there is no verdict until it is reached."""

    done: int
    total: int
    here: RuleHere
    tokens: tuple[int, ...]
    cells: Cells  # the target's shares, and the counts so far
    formula: tuple[float, ...]  # the rule's own shares, by its formula

    @property
    def outcome(self) -> CheckOutcome | None:
        if self.done < self.total:
            return None
        found, n = outcome_of_cells(self.cells), f"n = {self.total:,}"
        if found.state == "differs":
            return found
        if self.here.distance > SAME:
            enough = (
                f"about {self.here.draws_needed:,} draws"
                if self.here.draws_needed
                else "more draws than fit here"
            )
            return CheckOutcome(
                "unsure",
                f"cannot tell, {n}: by formula the rule is wrong here; {enough} would show it",
            )
        if not self.here.rule.lossless:
            return CheckOutcome(
                "unsure", f"cannot tell, {n}: the rule's error has no effect on this token"
            )
        return found


def redraws(place: DraftedPlace, rule: Rule, n: int, seed: int = 0) -> Iterator[Redraws]:
    """Draws the place's token n times from the law that the rule's draft really uses, and lets the rule judge each. The
    first result stands before any draw."""
    if n < 1:
        raise ValueError(f"n must be >= 1 (got {n})")
    here, distribution = (
        rule_here(place, rule),
        rule.one_step_distribution(place.p, place.q).double().numpy(),
    )
    batch = max(1, min(BATCH, MOST_NUMBERS // len(place.p)))
    draw = partial(_redraw, place, rule, Seeded(seed))
    for done, tokens, cells in count_cells(place.p.numpy(), n, batch, draw):
        yield Redraws(done, n, here, tokens, cells, pool_shares(distribution, tokens))


@torch.inference_mode()
def _redraw(place: DraftedPlace, rule: Rule, draws: Draws, numbers: range) -> list[int]:
    """The first emitted token of each of these redraws; a redraw's number is its address among the draws."""
    source = rule.draft_distribution(place.q) if isinstance(rule, BrokenRule) else place.q
    drafted = draws.sample(source.expand(len(numbers), -1), DRAFT, numbers.start, 0).tolist()
    drafts = {token: chain((token,), (place.q,)) for token in set(drafted)}
    probs = torch.stack([place.p, place.p])  # the row after an accepted token is not used
    pairs = zip(numbers, (drafts[token] for token in drafted), strict=True)
    return [rule(draft, probs, draws, number).emitted(draft)[0] for number, draft in pairs]
