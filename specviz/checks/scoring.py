"""A written text against the target's exact law: one plain forward of the raw model, no cache, nothing of the engine.

For every token: whether the law allows it, whether it has each feature, and with which chance the target's has it.
"""

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
"""A text and the logits [T, V] behind its last T tokens -> [T] how far whoever made the text may have had each logit
from these, either way."""


@dataclass(frozen=True, slots=True)
class Outside:
    """A token that the target's law does not allow. beyond: its distance from the edge of what is allowed."""

    place: int  # of the written tokens, from 0
    token: int
    most_likely: int
    logit: float
    most_likely_logit: float
    beyond: float
    is_tie: bool  # no farther than the rounding of its number format reaches


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """T written tokens. p, q: [T, V] in float64, q None where no draft model reads all of it; has: [T, F, V]."""

    tokens: tuple[int, ...]
    p: Tensor
    q: Tensor | None
    has: Tensor
    outside: tuple[Outside, ...]

    @property
    def holds(self) -> np.ndarray:
        """[T, F] which features the written tokens have."""
        index = torch.tensor(self.tokens)[:, None, None].expand(-1, self.has.shape[1], 1)
        return self.has.gather(2, index)[..., 0].numpy()

    def chances(self, distribution: Tensor | None = None) -> np.ndarray:
        """[T, F] the chance of each feature under the target, or under another law [T, V]."""
        distribution = self.p if distribution is None else distribution
        rows = [
            flags.to(distribution.dtype) @ row
            for flags, row in zip(self.has, distribution, strict=True)
        ]  # one place at a time
        return torch.stack(rows).clamp(0, 1).numpy()


def features(with_draft: bool) -> tuple[str, ...]:
    """What the tokens are asked; the same order as `Scored.has`."""
    return (*ABOUT_TARGET, *ABOUT_DRAFT) if with_draft else ABOUT_TARGET


def score_text(
    pair: Setup,
    prompt: Sequence[int],
    tokens: Sequence[int],
    sampling: Sampling,
    reach: Reach | None = None,
) -> Scored:
    """`tokens` as written after `prompt`, neither of them empty."""
    text = [*prompt, *tokens]
    logits = plain_logits(pair.target, text[:-1], len(tokens))
    p = distribution_of(logits, sampling)
    q = None
    if (draft := pair.comparable_draft) is not None and (
        num := _num_readable(draft, text) + 1 - len(prompt)
    ) > 0:
        num = min(num, len(tokens))  # the places whose text before them the draft can read
        q = distribution_of(
            fit(plain_logits(draft, text[: len(prompt) + num - 1], num), p.shape[-1]),
            sampling.of_draft,
        )
    moved = None if reach is None else lambda rows: reach(text, rows)
    outside = find_outside(logits, sampling, tokens, ROUNDING[pair.target.model.dtype], moved)
    flags = _feature_flags(p, q, draft is not None)
    return Scored(
        tuple(tokens), p, q if q is not None and len(q) == len(p) else None, flags, outside
    )


def score_parts(
    pair: Setup,
    prompt: Sequence[int],
    tokens: Sequence[int],
    sampling: Sampling,
    reach: Reach | None = None,
) -> Iterator[Scored]:
    """The same for a text of any length, so many rows at a time; places count from the first of all tokens."""
    for start in range(0, len(tokens), CHUNK):
        part = score_text(
            pair, [*prompt, *tokens[:start]], tokens[start : start + CHUNK], sampling, reach
        )
        yield replace(
            part, outside=tuple(replace(token, place=start + token.place) for token in part.outside)
        )


def can_read(model: LoadedModel, text: Sequence[int]) -> bool:
    return _num_readable(model, text) == len(text)


def _num_readable(model: LoadedModel, text: Sequence[int]) -> int:
    """How many of its first tokens the model can read."""
    unknown = (place for place, token in enumerate(text) if token >= model.info.vocab_size)
    return min(next(unknown, len(text)), model.info.context_limit)


def plain_logits(model: LoadedModel, text: Sequence[int], num: int) -> Tensor:
    """Logits [num, V] after each of the last `num` tokens of `text`: one forward of the raw model, without a cache; a
    text that would hold the engine for long is read in pieces behind transformers' own."""
    ids = torch.tensor([list(text)], device=model.model.device)
    is_long = len(text) > tokens_at_once(model.model)
    with torch.inference_mode():
        return read_behind(model.model, ids, empty_cache(model.model) if is_long else None, num)[0]


def distribution_of(logits: Tensor, sampling: Sampling) -> Tensor:
    """The law behind logits [..., V], in float64 on the CPU."""
    return normalise(sampling.probs(logits))


def _feature_flags(p: Tensor, q: Tensor | None, with_draft: bool) -> Tensor:
    """bool [T, F, V]. q [n, V]: of the first places; after them, no token has a feature that is about the draft."""
    has = torch.zeros(len(p), len(features(with_draft)), p.shape[-1], dtype=torch.bool)
    has[:, 0] = one_hot(p.argmax(-1), p.shape[-1])
    if q is not None:
        about_draft = q > p[: len(q)], one_hot(q.argmax(-1), q.shape[-1]).bool(), q < NOTHING
        has[: len(q), len(ABOUT_TARGET) :] = torch.stack(about_draft, dim=1)
    return has


def find_outside(
    logits: Tensor,
    sampling: Sampling,
    tokens: Sequence[int],
    rounding: float,
    reach: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Outside, ...]:
    """The written tokens that the filters of `sampling` do not allow, by the target's own logits [T, V]. reach: these
    -> [T] how far each of them may have been off where the text was made, either way; asked only where it matters."""
    rows = logits.cpu().double()
    allowed = sampling.probs(rows).gather(1, torch.tensor(list(tokens))[:, None])[:, 0] > 0
    places = (~allowed).nonzero()[:, 0].tolist()
    off = reach(rows).tolist() if places and reach is not None else [0.0] * len(rows)
    found = []
    for place in places:
        row, token, most_likely = rows[place], tokens[place], int(rows[place].argmax())
        lifted = row.clone()
        lifted[token] += (
            2 * off[place]
        )  # this logit higher by `off` and all others lower: the same odds
        is_tie = beyond_edge(lifted, sampling, token) <= rounding
        logits = float(row[token]), float(row[most_likely])
        found.append(
            Outside(place, token, most_likely, *logits, beyond_edge(row, sampling, token), is_tie)
        )
    return tuple(found)


def beyond_edge(row: Tensor, sampling: Sampling, token: int) -> float:
    """How far logits [V] would have to move until the filters allow `token`: a logit for temperature 0 and top-k, a
    share of probability for top-p; 0 for a token that only underflows."""
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
    return beyond
