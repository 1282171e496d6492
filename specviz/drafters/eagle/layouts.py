"""The formats of EAGLE heads: what a checkpoint's settings and tensors' names say, whichever tool wrote them.

`find_layout` tells the formats apart; `shape_of` and `fused_layers` read what a head of that layout is made of. Nothing
of an untrusted file is used before it is checked; errors are SpecvizErrors.
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

EAGLE, EAGLE3, MTP = "EAGLE", "EAGLE-3", "MTP"
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
_LEFT_OUT = {
    "llama": LlamaConfig,
    "qwen3": Qwen3Config,
}  # speculators leaves out what equals these settings' defaults
_AUX = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
_BEHIND = ("target_layer_ids", "feature_layers")  # always by the layer behind which a state stands
_BY_FIRST = (
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe_lite",
)  # targets, by their model_type
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
    """A format that was told. kind: EAGLE, EAGLE3 or MTP. settings: all sizes and flags in one mapping. names: the
    file's name of a tensor -> the head's. of_speculators: what the file lacks is the target's own. mask: the token that
    stands for those not yet drafted (P-EAGLE)."""

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

    def layers(self) -> "NamedLayers | None":
        """The layers that the settings name; None: those of the paper."""
        for place, is_inner in zip(self._places(), (False, True), strict=True):
            for name in (*_AUX, *_BEHIND):
                if place.get(name) is not None:
                    return NamedLayers(place[name], name, is_inner)
        return None

    def vocabulary(self, target: LoadedModel) -> int:
        """How many ids the head's tables are for, padding among them; refused where they are not the target's."""
        size = read_size(self.settings, "vocab_size", target.info.vocab_size)
        check_vocabulary(target, size)
        return size


@dataclass(frozen=True, slots=True)
class NamedLayers:
    """ids: as the settings have them, unchecked. field: under which name; is_inner: within `eagle_config`."""

    ids: object
    field: str
    is_inner: bool


def find_layout(config: Settings, names: Iterable[str], target: LoadedModel) -> Layout:
    """The format of a checkpoint by its settings and its tensors' names. SpecvizError where it holds no EAGLE head."""
    names = tuple(names)
    if expert := next((name for name in names if any(part in name for part in _EXPERTS)), None):
        raise SpecvizError(
            f"its layers are a mixture of experts (a tensor is called {expert!r:.80}), which specviz does not build: "
            "choose a head with dense layers"
        )
    if (kind := config.get("speculators_model_type")) is not None:
        return _of_speculators(config, kind, names, target)
    short, settings = {name: name.removeprefix("model.") for name in names}, config
    if isinstance(inner := config.get("model"), Mapping):  # vLLM's wrapping of EAGLE-1
        settings = {**inner, "bias": "fc.bias" in short.values(), **config}
    if "fc.weight" not in short.values():
        raise SpecvizError("its weights hold no EAGLE head (no tensor is called fc.weight)")
    firsts = ("midlayer.", "layers.0.hidden_norm.")
    if any(name.startswith(firsts) for name in short.values()):
        if not any(name.startswith("layers.") for name in short.values()):
            settings = {
                **settings,
                "num_hidden_layers": 1,
            }  # EAGLE3-Vicuna1.3-13B names its target's 40
        mask = _mask(settings, target) if "mask_hidden" in short.values() else None
        return Layout(
            EAGLE3, settings, {name: _third_name(own) for name, own in short.items()}, mask=mask
        )
    return Layout(
        EAGLE, settings, {name: _replaced(own, _INPUT_NORMS) for name, own in short.items()}
    )


def _of_speculators(
    config: Settings, kind: object, names: tuple[str, ...], target: LoadedModel
) -> Layout:
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
    left_out |= (
        {"head_dim": defaults["head_dim"]} if model == "qwen3" else {}
    )  # a Llama's follows from its sizes
    settings = {
        **left_out,
        "draft_vocab_size": 32_000,
        **inner,
        **config,
    }  # 32,000: speculators' own default
    if kind == "mtp":
        settings |= {"num_hidden_layers": config.get("num_nextn_predict_layers", 1), "bias": False}
        return Layout(MTP, settings, {name: _mtp_name(name) for name in names}, of_speculators=True)
    mask = _mask(config, target) if kind == "peagle" else None
    return Layout(EAGLE3, settings, {name: _third_name(name) for name in names}, True, mask)


def _mask(config: Settings, target: LoadedModel) -> int:
    name = next((name for name in _MASKS if config.get(name) is not None), None)
    if name is None:
        raise SpecvizError(
            "it drafts all depths at once (P-EAGLE) behind a mask token, which its config.json must name (as "
            f"{', '.join(_MASKS)})"
        )
    return read_size(config, name, None, target.info.vocab_size - 1, least=0)


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
    if sizes["num_hidden_layers"] > most:
        words = "one layer" if most == 1 else f"at most {most} layers"
        raise SpecvizError(
            f"it must have {words} (num_hidden_layers is {sizes['num_hidden_layers']})"
        )
    for name in ("hidden_act", "hidden_activation"):  # the second: Gemma's
        if config.get(name) not in (None, "silu"):
            raise SpecvizError(
                f"its activation must be silu ({name} in its config.json is {config[name]!r:.40})"
            )
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise SpecvizError(
            f"its layers must have full attention (layer_types in its config.json is {kinds!r:.80})"
        )
    is_third = layout.kind == EAGLE3
    width = config.get("target_hidden_size") if is_third else None
    check_sizes(
        target,
        hidden=sizes["hidden_size"] if width is None else read_size(config, "target_hidden_size"),
    )
    ids = layout.vocabulary(target)
    is_whole = not is_third or config.get("draft_vocab_size") in (None, ids)
    choices = (
        min(ids, target.info.vocab_size) if is_whole else read_size(config, "draft_vocab_size")
    )
    _check_attention(config, sizes)
    rest = {name: config[name] for name in _OPTIONAL if config.get(name) is not None}
    try:
        shape = LlamaConfig(**sizes, **rest, vocab_size=choices)
        angles = LlamaRotaryEmbedding(shape)
        speeds = torch.cat(
            [angles.inv_freq.flatten(), torch.tensor([float(angles.attention_scaling)])]
        )
    except SpecvizError:
        raise
    except Exception as error:  # anything, from untrusted values
        reason = " ".join(str(error).split())[:200]
        raise SpecvizError(f"its config.json cannot be used ({reason})") from error
    if (
        not bool(((speeds > 0) & speeds.isfinite()).all())
        or 2 * angles.inv_freq.numel() != shape.head_dim
    ):
        raise SpecvizError(
            "its config.json gives no usable angles to positions (rope_theta, or rope_scaling)"
        )
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
            raise SpecvizError(
                f"{name} in its config.json must be a number above 0 (got {value!r:.40})"
            )


def papers_layers(target: LoadedModel) -> tuple[int, ...]:
    """EAGLE-3's own: the states before the layers 2, L/2 and L-3, counted from 0."""
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
    if (named := layout.layers()) is None:
        return papers_layers(target)
    ids, last = named.ids, num_layers(target.model)
    is_list = isinstance(ids, list) and 0 < len(ids) == len(set(map(repr, ids))) <= _MOST_LAYERS
    if is_list and all(type(layer) is int and layer >= 0 for layer in ids):
        shift = _shift(named, ids, layout, target)
        if max(ids) + shift <= last:
            if max(ids) + shift == last:
                last_layer(target.model)
            return tuple(layer + shift for layer in ids)
    raise SpecvizError(
        f"{named.field} in its config.json must name different layers of the target, which has {last} (got {ids!r:.40})"
    )


def _shift(named: NamedLayers, ids: list[int], layout: Layout, target: LoadedModel) -> int:
    """What to add to the ids: 0 where each is the layer before which a state stands, 1 where it is the one behind.

    `target_layer_ids` is counted behind, everything else outside `eagle_config` before: vLLM's eagle3_utils.py
    (get_eagle3_aux_layers_from_config), DeepSpec's modeling/eagle3/common.py; nobody has written down how
    `feature_layers` is. Within `eagle_config` SGLang counts behind (models/llama.py, set_eagle3_layers_to_capture), but
    before where the ids reach the number of layers (models/gpt_oss.py), or where the first is not 1 and the target is
    DeepSeek's (models/deepseek_v2.py). A first id of 2 is taken for the paper's own, before: pull request 25454.
    """
    if named.field in _BEHIND:
        return 1
    if not named.is_inner:
        is_papers = not layout.of_speculators and [layer + 1 for layer in ids] == _papers(
            num_layers(target.model)
        )
        return int(is_papers)  # either way of counting: files of both kinds are about
    kind = target.model.config.get_text_config(decoder=True).model_type
    is_before = (
        max(ids) == num_layers(target.model) or ids[0] == 2 or (kind in _BY_FIRST and ids[0] != 1)
    )
    return int(not is_before)
