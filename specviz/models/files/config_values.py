"""Checks the values of an untrusted config.json: sizes, kinds and numbers that cannot be, or that would take forever.

Errors are SpecvizErrors. transformers checks all other values.
"""

import re
from collections.abc import Mapping

from specviz.errors import SpecvizError

MOST_LAYERS = 1_024
MOST_NUMBER = 10**12
MOST_LABELS = 100_000
MOST_PARTS = 65_536
_OF_LAYERS = re.compile(r"layers|blocks|stages|(^|_)depths?(_|$)|(^|_)n_layer$")
_OF_PARTS = re.compile(r"experts|heads|n_head$|groups|codebooks|quantizers|passes$|loops$")
"""The names of settings that count modules. Each module takes time to make, even without its numbers."""
_SIZES = {
    "hidden_size": 1,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "intermediate_size": 0,
    "vocab_size": 1,
    "n_embd": 1,
    "n_head": 1,
    "n_layer": 1,
}
"""Setting -> its least value. Some models have a list with one value for each layer."""
_WITHOUT_END = "time_step"
"""Begins the names of a state-space model's limits of a step. The upper limit may be infinite."""
_LATENT = "qk_rope_head_dim"
"""A setting of models whose attention compresses the keys: their heads have other sizes, and head_dim may be 0."""
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_PARTS = ("text_config", "vision_config", "audio_config")


def check_values(values: Mapping[str, object], name: str) -> None:
    """Raises SpecvizError for impossible numbers and kinds, and for program code that transformers would fetch."""
    for key, value in values.items():
        if key.endswith("_implementation") and "/" in str(value):
            raise SpecvizError(
                f"{name} needs program code of others ({value!r:.80}), which specviz never fetches"
            )
        _check_value(key, value, name)
    _check_types(values, name)


def _check_value(key: str, value: object, name: str) -> None:
    if isinstance(value, Mapping):
        check_values(value, name)
    elif isinstance(value, list):
        for item in value:
            _check_value(key, item, name)
    elif type(value) in (int, float) and not key.startswith(_WITHOUT_END):
        _check_number(key, value, name)


def _check_number(key: str, value: float, name: str) -> None:
    if _OF_LAYERS.search(key) and value > MOST_LAYERS:
        raise SpecvizError(
            f"{name} must have at most {MOST_LAYERS:,} layers ({key!r:.60} is {value:,})"
        )
    if _OF_PARTS.search(key) and value > MOST_PARTS:
        raise SpecvizError(
            f"{name} has an impossible number in its config.json: {key!r:.60} must be at most {MOST_PARTS:,} (got "
            f"{value:,})"
        )
    if key == "num_labels" and value > MOST_LABELS:
        raise SpecvizError(f"{name} must have at most {MOST_LABELS:,} labels ({key} is {value:,})")
    if not abs(value) <= MOST_NUMBER and key != "model_max_length":
        raise SpecvizError(
            f"{name} has an impossible number in its config.json: {key!r:.60} is {value:.3g}"
        )


def _check_types(values: Mapping[str, object], name: str) -> None:
    """Raises SpecvizError for values of another type than transformers writes."""
    least_values = {**_SIZES, "head_dim": int(_LATENT not in values)}
    for key, least in least_values.items():
        value = values.get(key)
        if value is None:
            continue
        is_per_layer = isinstance(value, list) and value and key not in _LAYERS
        sizes = value if is_per_layer else [value]
        if not all(type(size) is int and size >= least for size in sizes):
            raise _damaged(name, key, f"a whole number from {least}", value)
    for key in _PARTS:
        if (part := values.get(key)) is not None and not isinstance(part, Mapping):
            raise _damaged(name, key, "an object of settings", part)
    if (shared := values.get("num_kv_shared_layers")) is not None and type(shared) is not int:
        raise _damaged(name, "num_kv_shared_layers", "a whole number", shared)
    for key in ("architectures", "layer_types"):
        if (kinds := values.get(key)) is not None and not _is_list_of_names(kinds):
            raise _damaged(name, key, "a list of names", kinds)
    kinds = values.get("layer_types")
    layers = values.get("num_hidden_layers")
    if kinds is not None and layers is not None and len(kinds) < layers:
        raise _damaged(name, "layer_types", f"a list of {layers} kinds, one for each layer", kinds)


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _damaged(name: str, key: str, wanted: str, got: object) -> SpecvizError:
    return SpecvizError(
        f"{name} has a damaged config.json: {key} must be {wanted} (got {got!r:.60})"
    )
