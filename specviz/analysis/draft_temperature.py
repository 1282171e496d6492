"""How much p and q would overlap at other temperatures of the draft: from a recorded run alone, or from its models.

A trace holds the unfiltered q of both models' likeliest tokens and the sum of the rest, so another temperature's q is
known up to how that rest is spread: the result is what it is at least and at most.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from specviz.decoding.sampling import Sampling
from specviz.decoding.turns import give_way
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel, check_pair
from specviz.models.score import CHUNK, TextIds, overlap_of, read
from specviz.trace import Position, Trace

SURE = 0.02  # a narrower range counts as known
NUM_LIKELIEST = 8  # of the draft's tokens that every recorded position holds at least
MANY = 1 << 24  # tokens in a vocabulary of unknown size; more only widen the range


@dataclass(frozen=True, slots=True)
class OverlapCurve:
    """Mean sum min(p, q) at each of `temperatures`, at least and at most, over so many positions. own: the draft's
    temperature in the run, None where it changed."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    num_positions: int
    own: float | None
    is_exact: bool = False
    temperatures: ClassVar = tuple(step / 10 for step in range(21))  # 0 to 2

    @property
    def best(self) -> tuple[float, float] | None:
        """The temperature with the largest overlap, and that; None where not every value is known."""
        pairs = zip(self.known, self.temperatures, strict=True)
        return None if None in self.known else max(pairs, key=lambda pair: pair[0])[::-1]

    @property
    def known(self) -> tuple[float | None, ...]:
        """The middle of each range that is narrow enough; None for the others."""
        pairs = zip(self.low, self.high, strict=True)
        return tuple((low + high) / 2 if high - low < SURE else None for low, high in pairs)


def read_overlaps(recorded: Trace) -> OverlapCurve:
    """From the judged positions of a trace. SpecvizError where none has a q of its own that was not filtered."""
    found, own = [], set()
    for step in recorded.steps:
        drawn = [
            each for each in step.positions if each.child is not None and each.overlap is not None
        ]
        distribution = Sampling.of(step.settings).of_draft
        if drawn and (distribution.top_k or distribution.top_p < 1):
            raise SpecvizError(
                "the draft was filtered by top-k or top-p: what it left out is not recorded"
            )
        found += drawn
        own |= {distribution.temperature} if drawn else set()
    if not found:
        raise SpecvizError("no drafted token of this run was judged against a q of its own")
    size = recorded.models[-1].target.vocab_size or MANY
    low, high = np.mean(
        [_range(each, np.array(OverlapCurve.temperatures), size) for each in found], axis=0
    ).tolist()
    return OverlapCurve(tuple(low), tuple(high), len(found), own.pop() if len(own) == 1 else None)


def ask_models(recorded: Trace, target: LoadedModel, draft: LoadedModel) -> OverlapCurve:
    """Exact over every position of the text: one pass of both models, the draft unfiltered. SpecvizError."""
    check_pair(target, draft)
    own, sums, count = (
        Sampling.of(recorded.steps[-1].settings),
        np.zeros(len(OverlapCurve.temperatures)),
        0,
    )
    text = TextIds(
        *(
            [token.id for token in tokens]
            for tokens in (recorded.header.prompt.tokens, recorded.tokens)
        )
    )
    for rows in read(target, [draft], [text]):
        for start in range(0, len(rows.token), CHUNK):
            piece = slice(start, start + CHUNK)
            readable = rows.drafts[0].readable[piece]
            p, logits = (
                own.probs(rows.target[piece])[readable],
                rows.drafts[0].logits[piece][readable],
            )
            for number, each in enumerate(OverlapCurve.temperatures):
                give_way()
                sums[number] += float(overlap_of(p, Sampling(each).probs(logits)).double().sum())
            count += len(p)
    if not count:
        raise SpecvizError(f"{draft.name} cannot read this text")
    mean = tuple((sums / count).tolist())
    return OverlapCurve(mean, mean, count, own.of_draft.temperature, is_exact=True)


def _range(position: Position, temperatures: np.ndarray, size: int) -> np.ndarray:
    """[2, T]: the overlap at one position, at least and at most."""
    _, _, p, q, _, _, q_raw = zip(*position.top, strict=True)
    p, raw = np.array(p), np.array(q_raw)
    rest, rest_p, num_others = position.rest["q_raw"], position.rest["p"], max(1, size - len(p))
    likeliest = np.sort(raw[np.array(q) > 0])[::-1]
    most = likeliest[min(NUM_LIKELIEST, len(likeliest)) - 1]  # no token of the rest has more
    sure = p[raw.argmax()]  # temperature 0
    power = 1 / np.maximum(temperatures, 1e-3)[:, None]
    shown = (raw / raw.max()) ** power  # [T, n]
    bounds = (
        rest / most * (most / raw.max()) ** power,
        num_others * (rest / num_others / raw.max()) ** power,
    )
    few, many = np.minimum(*bounds), np.maximum(*bounds)  # what all others weigh, [T, 1]
    total = shown.sum(1, keepdims=True)
    low = np.minimum(p, shown / (total + many)).sum(1)
    high = (
        np.minimum(p, shown / (total + few)).sum(1)
        + np.minimum(rest_p, many / (total + many))[:, 0]
    )
    greedy = temperatures == 0
    return np.stack([np.where(greedy, sure, low), np.where(greedy, sure, np.minimum(high, 1.0))])
