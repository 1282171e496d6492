"""Compact: the forward of Llama and its kin in few torch operations, over rows of keys and values that stay in place.

It reads the model's own weights at every call, so a changed weight counts at once. Its numbers are those of
transformers' forward but for rounding. `refusal` names the models that it is not written for; `CachedLM` proves it on
every model before its use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.decoding.forward.attention import for_shared_keys
from specviz.decoding.forward.decoder_layers import (
    FIXED_ROPES,
    CompactLinear,
    DecoderLayer,
    Norm,
    Rotation,
    Rows,
    Views,
    read_layers,
)
from specviz.decoding.forward.products import Products
from specviz.decoding.forward.replays import MOST_TOKENS, Replays
from specviz.decoding.forward.transformers_forward import check_layers

_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma3")
CLASSES = tuple(f"{family}ForCausalLM" for family in _FAMILIES)
_FORMATS = (torch.float32, torch.float16, torch.bfloat16)
_UNREAD = ("final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention")


def refusal(model: PreTrainedModel) -> str:
    """Why this model cannot be read compactly, in words; empty where it may be tried."""
    kind = type(model)
    if kind.__name__ not in CLASSES or not kind.__module__.startswith("transformers.models."):
        return f"not written for {kind.__name__}"
    if len(model.model.layers) == 0:
        return "it has no layers"
    if len({(weight.dtype, weight.device) for weight in model.parameters()}) > 1:
        return "its weights are of several formats or on several devices"
    if model.device.type not in ("cpu", "cuda"):
        return "only on the CPU and on CUDA"
    if model.dtype not in _FORMATS:
        return f"not written for {str(model.dtype).removeprefix('torch.')}"
    if any(type(linear) is not nn.Linear for linear in _linears_of(model)):
        return "its linear layers are of a different kind"
    if any(map(_is_hooked, model.modules())):
        return "its modules have hooks"
    if any(getattr(model.config, name, None) for name in _UNREAD):
        return "its logits are capped or its attention looks ahead"
    ropes = model.model.rotary_emb.rope_type
    ropes = set(ropes.values()) if isinstance(ropes, dict) else {ropes}
    return "" if ropes <= set(FIXED_ROPES) else "its positions depend on the length of the text"


def _is_hooked(module: nn.Module) -> bool:
    """Whether calling the module does more than its class says; transformers' own hooks only look."""
    if vars(module).keys() & {"forward", "_hf_hook"} or module._forward_pre_hooks:
        return True
    hooks = module._forward_hooks.values()
    return any(not hook.__module__.startswith("transformers.") for hook in hooks)


def _linears_of(model: PreTrainedModel) -> list[nn.Module]:
    """The head and the linear layers of every block."""
    linears = [model.lm_head]
    for layer in model.model.layers:
        attention = layer.self_attn
        mlp = layer.mlp
        linears += [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return linears


def _kinds(model: PreTrainedModel) -> list[str]:
    """The kind of each layer's attention, as `_windows` of the reader names it."""
    return getattr(model.config, "layer_types", None) or ["attention"] * len(model.model.layers)


def layers_for(model: PreTrainedModel, products: Products) -> list[DecoderLayer]:
    """The parts of the model's layers."""
    blocks = zip(_kinds(model), model.model.layers, strict=True)
    return [
        DecoderLayer(index, kind, block, products) for index, (kind, block) in enumerate(blocks)
    ]


def _rows_of(model: PreTrainedModel) -> Rows:
    config = model.config
    width = model.model.layers[0].self_attn.head_dim
    return Rows(
        config.num_hidden_layers,
        config.num_key_value_heads,
        width,
        model.model.rotary_emb,
        _kinds(model),
        like=model.lm_head.weight,
    )


class Compact:
    """A Forward over its own rows of keys and values; an exit reads behind those of the whole."""

    keeps_state = False

    def __init__(
        self,
        model: PreTrainedModel,
        products: Products,
        replays: bool = False,
        why: str = "",
    ) -> None:
        """replays: whether CUDA graphs read few tokens. why: the reason why no compiled code does, for `path`."""
        self._model = model
        self._why = why
        self._rows = _rows_of(model)
        self._replays = Replays(model) if replays else None
        self._norm = Norm(model.model.norm)
        self._head = CompactLinear(model.lm_head, products)
        self._layers = layers_for(model, products)

    @property
    def path(self) -> str:
        if self._replays is not None and not self._replays.failure:
            return "compact, CUDA graphs"
        return f"compact (not compiled: {self._why})" if self._why else "compact"

    def exit(self, layers: Sequence[int]) -> Compact:
        check_layers(layers, len(self._layers))
        early = copy(self)
        early._layers = [self._layers[layer] for layer in layers]
        if self._replays is not None:
            early._replays = Replays(self._model)
        return early

    def clear(self) -> None:
        """Does nothing: rows that are read no more are written over."""

    def rows(self, layer: int, end: int) -> tuple[Tensor, Tensor]:
        keys, values = self._rows.rows[:, layer, None, :, :end]
        return keys, values

    def keep(self, start: int, end: int, source: Tensor | None) -> int:
        if source is not None:
            rows = self._rows.rows
            rows[..., start:end, :] = rows[..., source, :]
        return end

    def __call__(
        self,
        ids: Tensor,
        past: int,
        num_logits: int,
        captured: tuple[int, ...],
        attention_mask: Tensor | dict[str, Tensor] | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        rows = self._rows
        end = past + len(ids)
        rows.reserve(end)
        masks = self._masks(attention_mask)
        positions = None if position_ids is None else position_ids[0]
        if self._replays is not None and len(ids) <= MOST_TOKENS:
            out = self._replay(self._replays, ids, past, num_logits, captured, masks, positions)
        else:
            if attention_mask is None and past and len(ids) > 1:
                unseen = rows.rows.new_full((len(ids), end), float("-inf"))
                masks = self._masks(unseen.triu(past + 1))
            rotations = rows.rotations(slice(past, end) if positions is None else positions)
            views = rows.views(past, end)
            out = self._read(ids, None, rotations, masks, views, num_logits, captured)
        states = out[1] if captured else None
        return out[0], states

    def _replay(
        self,
        replays: Replays,
        ids: Tensor,
        past: int,
        num_logits: int,
        captured: tuple[int, ...],
        masks: Mapping[str, Tensor | None],
        positions: Tensor | None,
    ) -> Sequence[Tensor]:
        """Reads as a CUDA graph: what changes from call to call is on the device, a mask is as wide as the store."""
        rows = self._rows.rows
        room = rows.shape[3]
        end = past + len(ids)
        places = torch.arange(past, end, device=ids.device)
        inputs = [ids, places, places if positions is None else positions]
        num_masks = 0
        for kind in self._rows.kinds:
            mask = masks[kind]
            if mask is not None:
                inputs.append(functional.pad(mask, (0, room - end), value=_unseen(mask)))
                num_masks += 1
        read = partial(self._read_store, num_logits, captured)
        return replays(read, inputs, (len(ids), num_logits, captured, num_masks), rows)

    def _read_store(
        self,
        num_logits: int,
        captured: tuple[int, ...],
        ids: Tensor,
        places: Tensor,
        positions: Tensor,
        *masks: Tensor,
    ) -> tuple[Tensor, ...]:
        """Reads all rows of the store, whatever lies there; without masks, those up to each place are seen."""
        rows = self._rows
        room = rows.rows.shape[3]
        if masks:
            by_kind = dict(zip(rows.kinds, masks, strict=True))
        else:
            is_behind = torch.arange(room, device=ids.device) > places[:, None]  # [n, room]
            bare = rows.rows.new_zeros(is_behind.shape)
            by_kind = self._masks(bare.masked_fill(is_behind, _unseen(bare)))
        rotations = rows.rotations(positions)
        views = rows.views(0, room)
        return self._read(ids, places, rotations, by_kind, views, num_logits, captured)

    def _read(
        self,
        ids: Tensor,
        places: Tensor | None,
        rotations: Mapping[str, Rotation],
        masks: Mapping[str, Tensor | None],
        views: Sequence[Views],
        num_logits: int,
        captured: tuple[int, ...],
    ) -> tuple[Tensor, ...]:
        """Logits [num_logits, V], and the captured states [n, C] if any are asked for.

        places: the new rows' places among those of `views`; None: they are all of them.
        """
        x = self._model.model.embed_tokens(ids)  # [n, H]
        states = read_layers(self._layers, x, places, rotations, masks, views)
        logits = self._head(self._norm(states[-1][-num_logits:]))
        if not captured:
            return (logits,)
        chosen = []
        for layer in captured:
            chosen.append(self._norm(states[-1]) if layer == -1 else states[layer])
        return logits, torch.cat(chosen, dim=-1)

    def _masks(self, mask: Tensor | dict[str, Tensor] | None) -> Mapping[str, Tensor | None]:
        """The mask of each kind of attention, for its shared keys."""
        if mask is None:
            return dict.fromkeys(self._rows.kinds)
        config = self._model.config
        num_heads = config.num_attention_heads
        num_keys = config.num_key_value_heads
        if isinstance(mask, dict):
            return {
                kind: for_shared_keys(own_mask, num_heads, num_keys)
                for kind, own_mask in mask.items()
            }
        return dict.fromkeys(self._rows.kinds, for_shared_keys(mask, num_heads, num_keys))


def _unseen(mask: Tensor) -> float:
    """The number that a mask adds where nothing is seen."""
    return torch.finfo(mask.dtype).min
