"""EAGLE heads: one decoder layer that goes on in the target's feature space (arXiv:2401.15077, EAGLE-3 2503.01840).

A row reads the target's feature at token t and the embedding of token t+1; its output is the feature at t+1, which an
output matrix turns into the law of token t+2. `read` takes the layouts of the public checkpoints and of the bundled
head; whatever does not fit the target is refused by a SpecvizError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from specviz.drafters.heads import check_sizes, read_size
from specviz.errors import SpecvizError
from specviz.models.checkpoint import LoadReport, fill

if TYPE_CHECKING:
    from specviz.models.library import LoadedModel

_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
_OPTIONAL = ("head_dim", "rms_norm_eps", "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters")
_LAYERS = "eagle_aux_hidden_state_layer_ids"
_OTHER_NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")  # of EAGLE-3.1 and others
_MOST_HEAD_SIZE = 1024
_MOST_NUMBER = 1e12  # of a rotary base; the largest in use are far below
_FEWEST_LAYERS = 7  # below, the three layers that EAGLE-3 reads are not three
IGNORED = r"(.*\.)?rotary_emb\.inv_freq"
"""Names of tensors that nothing needs."""


class Rows:
    """Keys and values of the rows read so far, [heads, room, D] each; the room doubles when it runs out."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: Tensor | None = None  # [2, heads, room, D]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds rows [heads, M, D] behind the first `count` and returns all of them."""
        end = self.count + keys.shape[1]
        if self._kept is None or end > self._kept.shape[2]:
            wider = keys.new_empty(2, keys.shape[0], max(64, 2 * end), keys.shape[2])
            if self._kept is not None:
                wider[:, :, : self.count] = self._kept[:, :, : self.count]
            self._kept = wider
        self._kept[0, :, self.count : end], self._kept[1, :, self.count : end] = keys, values
        self.count = end
        return self._kept[0, :, :end], self._kept[1, :, :end]


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig, input_size: int, bias: bool) -> None:
        super().__init__()
        self._size, shared = config.head_dim, config.num_key_value_heads * config.head_dim
        self._is_grouped = config.num_key_value_heads != config.num_attention_heads
        self.q_proj = nn.Linear(input_size, config.num_attention_heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(input_size, shared, bias=bias)
        self.v_proj = nn.Linear(input_size, shared, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=False)

    def forward(self, inputs: Tensor, rotary: tuple[Tensor, Tensor], rows: Rows, see: Tensor | None) -> Tensor:
        """inputs [M, I] -> [M, H]. see: which of all rows each one sees, bool [M, rows + M]; None: all before it."""
        queries, keys, values = (
            project(inputs).unflatten(-1, (-1, self._size)).transpose(0, 1)[None]  # [1, heads, M, D]
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = apply_rotary_pos_emb(queries, keys, *rotary)
        past = rows.count
        keys, values = rows.append(keys[0], values[0])
        if see is None and past:
            see = keys.new_ones(len(inputs), past + len(inputs), dtype=torch.bool).tril(past)
        mixed = scaled_dot_product_attention(
            queries, keys[None], values[None], attn_mask=see, is_causal=see is None, enable_gqa=self._is_grouped
        )
        return self.o_proj(mixed[0].transpose(0, 1).flatten(1))


class Layer(nn.Module):
    """A Llama decoder layer whose input the caller has normalised."""

    def __init__(self, config: LlamaConfig, input_size: int, bias: bool) -> None:
        super().__init__()
        self.self_attn = Attention(config, input_size, bias)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, inputs: Tensor, residual: Tensor, *attention) -> Tensor:
        hidden = residual + self.self_attn(inputs, *attention)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class FusingLayer(Layer):
    """EAGLE-3's layer: its attention reads embedding and feature, each normalised, concatenated."""

    def __init__(self, config: LlamaConfig, bias: bool) -> None:
        super().__init__(config, 2 * config.hidden_size, bias)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class EagleHead(nn.Module):
    """EAGLE-1 and -2: keys `fc.*` and `layers.0.*`; the feature is the target's last state after the final norm.

    hidden_layers: the target's states that its features are made of. num_choices: how many tokens it can propose.
    """

    hidden_layers: tuple[int, ...] = (-1,)

    def __init__(self, config: LlamaConfig, target: LoadedModel, bias: bool, attention_bias: bool) -> None:
        super().__init__()
        self._shared = target.model.get_input_embeddings(), target.model.get_output_embeddings()  # not its own
        self.embed_tokens: nn.Embedding | None = None
        self.vocab_size = self.num_choices = target.info.vocab_size
        self._build(config, bias, attention_bias)

    def _build(self, config: LlamaConfig, bias: bool, attention_bias: bool) -> None:
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.layers = nn.ModuleList([Layer(config, config.hidden_size, attention_bias)])

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states [n, C] -> features [n, H]."""
        return states

    def forward(self, features: Tensor, ids: Tensor, positions: Tensor, rows: Rows, see: Tensor | None) -> Tensor:
        """Features [M, H] and the tokens [M] that follow them, at `positions` [M] -> the next features [M, H]."""
        embedded = (self.embed_tokens or self._shared[0])(ids).to(features.dtype)
        return self._next(embedded, features, self.rotary(features, positions[None]), rows, see)

    def _next(self, embedded: Tensor, features: Tensor, *attention) -> Tensor:
        hidden = self.fc(torch.cat([embedded, features], dim=-1))
        return self.layers[0](hidden, hidden, *attention)

    def logits(self, features: Tensor) -> Tensor:
        """Features [M, H] -> logits [M, V] over the target's vocabulary."""
        return self._shared[1](features)

    def take(self, state: Mapping[str, Tensor]) -> set[str]:
        """Reads the tensors beside its layer's weights; returns the names of those it has used. An output matrix counts
        as used where it is the target's own."""
        output, own = state.get("lm_head.weight"), self._shared[1].weight
        is_same = output is not None and output.shape == own.shape and torch.equal(output.to(own), own)
        return self._take_table(state) | ({"lm_head.weight"} if is_same else set())

    def _take_table(self, state: Mapping[str, Tensor]) -> set[str]:
        table, own = state.get("embed_tokens.weight"), self._shared[0].weight
        if table is None:
            return set()
        _check("embed_tokens.weight", table, tuple(own.shape))
        if not torch.equal(table.to(own), own):  # the public checkpoints repeat the target's table
            self.embed_tokens = nn.Embedding.from_pretrained(table.to(own))
        return {"embed_tokens.weight"}


class Eagle3Head(EagleHead):
    """EAGLE-3: keys `fc.weight`, `midlayer.*`, `norm.weight`, `lm_head.weight`, and `d2t`, `t2d` for fewer tokens.

    Its feature is made of the states before the layers 2, L/2 and L-3; its own output is its next feature.
    """

    def _build(self, config: LlamaConfig, bias: bool, attention_bias: bool) -> None:
        self.num_choices = config.vocab_size
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = FusingLayer(config, attention_bias)
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def fuse(self, states: Tensor) -> Tensor:
        return self.fc(states)

    def _next(self, embedded: Tensor, features: Tensor, *attention) -> Tensor:
        layer = self.midlayer
        inputs = torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(features)], dim=-1)
        return layer(inputs, features, *attention)

    def logits(self, features: Tensor) -> Tensor:
        rows = self.lm_head(self.norm(features))
        return rows.new_full((len(rows), self.vocab_size), float("-inf")).index_copy(1, self._target_ids, rows)

    def take(self, state: Mapping[str, Tensor]) -> set[str]:
        names = {name for name in ("d2t", "t2d") if name in state}
        self._target_ids = _target_ids(state, self.num_choices, self.vocab_size).to(self._shared[0].weight.device)
        return names | self._take_table(state)


def read(
    config: Mapping[str, object], state: Mapping[str, Tensor], target: LoadedModel
) -> tuple[EagleHead, LoadReport]:
    """A head for `target` from a checkpoint's settings and tensors, whose names tell the layouts apart. SpecvizError.

    Tensors that are missing stay on the meta device.
    """
    if "fc.weight" not in state:
        raise SpecvizError("its weights hold no EAGLE head (no tensor is called fc.weight)")
    is_third = any(name.startswith("midlayer.") for name in state)
    shape = _shape(config, target, "draft_vocab_size" if is_third else "vocab_size")
    biases = config.get("bias", True) is not False, config.get("qkv_bias", config.get("attention_bias")) is True
    with torch.device("meta"):
        head = (Eagle3Head if is_third else EagleHead)(shape, target, *biases)
    if is_third:
        head.hidden_layers = fused_layers(config, target)
    like = torch.empty(0, dtype=target.model.dtype, device=target.model.device)
    keys = fill(head, state, like, {name: name for name in head.state_dict()})
    taken = head.take(state)
    head.rotary = LlamaRotaryEmbedding(shape).to(like.device)  # stays in float32
    return head, LoadReport(
        (*keys.used, *sorted(taken)), tuple(key for key in keys.unused if key not in taken), keys.missing
    )


def _shape(config: Mapping[str, object], target: LoadedModel, vocabulary: str) -> LlamaConfig:
    """The sizes of the head's layer; refused where they are not the target's or make no sense."""
    sizes = {name: read_size(config, name) for name in _SIZES}
    if read_size(config, "num_hidden_layers", 1) != 1 or config.get("hidden_act", "silu") != "silu":
        raise SpecvizError("it must have one layer with the activation silu (its config.json says otherwise)")
    check_sizes(target, hidden=sizes["hidden_size"])
    ids = read_size(config, "vocab_size", target.info.vocab_size)
    check_sizes(target, vocabulary=ids)
    _check_attention(config, sizes)
    rest = {name: config[name] for name in _OPTIONAL if config.get(name) is not None}
    try:
        shape = LlamaConfig(**sizes, **rest, vocab_size=read_size(config, vocabulary, ids))
        angles = LlamaRotaryEmbedding(shape)
        speeds = torch.cat([angles.inv_freq.flatten(), torch.tensor([float(angles.attention_scaling)])])
    except Exception as error:  # anything, from untrusted values
        reason = " ".join(str(error).split())[:200]
        raise SpecvizError(f"its config.json cannot be used ({reason})") from error
    if not bool(((speeds > 0) & speeds.isfinite()).all()):
        raise SpecvizError("its config.json gives no usable angles to positions (rope_theta, or rope_scaling)")
    return shape


def _check_attention(config: Mapping[str, object], sizes: Mapping[str, int]) -> None:
    """Refuses numbers of an untrusted checkpoint that transformers cannot compute with."""
    heads, shared = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    size = sizes["hidden_size"] // heads
    if config.get("head_dim") is not None:
        size = read_size(config, "head_dim", most=_MOST_HEAD_SIZE)
    if heads % shared or size % 2 or not 2 <= size <= _MOST_HEAD_SIZE:
        raise SpecvizError(
            "its attention heads must be a multiple of its key-value heads, and of an even size up to "
            f"{_MOST_HEAD_SIZE} (got {heads}, {shared} and the size {size})"
        )
    for name in ("rms_norm_eps", "rope_theta"):
        value = config.get(name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value <= _MOST_NUMBER):
            raise SpecvizError(f"{name} in its config.json must be a number above 0 (got {value!r:.40})")


def fused_layers(config: Mapping[str, object], target: LoadedModel) -> tuple[int, ...]:
    """The states before the layers 2, L/2 and L-3, counted from 0. Some checkpoints name them, by the layer before or
    behind the state."""
    more = config.get("eagle_config")
    places = (config, more if isinstance(more, Mapping) else {})
    if others := [name for name in _OTHER_NORMS if any(place.get(name) for place in places)]:
        raise SpecvizError(f"its config.json sets {' and '.join(others)}: norms that EAGLE-3 itself does not have")
    num_layers = target.model.config.get_text_config(decoder=True).num_hidden_layers
    if num_layers < _FEWEST_LAYERS:
        raise SpecvizError(f"EAGLE-3 needs a target of {_FEWEST_LAYERS} or more layers (got {num_layers})")
    behind = [2, num_layers // 2, num_layers - 3]
    for settings in places:
        named = settings.get(_LAYERS, behind)
        if named not in (behind, [layer - 1 for layer in behind]):
            raise SpecvizError(
                f"it must read the states before the layers {behind} (its config.json names {named!r:.40})"
            )
    return tuple(behind)


def _target_ids(state: Mapping[str, Tensor], num_choices: int, vocab_size: int) -> Tensor:
    """The target's id [D] of each token that the head can propose: d2t holds the difference."""
    if "d2t" not in state and num_choices != vocab_size:
        raise SpecvizError(f"it proposes {num_choices} of {vocab_size} tokens and lacks d2t, which says which ones")
    shift = state.get("d2t", torch.zeros(num_choices, dtype=torch.long))
    _check("d2t", shift, (num_choices,), is_float=False)
    ids = torch.arange(num_choices) + shift.cpu().long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size or len(ids.unique()) < num_choices:
        raise SpecvizError(f"its d2t must lead to {num_choices} different ids of the target, all below {vocab_size}")
    if "t2d" in state:
        _check("t2d", state["t2d"], (vocab_size,), is_float=False)
        if state["t2d"].cpu().nonzero().flatten().tolist() != sorted(ids.tolist()):
            raise SpecvizError("its t2d must mark the very ids that its d2t leads to; they disagree")
    return ids


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], *, is_float: bool = True) -> None:
    if tuple(tensor.shape) != shape or tensor.is_floating_point() != is_float:
        kind = "decimal" if is_float else "whole"
        got = f"{tensor.dtype}, {list(tensor.shape)!s:.60}"
        raise SpecvizError(f"{name} must hold {kind} numbers in the shape {list(shape)} (got {got})")
