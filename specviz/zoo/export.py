"""A trained model -> a Hugging Face folder that AutoModelForCausalLM and AutoTokenizer load offline.

Weights are stored as float16; `recipe.json` beside them says how they came to be. A folder is written beside its place
and renamed into it, so readers never see half of one."""

import copy
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from specviz.errors import SpecvizError
from specviz.zoo.config import Recipe
from specviz.zoo.corpus import END_OF_TEXT


@dataclass(frozen=True, slots=True)
class Origin:
    """How an exported model came to be: its recipe and how many of its tokens it has seen so far."""

    recipe: Recipe
    tokens_seen: int

    @classmethod
    def read(cls, folder: Path) -> "Origin":
        path = folder / "recipe.json"
        if not path.is_file():
            raise SpecvizError(f"{folder.name!r} is no exported model (it has no recipe.json); run `export` first")
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(Recipe.from_dict(values["recipe"]), values["tokens_seen"])

    def write(self, folder: Path) -> None:
        write_json(folder / "recipe.json", {"tokens_seen": self.tokens_seen, "recipe": self.recipe.to_dict()})


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, origin: Origin, folder: Path) -> None:
    """Write config, weights, tokenizer and recipe to `folder`, replacing what was there."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    half = copy.deepcopy(model).to("cpu", torch.float16)
    half.save_pretrained(partial)
    tokenizer.save(str(partial / "tokenizer.json"))
    write_json(partial / "tokenizer_config.json", tokenizer_settings(model.config.max_position_embeddings))
    origin.write(partial)
    for path in partial.iterdir():
        path.chmod(0o644)  # safetensors writes files that only their owner can read
    swap(partial, folder)


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


def swap(partial: Path, folder: Path) -> None:
    """Put `partial` where `folder` is; the folder is absent only between two renames."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(partial, folder)
    shutil.rmtree(old, ignore_errors=True)
