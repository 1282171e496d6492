"""StatesTarget: a target of whose weights only the embedding, the final norm and the output matrix are read.

What its layers would compute is read from files. So a laptop judges the heads of a model that it could not hold.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specviz.alignment.prompts import PromptSet
from specviz.alignment.states.files import WHOLE_TEXTS, StoredStates, check_texts, open_texts
from specviz.alignment.summary import Examined
from specviz.decoding.cached_lm import PRODUCTS, CachedLM
from specviz.decoding.forward.transformers_forward import TransformersForward
from specviz.errors import SpecvizError
from specviz.models import generation, memory, quantisation
from specviz.models.files.hub import fetch, find, ignore_progress
from specviz.models.folder import ModelFolder, context_limit, eos_ids
from specviz.models.pool import LoadedModel, ModelPool
from specviz.models.tokens import TokenText
from specviz.session.setup import Setup
from specviz.trace import ModelInfo


@dataclass(frozen=True, slots=True)
class WithStates:
    """A target by its name or folder, and the folder of its stored states of these layers.

    Where a job has no prompts, the stored texts are read whole.
    """

    target: str
    folder: Path
    layers: tuple[int, ...]  # of the states in every file, in their order

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder).expanduser())
        object.__setattr__(self, "layers", tuple(self.layers))

    def load(self, pool: ModelPool) -> "StatesTarget":
        """Reads the three tensors; the last target that was read so is kept. Raises SpecvizError."""
        files = (self.folder, *self.folder.glob("*.safetensors"))
        changed = max((file.stat().st_mtime_ns for file in files if file.exists()), default=0)
        return _load(self, changed, pool.device, pool.allow_any)


def unexamined(rows: PromptSet) -> Examined:
    """The result of fault checks that could not be made, with the reason."""
    words = (
        "The target's weights were not here, only its stored states: no fault was looked for in the drafts' files or "
        "by undoing one, there is no verdict, and no costs were measured."
    )
    whole = (
        "The texts came without prompts: everything behind a text's first token counts as written by the target, its "
        "prompt as well."
    )
    return Examined((), (words, whole) if rows.format == WHOLE_TEXTS else (words,), ())


@dataclass(frozen=True, slots=True, eq=False)
class StatesTarget(LoadedModel):
    """A target whose model finds its states by the ids that it reads, and refuses any other text."""

    states: StoredStates = field(kw_only=True)

    def cached_lm(self) -> CachedLM:
        forward = TransformersForward(self.model, PRODUCTS)
        return CachedLM(self.model, self.info.context_limit, forward=forward)

    def check(self, name: str, setup: Setup) -> None:
        """Raises SpecvizError for a draft that needs more of the target than is here. name: the draft's."""
        if setup.heads is None and not setup.method.replays_from_text:
            raise SpecvizError(
                f"{name} drafts with layers of {self.name}, and only its states are here: name a head, or read the "
                "whole target without --states"
            )
        layers = () if setup.heads is None else setup.heads.module.hidden_layers
        lacking = sorted(set(layers) - {-1, *self.states.layers})
        if lacking:
            raise SpecvizError(
                f"{name} reads the states of the layers {', '.join(map(str, layers))}; the files lack "
                f"{', '.join(map(str, lacking))} (--state-layers {','.join(map(str, self.states.layers))})"
            )


class StatesDecoder(nn.Module):
    """The place of a decoder, between the embedding and the output matrix: a look-up instead of layers.

    Its cache holds the ids that were read, where others hold keys and values: they tell the text.
    """

    def __init__(
        self, embedding: nn.Module, norm: nn.Module, num_layers: int, states: StoredStates
    ) -> None:
        super().__init__()
        self.embed_tokens = embedding
        self.norm = norm
        self.layers = nn.ModuleList(nn.Identity() for _ in range(num_layers))
        self._states = states

    def forward(self, input_ids: Tensor, **asked: Any) -> "_Read":
        ids = input_ids  # [B, n]
        # older versions of transformers have the second name
        for name in ("cache", "past_key_values"):
            if asked.get(name) is not None:
                rows = ids[:, None, :, None]
                ids = asked[name].update(rows, rows, 0)[0][:, 0, :, 0]
        begin = ids.shape[1] - input_ids.shape[1]
        stored = torch.stack([self._states.rows(text, begin) for text in ids.cpu()])
        like = self.norm.weight
        columns = stored.to(like.device, like.dtype).unbind(2)  # each [B, n, H]
        states = dict(zip(self._states.layers, columns, strict=True))
        states[-1] = self.norm(self.layers[-1](columns[-1]))
        return _Read(states[-1], states)


@dataclass(frozen=True, slots=True)
class _Read:
    """A decoder's output. Some models ask it for more; what is not here is None."""

    last_hidden_state: Tensor
    hidden_states: dict[int, Tensor]  # by layer

    def __getattr__(self, name: str) -> None:
        return None


@lru_cache(maxsize=1)
def _load(wanted: WithStates, changed: int, device: torch.device, allow_any: bool) -> StatesTarget:
    texts = open_texts(wanted.folder)
    plain, form = quantisation.split_format(wanted.target)
    source = find(plain, allow_any=allow_any)
    dtype, bits = quantisation.held_in(form, memory.dtype(device))
    if bits is not None:
        raise SpecvizError(
            f"three tensors are not held in {bits}: name {source.name} without :{bits}"
        )
    folder, revision = fetch(
        source, may_download=allow_any, on_progress=ignore_progress, weights=False
    )
    files = ModelFolder(folder, source.name)
    config = files.config(is_run=False)
    text_config = config.get_text_config(decoder=True)
    count = text_config.num_hidden_layers
    _check_layers(wanted.layers, count, source.name)
    check_texts(texts, wanted.layers, text_config.hidden_size, text_config.vocab_size, source.name)
    states = StoredStates(texts, wanted.layers)
    model = files.without_layers(config, dtype, device)
    _put_states(model, count, states, source.name)
    tokenizer = files.tokenizer()
    settings = files.generation(config)
    text = TokenText(tokenizer, eos_ids(settings, config), text_config.vocab_size)
    info = ModelInfo(
        name=quantisation.with_format(source.name, form),
        revision=revision,
        num_parameters=model.num_parameters(),
        dtype=quantisation.number_format(model, form),
        device=str(device),
        vocab_size=model.get_output_embeddings().weight.shape[0],
        context_limit=context_limit(config, tokenizer),
        tokenizer_sha=text.sha,
        generation_config=dict(generation.asked_by(settings)) or None,
    )
    return StatesTarget(info.name, model, tokenizer, info, text, states=states)


def _check_layers(layers: tuple[int, ...], count: int, name: str) -> None:
    is_rising = list(layers) == sorted(set(layers)) and layers[:1] >= (0,)
    if not is_rising or layers[-1] != count:
        raise SpecvizError(
            f"--state-layers must rise from 0 on and end with {count}, the number of layers of {name}: under it vLLM "
            f"stores the last layer's state, before the final norm (got {','.join(map(str, layers)) or 'none'})"
        )


def _put_states(model: PreTrainedModel, count: int, states: StoredStates, name: str) -> None:
    """Puts a look-up of states in the place of the decoder of a model that has no layers."""
    decoder = model.get_decoder()
    parts = [getattr(decoder, part, None) for part in ("embed_tokens", "norm")]
    if decoder is not model.base_model or None in parts:
        raise SpecvizError(
            f"{name} ({type(model).__name__}) cannot be read by its states: no embed_tokens and norm are found in its "
            "decoder"
        )
    setattr(model, model.base_model_prefix, StatesDecoder(*parts, count, states))
    # one kind of cache for all, as it holds ids
    model.config.num_hidden_layers = count
    model.config.layer_types = ["full_attention"] * count
