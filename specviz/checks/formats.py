"""The number format that a text was made in, and how far its rounding moves the target's logits.

Nothing is assumed of a format: the target's own weights are computed in it, over the same text.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specviz.checks.scoring import plain_logits
from specviz.errors import SpecvizError
from specviz.models import quantisation as quantised
from specviz.models.library import LoadedModel

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """A target's weights in another number format."""

    dtype: torch.dtype
    target: LoadedModel

    def reach(self, text: Sequence[int], logits: Tensor) -> Tensor:
        """[T] how far each logit may lie from `logits` [T, V], those behind the last T tokens of `text`, either way.

        It is the largest difference that the format shows at this place, and half a unit in the last place of the
        largest logit, rounded up: whoever made the text may have added up in another order.
        """
        here = plain_logits(self.target, text, len(logits)).to(logits)
        last_place = torch.finfo(self.dtype).eps / 2 * logits.abs().amax(-1)
        return (here - logits).abs().amax(-1) + last_place


def format_name(target: LoadedModel) -> str:
    """What the format that the target itself computes in is called."""
    dtype = target.model.dtype
    return next((name for name, known in FORMATS.items() if known == dtype), str(dtype).removeprefix("torch."))


def in_format(target: LoadedModel, name: str) -> Format:
    """The target's weights, copied and rounded to one of FORMATS. SpecvizError where they hold fewer bits."""
    if quantised.is_quantised(target.model):
        raise SpecvizError(
            f"{target.name} holds quantised weights, which cannot be computed in {name}; judge the samples by the "
            "model in full precision"
        )
    model = copy.deepcopy(target.model)
    for parameter in model.parameters():  # buffers stay as they are, as when a model is loaded in this format
        parameter.data = parameter.data.to(FORMATS[name])
    return Format(FORMATS[name], replace(target, model=model))
