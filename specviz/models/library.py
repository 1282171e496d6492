"""Library: loads causal language models by name and keeps as many as fit; check_pair: whether two share a vocabulary.

Only plain attention caches, only safetensors, never a model's own code. Whatever cannot be used is refused by a
SpecvizError that says why and what to do. Thread-safe; a model in use is never evicted. A name may ask for weights in
fewer bits (see quantised.py); a model too large for one GPU is spread over all of them.
"""

from __future__ import annotations

import errno
import gc
import threading
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TorchAoConfig,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils.logging import disable_progress_bar
from transformers.utils.quantization_config import QuantizationConfigMixin

from specviz.decoding.cached_lm import CachedLM
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.models import memory as machine
from specviz.models import quantisation as quantised
from specviz.models.hub import Progress, Source, check_files, fetch, find, num_parameters, unwatched, weight_files
from specviz.models.tokens import TokenText, differing_ids
from specviz.settings import settings
from specviz.trace.file import ModelInfo

Pair = tuple[PreTrainedModel, PreTrainedTokenizerBase]
Result = TypeVar("Result")

_GB = 1e9
_ROWS_APART = 0.0  # bitsandbytes' int8: with another threshold a row's numbers depend on the rows read beside it
_MAKERS: Mapping[tuple[str, str], Callable[[torch.dtype], QuantizationConfigMixin]] = {
    ("torchao", "int8"): lambda dtype: _torchao_int8(),
    ("bitsandbytes", "int8"): lambda dtype: BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=_ROWS_APART),
    ("bitsandbytes", "int4"): lambda dtype: BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
    ),
}
_FEWER_BITS = "name it with :int8 or :int4 at the end"
_PAIR = "pair "  # begins the key of a model that was handed over and cannot be loaded again
_OTHER_ATTENTION = {"chunked_attention", "indexed_attention"}
_LAYER_KINDS = {"full_attention", "sliding_attention"}
_CACHE_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer)
_LIMIT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
_UNKNOWN_LIMIT = 2048
_WRITES_TEXT = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model ready to use: in eval mode, on its device, with its tokenizer and what a trace says about it."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    info: ModelInfo
    text: TokenText

    def cached_lm(self) -> CachedLM:
        """A reader of its own over these weights, with an empty cache."""
        return CachedLM(self.model, self.info.context_limit)

    def memory_words(self, num_tokens: int) -> str:
        """What it takes with a text of so many tokens, for whoever has run out of memory."""
        weights = sum(quantised.bytes_by_device(self.model).values())
        rows = num_tokens * bytes_per_token(self.model)
        return f"{self.name} takes {weights / _GB:.2g} GB and {rows / _GB:.2g} GB more for {num_tokens} tokens"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a load is about: whose files, where they go, in how many bits their weights are held (None: all)."""

    source: Source
    home: torch.device
    bits: str | None = None

    @property
    def name(self) -> str:
        return quantised.joined(self.source.name, self.bits)

    @property
    def key(self) -> str:
        return f"{quantised.joined(self.source.key, self.bits)} on {self.home}"

    @property
    def is_pair(self) -> bool:
        return self.source.key.startswith(_PAIR)


Places = Mapping[torch.device, int | None]
"""The devices that a model goes to, and how many bytes may be taken there."""


def _placing(places: Places, name: str, *, by_map: bool) -> dict[str, object]:
    """How from_pretrained is told where to put the weights; nothing where the model is moved afterwards."""
    if len(places) == 1:
        return {"device_map": {"": next(iter(places))}} if by_map else {}
    if not quantised.is_installed("accelerate"):
        raise SpecvizError(
            f"{name} is too large for one GPU, and spreading it over {len(places)} needs accelerate: run "
            "`pip install accelerate`, or choose a smaller model"
        )
    return {"device_map": "auto", "max_memory": {place.index: left for place, left in places.items()}}


class _Entry:
    """A model that the library holds until it needs the room; one that somebody else still holds comes back."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.sizes = quantised.bytes_by_device(loaded.model)
        self._held: LoadedModel | None = loaded
        self._model = weakref.ref(loaded.model)
        self._rest = (loaded.tokenizer, loaded.info, loaded.text)

    @property
    def is_alive(self) -> bool:
        return self._model() is not None

    def get(self) -> LoadedModel | None:
        model = self._model()
        if model is not None and self._held is None:
            self._held = LoadedModel(self._rest[1].name, model, *self._rest)
        return self._held

    def release(self) -> None:
        """Frees the model unless somebody else holds it."""
        self._held = None
        if self.is_alive:
            gc.collect()
        self.get()


class Library:
    """Loaded models by name, the least recently used evicted first when there is no room for another.

    budget_bytes: what all may take together; None: SPECVIZ_MODEL_MEMORY_GB, or a share of each device. allow_any:
    None takes it from the settings; False: catalogue models only, no downloads.
    """

    def __init__(self, budget_bytes: int | None = None, allow_any: bool | None = None) -> None:
        disable_progress_bar()  # progress goes through on_progress
        self.device, self.draft_device = machine.device(), machine.draft_device()
        self.allow_any = settings().allow_any_model if allow_any is None else allow_any
        self._budget = settings().model_memory_bytes if budget_bytes is None else budget_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # by key, the most recently used last
        self._wanted: dict[str, _Wanted] = {}  # by shown name
        self._loading: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._tables = threading.Lock()
        self._memory = threading.Lock()  # one model at a time is read into memory, while others may be downloading

    def load(self, wanted: str | Pair, on_progress: Progress | None = None, *, as_draft: bool = False) -> LoadedModel:
        """A catalogue name, a folder, a hub id, or a (model, tokenizer) pair, which is known by its name from then on.

        A name may end in :int8 or :int4. on_progress(message, fraction or None) is told what takes long. as_draft: it
        goes where draft models go. Raises SpecvizError.
        """
        if not isinstance(wanted, str):
            return self._add_pair(*wanted)
        task = self._task(wanted, self.draft_device if as_draft else self.device)
        if (loaded := self._find(task.key)) is not None:
            return loaded
        if task.is_pair:
            raise SpecvizError(f"{wanted} is no longer in memory: hand over the model and its tokenizer again")
        with self._tables:
            loading = self._loading[task.key]
        with loading:
            return self._find(task.key) or self._load(task, on_progress or unwatched)

    def _task(self, wanted: str, home: torch.device) -> _Wanted:
        known = None if wanted in catalog.MODELS else self._wanted.get(wanted)
        if known is not None:
            return known if known.is_pair else replace(known, home=home)
        plain, bits = quantised.split(wanted)
        return _Wanted(find(plain, allow_any=self.allow_any), home, bits)

    def shown_name(self, wanted: str) -> str:
        """What may be shown and stored of a name: a folder's base name only. Loads nothing."""
        if wanted in catalog.MODELS or wanted in self._wanted:
            return wanted
        try:
            task = self._task(wanted, self.device)
        except SpecvizError:
            return Path(wanted).name
        with self._tables:
            return self._free_name(task)

    def loaded_names(self) -> list[str]:
        """The models in memory, the most recently used last."""
        with self._tables:
            return [entry.get().name for entry in self._entries.values() if entry.is_alive]

    def _find(self, key: str) -> LoadedModel | None:
        with self._tables:
            entry = self._entries.get(key)
            if entry is None or not entry.is_alive:
                return None
            self._entries.move_to_end(key)
            return entry.get()

    def _load(self, task: _Wanted, report: Progress) -> LoadedModel:
        folder, revision = fetch(task.source, may_download=self.allow_any, on_progress=report)
        files = Files(folder, task.name)
        config = files.config()
        with self._memory:
            report(f"loading {task.name}", None)
            dtype = machine.dtype(task.home)
            needed = files.needed_bytes(dtype, task.bits)
            homes = self._homes(task.home, needed)
            self._make_room(needed, homes, task.name)
            pair = files.model(config, dtype, self._places(homes), task.bits), files.tokenizer()
            loaded = self._add(task, pair, revision)
        report("; ".join(filter(None, (f"loaded {loaded.name}", limit_words(config)))), 1.0)
        return loaded

    def _homes(self, home: torch.device, needed: int) -> tuple[torch.device, ...]:
        """The device that a model goes to, or all GPUs for one that is too large for its own."""
        share = machine.device_share(home) if home.type == "cuda" else None
        return (machine.all_gpus() or (home,)) if share is not None and needed > share else (home,)

    def _places(self, homes: tuple[torch.device, ...]) -> dict[torch.device, int | None]:
        """The bytes that may still be taken of each device; None: as many as there are."""
        return {home: self._left(home) for home in homes}

    def _left(self, home: torch.device) -> int | None:
        share = machine.device_share(home)
        return None if share is None else max(0, share - self._used(home))

    def _add_pair(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        name = Path(model.name_or_path).name or type(model).__name__
        task = _Wanted(Source(name, f"{_PAIR}{id(model)} {id(tokenizer)}"), model.device)
        known = self._find(task.key)
        if known is not None and known.model is model:
            return known
        _check_kind(model.config, type(model), name)
        self._evict(sum(quantised.bytes_by_device(model).values()), (model.device,))
        return self._add(task, (model.eval(), tokenizer), None)

    def _add(self, task: _Wanted, pair: Pair, revision: str | None) -> LoadedModel:
        model, tokenizer = pair
        text = TokenText(tokenizer, _eos_ids(model))
        info = _info(model, text, revision, task)
        with self._tables:
            name = self._free_name(task)
            self._wanted[name] = task
            loaded = LoadedModel(name, model, tokenizer, replace(info, name=name), text)
            self._entries[task.key] = _Entry(loaded)
            self._entries.move_to_end(task.key)
        return loaded

    def _free_name(self, task: _Wanted) -> str:
        """The model's name, with a number where that means another model."""
        number, free = 1, task.name
        while self._is_taken(free, task):
            number += 1
            free = f"{task.name} ({number})"
        return free

    def _is_taken(self, name: str, task: _Wanted) -> bool:
        """A name means one model for good, in memory or not; of those handed over it is free when they are gone."""
        other = self._wanted.get(name)
        if other is None:
            return task.is_pair and catalog.is_known(name)
        if (other.source.key, other.bits) == (task.source.key, task.bits):
            return False
        return not other.is_pair or other.key in self._entries

    def _make_room(self, needed: int, homes: tuple[torch.device, ...], name: str) -> None:
        room = self._evict(needed, homes)
        if room is not None and needed > room:
            used = self._used() if self._budget is not None else sum(map(self._used, homes))
            raise SpecvizError(
                f"{name} needs {needed / _GB:.2g} GB, but models may take {(room + used) / _GB:.2g} GB together and "
                f"those in use take {used / _GB:.2g} GB; choose a smaller model, {_FEWER_BITS}, or raise "
                "SPECVIZ_MODEL_MEMORY_GB"
            )

    def _evict(self, needed: int, homes: tuple[torch.device, ...]) -> int | None:
        """Frees models, the least recently used first, until `needed` bytes fit; returns the bytes that are free."""
        with self._tables:
            for entry in list(self._entries.values()):
                if (room := self._room(homes)) is None or needed <= room:
                    break
                entry.release()
            for key in [key for key, entry in self._entries.items() if not entry.is_alive]:
                del self._entries[key]
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            return self._room(homes)

    def _room(self, homes: tuple[torch.device, ...]) -> int | None:
        if self._budget is not None:
            return self._budget - self._used()
        left = [self._left(home) for home in homes]
        return None if None in left else sum(left)

    def _used(self, home: torch.device | None = None) -> int:
        """The bytes that living models take, on one device or on all."""
        sizes = [entry.sizes for entry in self._entries.values() if entry.is_alive]
        return sum(sum(size.values()) if home is None else size.get(home, 0) for size in sizes)


class Files:
    """A model's folder. Every error of the libraries that read it becomes a SpecvizError that names the model."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name, self._needed = folder, name, 0
        check_files(folder, name)

    def config(self) -> PreTrainedConfig:
        """The configuration of a kind of model that specviz can run; refused otherwise."""
        values, _ = self._explaining(lambda: PreTrainedConfig.get_config_dict(self._folder, local_files_only=True))
        kind = values.get("model_type")
        if kind not in CONFIG_MAPPING:
            if "auto_map" in values:
                raise SpecvizError(f"{self._name} needs program code of its own, which specviz never runs")
            raise SpecvizError(
                f"{self._name} is of the kind {kind!r}, which this version of transformers does not know; upgrade it"
            )
        quantised.check_checkpoint(values, self._name, self._folder)
        config = self._explaining(
            lambda: AutoConfig.from_pretrained(self._folder, local_files_only=True, trust_remote_code=False)
        )
        _check_kind(config, MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None), self._name)
        return config

    def num_parameters(self) -> int:
        return self._explaining(lambda: num_parameters(weight_files(self._folder, self._name)))

    def needed_bytes(self, dtype: torch.dtype, bits: str | None = None) -> int:
        """What the weights will take in memory, from the headers of their files."""
        files = weight_files(self._folder, self._name)
        self._needed = self._explaining(lambda: quantised.needed_bytes(files, dtype, bits))
        return self._needed

    def model(
        self, config: PreTrainedConfig, dtype: torch.dtype, places: Places, bits: str | None = None
    ) -> PreTrainedModel:
        """The model in eval mode, on its device or spread over several. bits: see quantised.BITS."""
        options = {} if bits is None else {"quantization_config": self._made_smaller(config, dtype, bits)}
        held = getattr(config, "quantization_config", None)
        if isinstance(held, dict) and held.get("load_in_8bit"):
            held["llm_int8_threshold"] = _ROWS_APART
        options |= _placing(places, self._name, by_map=bool(options) or held is not None)
        model, report = self._explaining(
            lambda: AutoModelForCausalLM.from_pretrained(
                self._folder,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                **options,
            )
        )
        lacking = sorted([*report["missing_keys"], *(item[0] for item in report["mismatched_keys"])])
        if lacking:  # transformers fills them with random numbers and goes on
            raise SpecvizError(f"{self._name} lacks {len(lacking)} of its weights, {lacking[0]} among them")
        if bits is not None and not quantised.is_quantised(model):
            raise SpecvizError(f"nothing in {self._name} could be held in {bits}; name it without :{bits}")
        model.eval().requires_grad_(False)
        return model if "device_map" in options else self._explaining(lambda: model.to(next(iter(places))))

    def _made_smaller(self, config: PreTrainedConfig, dtype: torch.dtype, bits: str) -> QuantizationConfigMixin:
        if getattr(config, "quantization_config", None) is not None:
            raise SpecvizError(f"{self._name} holds fewer bits already; name it without :{bits}")
        library = quantised.library_for(bits, self._name)
        return self._explaining(lambda: _MAKERS[library, bits](dtype))

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._explaining(
            lambda: AutoTokenizer.from_pretrained(self._folder, local_files_only=True, trust_remote_code=False)
        )

    def _explaining(self, action: Callable[[], Result]) -> Result:
        try:
            return action()
        except SpecvizError:
            raise
        except Exception as error:  # whatever a stranger's files make transformers, torch or tokenizers raise
            raise SpecvizError(f"{self._name} could not be loaded: {self._reason(error)}") from error

    def _reason(self, error: Exception) -> str:
        if machine.is_out_of_memory(error):
            size = f"; its weights take {self._needed / _GB:.2g} GB" if self._needed else ""
            return f"there is not enough memory for it{size}; choose a smaller model, or {_FEWER_BITS}"
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return "the disk is full"
        if isinstance(error, SafetensorError):
            return "a weight file is damaged or incomplete; fetch it again"
        lines = str(error).replace(str(self._folder), self._name).strip().splitlines()
        return lines[0] if lines else type(error).__name__


def _torchao_int8() -> QuantizationConfigMixin:
    from torchao.quantization import Int8WeightOnlyConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


def _check_kind(config: PreTrainedConfig, model_class: type | None, name: str) -> None:
    """Refuses kinds of models that do not continue a text, or cannot take back what they have read."""
    kind, architectures = config.model_type, config.architectures or []
    if config.is_encoder_decoder:
        raise SpecvizError(
            f"{name} is an encoder-decoder model ({kind}); specviz needs a decoder-only model that continues a text"
        )
    if model_class is None or (architectures and not any(item.endswith(_WRITES_TEXT) for item in architectures)):
        raise SpecvizError(f"{name} is no model that continues a text ({', '.join(architectures) or kind})")
    if other := _OTHER_ATTENTION & set(getattr(config.get_text_config(decoder=True), "layer_types", None) or ()):
        raise SpecvizError(
            f"{name} has {other.pop().replace('_', ' ')} ({kind}), which specviz does not compute; choose a model "
            "with full or sliding attention in every layer"
        )
    if getattr(model_class, "_is_stateful", False) or not _has_plain_cache(config):
        raise SpecvizError(
            f"{name} is a recurrent or hybrid model ({kind}): its state cannot be taken back when draft tokens are "
            "rejected; choose a model with full or sliding attention in every layer"
        )


def _has_plain_cache(config: PreTrainedConfig) -> bool:
    """Whether every layer keeps one row of keys and values per token, and nothing else."""
    text_config = config.get_text_config(decoder=True)
    kinds = set(getattr(text_config, "layer_types", None) or ())
    try:
        layers = DynamicCache(config=text_config).layers
    except (KeyError, ValueError):  # a kind of layer that transformers keeps no plain cache for
        return False
    return kinds <= _LAYER_KINDS and all(type(layer) in _CACHE_LAYERS for layer in layers)


def check_pair(target: LoadedModel, draft: LoadedModel) -> None:
    """Refuses a draft whose ids mean other texts than the target's. Padding and special tokens may differ."""
    examples = differing_ids(target.text, draft.text)
    if not examples:
        return
    shown = "; ".join(f"id {token}: {target.text.label(token)!r} and {draft.text.label(token)!r}" for token in examples)
    raise SpecvizError(
        f"{draft.name} cannot draft for {target.name}: their vocabularies differ ({shown}). Choose a draft model of "
        "the target's own family, a method that needs no draft model, or the method cross_vocabulary"
    )


def _info(model: PreTrainedModel, text: TokenText, revision: str | None, task: _Wanted) -> ModelInfo:
    head = model.get_output_embeddings()
    return ModelInfo(
        name=task.name,
        revision=revision,
        num_parameters=model.num_parameters(),
        dtype=quantised.number_format(model, task.bits),
        device=", ".join(sorted(map(str, quantised.bytes_by_device(model)))),
        vocab_size=getattr(head, "out_features", head.weight.shape[0]),  # packed weights have another shape
        context_limit=context_limit(model.config, text.tokenizer),
        tokenizer_sha=text.sha,
    )


def bytes_per_token(model: PreTrainedModel) -> int:
    """What the keys and values of one token take, over all layers."""
    config = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    kept = getattr(config, "num_key_value_heads", None) or heads
    return 2 * config.num_hidden_layers * kept * width * model.dtype.itemsize


def context_limit(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens the model reads at once; of one with LongRoPE those before its other factors begin."""
    own = (getattr(config.get_text_config(decoder=True), name, None) for name in _LIMIT_NAMES)
    known = [limit for limit in own if isinstance(limit, int) and limit > 0][:1] + _switches(config)
    return min(known, default=min(int(tokenizer.model_max_length), _UNKNOWN_LIMIT))


def limit_words(config: PreTrainedConfig) -> str:
    """Why a model reads less than it could; empty where it reads all.

    Behind the switch a forward turns every token that it reads by the long factors, and those before keep the short
    ones: a draft across it would be judged by other numbers than the target's own.
    """
    switches = _switches(config)
    return f"it reads at most {min(switches):,} tokens here, as LongRoPE takes other factors beyond" if switches else ""


def _switches(config: PreTrainedConfig) -> list[int]:
    """The lengths behind which LongRoPE takes other factors; layers of several kinds have settings of their own."""
    text_config = config.get_text_config(decoder=True)
    settings = getattr(text_config, "rope_parameters", None) or {}
    each = [settings, *(own for own in settings.values() if isinstance(own, Mapping))]
    lengths = [own.get("original_max_position_embeddings") for own in each if own.get("rope_type") == "longrope"]
    return [length for length in lengths if length and length < text_config.max_position_embeddings]


def _eos_ids(model: PreTrainedModel) -> frozenset[int]:
    """End tokens by the generation settings, or by the configuration where those say nothing."""
    for holder in (model.generation_config, model.config.get_text_config(decoder=True)):
        ids = getattr(holder, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
