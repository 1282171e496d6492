"""Quick: the compact forward whose rows are read in one call of compiled code (`quick.cpp`).

More rows than are faster there are read as Compact reads them, into the same store. The model's own weights count at
every call, wherever they lie by then.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specviz.decoding.forward.compact_forward import Compact, CompactLinear, linears_of
from specviz.decoding.forward.compiled import (
    FORMATS,
    UNIT,
    Layer,
    Linear,
    Model,
    Text,
    address,
    addresses,
    can_read,
)
from specviz.decoding.forward.products import Products

_IS_GELU = {"SiLUActivation": False, "SiLU": False, "GELUTanh": True}
"""The classes of activations, and whether each is the gelu that is made with tanh."""


def quick_refusal(model: PreTrainedModel, products: Products) -> str:
    """Why a model that Compact reads is not read by compiled code, in words; empty where it may be tried."""
    if model.device.type != "cpu":
        return "only on the CPU"
    if products.compiled is None:
        return products.why_not_compiled
    if model.dtype not in FORMATS:
        return f"not written for {str(model.dtype).removeprefix('torch.')}"
    block = model.model.layers[0]
    if type(block.mlp.act_fn).__name__ not in _IS_GELU:
        return f"not written for the activation {type(block.mlp.act_fn).__name__}"
    widths = {linear.weight.shape[1] for linear in linears_of(model)} | {block.self_attn.head_dim}
    odd = [width for width in sorted(widths) if width % UNIT]
    return f"its width {odd[0]} is no multiple of {UNIT}" if odd else ""


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of an address in the structures of compiled code, and where the table is found that lies there."""

    into: ctypes.Structure
    field: str
    tables: Mapping[str, Tensor | None]
    """A module's own."""
    name: str
    shape: tuple[int, ...]

    def can_hold(self, table: Tensor | None, dtype: torch.dtype) -> bool:
        return self.name == "bias" if table is None else can_read(table, dtype, self.shape)


def _linear_slots(into: Linear, linear: CompactLinear, out: int, width: int) -> list[_Slot]:
    return [
        _Slot(into, "weight", linear.table, "weight", (out, width)),
        _Slot(into, "bias", linear.table, "bias", (out,)),
    ]


class Quick(Compact):
    """A Compact that reads its rows in one call."""

    path = "compiled"

    def __init__(self, model: PreTrainedModel, products: Products) -> None:
        """products: with compiled code."""
        super().__init__(model, products)
        self._compiled = products.compiled
        self._most_rows = products.compiled.most_rows[model.dtype]
        self._follow_layers()

    def exit(self, layers: Sequence[int]) -> Quick:
        early = super().exit(layers)
        early._follow_layers()
        return early

    def _follow_layers(self) -> None:
        """Makes the structures for the layers, with a slot for each table."""
        kinds = list(self._rows.kinds)
        _, num_stored, key_heads, _, width = self._rows.rows.shape
        block = self._model.model.layers[0]
        inner, hidden = block.mlp.gate_proj.weight.shape
        heads = self._model.config.num_attention_heads
        vocab = len(self._head.table["weight"])
        layers = (Layer * len(self._layers))()
        whole = Model(
            layers=layers,
            num_layers=len(layers),
            num_stored=num_stored,
            hidden=hidden,
            inner=inner,
            heads=heads,
            key_heads=key_heads,
            width=width,
            vocab=vocab,
            is_bfloat16=self._model.dtype == torch.bfloat16,
            is_gelu=_IS_GELU[type(block.mlp.act_fn).__name__],
            epsilon=self._norm.epsilon,
            norm_offset=float(self._norm.is_gemma),
        )
        queries = heads * width
        keys = key_heads * width
        linears = {
            "q": (queries, hidden),
            "k": (keys, hidden),
            "v": (keys, hidden),
            "o": (hidden, queries),
            "gate": (inner, hidden),
            "up": (inner, hidden),
            "down": (hidden, inner),
        }
        slots = _linear_slots(whole.head, self._head, vocab, hidden)
        slots.append(_Slot(whole, "norm", self._norm.table, "weight", (hidden,)))
        for own, layer in zip(layers, self._layers, strict=True):
            own.index = layer.index
            own.kind = kinds.index(layer.kind)
            own.scale = layer.scale
            for name, shape in linears.items():
                slots += _linear_slots(getattr(own, name), getattr(layer, name), *shape)
            for name in Layer.NORMS:
                size = width if name in ("q_norm", "k_norm") else hidden
                if (norm := getattr(layer, name)) is not None:
                    slots.append(_Slot(own, name, norm.table, "weight", (size,)))
        self._compiled_model = whole
        self._slots = slots
        self._places: list[object] = []

    def readable(self) -> list[Tensor | None]:
        """The tables, if compiled code can read them where they lie now; else none. It gets the addresses of new ones.

        Whoever reads must hold them: another thread may put new ones in their place meanwhile.
        """
        tables = [slot.tables.get(slot.name) for slot in self._slots]
        places = [
            None if table is None else table.is_contiguous() and table.data_ptr()
            for table in tables
        ]
        if places != self._places:
            self._places = places
            dtype = self._rows.rows.dtype
            self._fits = all(map(_Slot.can_hold, self._slots, tables, repeat(dtype)))
            for slot, table in zip(self._slots, tables, strict=True):
                setattr(slot.into, slot.field, address(table))
        return tables if self._fits else []

    def __call__(
        self,
        ids: Tensor,
        past: int,
        num_logits: int,
        captured: tuple[int, ...],
        attention_mask: Tensor | dict[str, Tensor] | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        held = self.readable()
        if len(ids) > self._most_rows or not held:
            return super().__call__(ids, past, num_logits, captured, attention_mask, position_ids)
        rows = self._rows
        rows.reserve(past + len(ids))
        cosines, sines = zip(*rows.rotations(slice(None)).values(), strict=True)
        masks = []
        if isinstance(attention_mask, dict):
            masks = [attention_mask[kind] for kind in rows.kinds]
        elif attention_mask is not None:
            masks = [attention_mask] * len(rows.kinds)
        masks = [mask.float().contiguous() for mask in masks]
        positions = None if position_ids is None else position_ids.contiguous()
        text = Text(
            rows=address(rows.rows),
            cosines=addresses(cosines),
            sines=addresses(sines),
            masks=addresses(masks) if masks else None,
            positions=address(positions),
            room=rows.rows.shape[3],
            past=past,
            num_new=len(ids),
            num_logits=num_logits,
        )
        x = self._model.model.embed_tokens(ids).float()
        logits, states = self._compiled.forward(self._compiled_model, text, x, captured)
        return logits, states.to(self._model.dtype) if captured else None
