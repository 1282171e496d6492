"""Forward: what runs a model behind a CachedLM, and keeps its rows of keys and values; transformers' own is here."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel

from specviz.decoding.forward.products import Products, with_products
from specviz.decoding.turns import give_way
from specviz.errors import SpecvizError

WORK, WORK_CUDA = 30 * 10**9, 20 * 10**12
"""Multiplications of one forward, for whose end others may wait. A token takes as many as the model has parameters."""
FEWEST, MOST, MOST_CUDA = 64, 1_024, 8_192
"""Tokens of one forward, however large or small the model is."""


class Forward(Protocol):
    """path: what a trace's header calls it."""

    path: str

    def __call__(
        self,
        ids: Tensor,
        past: int,
        num_logits: int,
        captured: tuple[int, ...],
        attention_mask: Tensor | dict[str, Tensor] | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [num_logits, V] of the last of `ids` [n], and the states [n, C] of the captured layers behind each, by
        the numbers of `Drafter.hidden_layers`.

        The new rows lie behind the first `past`. Without mask and positions it is a chain that sees everything.
        """

    def keep(self, start: int, end: int, source: Tensor | None) -> None:
        """Keeps the first `end` rows; those from `start` on are taken from the places `source`, if any."""

    def clear(self) -> None:
        """Drops all rows; of an exit, only its own."""

    def exit(self, layers: Sequence[int]) -> Forward:
        """One that runs only these layers, behind the rows of this one."""


@functools.cache
def knows(kind: type[PreTrainedModel], argument: str) -> bool:
    """Whether the forward of such a model takes this argument."""
    return argument in inspect.signature(kind.forward).parameters


def asked_of(
    model: PreTrainedModel, cache: Cache | None = None, num_logits: int = 0
) -> dict[str, object]:
    """The arguments for a forward with this cache (`past_key_values` before transformers 5.24), or with none.

    Only the last `num_logits` rows of logits are asked for where the model can do that; 0 asks for all.
    """
    rows = {"logits_to_keep": num_logits} if knows(type(model), "logits_to_keep") else {}
    if cache is None:
        return {"use_cache": False, **rows}
    name = "past_key_values" if knows(type(model), "past_key_values") else "cache"
    return {name: cache, "use_cache": True, **rows}


def tokens_at_once(model: PreTrainedModel, num_texts: int = 1) -> int:
    """How many tokens of each of so many texts one forward reads, where others may wait for its end."""
    work, most = (WORK_CUDA, MOST_CUDA) if model.device.type == "cuda" else (WORK, MOST)
    size = sum(weight.numel() for weight in model.parameters())
    return max(1, min(most, max(FEWEST, work // size)) // num_texts)


def empty_cache(model: PreTrainedModel) -> Cache:
    """One of transformers' own, for `read_behind`."""
    return DynamicCache(config=model.config)


def read_behind(
    model: PreTrainedModel, ids: Tensor, cache: Cache | None, num_logits: int = 1
) -> Tensor:
    """Logits [B, num_logits, V] behind the last of ids [B, n], read behind the rows of the cache.

    Long texts are read in pieces, between which others may have the engine; without a cache there is one piece.
    """
    size = ids.shape[1] if cache is None else tokens_at_once(model, len(ids))
    kept, first = [], ids.shape[1] - num_logits
    for begin in range(0, ids.shape[1], size):
        give_way()
        end = min(begin + size, ids.shape[1])
        num = end - max(begin, first)  # of the asked logits, in this piece
        logits = model(ids[:, begin:end], **asked_of(model, cache, max(1, num))).logits
        if num > 0:
            kept.append(logits[:, -num:])
    return kept[0] if len(kept) == 1 else torch.cat(kept, dim=1)


class TransformersForward:
    """The model's own forward, a few rows multiplied as `products` says."""

    def __init__(self, model: PreTrainedModel, products: Products, why: str = "") -> None:
        self.path = f"transformers ({why})" if why else "transformers"
        self._model, self._products = model, products
        self._runs = with_products(model, products)
        self.clear()

    def exit(self, layers: Sequence[int]) -> _TransformersExit:
        return _TransformersExit(self, layers)

    def clear(self) -> None:
        self.cache = DynamicCache()

    def keep(self, start: int, end: int, source: Tensor | None) -> None:
        for layer in self.cache.layers:
            if not layer.is_initialized:
                continue
            for name in ("keys", "values"):
                rows = getattr(layer, name)
                if source is not None:
                    rows[..., start:end, :] = rows[
                        ..., source.to(rows.device), :
                    ]  # layers may lie on several
                setattr(layer, name, rows[..., :end, :])

    def __call__(
        self,
        ids: Tensor,
        past: int,
        num_logits: int,
        captured: tuple[int, ...],
        **attention: object,
    ) -> tuple[Tensor, Tensor | None]:
        asked = {**asked_of(self._model, self.cache, num_logits), **attention}
        if not captured:
            return self._runs(ids[None], **asked).logits[0, -num_logits:].to(ids.device), None
        count = num_layers(self._model)
        with _output_of_last(self._runs) if count in captured else nullcontext([]) as behind:
            out = self._runs(ids[None], output_hidden_states=True, **asked)
        states = (behind[0] if layer == count else out.hidden_states[layer] for layer in captured)
        return out.logits[0, -num_logits:].to(ids.device), torch.cat(
            [each[0].to(ids.device) for each in states], -1
        )


class _TransformersExit(TransformersForward):
    """Some layers of another's model, over that one's own rows: tensors are shared, new rows are not."""

    def __init__(self, whole: TransformersForward, layers: Sequence[int]) -> None:
        self._whole = whole
        super().__init__(_with_layers(whole._model, layers), whole._products)

    def clear(self) -> None:
        super().clear()
        self.cache.layers = [
            copy.copy(layer) for layer in self._whole.cache.layers
        ]  # `update` makes new tensors


def num_layers(model: PreTrainedModel) -> int:
    return model.config.get_text_config(decoder=True).num_hidden_layers


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder's own, first to last; empty where they cannot be found."""
    count, decoder = num_layers(model), model.get_decoder() or model
    stacks = (
        part for part in decoder.modules() if isinstance(part, nn.ModuleList) and len(part) == count
    )
    return next(stacks, nn.ModuleList())


def last_layer(model: PreTrainedModel) -> nn.Module:
    """The decoder's last, whose output is the state before the final norm. SpecvizError where it cannot be found."""
    if not (layers := layers_of(model)):
        raise SpecvizError(
            f"the state behind the last layer of a {type(model).__name__} cannot be read here"
        )
    return layers[-1]


@contextmanager
def _output_of_last(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """A list to which each forward adds what the last layer gives [1, n, H]: transformers tells it after the norm."""
    given: list[Tensor] = []
    hook = last_layer(model).register_forward_hook(
        lambda _, inputs, output: given.append(output if isinstance(output, Tensor) else output[0])
    )
    try:
        yield given
    finally:
        hook.remove()


def check_layers(layers: Sequence[int], count: int) -> None:
    """ValueError unless the layers of an exit rise from 0 and the model has them."""
    if not layers or list(layers) != sorted(set(layers)) or layers[0] != 0 or layers[-1] >= count:
        raise ValueError(f"layers must rise from 0 to at most {count - 1} (got {list(layers)})")


def _with_layers(model: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """The same model, weights shared, with only these of its layers; they keep the numbers of their cached rows."""
    count = (
        model.config.num_hidden_layers
        if model.config.get_text_config(decoder=True) is model.config
        else 0
    )
    if (blocks := _find_layers(model, count)) is None:
        raise SpecvizError(
            f"the layers of a {type(model).__name__} cannot be run one by one here; choose another method or a plain "
            "text model"
        )
    check_layers(layers, count)
    config = copy.copy(model.config)
    config.num_hidden_layers = len(layers)
    if (kinds := getattr(config, "layer_types", None)) is not None:
        config.layer_types = [kinds[layer] for layer in layers]
    shared = [*model.parameters(), *model.buffers()]
    replaced = {
        id(model.config): config,
        id(blocks): nn.ModuleList([blocks[layer] for layer in layers]),
    }
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared} | replaced)


def _find_layers(model: PreTrainedModel, count: int) -> nn.ModuleList | None:
    """The model's one list of `count` layers with attention; None unless there is exactly one."""
    lists = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) == count > 0
    ]
    return lists[0] if len(lists) == 1 else None
