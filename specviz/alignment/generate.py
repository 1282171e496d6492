"""Texts drawn from the target, many at a time: transformers' own `generate` over a padded batch, with specviz's draws.

Text i is the one that a run without a draft would write with the same seed: it does not depend on its neighbours,
except where rounding tips a draw.
"""

from collections.abc import Iterator, Sequence
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
"""Keys and values of the texts that are written together: every forward reads them, and others wait for its end."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A text and why it ends: EOS, LENGTH or CONTEXT."""

    ids: tuple[int, ...]
    finish: str


def sample(
    target: LoadedModel,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    sampling: Sampling,
    max_new_tokens: int,
) -> list[Continuation]:
    """One text after each prompt, which must leave room in the target's context for at least one token."""
    room = [min(max_new_tokens, target.info.context_limit - len(prompt)) for prompt in prompts]
    if min(room) < 1:
        raise ValueError(
            f"a prompt must leave room for a token (got {max(map(len, prompts)):,} tokens)"
        )
    made: dict[int, Continuation] = {}
    for num_tokens, places in _batches(target, prompts, room):
        own = [prompts[i] for i in places]
        draws = BatchDraws([Seeded(seeds[i]) for i in places], list(map(len, own)))
        draw_one = partial(_draw_one, sampling, draws, max(map(len, own)))
        drawn = target.generate(own, num_tokens, logits_processor=[draw_one])
        at_end = LENGTH if num_tokens == max_new_tokens else CONTEXT
        for place, ids in zip(places, drawn, strict=True):
            end = next((i + 1 for i, token in enumerate(ids) if token in target.text.eos_ids), None)
            made[place] = Continuation(tuple(ids[:end]), at_end if end is None else EOS)
    return [made[place] for place in range(len(prompts))]


def _batches(
    target: LoadedModel, prompts: Sequence[Sequence[int]], room: Sequence[int]
) -> Iterator[tuple[int, list[int]]]:
    """(tokens to write, places of the prompts) of the texts that are written together, which have room for as many.

    On a GPU its memory alone bounds how many they are, which is read so fast that nobody waits for it.
    """
    for num_tokens, group in groupby(
        sorted(range(len(prompts)), key=room.__getitem__), key=room.__getitem__
    ):
        places = list(group)
        longest = num_tokens + max(len(prompts[i]) for i in places)
        fitting = max(1, CACHE_BYTES // (longest * bytes_per_token(target.model)))
        size = fitting if target.model.device.type == "cpu" else len(places)
        for begin in range(0, len(places), size):
            yield num_tokens, places[begin : begin + size]


def _draw_one(sampling: Sampling, draws: Draws, width: int, ids: Tensor, logits: Tensor) -> Tensor:
    """A logits processor that draws one token of each row [B, V] and closes all others."""
    probs = sampling.probs(logits)
    refuse_nan(probs.sum(-1).tolist(), TARGET)
    drawn = draws.sample(probs, FINAL, ids.shape[1] - width, ROOT)
    return torch.full_like(logits, float("-inf")).scatter_(1, drawn[:, None], 0.0)
