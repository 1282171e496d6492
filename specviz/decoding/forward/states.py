"""States: what a recurrent or convolution layer keeps of a text. Unlike rows of keys and values it cannot be shortened.

So it is copied before tokens are read. After a rejection the latest copy that fits is put back, and the accepted tokens
behind it are read again.
"""

from __future__ import annotations

import copy

from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

State = dict[str, dict[int, object]]
"""A layer's state: the name of an attribute -> its values by number, as a layer may keep several."""


def keeps_state(model: PreTrainedModel) -> bool:
    """Whether some layer of the model keeps a state in transformers' own cache."""
    try:
        return holds_state(DynamicCache(config=model.config))
    except (KeyError, ValueError):  # a kind of layer that transformers has no such cache for
        return False


def holds_state(cache: Cache) -> bool:
    """Whether some layer of the cache is for a state."""
    return any(isinstance(layer, LinearAttentionLayer) for layer in cache.layers)


def cache_of_states(model: PreTrainedModel) -> Cache:
    """An empty cache for a model that keeps states.

    Layers of sliding attention keep all their rows there: CachedLM's mask hides those beyond the window.
    """
    cache = DynamicCache(config=model.config)
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, LinearAttentionAndSlidingWindowAttentionLayer):
            cache.layers[index] = LinearAttentionAndFullAttentionLayer(layer.number_of_states)
        elif isinstance(layer, DynamicSlidingWindowLayer):
            cache.layers[index] = DynamicLayer()
    return cache


def copy_layer(layer: DynamicLayer) -> DynamicLayer:
    """A layer of a cache that grows without the other one: until then they share rows, but no state."""
    other = copy.copy(layer)
    vars(other).update(_copy_state(layer))
    return other


def _layers_with_states(cache: Cache) -> list[LinearAttentionLayer]:
    return [layer for layer in cache.layers if isinstance(layer, LinearAttentionLayer)]


def _copy_state(layer: DynamicLayer) -> State:
    """Copies of all that the layer holds by number: it writes over its tensors."""
    numbered = {name: held for name, held in vars(layer).items() if isinstance(held, dict)}
    return {name: _copy_values(values) for name, values in numbered.items()}


def _copy_values(values: dict[int, object]) -> dict[int, object]:
    return {
        number: value.clone() if isinstance(value, Tensor) else value
        for number, value in values.items()
    }


class StateCopies:
    """Copies of the states in a cache, by how many tokens had been read."""

    def __init__(self, cache: Cache) -> None:
        self._layers = _layers_with_states(cache)
        self._copies: dict[int, list[State]] = {}

    def take(self, num_read: int) -> None:
        """Copies the states as they are now, behind so many tokens."""
        self._copies[num_read] = list(map(_copy_state, self._layers))

    def put_back(self, most: int) -> int:
        """Puts back the latest copy behind at most so many tokens; all others are dropped.

        Returns how many tokens it is behind: 0 where there is none, and the states are as they were.
        """
        place = max((place for place in self._copies if place <= most), default=0)
        states = self._copies.get(place, [])
        self._copies = {place: states}
        for layer, state in zip(self._layers, states, strict=bool(place)):
            vars(layer).update({name: _copy_values(values) for name, values in state.items()})
        return place

    def drop(self) -> None:
        """Drops all copies."""
        self._copies.clear()
