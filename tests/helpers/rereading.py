"""Times how many tokens a model with a state had better read again together with a draft, before it reads them alone.

`python -m tests.helpers.rereading` prints a line for each model and limit (`cached_lm.MOST_TOGETHER`): milliseconds per
step and tokens read twice. A token of a draft of 4 is accepted 60 % of the time.
"""

import random
import statistics
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specviz.decoding import cached_lm
from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import chain
from specviz.decoding.forward.transformers_forward import TransformersForward
from specviz.models.memory import products

WORDS = 8000
K, ACCEPTED = 4, 0.6
STEPS, ROUNDS = 40, 3
LIMITS = (1, 4, 8, 16, 32, 64)
SHAPES = {"7 to 13 million": (256, 8), "97 to 124 million": (768, 16)}
"""Parameters -> width and layers."""
DELTA_RULE = {
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
CONVOLUTION = ["conv", "conv", "full_attention", "conv"]


def make(kind: str, hidden: int, layers: int) -> PreTrainedModel:
    own = DELTA_RULE if kind == "qwen3_5_text" else {"layer_types": CONVOLUTION * (layers // len(CONVOLUTION))}
    config = AutoConfig.for_model(
        kind,
        vocab_size=WORDS,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=2,
        **own,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def time_steps(model: PreTrainedModel, limit: int) -> tuple[float, float]:
    """Milliseconds and tokens read twice per step, where more than `limit` tokens are read before a draft."""
    cached_lm.MOST_TOGETHER = limit
    lm, dice = CachedLM(model, 4096, products(), TransformersForward(model, products())), random.Random(1)
    text = [dice.randrange(WORDS) for _ in range(60)]
    lm.forward(text)
    began = time.perf_counter()
    for _ in range(STEPS):
        draft = [dice.randrange(WORDS) for _ in range(K)]
        lm.forward(text, chain(draft))
        accepted = next((place for place in range(K) if dice.random() >= ACCEPTED), K)
        text = [*text, *draft[:accepted], dice.randrange(WORDS)]
    return 1000 * (time.perf_counter() - began) / STEPS, lm.read_again / STEPS


def main() -> None:
    for kind in ("lfm2", "qwen3_5_text"):
        for size, shape in SHAPES.items():
            model = make(kind, *shape)
            found: dict[int, list[tuple[float, float]]] = {limit: [] for limit in LIMITS}
            for _ in range(ROUNDS):
                for limit in LIMITS:
                    found[limit].append(time_steps(model, limit))
            for limit, steps in found.items():
                times, again = zip(*steps, strict=True)
                print(f"{kind}, {size}, {limit}: {statistics.median(times):.1f} ms, {again[0]:.1f} read again")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
