"""Holds what a server tells of each place of a text: the likeliest tokens' log-probabilities, and the token's own.

From this, probabilities follow at any sampling: exactly at temperature 1, and where a filter leaves only known tokens;
else between two bounds, as what the other tokens add up to at another temperature is known only roughly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specviz.alignment.types import Array, Range
from specviz.decoding.sampling import Sampling

MOST_VOCABULARY = 1 << 20
"""Ids that share what is not named: four times as many as the largest vocabularies in use have, as none is told."""
MOST_MASS = 1.02
"""What the probabilities of a place may add up to: servers compute in few bits."""


class Untrue(ValueError):
    """An answer that contradicts its question."""


class Entry(NamedTuple):
    token: int
    logprob: float
    text: str | None


@dataclass(frozen=True, slots=True, eq=False)
class TopRows:
    """A text of N tokens as one model sees it, with up to n likeliest tokens of each place."""

    tokens: Array  # [N] ids
    token_logprobs: Array  # [N]
    ids: Array  # [N, n], the likeliest first; -1 where there are fewer
    logprobs: Array  # [N, n]; -inf where there are fewer
    texts: dict[int, str]  # of the ids, as far as the server tells

    def first(self, count: int) -> "TopRows":
        """The first places."""
        return TopRows(
            self.tokens[:count],
            self.token_logprobs[:count],
            self.ids[:count],
            self.logprobs[:count],
            self.texts,
        )

    def check(self, num_top: int) -> None:
        """Raises Untrue for numbers that are no log-probabilities."""
        mass = np.exp(self.logprobs).sum(1)
        is_outside = ~(self.ids == self.tokens[:, None]).any(1)
        mass += np.where(is_outside, np.exp(self.token_logprobs), 0.0)
        if not np.isfinite(mass).all() or mass.max() > MOST_MASS:
            raise Untrue(
                f"the probabilities of one place add up to {mass.max():.3g}: these are no log-probabilities"
            )
        if num_top > 1 and (self.ids[:, 0] < 0).any():
            raise Untrue("it tells no likeliest tokens")


def rows_of(
    tops: Sequence[Sequence[Entry]], own: Sequence[Entry | None], tokens: Sequence[int]
) -> TopRows:
    """Makes the rows of what a server told: by place the likeliest tokens in order, and the text's own token.

    Raises Untrue where places or tokens are missing.
    """
    size = len(tokens)
    if not len(tops) == len(own) == size:
        raise Untrue(f"it tells of {len(own):,} places instead of {size:,}")
    width = max((len(row) for row in tops), default=0)
    ids = np.full((size, max(width, 1)), -1, dtype=np.int64)
    logprobs = np.full(ids.shape, -math.inf)
    token_logprobs = np.zeros(size)
    texts = {}
    for place, (row, entry, token) in enumerate(zip(tops, own, tokens, strict=True)):
        if entry is None or entry.token != token:
            raise Untrue(f"it tells no log-probability of the token id {token} at place {place:,}")
        token_logprobs[place] = entry.logprob
        ids[place, : len(row)] = [known.token for known in row]
        logprobs[place, : len(row)] = [known.logprob for known in row]
        texts |= {known.token: known.text for known in (*row, entry) if known.text is not None}
    return TopRows(np.asarray(tokens, dtype=np.int64), token_logprobs, ids, logprobs, texts)


@dataclass(frozen=True, slots=True, eq=False)
class TopProbs:
    """The probabilities of a text's places at one sampling."""

    token: Range  # [N] of the text's own token
    top: Range  # [N, n] of the likeliest tokens
    other: Array  # [N]: no token that the server does not name has more


def probabilities(rows: TopRows, sampling: Sampling) -> TopProbs:
    """The probabilities at a sampling: temperature, top-k, top-p, then min-p, as `Sampling.probs` has them."""
    best = rows.logprobs[:, :1]
    is_own = rows.ids == rows.tokens[:, None]
    is_named = is_own.any(1)
    if sampling.temperature == 0:
        one_hot = np.zeros(rows.ids.shape)
        one_hot[:, 0] = 1.0
        own = is_own[:, 0].astype(np.float64)
        return TopProbs(Range(own, own), Range(one_hot, one_hot), np.zeros(len(own)))
    weights = np.exp((rows.logprobs - best) / sampling.temperature)  # [N, n], 1 for the likeliest
    own_weight = np.exp((rows.token_logprobs - best[:, 0]) / sampling.temperature)
    own_weight = np.where(
        is_named, 0.0, own_weight
    )  # [N], of a token that is not among the likeliest
    unnamed = _unnamed(rows, is_named, sampling.temperature)
    surely, maybe, unnamed = _filter(weights, own_weight, unnamed, sampling)
    return _normalise(weights, own_weight, surely, maybe, unnamed, is_own)


@dataclass(frozen=True, slots=True, eq=False)
class _Unnamed:
    """What the tokens that a server does not name can weigh, in units of the likeliest token [N]."""

    low: Array  # all together, at least
    high: Array  # all together, at most
    each: Array  # one of them, at most


def _unnamed(rows: TopRows, is_named: Array, temperature: float) -> _Unnamed:
    """Bounds before any filter.

    Their probabilities at temperature 1 add up to a known mass, and none exceeds the least that is named. A power b =
    1/T of them adds up to most where they are as uneven as that allows, if b > 1; where they are even, if b < 1.
    """
    best = rows.logprobs[:, 0]
    named = np.exp(rows.logprobs).sum(1) + np.where(is_named, 0.0, np.exp(rows.token_logprobs))
    mass = np.clip(1 - named, 0.0, None)
    least = np.where(np.isfinite(rows.logprobs), rows.logprobs, np.inf).min(1)
    power = 1 / temperature
    uneven = mass * np.exp((power - 1) * least - power * best)
    even = MOST_VOCABULARY * (mass / MOST_VOCABULARY) ** power * np.exp(-power * best)
    low = np.minimum(even, uneven)
    high = np.maximum(even, uneven)
    each = np.minimum(np.exp((least - best) * power), high)
    return _Unnamed(low, high, each)


def _filter(
    weights: Array, own_weight: Array, unnamed: _Unnamed, sampling: Sampling
) -> tuple[Array, Array, _Unnamed]:
    """Filters: which of the likeliest tokens surely stay, which may [N, n + 1], the text's own last; what else may."""
    nothing = np.zeros_like(unnamed.low)
    every = np.concatenate([weights, own_weight[:, None]], axis=1)
    surely = every > 0
    maybe = surely.copy()
    if 0 < sampling.top_k < weights.shape[1]:
        least = weights[:, sampling.top_k - 1 : sampling.top_k]
        surely &= every >= least
        maybe = surely.copy()
        unnamed = _Unnamed(nothing, nothing, nothing)
    elif sampling.top_k:
        surely[:, -1] = False
        unnamed = _Unnamed(nothing, unnamed.high, unnamed.each)
    if sampling.top_p < 1:
        # a token stays as long as the likelier ones add up to less than top_p
        likelier = np.zeros_like(every)
        likelier[:, 1:-1] = np.cumsum(weights * surely[:, :-1], axis=1)[:, :-1]
        named = (weights * surely[:, :-1]).sum(1)
        likelier[:, -1] = named
        fewest = named + own_weight * surely[:, -1] + unnamed.low
        most = named + own_weight * maybe[:, -1] + unnamed.high
        maybe &= likelier < sampling.top_p * most[:, None]
        surely &= likelier < sampling.top_p * fewest[:, None]
        surely[:, -1] &= likelier[:, -1] + unnamed.high < sampling.top_p * fewest
        is_cut = named >= sampling.top_p * most
        high = np.where(is_cut, 0.0, unnamed.high)
        each = np.where(is_cut, 0.0, unnamed.each)
        unnamed = _Unnamed(nothing, high, each)
    if sampling.min_p > 0:
        stays = every >= sampling.min_p
        surely &= stays
        maybe &= stays
        is_cut = unnamed.each < sampling.min_p
        high = np.where(is_cut, 0.0, unnamed.high)
        unnamed = _Unnamed(nothing, high, np.where(is_cut, 0.0, unnamed.each))
    return surely, maybe, unnamed


def _normalise(
    weights: Array,
    own_weight: Array,
    surely: Array,
    maybe: Array,
    unnamed: _Unnamed,
    is_own: Array,
) -> TopProbs:
    every = np.concatenate([weights, own_weight[:, None]], axis=1)
    fewest = (every * surely).sum(1) + unnamed.low
    most = (every * maybe).sum(1) + unnamed.high
    low = every * surely / most[:, None]
    # a token that only may stay brings its own weight where it stays
    only_maybe = every * (maybe & ~surely)
    high = every * maybe / (fewest[:, None] + only_maybe)
    is_named = is_own.any(1)
    token = Range(
        np.where(is_named, (low[:, :-1] * is_own).sum(1), low[:, -1]),
        np.where(is_named, (high[:, :-1] * is_own).sum(1), high[:, -1]),
    )
    other = unnamed.each / (fewest + np.where(unnamed.low > 0, 0.0, unnamed.each))
    return TopProbs(token, Range(low[:, :-1], high[:, :-1]), np.where(unnamed.each > 0, other, 0.0))
