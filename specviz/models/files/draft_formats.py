"""The formats of folders that hold a draft head or an assistant instead of a whole model, and who runs them.

config.json and the tensors' names tell the format. Both are untrusted. No tensor is read and no error is raised.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import SpecvizError
from specviz.models.files.checkpoint import tensor_names
from specviz.models.files.hub import head_files

SPECULATORS = {
    "eagle3": "eagle",
    "peagle": "eagle",
    "mtp": "eagle",
    "dflash": "block",
    "dflash2": "block",
    "dspark": "block",
}
"""The formats of speculators that are read, by their own names, and the method that drafts with each."""
MOST_CONFIG_BYTES = 2**20
GEMMA_ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")
"""The kinds of models, by transformers' names, that draft for a Gemma 4 over its keys and values."""
OPEN_SPEC = "Open Spec Config"
OPEN_SPEC_VERSION = "0.0.0"
OPEN_SPEC_METHOD = "dflash"
"""The one method that has a schema there."""
_OF_A_BLOCK = {"block_size", "mask_token_id", "target_layer_ids"}
_EAGLE = re.compile(r"(?:model\.)?(?:midlayer|layers\.0)\..*")
_MEDUSA = re.compile(
    r"(?:medusa_head\.)?0\.0\.linear\.weight|(?:medusa_heads\.)?blocks\.0\.layers\.0\.weight"
)


@dataclass(frozen=True, slots=True)
class DraftFormat:
    """A format of draft heads or assistants."""

    name: str  # as people call it, with an article
    method: str = ""  # the method that drafts with it; "" if there is none


def draft_format(config: Mapping[str, object], names: Collection[str] = ()) -> DraftFormat | None:
    """The format by these settings and tensors' names; None for a model, or if neither tells one."""
    if foreign := _foreign(config):
        return DraftFormat(foreign)
    if (kind := config.get("speculators_model_type")) is not None:
        return DraftFormat(f"a head in the format speculators {kind}", SPECULATORS[str(kind)])
    if config.get("model_type") in GEMMA_ASSISTANTS:
        name = "Gemma 4's assistant, a head that reads the target's own keys and values"
        return DraftFormat(name, "assistant")
    if open_method(config):
        return DraftFormat(f"a DFlash head in the {OPEN_SPEC}", "block")
    if _is_block(config):
        is_dspark = "markov_rank" in config
        return DraftFormat("a DSpark head" if is_dspark else "a DFlash head", "block")
    if any(map(_MEDUSA.fullmatch, names)):
        return DraftFormat("a set of Medusa heads", "medusa")
    has_fc = not {"fc.weight", "model.fc.weight"}.isdisjoint(names)
    if "draft_vocab_size" in config or (has_fc and any(map(_EAGLE.fullmatch, names))):
        return DraftFormat("an EAGLE head", "eagle")
    return None


def _foreign(config: Mapping[str, object]) -> str:
    """The name of a format that no method runs; "" for any other.

    Source: speculators open_spec_config.py.
    """
    kind = config.get("speculators_model_type")
    if kind is not None and kind not in SPECULATORS:
        return f"a head in the format speculators {kind!r:.40}"
    method = open_method(config)
    if method in ("", OPEN_SPEC_METHOD):
        return ""
    return f"a head in the {OPEN_SPEC} (method: {method!r:.40})"


def open_method(config: Mapping[str, object]) -> str:
    """The method that the Open Spec Config names; "" for settings of another format."""
    spec = config.get("speculative_config")
    has_method = isinstance(spec, Mapping) and "method" in spec
    if "open_spec_config_version" not in config and not has_method:
        return ""
    return str(spec.get("method") if isinstance(spec, Mapping) else None)


def _is_block(config: Mapping[str, object]) -> bool:
    """Whether these are the settings of a head that drafts a block at once."""
    return isinstance(config.get("dflash_config"), Mapping) or config.keys() >= _OF_A_BLOCK


def read_config(folder: Path) -> Mapping[str, object]:
    """The folder's config.json. Raises SpecvizError."""
    file = folder / "config.json"
    try:
        if file.stat().st_size > MOST_CONFIG_BYTES:
            raise SpecvizError(
                f"config.json must not exceed {MOST_CONFIG_BYTES} bytes (got {file.stat().st_size})"
            )
        config = json.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise SpecvizError("it has no config.json") from error
    except (OSError, ValueError, RecursionError) as error:
        raise SpecvizError("its config.json is damaged") from error
    if not isinstance(config, dict):
        raise SpecvizError(f"its config.json must hold an object (got {type(config).__name__})")
    return config


def format_of(folder: Path) -> DraftFormat | None:
    """The format of a folder's files; None for a model, and for a folder that cannot be read."""
    try:
        config = read_config(folder)
    except SpecvizError:
        return None
    try:
        names = tensor_names(head_files(folder, folder.name))
    except SpecvizError:
        names = set()
    return draft_format(config, names)
