"""Sampling: turns logits into probabilities, the target's p and the draft's q alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from specviz.decoding.device import argmax, exact_dtype, to_host
from specviz.errors import SpecvizError


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperature, then top-k, then top-p, then min-p, as in transformers' `generate`."""

    temperature: float = 1.0  # 0 is greedy: p is one-hot
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0  # 1: no limit
    min_p: float = 0.0  # 0: no limit
    draft_temperature: float | None = None  # for q; None: as for p
    draft_top_k: int | None = None
    draft_top_p: float | None = None
    draft_min_p: float | None = None

    @classmethod
    def of(cls, settings: object) -> Sampling:
        """The sampling of a request or of a recorded step's settings."""
        return cls(**{item.name: getattr(settings, item.name) for item in fields(cls)})

    @property
    def of_draft(self) -> Sampling:
        """The sampling that turns the draft's logits into q."""
        return Sampling(
            _default(self.draft_temperature, self.temperature),
            _default(self.draft_top_k, self.top_k),
            _default(self.draft_top_p, self.top_p),
            _default(self.draft_min_p, self.min_p),
        )

    @property
    def is_plain(self) -> bool:
        """Whether p and q are simply the softmax of the logits."""
        of_target = Sampling(self.temperature, self.top_k, self.top_p, self.min_p)
        return of_target == self.of_draft == Sampling()

    def probs(self, logits: Tensor) -> Tensor:
        """Probabilities [..., V] in float32, from logits [..., V] of any float dtype; float64 stays float64."""
        wide = logits if logits.dtype == torch.float64 else logits.float()
        if self.temperature == 0:
            token = argmax(wide)[..., None]
            largest = wide.gather(-1, token)
            one = 1.0 + (largest - largest)  # not-a-number stays visible
            return torch.zeros_like(wide).scatter_(-1, token, one)
        if self.temperature != 1.0:
            coldest = torch.finfo(wide.dtype).tiny  # smaller ones would be 0 in this number format
            wide = (wide - wide.amax(-1, keepdim=True)) / max(self.temperature, coldest)
        if 0 < self.top_k < wide.shape[-1]:
            least = wide.topk(self.top_k, dim=-1).values[..., -1:]
            wide = wide.masked_fill(wide < least, float("-inf"))
        if self.top_p < 1.0:
            wide = _keep_nucleus(wide, self.top_p)
        if self.min_p > 0.0:
            wide = _keep_likely(wide, self.min_p)
        return wide.softmax(-1)


def _default(value: float | None, default: float) -> float:
    return default if value is None else value


TARGET = "the target model"
DRAFT_MODEL = "the draft model"
HEADS = "the draft heads"


class NotANumber(SpecvizError):
    """A model returned not-a-number where a probability should stand."""

    def __init__(self, who: str) -> None:
        """who: the model, in words."""
        super().__init__(
            f"{who} returned not-a-number instead of probabilities: weights or settings are damaged, or too large for "
            "this number format (try float32)"
        )
        self.who = who


def refuse_nan(values: Iterable[float], who: str) -> None:
    """Raises NotANumber if one of these probabilities, or sums of some, is not a number."""
    if any(math.isnan(value) for value in values):
        raise NotANumber(who)


def fetch_tokens(tokens: Tensor, values: Tensor, who: str) -> tuple[list, list]:
    """Brings ids and numbers of the same shape to the host in one transfer. Raises NotANumber if one is none."""
    wide = exact_dtype(tokens.device)
    ids, values = to_host(torch.stack([tokens.to(wide), values.to(wide)]))
    refuse_nan(values.flatten().tolist(), who)
    return ids.long().tolist(), values.tolist()


def _keep_nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Drops the least likely tokens, up to a total probability of 1 - top_p; the most likely one always stays."""
    ascending, order = logits.sort(dim=-1)
    is_dropped = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    is_dropped[..., -1:] = False
    is_dropped = torch.zeros_like(is_dropped).scatter(-1, order, is_dropped)  # by token
    return logits.masked_fill(is_dropped, float("-inf"))


def _keep_likely(logits: Tensor, min_p: float) -> Tensor:
    """Drops the tokens less likely than min_p times the most likely one (min-p sampling, Nguyen et al. 2024)."""
    probs = logits.softmax(-1)
    is_dropped = probs < min_p * probs.amax(-1, keepdim=True)
    return logits.masked_fill(is_dropped, float("-inf"))


def fit(logits: Tensor, vocab_size: int) -> Tensor:
    """Logits [..., V_draft] made as wide as the target's vocabulary; ids that one model lacks get probability 0."""
    if logits.shape[-1] >= vocab_size:
        return logits[..., :vocab_size]
    return torch.nn.functional.pad(logits, (0, vocab_size - logits.shape[-1]), value=float("-inf"))
