"""Recipe -> a randomly initialised transformers Llama model; the one place that knows the architecture."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.zoo.config import Recipe


def build_model(recipe: Recipe, vocab_size: int, end_of_text: int, attention: str = "sdpa") -> LlamaForCausalLM:
    """A model of the recipe's shape; its weights depend on the recipe's seed alone."""
    torch.manual_seed(recipe.seed)
    shape = recipe.shape
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config)


def next_token_losses(model: torch.nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """Cross-entropy in nats of every token after the first: windows [B, L+1] -> [B, L], float32."""
    logits = model(input_ids=windows[:, :-1], use_cache=False).logits.float()
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), windows[:, 1:], reduction="none")
