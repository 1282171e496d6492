"""Attention of new rows over kept ones, in the shapes for which every device has a fast kernel."""

import torch
from torch import Tensor
from torch.nn import functional


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """queries [B, heads, n, width], keys and values [B, key heads, end, width] -> [B, heads, n, width].

    mask: `for_shared_keys`; None where one row sees all, or where n = end and each row sees those up to itself. Heads
    that share keys become rows of one head: beside a mask the fast kernels of CUDA want as many heads as key heads, and
    a CPU reads the keys of one row in bfloat16 several times as fast. scale: None for 1 / sqrt(width).
    """
    batch, num_heads, num_rows, width = queries.shape
    num_keys = keys.shape[1]
    if mask is None and num_rows > 1:
        how = {"is_causal": True, "scale": scale, "enable_gqa": num_heads != num_keys}
        return functional.scaled_dot_product_attention(queries, keys, values, **how)
    rows = queries.reshape(batch, num_keys, -1, width)
    out = functional.scaled_dot_product_attention(rows, keys, values, mask, scale=scale)
    return out.reshape(queries.shape)  # CUDA's kernels lay their rows out in another order


def for_shared_keys(mask: Tensor, num_heads: int, num_keys: int) -> Tensor:
    """A mask [..., n, end] for `attend`: its rows once per head that shares keys."""
    return mask if num_heads == num_keys else torch.cat([mask] * (num_heads // num_keys), -2)
