"""Compiled code (`quick.cpp`) for the decoder layers of a model or of a draft head, and Quick, a forward made of it.

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

from specviz.decoding.forward.compact_forward import Compact
from specviz.decoding.forward.compiled import (
    FORMATS,
    UNIT,
    Compiled,
    Layer,
    Linear,
    Model,
    Text,
    address,
    addresses,
    can_read,
)
from specviz.decoding.forward.decoder_layers import CompactLinear, DecoderLayer, Norm, Rows
from specviz.decoding.forward.products import Products

_IS_GELU = {"SiLUActivation": False, "SiLU": False, "GELUTanh": True}
"""The classes of activations, and whether each is the gelu that is made with tanh."""


def compiled_refusal(layers: Sequence[DecoderLayer], products: Products) -> str:
    """Why compiled code does not read such layers, in words; empty where it may be tried."""
    first = layers[0]
    weight = first.q.table["weight"]
    if weight.device.type != "cpu":
        return "only on the CPU"
    if products.compiled is None:
        return products.why_not_compiled
    if weight.dtype not in FORMATS:
        return f"not written for {str(weight.dtype).removeprefix('torch.')}"
    activation = type(first.activation).__name__
    if activation not in _IS_GELU:
        return f"not written for the activation {activation}"
    norms = [getattr(layer, name) for layer in layers for name in Layer.NORMS]
    if any(norm is not None and not isinstance(norm, Norm) for norm in norms):
        return "a norm is left out, or more than a norm stands there"
    linears = [getattr(layer, name) for layer in layers for name in Layer.LINEARS]
    widths = {linear.table["weight"].shape[1] for linear in linears} | {first.width}
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


def _linear_slots(into: Linear, linear: CompactLinear, shape: tuple[int, int]) -> list[_Slot]:
    return [
        _Slot(into, "weight", linear.table, "weight", shape),
        _Slot(into, "bias", linear.table, "bias", shape[:1]),
    ]


class CompiledLayers:
    """The layers of a reader for compiled code, with the last norm and the output matrix behind them if it has any."""

    def __init__(
        self,
        compiled: Compiled,
        layers: Sequence[DecoderLayer],
        rows: Rows,
        norm: Norm | None = None,
        head: CompactLinear | None = None,
    ) -> None:
        """layers: those that `compiled_refusal` does not refuse. norm, head: None: no logits can be asked for."""
        self._compiled = compiled
        self._rows = rows
        self._dtype = rows.rows.dtype
        self.most_rows = compiled.most_rows[self._dtype]
        """The most rows for which it is faster than torch."""
        first = layers[0]
        _, num_stored, key_heads, _, width = rows.rows.shape
        shapes = {name: getattr(first, name).table["weight"].shape for name in Layer.LINEARS}
        inner, hidden = shapes["gate"]
        kinds = list(rows.kinds)
        own_layers = (Layer * len(layers))()
        whole = Model(
            layers=own_layers,
            num_layers=len(layers),
            num_stored=num_stored,
            hidden=hidden,
            read_width=shapes["q"][1],
            inner=inner,
            heads=shapes["q"][0] // width,
            key_heads=key_heads,
            width=width,
            is_bfloat16=self._dtype == torch.bfloat16,
            is_gelu=_IS_GELU[type(first.activation).__name__],
            epsilon=first.mlp_norm.epsilon,
            norm_offset=float(first.mlp_norm.is_gemma),
        )
        slots = []
        if head is not None:
            whole.vocab = len(head.table["weight"])
            slots += _linear_slots(whole.head, head, (whole.vocab, hidden))
            slots.append(_Slot(whole, "norm", norm.table, "weight", (hidden,)))
        for own, layer in zip(own_layers, layers, strict=True):
            own.index = layer.index
            own.kind = kinds.index(layer.kind)
            own.scale = layer.scale
            for name, shape in shapes.items():
                slots += _linear_slots(getattr(own, name), getattr(layer, name), shape)
            for name in Layer.NORMS:
                size = width if name in ("q_norm", "k_norm") else hidden
                if (own_norm := getattr(layer, name)) is not None:
                    slots.append(_Slot(own, name, own_norm.table, "weight", (size,)))
            for name in ("q", "k", "v"):  # only the first layer's may read another width
                shapes[name] = (shapes[name][0], hidden)
        self._model = whole
        self._slots = slots
        self._places: list[object] = []

    def readable(self, num_rows: int) -> list[Tensor | None]:
        """The tables, if compiled code should read so many rows and can read the tables where they lie now; else none.

        It gets the addresses of new ones. Whoever reads must hold them: another thread may put new ones in their place
        meanwhile.
        """
        if num_rows > self.most_rows:
            return []
        tables = [slot.tables.get(slot.name) for slot in self._slots]
        places = [
            None if table is None else table.is_contiguous() and table.data_ptr()
            for table in tables
        ]
        if places != self._places:
            self._places = places
            self._fits = all(map(_Slot.can_hold, self._slots, tables, repeat(self._dtype)))
            for slot, table in zip(self._slots, tables, strict=True):
                setattr(slot.into, slot.field, address(table))
        return tables if self._fits else []

    def read(
        self,
        x: Tensor,
        past: int,
        num_logits: int,
        captured: Sequence[int],
        masks: Sequence[Tensor] = (),
        positions: Tensor | None = None,
        inputs: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Reads new rows x [n, H] behind `past` rows of the store, which has room for them; tables must be `readable`.

        masks: [n, past + n] for each kind of attention; none: a chain that sees everything. positions: [n]; None:
        they count on from `past`. inputs [n, I]: what the attention of the first layer reads; None: x, normalised.
        Returns logits [num_logits, V] in float32 and the captured states [n, C] in the format of the rows.
        """
        rows = self._rows
        cosines, sines = zip(*rows.rotations(slice(None)).values(), strict=True)
        masks = [mask.float().contiguous() for mask in masks]
        positions = None if positions is None else positions.contiguous()
        inputs = None if inputs is None else inputs.float().contiguous()
        text = Text(
            rows=address(rows.rows),
            cosines=addresses(cosines),
            sines=addresses(sines),
            masks=addresses(masks) if masks else None,
            positions=address(positions),
            inputs=address(inputs),
            room=rows.rows.shape[3],
            past=past,
            num_new=len(x),
            num_logits=num_logits,
        )
        own = torch.empty(x.shape, dtype=torch.float32).copy_(x)  # a copy, as it is written over
        logits, states = self._compiled.forward(self._model, text, own, captured)
        return logits, states.to(self._dtype)


class Quick(Compact):
    """A Compact that reads its rows in one call."""

    path = "compiled"

    def __init__(self, model: PreTrainedModel, products: Products) -> None:
        """products: with compiled code."""
        super().__init__(model, products)
        self._compiled = products.compiled
        self._compile()

    def _compile(self) -> None:
        self._quick = CompiledLayers(
            self._compiled, self._layers, self._rows, self._norm, self._head
        )

    def exit(self, layers: Sequence[int]) -> Quick:
        early = super().exit(layers)
        early._compile()
        return early

    @property
    def can_read(self) -> bool:
        """Whether compiled code can read the model's tables where they lie now."""
        return bool(self._quick.readable(1))

    def __call__(
        self,
        ids: Tensor,
        past: int,
        num_logits: int,
        captured: tuple[int, ...],
        attention_mask: Tensor | dict[str, Tensor] | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        held = self._quick.readable(len(ids))
        if not held:
            return super().__call__(ids, past, num_logits, captured, attention_mask, position_ids)
        self._rows.reserve(past + len(ids))
        kinds = self._rows.kinds
        masks = []
        if isinstance(attention_mask, dict):
            masks = [attention_mask[kind] for kind in kinds]
        elif attention_mask is not None:
            masks = [attention_mask] * len(kinds)
        x = self._model.model.embed_tokens(ids)
        logits, states = self._quick.read(x, past, num_logits, captured, masks, position_ids)
        return logits, states if captured else None
