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

from specviz.decoding.forward.attention import attend, for_shared_keys
from specviz.decoding.forward.products import Products
from specviz.decoding.forward.replays import MOST_TOKENS, Replays
from specviz.decoding.forward.transformers_forward import check_layers

_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma3")
CLASSES = tuple(f"{family}ForCausalLM" for family in _FAMILIES)
_ROPES = ("default", "linear", "llama3", "yarn")  # their angles do not depend on the text's length
_FORMATS = (torch.float32, torch.float16, torch.bfloat16)
_UNREAD = ("final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention")
BLOCK = 256
"""Rows; the store grows by whole blocks, and by a quarter at least."""


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
    if any(type(linear) is not nn.Linear for linear in linears_of(model)):
        return "its linear layers are of a different kind"
    if any(map(_is_hooked, model.modules())):
        return "its modules have hooks"
    if any(getattr(model.config, name, None) for name in _UNREAD):
        return "its logits are capped or its attention looks ahead"
    ropes = model.model.rotary_emb.rope_type
    ropes = set(ropes.values()) if isinstance(ropes, dict) else {ropes}
    return "" if ropes <= set(_ROPES) else "its positions depend on the length of the text"


def _is_hooked(module: nn.Module) -> bool:
    """Whether calling the module does more than its class says; transformers' own hooks only look."""
    if vars(module).keys() & {"forward", "_hf_hook"} or module._forward_pre_hooks:
        return True
    hooks = module._forward_hooks.values()
    return any(not hook.__module__.startswith("transformers.") for hook in hooks)


def linears_of(model: PreTrainedModel) -> list[nn.Module]:
    """The head and the linear layers of every block."""
    linears = [model.lm_head]
    for layer in model.model.layers:
        attention = layer.self_attn
        mlp = layer.mlp
        linears += [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return linears


_Views = tuple[Tensor, Tensor, Tensor, Tensor]
"""The keys and values of a layer up to the end [1, heads, end, width], and their new rows [heads, n, width]."""
_Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of places [n, 1, width]."""


def _kinds(model: PreTrainedModel) -> list[str]:
    """The kind of each layer's attention, as `_windows` of the reader names it."""
    return getattr(model.config, "layer_types", None) or ["attention"] * len(model.model.layers)


def _as_rotation(cos: Tensor, sin: Tensor) -> _Rotation:
    """Angles [1, room, width] as a rotation that takes one roll: the first half of its sines is negative."""
    cos = cos[0, :, None]
    sin = sin[0, :, None].clone()
    sin[..., : sin.shape[-1] // 2] *= -1
    return cos, sin


class _Rows:
    """Keys and values of every layer and the rotation of every place, grown together."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        head_dim = model.model.layers[0].self_attn.head_dim
        self._rotary = model.model.rotary_emb
        self.kinds = dict.fromkeys(_kinds(model))
        shape = 2, config.num_hidden_layers, config.num_key_value_heads, 0, head_dim
        self.rows = torch.zeros(shape, dtype=model.dtype, device=model.device)
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
            rotations[kind] = _as_rotation(*angles)
        self._rotations = rotations
        self.rows = rows  # last: where memory runs out before, nothing has grown

    def rotations(self, places: slice | Tensor) -> dict[str, _Rotation]:
        """The rotation of these places, per kind of attention."""
        return {kind: (cos[places], sin[places]) for kind, (cos, sin) in self._rotations.items()}

    def views(self, past: int, end: int) -> list[_Views]:
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


class _Norm:
    """A root-mean-square norm that looks its weight up at every call; Gemma's weights are differences from 1."""

    def __init__(self, norm: nn.Module) -> None:
        self.is_gemma = hasattr(norm, "eps")
        self.table = norm._parameters
        self.epsilon = norm.eps if self.is_gemma else norm.variance_epsilon
        self._shape = norm.weight.shape

    def __call__(self, x: Tensor) -> Tensor:
        weight = self.table["weight"]
        if self.is_gemma:
            gain = 1 + weight.float()
            return torch.rms_norm(x.float(), self._shape, gain, self.epsilon).to(x.dtype)
        if x.dtype == torch.float32:
            return torch.rms_norm(x, self._shape, weight, self.epsilon)
        return weight * torch.rms_norm(x.float(), self._shape, None, self.epsilon).to(x.dtype)


class _Layer:
    """The parts of one block, found once."""

    def __init__(self, index: int, kind: str, block: nn.Module, product: Products) -> None:
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
        self.activation = mlp.act_fn.forward
        has_head_norms = hasattr(attention, "q_norm")
        self.q_norm = _Norm(attention.q_norm) if has_head_norms else None
        self.k_norm = _Norm(attention.k_norm) if has_head_norms else None
        self.attention_norm = _Norm(block.input_layernorm)
        self.after_attention = None
        self.after_mlp = None
        after_attention = _Norm(block.post_attention_layernorm)
        if hasattr(block, "pre_feedforward_layernorm"):
            self.after_attention = after_attention
            self.mlp_norm = _Norm(block.pre_feedforward_layernorm)
            self.after_mlp = _Norm(block.post_feedforward_layernorm)
        else:  # despite its name it comes before the feed-forward part
            self.mlp_norm = after_attention


class Compact:
    """A Forward over its own rows of keys and values; an exit reads behind those of the whole."""

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
        self._rows = _Rows(model)
        self._replays = Replays(model) if replays else None
        self._norm = _Norm(model.model.norm)
        self._head = CompactLinear(model.lm_head, products)
        blocks = zip(_kinds(model), model.model.layers, strict=True)
        self._layers = [
            _Layer(index, kind, block, products) for index, (kind, block) in enumerate(blocks)
        ]

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

    def keep(self, start: int, end: int, source: Tensor | None) -> None:
        if source is not None:
            rows = self._rows.rows
            rows[..., start:end, :] = rows[..., source, :]

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
        rotations: Mapping[str, _Rotation],
        masks: Mapping[str, Tensor | None],
        views: Sequence[_Views],
        num_logits: int,
        captured: tuple[int, ...],
    ) -> tuple[Tensor, ...]:
        """Logits [num_logits, V], and the captured states [n, C] if any are asked for.

        places: the new rows' places among those of `views`; None: they are all of them.
        """
        x = self._model.model.embed_tokens(ids)  # [n, H]
        states = [x]
        for layer in self._layers:
            rotation = rotations[layer.kind]
            mask = masks[layer.kind]
            out = _attend(
                layer, layer.attention_norm(x), rotation, mask, views[layer.index], places
            )
            if layer.after_attention is not None:
                out = layer.after_attention(out)
            x = x + out
            y = layer.mlp_norm(x)
            out = layer.down(layer.activation(layer.gate(y)) * layer.up(y))
            if layer.after_mlp is not None:
                out = layer.after_mlp(out)
            x = x + out
            states.append(x)
        logits = self._head(self._norm(x[-num_logits:]))
        if not captured:
            return (logits,)
        chosen = [self._norm(x) if layer == -1 else states[layer] for layer in captured]
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


def _attend(
    layer: _Layer,
    x: Tensor,
    rotation: _Rotation,
    mask: Tensor | None,
    views: _Views,
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


def _put(stored: Tensor, new: Tensor, places: Tensor | None) -> None:
    """Writes new rows [heads, n, width] to their places among the stored ones; None: they are all of them."""
    if places is None:
        stored.copy_(new)
    else:
        stored.index_copy_(1, places, new)


def _unseen(mask: Tensor) -> float:
    """The number that a mask adds where nothing is seen."""
    return torch.finfo(mask.dtype).min


def _rotate(x: Tensor, rotation: _Rotation) -> Tensor:
    """Queries or keys [n, heads, width], rotated by the angles of their places."""
    cos, sin = rotation
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
