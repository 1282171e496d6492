"""Weights that were rounded to few values: how many different ones stand side by side in each matrix."""

import torch
from torch import Tensor, nn

GROUP = 64  # numbers side by side; number formats of few bits share a scale over at least 32
MOST_BITS = 5
SHARE = 0.5  # of a model's matrices
FEWEST = 4096  # numbers in a matrix
ROWS = 64  # that are looked at


def coarse_words(model: nn.Module) -> tuple[str, int]:
    """What is wrong, and the bits; an empty text for weights of full precision."""
    matrices = (
        table for table in model.parameters() if table.ndim == 2 and table.numel() >= FEWEST
    )
    found = [_bits(table) for table in matrices if table.shape[1] >= GROUP]
    coarse = [bits for bits in found if bits <= MOST_BITS]
    if not coarse or len(coarse) < SHARE * len(found):
        return "", 0
    bits = max(coarse)
    words = (
        f"Its weights are rounded to {bits} bits: in {len(coarse)} of {len(found)} matrices, {GROUP} numbers side by "
        f"side have at most {2**bits} values. What this costs cannot be measured without the weights before rounding: "
        "compare with them."
    )
    return words, bits


def _bits(table: Tensor) -> int:
    """The bits that hold the different values of every group."""
    rows = table.detach()[:: max(1, len(table) // ROWS)][:ROWS].float()
    groups = rows[:, : rows.shape[1] // GROUP * GROUP].reshape(-1, GROUP)
    ordered = groups.sort(-1).values
    values = 1 + (ordered.diff(dim=-1) > 1e-6 * ordered.abs().amax(-1, keepdim=True)).sum(-1)
    return int(torch.ceil(torch.log2(values.max().float().clamp_min(2))))
