"""What a target and its drafts say along a batch of texts: every number of a token that needs whole rows of p and q.

One pass of every model (`score.read`); rows are taken a block at a time, so that they stay in a processor's cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from specviz.alignment.types import BINS
from specviz.decoding.sampling import DRAFT_MODEL, TARGET, Sampling, refuse_nan
from specviz.models.library import LoadedModel
from specviz.models.score import DraftRows, Rows, Text, of_tokens, read

BLOCK_BYTES, BLOCK_BYTES_CUDA = 2 << 20, 128 << 20  # of the rows of a model that are taken at once
Numbers = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class Along:
    """One text: columns [N] by name, the target's and each draft's; a draft's `confidence` is [BINS, 3]."""

    target: Numbers
    drafts: tuple[Numbers, ...]


def along(target: LoadedModel, drafts: Sequence[LoadedModel], texts: Sequence[Text], sampling: Sampling) -> list[Along]:
    """In the order of the texts. Raises SpecvizError where a model gives no numbers."""
    parts: list[list[defaultdict[str, list]]] = [
        [defaultdict(list) for _ in range(1 + len(drafts))] for _ in range(len(texts))
    ]
    for rows in read(target, drafts, texts):
        for block in _blocks(rows):
            for columns, model in zip(_numbers(block, sampling, drafts), range(1 + len(drafts)), strict=True):
                _deal(columns, block.text.tolist(), parts, model)
    return [Along(_joined(own[0]), tuple(_summed(_joined(each)) for each in own[1:])) for own in parts]


def _blocks(rows: Rows) -> Iterator[Rows]:
    most = BLOCK_BYTES_CUDA if rows.target.is_cuda else BLOCK_BYTES
    size = max(1, most // (4 * rows.target.shape[1]))
    for start in range(0, len(rows.token), size):
        piece = slice(start, start + size)
        drafts = tuple(DraftRows(own.logits[piece], own.readable[piece]) for own in rows.drafts)
        yield Rows(rows.text[piece], rows.place[piece], rows.token[piece], rows.target[piece], drafts)


def _deal(columns: Mapping[str, Tensor], texts: Sequence[int], parts, model: int) -> None:
    """Hands every text its own entries; texts come in runs."""
    bounds = [0, *(i for i in range(1, len(texts)) if texts[i] != texts[i - 1]), len(texts)]
    for name, column in columns.items():
        values = column.cpu().numpy()
        for begin, end in pairwise(bounds):
            parts[texts[begin]][model][name].append(values[begin:end])


def _joined(parts: Mapping[str, list[np.ndarray]]) -> Numbers:
    return {name: np.concatenate(pieces) for name, pieces in parts.items()}


def _summed(numbers: Numbers) -> Numbers:
    return numbers | {"confidence": numbers["confidence"].sum(0, dtype=np.float64)}


@torch.inference_mode()
def _numbers(rows: Rows, sampling: Sampling, drafts: Sequence[LoadedModel]) -> list[dict[str, Tensor]]:
    """The target's columns [R], then each draft's."""
    p = sampling.probs(rows.target)
    best, favourite = rows.target.max(-1)
    favourite_p = of_tokens(p, favourite)
    of_target = {
        "p": of_tokens(p, rows.token),
        "entropy": _entropy(p, rows.target, best, favourite_p, sampling),
        "favourite": favourite,
        "favourite_p": favourite_p,
    }
    refuse_nan(of_target["entropy"].tolist(), TARGET)
    return [of_target, *(_of_draft(own, rows, p, favourite, sampling) for own in rows.drafts)]


def _of_draft(own: DraftRows, rows: Rows, p: Tensor, favourite: Tensor, sampling: Sampling) -> dict[str, Tensor]:
    """Beyond what the draft can read it says nothing: there its chances are 0 and its confidences are not counted."""
    known, logits = own.readable, own.logits
    q = sampling.probs(logits)
    both = torch.minimum(p, q)
    (best, mine), overlap, q_token = logits.max(-1), both.sum(-1).clamp_max(1.0), of_tokens(q, rows.token)
    favourite_q = of_tokens(q, mine)
    entropy = _entropy(q, logits, best, favourite_q, sampling)
    refuse_nan(entropy[known].tolist(), DRAFT_MODEL)
    zero = torch.zeros((), dtype=q.dtype, device=q.device)
    columns = {
        "q": q_token, "overlap": overlap, "entropy": entropy,
        "favourite_q": favourite_q, "target_favourite_q": of_tokens(q, favourite),
    }  # fmt: skip
    return {name: torch.where(known, values, zero) for name, values in columns.items()} | {
        "favourite": mine,
        "favourite_p": of_tokens(p, mine),
        "rank_in_draft": _rank(logits, favourite),
        "rank_in_target": _rank(rows.target, mine),
        "outside": _outside(p, logits),
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


def _outside(p: Tensor, logits: Tensor) -> Tensor:
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
