"""Compact: the forward of Llama and its kin in few torch operations, over rows of keys and values that stay in place.

It reads the model's own weights at every call, so a changed weight counts at once and none is kept twice. It promises
the numbers of transformers' forward but for rounding; `refusal` names the models that it is not written for, and
`CachedLM` proves it on every model before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.decoding.forward import check_layers
from specviz.decoding.products import Products

CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_ROPES = ("default", "linear", "llama3", "yarn")  # angles that do not depend on the length of the text
BLOCK = 256  # rows; the store grows by whole blocks, and by a quarter at least


def refusal(model: PreTrainedModel, products: Products) -> str:
    """Why this model cannot be read compactly, in words; empty where it may be tried."""
    kind = type(model)
    if kind.__name__ not in CLASSES or not kind.__module__.startswith("transformers.models."):
        return f"not written for {kind.__name__}"
    if not all(products.applies(weight) for weight in model.parameters()):
        return "only for float32 on the CPU"
    if any(type(getattr(block, name)) is not nn.Linear for block, name in _linears(model)):
        return "its linear layers are of a different kind"
    if any(map(_is_hooked, model.modules())):
        return "its modules have hooks"
    return "" if model.model.rotary_emb.rope_type in _ROPES else "its positions depend on the length of the text"


def _is_hooked(module: nn.Module) -> bool:
    """Whether calling the module does more than its class says; transformers' own hooks only look."""
    hooks = (hook for hook in module._forward_hooks.values() if not hook.__module__.startswith("transformers."))
    return bool(vars(module).keys() & {"forward", "_hf_hook"} or module._forward_pre_hooks or list(hooks))


def _linears(model: PreTrainedModel) -> list[tuple[nn.Module, str]]:
    found: list[tuple[nn.Module, str]] = [(model, "lm_head")]
    for layer in model.model.layers:
        found += [(layer.self_attn, f"{name}_proj") for name in "qkvo"]
        found += [(layer.mlp, f"{name}_proj") for name in ("gate", "up", "down")]
    return found


class _Rows:
    """Keys and values of every layer and the angles of every place, grown together. [2, layers, heads, rows, width]"""

    def __init__(self, model: PreTrainedModel) -> None:
        config, attention = model.config, model.model.layers[0].self_attn
        self._angles_of = model.model.rotary_emb
        self.rows = torch.zeros(2, config.num_hidden_layers, config.num_key_value_heads, 0, attention.head_dim)
        self.pairs: list[tuple[Tensor, Tensor]] = []  # keys and values of one layer

    def reserve(self, num_rows: int) -> None:
        had = self.rows.shape[3]
        if num_rows <= had:
            return
        room = -(-max(num_rows, had + had // 4) // BLOCK) * BLOCK
        rows = self.rows.new_empty(*self.rows.shape[:3], room, self.rows.shape[4])
        rows[..., :had, :] = self.rows
        self.rows, self.pairs = rows, list(zip(*rows, strict=True))
        cos, sin = self._angles_of(rows, torch.arange(room)[None])  # [1, room, width]
        self.cos, self.sin = cos[0, :, None], sin[0, :, None].clone()
        self.sin[..., : sin.shape[-1] // 2] *= -1  # so that turning is one roll


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    index: int
    kind: str  # of attention, as `_windows` of the reader names it
    block: nn.Module


class Compact:
    """A Forward over rows of its own, or over another's for `exit`."""

    path = "compact"

    def __init__(self, model: PreTrainedModel, products: Products, rows: _Rows | None = None) -> None:
        self._model, self._product = model, products
        self._rows = rows or _Rows(model)
        kinds = getattr(model.config, "layer_types", None) or ["attention"] * len(model.model.layers)
        self._layers = [_Layer(*each) for each in zip(range(len(kinds)), kinds, model.model.layers, strict=True)]

    def exit(self, layers: Sequence[int]) -> Compact:
        check_layers(layers, len(self._layers))
        early = Compact(self._model, self._product, self._rows)
        early._layers = [self._layers[layer] for layer in layers]
        return early

    def clear(self) -> None:
        """Rows that are read no more are written over."""

    def keep(self, start: int, end: int, source: Tensor | None) -> None:
        if source is not None:
            self._rows.rows[..., start:end, :] = self._rows.rows[..., source, :]

    def __call__(
        self,
        ids: Tensor,
        past: int,
        num_logits: int,
        captured: tuple[int, ...],
        attention_mask: Tensor | dict[str, Tensor] | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        rows, end = self._rows, past + len(ids)
        rows.reserve(end)
        place = slice(past, end) if position_ids is None else position_ids[0]
        turn = rows.cos[place], rows.sin[place]  # [n, 1, width]
        if attention_mask is None and past and len(ids) > 1:
            attention_mask = torch.full((len(ids), end), float("-inf")).triu(past + 1)
        x, seen = self._model.model.embed_tokens(ids), []
        for layer in self._layers:
            seen.append(x)
            mask = attention_mask[layer.kind] if isinstance(attention_mask, dict) else attention_mask
            x = x + self._attend(layer, _normed(layer.block.input_layernorm, x), turn, mask, slice(past, end))
            x = x + self._mix(layer.block.mlp, _normed(layer.block.post_attention_layernorm, x))
        if captured:
            seen.append(_normed(self._model.model.norm, x))
        last = _normed(self._model.model.norm, x[-num_logits:])
        states = torch.cat([seen[layer] for layer in captured], dim=-1) if captured else None
        return self._product(self._model.lm_head, last), states

    def _attend(self, layer: _Layer, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor | None, new: slice) -> Tensor:
        part, (keys, values) = layer.block.self_attn, self._rows.pairs[layer.index]
        shape, product = (len(x), -1, part.head_dim), self._product
        q, k = product(part.q_proj, x).view(shape), product(part.k_proj, x).view(shape)  # [n, heads, width]
        if hasattr(part, "q_norm"):
            q, k = _normed(part.q_norm, q), _normed(part.k_norm, k)
        both = _turned(torch.cat([q, k], 1), turn).transpose(0, 1)  # row by row, as fast attention wants them
        q, keys[:, new] = both[: q.shape[1]], both[q.shape[1] :]
        values[:, new] = product(part.v_proj, x).view(shape).transpose(0, 1)
        keys, values = keys[None, :, : new.stop], values[None, :, : new.stop]
        how = {"is_causal": mask is None and len(x) > 1, "scale": part.scaling, "enable_gqa": len(q) != keys.shape[1]}
        wide = functional.scaled_dot_product_attention(q[None], keys, values, mask, **how)
        return product(part.o_proj, wide[0].transpose(0, 1).reshape(len(x), -1))

    def _mix(self, part: nn.Module, x: Tensor) -> Tensor:
        return self._product(
            part.down_proj, part.act_fn(self._product(part.gate_proj, x)) * self._product(part.up_proj, x)
        )


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    return torch.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys [n, heads, width] turned by the angles of their places."""
    cos, sin = turn
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
