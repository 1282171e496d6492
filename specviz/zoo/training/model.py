"""Shape -> a randomly initialised transformers Llama model, and the passes that training needs; the one place that
knows the architecture."""

from math import exp, log

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.zoo.config import Shape


def build_model(
    shape: Shape, seed: int, vocab_size: int, end_of_text: int, attention: str = "sdpa"
) -> LlamaForCausalLM:
    """A fresh model; its weights depend on the shape and the seed alone."""
    torch.manual_seed(seed)
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
        attn_implementation=attention,  # ty: ignore[unknown-argument]
    )
    return LlamaForCausalLM(config)


def layer_outputs(
    model: LlamaForCausalLM, tokens: torch.Tensor, keep: torch.Tensor
) -> list[torch.Tensor]:
    """The hidden states after every layer, before the final norm: tokens [B, L] -> one [B, L, H] per layer.

    keep [num_layers, B] of 0 and 1: where 0, the layer is left out for that row (stochastic depth)."""
    body = model.model
    hidden = body.embed_tokens(tokens)
    positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
    rotary = body.rotary_emb(hidden, positions)
    mask = causal_mask(hidden) if model.config._attn_implementation == "eager" else None
    outputs = []
    for layer, kept in zip(body.layers, keep, strict=True):
        after = layer(
            hidden, attention_mask=mask, position_ids=positions, position_embeddings=rotary
        )
        hidden = hidden + kept[:, None, None] * (after - hidden)
        outputs.append(hidden)
    return outputs


def causal_mask(hidden: torch.Tensor) -> torch.Tensor:
    """[1, 1, L, L] additive: 0 up to the diagonal, the least float above it."""
    length = hidden.shape[1]
    least = torch.finfo(hidden.dtype).min
    return torch.full((length, length), least, dtype=hidden.dtype, device=hidden.device).triu(1)[
        None, None
    ]


def output_logits(model: LlamaForCausalLM, hidden: torch.Tensor) -> torch.Tensor:
    """Hidden states before the final norm [..., H] -> logits [..., V]: what an exit at that layer predicts."""
    return model.lm_head(model.model.norm(hidden))


def next_token_losses(logits: torch.Tensor, windows: torch.Tensor) -> torch.Tensor:
    """Cross-entropy in nats of every token after the first: logits [B, L, V], windows [B, L+1] -> [B, L], float32."""
    return cross_entropy(logits.float().transpose(1, 2), windows[:, 1:], reduction="none")


def dropout_rates(num_layers: int, last: float) -> list[float]:
    """How often each layer is dropped: 0 for the first, growing exponentially to `last` (arXiv:2404.16710, eq. 1-2)."""
    growth = log(2) / max(1, num_layers - 1)
    return [last * (exp(layer * growth) - 1) for layer in range(num_layers)]
