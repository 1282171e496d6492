"""Drafts and heads of one's own that learn further: loaded as any run loads them, written in the form they had."""

import shutil
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from torch import nn

from specviz.decoding.forward.transformers_forward import num_layers
from specviz.drafters.eagle.heads import EagleHead, read
from specviz.drafters.eagle.layouts import find_layout
from specviz.drafters.heads import load_heads
from specviz.errors import SpecvizError
from specviz.models.files.checkpoint import read_tensors
from specviz.models.files.draft_formats import read_config
from specviz.models.files.hub import head_files
from specviz.models.pool import LoadedModel, ModelPool, check_pair
from specviz.zoo.for_target.eagle3 import HeadLearner
from specviz.zoo.for_target.small_draft import DraftLearner
from specviz.zoo.training.export import SHARD, replacing, save_model

_LEFT_BEHIND = ("*.safetensors", "*.bin", "*.pt", "*.index.json", "*.md", "recipe.json", "*.jsonl")
"""Files that tell of the earlier weights."""


def own_draft(target: LoadedModel, folder: Path) -> DraftLearner:
    """A draft model from a folder, of any architecture. SpecvizError for one that cannot draft for the target."""
    loaded = ModelPool(allow_any=True).load(str(folder))
    check_pair(target, loaded)
    config = read_config(folder)
    dtype = getattr(torch, config.get("dtype") or config.get("torch_dtype") or "float32")

    def export(module: nn.Module, place: Path) -> None:
        with replacing(place) as partial:
            save_model(module, partial, dtype)
            _copy_settings(folder, partial)

    module = loaded.model.float().requires_grad_(True)
    return DraftLearner(target, module, {"target": target.name, "config": config}, export)


def own_head(target: LoadedModel, folder: Path, depth: int) -> HeadLearner:
    """A head of the EAGLE family from a folder. SpecvizError for one that cannot draft for the target, or that drafts
    all its tokens at once."""
    load_heads(ModelPool(allow_any=True), str(folder), "eagle", target)  # it checks everything
    stored, config = read_tensors(head_files(folder, folder.name)), read_config(folder)
    head, _ = read(config, stored, target)
    _check(head, folder.name, target)
    names = find_layout(config, stored, target).names
    learned = set(names.values()) - {"embed_tokens.weight"}
    for name, weight in head.float().named_parameters():
        weight.requires_grad_(name in learned)

    def export(module: nn.Module, place: Path) -> None:
        values, written = module.state_dict(), {}
        for key, tensor in stored.items():
            written[key] = tensor.clone()
            if names[key] in learned and names[key] in values:
                value = values[names[key]]
                written[key][: len(value)] = value  # padding rows stay
        with replacing(place) as partial:
            partial.mkdir(parents=True)
            save_torch_state_dict(written, partial, max_shard_size=SHARD)
            _copy_settings(folder, partial)

    settings = {"target": target.name, "config": config}
    return HeadLearner(target, head, depth, settings, export)


def _check(head: EagleHead, name: str, target: LoadedModel) -> None:
    if head.ahead(1) is not None:
        raise SpecvizError(
            f"{name!r} drafts all its tokens at once: such heads are not trained here"
        )
    if num_layers(target.model) in head.hidden_layers:
        raise SpecvizError(
            f"{name!r} reads the target's last layer before its norm: such heads are not trained here"
        )


def _copy_settings(folder: Path, place: Path) -> None:
    """Copies the files beside the weights: configuration, tokenizer, licence."""
    left = shutil.ignore_patterns(*_LEFT_BEHIND)(
        str(folder), [file.name for file in folder.iterdir()]
    )
    for file in folder.iterdir():
        if file.is_file() and file.name not in left:
            shutil.copyfile(file, place / file.name)
