"""One place of a run: the identity behind speculative sampling, a rule's exact distribution there, and redraws.

The distribution comes from the rule's formula. The redraws illustrate it: the rule's own __call__ judges each.
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
SAME = 1e-6  # distributions from float32 rows that lie no farther apart are equal
TELLING = (0.3, 0.7)  # agreements at which a wrong rule shows


@dataclass(frozen=True, slots=True, eq=False)
class DraftedPlace:
    """A drafted token of a run, with both distributions at its place."""

    step: int
    node: int
    token: int
    is_judged: bool
    p: Tensor  # [V] the target's, in float64 on the CPU
    q: Tensor  # [V] the draft's, likewise

    @property
    def agreement(self) -> float:
        """The overlap of both distributions: sum min(p, q)."""
        return float(torch.minimum(self.p, self.q).sum())


def places(
    recorded: trace.Trace, target: LoadedModel, draft: LoadedModel | None
) -> Iterator[DraftedPlace]:
    """Yields the places at which this draft model gave probabilities, in order, up to the limits of memory.

    Raises SpecvizError.
    """
    most = min(MOST_PLACES, max(1, MOST_STORED // (2 * target.info.vocab_size)))
    num_places = 0
    for rows in step_rows(recorded, target, draft):
        for node, token in enumerate(rows.record.draft):
            if rows.draft.probs[node] is None:
                break
            if num_places == most:
                return
            p = normalise(rows.probs[node])
            q = normalise(rows.draft.probs[node])
            yield DraftedPlace(rows.record.index, node, token.id, token.is_judged, p, q)
            num_places += 1


@dataclass(frozen=True, slots=True)
class Share:
    """One token's share of all probability."""

    token: int | None  # None: all other tokens together
    p: float
    q: float
    overlap: float  # min(p, q): drafted and accepted
    shortfall: float  # max(0, p - q): resampled
    excess: float  # max(0, q - p): drafted and rejected

    @property
    def written(self) -> float:
        """Accepted and resampled together: p again."""
        return self.overlap + self.shortfall


@dataclass(frozen=True, slots=True)
class SumIdentity:
    """The identity min(p, q) + max(0, p - q) = p, token by token."""

    step: int
    node: int
    rows: tuple[Share, ...]  # the most likely tokens, and last all others
    sums: Share  # the whole vocabulary
    num_tokens: int  # of the whole vocabulary
    largest_error: float  # of the identity, over the whole vocabulary


def identity(place: DraftedPlace, most: int = 8) -> SumIdentity:
    """The identity at one place; `most` tokens and the drafted one have a row of their own, the drafted one first."""
    p = place.p
    q = place.q
    overlap = torch.minimum(p, q)
    shortfall = (p - q).clamp_min(0)
    columns = torch.stack([p, q, overlap, shortfall, (q - p).clamp_min(0)])  # [5, V]
    likeliest = torch.maximum(p, q).topk(min(most, len(p))).indices.tolist()
    shown = sorted(
        {place.token, *likeliest}, key=lambda token: (token != place.token, -float(p[token]))
    )
    sums = columns.sum(1)
    rest = (sums - columns[:, shown].sum(1)).clamp_min(0)
    rows = [Share(token, *columns[:, token].tolist()) for token in shown]
    rows.append(Share(None, *rest.tolist()))
    error = float((overlap + shortfall - p).abs().max())
    total = Share(None, *sums.tolist())
    return SumIdentity(place.step, place.node, tuple(rows), total, len(p), error)


@dataclass(frozen=True, slots=True)
class RuleHere:
    """A rule at one place, by its formula for a token that is judged alone.

    How a rule judges a whole draft is not in it.
    """

    rule: Rule
    accepted: float  # how often the drafted token is accepted
    distance: float  # the total variation between what the rule writes and p
    draws_needed: int | None  # until cells show the difference; None: too many, or no difference


def rule_here(place: DraftedPlace, rule: Rule) -> RuleHere:
    distribution = rule.one_step_distribution(place.p, place.q).double()
    distance = float(total_variation(distribution, place.p))
    accepted = float(rule.one_step_accepted(place.p, place.q).sum())
    needed = None
    if distance > SAME:
        p = place.p.numpy()
        outcomes = likeliest_outcomes(p)
        expected = pool_shares(p, outcomes)
        needed = draws_needed(expected, pool_shares(distribution.numpy(), outcomes))
    return RuleHere(rule, accepted, distance, needed)


def worst_place(candidates: Sequence[DraftedPlace], rule: Rule) -> DraftedPlace:
    """The judged place where `rule` strays farthest from p, with an agreement in TELLING if there is such a place.

    For a rule that strays nowhere it is the place where the agreement is nearest to a half. Raises ValueError for no
    place.
    """
    judged = [place for place in candidates if place.is_judged]
    if not judged:
        raise ValueError("candidates must hold a judged place (got none)")
    telling = [place for place in judged if TELLING[0] <= place.agreement <= TELLING[1]] or judged
    distances = []
    for place in telling:
        distribution = rule.one_step_distribution(place.p, place.q)
        distances.append(float(total_variation(distribution, place.p)))
    if max(distances) <= SAME:
        return min(telling, key=lambda place: abs(place.agreement - 0.5))
    return telling[distances.index(max(distances))]


@dataclass(frozen=True, slots=True)
class Redraws:
    """The first token written, counted over redraws of one place.

    n = total was fixed before the first draw: there is no verdict until it is reached.
    """

    done: int
    total: int
    here: RuleHere
    tokens: tuple[int, ...]  # the tokens with a cell of their own; the last cell is all others
    cells: Cells  # the target's shares, and the counts so far
    formula: tuple[float, ...]  # the rule's own shares, by its formula

    @property
    def outcome(self) -> CheckOutcome | None:
        if self.done < self.total:
            return None
        counted = outcome_of_cells(self.cells)
        if counted.state == "differs":
            return counted
        words = f"cannot tell, n = {self.total:,}"
        if self.here.distance > SAME:
            enough = "more draws than fit here"
            if self.here.draws_needed:
                enough = f"about {self.here.draws_needed:,} draws"
            words += f": by formula the rule is wrong here; {enough} would show it"
            return CheckOutcome("unsure", words)
        if not self.here.rule.lossless:
            return CheckOutcome("unsure", f"{words}: the rule's error has no effect on this token")
        return counted


def redraws(place: DraftedPlace, rule: Rule, n: int, seed: int = 0) -> Iterator[Redraws]:
    """Draws the place's token n times, and lets the rule judge each; the first result stands before any draw.

    The token is drawn from the distribution that the rule's draft really uses.
    """
    if n < 1:
        raise ValueError(f"n must be >= 1 (got {n})")
    here = rule_here(place, rule)
    distribution = rule.one_step_distribution(place.p, place.q).double().numpy()
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
    emitted = []
    for number, token in zip(numbers, drafted, strict=True):
        verdict = rule(drafts[token], probs, draws, number)
        emitted.append(verdict.emitted(drafts[token])[0])
    return emitted
