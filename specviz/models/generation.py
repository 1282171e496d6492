"""The settings that a model's generation_config.json asks for, and settings for transformers' `generate` instead.

specviz uses the end tokens of such a file and nothing else. Values come from anyone's file: only plain and short ones
are stored.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from specviz.decoding.turns import give_way
from specviz.request import RunSettings

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

    from specviz.decoding.sampling import Sampling

MOST = 1e12  # a larger number is not shown
MOST_CHARACTERS = 40
_FILTERS: Mapping[str, float] = MappingProxyType(
    {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "top_h": 1.0,
        "typical_p": 1.0,
        "epsilon_cutoff": 0.0,
        "eta_cutoff": 0.0,
    }
)
"""The settings that act only on drawn text, each with the value that changes nothing."""
_ASKS_NOTHING: Mapping[str, float | None] = MappingProxyType(
    {
        **_FILTERS,
        "repetition_penalty": 1.0,
        "encoder_repetition_penalty": 1.0,
        "presence_penalty": 0.0,  # other engines obey this one and the next; `generate` does not know them
        "frequency_penalty": 0.0,
        "no_repeat_ngram_size": 0,
        "encoder_no_repeat_ngram_size": 0,
        "bad_words_ids": None,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
        "sequence_bias": None,
        "forced_bos_token_id": None,
        "forced_eos_token_id": None,
        "exponential_decay_length_penalty": None,
        "guidance_scale": 1.0,
        "watermarking_config": None,
        "min_length": 0,
        "min_new_tokens": 0,
        "num_beams": 1,
        "penalty_alpha": 0.0,
        "dola_layers": None,
        "stop_strings": None,
        "token_healing": False,
    }
)
"""All settings that change which text is written, each with the value that changes nothing."""
Asked = Mapping[str, bool | int | float | str]
"""Settings by transformers' names. A list is stored only as how many values it has, in words."""


def asked_by(generation: GenerationConfig | None) -> Asked:
    """The settings that ask for something beside end tokens, in the order in which a sentence names them."""
    asked: dict[str, bool | int | float | str] = {}
    for name, neutral in _ASKS_NOTHING.items():
        value = getattr(generation, name, None)
        if value not in (None, neutral, [], {}):
            asked[name] = _plain(value)
    return asked


def _plain(value: object) -> bool | int | float | str:
    if isinstance(value, (bool, int, float)):
        return value if abs(value) < MOST else "no ordinary number"
    if isinstance(value, str):
        return value[:MOST_CHARACTERS]
    if isinstance(value, (Sequence, Mapping)):
        return f"{len(value):,} value{'' if len(value) == 1 else 's'}"
    return type(value).__name__


def asked_words(asked: Asked) -> str:
    """The settings in words, as in "temperature 0.7, top_k 20 and suppress_tokens (3 values)"."""
    words = [f"{name} {_spell(value)}" for name, value in asked.items()]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _spell(value: bool | float | str) -> str:
    if isinstance(value, str):
        return f"({value[:MOST_CHARACTERS]})"
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def describe(asked: Asked | None) -> str:
    """A sentence about what the file asks for and what specviz uses; "" if it asks for nothing.

    It leaves out names that are no settings, which a stranger's trace may have.
    """
    known = {name: asked[name] for name in _ASKS_NOTHING if name in (asked or {})}
    if not known:
        return ""
    return f"its generation_config.json asks for {asked_words(known)}: not applied, only its end tokens are used"


def unlike(asked: Asked, sampling: Sampling) -> Asked:
    """The settings of the file that would change the distribution of a text with this sampling."""
    if sampling.temperature == 0:
        return {name: value for name, value in asked.items() if name not in _FILTERS}
    current = {name: getattr(sampling, name) for name in RunSettings.SAMPLING}
    return {name: value for name, value in asked.items() if current.get(name) != value}


def without_settings(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model that shares the weights and has generation settings that ask for nothing.

    Other work gets the engine between two of its forwards.
    """
    from transformers import GenerationConfig

    bare = copy.copy(model)
    bare.generation_config = GenerationConfig()

    @functools.wraps(model.forward)
    def forward(*args: object, **named: object) -> object:
        give_way()
        return model.forward(*args, **named)

    bare.forward = forward
    return bare


def settings_for(
    sampling: Sampling, num_tokens: int, eos_ids: Iterable[int] = ()
) -> GenerationConfig:
    """The settings with which `generate`, on a model `without_settings`, writes as specviz does.

    They are the distribution of `sampling`, these end tokens and padding by id 0.
    """
    from transformers import GenerationConfig

    options: dict[str, object] = {"do_sample": bool(sampling.temperature)}
    if sampling.temperature:
        options |= {name: getattr(sampling, name) for name in RunSettings.SAMPLING}
        options["min_p"] = sampling.min_p or None  # `generate` would take time to apply 0
    return GenerationConfig(
        **options,
        max_new_tokens=num_tokens,
        num_beams=1,
        eos_token_id=sorted(eos_ids) or None,
        pad_token_id=0,
    )
