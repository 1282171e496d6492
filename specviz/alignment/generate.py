"""Draws texts from the target, many at a time: transformers' own `generate` on a padded batch, with specviz's draws.

A run without a draft would write the same text with the same seed. Texts of a batch do not depend on each other,
except where rounding tips a draw.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from specviz.decoding.draft import ROOT
from specviz.decoding.draws import FINAL, BatchDraws, Draws, Seeded
from specviz.decoding.sampling import TARGET, Sampling, refuse_nan
from specviz.models.pool import LoadedModel, bytes_per_token

EOS, LENGTH, CONTEXT = "eos", "length", "context"
CACHE_BYTES = 256 << 20
"""The most keys and values of texts that are written together. Every forward reads them while other work waits."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A drawn text."""

    ids: tuple[int, ...]
    finish: str  # why it ends: EOS, LENGTH or CONTEXT


def sample(
    target: LoadedModel,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    sampling: Sampling,
    max_new_tokens: int,
) -> list[Continuation]:
    """A text for each prompt. ValueError if a prompt leaves no room for a token in the target's context."""
    lengths = [len(prompt) for prompt in prompts]
    room = [min(max_new_tokens, target.info.context_limit - length) for length in lengths]
    if min(room) < 1:
        raise ValueError(f"a prompt must leave room for a token (got {max(lengths):,} tokens)")
    drawn: dict[int, Continuation] = {}
    for num_tokens, places in _batches(target, lengths, room):
        own_lengths = [lengths[place] for place in places]
        draws = BatchDraws([Seeded(seeds[place]) for place in places], own_lengths)
        draw_one = partial(_draw_one, sampling, draws, max(own_lengths))
        own_prompts = [prompts[place] for place in places]
        texts = target.generate(own_prompts, num_tokens, logits_processor=[draw_one])
        finish = LENGTH if num_tokens == max_new_tokens else CONTEXT
        for place, ids in zip(places, texts, strict=True):
            drawn[place] = _end_text(ids, target.text.eos_ids, finish)
    return [drawn[place] for place in range(len(prompts))]


def _end_text(ids: Sequence[int], eos_ids: Collection[int], finish: str) -> Continuation:
    """Ends a text after its first end token; finish: why it ends without one."""
    for place, token in enumerate(ids):
        if token in eos_ids:
            return Continuation(tuple(ids[: place + 1]), EOS)
    return Continuation(tuple(ids), finish)


def _batches(
    target: LoadedModel, lengths: Sequence[int], room: Sequence[int]
) -> Iterator[tuple[int, list[int]]]:
    """Yields the tokens to write and the places of the prompts that are written together, which have equal room.

    On a CPU, CACHE_BYTES bounds the batch. A GPU reads keys and values so fast that its memory alone is the bound.
    """
    by_room = sorted(range(len(lengths)), key=room.__getitem__)
    for num_tokens, group in groupby(by_room, key=room.__getitem__):
        places = list(group)
        size = len(places)
        if target.model.device.type == "cpu":
            longest = num_tokens + max(lengths[place] for place in places)
            num_bytes = longest * bytes_per_token(target.model)  # 0 without layers
            size = max(1, CACHE_BYTES // max(1, num_bytes))
        for begin in range(0, len(places), size):
            yield num_tokens, places[begin : begin + size]


def _draw_one(sampling: Sampling, draws: Draws, width: int, ids: Tensor, logits: Tensor) -> Tensor:
    """Draws one token for each row of logits [B, V] and closes all other tokens; a logits processor."""
    probs = sampling.probs(logits)
    refuse_nan(probs.sum(-1).tolist(), TARGET)
    drawn = draws.sample(probs, FINAL, ids.shape[1] - width, ROOT)
    return torch.full_like(logits, float("-inf")).scatter_(1, drawn[:, None], 0.0)
