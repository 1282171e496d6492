"""Weights that were rounded to few values, and undos of a wrong zero point or of scales of other blocks.

Formats of few bits store whole numbers, and for each block of numbers side by side a scale and often a zero point. The
scale shows in the weights themselves: it is the step between neighbouring values of a block.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from specviz.alignment.causes.reading import Family, Reading, Undo, on_module
from specviz.alignment.causes.undo.matrices import MOST_COPIED, is_plain, matrices_of, put
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel, ModelPool
from specviz.models.quantisation import is_quantised, split_format

BLOCKS = (128, 64, 32)  # numbers that share a scale, in the formats in use
GROUP = 64  # numbers side by side of which the values are counted
MOST_BITS = 5
SHARE = 0.5  # of a model's matrices
FEWEST = 4096  # numbers in a matrix
ROWS = 64  # of a matrix that are read
ZERO_POINTS = (1, 2, 4, 8)  # steps by which a zero point may be off


def coarse_words(model: nn.Module) -> tuple[str, int]:
    """What is wrong, in words, and the bits of the weights; an empty text and 0 for weights of full precision."""
    bits_of_matrices = []
    for weight in model.parameters():
        is_large = weight.ndim == 2 and weight.numel() >= FEWEST and weight.shape[1] >= GROUP
        if is_plain(weight) and is_large:
            bits_of_matrices.append(_count_bits(weight))
    coarse = [bits for bits in bits_of_matrices if bits <= MOST_BITS]
    if not coarse or len(coarse) < SHARE * len(bits_of_matrices):
        return "", 0
    bits = max(coarse)
    words = (
        f"Its weights are rounded to {bits} bits: in {len(coarse)} of {len(bits_of_matrices)} matrices, {GROUP} "
        f"numbers side by side have at most {2**bits} values. What this costs cannot be measured without the weights "
        "before rounding: compare with them."
    )
    return words, bits


def _count_bits(weight: Tensor) -> int:
    """The bits that hold the different values of every group of numbers."""
    step = max(1, len(weight) // ROWS)
    rows = weight.detach()[::step][:ROWS].float()
    width = rows.shape[1] // GROUP * GROUP
    ordered = rows[:, :width].reshape(-1, GROUP).sort(-1).values  # [groups, GROUP]
    most_values = 1 + _is_new(ordered).sum(-1).max()
    return int(torch.ceil(torch.log2(most_values.float().clamp_min(2))))


def _is_new(ordered: Tensor) -> Tensor:
    """Whether each value differs from the one before. ordered [groups, n], ascending -> [groups, n - 1]."""
    largest = ordered.abs().amax(-1, keepdim=True)
    return ordered.diff(dim=-1) > 1e-6 * largest


def families(module: nn.Module) -> Iterator[Family]:
    """Zero points off by some steps, and scales of the block before or behind."""
    _, bits = coarse_words(module)
    if not bits:
        return
    for sign, words in ((-1, "lower"), (1, "higher")):
        family = []
        for steps in ZERO_POINTS:
            cure = (
                f"all coarse weights {steps} step{'s' * (steps > 1)} {words} (another zero point)"
            )
            family.append(on_module("zero point", cure, partial(_shift, steps=sign * steps)))
        yield tuple(family)
    for offset, words in ((1, "before"), (-1, "behind")):
        cure = f"each block of coarse weights with the scale of the block {words}"
        yield (on_module("zero point", cure, partial(_move_scales, offset=offset)),)


def _shift(module: nn.Module, steps: int) -> None:
    for linear, blocks, scales in list(_coarse(module)):
        put(linear, (blocks + steps * scales).view_as(linear.weight).to(linear.weight))


def _move_scales(module: nn.Module, offset: int) -> None:
    for linear, blocks, scales in list(_coarse(module)):
        moved = blocks / scales * scales.roll(offset, 1)
        put(linear, moved.view_as(linear.weight).to(linear.weight))


def _coarse(module: nn.Module) -> Iterator[tuple[nn.Module, Tensor, Tensor]]:
    """Yields the coarse matrices: itself, its blocks [out, blocks, size] and their scales [out, blocks, 1]."""
    for _, _, linear in matrices_of(module):
        weight = linear.weight
        if weight.numel() < FEWEST:
            continue
        for size in (weight.shape[1], *BLOCKS):
            if weight.shape[1] % size == 0:
                blocks = weight.detach().float().unflatten(1, (-1, size))
                scales = _scales(blocks)
                if scales is not None:
                    yield linear, blocks, scales
                    break


def _scales(blocks: Tensor) -> Tensor | None:
    """The step between the values of each block [out, blocks, 1]; None where they lie on no grid of few values."""
    ordered = blocks.sort(-1).values
    largest = ordered.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    steps = ordered.diff(dim=-1)
    steps = steps.masked_fill(steps <= 1e-4 * largest, float("inf"))
    scales = steps.amin(-1, keepdim=True)
    scales = torch.where(scales.isinf(), largest, scales)
    numbers = (blocks - ordered[..., :1]) / scales
    is_grid = (numbers - numbers.round()).abs().amax() < 0.1
    return scales if is_grid and numbers.amax() < 2**MOST_BITS else None


# ---- another number format -------------------------------------------------------------------------------------------


def wider(draft: LoadedModel, pool: ModelPool) -> Iterator[Family]:
    """The weights before quantisation where they can be loaded, or float32 for 16-bit weights."""
    plain_name, bits = split_format(draft.name)
    dtype = draft.model.dtype
    if bits is not None:
        try:
            plain = pool.load(plain_name, as_draft=True).model
        except SpecvizError:  # not here, or too large
            return
        cure = f"its own weights instead of {bits}"
        yield (Undo("precision", cure, lambda reading: replace(reading, module=plain)),)
    is_short = dtype in (torch.bfloat16, torch.float16)
    is_small = draft.info.num_parameters <= MOST_COPIED
    if bits is None and is_short and is_small and not is_quantised(draft.model):
        cure = f"float32 instead of {str(dtype).removeprefix('torch.')}"
        yield (Undo("precision", cure, _widen),)


def _widen(reading: Reading) -> Reading:
    return replace(reading, module=copy.deepcopy(reading.module).float())
