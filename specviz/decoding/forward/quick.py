"""Quick: the compact forward whose few rows are read in one call of compiled code (`quick.cpp`).

Longer texts are read as Compact reads them, into the same rows. The model's own weights count at every call, wherever
they lie by then.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    if len({layer.mlp.gate_proj.weight.shape for layer in model.model.layers}) > 1:
        return "its layers are of several sizes"
    widths = {linear.weight.shape[1] for linear in linears_of(model)} | {block.self_attn.head_dim}
    odd = [width for width in sorted(widths) if width % UNIT]
    return f"its width {odd[0]} is no multiple of {UNIT}" if odd else ""


class Quick(Compact):
    """A Compact that reads a few rows in one call."""

    path = "compiled"

    def __init__(self, model: PreTrainedModel, products: Products) -> None:
        """products: with compiled code."""
        super().__init__(model, products)
        self._compiled = products.compiled
        self._follow_layers()

    def exit(self, layers: Sequence[int]) -> Quick:
        early = super().exit(layers)
        early._follow_layers()
        return early

    def _follow_layers(self) -> None:
        """Finds the tables in which modules keep the weights and biases of the layers."""
        linears = [self._head]
        norms = [self._norm]
        for layer in self._layers:
            linears += [getattr(layer, name) for name in Layer.LINEARS]
            norms += [norm for name in Layer.NORMS if (norm := getattr(layer, name)) is not None]
        self._tables = [(part.table, "weight") for part in (*linears, *norms)]
        self._tables += [(linear.table, "bias") for linear in linears]
        self._weights: list[int | None] = []

    def _follow_weights(self) -> bool:
        """Notes where the weights lie, if one of them has moved; False where compiled code cannot read them there."""
        weights = [
            None if (weight := table[name]) is None else weight.data_ptr()
            for table, name in self._tables
        ]
        if weights != self._weights:
            self._weights = weights
            self._can_read = all(
                weight is None or (weight.is_contiguous() and weight.dtype == self._model.dtype)
                for weight in (table[name] for table, name in self._tables)
            )
            self._compiled_model = self._addresses()
        return self._can_read

    def _addresses(self) -> Model:
        kinds = list(self._rows.kinds)
        layers = (Layer * len(self._layers))()
        for own, layer in zip(layers, self._layers, strict=True):
            for name in Layer.LINEARS:
                setattr(own, name, _linear(getattr(layer, name)))
            for name in Layer.NORMS:
                norm = getattr(layer, name)
                setattr(own, name, None if norm is None else address(norm.table["weight"]))
            own.index = layer.index
            own.kind = kinds.index(layer.kind)
            own.scale = layer.scale
        _, num_stored, key_heads, _, width = self._rows.rows.shape
        block = self._model.model.layers[0]
        inner, hidden = block.mlp.gate_proj.weight.shape
        return Model(
            layers=layers,
            norm=address(self._norm.table["weight"]),
            head=_linear(self._head),
            num_layers=len(layers),
            num_stored=num_stored,
            hidden=hidden,
            inner=inner,
            heads=self._model.config.num_attention_heads,
            key_heads=key_heads,
            width=width,
            vocab=len(self._head.table["weight"]),
            is_bfloat16=self._model.dtype == torch.bfloat16,
            is_gelu=_IS_GELU[type(block.mlp.act_fn).__name__],
            epsilon=self._norm.epsilon,
            norm_offset=float(self._norm.is_gemma),
        )

    def __call__(
        self,
        ids: Tensor,
        past: int,
        num_logits: int,
        captured: tuple[int, ...],
        attention_mask: Tensor | dict[str, Tensor] | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if len(ids) > self._compiled.most_rows or not self._follow_weights():
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


def _linear(linear: CompactLinear) -> Linear:
    return Linear(address(linear.table["weight"]), address(linear.table["bias"]))
