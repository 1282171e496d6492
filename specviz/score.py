"""The teacher-forced scorer: token ids in, each model's probability of every emitted token and their overlap out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .draft import chain
from .drafters.draft_model import fit
from .lm import CachedLM
from .sampling import Sampling

CHUNK = 256  # rows of the vocabulary held at once


@dataclass(frozen=True, slots=True)
class TokenScores:
    """One value per emitted token; q and overlap are None where there is no draft model that can read the text."""

    p: tuple[float, ...]
    q: tuple[float | None, ...]
    overlap: tuple[float | None, ...]


def score(
    target: CachedLM, draft: CachedLM | None, tokens: Sequence[int], num_emitted: int, sampling: Sampling
) -> TokenScores:
    """Scores the last `num_emitted` of `tokens`; overlap = sum min(p, q) = 1 - TV (Leviathan et al. 2022, 3.1)."""
    readable = draft is not None and len(tokens) <= draft.context_limit and max(tokens) < draft.vocab_size
    p, q, overlap = [], [], []
    for start in range(len(tokens) - num_emitted, len(tokens), CHUNK):
        chunk = tokens[start : start + CHUNK]
        p_rows = _rows(target, tokens[:start], chunk, sampling, target.vocab_size)
        p += _of_tokens(p_rows, chunk)
        if readable:
            q_rows = _rows(draft, tokens[:start], chunk, sampling, target.vocab_size)
            q += _of_tokens(q_rows, chunk)
            overlap += torch.minimum(p_rows, q_rows).sum(-1).clamp_max(1.0).tolist()
    nothing = (None,) * num_emitted
    return TokenScores(tuple(p), tuple(q) or nothing, tuple(overlap) or nothing)


def _rows(lm: CachedLM, before: Sequence[int], chunk: Sequence[int], sampling: Sampling, width: int) -> Tensor:
    """Probabilities [len(chunk), V] of what stands at each place of `chunk`."""
    logits = lm.forward(before, chain(chunk[:-1]))
    return sampling.probs(fit(logits, width))


def _of_tokens(rows: Tensor, tokens: Sequence[int]) -> list[float]:
    return rows.gather(1, torch.tensor(tokens, device=rows.device)[:, None])[:, 0].tolist()
