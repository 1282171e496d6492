"""Library: loads causal language models by name and keeps as many as fit; check_pair: whether two share a vocabulary.

Only plain attention caches, only safetensors, never a model's own code. Whatever cannot be used is refused by a
SpecvizError that says why and what to do. Thread-safe; a model in use is never evicted.
"""

from __future__ import annotations

import errno
import gc
import threading
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable
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
    DynamicCache,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils.logging import disable_progress_bar

from specviz import catalog, machine
from specviz.errors import SpecvizError
from specviz.fetch import Progress, Source, check_files, fetch, find, num_parameters, unwatched, weight_files
from specviz.lm import CachedLM
from specviz.settings import settings
from specviz.text import TokenText, differing_ids
from specviz.trace import ModelInfo

Pair = tuple[PreTrainedModel, PreTrainedTokenizerBase]
Result = TypeVar("Result")

_GB = 1e9
_PAIR = "pair "  # begins the key of a model that was handed over and cannot be loaded again
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


class _Entry:
    """A model that the library holds until it needs the room; one that somebody else still holds comes back."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.size = loaded.model.get_memory_footprint()
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
    """Loaded models by name, the least recently used evicted first when `budget_bytes` would be exceeded.

    budget_bytes, allow_any: None takes them from the settings. allow_any False: catalogue models only, no downloads.
    """

    def __init__(self, budget_bytes: int | None = None, allow_any: bool | None = None) -> None:
        disable_progress_bar()  # progress goes through on_progress
        self.device = machine.device()
        self.allow_any = settings().allow_any_model if allow_any is None else allow_any
        self._budget = machine.model_budget(self.device) if budget_bytes is None else budget_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # by key, the most recently used last
        self._sources: dict[str, Source] = {}  # by shown name
        self._loading: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._tables = threading.Lock()
        self._memory = threading.Lock()  # one model at a time is read into memory, while others may be downloading

    def load(self, wanted: str | Pair, on_progress: Progress | None = None) -> LoadedModel:
        """A catalogue name, a folder, a hub id, or a (model, tokenizer) pair, which is known by its name from then on.

        on_progress(message, fraction or None) is told what takes long. Raises SpecvizError.
        """
        if not isinstance(wanted, str):
            return self._add_pair(*wanted)
        known = None if wanted in catalog.MODELS else self._sources.get(wanted)
        source = known or find(wanted, allow_any=self.allow_any)
        if (loaded := self._find(source.key)) is not None:
            return loaded
        if source.key.startswith(_PAIR):
            raise SpecvizError(f"{wanted} is no longer in memory: hand over the model and its tokenizer again")
        with self._tables:
            loading = self._loading[source.key]
        with loading:
            return self._find(source.key) or self._load(source, on_progress or unwatched)

    def shown_name(self, wanted: str) -> str:
        """What may be shown and stored of a name: a folder's base name only. Loads nothing."""
        if wanted in catalog.MODELS or wanted in self._sources:
            return wanted
        try:
            return find(wanted, allow_any=self.allow_any).name
        except SpecvizError:
            return Path(wanted).name

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

    def _load(self, source: Source, report: Progress) -> LoadedModel:
        folder, revision = fetch(source, may_download=self.allow_any, on_progress=report)
        files = Files(folder, source.name)
        config = files.config()
        with self._memory:
            report(f"loading {source.name}", None)
            dtype = machine.dtype(self.device)
            self._make_room(files.num_parameters() * dtype.itemsize, source.name)
            pair = files.model(config, dtype, self.device), files.tokenizer()
            loaded = self._add(source, pair, revision)
        report(f"loaded {source.name}", 1.0)
        return loaded

    def _add_pair(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        source = Source(Path(model.name_or_path).name or type(model).__name__, f"{_PAIR}{id(model)} {id(tokenizer)}")
        known = self._find(source.key)
        if known is not None and known.model is model:
            return known
        _check_kind(model.config, type(model), source.name)
        self._evict(model.get_memory_footprint())
        return self._add(source, (model.eval(), tokenizer), None)

    def _add(self, source: Source, pair: Pair, revision: str | None) -> LoadedModel:
        model, tokenizer = pair
        text = TokenText(tokenizer, _eos_ids(model))
        info = _info(source.name, model, text, revision)
        with self._tables:
            name = self._free_name(source)
            self._sources[name] = source
            loaded = LoadedModel(name, model, tokenizer, replace(info, name=name), text)
            self._entries[source.key] = _Entry(loaded)
            self._entries.move_to_end(source.key)
        return loaded

    def _free_name(self, source: Source) -> str:
        """The source's name, with a number when another model in memory is called the same."""
        number, free = 1, source.name
        while self._is_taken(free, source.key):
            number += 1
            free = f"{source.name} ({number})"
        return free

    def _is_taken(self, name: str, key: str) -> bool:
        other = self._sources.get(name)
        return other is not None and other.key != key and other.key in self._entries

    def _make_room(self, needed: int, name: str) -> None:
        used = self._evict(needed)
        if self._budget is not None and used + needed > self._budget:
            raise SpecvizError(
                f"{name} needs {needed / _GB:.2g} GB, but models may take {self._budget / _GB:.2g} GB together and "
                f"those in use take {used / _GB:.2g} GB; choose a smaller model, or raise SPECVIZ_MODEL_MEMORY_GB"
            )

    def _evict(self, needed: int) -> int:
        """Frees models, the least recently used first, until `needed` bytes fit; returns the bytes still taken."""
        with self._tables:
            for entry in list(self._entries.values()):
                if self._budget is None or self._used() + needed <= self._budget:
                    break
                entry.release()
            for key in [key for key, entry in self._entries.items() if not entry.is_alive]:
                del self._entries[key]
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            return self._used()

    def _used(self) -> int:
        return sum(entry.size for entry in self._entries.values() if entry.is_alive)


class Files:
    """A model's folder. Every error of the libraries that read it becomes a SpecvizError that names the model."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
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
        config = self._explaining(
            lambda: AutoConfig.from_pretrained(self._folder, local_files_only=True, trust_remote_code=False)
        )
        _check_kind(config, MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None), self._name)
        return config

    def num_parameters(self) -> int:
        return self._explaining(lambda: num_parameters(weight_files(self._folder, self._name)))

    def model(self, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        model, report = self._explaining(
            lambda: AutoModelForCausalLM.from_pretrained(
                self._folder,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
        )
        lacking = sorted([*report["missing_keys"], *(item[0] for item in report["mismatched_keys"])])
        if lacking:  # transformers fills them with random numbers and goes on
            raise SpecvizError(f"{self._name} lacks {len(lacking)} of its weights, {lacking[0]} among them")
        return self._explaining(lambda: model.eval().requires_grad_(False).to(device))

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
            return "there is not enough memory for it; choose a smaller model"
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return "the disk is full"
        if isinstance(error, SafetensorError):
            return "a weight file is damaged or incomplete; fetch it again"
        lines = str(error).replace(str(self._folder), self._name).strip().splitlines()
        return lines[0] if lines else type(error).__name__


def _check_kind(config: PreTrainedConfig, model_class: type | None, name: str) -> None:
    """Refuses kinds of models that do not continue a text, or cannot take back what they have read."""
    kind, architectures = config.model_type, config.architectures or []
    if config.is_encoder_decoder:
        raise SpecvizError(
            f"{name} is an encoder-decoder model ({kind}); specviz needs a decoder-only model that continues a text"
        )
    if model_class is None or (architectures and not any(item.endswith(_WRITES_TEXT) for item in architectures)):
        raise SpecvizError(f"{name} is no model that continues a text ({', '.join(architectures) or kind})")
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
        "the target's own family, or a method that needs no draft model"
    )


def _info(name: str, model: PreTrainedModel, text: TokenText, revision: str | None) -> ModelInfo:
    return ModelInfo(
        name=name,
        revision=revision,
        num_parameters=model.num_parameters(),
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        vocab_size=model.get_output_embeddings().weight.shape[0],
        context_limit=context_limit(model.config, text.tokenizer),
        tokenizer_sha=text.sha,
    )


def context_limit(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens the model reads at once."""
    text_config = config.get_text_config(decoder=True)
    for name in _LIMIT_NAMES:
        limit = getattr(text_config, name, None)
        if isinstance(limit, int) and limit > 0:
            return limit
    return min(int(tokenizer.model_max_length), _UNKNOWN_LIMIT)


def _eos_ids(model: PreTrainedModel) -> frozenset[int]:
    """End tokens by the generation settings, or by the configuration where those say nothing."""
    for holder in (model.generation_config, model.config.get_text_config(decoder=True)):
        ids = getattr(holder, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
