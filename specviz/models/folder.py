"""ModelFolder: the configuration, weights and tokenizer of one model's folder.

Accepts models that continue a text, keep plain attention caches and have safetensors; runs no code of a model. Every
error is a SpecvizError that names the model and says what to do.
"""

import copy
import errno
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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
from specviz.models import catalog, quantisation
from specviz.models.files.config_values import check_values
from specviz.models.files.draft_formats import format_of
from specviz.models.files.hub import check_files, weight_files
from specviz.models.files.meta_build import build_without_numbers
from specviz.models.files.small_files import check_small_files, small_files
from specviz.models.files.trial import check_by_trial
from specviz.models.proofs import proof_path
from specviz.models.tokens import check_tokenizer, no_panic

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
    getattr(
        cache_utils, "DummyLayer", DynamicLayer
    ),  # of a layer that reads the keys and values of an earlier one
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
_MADE_UP, _SPARE = 2, 2**26
"""A model may have so many times the numbers that its files hold, and so many more: what lacks is refused by name."""
_PACKED = 16
"""So many weights may lie in one number of a quantised file."""
_WRITERS = ("self_attn.o_proj", "mlp.down_proj")  # through which a Llama layer adds to its input
_WITH_HEADS = (
    "which specviz does not run: take a draft model or a head of another format in its place",
    "not a model of its own: choose the method {0} with it as the heads, or write {0}: before its name for `align`",
)
"""What to do with draft heads that are named as a model: with those that no method runs, and with others."""
_CONFIG = "has a config.json that cannot be used"
_PADDING = "Padding_idx must be within num_embeddings"  # torch's words
_LONGEST = 300  # characters of a library's words
_OFFLINE = {"local_files_only": True}
_NO_CODE = {**_OFFLINE, "trust_remote_code": False}

Result = TypeVar("Result")
Room = Mapping[torch.device, int | None]
"""Device of a model -> the bytes that are free there; None: no limit is known."""


class ModelFolder:
    """Reads one folder. name: what errors call the model; one that is not the catalogue's is tried before it is read.
    Raises SpecvizError for a folder that cannot be loaded."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name, self._needed = folder, name, 0
        self._explain(lambda: check_small_files(folder, name))
        if held := format_of(folder):
            raise SpecvizError(
                f"{name} is {held.name}, {_WITH_HEADS[bool(held.method)].format(held.method)}"
            )
        check_files(folder, name)
        self._values = self._checked_values()
        self._is_foreign = not catalog.is_known(name)
        if self._is_foreign:
            self._explain(lambda: check_by_trial(folder, name))

    def _checked_values(self) -> Mapping[str, object]:
        """What config.json holds. SpecvizError for a kind that transformers does not know, and for impossible sizes."""
        values, _ = self._explain(
            lambda: PreTrainedConfig.get_config_dict(self._folder, **_OFFLINE), _CONFIG
        )
        if not isinstance(values, Mapping):
            raise SpecvizError(
                f"{self._name} {_CONFIG}: it must hold an object (got {type(values).__name__})"
            )
        kind = values.get("model_type")
        if kind not in CONFIG_MAPPING and "auto_map" in values:
            raise SpecvizError(f"{self._name} needs its own program code, which specviz never runs")
        if kind not in CONFIG_MAPPING:
            raise SpecvizError(
                f"{self._name} is of the kind {kind!r}, which this transformers does not know; upgrade transformers"
            )
        self._explain(lambda: check_values(values, self._name), _CONFIG)
        return values

    def config(self) -> PreTrainedConfig:
        """The configuration; SpecvizError for a kind of model that specviz cannot run."""
        quantisation.check_checkpoint(self._values, self._name, self._folder)
        config = self._explain(
            lambda: AutoConfig.from_pretrained(self._folder, **_NO_CODE), _CONFIG
        )
        check_window(config, self._name)
        check_kind(config, _class_for(config), self._name)
        return config

    def num_parameters(self) -> int:
        return self._explain(
            lambda: quantisation.num_parameters(weight_files(self._folder, self._name))
        )

    def needed_bytes(self, dtype: torch.dtype, bits: str | None = None) -> int:
        """What the weights will take in memory, from the headers of their files."""
        files = weight_files(self._folder, self._name)
        self._needed = self._explain(lambda: quantisation.needed_bytes(files, dtype, bits))
        return self._needed

    def model(
        self, config: PreTrainedConfig, dtype: torch.dtype, room: Room, bits: str | None = None
    ) -> PreTrainedModel:
        """The model in eval mode, on its device or spread over several. bits: see quantisation.BITS."""
        options = (
            {} if bits is None else {"quantization_config": self._quantisation(config, dtype, bits)}
        )
        held = getattr(config, "quantization_config", None)
        if isinstance(held, dict) and held.get("load_in_8bit"):
            held["llm_int8_threshold"] = _THRESHOLD
        options |= self._placement(room, by_map=bool(options) or held is not None)
        options |= {
            "config": config,
            "dtype": dtype,
            "use_safetensors": True,
            "output_loading_info": True,
        }
        options |= {"ignore_mismatched_sizes": True}  # they are refused below, by name
        auto = (
            AutoModelForCausalLM
            if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
            else AutoModelForImageTextToText
        )
        if self._is_foreign:
            self._check_sizes(config, auto)
            self._check_generation(config)
        model, report = self._explain(
            lambda: auto.from_pretrained(self._folder, **options, **_NO_CODE)
        )
        if differing := sorted(report["mismatched_keys"]):
            key, held, wanted = differing[0]
            shapes = [" x ".join(f"{size:,}" for size in shape) for shape in (held, wanted)]
            raise SpecvizError(
                f"{self._name} holds {key} as {shapes[0]}; by its config.json it is {shapes[1]}"
            )
        if lacking := sorted(
            report["missing_keys"]
        ):  # transformers fills them with random numbers and goes on
            raise SpecvizError(
                f"{self._name} lacks {len(lacking)} of its weights, {lacking[0]} among them"
            )
        if bits is not None and not quantisation.is_quantised(model):
            raise SpecvizError(
                f"nothing in {self._name} can be held in {bits}; name it without :{bits}"
            )
        model.eval().requires_grad_(False)
        return (
            model
            if "device_map" in options
            else self._explain(lambda: _placed(model, next(iter(room))))
        )

    def _check_sizes(self, config: PreTrainedConfig, auto: type) -> None:
        """SpecvizError where the configuration is of a model so much larger than its files that making up what they
        lack would take the memory."""
        held = self.num_parameters()
        model = self._explain(
            lambda: build_without_numbers(lambda: auto.from_config(copy.deepcopy(config))), _CONFIG
        )
        size = sum(each.numel() for each in (*model.parameters(), *model.buffers()))
        packed = _PACKED if getattr(config, "quantization_config", None) is not None else 1
        if size > _MADE_UP * packed * held + _SPARE:
            raise SpecvizError(
                f"{self._name} has {held:,} numbers in its files; its config.json asks for {size:,}"
            )

    def _quantisation(
        self, config: PreTrainedConfig, dtype: torch.dtype, bits: str
    ) -> QuantizationConfigMixin:
        """The setting with which transformers reduces the weights to so many bits while it reads them."""
        if getattr(config, "quantization_config", None) is not None:
            raise SpecvizError(f"{self._name} holds fewer bits already; name it without :{bits}")
        if quantisation.library_for(bits, self._name) == "torchao":
            return self._explain(_torchao_config)
        if bits == "int8":
            return self._explain(
                lambda: BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=_THRESHOLD)
            )
        options = {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_compute_dtype": dtype,
        }
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
        return {
            "device_map": "auto",
            "max_memory": {device.index: left for device, left in room.items()},
        }

    def tokenizer(self) -> PreTrainedTokenizerBase:
        words = "has a tokenizer that cannot be read"
        self._explain(lambda: check_tokenizer(self._folder / "tokenizer.json", self._name), words)
        tokenizer = self._explain(
            lambda: AutoTokenizer.from_pretrained(self._folder, **_NO_CODE), words
        )
        if not isinstance(length := tokenizer.model_max_length, int | float):
            file = "a damaged tokenizer_config.json"
            raise SpecvizError(
                f"{self._name} has {file}: model_max_length must be a number (got {length!r:.60})"
            )
        return tokenizer

    def generation(self, config: PreTrainedConfig) -> GenerationConfig | None:
        """The folder's generation settings; the configuration has them where no file does. None for damaged ones."""
        try:
            return self._own_generation(config)
        except Exception:  # whatever a stranger's file makes transformers raise
            return None

    def _check_generation(self, config: PreTrainedConfig) -> None:
        """SpecvizError for settings at which transformers would stop; a file that it cannot read it leaves out."""

        def read() -> None:
            with suppress(OSError):
                self._own_generation(config)

        self._explain(read, "has a generation_config.json that cannot be used")

    def _own_generation(self, config: PreTrainedConfig) -> GenerationConfig:
        if not (self._folder / "generation_config.json").exists():
            return GenerationConfig.from_model_config(config)
        return GenerationConfig.from_pretrained(self._folder, **_OFFLINE)

    def eos_ids(self, config: PreTrainedConfig) -> frozenset[int]:
        """`eos_ids` of this folder, without reading the weights."""
        return eos_ids(self.generation(config), config)

    def proof_path(
        self,
        homes: Iterable[torch.device],
        dtype: torch.dtype,
        bits: str | None = None,
        times: int = 1,
    ) -> Path:
        """Where the proof of this model is kept, for these devices, this number format and `times` as many layers."""
        files = [self._folder / "config.json", *weight_files(self._folder, self._name)]
        first, *others = homes
        return proof_path(files, first, " ".join(map(str, (dtype, bits, times, *others))))

    def _explain(self, action: Callable[[], Result], words: str = "could not be loaded") -> Result:
        """words: what is wrong with the folder where the action fails."""
        try:
            with no_panic(f"{self._name} {words}: "):
                return action()
        except SpecvizError:
            raise
        except (
            Exception
        ) as error:  # whatever a stranger's files make transformers, torch or tokenizers raise
            raise SpecvizError(f"{self._name} {words}: {self._reason(error)}") from error

    def _reason(self, error: Exception) -> str:
        if is_out_of_memory(error):
            size = f"; its weights take {self._needed / GB:.2g} GB" if self._needed else ""
            return (
                f"there is not enough memory for it{size}; choose a smaller model, or {FEWER_BITS}"
            )
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return "the disk is full"
        if isinstance(error, SafetensorError):
            return "a weight file is damaged or incomplete; fetch it again"
        if isinstance(error, json.JSONDecodeError) and (file := self._damaged_file()):
            return f"{file} is damaged ({error})"
        if _PADDING in str(error):
            values = self._values.get("text_config") or self._values
            token, size = (
                str(values.get(key, "the default")) for key in ("pad_token_id", "vocab_size")
            )
            return f"pad_token_id must be below vocab_size (got {token:.60} and {size:.60})"
        words = " ".join(str(error).replace(str(self._folder), self._name).split())
        return f"{words:.{_LONGEST}}" or type(error).__name__

    def _damaged_file(self) -> str:
        """The first of the folder's JSON files that holds no JSON; "" where all do."""
        for file in small_files(self._folder):
            if file.suffix != ".json":
                continue
            try:
                json.loads(file.read_bytes())
            except (OSError, ValueError, RecursionError):
                return file.name
        return ""


def _torchao_config() -> TorchAoConfig:
    from torchao.quantization import Int8WeightOnlyConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


def _placed(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """The model on the device, all in memory: a mapped file that is cut later would end the process."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device, copy=True)
    return model.to(device)


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
        raise SpecvizError(
            f"{name} is an encoder-decoder model ({kind}); specviz needs a decoder-only model"
        )
    if model_class is None:
        raise SpecvizError(
            f"{name} is of the kind {kind!r}: this transformers makes no model that writes text of it"
        )
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


def check_window(config: PreTrainedConfig, name: str) -> None:
    """SpecvizError for layers of sliding attention without the size of the window."""
    text_config = config.get_text_config(decoder=True)
    window = getattr(text_config, "sliding_window", None)
    if "sliding_attention" in (getattr(text_config, "layer_types", None) or ()) and not (
        type(window) is int and window > 0
    ):
        raise SpecvizError(
            f"{name} has layers of sliding attention: sliding_window in its config.json must be a whole number from 1 "
            f"(got {window!r:.60})"
        )


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
        found = ", ".join(sorted(kinds & _CONVOLUTIONS))
        return f"has layers that keep the inputs of a convolution ({found}), {undone}"
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
    return min(known, default=_limit_of(tokenizer))


def _limit_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """What a tokenizer says that its model reads, which may be any value of a file; at most _UNKNOWN_LIMIT."""
    length = tokenizer.model_max_length
    return (
        int(min(length, _UNKNOWN_LIMIT))
        if type(length) in (int, float) and length >= 1
        else _UNKNOWN_LIMIT
    )


def limit_words(config: PreTrainedConfig) -> str:
    """Why a model reads fewer tokens than its configuration allows; "" where it reads all. Beyond a certain length
    LongRoPE applies the long factors to every token of a forward call, while cached keys keep the short ones: the odds
    of a draft across that length would differ from the target's own."""
    switches = _switches(config)
    return (
        f"it reads at most {min(switches):,} tokens here, as LongRoPE uses other factors beyond"
        if switches
        else ""
    )


def _switches(config: PreTrainedConfig) -> list[int]:
    """The lengths beyond which LongRoPE takes other factors; each kind of layer may have its own settings."""
    text_config = config.get_text_config(decoder=True)
    settings = getattr(text_config, "rope_parameters", None) or {}
    each = [settings, *(own for own in settings.values() if isinstance(own, Mapping))]
    lengths = [
        own.get("original_max_position_embeddings")
        for own in each
        if own.get("rope_type") == "longrope"
    ]
    return [length for length in lengths if length and length < text_config.max_position_embeddings]


def eos_ids(generation: GenerationConfig | None, config: PreTrainedConfig) -> frozenset[int]:
    """End tokens by the generation settings, or by the configuration where those say nothing."""
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = getattr(config.get_text_config(decoder=True), "eos_token_id", None)
    return frozenset(
        token for token in (ids if isinstance(ids, list) else [ids]) if type(token) is int
    )
