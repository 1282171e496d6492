"""The target's own texts, on which a draft model is distilled: continuations of document openings at temperature 1."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache, LlamaForCausalLM

from specviz.decoding.forward.transformers_forward import asked_of
from specviz.zoo.config import Recipe
from specviz.zoo.data.corpus import Batches, TokenFile, save_array, tokens_stem

SAMPLES = "samples"
CHUNK = 128
OPENINGS = (4, 64)  # tokens of an opening: at least, and fewer than


def write_samples(recipe: Recipe, target: LlamaForCausalLM, batches: Batches, folder: Path) -> None:
    """`samples-train.npy` in `folder`, made in chunks: cut off and run again, it goes on where it was."""
    assert recipe.distillation is not None
    stem = tokens_stem(folder, SAMPLES, "train")
    if stem.with_suffix(".npy").exists():
        return
    chunks = list(finished_chunks(recipe, target, batches, folder / SAMPLES))
    tokens = np.concatenate(chunks)[: recipe.distillation.num_samples]
    marked = np.concatenate(
        [np.full((len(tokens), 1), target.config.bos_token_id, dtype=np.uint16), tokens], axis=1
    )
    save_array(stem.with_suffix(".starts.npy"), np.arange(len(marked)) * marked.shape[1])
    save_array(stem.with_suffix(".npy"), marked.reshape(-1))


def finished_chunks(
    recipe: Recipe, target: LlamaForCausalLM, batches: Batches, folder: Path
) -> Iterator[np.ndarray]:
    """One [CHUNK, sample_length] array after another, read back where it exists already."""
    assert recipe.distillation is not None
    folder.mkdir(parents=True, exist_ok=True)
    num_chunks = -(-recipe.distillation.num_samples // CHUNK)
    for index in range(num_chunks):
        path = folder / f"{index:04d}.npy"
        if not path.exists():
            generator = np.random.default_rng((recipe.seed, index, 2))
            openings = batches.openings(generator, CHUNK, int(generator.integers(*OPENINGS)))
            sampled = continue_openings(
                target, openings, recipe.distillation.sample_length, int(generator.integers(2**31))
            )
            save_array(path, sampled)
            print(f"samples {(index + 1) * CHUNK:,} of {num_chunks * CHUNK:,}", flush=True)
        yield np.load(path)


@torch.inference_mode()
def continue_openings(
    target: LlamaForCausalLM, openings: np.ndarray, length: int, seed: int
) -> np.ndarray:
    """Openings [B, n] continued to [B, length] uint16 at temperature 1; an end of text is followed by the next text."""
    device = target.device
    generator = torch.Generator(device).manual_seed(seed)
    tokens = [torch.from_numpy(openings).to(device)]
    cache = DynamicCache()
    for _ in range(length - openings.shape[1]):
        logits = target(tokens[-1], **asked_of(target, cache, num_logits=1)).logits[:, -1]
        tokens.append(torch.multinomial(logits.float().softmax(-1), 1, generator=generator))
    return torch.cat(tokens, dim=1).cpu().numpy().astype(np.uint16)


def open_samples(folder: Path) -> TokenFile:
    return TokenFile.open(folder, SAMPLES, "train")
