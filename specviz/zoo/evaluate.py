"""Exported models -> numbers on held-out text: bits per byte, and how well each draft model agrees with the target.

Teacher-forced, at temperature 1. Overlap = sum over the vocabulary of min(p, q): the chance that a draft token is
accepted. Agreement = the share of positions where both find the same token likeliest."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from specviz.zoo.corpus import END_OF_TEXT, TokenFile, valid_windows
from specviz.zoo.export import Origin

NUM_WINDOWS = 64
BATCH = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """One model's numbers by source name; `overlap` and `agreement` (same likeliest token) are against the target."""

    name: str
    num_parameters: int
    tokens_seen: int
    bits_per_byte: Mapping[str, float]
    overlap: Mapping[str, float]
    agreement: Mapping[str, float]


def evaluate(folders: list[Path], valid: Mapping[str, TokenFile]) -> list[Measured]:
    """Measure every folder on every held-out source; the first folder is the target."""
    models = [load_model(folder) for folder in folders]
    num_bytes = bytes_per_token(Tokenizer.from_file(str(folders[0] / "tokenizer.json")))
    length = models[0].config.max_position_embeddings
    sums = {name: measure(models, valid_windows(file, length, NUM_WINDOWS), num_bytes) for name, file in valid.items()}
    return [
        Measured(
            folder.name,
            model.num_parameters(),
            Origin.read(folder).tokens_seen,
            {name: values[row, 0] for name, values in sums.items()},
            {name: values[row, 1] for name, values in sums.items()} if row else {},
            {name: values[row, 2] for name, values in sums.items()} if row else {},
        )
        for row, (folder, model) in enumerate(zip(folders, models, strict=True))
    ]


def load_model(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()


def bytes_per_token(tokenizer: Tokenizer) -> torch.Tensor:
    """[V] how many bytes of text each token stands for (a byte-level piece has one character per byte)."""
    pieces = (tokenizer.id_to_token(index) for index in range(tokenizer.get_vocab_size()))
    return torch.tensor([0 if piece == END_OF_TEXT else len(piece) for piece in pieces])


@torch.inference_mode()
def measure(models: list[PreTrainedModel], windows: np.ndarray, num_bytes: torch.Tensor) -> np.ndarray:
    """[M, 3]: bits per byte, mean overlap with model 0, share of positions with model 0's likeliest token."""
    totals = torch.zeros(len(models), 3, dtype=torch.float64)
    num_positions = num_text_bytes = 0
    for batch in batches(windows):
        following = batch[:, 1:]
        rows = [model(input_ids=batch[:, :-1]).logits.log_softmax(-1) for model in models]  # each [B, L, V]
        target = rows[0].exp()
        for total, row in zip(totals, rows, strict=True):
            total[0] -= row.gather(-1, following[..., None]).sum() / log(2)
            total[1] += torch.minimum(target, row.exp()).sum()
            total[2] += (target.argmax(-1) == row.argmax(-1)).sum()
        num_positions += following.numel()
        num_text_bytes += num_bytes[following].sum().item()
    return (totals / torch.tensor([num_text_bytes, num_positions, num_positions])).numpy()


def batches(windows: np.ndarray) -> Iterator[torch.Tensor]:
    return iter(torch.from_numpy(windows).split(BATCH))
