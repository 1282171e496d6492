"""Weights that were rounded to few values: how many different values stand side by side in each matrix."""

import torch
from torch import Tensor, nn

GROUP = 64  # numbers side by side; number formats of few bits share a scale over at least 32
MOST_BITS = 5
SHARE = 0.5  # of a model's matrices
FEWEST = 4096  # numbers in a matrix
ROWS = 64  # of a matrix that are read


def coarse_words(model: nn.Module) -> tuple[str, int]:
    """What is wrong, in words, and the bits of the weights; an empty text and 0 for weights of full precision."""
    bits_of_matrices = []
    for weight in model.parameters():
        if weight.ndim == 2 and weight.numel() >= FEWEST and weight.shape[1] >= GROUP:
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
    largest = ordered.abs().amax(-1, keepdim=True)
    is_new = ordered.diff(dim=-1) > 1e-6 * largest
    most_values = 1 + is_new.sum(-1).max()
    return int(torch.ceil(torch.log2(most_values.float().clamp_min(2))))
