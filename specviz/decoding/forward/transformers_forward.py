"""Forward: runs a model for a CachedLM and stores its rows of keys and values. transformers' own forward is here."""

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

from specviz.decoding.device import is_out_of_memory
from specviz.decoding.forward.products import Products, with_products
from specviz.decoding.forward.states import (
    StateCopies,
    cache_of_states,
    copy_layer,
    holds_state,
    keeps_state,
)
from specviz.decoding.turns import give_way
from specviz.errors import SpecvizError

WORK, WORK_CUDA = 30 * 10**9, 20 * 10**12
"""Multiplications of one forward: others may wait for its end. A token takes as many as the model has parameters."""
FEWEST, MOST, MOST_CUDA = 64, 1_024, 8_192
"""Tokens of one forward, however large or small the model is."""


class Forward(Protocol):
    """A way to run a model over new tokens behind stored rows of keys and values."""

    path: str
    """The name that a trace's header gives it."""
    keeps_state: bool
    """Whether rows cannot be dropped one by one: the model keeps a state."""

    def __call__(
        self,
        ids: Tensor,
        past: int,
        num_logits: int,
        captured: tuple[int, ...],
        attention_mask: Tensor | dict[str, Tensor] | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [num_logits, V] of the last `ids` [n], and the states [n, C] of the captured layers behind each id.

        captured: layers by the numbers of `Drafter.hidden_layers`. The new rows lie behind the first `past`. Without
        mask and positions the ids are a chain that sees everything.
        """

    def keep(self, start: int, end: int, source: Tensor | None) -> int:
        """Keeps the first `end` rows; takes those from `start` on from the places `source`, if there are any.

        Returns how many it holds now: fewer, where the model keeps a state. Then the others must be read again.
        """

    def rows(self, layer: int, end: int) -> tuple[Tensor, Tensor]:
        """Views of a layer's first `end` keys and values, [1, heads, end, width] each."""

    def clear(self) -> None:
        """Drops all rows; an exit drops only its own."""

    def exit(self, layers: Sequence[int]) -> Forward:
        """A forward that runs only these layers, behind the rows of this one."""


@functools.cache
def knows(kind: type[PreTrainedModel], argument: str) -> bool:
    """Whether the forward of such a model takes this argument."""
    return argument in inspect.signature(kind.forward).parameters


def asked_of(
    model: PreTrainedModel, cache: Cache | None = None, num_logits: int = 0
) -> dict[str, object]:
    """The arguments for a forward with this cache, or with none.

    num_logits: how many of the last rows of logits to ask for, where the model can do that; 0 asks for all.
    """
    rows = {"logits_to_keep": num_logits} if knows(type(model), "logits_to_keep") else {}
    if cache is None:
        return {"use_cache": False, **rows}
    is_older = knows(type(model), "past_key_values")  # than transformers 5.24
    name = "past_key_values" if is_older else "cache"
    return {name: cache, "use_cache": True, **rows}


def _positions_for(
    model: PreTrainedModel, cache: Cache | None, start: int, end: int
) -> dict[str, Tensor]:
    """The argument for the places of some tokens behind a state: some models count those wrongly themselves."""
    if cache is None or not holds_state(cache) or not knows(type(model), "position_ids"):
        return {}
    return {"position_ids": torch.arange(start, end, device=model.device)[None]}


def tokens_at_once(model: PreTrainedModel, num_texts: int = 1) -> int:
    """How many tokens of each of `num_texts` texts one forward reads, since others may wait for its end."""
    is_cuda = model.device.type == "cuda"
    work = WORK_CUDA if is_cuda else WORK
    most = MOST_CUDA if is_cuda else MOST
    size = sum(weight.numel() for weight in model.parameters())
    num_tokens = min(most, max(FEWEST, work // size))
    return max(1, num_tokens // num_texts)


def empty_cache(model: PreTrainedModel) -> Cache:
    """A cache of transformers' own, for `read_behind`."""
    return DynamicCache(config=model.config)


def read_behind(
    model: PreTrainedModel, ids: Tensor, cache: Cache | None, num_logits: int = 1
) -> Tensor:
    """Logits [B, num_logits, V] behind the last of ids [B, n], read behind the rows of the cache.

    Long texts are read in pieces, and between two of them others may have the engine. Without a cache there is one.
    """
    num_tokens = ids.shape[1]
    size = num_tokens if cache is None else tokens_at_once(model, len(ids))
    first = num_tokens - num_logits
    pieces = []
    for begin in range(0, num_tokens, size):
        give_way()
        end = min(begin + size, num_tokens)
        num_asked = end - max(begin, first)  # logits of this piece that were asked for
        places = _positions_for(model, cache, begin, end)
        arguments = asked_of(model, cache, max(1, num_asked)) | places
        logits = model(ids[:, begin:end], **arguments).logits
        if num_asked > 0:
            pieces.append(logits[:, -num_asked:])
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)


class TransformersForward:
    """The model's own forward, a few rows multiplied as `products` says."""

    def __init__(self, model: PreTrainedModel, products: Products, why: str = "") -> None:
        """why: the reason why no faster forward runs, for `path`."""
        self.path = f"transformers ({why})" if why else "transformers"
        self._model = model
        self._products = products
        self._runs = with_products(model, products)
        self.keeps_state = keeps_state(model)
        self.clear()

    def exit(self, layers: Sequence[int]) -> _TransformersExit:
        return _TransformersExit(self, layers)

    def clear(self) -> None:
        self.cache = cache_of_states(self._model) if self.keeps_state else DynamicCache()
        self._copies = StateCopies(self.cache)
        self._num_rows = 0

    def rows(self, layer: int, end: int) -> tuple[Tensor, Tensor]:
        stored = self.cache.layers[layer]
        return stored.keys[..., :end, :], stored.values[..., :end, :]

    def keep(self, start: int, end: int, source: Tensor | None) -> int:
        if self.keeps_state:
            end = self._keep_states(end)
        self._num_rows = end
        for layer in self.cache.layers:
            if getattr(layer, "keys", None) is None:
                continue
            for name in ("keys", "values"):
                rows = getattr(layer, name)
                if source is not None:
                    places = source.to(rows.device)  # layers may lie on several devices
                    rows[..., start:end, :] = rows[..., places, :]
                setattr(layer, name, rows[..., :end, :])
        return end

    def _keep_states(self, end: int) -> int:
        """Puts states back until they are behind at most `end` tokens; returns how many they are behind."""
        if end == self._num_rows:
            self._copies.drop()
            return end
        end = self._copies.put_back(end)
        if end == 0:
            self.clear()
        return end

    def __call__(
        self,
        ids: Tensor,
        past: int,
        num_logits: int,
        captured: tuple[int, ...],
        **attention: object,
    ) -> tuple[Tensor, Tensor | None]:
        if self.keeps_state:
            self._copies.take(past)
        self._num_rows = past + len(ids)
        places = _positions_for(self._model, self.cache, past, self._num_rows)
        arguments = asked_of(self._model, self.cache, num_logits) | places | attention
        if not captured:
            out = self._runs(ids[None], **arguments)
            return out.logits[0, -num_logits:].to(ids.device), None
        count = num_layers(self._model)
        with _output_of_last(self._runs) if count in captured else nullcontext([]) as last_outputs:
            out = self._runs(ids[None], output_hidden_states=True, **arguments)
        states = []
        for layer in captured:
            state = last_outputs[0] if layer == count else out.hidden_states[layer]  # [1, n, H]
            states.append(state[0].to(ids.device))
        return out.logits[0, -num_logits:].to(ids.device), torch.cat(states, -1)


class _TransformersExit(TransformersForward):
    """Some layers of another forward's model, over the other's rows: tensors are shared, new rows are not."""

    def __init__(self, whole: TransformersForward, layers: Sequence[int]) -> None:
        self._whole = whole
        super().__init__(_with_layers(whole._model, layers), whole._products)

    def clear(self) -> None:
        super().clear()
        self.cache.layers = list(map(copy_layer, self._whole.cache.layers))


def num_layers(model: PreTrainedModel) -> int:
    return model.config.get_text_config(decoder=True).num_hidden_layers


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder's layers, first to last; empty where they cannot be found."""
    count = num_layers(model)
    decoder = model.get_decoder() or model
    for part in decoder.modules():
        if isinstance(part, nn.ModuleList) and len(part) == count:
            return part
    return nn.ModuleList()


def last_layer(model: PreTrainedModel) -> nn.Module:
    """The decoder's last layer: it gives the state before the final norm. SpecvizError where it cannot be found."""
    layers = layers_of(model)
    if not layers:
        raise SpecvizError(
            f"the state behind the last layer of a {type(model).__name__} cannot be read here"
        )
    return layers[-1]


@contextmanager
def _output_of_last(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """A list to which each forward adds the last layer's output [1, n, H]; transformers gives it after the norm."""
    outputs: list[Tensor] = []

    def note(module: nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        outputs.append(output if isinstance(output, Tensor) else output[0])

    hook = last_layer(model).register_forward_hook(note)
    try:
        yield outputs
    finally:
        hook.remove()


def check_layers(layers: Sequence[int], count: int) -> None:
    """Raises ValueError unless the layers of an exit rise from 0 and the model has them."""
    if not layers or list(layers) != sorted(set(layers)) or layers[0] != 0 or layers[-1] >= count:
        raise ValueError(f"layers must rise from 0 to at most {count - 1} (got {list(layers)})")


def _with_layers(model: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """A copy of the model, weights shared, with only these of its layers; they keep the numbers of their rows.

    Raises SpecvizError for a model that cannot run so, as tokens behind some of its own show.
    """
    why_not = SpecvizError(
        f"the layers of a {type(model).__name__} cannot be run one by one here; choose another method or target"
    )
    text_config = model.config.get_text_config(decoder=True)
    blocks = _find_layers(model.get_decoder() or model, text_config.num_hidden_layers)
    if blocks is None:
        raise why_not
    check_layers(layers, len(blocks))
    config = copy.copy(text_config)
    kinds = getattr(config, "layer_types", None)
    config.num_hidden_layers = len(layers)
    # deepcopy takes what it finds in its memo instead of a copy: weights are shared, these two replaced.
    memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    memo[id(text_config)] = config
    memo[id(blocks)] = nn.ModuleList([blocks[layer] for layer in layers])
    tokens = torch.zeros(1, 2, dtype=torch.long, device=model.get_input_embeddings().weight.device)
    try:
        if kinds is not None and config.layer_types != (own := [kinds[layer] for layer in layers]):
            config.layer_types = own
        early = copy.deepcopy(model, memo)
        cache = empty_cache(model)
        with torch.inference_mode():
            for reader in (model, early, early):
                reader(tokens, **asked_of(reader, cache))
    except Exception as error:  # whatever a strange model raises
        if is_out_of_memory(error):
            raise
        raise why_not from error
    return early


def _find_layers(decoder: nn.Module, count: int) -> nn.ModuleList | None:
    """The decoder's one list of `count` layers; None unless there is exactly one."""
    lists = [
        module
        for module in decoder.modules()
        if isinstance(module, nn.ModuleList) and len(module) == count > 0
    ]
    return lists[0] if len(lists) == 1 else None
