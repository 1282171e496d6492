"""The columns of the token table from what two servers tell, with bounds where they do not tell enough.

The overlap sum min(p, q) goes over all tokens, of which a server names a few. Those named by both count exactly; for
the rest stands min(1, q/p) of the text's own token, whose mean over texts of the target is just what the rest adds up
to. So a mean of overlaps is right over many tokens, while one of them alone can exceed 1.
"""

from dataclasses import dataclass

import numpy as np

from specviz.alignment.served.top_rows import TopProbs, TopRows, probabilities
from specviz.alignment.token_stats import Numbers
from specviz.alignment.types import BINS, Array, Bounds, Range
from specviz.analysis.whatif import acceptance_chances
from specviz.decoding.sampling import Sampling


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """What one server tells of a text, and the probabilities that follow."""

    rows: TopRows
    probs: TopProbs

    @classmethod
    def of(cls, rows: TopRows, sampling: Sampling) -> "Told":
        return cls(rows, probabilities(rows, sampling))

    @property
    def most_likely(self) -> Array:
        return self.rows.ids[:, 0]

    def chance_of(self, tokens: Array) -> Range:
        """The probability of a token at each place [N]."""
        is_it = self.rows.ids == tokens[:, None]
        is_named = is_it.any(1)
        is_own = self.rows.tokens == tokens
        probs = self.probs
        low_named = (probs.top.low * is_it).sum(1)
        high_named = (probs.top.high * is_it).sum(1)
        low_unnamed = np.where(is_own, probs.token.low, 0.0)
        high_unnamed = np.where(is_own, probs.token.high, probs.other)
        return Range(
            np.where(is_named, low_named, low_unnamed),
            np.where(is_named, high_named, high_unnamed),
        )

    def rank_of(self, tokens: Array) -> Array:
        """The rank of a token at each place, 1 for the likeliest [N]; behind all that are named if it is not."""
        is_it = self.rows.ids == tokens[:, None]
        return np.where(is_it.any(1), is_it.argmax(1), (self.rows.ids >= 0).sum(1)) + 1


def target_columns(target: Told) -> Numbers:
    """The target's columns [N]. Its entropy is not known, as whole rows are not."""
    return {
        "p": target.probs.token.middle,
        "p_entropy": np.full(len(target.rows.tokens), np.nan),
        "most_likely": target.most_likely,
        "most_likely_p": target.probs.top.middle[:, 0],
    }


def draft_columns(target: Told, draft: Told) -> Numbers:
    """A draft's columns [N] and its bounds."""
    bounds = _bounds(target, draft)
    best = draft.most_likely
    return {
        "q": draft.probs.token.middle,
        "overlap": bounds.overlap.middle,
        "keep": bounds.keep.middle,
        "q_entropy": np.full(len(best), np.nan),
        "draft_most_likely_q": draft.probs.top.middle[:, 0],
        "target_most_likely_q": draft.chance_of(target.most_likely).middle,
        "draft_most_likely": best,
        "draft_most_likely_p": bounds.argmax.middle,
        "rank_in_draft": draft.rank_of(target.most_likely),
        "rank_in_target": target.rank_of(best),
        "outside": np.zeros(len(best)),
        "readable": np.ones(len(best), dtype=bool),
        "confidence": _confidence(target, draft, bounds.overlap.middle),
        "bounds": bounds,
    }


def _bounds(target: Told, draft: Told) -> Bounds:
    p = target.probs
    q = draft.probs
    keep = Range(
        acceptance_chances(p.token.high, q.token.low),
        acceptance_chances(p.token.low, q.token.high),
    )
    by_target = target.rows.ids[:, :, None]  # [N, n, 1]
    by_draft = draft.rows.ids[:, None, :]  # [N, 1, m]
    is_same = (by_target == by_draft) & (by_target >= 0)
    is_own = target.rows.ids == target.rows.tokens[:, None]
    by_both = (is_own & is_same.any(2)).any(1)  # whether both name the text's token [N]
    low_rest = np.where(by_both, 0.0, keep.low)
    high_rest = np.where(by_both, 0.0, keep.high)
    overlap = Range(
        _sum_both(is_same, p.top.low, q.top.low) + low_rest,
        _sum_both(is_same, p.top.high, q.top.high) + high_rest,
    )
    return Bounds(keep, overlap, target.chance_of(draft.most_likely))


def _sum_both(is_same: Array, p: Array, q: Array) -> Array:
    """Sum min(p, q) over the tokens that both name [N]."""
    return (np.minimum(p[:, :, None], q[:, None, :]) * is_same).sum((1, 2))


def _confidence(target: Told, draft: Told, overlap: Array) -> Array:
    """The sums of q, q * q and min(p, q) by bins of q [BINS, 3]; the first bin has also what is not named."""
    q = draft.probs.top.middle
    p = np.stack([target.chance_of(ids).middle for ids in draft.rows.ids.T], axis=1)
    values = np.stack([q, q * q, np.minimum(p, q)], axis=-1)  # [N, n, 3]
    bins = np.minimum((q * BINS).astype(int), BINS - 1)
    sums = np.zeros((BINS, 3))
    np.add.at(sums, bins, values)
    sum_q, _, sum_both = sums[1:].sum(0)
    sums[0, 0] = max(0.0, len(q) - sum_q)
    sums[0, 2] = max(0.0, overlap.sum() - sum_both)
    return sums
