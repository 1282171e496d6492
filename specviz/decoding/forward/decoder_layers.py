"""The decoder layers of Llama and its kin in few torch operations, over rows of keys and values that stay in place.

They read the weights that a module has at the time, so a changed weight counts at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from specviz.decoding.forward.attention import attend
from specviz.decoding.forward.products import Products

FIXED_ROPES = ("default", "linear", "llama3", "yarn")
"""The kinds of rotations whose angles do not depend on the length of the text."""
BLOCK = 256
"""Rows; the store grows by whole blocks, and by a quarter at least."""
Views = tuple[Tensor, Tensor, Tensor, Tensor]
"""The keys and values of a layer up to the end [1, heads, end, width], and their new rows [heads, n, width]."""
Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of places [n, 1, width]."""


def as_rotation(cos: Tensor, sin: Tensor) -> Rotation:
    """Angles [1, room, width] as a rotation that takes one roll: the first half of its sines is negative."""
    cos = cos[0, :, None]
    sin = sin[0, :, None].clone()
    sin[..., : sin.shape[-1] // 2] *= -1
    return cos, sin


class Rows:
    """Keys and values of every layer and the rotation of every place, grown together."""

    def __init__(
        self,
        num_layers: int,
        num_key_heads: int,
        width: int,
        rotary: nn.Module,
        kinds: Iterable[str],
        like: Tensor,
    ) -> None:
        """width: of a head. rotary: makes the angles of places. like: in whose number format and where they lie."""
        self._rotary = rotary
        self.kinds = dict.fromkeys(kinds)
        self.rows = like.new_zeros(2, num_layers, num_key_heads, 0, width)
        """Keys and values [2, layers, heads, rows, width]."""

    def reserve(self, num_rows: int) -> None:
        """Makes room for so many rows."""
        *outer, had, width = self.rows.shape
        if num_rows <= had:
            return
        num_blocks = -(-max(num_rows, had + had // 4) // BLOCK)  # rounded up
        room = num_blocks * BLOCK
        rows = self.rows.new_zeros(*outer, room, width)  # what is masked must be a number
        rows[..., :had, :] = self.rows
        places = torch.arange(room, device=rows.device)[None]
        has_kinds = isinstance(self._rotary.rope_type, dict)
        rotations = {}
        for kind in self.kinds:
            angles = self._rotary(rows, places, kind) if has_kinds else self._rotary(rows, places)
            rotations[kind] = as_rotation(*angles)
        self._rotations = rotations
        self.rows = rows  # last: where memory runs out before, nothing has grown

    def rotations(self, places: slice | Tensor) -> dict[str, Rotation]:
        """The rotation of these places, per kind of attention."""
        return {kind: (cos[places], sin[places]) for kind, (cos, sin) in self._rotations.items()}

    def views(self, past: int, end: int) -> list[Views]:
        """The views of each layer, with new rows from `past` on."""
        keys, values = self.rows[:, :, None, :, :end].unbind()
        new_keys, new_values = self.rows[..., past:end, :].unbind()
        parts = (keys, values, new_keys, new_values)
        return list(zip(*[part.unbind() for part in parts], strict=True))


class CompactLinear:
    """A linear layer that looks its weight and bias up at every call, in the module's own table."""

    def __init__(self, linear: nn.Module, product: Products) -> None:
        self.table = linear._parameters
        self._product = product

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(self.table["weight"], self.table["bias"], x)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Llama's norm of rows [..., H], in float32 within."""
    if x.dtype == torch.float32:
        return torch.rms_norm(x, weight.shape, weight, epsilon)
    return weight * torch.rms_norm(x.float(), weight.shape, None, epsilon).to(x.dtype)


class Norm:
    """A root-mean-square norm that looks its weight up at every call; Gemma's weights are differences from 1."""

    def __init__(self, norm: nn.Module) -> None:
        self.is_gemma = hasattr(norm, "eps")
        self.table = norm._parameters
        self.epsilon = norm.eps if self.is_gemma else norm.variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        weight = self.table["weight"]
        if self.is_gemma:
            gain = 1 + weight.float()
            return torch.rms_norm(x.float(), weight.shape, gain, self.epsilon).to(x.dtype)
        return rms_norm(x, weight, self.epsilon)


def norm_of(module: nn.Module) -> Norm | nn.Module:
    """The norm in few operations; a module that stands in a norm's place and does nothing stays itself."""
    return Norm(module) if module._parameters else module


class DecoderLayer:
    """The parts of one layer, found once."""

    def __init__(self, index: int, kind: str, block: nn.Module, product: Products) -> None:
        """index: of its stored rows. A block without a norm before its attention must be given what that reads."""
        attention = block.self_attn
        mlp = block.mlp
        self.index = index
        self.kind = kind  # of its attention
        self.width = attention.head_dim
        self.scale = attention.scaling
        self.q = CompactLinear(attention.q_proj, product)
        self.k = CompactLinear(attention.k_proj, product)
        self.v = CompactLinear(attention.v_proj, product)
        self.o = CompactLinear(attention.o_proj, product)
        self.gate = CompactLinear(mlp.gate_proj, product)
        self.up = CompactLinear(mlp.up_proj, product)
        self.down = CompactLinear(mlp.down_proj, product)
        self.activation = mlp.act_fn
        has_head_norms = hasattr(attention, "q_norm")
        self.q_norm = norm_of(attention.q_norm) if has_head_norms else None
        self.k_norm = norm_of(attention.k_norm) if has_head_norms else None
        has_input_norm = hasattr(block, "input_layernorm")
        self.attention_norm = norm_of(block.input_layernorm) if has_input_norm else None
        self.after_attention = None
        self.after_mlp = None
        after_attention = norm_of(block.post_attention_layernorm)
        if hasattr(block, "pre_feedforward_layernorm"):
            self.after_attention = after_attention
            self.mlp_norm = norm_of(block.pre_feedforward_layernorm)
            self.after_mlp = norm_of(block.post_feedforward_layernorm)
        else:  # despite its name it comes before the feed-forward part
            self.mlp_norm = after_attention


def read_layers(
    layers: Iterable[DecoderLayer],
    x: Tensor,
    places: Tensor | None,
    rotations: Mapping[str, Rotation],
    masks: Mapping[str, Tensor | None],
    views: Sequence[Views],
    inputs: Tensor | None = None,
) -> list[Tensor]:
    """The states x [n, H] before the layers and behind each of them.

    places: the new rows' places among those of `views`; None: they are all of them. masks: from `for_shared_keys`.
    inputs [n, I]: what the first layer's attention reads; None: x, normalised.
    """
    states = [x]
    for layer in layers:
        if inputs is None:
            inputs = layer.attention_norm(x)
        rotation = rotations[layer.kind]
        mask = masks[layer.kind]
        out = _attend(layer, inputs, rotation, mask, views[layer.index], places)
        inputs = None
        if layer.after_attention is not None:
            out = layer.after_attention(out)
        x = x + out
        y = layer.mlp_norm(x)
        out = layer.down(layer.activation.forward(layer.gate(y)) * layer.up(y))
        if layer.after_mlp is not None:
            out = layer.after_mlp(out)
        x = x + out
        states.append(x)
    return states


def _attend(
    layer: DecoderLayer,
    x: Tensor,
    rotation: Rotation,
    mask: Tensor | None,
    views: Views,
    places: Tensor | None,
) -> Tensor:
    """The attention part of a layer [n, H]; stores the keys and values of the new rows."""
    shape = len(x), -1, layer.width
    q = layer.q(x).view(shape)  # [n, heads, width]
    k = layer.k(x).view(shape)  # [n, key heads, width]
    if layer.q_norm is not None:
        q = layer.q_norm(q)
        k = layer.k_norm(k)
    num_heads = q.shape[1]
    rotated = _rotate(torch.cat([q, k], 1), rotation)
    rotated = rotated.transpose(0, 1)  # row by row, as fast attention wants them
    keys, values, new_keys, new_values = views
    _put(new_keys, rotated[num_heads:], places)
    _put(new_values, layer.v(x).view(shape).transpose(0, 1), places)
    out = attend(rotated[None, :num_heads], keys, values, mask, layer.scale)
    return layer.o(out.transpose(1, 2).reshape(len(x), -1))


def store_rows(layer: DecoderLayer, x: Tensor, rotation: Rotation, views: Views) -> None:
    """Stores the keys and values of x [n, H], which the layer takes as it is, as new rows."""
    shape = len(x), -1, layer.width
    keys = layer.k(x).view(shape)  # [n, key heads, width]
    if layer.k_norm is not None:
        keys = layer.k_norm(keys)
    _, _, new_keys, new_values = views
    new_keys.copy_(_rotate(keys, rotation).transpose(0, 1))
    new_values.copy_(layer.v(x).view(shape).transpose(0, 1))


def _put(stored: Tensor, new: Tensor, places: Tensor | None) -> None:
    """Writes new rows [heads, n, width] to their places among the stored ones; None: they are all of them."""
    if places is None:
        stored.copy_(new)
    else:
        stored.index_copy_(1, places, new)


def _rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Queries or keys [n, heads, width], rotated by the angles of their places."""
    cos, sin = rotation
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
