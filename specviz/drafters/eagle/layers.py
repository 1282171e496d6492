"""The decoder layers of EAGLE heads as modules, and the rows that a head has read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from specviz.decoding.forward.attention import for_shared_keys
from specviz.decoding.forward.decoder_layers import (
    FIXED_ROPES,
    DecoderLayer,
    Rotation,
    Rows,
    as_rotation,
    read_layers,
    rms_norm,
    store_rows,
)
from specviz.decoding.forward.products import Products, products_of
from specviz.decoding.forward.quick import CompiledLayers, compiled_refusal

_KIND = "attention"
See = Tensor | Mapping[str, Tensor] | None
"""Which rows each new one sees: bool [M, rows + M], or one for each kind of layer; None: all rows before it."""


@dataclass(frozen=True, slots=True)
class AttentionParts:
    """The parts that an attention has beside its four matrices."""

    has_bias: bool = False  # on queries, keys and values
    has_output_bias: bool = False
    has_norms: bool = False  # one norm for a head's queries, one for its keys (Qwen3)


class RMSNorm(LlamaRMSNorm):
    """Llama's norm in one operation."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)


class Attention(nn.Module):
    """The weights of Llama's self-attention."""

    def __init__(self, config: LlamaConfig, input_size: int, parts: AttentionParts) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.scaling = config.head_dim**-0.5
        query_size = config.num_attention_heads * config.head_dim
        key_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(input_size, query_size, bias=parts.has_bias)
        self.k_proj = nn.Linear(input_size, key_size, bias=parts.has_bias)
        self.v_proj = nn.Linear(input_size, key_size, bias=parts.has_bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=parts.has_output_bias)
        if parts.has_norms:
            self.q_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)


class Layer(nn.Module):
    """The weights of a Llama decoder layer whose input the caller has normalised."""

    def __init__(self, config: LlamaConfig, input_size: int, parts: AttentionParts) -> None:
        super().__init__()
        self.self_attn = Attention(config, input_size, parts)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def decoder_layer(self, index: int, kind: str, product: Products) -> DecoderLayer:
        """The layer in few operations. index: of its stored rows. kind: of its attention, by which it sees."""
        return DecoderLayer(index, kind, self, product)


class PlainLayer(Layer):
    """The weights of a whole Llama decoder layer, which normalises its input itself."""

    def __init__(self, config: LlamaConfig, parts: AttentionParts) -> None:
        super().__init__(config, config.hidden_size, parts)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class FusingLayer(Layer):
    """EAGLE-3's first layer: its attention reads the normalised embedding and the normalised feature side by side.

    norms_residual: whether the layer adds to the normalised feature instead of the feature (EAGLE-3.1).
    """

    def __init__(
        self, config: LlamaConfig, parts: AttentionParts, *, norms_residual: bool = False
    ) -> None:
        super().__init__(config, 2 * config.hidden_size, parts)
        self.hidden_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norms_residual = norms_residual


class HeadRows:
    """The keys and values of the rows that a head has read, behind which its layers read new ones."""

    def __init__(
        self,
        blocks: Sequence[Layer],
        rotary: LlamaRotaryEmbedding,
        kinds: Sequence[str] | None = None,
    ) -> None:
        """blocks: the head's layers, first to last. kinds: of their attention, by which they see; None: all alike."""
        attention = blocks[0].self_attn
        products = products_of(attention.q_proj)
        self.count = 0
        self._num_heads = len(attention.q_proj.weight) // attention.head_dim
        self._num_key_heads = len(attention.k_proj.weight) // attention.head_dim
        self._rotary = rotary
        self._has_fixed_rope = rotary.rope_type in FIXED_ROPES
        self._kinds = dict.fromkeys(kinds or [_KIND])
        layers = []
        for index, block in enumerate(blocks):
            kind = kinds[index] if kinds else _KIND
            layers.append(block.decoder_layer(index, kind, products))
        rows = Rows(
            len(layers),
            self._num_key_heads,
            attention.head_dim,
            rotary,
            self._kinds if self._has_fixed_rope else (),
            like=attention.q_proj.weight,
        )
        self._layers = layers
        self._rows = rows
        self._compiled: CompiledLayers | None = None
        if self._has_fixed_rope and not compiled_refusal(layers, products):
            self._compiled = CompiledLayers(products.compiled, layers, rows)

    @torch.no_grad()
    def store(self, features: Tensor) -> None:
        """Adds rows behind the first `count`: every layer takes the features [M, H] as they are for keys and values."""
        past = self.count
        self.count = end = past + len(features)
        self._rows.reserve(end)
        positions = torch.arange(past, end, device=features.device)
        rotations = self._rotations(features, positions)
        views = self._rows.views(past, end)
        for layer in self._layers:
            store_rows(layer, features, rotations[layer.kind], views[layer.index])

    def _rotations(self, x: Tensor, positions: Tensor) -> Mapping[str, Rotation]:
        if self._has_fixed_rope:
            return self._rows.rotations(positions)
        rotation = as_rotation(*self._rotary(x, positions[None]))
        return dict.fromkeys(self._kinds, rotation)

    @torch.no_grad()
    def read(self, x: Tensor, inputs: Tensor | None, positions: Tensor, see: See) -> Tensor:
        """Reads new rows x [M, H] behind the first `count`; returns the states [M, H] behind the last layer.

        inputs [M, I]: what the first layer's attention reads; None: x, normalised. positions [M]: at most two more than
        the number of the last row, as far as the rotations reach.
        """
        past = self.count
        self.count = end = past + len(x)
        self._rows.reserve(end + 2)
        seen = see if isinstance(see, Mapping) else dict.fromkeys(self._kinds, see)
        compiled = self._compiled
        held = [] if compiled is None else compiled.readable(len(x))
        if held:
            masks = [] if see is None else [seen[kind].float().log() for kind in self._kinds]
            captured = (len(self._layers),)
            _, states = compiled.read(x, past, 0, captured, masks, positions, inputs)
            return states
        if see is None and past and len(x) > 1:
            before = torch.ones(len(x), end, dtype=torch.bool, device=x.device).tril(past)
            seen = dict.fromkeys(self._kinds, before)
        heads = self._num_heads, self._num_key_heads
        masks = {
            kind: None if mask is None else for_shared_keys(mask, *heads)
            for kind, mask in seen.items()
        }
        rotations = self._rotations(x, positions)
        views = self._rows.views(past, end)
        states = read_layers(self._layers, x, None, rotations, masks, views, inputs)
        return states[-1]
