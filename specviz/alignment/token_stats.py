"""Measures a target and its drafts on a batch of texts: every number of a token that needs whole rows of p and q.

Every model reads the texts once (`score.read`). Rows are taken in blocks that fit a processor's cache.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from specviz.alignment.types import BINS
from specviz.decoding.sampling import DRAFT_MODEL, TARGET, Sampling, refuse_nan
from specviz.decoding.turns import give_way
from specviz.models.pool import LoadedModel
from specviz.models.score import DraftRows, ScoredRows, TextIds, of_tokens, read

BLOCK_BYTES = 2 << 20  # of a model's rows that are taken at once
BLOCK_BYTES_CUDA = 128 << 20
Numbers = dict[str, np.ndarray]
"""Columns of the token table [N] by name; for a draft also its `confidence` [BINS, 3]."""


def measure_texts(
    target: LoadedModel, drafts: Sequence[LoadedModel], texts: Sequence[TextIds], sampling: Sampling
) -> list[list[Numbers]]:
    """The target's numbers, then each draft's, for every text in order.

    Raises SpecvizError where a model's logits hold nan.
    """
    return measure_rows(target, drafts, texts, partial(_numbers, sampling=sampling))


def measure_rows(
    target: LoadedModel,
    drafts: Sequence[LoadedModel],
    texts: Sequence[TextIds],
    numbers: Callable[[ScoredRows], list[dict[str, Tensor]]],
) -> list[list[Numbers]]:
    """The columns that `numbers` makes of R rows, several columns [R, ...] per model, for every text in order."""
    text_numbers: list[np.ndarray] = []  # by block: the text of each row
    columns_by_block: list[list[Numbers]] = []  # then by model
    for rows in read(target, drafts, texts):
        for block in _split(rows):
            give_way()
            text_numbers.append(block.text.cpu().numpy())
            columns_by_block.append([to_arrays(columns) for columns in numbers(block)])
    text_of_row = np.concatenate(text_numbers)
    order = np.argsort(text_of_row, kind="stable")
    bounds = np.flatnonzero(np.diff(text_of_row[order])) + 1
    measured: list[list[Numbers]] = [[] for _ in texts]
    for own_blocks in zip(*columns_by_block, strict=True):
        for own in measured:
            own.append({})
        for name, values in join_pieces(own_blocks).items():
            for own, values_of_text in zip(measured, np.split(values[order], bounds), strict=True):
                if name == "confidence":  # [N, BINS, 3]
                    values_of_text = values_of_text.sum(0, dtype=np.float64)
                own[-1][name] = values_of_text
    return measured


def to_arrays(columns: Mapping[str, Tensor]) -> Numbers:
    return {name: values.cpu().numpy() for name, values in columns.items()}


def join_pieces(pieces: Sequence[Numbers]) -> Numbers:
    """Joins columns that were measured piece by piece."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def blocks(count: int, logits: Tensor) -> Iterator[slice]:
    """Slices of `count` rows, each small enough for a processor's cache."""
    most = BLOCK_BYTES_CUDA if logits.is_cuda else BLOCK_BYTES
    size = max(1, most // (4 * logits.shape[-1]))
    return (slice(start, start + size) for start in range(0, count, size))


def _split(rows: ScoredRows) -> Iterator[ScoredRows]:
    for block in blocks(len(rows.token), rows.target):
        yield ScoredRows(
            rows.text[block],
            rows.place[block],
            rows.token[block],
            rows.target[block],
            tuple(DraftRows(own.logits[block], own.readable[block]) for own in rows.drafts),
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
    of_drafts = [draft_numbers(own, rows, p, most_likely, sampling) for own in rows.drafts]
    return [of_target, *of_drafts]


def draft_numbers(
    draft: DraftRows, rows: ScoredRows, p: Tensor, most_likely: Tensor, sampling: Sampling
) -> dict[str, Tensor]:
    """A draft's columns [R]; where it cannot read, its probabilities are 0 and its confidences are not counted.

    p: of the target [R, V]. most_likely: the target's tokens [R].
    """
    readable = draft.readable
    logits = draft.logits
    q = sampling.probs(logits)  # [R, V]
    both = torch.minimum(p, q)
    best, draft_most_likely = logits.max(-1)
    draft_most_likely_q = of_tokens(q, draft_most_likely)
    entropy = _entropy(q, logits, best, draft_most_likely_q, sampling)
    refuse_nan(entropy[readable].tolist(), DRAFT_MODEL)
    zero = torch.zeros((), dtype=q.dtype, device=q.device)
    columns = {
        "q": of_tokens(q, rows.token),
        "overlap": both.sum(-1).clamp_max(1.0),
        "q_entropy": entropy,
        "draft_most_likely_q": draft_most_likely_q,
        "target_most_likely_q": of_tokens(q, most_likely),
    }
    only_readable = {name: torch.where(readable, column, zero) for name, column in columns.items()}
    return only_readable | {
        "draft_most_likely": draft_most_likely,
        "draft_most_likely_p": of_tokens(p, draft_most_likely),
        "rank_in_draft": _rank(logits, most_likely),
        "rank_in_target": _rank(rows.target, draft_most_likely),
        "outside": _outside_mass(p, logits),
        "readable": readable,
        "confidence": torch.where(readable[:, None, None], _confidence(q, both), zero),
    }


def _entropy(p: Tensor, logits: Tensor, best: Tensor, best_p: Tensor, sampling: Sampling) -> Tensor:
    """The entropy -sum p log p in nats [R].

    log p(x) = log p(best) - (best - logit(x)) / T, so one pass suffices, without a logarithm of each row.
    """
    if sampling.temperature == 0:
        return best_p - best_p  # not-a-number stays visible
    below = p * (best[:, None] - logits)
    if _is_closed(logits).any():
        below = below.nan_to_num(0.0)  # 0 * inf
    return (below.sum(-1) / sampling.temperature - best_p.log()).clamp_min(0)


def _rank(logits: Tensor, token: Tensor) -> Tensor:
    """The rank of a token, 1 for the most likely [R]; equally likely tokens share the better rank."""
    return 1 + (logits > of_tokens(logits, token)[:, None]).sum(-1, dtype=torch.int32)


def _is_closed(logits: Tensor) -> Tensor:
    """Whether a row holds a token that can never be written [R]."""
    return logits.amin(-1) == float("-inf")


def _outside_mass(p: Tensor, logits: Tensor) -> Tensor:
    """The target's probability of tokens that the draft can never write [R].

    Their ids lie beyond the draft's table, or are closed in its head.
    """
    if not _is_closed(logits).any():
        return torch.zeros_like(p[:, 0])
    return (p * (logits == float("-inf"))).sum(-1)


def _confidence(q: Tensor, both: Tensor) -> Tensor:
    """The sums of q, q * q and min(p, q) over the tokens whose q lies in each bin [R, BINS, 3].

    At most BINS tokens of a row have q >= 1/BINS. So the most likely tokens fill all bins but the first, which gets
    the rest.
    """
    top_q, ids = q.topk(min(BINS, q.shape[-1]), dim=-1)
    values = torch.stack([top_q, top_q * top_q, both.gather(1, ids)], dim=-1)  # [R, 10, 3]
    bins = (top_q * BINS).long().clamp_max(BINS - 1)
    sums = values.new_zeros(len(q), BINS, 3)
    sums.scatter_add_(1, bins[..., None].expand_as(values), values)
    whole = torch.stack([q.sum(-1), (q * q).sum(-1), both.sum(-1)], dim=-1)  # [R, 3]
    sums[:, 0] = (whole - sums[:, 1:].sum(1)).clamp_min(0)
    return sums
