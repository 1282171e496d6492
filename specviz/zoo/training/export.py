"""A trained member -> its folder in assets/models: float16 weights, config, tokenizer, and `recipe.json`.

A language model's folder loads with AutoModelForCausalLM and AutoTokenizer, offline. Heads have their weights and a
config that says what they are and which target they belong to (the layout is written down in their MODEL_CARD.md). A
folder is written beside its place and renamed into it, so readers never see half of one."""

import copy
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

from specviz.errors import SpecvizError
from specviz.zoo.config import Recipe
from specviz.zoo.data.corpus import END_OF_TEXT
from specviz.zoo.training.heads import (
    FittedParts,
    TrainedHead,
    build_head,
    fresh_parts,
    head_settings,
)

SHARD = "9MB"  # of weights: larger files are no part of a repository
HEAD_FILES = {
    "medusa": "medusa_lm_head.safetensors",
    "eagle": "model.safetensors",
    "block": "model.safetensors",
}
BIAS_FILE = "markov.safetensors"  # beside the heads that it was fitted on


@dataclass(frozen=True, slots=True)
class Origin:
    """How an exported member came to be: its recipe and how many of its tokens it has seen so far."""

    recipe: Recipe
    tokens_seen: int

    @classmethod
    def read(cls, folder: Path) -> "Origin":
        path = folder / "recipe.json"
        if not path.is_file():
            raise SpecvizError(
                f"{folder.name!r} is no exported model (it has no recipe.json); run `export` first"
            )
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(Recipe.from_dict(values["recipe"]), values["tokens_seen"])

    def write(self, folder: Path) -> None:
        write_json(
            folder / "recipe.json",
            {"tokens_seen": self.tokens_seen, "recipe": self.recipe.to_dict()},
        )


def export_model(
    model: LlamaForCausalLM, tokenizer: Tokenizer, origin: Origin, folder: Path
) -> None:
    """Write config, weights, tokenizer and recipe to `folder`, replacing what was there."""
    with replacing(folder) as partial:
        save_model(model, partial)
        tokenizer.save(str(partial / "tokenizer.json"))
        write_json(
            partial / "tokenizer_config.json",
            tokenizer_settings(model.config.max_position_embeddings),
        )
        origin.write(partial)


def save_model(model: PreTrainedModel, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    """Config and weights."""
    copy.deepcopy(model).to("cpu", dtype).save_pretrained(folder, max_shard_size=SHARD)


def export_head(head: TrainedHead, target_name: str, origin: Origin, folder: Path) -> None:
    """Write weights, config and recipe to `folder`, replacing what was there."""
    assert origin.recipe.heads is not None
    with replacing(folder) as partial:
        partial.mkdir()
        save_weights(head, partial / HEAD_FILES[origin.recipe.heads.kind])
        write_json(
            partial / "config.json", {"base_model_name_or_path": target_name, **head_settings(head)}
        )
        origin.write(partial)


def export_parts(parts: FittedParts, origin: Origin, folder: Path) -> None:
    """Write a bias, and the recipe that names it, into the folder of the heads that it was fitted on."""
    save_weights(parts, folder / BIAS_FILE)
    origin.write(folder)


def save_weights(module: torch.nn.Module, path: Path) -> None:
    """The tensors in float16; the file is complete or absent, never half."""
    weights = {
        name: value.to("cpu", torch.float16).contiguous()
        for name, value in module.state_dict().items()
    }
    partial = path.with_suffix(".partial")
    save_file(weights, partial, metadata={"format": "pt"})
    partial.chmod(0o644)  # safetensors writes files that only their owner can read
    partial.replace(path)


def load_model(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    ).eval()


def load_head(folder: Path, target: LlamaForCausalLM) -> TrainedHead:
    """The exported heads in float32, with their bias if it was fitted, on their target's device."""
    recipe = Origin.read(folder).recipe
    assert recipe.heads is not None
    head = build_head(recipe, target)
    state = load_file(folder / HEAD_FILES[recipe.heads.kind])
    if (folder / BIAS_FILE).is_file():
        fresh_parts(recipe, target).attach(head)
        state |= load_file(folder / BIAS_FILE)
    head.load_state_dict(state)
    return head.to(target.device).eval().requires_grad_(False)


def tokenizer_settings(context: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A path to fill; what is there in the end takes the folder's place, which is absent only between two renames."""
    partial, old = (folder.with_name(f".{folder.name}.{name}") for name in ("partial", "old"))
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    yield partial
    for path in partial.iterdir():
        path.chmod(0o644)  # safetensors writes files that only their owner can read
    if folder.exists():
        os.replace(folder, old)
    os.replace(partial, folder)
    shutil.rmtree(old, ignore_errors=True)
