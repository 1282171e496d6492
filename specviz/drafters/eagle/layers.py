"""The decoder layers that EAGLE heads are made of, and the keys and values of the rows that they have read."""

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
        self._kept: dict[int, Tensor] = {}  # layer -> [2, heads, room, D]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds a layer's rows [heads, M, D] behind the first `count`; returns all. The head then moves `count` on."""
        end, kept = self.count + keys.shape[1], self._kept.get(layer)
        if kept is None or end > kept.shape[2]:
            wider = keys.new_empty(2, keys.shape[0], max(64, 2 * end), keys.shape[2])
            if kept is not None:
                wider[:, :, : self.count] = kept[:, :, : self.count]
            self._kept[layer] = kept = wider
        kept[0, :, self.count : end], kept[1, :, self.count : end] = keys, values
        return kept[0, :, :end], kept[1, :, :end]


@dataclass(frozen=True, slots=True)
class AttentionParts:
    """What attention has beside its four matrices. has_norms: one for a head's queries, one for its keys (Qwen3)."""

    has_bias: bool = False
    has_output_bias: bool = False
    has_norms: bool = False


class Attention(nn.Module):
    def __init__(
        self, config: LlamaConfig, input_size: int, parts: AttentionParts, layer: int = 0
    ) -> None:
        super().__init__()
        self._size, shared = config.head_dim, config.num_key_value_heads * config.head_dim
        self._layer = layer
        whole = config.num_attention_heads * config.head_dim
        self.q_proj = nn.Linear(input_size, whole, bias=parts.has_bias)
        self.k_proj = nn.Linear(input_size, shared, bias=parts.has_bias)
        self.v_proj = nn.Linear(input_size, shared, bias=parts.has_bias)
        self.o_proj = nn.Linear(whole, config.hidden_size, bias=parts.has_output_bias)
        self.q_norm, self.k_norm = (
            LlamaRMSNorm(config.head_dim, eps=config.rms_norm_eps)
            if parts.has_norms
            else nn.Identity()
            for _ in "qk"
        )

    def forward(
        self, inputs: Tensor, rotary: tuple[Tensor, Tensor], rows: KeyValueRows, see: Tensor | None
    ) -> Tensor:
        """inputs [M, I] -> [M, H]. see: which of all rows each one sees, bool [M, rows + M]; None: all before it."""
        queries, keys, values = (
            project(inputs)
            .unflatten(-1, (-1, self._size))
            .transpose(0, 1)[None]  # [1, heads, M, D]
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = apply_rotary_pos_emb(self.q_norm(queries), self.k_norm(keys), *rotary)
        past = rows.count
        keys, values = rows.append(self._layer, keys[0], values[0])
        if see is None and past and len(inputs) > 1:
            see = keys.new_ones(len(inputs), past + len(inputs), dtype=torch.bool).tril(past)
        if see is not None:
            see = for_shared_keys(see, queries.shape[1], len(keys))
        mixed = attend(queries, keys[None], values[None], see)
        return self.o_proj(mixed[0].transpose(0, 1).flatten(1))


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
    """A Llama decoder layer as a model has it."""

    def __init__(self, config: LlamaConfig, parts: AttentionParts, layer: int = 0) -> None:
        super().__init__(config, config.hidden_size, parts, layer)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden: Tensor, *attention) -> Tensor:
        return super().forward(self.input_layernorm(hidden), hidden, *attention)


class FusingLayer(Layer):
    """EAGLE-3's first layer: its attention reads embedding and feature, each normalised, concatenated.

    norms_residual: whether the normalised feature, not the feature, is what the layer adds to (EAGLE-3.1).
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
        inputs = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        return super().forward(inputs, normed if self.norms_residual else features, *attention)
