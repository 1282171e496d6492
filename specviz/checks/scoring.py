"""A written text against the target's exact distribution, by plain forwards of the raw model: no cache, no engine.

For every token: whether the target allows it, which features it has, and how probable each feature was there.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specviz.checks.rows import normalise
from specviz.decoding.forward.transformers_forward import empty_cache, read_behind, tokens_at_once
from specviz.decoding.sampling import Sampling, fit
from specviz.models.pool import LoadedModel
from specviz.models.score import CHUNK
from specviz.session.setup import Setup

ABOUT_TARGET = ("the target's most likely token",)
ABOUT_DRAFT = (
    "a token with a higher probability from the draft than from the target",
    "the draft's most likely token",
    "a token with a draft probability below 1 in 10,000",
)
NOTHING = 1e-4
# How far the logits of one model may part between two ways to compute them.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.03, torch.bfloat16: 0.25}
Reach = Callable[[Sequence[int], Tensor], Tensor]
"""A function of a text and the logits [T, V] behind its last T tokens. Returns [T]: how far the logits may have been
from these where the text was made, either way."""


@dataclass(frozen=True, slots=True)
class Outside:
    """A token that the target's distribution does not allow."""

    place: int  # among the written tokens, from 0
    token: int
    most_likely: int
    logit: float
    most_likely_logit: float
    beyond: float  # its distance from the edge of what is allowed
    is_tie: bool  # no farther than the rounding of its number format reaches


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """T written tokens, scored by the models."""

    tokens: tuple[int, ...]
    p: Tensor  # [T, V] in float64
    q: Tensor | None  # [T, V] in float64; None where no draft model reads the whole text
    has: Tensor  # [T, F, V] which features each token of the vocabulary would have
    outside: tuple[Outside, ...]

    @property
    def holds(self) -> np.ndarray:
        """Whether the written tokens have each feature [T, F]."""
        index = torch.tensor(self.tokens)[:, None, None].expand(-1, self.has.shape[1], 1)
        return self.has.gather(2, index)[..., 0].numpy()

    def chances(self, distribution: Tensor | None = None) -> np.ndarray:
        """The probability of each feature [T, F] under the target, or under another distribution [T, V]."""
        distribution = self.p if distribution is None else distribution
        rows = []
        for flags, row in zip(self.has, distribution, strict=True):  # one place at a time
            rows.append(flags.to(distribution.dtype) @ row)
        return torch.stack(rows).clamp(0, 1).numpy()


def features(with_draft: bool) -> tuple[str, ...]:
    """The names of the features, in the order of `Scored.has`."""
    return (*ABOUT_TARGET, *ABOUT_DRAFT) if with_draft else ABOUT_TARGET


def score_text(
    pair: Setup,
    prompt: Sequence[int],
    tokens: Sequence[int],
    sampling: Sampling,
    reach: Reach | None = None,
) -> Scored:
    """Scores `tokens` as written after `prompt`; neither may be empty."""
    text = [*prompt, *tokens]
    logits = plain_logits(pair.target, text[:-1], len(tokens))  # [T, V]
    p = distribution_of(logits, sampling)
    draft = pair.comparable_draft
    q = None
    if draft is not None:
        q = _draft_distribution(draft, prompt, tokens, sampling, p.shape[-1])
    is_whole = q is not None and len(q) == len(p)
    moved = None if reach is None else lambda rows: reach(text, rows)
    outside = find_outside(logits, sampling, tokens, ROUNDING[pair.target.model.dtype], moved)
    flags = _feature_flags(p, q, draft is not None)
    return Scored(tuple(tokens), p, q if is_whole else None, flags, outside)


def _draft_distribution(
    draft: LoadedModel,
    prompt: Sequence[int],
    tokens: Sequence[int],
    sampling: Sampling,
    vocab_size: int,
) -> Tensor | None:
    """The draft model's q [n, V] at the first n tokens, where it can read all before them; None if there are none."""
    num_readable = _num_readable(draft, [*prompt, *tokens])
    num = min(num_readable + 1 - len(prompt), len(tokens))
    if num <= 0:
        return None
    logits = plain_logits(draft, [*prompt, *tokens[: num - 1]], num)
    return distribution_of(fit(logits, vocab_size), sampling.of_draft)


def score_parts(
    pair: Setup,
    prompt: Sequence[int],
    tokens: Sequence[int],
    sampling: Sampling,
    reach: Reach | None = None,
) -> Iterator[Scored]:
    """Scores a text of any length, CHUNK tokens at a time; places count from the first of all tokens."""
    for start in range(0, len(tokens), CHUNK):
        before = [*prompt, *tokens[:start]]
        part = score_text(pair, before, tokens[start : start + CHUNK], sampling, reach)
        moved = [replace(token, place=start + token.place) for token in part.outside]
        yield replace(part, outside=tuple(moved))


def can_read(model: LoadedModel, text: Sequence[int]) -> bool:
    return _num_readable(model, text) == len(text)


def _num_readable(model: LoadedModel, text: Sequence[int]) -> int:
    """How many tokens the model can read from the start of the text."""
    unknown = (place for place, token in enumerate(text) if token >= model.info.vocab_size)
    return min(next(unknown, len(text)), model.info.context_limit)


def plain_logits(model: LoadedModel, text: Sequence[int], num: int) -> Tensor:
    """Logits [num, V] after each of the last `num` tokens of `text`, by one forward of the raw model without a cache.

    A text that would hold the engine for long is read in pieces behind transformers' own cache.
    """
    ids = torch.tensor([list(text)], device=model.model.device)
    is_long = len(text) > tokens_at_once(model.model)
    with torch.inference_mode():
        cache = empty_cache(model.model) if is_long else None
        return read_behind(model.model, ids, cache, num)[0]


def distribution_of(logits: Tensor, sampling: Sampling) -> Tensor:
    """The distribution behind logits [..., V], in float64 on the CPU."""
    return normalise(sampling.probs(logits))


def _feature_flags(p: Tensor, q: Tensor | None, with_draft: bool) -> Tensor:
    """Whether each token of the vocabulary has each feature: bool [T, F, V].

    q [n, V]: at the first n places; after them, no token has a feature that is about the draft.
    """
    vocab_size = p.shape[-1]
    has = torch.zeros(len(p), len(features(with_draft)), vocab_size, dtype=torch.bool)
    has[:, 0] = one_hot(p.argmax(-1), vocab_size)
    if q is not None:
        is_likelier = q > p[: len(q)]
        is_most_likely = one_hot(q.argmax(-1), vocab_size).bool()
        about_draft = torch.stack([is_likelier, is_most_likely, q < NOTHING], dim=1)
        has[: len(q), len(ABOUT_TARGET) :] = about_draft
    return has


def find_outside(
    logits: Tensor,
    sampling: Sampling,
    tokens: Sequence[int],
    rounding: float,
    reach: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Outside, ...]:
    """The written tokens that the filters of `sampling` do not allow, by the target's own logits [T, V].

    reach: a function of these logits that returns [T]: how far each may have been off where the text was made, either
    way; asked only where it matters.
    """
    rows = logits.cpu().double()
    index = torch.tensor(list(tokens))[:, None]
    is_allowed = sampling.probs(rows).gather(1, index)[:, 0] > 0
    places = (~is_allowed).nonzero()[:, 0].tolist()
    offsets = [0.0] * len(rows)
    if places and reach is not None:
        offsets = reach(rows).tolist()
    found = []
    for place in places:
        row = rows[place]
        token = tokens[place]
        most_likely = int(row.argmax())
        lifted = row.clone()
        # This logit higher by the offset and all others lower by it: the same probabilities.
        lifted[token] += 2 * offsets[place]
        outside = Outside(
            place,
            token,
            most_likely,
            logit=float(row[token]),
            most_likely_logit=float(row[most_likely]),
            beyond=beyond_edge(row, sampling, token),
            is_tie=beyond_edge(lifted, sampling, token) <= rounding,
        )
        found.append(outside)
    return tuple(found)


def beyond_edge(row: Tensor, sampling: Sampling, token: int) -> float:
    """How far logits [V] would have to move until the filters allow `token`.

    The unit is a logit for temperature 0, top-k and min-p, a share of probability for top-p. It is 0 for a token that
    only underflows.
    """
    if sampling.temperature == 0:
        return float(row.max() - row[token])
    beyond = 0.0
    if 0 < sampling.top_k < len(row):
        edge = row.topk(sampling.top_k).values[-1]
        beyond = float((edge - row[token]).clamp_min(0))
        row = row.masked_fill((row < edge) & (row < row[token]), float("-inf"))
    if sampling.top_p < 1:
        share = (row / sampling.temperature).softmax(-1)
        beyond = max(beyond, float(share[share > share[token]].sum()) - sampling.top_p)
    if sampling.min_p > 0:
        edge = row.max() + sampling.temperature * math.log(sampling.min_p)
        beyond = max(beyond, float(edge - row[token]))
    return beyond
