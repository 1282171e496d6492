"""Tiny random-weight models and tokenizers for tests: built offline in milliseconds, seeded, float32, in eval mode.

Weights are wide (std 0.2 and more) so that logits differ clearly between tokens and greedy text is not degenerate.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

FAMILIES = ("llama", "qwen2", "qwen3", "gpt2", "gpt_neox", "opt", "phi3", "mistral", "gemma2", "smollm3")
SLIDING_WINDOW = 8
CONTEXT_LIMIT = 256
EOS = "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TRAINING_TEXT = (
    "Once upon a time there was a little fox who lived near the river with her friends. ",
    "The fox said hello to the small dog, and the dog said hello to the little fox! ",
    "Every day they played in the sun until it was time to go home and sleep. ",
    "def add(first, second):\n    return first + second\n\nprint(add(2, 3))  # 5\n",
    "Tom has 12 apples and gives 5 apples to Ana; now he has 7 apples. ",
)
"""Text the tiny byte-level tokenizer is trained on."""


def tiny(
    family: str, *, vocab_size: int = 64, layers: int = 2, hidden: int = 32, seed: int = 0, **config: Any
) -> PreTrainedModel:
    """A random model of `family` (one that transformers knows); `config` overrides the configuration."""
    values = _common(vocab_size, layers, hidden) | _special(family, layers, hidden) | config
    configuration = AutoConfig.for_model(family, **values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(configuration, dtype=torch.float32)
        _widen(model)
    return model.eval()


class Bigram(LlamaForCausalLM):
    """Looks at the last token alone: for what takes thousands of forwards and asks nothing of attention or a cache.

    A forward is one product, and takes a thirtieth of `tiny`'s.
    """

    def forward(self, input_ids: Tensor, logits_to_keep: int = 0, **_: Any) -> CausalLMOutputWithPast:
        return CausalLMOutputWithPast(logits=self.lm_head(self.model.embed_tokens(input_ids[:, -logits_to_keep:])))


def bigram(vocab_size: int, *, seed: int = 0, hidden: int = 32) -> PreTrainedModel:
    """A random one, with logits as wide as a `tiny` model of this size has them and without an end token."""
    config = LlamaConfig(**_common(vocab_size, 0, hidden) | {"eos_token_id": None})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Bigram(config)
        torch.nn.init.normal_(model.get_input_embeddings().weight)
    return model.eval()


def tiny_folder(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Save a model and its tokenizer in Hugging Face format, as a person's own checkpoint folder would look."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_tokenizer(
    vocab_size: int = 320, seed: int = 0, *, chat: bool = False, swap: tuple[int, int] | None = None
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with an end token (the last id); all 256 bytes are ids, so any text round-trips.

    `seed` rotates the training text (other merges); `chat` adds a chat template; `swap` exchanges the texts of two
    ids, which gives a vocabulary of equal size that differs in exactly those ids. vocab_size >= 257.
    """
    core = Tokenizer.from_str(_trained(vocab_size, seed))
    if swap is not None:
        core = _swapped(core, *swap)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=EOS, clean_up_tokenization_spaces=False)
    tokenizer.chat_template = CHAT_TEMPLATE if chat else None
    return tokenizer


def tiny_pair(
    target: str = "llama", draft: str = "llama", *, padding: int = 0, **tokenizer: Any
) -> tuple[tuple[PreTrainedModel, PreTrainedTokenizerFast], tuple[PreTrainedModel, PreTrainedTokenizerFast]]:
    """A (model, tokenizer) pair twice, target and draft; the target's table has `padding` rows without a token."""
    tok = tiny_tokenizer(**tokenizer)
    large = tiny(target, vocab_size=len(tok) + padding, seed=1, layers=3, hidden=32, eos_token_id=tok.eos_token_id)
    small = tiny(draft, vocab_size=len(tok), seed=2, layers=1, hidden=16, eos_token_id=tok.eos_token_id)
    return (large, tok), (small, tok)


def _common(vocab_size: int, layers: int, hidden: int) -> dict[str, Any]:
    """Configuration values under the names that most families share."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT_LIMIT,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": vocab_size - 1,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }


def _special(family: str, layers: int, hidden: int) -> dict[str, Any]:
    """What one family names differently or needs besides."""
    alternate = [("sliding_attention", "full_attention")[i % 2] for i in range(layers)]
    gemma = {
        "sliding_window": SLIDING_WINDOW,
        "head_dim": hidden // 4,
        "query_pre_attn_scalar": hidden // 4,
        "layer_types": alternate,
    }
    return {
        "qwen3": {"head_dim": hidden // 4},
        "gpt2": {"n_embd": hidden, "n_layer": layers, "n_head": 4, "n_positions": CONTEXT_LIMIT, "n_inner": 2 * hidden},
        "gpt_neox": {"rotary_pct": 0.5},
        "opt": {"ffn_dim": 2 * hidden, "word_embed_proj_dim": hidden, "init_std": 0.2, "pad_token_id": 1},
        "mistral": {"sliding_window": SLIDING_WINDOW, "head_dim": hidden // 4},
        "gemma": {"head_dim": hidden // 4},
        "gemma2": gemma,
        "gemma3_text": gemma,
        "mamba": {"state_size": 4, "conv_kernel": 4},
        "rwkv": {"attention_hidden_size": hidden},
        "lfm2": {"layer_types": ["conv", "full_attention"] * (layers // 2) + ["conv"] * (layers % 2)},
    }.get(family, {})


def _widen(model: PreTrainedModel) -> None:
    """Give the weights that some families initialise near zero (GPT-2's residual projections) the common width too."""
    for parameter in model.parameters():
        if parameter.dim() == 2 and parameter.detach().std() < 0.19:
            torch.nn.init.normal_(parameter, std=0.2)


@cache
def _trained(vocab_size: int, seed: int) -> str:
    """The trained tokenizer as JSON text (training is the slow part, so it happens once)."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    turn = seed % len(TRAINING_TEXT)
    texts = [text for text in TRAINING_TEXT for _ in range(1 + (TRAINING_TEXT.index(text) == turn) * 3 * bool(seed))]
    core.train_from_iterator(texts, trainer)
    core.add_special_tokens([EOS])
    return core.to_str()


def _swapped(core: Tokenizer, first: int, second: int) -> Tokenizer:
    """The same tokenizer with the texts of two ordinary ids exchanged."""
    state = json.loads(core.to_str())
    vocabulary = state["model"]["vocab"]
    a, b = core.id_to_token(first), core.id_to_token(second)
    vocabulary[a], vocabulary[b] = second, first
    return Tokenizer.from_str(json.dumps(state))
