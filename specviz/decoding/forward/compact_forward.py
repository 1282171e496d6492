"""Compact: the forward of Llama and its kin in few torch operations, over rows of keys and values that stay in place.

It reads the model's own weights at every call, so a changed one counts at once: of a packed copy (`products`) where
torch counts the change, which it does not through `.data`. It promises the numbers of transformers' forward but for
rounding; `refusal` names the models that it is not written for. `CachedLM` proves it on every model before its use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.decoding.forward.attention import attend, for_shared_keys
from specviz.decoding.forward.products import Products
from specviz.decoding.forward.replays import MOST_TOKENS, Replays
from specviz.decoding.forward.transformers_forward import check_layers

CLASSES = tuple(
    f"{family}ForCausalLM" for family in ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma3")
)
_ROPES = (
    "default",
    "linear",
    "llama3",
    "yarn",
)  # angles that do not depend on the length of the text
_FORMATS = (torch.float32, torch.float16, torch.bfloat16)
_UNREAD = ("final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention")
_MIX = ("gate", "up", "down")
BLOCK = 256  # rows; the store grows by whole blocks, and by a quarter at least


def refusal(model: PreTrainedModel) -> str:
    """Why this model cannot be read compactly, in words; empty where it may be tried."""
    kind = type(model)
    if kind.__name__ not in CLASSES or not kind.__module__.startswith("transformers.models."):
        return f"not written for {kind.__name__}"
    if len({(weight.dtype, weight.device) for weight in model.parameters()}) > 1:
        return "its weights are of several formats or on several devices"
    if model.device.type not in ("cpu", "cuda"):
        return "only on the CPU and on CUDA"
    if model.dtype not in _FORMATS:
        return f"not written for {str(model.dtype).removeprefix('torch.')}"
    if any(type(getattr(block, name)) is not nn.Linear for block, name in _linears(model)):
        return "its linear layers are of a different kind"
    if any(map(_is_hooked, model.modules())):
        return "its modules have hooks"
    if any(getattr(model.config, name, None) for name in _UNREAD):
        return "its logits are capped or its attention looks ahead"
    kinds = model.model.rotary_emb.rope_type
    kinds = set(kinds.values()) if isinstance(kinds, dict) else {kinds}
    return "" if kinds <= set(_ROPES) else "its positions depend on the length of the text"


def _is_hooked(module: nn.Module) -> bool:
    """Whether calling the module does more than its class says; transformers' own hooks only look."""
    hooks = (
        hook
        for hook in module._forward_hooks.values()
        if not hook.__module__.startswith("transformers.")
    )
    return bool(
        vars(module).keys() & {"forward", "_hf_hook"} or module._forward_pre_hooks or list(hooks)
    )


def _linears(model: PreTrainedModel) -> list[tuple[nn.Module, str]]:
    found: list[tuple[nn.Module, str]] = [(model, "lm_head")]
    for layer in model.model.layers:
        found += [(layer.self_attn, f"{name}_proj") for name in "qkvo"]
        found += [(layer.mlp, f"{name}_proj") for name in _MIX]
    return found


_Views = tuple[Tensor, Tensor, Tensor, Tensor]
_Turn = tuple[Tensor, Tensor]  # [n, 1, width] both


def _kinds(model: PreTrainedModel) -> list[str]:
    """Of every layer's attention, as `_windows` of the reader names them."""
    return getattr(model.config, "layer_types", None) or ["attention"] * len(model.model.layers)


def _turns(cos: Tensor, sin: Tensor) -> _Turn:
    """Angles [1, room, width], the first half of the sines negative, so that turning is one roll."""
    cos, sin = cos[0, :, None], sin[0, :, None].clone()
    sin[..., : sin.shape[-1] // 2] *= -1
    return cos, sin


class _Rows:
    """Keys and values of every layer and the angles of every place, grown together. [2, layers, heads, rows, width]"""

    def __init__(self, model: PreTrainedModel) -> None:
        config, attention = model.config, model.model.layers[0].self_attn
        self._angles_of = model.model.rotary_emb
        self.kinds = dict.fromkeys(_kinds(model))
        shape = 2, config.num_hidden_layers, config.num_key_value_heads, 0, attention.head_dim
        self.rows = torch.zeros(shape, dtype=model.dtype, device=model.device)

    def reserve(self, num_rows: int) -> None:
        had = self.rows.shape[3]
        if num_rows <= had:
            return
        room = -(-max(num_rows, had + had // 4) // BLOCK) * BLOCK
        rows = self.rows.new_zeros(
            *self.rows.shape[:3], room, self.rows.shape[4]
        )  # what is masked must be a number
        rows[..., :had, :] = self.rows
        places = torch.arange(room, device=rows.device)[None]
        of_kind = isinstance(self._angles_of.rope_type, dict)
        self._angles = {
            kind: _turns(*self._angles_of(rows, places, *[kind] * of_kind)) for kind in self.kinds
        }
        self.rows = rows  # last: where memory runs out before, nothing has grown

    def turns(self, places: slice | Tensor) -> dict[str, _Turn]:
        """Per kind of attention: cosines and sines of these places."""
        return {kind: (cos[places], sin[places]) for kind, (cos, sin) in self._angles.items()}

    def views(self, past: int, end: int) -> list[_Views]:
        """Per layer: keys and values up to `end` [1, heads, end, width], those from `past` on [heads, n, width]."""
        keys, values = self.rows[:, :, None, :, :end].unbind()
        new_keys, new_values = self.rows[..., past:end, :].unbind()
        return list(
            zip(keys.unbind(), values.unbind(), new_keys.unbind(), new_values.unbind(), strict=True)
        )


class _CompactLinear:
    """A linear layer whose weight and bias are looked up at every call, in the module's own table."""

    def __init__(self, linear: nn.Module, product: Products) -> None:
        self._table, self._product = linear._parameters, product

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(self._table["weight"], self._table["bias"], x)


class _Norm:
    """A root-mean-square norm, its weight looked up likewise; Gemma's weights are differences from 1."""

    def __init__(self, norm: nn.Module) -> None:
        self._is_gemma = hasattr(norm, "eps")
        self._table, self._shape = norm._parameters, norm.weight.shape
        self._epsilon = norm.eps if self._is_gemma else norm.variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        weight = self._table["weight"]
        if self._is_gemma:
            return torch.rms_norm(x.float(), self._shape, 1 + weight.float(), self._epsilon).to(
                x.dtype
            )
        if x.dtype == torch.float32:
            return torch.rms_norm(x, self._shape, weight, self._epsilon)
        return weight * torch.rms_norm(x.float(), self._shape, None, self._epsilon).to(x.dtype)


class _Layer:
    """The parts of one block, found once. kind: of attention, as `_windows` of the reader names it."""

    def __init__(self, index: int, kind: str, block: nn.Module, product: Products) -> None:
        part, mlp = block.self_attn, block.mlp
        self.index, self.kind, self.width, self.scale = index, kind, part.head_dim, part.scaling
        names = ["input_layernorm", "post_attention_layernorm"]
        if hasattr(block, "pre_feedforward_layernorm"):
            names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        norms = [_Norm(getattr(block, name)) for name in names]
        self.before, self.attended, self.between, self.mixed = (
            norms if len(norms) == 4 else (norms[0], None, norms[1], None)
        )
        self.q, self.k, self.v, self.o = (
            _CompactLinear(getattr(part, f"{name}_proj"), product) for name in "qkvo"
        )
        self.norms = (_Norm(part.q_norm), _Norm(part.k_norm)) if hasattr(part, "q_norm") else ()
        self.gate, self.up, self.down = (
            _CompactLinear(getattr(mlp, f"{name}_proj"), product) for name in _MIX
        )
        self.act = mlp.act_fn.forward


class Compact:
    """A Forward over rows of its own, or over another's for `exit`. replays: whether CUDA graphs read few tokens."""

    def __init__(
        self,
        model: PreTrainedModel,
        products: Products,
        replays: bool = False,
        rows: _Rows | None = None,
    ) -> None:
        self._model, self._products, blocks = model, products, model.model.layers
        self._rows, self._replays = rows or _Rows(model), Replays(model) if replays else None
        self._norm, self._head = _Norm(model.model.norm), _CompactLinear(model.lm_head, products)
        parts = zip(range(len(blocks)), _kinds(model), blocks, strict=True)
        self._layers = [_Layer(*each, products) for each in parts]

    @property
    def path(self) -> str:
        return (
            "compact" if self._replays is None or self._replays.failure else "compact, CUDA graphs"
        )

    def exit(self, layers: Sequence[int]) -> Compact:
        check_layers(layers, len(self._layers))
        early = Compact(self._model, self._products, self._replays is not None, self._rows)
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
        masks, positions = (
            self._masks(attention_mask),
            None if position_ids is None else position_ids[0],
        )
        if self._replays is not None and len(ids) <= MOST_TOKENS:
            out = self._replay(self._replays, ids, past, num_logits, captured, masks, positions)
        else:
            if attention_mask is None and past and len(ids) > 1:
                masks = self._masks(
                    rows.rows.new_full((len(ids), end), float("-inf")).triu(past + 1)
                )
            turns = rows.turns(slice(past, end) if positions is None else positions)
            out = self._read(ids, None, turns, masks, rows.views(past, end), num_logits, captured)
        return out[0], out[1] if captured else None

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
        """As a CUDA graph. What changes from call to call is on the device; a mask is as wide as the store."""
        rows, end = self._rows.rows, past + len(ids)
        places = torch.arange(past, end, device=ids.device)
        given = [masks[kind] for kind in self._rows.kinds if masks[kind] is not None]
        wide = [
            functional.pad(mask, (0, rows.shape[3] - end), value=_unseen(mask)) for mask in given
        ]
        inputs = [ids, places, places if positions is None else positions, *wide]
        read = partial(self._read_store, num_logits, captured)
        return replays(read, inputs, (len(ids), num_logits, captured, len(wide)), rows)

    def _read_store(
        self,
        num_logits: int,
        captured: tuple[int, ...],
        ids: Tensor,
        places: Tensor,
        positions: Tensor,
        *masks: Tensor,
    ) -> tuple[Tensor, ...]:
        """All rows of the store are read, whatever lies there; without masks those up to each place are seen."""
        rows = self._rows
        room = rows.rows.shape[3]
        if masks:
            by_kind = dict(zip(rows.kinds, masks, strict=True))
        else:
            is_behind = torch.arange(room, device=ids.device) > places[:, None]
            bare = rows.rows.new_zeros(is_behind.shape)
            by_kind = self._masks(bare.masked_fill(is_behind, _unseen(bare)))
        return self._read(
            ids, places, rows.turns(positions), by_kind, rows.views(0, room), num_logits, captured
        )

    def _read(
        self,
        ids: Tensor,
        places: Tensor | None,
        turns: Mapping[str, _Turn],
        masks: Mapping[str, Tensor | None],
        views: Sequence[_Views],
        num_logits: int,
        captured: tuple[int, ...],
    ) -> tuple[Tensor, ...]:
        """places: of the new rows among those of `views`; None: they are all of them."""
        x, seen = self._model.model.embed_tokens(ids), []
        for layer in self._layers:
            seen.append(x)
            wide = _attend(
                layer,
                layer.before(x),
                turns[layer.kind],
                masks[layer.kind],
                views[layer.index],
                places,
            )
            x = x + (layer.attended(wide) if layer.attended else wide)
            mixed = layer.between(x)
            mixed = layer.down(layer.act(layer.gate(mixed)) * layer.up(mixed))
            x = x + (layer.mixed(mixed) if layer.mixed else mixed)
        seen.append(x)
        states = [self._norm(x) if layer == -1 else seen[layer] for layer in captured]
        logits = self._head(self._norm(x[-num_logits:]))
        return (logits, torch.cat(states, dim=-1)) if captured else (logits,)

    def _masks(self, mask: Tensor | dict[str, Tensor] | None) -> Mapping[str, Tensor | None]:
        """Per kind of attention, for its shared keys."""
        heads = self._model.config.num_attention_heads, self._model.config.num_key_value_heads
        if isinstance(mask, dict):
            return {kind: for_shared_keys(each, *heads) for kind, each in mask.items()}
        return dict.fromkeys(
            self._rows.kinds, None if mask is None else for_shared_keys(mask, *heads)
        )


def _attend(
    layer: _Layer, x: Tensor, turn: _Turn, mask: Tensor | None, rows: _Views, places: Tensor | None
) -> Tensor:
    shape = len(x), -1, layer.width
    q, k = layer.q(x).view(shape), layer.k(x).view(shape)  # [n, heads, width]
    if layer.norms:
        q, k = (norm(part) for norm, part in zip(layer.norms, (q, k), strict=True))
    both = _turned(torch.cat([q, k], 1), turn).transpose(
        0, 1
    )  # row by row, as fast attention wants them
    keys, values, new_keys, new_values = rows
    num_heads = q.shape[1]
    _put(new_keys, both[num_heads:], places)
    _put(new_values, layer.v(x).view(shape).transpose(0, 1), places)
    wide = attend(both[None, :num_heads], keys, values, mask, layer.scale)
    return layer.o(wide.transpose(1, 2).reshape(len(x), -1))


def _put(kept: Tensor, new: Tensor, places: Tensor | None) -> None:
    """New rows [heads, n, width] at their places of the kept ones; None: all of them."""
    kept.copy_(new) if places is None else kept.index_copy_(1, places, new)


def _unseen(mask: Tensor) -> float:
    """What a mask adds where nothing is seen."""
    return torch.finfo(mask.dtype).min


def _turned(x: Tensor, turn: _Turn) -> Tensor:
    """Queries or keys [n, heads, width] turned by the angles of their places."""
    cos, sin = turn
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
