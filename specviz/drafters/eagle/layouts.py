"""The formats of EAGLE heads: what a checkpoint's settings and tensors' names say, whichever tool wrote them.

`find_layout` tells the formats apart; `shape_of` and `fused_layers` read what a head of that layout is made of. Nothing
of an untrusted file is used before it is checked; errors are SpecvizErrors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specviz.drafters.heads import check_sizes, read_size
from specviz.errors import SpecvizError
from specviz.models.library import LoadedModel

EAGLE, EAGLE3, MTP = "EAGLE", "EAGLE-3", "MTP"
Settings = Mapping[str, object]
_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
_OPTIONAL = ("head_dim", "rms_norm_eps", "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters")
_LEFT_OUT = {"llama": LlamaConfig, "qwen3": Qwen3Config}  # speculators leaves out what equals these settings' defaults
_LAYERS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")  # of EAGLE-3.1
_MOST_HEAD_SIZE = 1024
_MOST_NUMBER = 1e12  # of a rotary base; the largest in use are far below
_FEWEST_LAYERS = 7  # below, the three layers that EAGLE-3 reads are not three
_MOST_LAYERS = 64
_MODULE = {"input_proj": "fc", "token_layernorm": "enorm", "hidden_layernorm": "hnorm", "final_layernorm": "norm"}
_INPUT_NORMS = {"embedding_layernorm": "enorm", "hidden_states_layernorm": "hnorm"}


@dataclass(frozen=True, slots=True)
class Layout:
    """A format that was told. kind: EAGLE, EAGLE3 or MTP. settings: all sizes and flags in one mapping. names: the
    file's name of a tensor -> the head's. of_speculators: what the file lacks is the target's own, and layers are
    numbered as in vLLM. mask: the token that stands for those not yet drafted (P-EAGLE)."""

    kind: str
    settings: Settings
    names: Mapping[str, str]
    of_speculators: bool = False
    mask: int | None = None

    def flag(self, name: str) -> bool:
        return any(place.get(name) is True for place in self._places())

    def _places(self) -> tuple[Settings, Settings]:
        inner = self.settings.get("eagle_config")
        return self.settings, inner if isinstance(inner, Mapping) else {}

    def layers(self) -> tuple[object, bool] | None:
        """The layers that the settings name, and whether by the state behind them, as SGLang and SpecForge count in
        `eagle_config`, not before them, as vLLM does. None: those of the paper."""
        for place, is_inner in zip(self._places(), (False, True), strict=True):
            for name in _LAYERS:
                if place.get(name) is not None:
                    return place[name], is_inner
        return None


def find_layout(config: Settings, names: Iterable[str], target: LoadedModel) -> Layout:
    """The format of a checkpoint by its settings and its tensors' names. SpecvizError where it holds no EAGLE head."""
    names = tuple(names)
    if (kind := config.get("speculators_model_type")) is not None:
        return _of_speculators(config, kind, names, target)
    short, settings = {name: name.removeprefix("model.") for name in names}, config
    if isinstance(inner := config.get("model"), Mapping):  # vLLM's wrapping of EAGLE-1
        settings = {**inner, "bias": "fc.bias" in short.values(), **config}
    if "fc.weight" not in short.values():
        raise SpecvizError("its weights hold no EAGLE head (no tensor is called fc.weight)")
    firsts = ("midlayer.", "layers.0.hidden_norm.")
    if any(name.startswith(firsts) for name in short.values()):
        return Layout(EAGLE3, settings, {name: _third_name(own) for name, own in short.items()})
    return Layout(EAGLE, settings, {name: _replaced(own, _INPUT_NORMS) for name, own in short.items()})


def _of_speculators(config: Settings, kind: object, names: tuple[str, ...], target: LoadedModel) -> Layout:
    """speculators' own format: sizes in `transformer_layer_config`, the names of the layers from 0 on."""
    inner = config.get("transformer_layer_config")
    model = inner.get("model_type", "qwen3") if isinstance(inner, Mapping) else None
    if model not in _LEFT_OUT:
        raise SpecvizError(
            f"its transformer_layer_config must be of the kind {' or '.join(_LEFT_OUT)} (got {model!r:.40}): layers of "
            "other models are not built here"
        )
    defaults = _LEFT_OUT[model]().to_dict()
    left_out = {name: defaults[name] for name in (*_SIZES, "rms_norm_eps", "vocab_size")}
    left_out |= {"head_dim": defaults["head_dim"]} if model == "qwen3" else {}  # a Llama's follows from its sizes
    settings = {**left_out, "draft_vocab_size": 32_000, **inner, **config}  # 32,000: speculators' own default
    if kind == "mtp":
        settings |= {"num_hidden_layers": config.get("num_nextn_predict_layers", 1), "bias": False}
        return Layout(MTP, settings, {name: _mtp_name(name) for name in names}, of_speculators=True)
    mask = None
    if kind == "peagle":
        mask = read_size(config, "mask_token_id", None, target.info.vocab_size - 1, least=0)
    return Layout(EAGLE3, settings, {name: _third_name(name) for name in names}, True, mask)


def _third_name(name: str) -> str:
    """The first layer is `midlayer`; further ones are counted from 0 in `layers`."""
    place, _, rest = name.partition(".")
    number, _, rest = rest.partition(".")
    if place != "layers" or not number.isdecimal():
        return name
    return f"midlayer.{rest}" if int(number) == 0 else f"layers.{int(number) - 1}.{rest}"


def _mtp_name(name: str) -> str:
    rest = name.removeprefix("mtp_layers.0.")
    own = _replaced(rest, _MODULE)
    return own if own != rest or rest == name else f"layers.0.{rest}"


def _replaced(name: str, by: Mapping[str, str]) -> str:
    first, dot, rest = name.partition(".")
    return by.get(first, first) + dot + rest


def shape_of(layout: Layout, target: LoadedModel) -> LlamaConfig:
    """The sizes of the head's layers; refused where they are not the target's or make no sense."""
    config = layout.settings
    sizes = {name: read_size(config, name) for name in _SIZES}
    most = _MOST_LAYERS if layout.kind == EAGLE3 else 1
    sizes["num_hidden_layers"] = read_size(config, "num_hidden_layers", 1)
    if sizes["num_hidden_layers"] > most or config.get("hidden_act", "silu") != "silu":
        words = "one layer" if most == 1 else f"at most {most} layers"
        raise SpecvizError(f"it must have {words} with the activation silu (its config.json says otherwise)")
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise SpecvizError("its layers must have full attention (layer_types in its config.json names another)")
    is_third = layout.kind == EAGLE3
    width = config.get("target_hidden_size") if is_third else None
    check_sizes(target, hidden=sizes["hidden_size"] if width is None else read_size(config, "target_hidden_size"))
    ids = read_size(config, "vocab_size", target.info.vocab_size)
    check_sizes(target, vocabulary=ids)
    _check_attention(config, sizes)
    rest = {name: config[name] for name in _OPTIONAL if config.get(name) is not None}
    try:
        shape = LlamaConfig(**sizes, **rest, vocab_size=read_size(config, "draft_vocab_size", ids) if is_third else ids)
        angles = LlamaRotaryEmbedding(shape)
        speeds = torch.cat([angles.inv_freq.flatten(), torch.tensor([float(angles.attention_scaling)])])
    except SpecvizError:
        raise
    except Exception as error:  # anything, from untrusted values
        reason = " ".join(str(error).split())[:200]
        raise SpecvizError(f"its config.json cannot be used ({reason})") from error
    if not bool(((speeds > 0) & speeds.isfinite()).all()) or 2 * angles.inv_freq.numel() != shape.head_dim:
        raise SpecvizError("its config.json gives no usable angles to positions (rope_theta, or rope_scaling)")
    return shape


def _check_attention(config: Settings, sizes: Mapping[str, int]) -> None:
    """Refuses numbers of an untrusted checkpoint that transformers cannot compute with."""
    heads, shared = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    size = sizes["hidden_size"] // heads
    if config.get("head_dim") is not None:
        size = read_size(config, "head_dim", most=_MOST_HEAD_SIZE)
    if heads % shared or size % 2 or not 2 <= size <= _MOST_HEAD_SIZE:
        raise SpecvizError(
            "its attention heads must be a multiple of its key-value heads, and of an even size up to "
            f"{_MOST_HEAD_SIZE} (got {heads}, {shared} and the size {size})"
        )
    for name in ("rms_norm_eps", "rope_theta"):
        value = config.get(name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value <= _MOST_NUMBER):
            raise SpecvizError(f"{name} in its config.json must be a number above 0 (got {value!r:.40})")


def papers_layers(target: LoadedModel) -> tuple[int, ...]:
    """EAGLE-3's own: the states before the layers 2, L/2 and L-3, counted from 0."""
    num_layers = target.model.config.get_text_config(decoder=True).num_hidden_layers
    if num_layers < _FEWEST_LAYERS:
        raise SpecvizError(f"EAGLE-3 needs a target of {_FEWEST_LAYERS} or more layers (got {num_layers})")
    return (2, num_layers // 2, num_layers - 3)


def fused_layers(layout: Layout, target: LoadedModel) -> tuple[int, ...]:
    """The states that an EAGLE-3 head reads, by the layer before which each stands."""
    if (found := layout.layers()) is None:
        return papers_layers(target)
    named, is_behind = found
    most = target.model.config.get_text_config(decoder=True).num_hidden_layers - 1
    is_list = isinstance(named, list) and 0 < len(named) == len(set(map(repr, named))) <= _MOST_LAYERS
    if not is_list or not all(type(layer) is int and 0 <= layer + is_behind <= most for layer in named):
        raise SpecvizError(
            f"its config.json must name different layers of the target to read, from 0 to {most - is_behind} (got "
            f"{named!r:.40})"
        )
    if not layout.of_speculators and most >= _FEWEST_LAYERS - 1:
        papers = papers_layers(target)
        if named in (list(papers), [layer - 1 for layer in papers]):
            return papers  # either way of counting: files of both kinds are about
    return tuple(layer + is_behind for layer in named)
