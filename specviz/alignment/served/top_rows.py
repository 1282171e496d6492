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
SLACK = 2e-6
"""How far the sum of a place's probabilities may be off, as log-probabilities in float32 are rounded."""
RISE = 1e-3  # of a log-probability behind another one, by rounding
LEAST = -1e4  # of a log-probability; some servers write other numbers for minus infinity


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
        """Raises Untrue for numbers that are no log-probabilities, and where a place has fewer tokens than asked."""
        if self.ids.shape[1] < num_top or (self.ids[:, :num_top] < 0).any():
            raise Untrue(f"it does not name the {num_top} likeliest tokens of every place")
        if (np.diff(self.logprobs, axis=1) > RISE).any():
            raise Untrue("its likeliest tokens are not in order")
        mass = np.exp(self.logprobs).sum(1)
        is_outside = ~(self.ids == self.tokens[:, None]).any(1)
        mass += np.where(is_outside, np.exp(self.token_logprobs), 0.0)
        if not np.isfinite(mass).all() or mass.max() > MOST_MASS:
            raise Untrue(
                f"the probabilities of one place add up to {mass.max():.3g}: these are no log-probabilities"
            )


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
    token_logprobs = np.maximum(token_logprobs, LEAST)
    logprobs = np.where(ids < 0, logprobs, np.maximum(logprobs, LEAST))
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
    own_weight = np.where(is_named, 0.0, own_weight)  # of a token that is not among the likeliest
    unnamed = _unnamed(rows, is_named, sampling.temperature)
    surely, maybe, unnamed = _filter(weights, own_weight, unnamed, sampling)
    return _normalise(weights, own_weight, surely, maybe, unnamed, is_own)


@dataclass(frozen=True, slots=True, eq=False)
class _Unnamed:
    """What the tokens that a server does not name can weigh, in units of the likeliest token [N]."""

    low: Array  # all together, at least
    high: Array  # all together, at most
    each: Array  # one of them, at most

    def cut(self, is_cut: Array) -> "_Unnamed":
        """What is left of them behind a filter that may take some, and takes all where `is_cut` [N]."""
        high = np.where(is_cut, 0.0, self.high)
        return _Unnamed(np.zeros_like(high), high, np.where(is_cut, 0.0, self.each))


def _unnamed(rows: TopRows, is_named: Array, temperature: float) -> _Unnamed:
    """Bounds before any filter.

    Their probabilities at temperature 1 add up to a known mass, and none exceeds the least that is named. A power b =
    1/T of them adds up to most where they are as uneven as that allows, if b > 1; where they are even, if b < 1. At
    another temperature the rounding of the mass counts, too: many tokens that seem to have none may weigh much.
    """
    best = rows.logprobs[:, 0]
    named = np.exp(rows.logprobs).sum(1) + np.where(is_named, 0.0, np.exp(rows.token_logprobs))
    mass = 1 - named
    least = np.where(np.isfinite(rows.logprobs), rows.logprobs, np.inf).min(1)
    power = 1 / temperature
    slack = np.zeros_like(mass) if power == 1 else np.maximum(SLACK, -mass)
    low = np.minimum(*_powers(np.maximum(mass - slack, 0.0), least, best, power))
    high = np.maximum(*_powers(np.maximum(mass + slack, 0.0), least, best, power))
    each = np.minimum(np.exp((least - best) * power), high)
    return _Unnamed(low, high, each)


def _powers(mass: Array, least: Array, best: Array, power: float) -> tuple[Array, Array]:
    """What the powers of probabilities add up to, as uneven and as even as they can be, over the power of the best."""
    with np.errstate(divide="ignore"):
        log_mass = np.log(mass)
    uneven = np.exp(log_mass + (power - 1) * least - power * best)
    log_size = math.log(MOST_VOCABULARY)
    even = np.exp(log_size + power * (log_mass - log_size) - power * best)
    return uneven, even


def _filter(
    weights: Array, own_weight: Array, unnamed: _Unnamed, sampling: Sampling
) -> tuple[Array, Array, _Unnamed]:
    """Filters: which of the likeliest tokens surely stay, which may [N, n + 1], the text's own last; what else may."""
    every = np.concatenate([weights, own_weight[:, None]], axis=1)
    surely = every > 0
    maybe = surely.copy()
    if 0 < sampling.top_k < weights.shape[1]:
        least = weights[:, sampling.top_k - 1 : sampling.top_k]
        surely &= every >= least
        maybe = surely.copy()
        # tokens that tie with the last one stay, and may not all be named
        unnamed = unnamed.cut(weights.min(1) < least[:, 0])
    elif sampling.top_k:
        surely[:, -1] = False
        unnamed = unnamed.cut(np.zeros(len(weights), dtype=bool))
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
        unnamed = unnamed.cut(named >= sampling.top_p * most)
    if sampling.min_p > 0:
        stays = every >= sampling.min_p
        surely &= stays
        maybe &= stays
        unnamed = unnamed.cut(unnamed.each < sampling.min_p)
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
