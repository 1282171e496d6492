"""The formats of heads that draft a block at once, told apart by a checkpoint's settings (DFlash, arXiv:2602.06036).

They are z-lab's DFlash, speculators' dflash and dspark, DeepSpec's DSpark (arXiv:2607.05147), and the assistant that
transformers runs with speculation_type='dflash'.
Nothing from an untrusted file is used before it is checked. Errors are SpecvizErrors.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.decoding.forward.transformers_forward import last_layer, num_layers
from specviz.drafters.eagle.layouts import (
    BLOCK,
    Layout,
    Settings,
    read_mask,
    speculators_settings,
)
from specviz.drafters.heads import read_size
from specviz.drafters.markov import MarkovBias, empty_bias
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel

MOST_TOKENS = 64
_MOST_STATES = 64
_MOST_WINDOW = 2**20
_NAMES = {
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
    "markov_head.markov_w1.weight": "markov.embed.weight",
    "markov_head.markov_w2.weight": "markov.0.weight",
}
"""Names in transformers' assistants and in DSpark's heads -> names here."""


@dataclass(frozen=True, slots=True)
class BlockLayout(Layout):
    """The format of a head that drafts a block at once."""

    block_size: int = 0
    """How many places one pass reads: the last token of the text and the mask tokens behind it."""
    from_anchor: bool = False
    """Whether the first drafted token is read at the last token's own place, and not at the first mask token's."""
    windows: tuple[int | None, ...] = ()
    """How many places away each layer sees; None: all."""
    markov: MarkovBias | None = None
    """The bias by the token before (DSpark), without its numbers; None: there is none."""


def find_layout(config: Settings, state: Mapping[str, Tensor], target: LoadedModel) -> BlockLayout:
    """The format of a checkpoint. Raises SpecvizError if it is none of these."""
    of_speculators = config.get("speculators_model_type") is not None
    settings = dict(speculators_settings(config) if of_speculators else config)
    inner = config.get("dflash_config")
    if isinstance(inner, Mapping):
        settings = {**settings, **inner}
    if (kind := settings.get("markov_head_type")) not in (None, "vanilla"):
        raise SpecvizError(f"its markov_head_type must be vanilla (got {kind!r:.40})")
    names = {name: _name(name) for name in state}
    renamed = {names[name]: tensor for name, tensor in state.items()}
    with torch.device("meta"):
        markov = empty_bias(renamed, target.info.vocab_size, 1)
    return BlockLayout(
        BLOCK,
        settings,
        names,
        of_speculators,
        read_mask(settings, target),
        read_size(settings, "block_size", None, MOST_TOKENS, least=2),
        # DeepSpec has no such setting: its DSpark always reads there
        settings.get("sample_from_anchor", "markov_rank" in settings) is True,
        _windows(settings),
        markov,
    )


def _name(name: str) -> str:
    short = name.removeprefix("model.")
    return _NAMES.get(short, short)


def _windows(settings: Settings) -> tuple[int | None, ...]:
    """The window of each layer."""
    count = read_size(settings, "num_hidden_layers", 1, _MOST_STATES)
    kinds = settings.get("layer_types") or ["full_attention"] * count
    if not isinstance(kinds, list) or len(kinds) != count:
        raise SpecvizError(
            f"layer_types in its config.json must name {count} layers (got {kinds!r:.80})"
        )
    if "sliding_attention" not in kinds:
        return (None,) * count
    window = read_size(settings, "sliding_window", None, _MOST_WINDOW)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def fused_layers(layout: BlockLayout, target: LoadedModel) -> tuple[int, ...]:
    """The states that the head reads, numbered as in `Drafter.hidden_layers`.

    speculators names the layer behind which a state stands, counted from 1. The others count from 0 and take the last
    layer's state behind the final norm, as transformers gives it (vLLM's adapter of speculators' settings;
    transformers' DFlashTokenCandidateGenerator).
    """
    field = "aux_hidden_state_layer_ids" if layout.of_speculators else "target_layer_ids"
    ids = layout.settings.get(field)
    shift = 0 if layout.of_speculators else 1
    last = num_layers(target.model)
    is_list = isinstance(ids, list) and 0 < len(ids) == len(set(map(repr, ids))) <= _MOST_STATES
    if is_list and all(type(layer) is int and 0 <= layer + shift <= last for layer in ids):
        layers = [layer + shift for layer in ids]
        if not layout.of_speculators:
            return tuple(-1 if layer == last else layer for layer in layers)
        if last in layers:
            last_layer(target.model)
        return tuple(layers)
    raise SpecvizError(
        f"{field} in its config.json must name different layers of the target, which has {last} (got {ids!r:.40})"
    )
