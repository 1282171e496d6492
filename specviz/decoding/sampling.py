"""Logits to probabilities: the one place, used for the target's p and the draft's q alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from specviz.decoding.device import exact_dtype, to_host
from specviz.errors import SpecvizError


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperature, then top-k, then top-p, as in transformers' `generate`. temperature 0 is greedy: p is one-hot.

    draft_*: what q is made with where that differs; None: as p.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0  # 1: no limit
    draft_temperature: float | None = None
    draft_top_k: int | None = None
    draft_top_p: float | None = None

    @classmethod
    def of(cls, settings: object) -> Sampling:
        """As a request, or the settings of a recorded step, have it."""
        return cls(**{item.name: getattr(settings, item.name) for item in fields(cls)})

    @property
    def of_draft(self) -> Sampling:
        """What the draft's logits become q with."""
        own = (self.draft_temperature, self.draft_top_k, self.draft_top_p)
        same = (self.temperature, self.top_k, self.top_p)
        return Sampling(
            *(here if value is None else value for value, here in zip(own, same, strict=True))
        )

    @property
    def is_plain(self) -> bool:
        """Whether p and q are simply the softmax of the logits."""
        return (
            self.temperature == 1.0
            and self.top_k == 0
            and self.top_p >= 1.0
            and self.of_draft == Sampling()
        )

    def probs(self, logits: Tensor) -> Tensor:
        """logits [..., V] of any float dtype -> probabilities [..., V] in float32 (float64 stays float64)."""
        wide = logits if logits.dtype == torch.float64 else logits.float()
        if self.temperature == 0:
            peak, place = wide.max(-1, keepdim=True)
            return torch.zeros_like(wide).scatter_(
                -1, place, 1.0 + (peak - peak)
            )  # not-a-number stays visible
        if self.temperature != 1.0:
            coldest = torch.finfo(
                wide.dtype
            ).tiny  # what is smaller would be 0 in this number format
            wide = (wide - wide.amax(-1, keepdim=True)) / max(self.temperature, coldest)
        if 0 < self.top_k < wide.shape[-1]:
            least = wide.topk(self.top_k, dim=-1).values[..., -1:]
            wide = wide.masked_fill(wide < least, float("-inf"))
        if self.top_p < 1.0:
            wide = _keep_nucleus(wide, self.top_p)
        return wide.softmax(-1)


TARGET, DRAFT_MODEL, HEADS = "the target model", "the draft model", "the draft heads"


class NotANumber(SpecvizError):
    """who: what gave not-a-number where a probability should stand, in words."""

    def __init__(self, who: str) -> None:
        super().__init__(
            f"{who} returned not-a-number instead of probabilities: weights or settings are damaged, or too large for "
            "this number format (try float32)"
        )
        self.who = who


def refuse_nan(values: Iterable[float], who: str) -> None:
    """Raises NotANumber if one of the probabilities (or sums of them) that came to the host is not a number."""
    if any(math.isnan(value) for value in values):
        raise NotANumber(who)


def fetch_tokens(tokens: Tensor, values: Tensor, who: str) -> tuple[list, list]:
    """Ids and as many numbers, of the same shape, on the host in one transfer; a number that is none: NotANumber."""
    wide = exact_dtype(tokens.device)
    ids, values = to_host(torch.stack([tokens.to(wide), values.to(wide)]))
    refuse_nan(values.flatten().tolist(), who)
    return ids.long().tolist(), values.tolist()


def _keep_nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Drops the least likely tokens whose probabilities add up to at most 1 - top_p; the likeliest one always stays."""
    ascending, order = logits.sort(dim=-1)
    drop = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    drop[..., -1:] = False
    return logits.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), float("-inf"))


def fit(logits: Tensor, vocab_size: int) -> Tensor:
    """Logits [..., V_draft] as wide as the target's vocabulary: ids that one of the two lacks get probability 0."""
    if logits.shape[-1] >= vocab_size:
        return logits[..., :vocab_size]
    return torch.nn.functional.pad(logits, (0, vocab_size - logits.shape[-1]), value=float("-inf"))
