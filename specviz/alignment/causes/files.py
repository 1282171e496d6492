"""What a draft's files say without a run: tensors that nothing uses, matrices of zeros, norms of ones, copied layers,
settings that are not the target's.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import nn
from transformers import PreTrainedConfig

from specviz.alignment.causes.undo.matrices import blocks_of, copies, is_plain, norms_of
from specviz.models.files.checkpoint import list_keys
from specviz.models.pool import LoadedModel

COMPARED = {
    "rope": ("rope_parameters",),
    "setting": (
        "rms_norm_eps",
        "layer_norm_epsilon",
        "hidden_act",
        "hidden_activation",
        "tie_word_embeddings",
        "embedding_multiplier",
        "logits_scaling",
        "final_logit_softcapping",
        "vocab_size",
    ),
    "narrow window": ("sliding_window",),
}
"""Fields of config.json that matter between a draft and its target, by the kind of fault that they may be."""
_NO_THETA = "config.json names no rope_theta, so {0:,.0f} is taken"


def faults(module: nn.Module, unused: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields what is wrong with each tensor, in words: lost, unused or copied ones.

    unused: names of tensors in the file that the model has no place for.
    """
    if unused:
        yield _unused_words(unused, len(blocks_of(module)))
    zero = [
        name
        for name, weight in module.named_parameters()
        if is_plain(weight) and weight.ndim == 2 and not weight.any()
    ]
    if zero:
        yield f"Every number is 0 in {list_keys(zero)}: never trained, or lost when it was saved."
    norms = list(norms_of(module))
    ones = [f"{name}.weight" for name, norm in norms if bool((norm.weight == 1).all())]
    if ones and len(ones) < len(norms):
        yield f"Every number is 1 in {list_keys(ones)}, as in an untrained norm: the others were trained."
    for copied, source in copies(module):
        yield f"Layer {copied + 1} is an exact copy of layer {source + 1}."


def _unused_words(unused: tuple[str, ...], num_layers: int) -> str:
    found = {int(match[1]) for name in unused if (match := re.search(r"\blayers\.(\d+)\.", name))}
    behind = {place for place in found if place >= num_layers}
    words = f"Its file has {list_keys(sorted(unused))} that the model has no place for"
    if behind:
        count = "1 layer" if len(behind) == 1 else f"{len(behind)} layers"
        return f"{words}: {count} more than config.json says (num_hidden_layers = {num_layers})."
    return f"{words}: it was made for another kind of model, or for other settings than config.json has."


def differences(
    config: PreTrainedConfig, target: PreTrainedConfig, folder: Path | None = None
) -> Mapping[str, str]:
    """How the settings of a draft differ from the target's, in words by the kind of fault that they may be.

    folder: of the draft, to see what its config.json leaves out. Sound drafts may differ: these are no faults yet.
    """
    own = config.get_text_config(decoder=True)
    targets = target.get_text_config(decoder=True)
    found = {}
    for kind, fields in COMPARED.items():
        words = []
        for field in fields:
            value = getattr(own, field, None)
            other = getattr(targets, field, None)
            is_known = value is not None and (other is not None or field == "sliding_window")
            if is_known and value != other:
                words.append(f"{field} is {_spell(value)}, the target's is {_spell(other)}")
        if words:
            found[kind] = "in config.json, " + "; ".join(words)
    if folder is not None and _lacks_theta(folder):
        theta = (getattr(own, "rope_parameters", None) or {}).get("rope_theta")
        if theta is not None:
            found["rope"] = _NO_THETA.format(theta)
    return found


def _spell(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_spell(part)}" for name, part in sorted(value.items()))
    return f"{value:,g}" if isinstance(value, float) else str(value)


def _lacks_theta(folder: Path) -> bool:
    try:
        values = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(values, Mapping):
        return False
    nested = values.get("text_config")
    for found in (values, nested if isinstance(nested, Mapping) else {}):
        inner = found.get("rope_parameters") or found.get("rope_scaling") or {}
        if "rope_theta" in found or "rope_theta" in inner:
            return False
    return True


def folder_of(draft: LoadedModel) -> Path | None:
    """The folder that a draft model was loaded from; None for one made in memory."""
    folder = Path(draft.model.config._name_or_path or "")
    return folder if (folder / "config.json").is_file() else None
