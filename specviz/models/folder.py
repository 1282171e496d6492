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
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)
from transformers.utils.quantization_config import QuantizationConfigMixin

from specviz.decoding.device import is_out_of_memory
from specviz.errors import SpecvizError
from specviz.models import catalog, quantisation
from specviz.models.files.checkpoint import read_named
from specviz.models.files.config_values import check_values
from specviz.models.files.draft_formats import format_of
from specviz.models.files.hub import check_files, files_with, weight_files
from specviz.models.files.meta_build import build_without_numbers
from specviz.models.files.small_files import check_small_files, small_files
from specviz.models.files.trial import check_by_trial
from specviz.models.proofs import proof_path
from specviz.models.tokens import check_tokenizer, no_panic

FEWER_BITS = "name it with :int8 or :int4 at the end"
GB = 1e9
_THRESHOLD = 0.0  # bitsandbytes' int8: with another one a row's numbers depend on the rows read together with it
_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
_WITH_STATE = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}
_WITHOUT_ROWS = {"moe", "mlp"}
_CACHE_LAYERS = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    # for a layer that reads the keys and values of an earlier one
    getattr(cache_utils, "DummyLayer", DynamicLayer),
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
_MADE_UP = 2
_SPARE = 2**26
"""A model may have _MADE_UP times the numbers that its files hold, and _SPARE more. Missing weights are refused later,
by name."""
_PACKED = 16
"""The most weights that one number of a quantised file may hold."""
_WRITERS = ("self_attn.o_proj", "mlp.down_proj")  # a Llama layer adds their outputs to its input
_WITH_HEADS = (
    "which specviz does not run: take a draft model or a head of another format in its place",
    "not a model of its own: choose the method {0} with it as the heads, or write {0}: before its name for `align`",
)
"""Advice for draft heads that are named as a model: for heads that no method runs, and for others."""
_CONFIG = "has a config.json that cannot be used"
_PADDING = "Padding_idx must be within num_embeddings"  # torch's words
_LONGEST = 300  # characters of a library's words
_OFFLINE = {"local_files_only": True}
_NO_CODE = {**_OFFLINE, "trust_remote_code": False}

Result = TypeVar("Result")
Room = Mapping[torch.device, int | None]
"""The devices of a model -> the bytes that are free there; None: no limit is known."""


class ModelFolder:
    """A reader of one model's folder. Errors call the model by `name`.

    A model that is not the catalogue's is loaded in a trial process first. Raises SpecvizError for a folder that cannot
    be loaded.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._needed = 0
        self.unused: tuple[str, ...] = ()
        """The names of tensors in the files that the loaded model has no place for."""
        self._explain(lambda: check_small_files(folder, name))
        if (heads := format_of(folder)) is not None:
            advice = _WITH_HEADS[bool(heads.method)].format(heads.method)
            raise SpecvizError(f"{name} is {heads.name}, {advice}")
        check_files(folder, name)
        self._values = self._checked_values()
        self._is_foreign = not catalog.is_known(name)
        if self._is_foreign:
            self._explain(lambda: check_by_trial(folder, name))

    def _checked_values(self) -> Mapping[str, object]:
        """The values of config.json. Raises SpecvizError for an unknown kind of model, and for impossible sizes."""
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

    def config(self, *, is_run: bool = True) -> PreTrainedConfig:
        """The configuration. Raises SpecvizError for a kind of model that specviz cannot run.

        is_run: whether the model's layers will run. Without them, it does not matter how they are stored and cached.
        """
        if is_run:
            quantisation.check_checkpoint(self._values, self._name, self._folder)
        config = self._explain(
            lambda: AutoConfig.from_pretrained(self._folder, **_NO_CODE), _CONFIG
        )
        check_window(config, self._name)
        check_kind(config, _class_for(config), self._name, drops_rows=is_run)
        return config

    def num_parameters(self) -> int:
        return self._explain(
            lambda: quantisation.num_parameters(weight_files(self._folder, self._name))
        )

    def needed_bytes(self, dtype: torch.dtype, bits: str | None = None) -> int:
        """The bytes that the weights will take in memory, from the headers of their files."""
        files = weight_files(self._folder, self._name)
        self._needed = self._explain(lambda: quantisation.needed_bytes(files, dtype, bits))
        return self._needed

    def model(
        self, config: PreTrainedConfig, dtype: torch.dtype, room: Room, bits: str | None = None
    ) -> PreTrainedModel:
        """The model in eval mode, on its device or spread over several. bits: see quantisation.BITS."""
        options: dict[str, object] = {}
        if bits is not None:
            options["quantization_config"] = self._quantisation(config, dtype, bits)
        stored = getattr(config, "quantization_config", None)
        if isinstance(stored, dict) and stored.get("load_in_8bit"):
            stored["llm_int8_threshold"] = _THRESHOLD
        options |= self._placement(room, by_map=bool(options) or stored is not None)
        options |= {
            "config": config,
            "dtype": dtype,
            "use_safetensors": True,
            "output_loading_info": True,
            "ignore_mismatched_sizes": True,  # refused below, by name
        }
        auto = AutoModelForImageTextToText
        if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
            auto = AutoModelForCausalLM
        if self._is_foreign:
            self._check_sizes(config, auto)
            self._check_generation(config)
        model, report = self._explain(
            lambda: auto.from_pretrained(self._folder, **options, **_NO_CODE)
        )
        self._check_report(report)
        self.unused = tuple(sorted(report["unexpected_keys"]))
        if bits is not None and not quantisation.is_quantised(model):
            raise SpecvizError(
                f"nothing in {self._name} can be held in {bits}; name it without :{bits}"
            )
        model.eval().requires_grad_(False)
        if "device_map" in options:
            return model
        return self._explain(lambda: _move_to(model, next(iter(room))))

    def without_layers(
        self, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device
    ) -> PreTrainedModel:
        """The model with no layers: its embedding, final norm and output matrix alone are read from the files.

        Other weight files may be missing.
        """
        config = copy.deepcopy(config)
        text_config = config.get_text_config(decoder=True)
        text_config.layer_types = []
        text_config.num_hidden_layers = 0
        config.quantization_config = None
        kind = _class_for(config)
        bare = self._explain(
            lambda: build_without_numbers(lambda: kind(copy.deepcopy(config))), _CONFIG
        )
        files = files_with(self._folder, self._name, bare.state_dict())
        tensors = self._explain(lambda: read_named(self._folder, files))
        options = {"config": config, "dtype": dtype, "state_dict": tensors}
        options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, report = self._explain(lambda: kind.from_pretrained(None, **options))
        self._check_report(report)
        return model.to(device).eval().requires_grad_(False)

    def _check_report(self, report: Mapping[str, Iterable]) -> None:
        """Raises SpecvizError for weights that are missing or have another shape than the configuration says."""
        differing = sorted(report["mismatched_keys"])
        if differing:
            key, *shapes = differing[0]
            got, expected = (" x ".join(f"{size:,}" for size in shape) for shape in shapes)
            raise SpecvizError(
                f"{self._name} holds {key} as {got}; by its config.json it is {expected}"
            )
        missing = sorted(report["missing_keys"])
        if missing:  # transformers fills them with random numbers and goes on
            raise SpecvizError(
                f"{self._name} lacks {len(missing)} of its weights, {missing[0]} among them"
            )

    def _check_sizes(self, config: PreTrainedConfig, auto: type) -> None:
        """Raises SpecvizError if the configuration's model is far larger than the files.

        To make up the missing weights would take all memory.
        """
        num_stored = self.num_parameters()
        model = self._explain(
            lambda: build_without_numbers(lambda: auto.from_config(copy.deepcopy(config))), _CONFIG
        )
        size = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
        packed = _PACKED if getattr(config, "quantization_config", None) is not None else 1
        if size > _MADE_UP * packed * num_stored + _SPARE:
            raise SpecvizError(
                f"{self._name} has {num_stored:,} numbers in its files; its config.json asks for {size:,}"
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
        length = tokenizer.model_max_length
        if not isinstance(length, int | float):
            raise SpecvizError(
                f"{self._name} has a damaged tokenizer_config.json: model_max_length must be a number "
                f"(got {length!r:.60})"
            )
        return tokenizer

    def generation(self, config: PreTrainedConfig) -> GenerationConfig | None:
        """The folder's generation settings, or the configuration's if there is no file. None for damaged ones."""
        try:
            return self._own_generation(config)
        except Exception:  # whatever a stranger's file makes transformers raise
            return None

    def _check_generation(self, config: PreTrainedConfig) -> None:
        """Raises SpecvizError for settings that make transformers stop. It leaves out a file that it cannot read."""

        def read() -> None:
            with suppress(OSError):
                self._own_generation(config)

        self._explain(read, "has a generation_config.json that cannot be used")

    def _own_generation(self, config: PreTrainedConfig) -> GenerationConfig:
        if not (self._folder / "generation_config.json").exists():
            return GenerationConfig.from_model_config(config)
        return GenerationConfig.from_pretrained(self._folder, **_OFFLINE)

    def eos_ids(self, config: PreTrainedConfig) -> frozenset[int]:
        """The end tokens of this folder's model, without reading the weights."""
        return eos_ids(self.generation(config), config)

    def proof_path(
        self,
        homes: Iterable[torch.device],
        dtype: torch.dtype,
        bits: str | None = None,
        times: int = 1,
    ) -> Path:
        """The file that stores the proof of this model for these devices, this number format and `times` its layers."""
        files = [self._folder / "config.json", *weight_files(self._folder, self._name)]
        first, *others = homes
        variant = " ".join(map(str, (dtype, bits, times, *others)))
        return proof_path(files, first, variant)

    def _explain(self, action: Callable[[], Result], words: str = "could not be loaded") -> Result:
        """Runs the action. Raises SpecvizError if it fails; `words` say what is then wrong with the folder."""
        try:
            with no_panic(f"{self._name} {words}: "):
                return action()
        except SpecvizError:
            raise
        # whatever a stranger's files make transformers, torch or tokenizers raise
        except Exception as error:
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
            token = str(values.get("pad_token_id", "the default"))
            size = str(values.get("vocab_size", "the default"))
            return f"pad_token_id must be below vocab_size (got {token:.60} and {size:.60})"
        words = " ".join(str(error).replace(str(self._folder), self._name).split())
        return f"{words:.{_LONGEST}}" or type(error).__name__

    def _damaged_file(self) -> str:
        """The name of the folder's first JSON file that holds no JSON; "" if all do."""
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


def _move_to(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """Copies the model into the device's memory: to shorten a file that is still mapped would end the process."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device, copy=True)
    return model.to(device)


def deepen(model: PreTrainedModel, times: int) -> None:
    """Gives the model `times` as many layers: after its own come copies of them that add zero.

    Every logit stays the same to the last bit, as x + 0 = x. Reading and multiplying cost as in so deep a model.
    """
    config = model.config
    layers = model.get_decoder().layers
    originals = list(layers)
    for index in range(len(originals), times * len(originals)):
        layer = copy.deepcopy(originals[index % len(originals)])
        layer.self_attn.layer_idx = index
        for name in _WRITERS:
            for parameter in layer.get_submodule(name).parameters():
                nn.init.zeros_(parameter)
        layers.append(layer)
    if (kinds := getattr(config, "layer_types", None)) is not None:
        config.layer_types = kinds * times
    config.num_hidden_layers = len(layers)


def _class_for(config: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """The class that runs such a model. It writes text after a text, or also after pictures, which it never gets."""
    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING):
        if type(config) in mapping:
            return mapping[type(config)]
    return None


def check_kind(
    config: PreTrainedConfig,
    model_class: type | None,
    name: str,
    *,
    drops_rows: bool = True,
) -> None:
    """Raises SpecvizError for a model that does not continue a text, or whose cache cannot be taken back.

    drops_rows: whether that will have to be done.
    """
    kind = config.model_type
    architectures = config.architectures or []
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
    if drops_rows and (why := _why_unfit(config.get_text_config(decoder=True), model_class)):
        advice = "choose a model of another kind"
        raise SpecvizError(f"{name} ({kind}) {why}; {advice}")


def check_window(config: PreTrainedConfig, name: str) -> None:
    """Raises SpecvizError for layers of sliding attention without the size of the window."""
    text_config = config.get_text_config(decoder=True)
    window = getattr(text_config, "sliding_window", None)
    kinds = getattr(text_config, "layer_types", None) or ()
    is_size = type(window) is int and window > 0
    if "sliding_attention" in kinds and not is_size:
        raise SpecvizError(
            f"{name} has layers of sliding attention: sliding_window in its config.json must be a whole number from 1 "
            f"(got {window!r:.60})"
        )


def _why_unfit(config: PreTrainedConfig, model_class: type) -> str:
    """The reason why a model's cache cannot be taken back to an earlier token, as a clause; "" if it can."""
    if not hasattr(config, "num_hidden_layers"):
        return "is no single stack of layers: its configuration names no number of them"
    kinds = set(getattr(config, "layer_types", None) or ())
    shared = getattr(config, "num_kv_shared_layers", 0) or 0
    if shared and shared >= config.num_hidden_layers:
        return "is an assistant that reads the keys and values of another model, for which specviz has no method yet"
    if "indexed_attention" in kinds:
        return "has indexed attention, which specviz does not support"
    if any("compressed" in kind for kind in kinds):
        return "keeps several tokens in one row of its cache, which cannot be taken apart when one of them is rejected"
    if getattr(model_class, "_is_stateful", False) and not kinds & _WITH_STATE:
        return "keeps a state outside transformers' cache, which cannot be undone when draft tokens are rejected"
    if not (kinds <= _ATTENTION | _WITH_STATE | _WITHOUT_ROWS and _has_known_cache(config)):
        names = ", ".join(sorted(kinds)) or "all alike"
        return f"keeps a cache of a kind that specviz does not know (layers: {names})"
    return ""


def _has_known_cache(config: PreTrainedConfig) -> bool:
    """Whether every layer keeps one row of keys and values per token, a state that can be copied, or nothing."""
    try:
        return all(type(layer) in _CACHE_LAYERS for layer in DynamicCache(config=config).layers)
    except (KeyError, ValueError):  # a kind of layer that transformers keeps no plain cache for
        return False


def context_limit(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens that the model reads at once. With LongRoPE only those before its long factors apply."""
    text_config = config.get_text_config(decoder=True)
    limits = _switches(config)
    for name in _LIMIT_NAMES:
        limit = getattr(text_config, name, None)
        if isinstance(limit, int) and limit > 0:
            limits.append(limit)
            break
    return min(limits, default=_limit_of(tokenizer))


def _limit_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens that a tokenizer's file names for its model, but at most _UNKNOWN_LIMIT."""
    length = tokenizer.model_max_length
    if type(length) in (int, float) and length >= 1:
        return int(min(length, _UNKNOWN_LIMIT))
    return _UNKNOWN_LIMIT


def limit_words(config: PreTrainedConfig) -> str:
    """The reason why a model reads fewer tokens than its configuration allows; "" if it reads all.

    Beyond a certain length LongRoPE applies the long factors to every token of a forward call, while cached keys keep
    the short ones. The probabilities of a draft across that length would differ from the target's.
    """
    switches = _switches(config)
    if not switches:
        return ""
    return f"it reads at most {min(switches):,} tokens here, as LongRoPE uses other factors beyond"


def _switches(config: PreTrainedConfig) -> list[int]:
    """The lengths beyond which LongRoPE takes other factors. Each kind of layer may have its own settings."""
    text_config = config.get_text_config(decoder=True)
    settings = getattr(text_config, "rope_parameters", None) or {}
    inner = [value for value in settings.values() if isinstance(value, Mapping)]
    lengths: list[int] = []
    for rope in (settings, *inner):
        length = rope.get("original_max_position_embeddings")
        if rope.get("rope_type") != "longrope" or not length:
            continue
        if length < text_config.max_position_embeddings:
            lengths.append(length)
    return lengths


def eos_ids(generation: GenerationConfig | None, config: PreTrainedConfig) -> frozenset[int]:
    """The end tokens by the generation settings, or by the configuration if those name none."""
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = getattr(config.get_text_config(decoder=True), "eos_token_id", None)
    values = ids if isinstance(ids, list) else [ids]
    return frozenset(token for token in values if type(token) is int)
