"""The formats of EAGLE heads, told apart by a checkpoint's settings and its tensors' names.

`find_layout` finds the format; `shape_of` and `fused_layers` read the sizes and the layers of a head. Nothing from an
untrusted file is used before it is checked. Errors are SpecvizErrors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specviz.decoding.forward.transformers_forward import last_layer, num_layers
from specviz.drafters.heads import check_sizes, check_vocabulary, read_size
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel

EAGLE = "EAGLE"
EAGLE3 = "EAGLE-3"
MTP = "MTP"
BLOCK = "DFlash"
_WITH_STATES = (EAGLE3, BLOCK)
"""The kinds that read several of the target's states, with layers of their own width and number."""
Settings = Mapping[str, object]
_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
_OPTIONAL = (
    "head_dim",
    "rms_norm_eps",
    "max_position_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
)
_LEFT_OUT = {"llama": LlamaConfig, "qwen3": Qwen3Config}
"""Model kind -> the configuration whose default values speculators leaves out."""
_AUX = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
_BEHIND = ("target_layer_ids", "feature_layers")  # always the layer after which a state stands
_BY_FIRST = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite")
"""Targets, by model_type, for which the first layer id tells how the ids are counted; see `_shift`."""
_MASKS = ("mask_token_id", "pard_token", "ptd_token_id")  # of NeMo AutoModel and vLLM's P-EAGLE
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")  # of EAGLE-3.1
_EXPERTS = (".experts.", ".mlp.gate.", ".block_sparse_moe.")  # in the names of tensors
_MOST_HEAD_SIZE = 1024
_MOST_NUMBER = 1e12  # of a rotary base; the largest in use are far below
_FEWEST_LAYERS = 7  # below, the three layers that EAGLE-3 reads are not three
_MOST_LAYERS = 64
_MODULE = {
    "input_proj": "fc",
    "token_layernorm": "enorm",
    "hidden_layernorm": "hnorm",
    "final_layernorm": "norm",
}
_INPUT_NORMS = {"embedding_layernorm": "enorm", "hidden_states_layernorm": "hnorm"}


@dataclass(frozen=True, slots=True)
class Layout:
    """The format of a checkpoint."""

    kind: str  # EAGLE, EAGLE3, MTP or BLOCK
    settings: Settings  # all sizes and flags in one mapping
    names: Mapping[str, str]  # a tensor's name in the file -> its name in the head
    of_speculators: bool = False  # then tensors that the file lacks are the target's
    mask: int | None = None  # the token that stands for tokens not drafted yet (P-EAGLE)

    def flag(self, name: str) -> bool:
        return any(settings.get(name) is True for settings in (self.settings, self._inner()))

    def _inner(self) -> Settings:
        inner = self.settings.get("eagle_config")
        return inner if isinstance(inner, Mapping) else {}

    def layers(self) -> "NamedLayers | None":
        """The layers that the settings name; None: the paper's."""
        for settings in (self.settings, self._inner()):
            for name in (*_AUX, *_BEHIND):
                if settings.get(name) is not None:
                    return NamedLayers(settings[name], name, settings is not self.settings)
        return None

    def vocabulary(self, target: LoadedModel) -> int:
        """The number of ids in the head's tables, with padding. Raises SpecvizError if they are not the target's."""
        size = read_size(self.settings, "vocab_size", target.info.vocab_size)
        check_vocabulary(target, size)
        return size


@dataclass(frozen=True, slots=True)
class NamedLayers:
    """The layers that a checkpoint's settings name."""

    ids: object  # as the settings have them, unchecked
    field: str  # the setting's name
    is_inner: bool  # whether it stands within `eagle_config`


def find_layout(config: Settings, names: Iterable[str], target: LoadedModel) -> Layout:
    """The format of a checkpoint by its settings and tensors' names. Raises SpecvizError if it has no EAGLE head."""
    names = tuple(names)
    for name in names:
        if any(part in name for part in _EXPERTS):
            raise SpecvizError(
                f"its layers are a mixture of experts (a tensor is called {name!r:.80}), which specviz does not build: "
                "choose a head with dense layers"
            )
    if (kind := config.get("speculators_model_type")) is not None:
        return _speculators_layout(config, kind, names, target)
    short_names = {name: name.removeprefix("model.") for name in names}
    short = set(short_names.values())
    settings = config
    inner = config.get("model")  # vLLM's wrapping of EAGLE-1
    if isinstance(inner, Mapping):
        settings = {**inner, "bias": "fc.bias" in short, **config}
    if "fc.weight" not in short:
        raise SpecvizError("its weights hold no EAGLE head (no tensor is called fc.weight)")
    firsts = ("midlayer.", "layers.0.hidden_norm.")
    if not any(name.startswith(firsts) for name in short):
        head_names = {name: _rename_first(short_names[name], _INPUT_NORMS) for name in names}
        return Layout(EAGLE, settings, head_names)
    if not any(name.startswith("layers.") for name in short):
        # EAGLE3-Vicuna1.3-13B names its target's 40
        settings = {**settings, "num_hidden_layers": 1}
    mask = read_mask(settings, target) if "mask_hidden" in short else None
    head_names = {name: _third_name(short_names[name]) for name in names}
    return Layout(EAGLE3, settings, head_names, mask=mask)


def _speculators_layout(
    config: Settings, kind: object, names: tuple[str, ...], target: LoadedModel
) -> Layout:
    """The layout of speculators' format, where layers are counted from 0."""
    settings = speculators_settings(config)
    if kind == "mtp":
        settings["num_hidden_layers"] = config.get("num_nextn_predict_layers", 1)
        settings["bias"] = False
        return Layout(MTP, settings, {name: _mtp_name(name) for name in names}, of_speculators=True)
    mask = read_mask(config, target) if kind == "peagle" else None
    return Layout(EAGLE3, settings, {name: _third_name(name) for name in names}, True, mask)


def speculators_settings(config: Settings) -> dict[str, object]:
    """All settings of speculators' format in one mapping; its sizes stand in `transformer_layer_config`."""
    inner = config.get("transformer_layer_config")
    model = inner.get("model_type", "qwen3") if isinstance(inner, Mapping) else None
    if model not in _LEFT_OUT:
        raise SpecvizError(
            f"its transformer_layer_config must be of the kind {' or '.join(_LEFT_OUT)} (got {model!r:.40}): layers of "
            "other models are not built here"
        )
    defaults = _LEFT_OUT[model]().to_dict()
    settings = {name: defaults[name] for name in (*_SIZES, "rms_norm_eps", "vocab_size")}
    if model == "qwen3":  # a Llama's follows from its sizes
        settings["head_dim"] = defaults["head_dim"]
    settings["draft_vocab_size"] = 32_000  # speculators' default
    return {**settings, **inner, **config}


def read_mask(config: Settings, target: LoadedModel) -> int:
    for name in _MASKS:
        if config.get(name) is not None:
            return read_size(config, name, None, target.info.vocab_size - 1, least=0)
    raise SpecvizError(
        "it drafts all depths at once behind a mask token, which its config.json must name (as "
        f"{', '.join(_MASKS)})"
    )


def _third_name(name: str) -> str:
    """The name in an EAGLE-3 head: the first layer is `midlayer`, the others are counted from 0 in `layers`."""
    place, _, rest = name.partition(".")
    number, _, rest = rest.partition(".")
    if place != "layers" or not number.isdecimal():
        return name
    return f"midlayer.{rest}" if int(number) == 0 else f"layers.{int(number) - 1}.{rest}"


def _mtp_name(name: str) -> str:
    rest = name.removeprefix("mtp_layers.0.")
    renamed = _rename_first(rest, _MODULE)
    if rest == name or renamed != rest:
        return renamed
    return f"layers.0.{rest}"


def _rename_first(name: str, new_names: Mapping[str, str]) -> str:
    """Renames the first part of a dotted name."""
    first, dot, rest = name.partition(".")
    return new_names.get(first, first) + dot + rest


def shape_of(layout: Layout, target: LoadedModel) -> LlamaConfig:
    """The sizes of the head's layers. Raises SpecvizError if they are not the target's or make no sense."""
    config = layout.settings
    sizes = {name: read_size(config, name) for name in _SIZES}
    sizes["num_hidden_layers"] = read_size(config, "num_hidden_layers", 1)
    _check_layers(layout, sizes["num_hidden_layers"])
    has_states = layout.kind in _WITH_STATES
    hidden_size = sizes["hidden_size"]
    if has_states and config.get("target_hidden_size") is not None:
        hidden_size = read_size(config, "target_hidden_size")
    check_sizes(target, hidden=hidden_size)
    num_ids = layout.vocabulary(target)
    if has_states and config.get("draft_vocab_size") not in (None, num_ids):
        num_choices = read_size(config, "draft_vocab_size")
    else:
        num_choices = min(num_ids, target.info.vocab_size)
    _check_attention(config, sizes)
    rest = {name: config[name] for name in _OPTIONAL if config.get(name) is not None}
    try:
        shape = LlamaConfig(**sizes, **rest, vocab_size=num_choices)
        rotary = LlamaRotaryEmbedding(shape)
        scaling = torch.tensor([float(rotary.attention_scaling)])
        factors = torch.cat([rotary.inv_freq.flatten(), scaling])
    except SpecvizError:
        raise
    except Exception as error:  # anything, from untrusted values
        reason = " ".join(str(error).split())[:200]
        raise SpecvizError(f"its config.json cannot be used ({reason})") from error
    is_usable = bool(((factors > 0) & factors.isfinite()).all())
    if not is_usable or 2 * rotary.inv_freq.numel() != shape.head_dim:
        raise SpecvizError(
            "its config.json gives no usable angles to positions (rope_theta, or rope_scaling)"
        )
    return shape


def _check_layers(layout: Layout, num_hidden_layers: int) -> None:
    """Raises SpecvizError for layers of a number or kind that specviz does not build."""
    config = layout.settings
    most = _MOST_LAYERS if layout.kind in _WITH_STATES else 1
    if num_hidden_layers > most:
        words = "one layer" if most == 1 else f"at most {most} layers"
        raise SpecvizError(f"it must have {words} (num_hidden_layers is {num_hidden_layers})")
    for name in ("hidden_act", "hidden_activation"):  # the second: Gemma's
        if config.get(name) not in (None, "silu"):
            raise SpecvizError(
                f"its activation must be silu ({name} in its config.json is {config[name]!r:.40})"
            )
    kinds = config.get("layer_types") or []
    known = ("full_attention", "sliding_attention") if layout.kind == BLOCK else ("full_attention",)
    if not isinstance(kinds, list) or any(kind not in known for kind in kinds):
        words = " or ".join(sorted(kind.replace("_", " ") for kind in known))
        raise SpecvizError(
            f"its layers must have {words} (layer_types in its config.json is {kinds!r:.80})"
        )


def _check_attention(config: Settings, sizes: Mapping[str, int]) -> None:
    """Raises SpecvizError for numbers of an untrusted checkpoint that transformers cannot compute with."""
    num_heads = sizes["num_attention_heads"]
    num_key_heads = sizes["num_key_value_heads"]
    size = sizes["hidden_size"] // num_heads
    if config.get("head_dim") is not None:
        size = read_size(config, "head_dim", most=_MOST_HEAD_SIZE)
    if num_heads % num_key_heads or size % 2 or not 2 <= size <= _MOST_HEAD_SIZE:
        raise SpecvizError(
            "its attention heads must be a multiple of its key-value heads, and of an even size up to "
            f"{_MOST_HEAD_SIZE} (got {num_heads}, {num_key_heads} and the size {size})"
        )
    for name in ("rms_norm_eps", "rope_theta"):
        value = config.get(name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value <= _MOST_NUMBER):
            raise SpecvizError(
                f"{name} in its config.json must be a number above 0 (got {value!r:.40})"
            )


def papers_layers(target: LoadedModel) -> tuple[int, ...]:
    """The states that EAGLE-3's paper reads: before the layers 2, L/2 and L-3, counted from 0."""
    count = num_layers(target.model)
    if count < _FEWEST_LAYERS:
        raise SpecvizError(
            f"EAGLE-3 needs a target of {_FEWEST_LAYERS} or more layers (got {count})"
        )
    return tuple(_papers(count))


def _papers(count: int) -> list[int]:
    return [2, count // 2, count - 3]


def fused_layers(layout: Layout, target: LoadedModel) -> tuple[int, ...]:
    """The states that an EAGLE-3 head reads, numbered as in `Drafter.hidden_layers`."""
    named = layout.layers()
    if named is None:
        return papers_layers(target)
    ids = named.ids
    last = num_layers(target.model)
    is_list = isinstance(ids, list) and 0 < len(ids) == len(set(map(repr, ids))) <= _MOST_LAYERS
    if is_list and all(type(layer) is int and layer >= 0 for layer in ids):
        shift = _shift(named, ids, layout, target)
        highest = max(ids) + shift
        if highest == last:
            last_layer(target.model)
        if highest <= last:
            return tuple(layer + shift for layer in ids)
    raise SpecvizError(
        f"{named.field} in its config.json must name different layers of the target, which has {last} (got {ids!r:.40})"
    )


def _shift(named: NamedLayers, ids: list[int], layout: Layout, target: LoadedModel) -> int:
    """The number to add to the ids: 0 if an id names the layer after a state, 1 if it names the layer before it.

    `target_layer_ids` name the layer before a state. Other names outside `eagle_config` name the layer after it: vLLM's
    eagle3_utils.py (get_eagle3_aux_layers_from_config), DeepSpec's modeling/eagle3/common.py. No source says how
    `feature_layers` are counted. Within `eagle_config` SGLang takes the layer before a state (models/llama.py,
    set_eagle3_layers_to_capture). It takes the layer after it if the ids reach the number of layers
    (models/gpt_oss.py), or if the first id is not 1 and the target is DeepSeek's (models/deepseek_v2.py). A first id
    of 2 counts as the paper's, the layer after a state: pull request 25454.
    """
    if named.field in _BEHIND:
        return 1
    count = num_layers(target.model)
    if not named.is_inner:
        # files count in either way; ids that are one below the paper's name the layer before a state
        is_papers = [layer + 1 for layer in ids] == _papers(count)
        return int(is_papers and not layout.of_speculators)
    kind = target.model.config.get_text_config(decoder=True).model_type
    is_deepseeks = kind in _BY_FIRST and ids[0] != 1
    is_next_layer = max(ids) == count or ids[0] == 2 or is_deepseeks
    return 0 if is_next_layer else 1
