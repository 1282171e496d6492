"""A head that drafts a block at once, on the frozen target (DFlash, arXiv:2602.06036), in z-lab's layout.

Some places of a text are anchors. A block, the anchor's token and mask tokens behind it, sees the target's fused states
before the anchor, and itself both ways. Each place learns the target's own distribution of the text's token there."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from specviz.drafters.block.successors import ConfidenceHead
from specviz.drafters.eagle.layers import AttentionParts, PlainLayer, RMSNorm
from specviz.drafters.markov import MarkovBias
from specviz.zoo.config import Heads
from specviz.zoo.training.objectives import Inputs, forward_kl, total_variation

MASK = 0  # the end token, which never stands within a text
DECAY = 4.0  # a guess counts exp(-1/4) of the one before it
EVERY = 16  # tokens of a text per anchor
KL_WEIGHT = 0.5  # beside the total variation, which alone starts slowly (arXiv:2602.23881)


class BlockTrainingHead(nn.Module):
    """Keys `fc.weight`, `hidden_norm.weight`, `layers.<n>.*` of a Qwen3 layer, `norm.weight`."""

    markov: MarkovBias | None
    """The bias that was fitted to its logits, which it leaves to the caller; None: there is none."""
    confidence_head: ConfidenceHead | None
    """What was fitted to tell how often its tokens are accepted."""

    def __init__(self, target: LlamaForCausalLM, heads: Heads) -> None:
        super().__init__()
        self.target_config = target.config
        self.config = config = block_config(target.config, heads)
        self.block_size = heads.num_heads + 1
        self.target_layers = spread(target.config.num_hidden_layers)
        size = config.hidden_size
        self.fc = nn.Linear(len(self.target_layers) * size, size, bias=False)
        self.hidden_norm = RMSNorm(size, eps=config.rms_norm_eps)
        parts = AttentionParts(has_norms=True)
        self.layers = nn.ModuleList(
            PlainLayer(config, parts) for _ in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(size, eps=config.rms_norm_eps)
        self.register_module("markov", None)
        self.register_module("confidence_head", None)
        for weight in self.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=config.initializer_range)

    def forward(
        self, states: torch.Tensor, x: torch.Tensor, places: torch.Tensor, target: LlamaForCausalLM
    ) -> torch.Tensor:
        """The target's states [W, L, C] and blocks [W, A, B, H] at these places [W, A, B] -> features [W, A, B, H]."""
        num_windows, num_anchors, size, width = x.shape
        fused = self.hidden_norm(self.fc(states))
        length = fused.shape[1]
        block_places = places.flatten(1)  # [W, A * B]
        before = torch.arange(length, device=x.device).expand(num_windows, -1)
        all_places = torch.cat([before, block_places], 1)
        rotary = target.model.rotary_emb(x, all_places)
        anchors = places[:, :, :1].expand_as(places).flatten(1)[..., None]  # [W, A * B, 1]
        own = torch.arange(num_anchors, device=x.device).repeat_interleave(size)
        within = (own[:, None] == own).expand(num_windows, -1, -1)
        sees = torch.cat([before[:, None] < anchors, within], -1)[
            :, None
        ]  # [W, 1, A * B, L + A * B]
        x = x.flatten(1, 2)
        for layer in self.layers:
            x = x + self._attend(layer, layer.input_layernorm(x), fused, rotary, sees)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x).view(num_windows, num_anchors, size, width)

    def _attend(
        self,
        layer: PlainLayer,
        x: torch.Tensor,
        fused: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        sees: torch.Tensor,
    ) -> torch.Tensor:
        attention = layer.self_attn
        shape = (len(x), -1, self.config.num_attention_heads, self.config.head_dim)
        rows = torch.cat([fused.to(x.dtype), x], 1)
        q = attention.q_norm(attention.q_proj(x).view(shape)).transpose(1, 2)
        k = attention.k_norm(attention.k_proj(rows).view(shape)).transpose(1, 2)
        v = attention.v_proj(rows).view(shape).transpose(1, 2)
        cos, sin = rotary
        num_new = x.shape[1]
        _, k = apply_rotary_pos_emb(k, k, cos, sin)
        q, _ = apply_rotary_pos_emb(q, q, cos[:, -num_new:], sin[:, -num_new:])
        out = scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), sees)
        return attention.o_proj(out.transpose(1, 2).flatten(2).to(x.dtype))


def block_config(config: LlamaConfig, heads: Heads) -> LlamaConfig:
    """The target's sizes, but this many layers with this inner width."""
    values = {"num_hidden_layers": heads.num_layers, "intermediate_size": heads.intermediate_size}
    return LlamaConfig.from_dict({**config.to_dict(), **values})


def spread(num_layers: int) -> tuple[int, ...]:
    """Three layers of the target, numbered from 0, from the second to the last but two, as DFlash spreads them."""
    return 1, (num_layers - 2) // 2, num_layers - 3


def block_settings(head: BlockTrainingHead) -> dict[str, Any]:
    """The settings of a z-lab checkpoint."""
    names = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "rms_norm_eps",
        "rope_parameters",
        "max_position_embeddings",
    )
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **{name: getattr(head.config, name) for name in names},
        "num_target_layers": head.target_config.num_hidden_layers,
        "block_size": head.block_size,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(head.target_layers)},
    }


@torch.no_grad()
def states_of(
    head: BlockTrainingHead, target: LlamaForCausalLM, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's states [W, L, C] that the head reads, and its logits [W, L, V]."""
    out = target(input_ids=tokens, output_hidden_states=True, use_cache=False)
    states = [out.hidden_states[layer + 1] for layer in head.target_layers]
    return torch.cat(states, -1), out.logits


def blocks_at(
    head: BlockTrainingHead, target: LlamaForCausalLM, tokens: torch.Tensor, anchors: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The embedded blocks [W, A, B, H] at these anchors [W, A] of texts [W, L], and their places [W, A, B]."""
    places = anchors[..., None] + torch.arange(head.block_size, device=tokens.device)
    ids = torch.full_like(places, MASK)
    ids[..., 0] = tokens.gather(1, anchors)
    with torch.no_grad():
        return target.model.embed_tokens(ids), places


def drawn_anchors(head: BlockTrainingHead, tokens: torch.Tensor, step: int) -> torch.Tensor:
    """Some places [W, A] of texts [W, L] that have room for a block, the same for the same step."""
    count, length = tokens.shape
    generator = torch.Generator().manual_seed(step)
    last = length - head.block_size
    drawn = [torch.randperm(last, generator=generator)[: length // EVERY] + 1 for _ in range(count)]
    return torch.stack(drawn).to(tokens.device)


def before_each(places: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """What rows [W, L, ...] hold before the guessed tokens of blocks at places [W, A, B]: [W, A, B - 1, ...]."""
    windows = torch.arange(len(rows), device=rows.device)[:, None, None]
    return rows[windows, places[:, :, :-1]]


def block_guesses(
    head: BlockTrainingHead, target: LlamaForCausalLM, tokens: torch.Tensor, step: int
) -> Inputs:
    """What a `heads.BiasObjective` reads of blocks at the step's anchors."""
    states, logits = states_of(head, target, tokens)
    x, places = blocks_at(head, target, tokens, drawn_anchors(head, tokens, step))
    features = head(states, x, places, target)[:, :, 1:]  # [W, A, B - 1, H]
    guesses = target.lm_head(features)
    before, wanted = before_each(places, tokens), before_each(places, logits)
    found: list[torch.Tensor] = []
    for depth in range(guesses.shape[2]):
        found += [rows[:, :, depth] for rows in (features, guesses, before, wanted)]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class BlockObjective:
    """Total variation and KL from the target's own distributions, at anchors drawn anew for each step."""

    head: BlockTrainingHead
    target: LlamaForCausalLM

    def inputs(self, windows: torch.Tensor, step: int) -> Inputs:
        tokens = windows[:, :-1]
        states, logits = states_of(self.head, self.target, tokens)
        anchors = drawn_anchors(self.head, tokens, step)
        x, places = blocks_at(self.head, self.target, tokens, anchors)
        return states, x, places, logits

    def loss(
        self, states: torch.Tensor, x: torch.Tensor, places: torch.Tensor, logits: torch.Tensor
    ) -> torch.Tensor:
        guesses = self.head(states, x, places, self.target)[:, :, 1:]  # behind the anchor
        q = self.target.lm_head(guesses).float().log_softmax(-1)  # [W, A, B - 1, V]
        p = before_each(places, logits).float().log_softmax(-1)
        depth = torch.arange(q.shape[2], device=q.device)
        weights = torch.exp(-depth / DECAY)
        distance = total_variation(p, q) + KL_WEIGHT * forward_kl(p, q)  # [W, A, B - 1]
        return (distance * weights).sum(-1).mean() / weights.sum()
