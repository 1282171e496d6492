"""The decoder layers of EAGLE heads, and a cache for the keys and values of the rows that they have read."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb

from specviz.decoding.forward.attention import attend, for_shared_keys


class KeyValueRows:
    """Keys and values of the rows read so far, per layer [heads, room, D] each; the room doubles when it runs out."""

    def __init__(self) -> None:
        self.count = 0
        self._stored: dict[int, Tensor] = {}  # layer -> [2, heads, room, D]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds a layer's rows [heads, M, D] behind the first `count`; returns all. The head then moves `count` on."""
        start = self.count
        end = start + keys.shape[1]
        stored = self._stored.get(layer)
        if stored is None or end > stored.shape[2]:
            wider = keys.new_empty(2, keys.shape[0], max(64, 2 * end), keys.shape[2])
            if stored is not None:
                wider[:, :, :start] = stored[:, :, :start]
            stored = wider
            self._stored[layer] = stored
        stored[0, :, start:end] = keys
        stored[1, :, start:end] = values
        return stored[0, :, :end], stored[1, :, :end]


@dataclass(frozen=True, slots=True)
class AttentionParts:
    """The parts that an attention has beside its four matrices."""

    has_bias: bool = False  # on queries, keys and values
    has_output_bias: bool = False
    has_norms: bool = False  # one norm for a head's queries, one for its keys (Qwen3)


class Attention(nn.Module):
    """Llama's self-attention over a cache of earlier rows."""

    def __init__(
        self, config: LlamaConfig, input_size: int, parts: AttentionParts, layer: int = 0
    ) -> None:
        super().__init__()
        self._layer = layer
        self._head_size = config.head_dim
        query_size = config.num_attention_heads * config.head_dim
        key_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(input_size, query_size, bias=parts.has_bias)
        self.k_proj = nn.Linear(input_size, key_size, bias=parts.has_bias)
        self.v_proj = nn.Linear(input_size, key_size, bias=parts.has_bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=parts.has_output_bias)
        self.q_norm = nn.Identity()
        self.k_norm = nn.Identity()
        if parts.has_norms:
            self.q_norm = LlamaRMSNorm(config.head_dim, eps=config.rms_norm_eps)
            self.k_norm = LlamaRMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def forward(
        self, inputs: Tensor, rotary: tuple[Tensor, Tensor], rows: KeyValueRows, see: Tensor | None
    ) -> Tensor:
        """Mixes the inputs [M, I] with the rows read before; returns [M, H].

        see: bool [M, rows + M], which rows each input sees; None: all rows before it.
        """
        queries = self.q_norm(self._split_heads(self.q_proj(inputs)))
        keys = self.k_norm(self._split_heads(self.k_proj(inputs)))
        values = self._split_heads(self.v_proj(inputs))
        queries, keys = apply_rotary_pos_emb(queries, keys, *rotary)
        past = rows.count
        keys, values = rows.append(self._layer, keys[0], values[0])
        if see is None and past and len(inputs) > 1:
            see = keys.new_ones(len(inputs), past + len(inputs), dtype=torch.bool).tril(past)
        if see is not None:
            see = for_shared_keys(see, queries.shape[1], len(keys))
        mixed = attend(queries, keys[None], values[None], see)
        return self.o_proj(mixed[0].transpose(0, 1).flatten(1))

    def _split_heads(self, rows: Tensor) -> Tensor:
        """Rows [M, heads * D] -> [1, heads, M, D]."""
        return rows.unflatten(-1, (-1, self._head_size)).transpose(0, 1)[None]


class Layer(nn.Module):
    """A Llama decoder layer whose input the caller has normalised."""

    def __init__(
        self, config: LlamaConfig, input_size: int, parts: AttentionParts, layer: int = 0
    ) -> None:
        super().__init__()
        self.self_attn = Attention(config, input_size, parts, layer)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, inputs: Tensor, residual: Tensor, *attention) -> Tensor:
        hidden = residual + self.self_attn(inputs, *attention)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class PlainLayer(Layer):
    """A whole Llama decoder layer, which normalises its input itself."""

    def __init__(self, config: LlamaConfig, parts: AttentionParts, layer: int = 0) -> None:
        super().__init__(config, config.hidden_size, parts, layer)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden: Tensor, *attention) -> Tensor:
        return super().forward(self.input_layernorm(hidden), hidden, *attention)


class FusingLayer(Layer):
    """EAGLE-3's first layer: its attention reads the normalised embedding and the normalised feature side by side.

    norms_residual: whether the layer adds to the normalised feature instead of the feature (EAGLE-3.1).
    """

    def __init__(
        self, config: LlamaConfig, parts: AttentionParts, *, norms_residual: bool = False
    ) -> None:
        super().__init__(config, 2 * config.hidden_size, parts)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norms_residual = norms_residual

    def forward(self, embedded: Tensor, features: Tensor, *attention) -> Tensor:
        normed = self.hidden_norm(features)
        inputs = torch.cat([self.input_layernorm(embedded), normed], dim=-1)  # [M, 2 * H]
        residual = normed if self.norms_residual else features
        return super().forward(inputs, residual, *attention)
