"""Attention of new rows over stored ones, in the shapes for which every device has a fast kernel."""

import torch
from torch import Tensor
from torch.nn import functional


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """Attention of queries [B, heads, n, width] over keys and values [B, key heads, end, width].

    Returns [B, heads, n, width]. mask: from `for_shared_keys`. Without one, a single row sees all rows, and n = end
    rows each see those up to themselves. scale: None for 1 / sqrt(width).

    Heads that share keys become rows of one head. With a mask, the fast kernels of CUDA need as many heads as key
    heads; and a CPU reads the keys of one row in bfloat16 several times as fast.
    """
    batch, num_heads, num_rows, width = queries.shape
    num_key_heads = keys.shape[1]
    if mask is None and num_rows > 1:
        return functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            is_causal=True,
            scale=scale,
            enable_gqa=num_heads != num_key_heads,
        )
    rows = queries.reshape(batch, num_key_heads, -1, width)
    out = functional.scaled_dot_product_attention(rows, keys, values, mask, scale=scale)
    return out.reshape(queries.shape)  # CUDA's kernels lay their rows out in another order


def for_shared_keys(mask: Tensor, num_heads: int, num_keys: int) -> Tensor:
    """A mask [..., n, end] for `attend`, with its rows repeated for each head that shares keys."""
    if num_heads == num_keys:
        return mask
    return torch.cat([mask] * (num_heads // num_keys), -2)
