"""ModelPool: loads causal language models by name and holds as many as fit in memory.

It is thread-safe, and a model in use is never evicted. A name may ask for a format of weights (see quantisation.py). A
model too large for one GPU is spread over all of them. A model that cannot be used raises SpecvizError. `check_pair`
tells whether two models share a vocabulary.
"""

import gc
import threading
import weakref
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from specviz.decoding.cached_lm import CachedLM, prove_model
from specviz.decoding.forward.decoder_layers import BLOCK
from specviz.decoding.forward.proof import Proof
from specviz.decoding.forward.transformers_forward import tokens_at_once
from specviz.decoding.kept_answers import KeptAnswers
from specviz.decoding.kept_rows import KeptRows
from specviz.decoding.sampling import Sampling
from specviz.decoding.turns import aside
from specviz.errors import SpecvizError
from specviz.models import catalog, generation, memory, quantisation
from specviz.models.files.hub import ModelSource, Progress, find, ignore_progress
from specviz.models.folder import (
    FEWER_BITS,
    GB,
    ModelFolder,
    check_kind,
    context_limit,
    deepen,
    eos_ids,
    limit_words,
)
from specviz.models.gguf import fetch_model
from specviz.models.proofs import keep_proof, read_proof
from specviz.models.tokens import TokenText, differing_ids
from specviz.settings import settings
from specviz.trace import ModelInfo

Pair = tuple[PreTrainedModel, PreTrainedTokenizerBase]

_PAIR = "pair "  # begins the key of a model that the caller passed in, which cannot be loaded again


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model in eval mode on its device, with its tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    info: ModelInfo  # its record in a trace
    text: TokenText
    proof: Proof = field(default_factory=Proof)
    unused: tuple[str, ...] = ()
    """The names of tensors in its files that the model has no place for."""

    def cached_lm(self) -> CachedLM:
        """A new reader of these weights, with an empty cache."""
        return CachedLM(self.model, self.info.context_limit, memory.products())

    def generate(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, **options: Any
    ) -> list[list[int]]:
        """The tokens that transformers' greedy `generate` writes after each prompt, with padding after an end token.

        The model's own generation settings do not count.
        """
        width = max(map(len, prompts))
        ids: list[list[int]] = []
        mask: list[list[int]] = []
        for prompt in prompts:
            padding = [0] * (width - len(prompt))
            ids.append([*padding, *prompt])
            mask.append(padding + [1] * len(prompt))
        device = self.model.get_input_embeddings().weight.device
        settings = generation.settings_for(Sampling(temperature=0), num_tokens, self.text.eos_ids)
        at_once = tokens_at_once(self.model, len(prompts))
        if width > at_once:
            settings.prefill_chunk_size = at_once
        out = generation.without_settings(self.model).generate(
            torch.tensor(ids, device=device),
            attention_mask=torch.tensor(mask, device=device),
            generation_config=settings,
            **options,
        )
        return out[:, width:].tolist()

    def memory_words(self, num_tokens: int) -> str:
        """The words of an out-of-memory error: the memory that the weights and the cache of so many tokens take."""
        weights = sum(quantisation.bytes_by_device(self.model).values())
        rows = num_tokens * bytes_per_token(self.model)
        return f"{self.name} takes {weights / GB:.2g} GB and {rows / GB:.2g} GB more for {num_tokens} tokens"


@dataclass(frozen=True, slots=True)
class _LoadTask:
    """A model that was asked for."""

    source: ModelSource  # of its files
    home: torch.device  # the device that it goes to
    form: str | None = None  # one of catalog.FORMATS; None: as the settings and the files say

    @property
    def name(self) -> str:
        return quantisation.with_format(self.source.name, self.form)

    @property
    def key(self) -> str:
        return f"{quantisation.with_format(self.source.key, self.form)} on {self.home}"

    @property
    def is_pair(self) -> bool:
        return self.source.key.startswith(_PAIR)


class _Entry:
    """A model in the pool, stored until its memory is needed. While another owner holds it, `get` returns it again."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.sizes = Counter(quantisation.bytes_by_device(loaded.model))
        self._held: LoadedModel | None = loaded
        self._model = weakref.ref(loaded.model)
        self._rest = (
            loaded.tokenizer,
            loaded.info,
            loaded.text,
            loaded.proof,
            loaded.unused,
        )

    @property
    def is_alive(self) -> bool:
        return self._model() is not None

    def get(self) -> LoadedModel | None:
        model = self._model()
        if model is not None and self._held is None:
            self._held = LoadedModel(self._rest[1].name, model, *self._rest)
        return self._held

    def release(self) -> None:
        """Frees the model unless another owner holds it."""
        self._held = None
        if self.is_alive:
            gc.collect()
        self.get()


class ModelPool:
    """The loaded models by name. If there is no room for another model, the least recently used one is evicted."""

    def __init__(self, budget_bytes: int | None = None, allow_any: bool | None = None) -> None:
        """Makes an empty pool.

        budget_bytes: the memory of all models together; None: SPECVIZ_MODEL_MEMORY_GB, or a share of each device.
        allow_any: False allows catalogue models only, and no downloads; None: the settings decide.
        """
        disable_progress_bar()  # progress goes through on_progress
        self.device = memory.device()
        self.draft_device = memory.draft_device()
        self.allow_any = settings().commands_take_any_model if allow_any is None else allow_any
        self.step_ms: dict[tuple[str, str], Mapping[int, float]] = {}
        """By a method's and a target's name: the milliseconds of a step by the size of its tree, as measured here."""
        self.pass_ms: dict[str, Sequence[float]] = {}
        """By a target's name: the milliseconds of a pass over 1, 2, ... tokens, as measured here."""
        self._budget = settings().model_memory_bytes if budget_bytes is None else budget_bytes
        # by key, the most recently used last
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._tasks: dict[str, _LoadTask] = {}  # by shown name
        self.renew_locks()

    def renew_locks(self) -> None:
        """Makes new, open locks, and keeps no rows and answers.

        A forked process must call this first: it has a copy of every lock, but not the threads that would open those
        that were closed at the fork.
        """
        self._rows = KeptRows()
        self.answers = KeptAnswers()
        self._loading: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._tables = threading.Lock()
        # one model at a time is read into memory, while others may be downloading
        self._memory = threading.Lock()

    def load(
        self, wanted: str | Pair, on_progress: Progress | None = None, *, as_draft: bool = False
    ) -> LoadedModel:
        """Loads a catalogue name, a folder or a hub id, each perhaps with a format, or a (model, tokenizer) pair.

        A format is one of catalog.FORMATS, after a colon.
        A pair can later be loaded by the name that it got. on_progress(message, fraction or None) is called during slow
        work. as_draft: the model goes to the device of draft models. Raises SpecvizError.
        """
        if not isinstance(wanted, str):
            return self._add_pair(*wanted)
        task = self._find_task(wanted, self.draft_device if as_draft else self.device)
        if (loaded := self._find(task.key)) is not None:
            return loaded
        if task.is_pair:
            raise SpecvizError(
                f"{wanted} is no longer in memory: pass the model and its tokenizer again"
            )
        with self._tables:
            loading = self._loading[task.key]
        with aside(), loading:
            return self._find(task.key) or self._load(task, on_progress or ignore_progress)

    def _find_task(self, wanted: str, home: torch.device) -> _LoadTask:
        known = None if wanted in catalog.MODELS else self._tasks.get(wanted)
        if known is not None:
            return known if known.is_pair else replace(known, home=home)
        plain, form = quantisation.split_format(wanted)
        if settings().zero_gpu and catalog.needs_no_gpu(plain):
            home = torch.device("cpu")  # this process has no GPU, and a run of these needs none
        return _LoadTask(find(plain, allow_any=self.allow_any), home, form)

    def shown_name(self, wanted: str) -> str:
        """The name to show and store; a folder shows only its base name. Loads nothing."""
        if wanted in catalog.MODELS or wanted in self._tasks:
            return wanted
        try:
            task = self._find_task(wanted, self.device)
        except SpecvizError:
            return Path(wanted).name
        with self._tables:
            return self._free_name(task)

    def loaded_names(self) -> list[str]:
        """The models in memory, the most recently used last."""
        with self._tables:
            return [entry.get().name for entry in self._entries.values() if entry.is_alive]

    def keep_rows(
        self, visitor: str, readers: Iterable[CachedLM], prompt: Sequence[int], num_tokens: int
    ) -> None:
        """Keeps the readers of an ended run for the visitor's next one, with the prompt's rows alone, if there is room.

        num_tokens: of the whole text. Only float32 is kept: in fewer bits, rows that were read in other pieces round so
        differently that the same seed would give another text.
        """
        room = num_tokens + num_tokens // 4 + BLOCK  # the most that a store has grown to
        sizes: dict[CachedLM, int] = {}
        for reader in readers:
            reader.capture(())
            has_rows = len(reader.missing(prompt)) < len(prompt)
            if has_rows and reader.model.dtype == torch.float32:
                sizes[reader] = room * bytes_per_token(reader.model)
        homes = {reader.device for reader in sizes}
        with self._tables:
            if sizes and self._has_room(sum(sizes.values()), tuple(homes)):
                self._rows.keep(visitor, sizes)

    def reader(self, loaded: LoadedModel, visitor: str = "") -> CachedLM:
        """A reader of a loaded model: the one that the visitor's last run has left, or a new one."""
        new = loaded.cached_lm()
        return self._rows.take(visitor, new.proof) or new

    def _find(self, key: str) -> LoadedModel | None:
        with self._tables:
            entry = self._entries.get(key)
            if entry is None or not entry.is_alive:
                return None
            self._entries.move_to_end(key)
            return entry.get()

    def _load(self, task: _LoadTask, report: Progress) -> LoadedModel:
        folder, revision = fetch_model(task.source, may_download=self.allow_any, on_progress=report)
        files = ModelFolder(folder, task.name)
        config = files.config()
        sha256, made_from = quantisation.gguf_origin(config)
        with self._memory:
            report(f"loading {task.name}", None)
            dtype, bits = quantisation.held_in(task.form, memory.dtype(task.home))
            times = catalog.depth(task.source.name)
            needed = files.needed_bytes(dtype, bits) * times
            homes = self._homes(task.home, needed)
            self._make_room(needed, homes, task.name)
            room = {home: self._left(home) for home in homes}
            model = files.model(config, dtype, room, bits)
            if times > 1:
                deepen(model, times)
            proof_file = files.proof_path(homes, dtype, bits, times)
            pair = (model, files.tokenizer())
            known = read_proof(proof_file)
            loaded = self._add(task, pair, sha256 or revision, known, files.unused)
            if not loaded.proof.replays:  # the obstacle may be gone at the next start
                keep_proof(proof_file, loaded.proof)
        words = (
            f"loaded {loaded.name}",
            made_from,
            limit_words(config),
            loaded.proof.words(),
            loaded.text.words_of_lacking_rows(),
        )
        report("; ".join(filter(None, words)), 1.0)
        return loaded

    def _homes(self, home: torch.device, needed: int) -> tuple[torch.device, ...]:
        """The device that a model goes to, or all GPUs if the model is too large for it."""
        share = memory.device_share(home) if home.type == "cuda" else None
        if share is None or needed <= share:
            return (home,)
        return memory.all_gpus() or (home,)

    def _left(self, home: torch.device) -> int | None:
        share = memory.device_share(home)
        return None if share is None else max(0, share - self._used(home))

    def _add_pair(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        name = Path(model.name_or_path).name or type(model).__name__
        task = _LoadTask(ModelSource(name, f"{_PAIR}{id(model)} {id(tokenizer)}"), model.device)
        known = self._find(task.key)
        if known is not None and known.model is model:
            return known
        check_kind(model.config, type(model), name)
        self._evict(sum(quantisation.bytes_by_device(model).values()), (model.device,))
        return self._add(task, (model.eval(), tokenizer), None)

    def _add(
        self,
        task: _LoadTask,
        pair: Pair,
        revision: str | None,
        known: Proof | None = None,
        unused: tuple[str, ...] = (),
    ) -> LoadedModel:
        """Adds a model to the pool. known: its proof, made earlier. unused: tensors that it has no place for.

        Raises SpecvizError for a model that cannot be read behind a cache.
        """
        model, tokenizer = pair
        limit = context_limit(model.config, tokenizer)
        proof = prove_model(model, limit, memory.products(), known)
        if proof.chains:
            raise SpecvizError(f"{task.name} cannot be used: {proof.chains}")
        num_rows = model.get_input_embeddings().weight.shape[0]
        text = TokenText(tokenizer, eos_ids(model.generation_config, model.config), num_rows)
        tokenizer_sha = text.sha  # hashed before the lock is taken
        head = model.get_output_embeddings()
        # packed weights have another shape
        vocab_size = getattr(head, "out_features", head.weight.shape[0])
        with self._tables:
            name = self._free_name(task)
            info = ModelInfo(
                name=name,
                revision=revision,
                num_parameters=model.num_parameters(),
                dtype=quantisation.number_format(model, task.form),
                device=", ".join(sorted(map(str, quantisation.bytes_by_device(model)))),
                vocab_size=vocab_size,
                context_limit=limit,
                tokenizer_sha=tokenizer_sha,
                generation_config=dict(generation.asked_by(model.generation_config)) or None,
            )
            loaded = LoadedModel(name, model, tokenizer, info, text, proof, unused)
            self._tasks[name] = task
            self._entries[task.key] = _Entry(loaded)
            self._entries.move_to_end(task.key)
        return loaded

    def _free_name(self, task: _LoadTask) -> str:
        """The model's name, with the first free number behind it if other models have that name."""
        name = task.name
        numbers = count(2)
        while self._is_taken(name, task):
            name = f"{task.name} ({next(numbers)})"
        return name

    def _is_taken(self, name: str, task: _LoadTask) -> bool:
        """Whether the name means another model. A pair's name is free again when the pair is gone."""
        other = self._tasks.get(name)
        if other is None:
            return task.is_pair and catalog.is_known(name)
        if (other.source.key, other.form) == (task.source.key, task.form):
            return False
        return not other.is_pair or other.key in self._entries

    def _make_room(self, needed: int, homes: tuple[torch.device, ...], name: str) -> None:
        free = self._evict(needed, homes)
        if free is not None and needed > free:
            used = self._used() if self._budget is not None else sum(map(self._used, homes))
            raise SpecvizError(
                f"{name} needs {needed / GB:.2g} GB. Models may take {(free + used) / GB:.2g} GB together, and those "
                f"in use take {used / GB:.2g} GB; choose a smaller model, {FEWER_BITS}, or raise "
                "SPECVIZ_MODEL_MEMORY_GB"
            )

    def _evict(self, needed: int, homes: tuple[torch.device, ...]) -> int | None:
        """Drops kept rows, then models, until `needed` bytes fit; returns the bytes that are free.

        What was not used for longest goes first. A model is evicted only when no rows are left that could hold it.
        """
        with self._tables:
            while not self._has_room(needed, homes) and self._rows.drop_oldest():
                pass
            for entry in list(self._entries.values()):
                if self._has_room(needed, homes):
                    break
                entry.release()
            for key, entry in list(self._entries.items()):
                if not entry.is_alive:
                    del self._entries[key]
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            return self._free(homes)

    def _has_room(self, needed: int, homes: tuple[torch.device, ...]) -> bool:
        free = self._free(homes)
        return free is None or needed <= free

    def _free(self, homes: tuple[torch.device, ...]) -> int | None:
        if self._budget is not None:
            return self._budget - self._used()
        left = [self._left(home) for home in homes]
        return None if None in left else sum(left)

    def _used(self, home: torch.device | None = None) -> int:
        """The bytes that living models and kept rows take, on one device or on all."""
        used = self._rows.num_bytes(home)
        for entry in self._entries.values():
            if entry.is_alive:
                used += sum(entry.sizes.values()) if home is None else entry.sizes.get(home, 0)
        return used


def check_pair(target: LoadedModel, draft: LoadedModel) -> None:
    """Raises SpecvizError if an id has another text in the draft model. Padding and special tokens may differ."""
    examples = differing_ids(target.text, draft.text)
    if not examples:
        return
    words: list[str] = []
    for token in examples:
        words.append(f"id {token}: {target.text.label(token)!r} and {draft.text.label(token)!r}")
    shown = "; ".join(words)
    raise SpecvizError(
        f"{draft.name} cannot draft for {target.name}: their vocabularies differ ({shown}). Choose a draft model of "
        "the target's own family, a method that needs no draft model, or the method cross_vocabulary"
    )


def bytes_per_token(model: PreTrainedModel) -> int:
    """The bytes of the keys and values of one token, over all layers."""
    config = model.config.get_text_config(decoder=True)
    layers = [config] * config.num_hidden_layers
    if getattr(config, "is_heterogeneous", False):  # as Gemma 4's: each layer has sizes of its own
        layers = config.per_layer_config
    return 2 * model.dtype.itemsize * sum(map(_num_keys, layers))


def _num_keys(layer: PreTrainedConfig) -> int:
    """The numbers in a layer's keys of one token."""
    heads = layer.num_attention_heads
    width = getattr(layer, "head_dim", None) or layer.hidden_size // heads
    return width * (getattr(layer, "num_key_value_heads", None) or heads)
