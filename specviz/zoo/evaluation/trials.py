"""What a finished model can do, tried out: sums solved, texts written, tokens per second."""

import random
import time
from collections.abc import Iterator
from itertools import islice
from statistics import median

import torch
from tokenizers import Tokenizer
from transformers import DynamicCache, PreTrainedModel

from specviz.decoding.forward.transformers_forward import asked_of
from specviz.decoding.sampling import Sampling
from specviz.models.generation import settings_for, without_settings
from specviz.zoo import arithmetic
from specviz.zoo.config import Recipe, Shape
from specviz.zoo.training.model import build_model

NUM_SUMS = 200
MOST_ANSWER_TOKENS = 140
NUM_SAMPLES = 10
SAMPLE_PROMPT = "Once upon a time"
SAMPLE_TOKENS = 120
SAMPLE_TEMPERATURE = 0.8
TIMED_TOKENS = 128
WIDE_LAYERS = 2


def sums_solved(model: PreTrainedModel, tokenizer: Tokenizer) -> float:
    """The share of held-out sums of two three-digit numbers whose answer is right when written greedily."""
    return sum(is_solved(model, tokenizer, a, b) for a, b in held_out_sums()) / NUM_SUMS


def held_out_sums() -> Iterator[tuple[int, int]]:
    generator = random.Random(13)
    pairs = iter(lambda: (generator.randrange(100, 1000), generator.randrange(100, 1000)), None)
    return islice((pair for pair in pairs if arithmetic.is_held_out(*pair)), NUM_SUMS)


def is_solved(model: PreTrainedModel, tokenizer: Tokenizer, a: int, b: int) -> bool:
    text = continuation(
        model, tokenizer, f"Sum: {a} + {b}\n\n", MOST_ANSWER_TOKENS, temperature=0.0, seed=0
    )
    return f"{a} + {b} = {a + b}" in text.splitlines()


def samples(model: PreTrainedModel, tokenizer: Tokenizer) -> list[str]:
    """The first NUM_SAMPLES seeds' continuations of one opening, none left out."""
    return [
        continuation(model, tokenizer, SAMPLE_PROMPT, SAMPLE_TOKENS, SAMPLE_TEMPERATURE, seed)
        for seed in range(NUM_SAMPLES)
    ]


def continuation(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    prompt: str,
    num_tokens: int,
    temperature: float,
    seed: int,
) -> str:
    """The prompt and up to `num_tokens` more tokens, drawn at `temperature` (0: greedily) with the generator `seed`."""
    torch.manual_seed(seed)
    settings = settings_for(Sampling(temperature), num_tokens, [model.config.eos_token_id])
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    tokens = without_settings(model).generate(ids, generation_config=settings)
    return tokenizer.decode(tokens[0].tolist())


def wide_shape(model: PreTrainedModel) -> Shape:
    """A shape of two layers with nearly as many parameters as `model`."""
    vocab_size, context = model.config.vocab_size, model.config.max_position_embeddings
    wanted = model.num_parameters()
    width = next(
        width
        for width in range(64, 8192, 64)
        if WIDE_LAYERS * 12 * width**2 + vocab_size * width >= wanted
    )
    return Shape(width, WIDE_LAYERS, width // 64, round(width * 8 / 3), context)


def wide_model(recipe: Recipe, model: PreTrainedModel) -> PreTrainedModel:
    """An untrained model of equal size in two layers, to time beside `model`."""
    return build_model(
        wide_shape(model), recipe.seed, model.config.vocab_size, model.config.bos_token_id
    ).eval()


@torch.inference_mode()
def seconds_per_token(models: list[PreTrainedModel]) -> list[float]:
    """Median seconds of one cached forward of one token, models taking turns at every token."""
    caches = [DynamicCache() for _ in models]
    taken: list[list[float]] = [[] for _ in models]
    token = torch.tensor([[1]])
    for _ in range(TIMED_TOKENS):
        for model, cache, times in zip(models, caches, taken, strict=True):
            started = time.perf_counter()
            model(token, **asked_of(model, cache))
            times.append(time.perf_counter() - started)
    return [median(times) for times in taken]
