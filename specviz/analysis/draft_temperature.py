"""How much p and q would overlap at other temperatures of the draft: from a recorded run alone, or from its models.

A trace holds the unfiltered q of both models' most likely tokens and the sum of the rest. How that rest is spread is
not known, so the overlap at another temperature is known only as a range.
"""

from dataclasses import dataclass, replace
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
    """The mean overlap, sum min(p, q), at each of `temperatures`."""

    low: tuple[float, ...]  # the least that it can be
    high: tuple[float, ...]  # the most that it can be
    num_positions: int
    own: float | None  # the draft's temperature in the run; None where it changed
    is_exact: bool = False
    temperatures: ClassVar = tuple(step / 10 for step in range(21))  # 0 to 2

    @property
    def best(self) -> tuple[float, float] | None:
        """(temperature, overlap) where the overlap is largest; None where not every value is known."""
        known = self.known
        if None in known:
            return None
        best = max(range(len(known)), key=known.__getitem__)
        return self.temperatures[best], known[best]

    @property
    def known(self) -> tuple[float | None, ...]:
        """The middle of each range that is narrow enough; None for the others."""
        middles = []
        for low, high in zip(self.low, self.high, strict=True):
            middles.append((low + high) / 2 if high - low < SURE else None)
        return tuple(middles)


def read_overlaps(recorded: Trace) -> OverlapCurve:
    """The overlaps from the judged positions of a trace.

    Raises SpecvizError where no position has a q of its own that was not filtered.
    """
    judged: list[Position] = []
    draft_temperatures = set()
    for step in recorded.steps:
        sampling = Sampling.of(step.settings).of_draft
        positions = [
            position
            for position in step.positions
            if position.child is not None and position.overlap is not None
        ]
        if not positions:
            continue
        if replace(sampling, temperature=1.0) != Sampling():
            raise SpecvizError(
                "the draft was filtered by top-k, top-p or min-p: what it left out is not recorded"
            )
        judged += positions
        draft_temperatures.add(sampling.temperature)
    if not judged:
        raise SpecvizError("no drafted token of this run was judged against a q of its own")
    vocab_size = recorded.models[-1].target.vocab_size or MANY
    temperatures = np.array(OverlapCurve.temperatures)
    ranges = [_overlap_range(position, temperatures, vocab_size) for position in judged]
    low, high = np.mean(ranges, axis=0).tolist()
    own = draft_temperatures.pop() if len(draft_temperatures) == 1 else None
    return OverlapCurve(tuple(low), tuple(high), len(judged), own)


def ask_models(recorded: Trace, target: LoadedModel, draft: LoadedModel) -> OverlapCurve:
    """The exact overlaps over every position of the text: one pass of both models, the draft unfiltered.

    Raises SpecvizError where the draft model cannot read the text.
    """
    check_pair(target, draft)
    sampling = Sampling.of(recorded.steps[-1].settings)
    prompt_ids = [token.id for token in recorded.header.prompt.tokens]
    text = TextIds(prompt_ids, [token.id for token in recorded.tokens])
    sums = np.zeros(len(OverlapCurve.temperatures))
    num_positions = 0
    for rows in read(target, [draft], [text]):
        for start in range(0, len(rows.token), CHUNK):
            chunk = slice(start, start + CHUNK)
            readable = rows.drafts[0].readable[chunk]
            p = sampling.probs(rows.target[chunk])[readable]
            logits = rows.drafts[0].logits[chunk][readable]
            for index, temperature in enumerate(OverlapCurve.temperatures):
                give_way()
                overlaps = overlap_of(p, Sampling(temperature).probs(logits))
                sums[index] += float(overlaps.double().sum())
            num_positions += len(p)
    if not num_positions:
        raise SpecvizError(f"{draft.name} cannot read this text")
    mean = tuple((sums / num_positions).tolist())
    return OverlapCurve(mean, mean, num_positions, sampling.of_draft.temperature, is_exact=True)


def _overlap_range(position: Position, temperatures: np.ndarray, vocab_size: int) -> np.ndarray:
    """The overlap at one position [2, T]: the least and the most that it can be at each temperature."""
    _, _, top_p, top_q, _, _, top_raw = zip(*position.top, strict=True)
    p = np.array(top_p)  # [n]
    raw = np.array(top_raw)
    rest = position.rest["q_raw"]
    rest_p = position.rest["p"]
    num_others = max(1, vocab_size - len(p))
    likeliest = np.sort(raw[np.array(top_q) > 0])[::-1]
    rest_most = likeliest[min(NUM_LIKELIEST, len(likeliest)) - 1]  # no token of the rest has more
    power = 1 / np.maximum(temperatures, 1e-3)[:, None]  # [T, 1]
    top_weights = (raw / raw.max()) ** power  # [T, n]
    # The weight of all other tokens [T, 1]: as few of them as can be, or all of them alike.
    concentrated = rest / rest_most * (rest_most / raw.max()) ** power
    spread = num_others * (rest / num_others / raw.max()) ** power
    rest_low = np.minimum(concentrated, spread)
    rest_high = np.maximum(concentrated, spread)
    top_total = top_weights.sum(1, keepdims=True)  # [T, 1]
    low = np.minimum(p, top_weights / (top_total + rest_high)).sum(1)
    high = np.minimum(p, top_weights / (top_total + rest_low)).sum(1)
    high += np.minimum(rest_p, rest_high / (top_total + rest_high))[:, 0]
    is_greedy = temperatures == 0
    greedy = p[raw.argmax()]
    return np.stack(
        [np.where(is_greedy, greedy, low), np.where(is_greedy, greedy, np.minimum(high, 1.0))]
    )
