"""A target and its drafts on a batch of texts: every number of a token that needs whole rows of p and q.

One pass of every model (`score.read`); rows are taken a block at a time, so that they stay in a processor's cache.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from specviz.alignment.types import BINS
from specviz.decoding.sampling import DRAFT_MODEL, TARGET, Sampling, refuse_nan
from specviz.decoding.turns import give_way
from specviz.models.pool import LoadedModel
from specviz.models.score import DraftRows, ScoredRows, TextIds, of_tokens, read

BLOCK_BYTES, BLOCK_BYTES_CUDA = 2 << 20, 128 << 20  # of the rows of a model that are taken at once
Numbers = dict[str, np.ndarray]
"""Columns of the token table [N] by name; with a draft's also its `confidence` [BINS, 3]."""


def measure_texts(
    target: LoadedModel, drafts: Sequence[LoadedModel], texts: Sequence[TextIds], sampling: Sampling
) -> list[list[Numbers]]:
    """Of each text, in order, the target's numbers, then each draft's. SpecvizError where a model's logits hold nan."""
    owners: list[np.ndarray] = []  # of the rows: which text
    blocks: list[list[Numbers]] = []  # of rows: columns per model
    for rows in read(target, drafts, texts):
        for block in _split(rows):
            give_way()
            owners.append(block.text.cpu().numpy())
            numbers = _numbers(block, sampling)
            blocks.append(
                [{name: values.cpu().numpy() for name, values in own.items()} for own in numbers]
            )
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    bounds = np.flatnonzero(np.diff(owner[order])) + 1
    models = [
        {
            name: np.split(np.concatenate([own[name] for own in pieces])[order], bounds)
            for name in pieces[0]
        }
        for pieces in zip(*blocks, strict=True)
    ]
    for draft in models[1:]:
        draft["confidence"] = [rows.sum(0, dtype=np.float64) for rows in draft["confidence"]]
    return [
        [{name: own[i] for name, own in model.items()} for model in models]
        for i in range(len(texts))
    ]


def blocks(count: int, logits: Tensor) -> Iterator[slice]:
    """Pieces of so many rows, each small enough for a processor's cache."""
    most = BLOCK_BYTES_CUDA if logits.is_cuda else BLOCK_BYTES
    size = max(1, most // (4 * logits.shape[-1]))
    return (slice(start, start + size) for start in range(0, count, size))


def _split(rows: ScoredRows) -> Iterator[ScoredRows]:
    for piece in blocks(len(rows.token), rows.target):
        drafts = tuple(DraftRows(own.logits[piece], own.readable[piece]) for own in rows.drafts)
        yield ScoredRows(
            rows.text[piece], rows.place[piece], rows.token[piece], rows.target[piece], drafts
        )


@torch.inference_mode()
def _numbers(rows: ScoredRows, sampling: Sampling) -> list[dict[str, Tensor]]:
    """The target's columns [R], then each draft's."""
    p = sampling.probs(rows.target)
    best, most_likely = rows.target.max(-1)
    most_likely_p = of_tokens(p, most_likely)
    of_target = {
        "p": of_tokens(p, rows.token),
        "p_entropy": _entropy(p, rows.target, best, most_likely_p, sampling),
        "most_likely": most_likely,
        "most_likely_p": most_likely_p,
    }
    refuse_nan(of_target["p_entropy"].tolist(), TARGET)
    return [of_target, *(draft_numbers(own, rows, p, most_likely, sampling) for own in rows.drafts)]


def draft_numbers(
    own: DraftRows, rows: ScoredRows, p: Tensor, most_likely: Tensor, sampling: Sampling
) -> dict[str, Tensor]:
    """Where the draft cannot read, its chances are 0 and its confidences are not counted."""
    known, logits = own.readable, own.logits
    q = sampling.probs(logits)
    both = torch.minimum(p, q)
    (best, mine), overlap, q_token = (
        logits.max(-1),
        both.sum(-1).clamp_max(1.0),
        of_tokens(q, rows.token),
    )
    most_likely_q = of_tokens(q, mine)
    entropy = _entropy(q, logits, best, most_likely_q, sampling)
    refuse_nan(entropy[known].tolist(), DRAFT_MODEL)
    zero = torch.zeros((), dtype=q.dtype, device=q.device)
    columns = {
        "q": q_token, "overlap": overlap, "q_entropy": entropy,
        "draft_most_likely_q": most_likely_q, "target_most_likely_q": of_tokens(q, most_likely),
    }  # fmt: skip
    return {name: torch.where(known, values, zero) for name, values in columns.items()} | {
        "draft_most_likely": mine,
        "draft_most_likely_p": of_tokens(p, mine),
        "rank_in_draft": _rank(logits, most_likely),
        "rank_in_target": _rank(rows.target, mine),
        "outside": _outside_mass(p, logits),
        "readable": known,
        "confidence": torch.where(known[:, None, None], _confidence(q, both), zero),
    }


def _entropy(p: Tensor, logits: Tensor, best: Tensor, best_p: Tensor, sampling: Sampling) -> Tensor:
    """-sum p log p in nats, by log p(x) = log p(best) - (best - logit(x)) / T: one pass and no logarithm of a row."""
    if sampling.temperature == 0:
        return best_p - best_p  # not-a-number stays visible
    below = p * (best[:, None] - logits)
    if _is_closed(logits).any():
        below = below.nan_to_num(0.0)  # 0 * inf
    return (below.sum(-1) / sampling.temperature - best_p.log()).clamp_min(0)


def _rank(logits: Tensor, token: Tensor) -> Tensor:
    """1 for the likeliest; tokens that are equally likely share the better place."""
    return 1 + (logits > of_tokens(logits, token)[:, None]).sum(-1, dtype=torch.int32)


def _is_closed(logits: Tensor) -> Tensor:
    """Which rows [R] hold a token that can never be written."""
    return logits.amin(-1) == float("-inf")


def _outside_mass(p: Tensor, logits: Tensor) -> Tensor:
    """The target's probability of what the draft can never write: ids beyond its table, or closed in its head."""
    if not _is_closed(logits).any():
        return torch.zeros_like(p[:, 0])
    return (p * (logits == float("-inf"))).sum(-1)


def _confidence(q: Tensor, both: Tensor) -> Tensor:
    """[R, BINS, 3] sums of q, q * q and min(p, q) over the tokens whose q lies in each bin, the first bin the rest.

    At most BINS tokens of a row have q >= 1/BINS, so all other bins are made of its likeliest ones.
    """
    top, ids = q.topk(min(BINS, q.shape[-1]), dim=-1)
    values = torch.stack([top, top * top, both.gather(1, ids)], dim=-1)  # [R, 10, 3]
    bins = (top * BINS).long().clamp_max(BINS - 1)
    sums = values.new_zeros(len(q), BINS, 3)
    sums.scatter_add_(1, bins[..., None].expand_as(values), values)
    whole = torch.stack([q.sum(-1), (q * q).sum(-1), both.sum(-1)], dim=-1)
    sums[:, 0] = (whole - sums[:, 1:].sum(1)).clamp_min(0)
    return sums
