"""The formats of heads that draft a block at once, told apart by a checkpoint's settings (DFlash, arXiv:2602.06036).

They are z-lab's DFlash and DFlash2, the Open Spec Config, speculators' dflash, dflash2 and dspark, DeepSpec's DSpark
(arXiv:2607.05147), and the assistant that transformers runs with speculation_type='dflash'.
Nothing from an untrusted file is used before it is checked. Errors are SpecvizErrors.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from specviz.decoding.forward.transformers_forward import last_layer, num_layers
from specviz.drafters.block.successors import BIASES
from specviz.drafters.eagle.layouts import (
    BLOCK,
    Layout,
    Settings,
    read_mask,
    speculators_settings,
)
from specviz.drafters.heads import read_size
from specviz.drafters.markov import MOST_RANK, PREFIX
from specviz.errors import SpecvizError
from specviz.models.files.draft_formats import OPEN_SPEC_VERSION, open_method
from specviz.models.pool import LoadedModel

MOST_TOKENS = 64
_MOST_STATES = 64
_MOST_WINDOW = 2**20
_MOST_TAPS = 64
_MOST_SCALE = 1e6
_NAMES = {
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
    "markov_head.markov_w1.weight": "markov.embed.weight",
    "markov_head.markov_w2.weight": "markov.0.weight",
    "candidate_selector.predecessor_codebook.weight": "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook.weight": "candidate_selector.successor_codebook",
}
"""Names in transformers' assistants, in DSpark's heads and in speculators' dflash2 -> names here."""
_MARKOV = "markov_head."
_ENCODER = ("encoder.", "model.encoder.")
"""Before names that only transformers' assistants have."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The places that a layer sees of the text before a block, and of the block itself."""

    window: int | None = None
    """How many places away; None: all."""
    is_causal: bool = False
    """Whether a place sees only those before it in its block."""
    by_anchor: bool = False
    """Whether the window is counted from the block's first place, and limits the text alone."""


@dataclass(frozen=True, slots=True)
class BlockLayout(Layout):
    """The format of a head that drafts a block at once."""

    block_size: int = 0
    """How many places one pass reads: the last token of the text and the mask tokens behind it."""
    from_anchor: bool = False
    """Whether the first drafted token is read at the last token's own place, and not at the first mask token's."""
    sights: tuple[Sight, ...] = ()
    """Of each layer."""
    embedding_scale: float | None = None
    """What the rows of the embedding are multiplied with; None: they come from the target's module as it is."""
    output_multiplier: float = 1.0
    output_softcap: float = 0.0
    """The bound of the logits, by tanh; 0: none."""
    markov: str | None = None
    """The sort of its Markov bias (DSpark): vanilla, gated or rnn; None: it has none."""
    convolution: tuple[int, int] | None = None
    """The taps and the channels per group of its convolutions (DFlash2)."""
    selector: tuple[int, int] | None = None
    """The rank of its selector, and how many candidates it has at each place (DFlash2)."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of each of its tensors, by its name in the head."""


def find_layout(config: Settings, state: Mapping[str, Tensor], target: LoadedModel) -> BlockLayout:
    """The format of a checkpoint. Raises SpecvizError if it is none of these."""
    of_speculators = config.get("speculators_model_type") is not None
    is_open = bool(open_method(config))
    inner = config.get("dflash_config")
    if is_open:
        settings = _open_settings(config)
    else:
        settings = dict(speculators_settings(config) if of_speculators else config)
        settings |= inner if isinstance(inner, Mapping) else {}
    names = {name: _name(name) for name in state}
    if len(set(names.values())) < len(names):
        raise SpecvizError("its weights hold a tensor twice, under the names of two formats")
    is_transformers = any(name.startswith(_ENCODER) for name in state)
    # DeepSpec has no such setting: its DSpark always reads there, and vLLM reads speculators' so
    from_anchor = settings.get("sample_from_anchor", "markov_rank" in settings) is True
    markov, selector = _markov(settings, names.values()), _selector(settings, target)
    if selector is not None and (markov is not None or from_anchor):
        raise SpecvizError(
            "a head with a selector (DFlash2) must have no Markov bias, and sample_from_anchor must be false"
        )
    return BlockLayout(
        BLOCK,
        settings,
        names,
        of_speculators,
        read_mask(settings, target),
        block_size=read_size(settings, "block_size", None, MOST_TOKENS, least=2 - from_anchor),
        from_anchor=from_anchor,
        sights=_sights(settings, is_transformers, by_anchor=of_speculators or is_open),
        embedding_scale=None if is_transformers else _scale(settings, "input_embedding_scale", 1.0),
        output_multiplier=_scale(settings, "output_multiplier", 1.0, above=0.0),
        output_softcap=_scale(settings, "final_logit_softcapping", 0.0),
        markov=markov,
        convolution=_convolution(settings),
        selector=selector,
        shapes={names[name]: tuple(tensor.shape) for name, tensor in state.items()},
    )


def _open_settings(config: Settings) -> dict[str, object]:
    """The settings of the Open Spec Config in one mapping, in the words of z-lab's.

    Its two dialects keep some settings in `speculative_config` or in `dflash_config` within.
    """
    version = config.get("open_spec_config_version")
    if version != OPEN_SPEC_VERSION:
        raise SpecvizError(
            f"open_spec_config_version in its config.json must be {OPEN_SPEC_VERSION} (got {version!r:.40})"
        )
    spec = config.get("speculative_config")
    spec = spec if isinstance(spec, Mapping) else {}
    inner = spec.get("dflash_config")
    settings = {**config, **spec, **(inner if isinstance(inner, Mapping) else {})}
    num_tokens = read_size(settings, "speculative_tokens", None, MOST_TOKENS - 1)
    settings["block_size"] = num_tokens + (settings.get("sample_from_anchor") is not True)
    first = read_size(settings, "target_layer_start_idx", None, 1, least=0)
    ids = settings.get("target_layer_ids")
    if first and isinstance(ids, list):
        settings["target_layer_ids"] = [
            layer - first if type(layer) is int else layer for layer in ids
        ]
    return settings


def _name(name: str) -> str:
    short = name.removeprefix("model.")
    renamed = _NAMES.get(short, short)
    return f"markov.{renamed.removeprefix(_MARKOV)}" if renamed.startswith(_MARKOV) else renamed


def _sights(settings: Settings, is_transformers: bool, *, by_anchor: bool) -> tuple[Sight, ...]:
    """What each layer sees, in a format's own way of counting.

    transformers: all of the block, places up to the window away. z-lab (model.py): places nearer than the window, and
    sliding layers are causal unless `is_causal` or `causal` says otherwise; `use_swa` gives all layers a window (vLLM,
    qwen3_dflash.py). speculators (models/dflash/attention.py):
    the text up to the window before the anchor, and causal if sliding_window_non_causal is false; without it vLLM takes
    them for not causal.
    """
    count = read_size(settings, "num_hidden_layers", 1, _MOST_STATES)
    kinds = settings.get("layer_types") or ["full_attention"] * count
    if not isinstance(kinds, list) or len(kinds) != count:
        raise SpecvizError(
            f"layer_types in its config.json must name {count} layers (got {kinds!r:.80})"
        )
    full = Sight(is_causal=not by_anchor and _says_causal(settings) is True)
    if "sliding_attention" not in kinds:
        if settings.get("use_swa") is not True:
            return (full,) * count
        return (replace(full, window=_window(settings) - 1),) * count
    window = _window(settings)
    if is_transformers:
        sliding = Sight(window)
    elif by_anchor:
        is_causal = settings.get("sliding_window_non_causal", True) is False
        sliding = Sight(window, is_causal, by_anchor=True)
    else:
        sliding = Sight(window - 1, _says_causal(settings) is not False)
    return tuple(sliding if kind == "sliding_attention" else full for kind in kinds)


def _window(settings: Settings) -> int:
    name = "sliding_window" if settings.get("swa_window_size") is None else "swa_window_size"
    return read_size(settings, name, None, _MOST_WINDOW)


def _says_causal(settings: Settings) -> object:
    """Whether z-lab's settings call all layers causal; None where they say nothing."""
    is_causal = settings.get("is_causal")
    return settings.get("causal") if is_causal is None else is_causal


def _scale(settings: Settings, name: str, usual: float, above: float = -1.0) -> float:
    """A number from 0 on that is also above `above`."""
    value = settings.get(name)
    if value is None:
        return usual
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _MOST_SCALE or value <= above:
        words = "above 0, up to" if above == 0 else "from 0 to"
        raise SpecvizError(
            f"{name} in its config.json must be a number {words} {_MOST_SCALE:,.0f} (got {value!r:.40})"
        )
    return float(value)


def _markov(settings: Settings, names: Collection[str]) -> str | None:
    """The sort of the bias whose tensors a checkpoint has."""
    if not any(name.startswith(PREFIX) for name in names):
        return None
    kind = settings.get("markov_head_type") or "vanilla"
    if not isinstance(kind, str) or kind not in ("vanilla", *BIASES):
        known = ", ".join(["vanilla", *BIASES])
        raise SpecvizError(
            f"markov_head_type in its config.json must be one of {known} (got {kind!r:.40})"
        )
    return kind


def _convolution(settings: Settings) -> tuple[int, int] | None:
    if settings.get("conv_kernel_size") is None:
        return None
    group_size = read_size(settings, "conv_group_size")
    hidden_size = read_size(settings, "hidden_size")
    if hidden_size % group_size:
        raise SpecvizError(
            f"conv_group_size in its config.json must divide hidden_size {hidden_size} (got {group_size})"
        )
    return read_size(settings, "conv_kernel_size", None, _MOST_TAPS), group_size


def _selector(settings: Settings, target: LoadedModel) -> tuple[int, int] | None:
    if settings.get("selector_rank") is None:
        return None
    rank = read_size(settings, "selector_rank", None, MOST_RANK)
    return rank, read_size(settings, "selector_top_k", None, target.info.vocab_size)


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
