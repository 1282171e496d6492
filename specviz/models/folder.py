"""ModelFolder: the configuration, weights and tokenizer of one model's folder.

Accepts models that continue a text, keep plain attention caches and have safetensors; runs no code of a model. Every
error is a SpecvizError that names the model and says what to do.
"""

import copy
import errno
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    BitsAndBytesConfig,
    DynamicCache,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TorchAoConfig,
    cache_utils,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils.quantization_config import QuantizationConfigMixin

from specviz.decoding.device import is_out_of_memory
from specviz.errors import SpecvizError
from specviz.models import quantisation
from specviz.models.files.draft_formats import format_of
from specviz.models.files.hub import check_files, weight_files
from specviz.models.proofs import proof_path
from specviz.models.tokens import check_tokenizer

FEWER_BITS = "name it with :int8 or :int4 at the end"
GB = 1e9
_THRESHOLD = 0.0  # bitsandbytes' int8: with another one a row's numbers depend on the rows read together with it
_OTHER_ATTENTION = {"chunked_attention", "indexed_attention"}
_CONVOLUTIONS = {"conv", "hybrid", "hybrid_sliding"}
_STATES = {"linear_attention", "mamba", "mamba2", "recurrent"}
_LAYER_KINDS = {"full_attention", "sliding_attention"}
_CACHE_LAYERS = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    getattr(cache_utils, "DummyLayer", DynamicLayer),  # of a layer that reads the keys and values of an earlier one
)
_LIMIT_NAMES = (
    "max_position_embeddings",
    "max_target_positions",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
)
_UNKNOWN_LIMIT = 2048
_WRITES_TEXT = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
MOST_LAYERS, MOST_NUMBER = 1_024, 10**12
_WRITERS = ("self_attn.o_proj", "mlp.down_proj")  # through which a Llama layer adds to its input
_WITH_HEADS = (
    "which specviz does not run: take a draft model or a head of another format in its place",
    "not a model of its own: choose the method {0} with it as the heads, or write {0}: before its name for `align`",
)
"""What to do with draft heads that are named as a model: with those that no method runs, and with others."""
_OFFLINE = {"local_files_only": True}
_NO_CODE = {**_OFFLINE, "trust_remote_code": False}

Result = TypeVar("Result")
Room = Mapping[torch.device, int | None]
"""Device of a model -> the bytes that are free there; None: no limit is known."""


class ModelFolder:
    """Reads one folder. name: what errors call the model. Raises SpecvizError for a folder that cannot be loaded."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name, self._needed = folder, name, 0
        if held := format_of(folder):
            raise SpecvizError(f"{name} is {held.name}, {_WITH_HEADS[bool(held.method)].format(held.method)}")
        check_files(folder, name)

    def config(self) -> PreTrainedConfig:
        """The configuration; SpecvizError for a kind of model that specviz cannot run."""
        values, _ = self._explain(lambda: PreTrainedConfig.get_config_dict(self._folder, **_OFFLINE))
        kind = values.get("model_type")
        if kind not in CONFIG_MAPPING and "auto_map" in values:
            raise SpecvizError(f"{self._name} needs its own program code, which specviz never runs")
        if kind not in CONFIG_MAPPING:
            raise SpecvizError(
                f"{self._name} is of the kind {kind!r}, which this transformers does not know; upgrade transformers"
            )
        _check_values(values, self._name)
        _check_types(values, self._name)
        quantisation.check_checkpoint(values, self._name, self._folder)
        config = self._explain(lambda: AutoConfig.from_pretrained(self._folder, **_NO_CODE))
        check_kind(config, _class_for(config), self._name)
        return config

    def num_parameters(self) -> int:
        return self._explain(lambda: quantisation.num_parameters(weight_files(self._folder, self._name)))

    def needed_bytes(self, dtype: torch.dtype, bits: str | None = None) -> int:
        """What the weights will take in memory, from the headers of their files."""
        files = weight_files(self._folder, self._name)
        self._needed = self._explain(lambda: quantisation.needed_bytes(files, dtype, bits))
        return self._needed

    def model(
        self, config: PreTrainedConfig, dtype: torch.dtype, room: Room, bits: str | None = None
    ) -> PreTrainedModel:
        """The model in eval mode, on its device or spread over several. bits: see quantisation.BITS."""
        options = {} if bits is None else {"quantization_config": self._quantisation(config, dtype, bits)}
        held = getattr(config, "quantization_config", None)
        if isinstance(held, dict) and held.get("load_in_8bit"):
            held["llm_int8_threshold"] = _THRESHOLD
        options |= self._placement(room, by_map=bool(options) or held is not None)
        options |= {"config": config, "dtype": dtype, "use_safetensors": True, "output_loading_info": True}
        auto = AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForImageTextToText
        model, report = self._explain(lambda: auto.from_pretrained(self._folder, **options, **_NO_CODE))
        lacking = sorted([*report["missing_keys"], *(item[0] for item in report["mismatched_keys"])])
        if lacking:  # transformers fills them with random numbers and goes on
            raise SpecvizError(f"{self._name} lacks {len(lacking)} of its weights, {lacking[0]} among them")
        if bits is not None and not quantisation.is_quantised(model):
            raise SpecvizError(f"nothing in {self._name} can be held in {bits}; name it without :{bits}")
        model.eval().requires_grad_(False)
        return model if "device_map" in options else self._explain(lambda: _placed(model, next(iter(room))))

    def _quantisation(self, config: PreTrainedConfig, dtype: torch.dtype, bits: str) -> QuantizationConfigMixin:
        """The setting with which transformers reduces the weights to so many bits while it reads them."""
        if getattr(config, "quantization_config", None) is not None:
            raise SpecvizError(f"{self._name} holds fewer bits already; name it without :{bits}")
        if quantisation.library_for(bits, self._name) == "torchao":
            return self._explain(_torchao_config)
        if bits == "int8":
            return self._explain(lambda: BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=_THRESHOLD))
        options = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": dtype}
        return self._explain(lambda: BitsAndBytesConfig(**options))

    def _placement(self, room: Room, *, by_map: bool) -> dict[str, object]:
        """The options of from_pretrained that place the weights; {} where the model is moved afterwards."""
        if len(room) == 1:
            return {"device_map": {"": next(iter(room))}} if by_map else {}
        if not quantisation.is_installed("accelerate"):
            raise SpecvizError(
                f"{self._name} is too large for one GPU, and spreading it over {len(room)} needs accelerate: run "
                "`pip install accelerate`, or choose a smaller model"
            )
        return {"device_map": "auto", "max_memory": {device.index: left for device, left in room.items()}}

    def tokenizer(self) -> PreTrainedTokenizerBase:
        self._explain(lambda: check_tokenizer(self._folder / "tokenizer.json", self._name))
        return self._explain(lambda: AutoTokenizer.from_pretrained(self._folder, **_NO_CODE))

    def generation(self, config: PreTrainedConfig) -> GenerationConfig | None:
        """The folder's generation settings; the configuration has them where no file does. None for damaged ones."""
        try:
            if not (self._folder / "generation_config.json").exists():
                return GenerationConfig.from_model_config(config)
            return GenerationConfig.from_pretrained(self._folder, **_OFFLINE)
        except Exception:  # whatever a stranger's file makes transformers raise
            return None

    def eos_ids(self, config: PreTrainedConfig) -> frozenset[int]:
        """`eos_ids` of this folder, without reading the weights."""
        return eos_ids(self.generation(config), config)

    def proof_path(
        self, homes: Iterable[torch.device], dtype: torch.dtype, bits: str | None = None, times: int = 1
    ) -> Path:
        """Where the proof of this model is kept, for these devices, this number format and `times` as many layers."""
        files = [self._folder / "config.json", *weight_files(self._folder, self._name)]
        first, *others = homes
        return proof_path(files, first, " ".join(map(str, (dtype, bits, times, *others))))

    def _explain(self, action: Callable[[], Result]) -> Result:
        try:
            return action()
        except SpecvizError:
            raise
        except Exception as error:  # whatever a stranger's files make transformers, torch or tokenizers raise
            raise SpecvizError(f"{self._name} could not be loaded: {self._reason(error)}") from error

    def _reason(self, error: Exception) -> str:
        if is_out_of_memory(error):
            size = f"; its weights take {self._needed / GB:.2g} GB" if self._needed else ""
            return f"there is not enough memory for it{size}; choose a smaller model, or {FEWER_BITS}"
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return "the disk is full"
        if isinstance(error, SafetensorError):
            return "a weight file is damaged or incomplete; fetch it again"
        lines = str(error).replace(str(self._folder), self._name).strip().splitlines()
        return lines[0] if lines else type(error).__name__


def _torchao_config() -> TorchAoConfig:
    from torchao.quantization import Int8WeightOnlyConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


def _placed(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """The model on the device, all in memory: a mapped file that is cut later would end the process."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device, copy=True)
    return model.to(device)


def _check_values(values: Mapping[str, object], name: str) -> None:
    """SpecvizError for numbers that would take forever, and for program code that transformers would fetch."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            _check_values(value, name)
        elif "layers" in key and type(value) is int and value > MOST_LAYERS:
            raise SpecvizError(f"{name} must have at most {MOST_LAYERS:,} layers ({key} is {value:,})")
        elif type(value) is int and abs(value) > MOST_NUMBER and key != "model_max_length":
            raise SpecvizError(f"{name} has an impossible number in its config.json: {key!r:.60} is {value:.3g}")
        elif key.endswith("_implementation") and "/" in str(value):
            raise SpecvizError(f"{name} needs program code of others ({value!r:.80}), which specviz never fetches")


def _check_types(values: Mapping[str, object], name: str) -> None:
    """SpecvizError for values that are looked at here and are not what transformers writes."""
    kinds, shared = values.get("architectures"), values.get("num_kv_shared_layers")
    if kinds is not None and not (isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)):
        raise SpecvizError(f"{name} has a damaged config.json: architectures must be names (got {kinds!r:.60})")
    if shared is not None and type(shared) is not int:
        raise SpecvizError(f"{name} has a damaged config.json: num_kv_shared_layers must be whole (got {shared!r:.60})")
    for inner in values.values():
        if isinstance(inner, Mapping):
            _check_types(inner, name)


def deepen(model: PreTrainedModel, times: int) -> None:
    """Gives the model `times` as many layers: behind its own, copies of them whose both branches give zero. Every logit
    stays the same to the last bit, as x + 0 = x; reading and multiplying costs what it costs in a model so deep."""
    config, layers = model.config, model.get_decoder().layers
    own = list(layers)
    for index in range(len(own), times * len(own)):
        layer = copy.deepcopy(own[index % len(own)])
        layer.self_attn.layer_idx = index
        for name in _WRITERS:
            for parameter in layer.get_submodule(name).parameters():
                nn.init.zeros_(parameter)
        layers.append(layer)
    if (kinds := getattr(config, "layer_types", None)) is not None:
        config.layer_types = kinds * times
    config.num_hidden_layers = len(layers)


def _class_for(config: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """What runs such a model: it writes text after a text, or after pictures too, of which it is given none here."""
    mappings = (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING)
    return next((mapping[type(config)] for mapping in mappings if type(config) in mapping), None)


def check_kind(config: PreTrainedConfig, model_class: type | None, name: str) -> None:
    """SpecvizError for a model that does not continue a text, or whose cache cannot be cut back."""
    kind, architectures = config.model_type, config.architectures or []
    if config.is_encoder_decoder:
        raise SpecvizError(f"{name} is an encoder-decoder model ({kind}); specviz needs a decoder-only model")
    if model_class is None:
        raise SpecvizError(f"{name} is of the kind {kind!r}: this transformers makes no model that writes text of it")
    if any(item.endswith("ForBlockDiffusion") for item in architectures):
        raise SpecvizError(
            f"{name} ({kind}) writes whole blocks by diffusion; specviz needs one that writes token by token"
        )
    writes = (item == model_class.__name__ or item.endswith(_WRITES_TEXT) for item in architectures)
    if architectures and not any(writes):
        raise SpecvizError(f"{name} does not generate text ({', '.join(architectures)})")
    if why := _why_unfit(config.get_text_config(decoder=True), model_class):
        advice = "choose a model with full or sliding attention in every layer"
        raise SpecvizError(f"{name} ({kind}) {why}; {advice}")


def _why_unfit(config: PreTrainedConfig, model_class: type) -> str:
    """Why rows of a model's cache cannot be dropped again, as a clause; "" where they can."""
    if not hasattr(config, "num_hidden_layers"):
        return "is no single stack of layers: its configuration names no number of them"
    kinds = set(getattr(config, "layer_types", None) or ())
    shared = getattr(config, "num_kv_shared_layers", 0) or 0
    if shared and shared >= config.num_hidden_layers:
        return "is an assistant that reads the keys and values of another model, for which specviz has no method yet"
    if other := _OTHER_ATTENTION & kinds:
        return f"has {other.pop().replace('_', ' ')}, which specviz does not support"
    if any("compressed" in each for each in kinds):
        return "keeps several tokens in one row of its cache, which cannot be taken apart when one of them is rejected"
    undone = "which cannot be undone when draft tokens are rejected"
    if getattr(model_class, "_is_stateful", False) or kinds & _STATES:
        return f"is a recurrent or hybrid model: it keeps a state, {undone}"
    if kinds & _CONVOLUTIONS:
        return (
            f"has layers that keep the inputs of a convolution ({', '.join(sorted(kinds & _CONVOLUTIONS))}), {undone}"
        )
    if not (kinds <= _LAYER_KINDS and _has_plain_cache(config)):
        return f"keeps a cache of a kind that specviz does not know (layers: {', '.join(sorted(kinds)) or 'all alike'})"
    return ""


def _has_plain_cache(config: PreTrainedConfig) -> bool:
    """Whether every layer keeps one row of keys and values per token, and nothing else."""
    try:
        return all(type(layer) in _CACHE_LAYERS for layer in DynamicCache(config=config).layers)
    except (KeyError, ValueError):  # a kind of layer that transformers keeps no plain cache for
        return False


def context_limit(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens the model reads at once; with LongRoPE, those before its long factors apply."""
    own = (getattr(config.get_text_config(decoder=True), name, None) for name in _LIMIT_NAMES)
    known = [limit for limit in own if isinstance(limit, int) and limit > 0][:1] + _switches(config)
    return min(known, default=min(int(tokenizer.model_max_length), _UNKNOWN_LIMIT))


def limit_words(config: PreTrainedConfig) -> str:
    """Why a model reads fewer tokens than its configuration allows; "" where it reads all. Beyond a certain length
    LongRoPE applies the long factors to every token of a forward call, while cached keys keep the short ones: the odds
    of a draft across that length would differ from the target's own."""
    switches = _switches(config)
    return f"it reads at most {min(switches):,} tokens here, as LongRoPE uses other factors beyond" if switches else ""


def _switches(config: PreTrainedConfig) -> list[int]:
    """The lengths beyond which LongRoPE takes other factors; each kind of layer may have its own settings."""
    text_config = config.get_text_config(decoder=True)
    settings = getattr(text_config, "rope_parameters", None) or {}
    each = [settings, *(own for own in settings.values() if isinstance(own, Mapping))]
    lengths = [own.get("original_max_position_embeddings") for own in each if own.get("rope_type") == "longrope"]
    return [length for length in lengths if length and length < text_config.max_position_embeddings]


def eos_ids(generation: GenerationConfig | None, config: PreTrainedConfig) -> frozenset[int]:
    """End tokens by the generation settings, or by the configuration where those say nothing."""
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = getattr(config.get_text_config(decoder=True), "eos_token_id", None)
    return frozenset(token for token in (ids if isinstance(ids, list) else [ids]) if type(token) is int)
