"""Undos of faults in heads: target states of another layer or token, exchanged inputs, flags, norms, ids of d2t."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from operator import methodcaller

import torch
from torch import Tensor, nn

from specviz.alignment.causes.reading import Family, Reading, Undo, on_module
from specviz.alignment.causes.undo.matrices import put, scales_of
from specviz.decoding.forward.transformers_forward import layers_of, num_layers
from specviz.drafters.block.heads import BlockHead
from specviz.drafters.block.layouts import BlockLayout, Sight
from specviz.drafters.eagle.heads import Eagle3Head, EagleHead
from specviz.models.pool import LoadedModel

_BLOCK_SIZES = (4, 8, 16)  # of public heads, in places


def families(module: nn.Module, target: LoadedModel, layers: Sequence[int]) -> Iterator[Family]:
    """The undos of a head. layers: whose states it reads, as in `Drafter.hidden_layers`."""
    yield from _states(target, layers)
    if not isinstance(module, EagleHead):
        return
    guesses_at_once = isinstance(module, BlockHead)  # then no place is read behind another
    for shift, words in () if guesses_at_once else ((-1, "earlier"), (1, "later")):
        yield (
            Undo("position", f"drafted tokens one position {words}", partial(_move, shift=shift)),
        )
    for name in module.norms():
        if not name.endswith(("q_norm", "k_norm")):  # they belong to attention
            change = partial(_skip_norm, name=name)
            yield (on_module("norm", f"{name} left out", change),)
    for flag in module.flags():
        cure = f"{flag} the other way round"
        yield (on_module("setting", cure, methodcaller("flip", flag)),)
    yield from scales_of("fc", _scale_fc)
    if isinstance(module, BlockHead):
        yield from _of_blocks(module.layout, target)
        return
    yield from _inputs(module)
    if isinstance(module, Eagle3Head):
        yield from _ids(module)


def _move(reading: Reading, shift: int) -> Reading:
    return replace(reading, shift=reading.shift + shift)


def _skip_norm(module: nn.Module, name: str) -> None:
    module.set_submodule(name, nn.Identity())


# ---- the target's states ---------------------------------------------------------------------------------------------


def _states(target: LoadedModel, layers: Sequence[int]) -> Iterator[Family]:
    """States of layers around, of the token before or behind, and in another order."""
    last = num_layers(target.model)
    highest = last if layers_of(target.model) else last - 1  # the last state is its last layer's
    counted = [layer % (last + 1) for layer in layers]
    for step, words in ((-1, "earlier"), (1, "later")):
        moved = tuple(layer + step for layer in counted)
        if all(0 <= layer <= highest for layer in moved):
            yield _from("the states of 1 layer " + words, moved)
    if -1 in layers and highest == last:
        yield _from("the states before the final norm", tuple(counted))
    elif last in counted:
        behind = tuple(-1 if layer == last else layer for layer in counted)
        yield _from("the state behind the final norm", behind)
    for order in permutations(range(len(layers))) if len(layers) == 3 else ():
        if order != (0, 1, 2):
            yield _from("its states in another order", tuple(layers[place] for place in order))
    for places, words in ((-1, "next"), (1, "previous")):
        change = partial(_take_places, places=places)
        yield (Undo("feature", f"the states of the {words} token", change),)


def _from(cure: str, layers: tuple[int, ...]) -> Family:
    names = ", ".join("behind the norm" if layer < 0 else str(layer) for layer in layers)
    undo = Undo("feature", f"{cure} ({names})", lambda reading: replace(reading, layers=layers))
    return (undo,)


def _take_places(reading: Reading, places: int) -> Reading:
    return replace(reading, places=reading.places + places)


# ---- blocks ----------------------------------------------------------------------------------------------------------


def _of_blocks(layout: BlockLayout, target: LoadedModel) -> Iterator[Family]:
    """Other conventions that a block's settings may have been written in."""
    place = "the first mask's" if layout.from_anchor else "the last token's own"
    yield _told(f"the first token read at {place} place", from_anchor=not layout.from_anchor)
    for size in _BLOCK_SIZES:
        if size != layout.block_size:
            yield _told(f"blocks of {size} places", block_size=size)
    last_ids = (target.info.vocab_size - 1, target.info.vocab_size - 2)
    for mask in dict.fromkeys([*target.tokenizer.all_special_ids, *last_ids]):
        if mask != layout.mask:
            yield _told(f"the token id {mask} as its mask", mask=mask)
    for words, change in _SIGHTS.items():
        sights = tuple(map(change, layout.sights))
        if sights != layout.sights:
            yield _told(words, sights=sights)


def _told(cure: str, **settings: object) -> Family:
    return (on_module("setting", cure, methodcaller("reread", **settings)),)


def _where_it_slides(sight: Sight, **changes: bool) -> Sight:
    return sight if sight.window is None else replace(sight, **changes)


def _wider(sight: Sight, step: int) -> Sight:
    return sight if sight.window is None else replace(sight, window=max(0, sight.window + step))


_SIGHTS: Mapping[str, Callable[[Sight], Sight]] = {
    "all layers causal within a block": partial(replace, is_causal=True),
    "sliding layers causal within a block": partial(_where_it_slides, is_causal=True),
    "layers that see a block both ways": partial(replace, is_causal=False),
    "windows counted from the block's first place": partial(_where_it_slides, by_anchor=True),
    "windows counted from each place": partial(_where_it_slides, by_anchor=False),
    "windows one place shorter": partial(_wider, step=-1),
    "windows one place longer": partial(_wider, step=1),
}
"""What else a block's layers might see, by the words for it."""


# ---- what the head reads side by side --------------------------------------------------------------------------------


def _inputs(module: EagleHead) -> Iterator[Family]:
    """The embedding and the feature exchanged where they are read side by side."""
    if isinstance(module, Eagle3Head):
        words = "the columns of the embedding and of the feature exchanged in its first layer"
        yield (on_module("exchange", words, _exchange_in_layer),)
        words = "input_layernorm and hidden_norm exchanged"
        if {"midlayer.input_layernorm", "midlayer.hidden_norm"} <= set(module.norms()):
            yield (on_module("exchange", words, _exchange_norms),)
    else:
        words = "the columns of the embedding and of the feature exchanged in fc"
        yield (on_module("exchange", words, _exchange_in_fc),)


def _scale_fc(module: EagleHead, factor: float) -> None:
    put(module.fc, module.fc.weight * factor)


def _exchange_in_layer(module: Eagle3Head) -> None:
    for name, linear in module.midlayer.self_attn.named_children():
        if name in ("q_proj", "k_proj", "v_proj"):
            put(linear, _exchange_halves(linear.weight))


def _exchange_norms(module: Eagle3Head) -> None:
    parts = module.midlayer._modules
    parts["input_layernorm"], parts["hidden_norm"] = parts["hidden_norm"], parts["input_layernorm"]


def _exchange_in_fc(module: EagleHead) -> None:
    put(module.fc, _exchange_halves(module.fc.weight))


def _exchange_halves(weight: Tensor) -> Tensor:
    return weight.roll(weight.shape[1] // 2, 1).contiguous()


# ---- ids of the target -----------------------------------------------------------------------------------------------


def _ids(module: Eagle3Head) -> Iterator[Family]:
    """Other readings of d2t, where they lead to ids of the target."""
    ids = module.target_ids
    count = torch.arange(len(ids), device=ids.device)
    readings = {
        "d2t as the ids themselves, not as differences": ids - count,
        "d2t as differences, though it was read as ids": ids + count,
        "d2t one id higher": ids + 1,
        "d2t one id lower": ids - 1,
        "d2t moved on by one row": ids.roll(1),
        "d2t moved back by one row": ids.roll(-1),
        "the differences of d2t moved on by one row": count + (ids - count).roll(1),
        "the differences of d2t moved back by one row": count + (ids - count).roll(-1),
        "d2t in ascending order": ids.sort().values,
    }
    for cure, other in readings.items():
        inside = other.clamp(0, module.vocab_size - 1)
        share = (inside == other).float().mean()
        if share > 0.99 and len(inside.unique()) > 0.99 * len(ids) and not torch.equal(inside, ids):
            yield (on_module("ids of a head", cure, partial(_take_ids, ids=inside)),)


def _take_ids(module: Eagle3Head, ids: Tensor) -> None:
    module.target_ids = ids
