"""Draft heads on the frozen target, in the layouts of the public checkpoints: Medusa and EAGLE.

Medusa (arXiv:2401.10774): head j (0, 1, ...) predicts token t+2+j from the target's last hidden state at t (after the
final norm), by a residual block and an output matrix. EAGLE (arXiv:2401.15077): one decoder layer that goes on in
feature space; it reads the feature at t and the embedding of token t+1, predicts the feature at t+1, and the target's
own output matrix turns that into the distribution of token t+2. A Markov bias (DSpark, arXiv:2607.05147) is fitted on
finished heads of Medusa or of a block: it adds to the logits of each depth what the token before says of the next."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, smooth_l1_loss
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from specviz.drafters.block.successors import ConfidenceHead
from specviz.drafters.markov import MarkovBias
from specviz.drafters.medusa.heads import MedusaHeads
from specviz.zoo.config import Recipe
from specviz.zoo.training.block import (
    BlockObjective,
    BlockTrainingHead,
    block_guesses,
    block_settings,
)
from specviz.zoo.training.model import causal_mask
from specviz.zoo.training.objectives import (
    DISTANCES,
    Inputs,
    Objective,
    forward_kl,
    total_variation,
)

MEDUSA_DECAY = 0.8  # weight of head j is 0.8^j (arXiv:2401.10774, section 2.2.1)
EAGLE_TOKEN_WEIGHT = (
    0.1  # of the token loss beside the feature loss (arXiv:2401.15077, section 4.2)
)


class EagleTrainingHead(nn.Module):
    """Keys `fc.weight`, `fc.bias` and `layers.0.*` of a Llama decoder layer without its input norm."""

    def __init__(self, target: LlamaForCausalLM) -> None:
        super().__init__()
        self.config = config = eagle_config(target.config)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        layer = LlamaDecoderLayer(config, layer_idx=0)
        layer.input_layernorm = nn.Identity()
        self.layers = nn.ModuleList([layer])

    def forward(
        self,
        features: torch.Tensor,
        embedded: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Features at t and embeddings of token t+1, both [B, L, H] -> features at t+1 [B, L, H]."""
        hidden = self.fc(torch.cat([embedded, features], dim=-1))
        return self.layers[0](
            hidden, attention_mask=causal_mask(hidden), position_embeddings=rotary
        )


TrainedHead = MedusaHeads | EagleTrainingHead | BlockTrainingHead


def eagle_config(config: LlamaConfig) -> LlamaConfig:
    config = LlamaConfig.from_dict({**config.to_dict(), "num_hidden_layers": 1})
    config._attn_implementation = "eager"
    return config


def build_head(recipe: Recipe, target: LlamaForCausalLM) -> TrainedHead:
    """Freshly initialised heads; they depend on the recipe's seed and the target's output matrix."""
    assert recipe.heads is not None
    torch.manual_seed(recipe.seed)
    if recipe.heads.kind == "medusa":
        return medusa_heads(target, recipe.heads.num_heads, recipe.heads.own_output)
    if recipe.heads.kind == "block":
        return BlockTrainingHead(target, recipe.heads)
    return EagleTrainingHead(target)


def medusa_heads(target: LlamaForCausalLM, num_heads: int, own_output: bool) -> MedusaHeads:
    """Heads that start as the target's own: blocks that change nothing, and its output matrix."""
    made = MedusaHeads(
        target.config.hidden_size, target.config.vocab_size, num_heads, own_output=own_output
    )
    for head in made:
        nn.init.zeros_(head[0].linear.weight)
        nn.init.zeros_(head[0].linear.bias)
        if own_output:
            head[1].weight.data.copy_(target.lm_head.weight)
    return made


class FittedParts(nn.Module):
    """What is fitted to finished heads, with the names that its tensors have in their folder."""

    confidence_head: ConfidenceHead | None

    def __init__(self, markov: MarkovBias, confidence_head: ConfidenceHead | None = None) -> None:
        super().__init__()
        self.markov = markov
        self.confidence_head = confidence_head

    def attach(self, heads: nn.Module) -> None:
        """Makes them parts of the heads that they were fitted to."""
        for name, module in self.named_children():
            setattr(heads, name, module)


def fresh_parts(recipe: Recipe, target: LlamaForCausalLM) -> FittedParts:
    """A bias that adds nothing yet, and what else the recipe asks for; they depend on its seed."""
    assert recipe.heads is not None
    assert recipe.heads.bias is not None
    torch.manual_seed(recipe.seed)
    bias = recipe.heads.bias
    markov = MarkovBias(target.config.vocab_size, bias.rank, recipe.heads.num_heads)
    for table in markov.tables:
        nn.init.zeros_(table.weight)
    if not bias.has_confidence:
        return FittedParts(markov)
    return FittedParts(markov, ConfidenceHead(target.config.hidden_size + bias.rank, has_bias=True))


def head_settings(head: TrainedHead) -> dict[str, Any]:
    """What config.json says of heads: the public names (those of a Llama layer for EAGLE), and `medusa_own_output`,
    which is ours."""
    if isinstance(head, BlockTrainingHead):
        return block_settings(head)
    if isinstance(head, MedusaHeads):
        return {
            "medusa_num_heads": len(head),
            "medusa_num_layers": 1,
            "medusa_own_output": head.own_output,
        }
    names = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
    )
    return {
        "architectures": ["LlamaForCausalLMEagle"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "bias": True,
        **{name: getattr(head.config, name) for name in names},
    }


def head_objective(head: TrainedHead, target: LlamaForCausalLM) -> Objective:
    if isinstance(head, MedusaHeads):
        return MedusaObjective(head, target)
    if isinstance(head, BlockTrainingHead):
        return BlockObjective(head, target)
    return EagleObjective(head, target)


@torch.no_grad()
def features_of(target: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """The target's last hidden states after its final norm: [B, L] -> [B, L, H]."""
    return target.model(input_ids=tokens, use_cache=False).last_hidden_state


def rotary_of(
    target: LlamaForCausalLM, features: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary embeddings of the head's positions, those of the tokens it reads: 1, 2, ..."""
    return target.model.rotary_emb(
        features, torch.arange(1, features.shape[1] + 1, device=features.device)[None]
    )


@dataclass(frozen=True, slots=True)
class MedusaObjective:
    """KL from the target's own later distributions: head j at t against the target at t+1+j, weighted 0.8^j.

    Learning the target's distribution rather than the text's next tokens makes acceptance higher than data labels do;
    the target is frozen, so its rows are there anyway."""

    head: MedusaHeads
    target: LlamaForCausalLM

    def inputs(self, windows: torch.Tensor, step: int) -> Inputs:
        features = features_of(self.target, windows[:, :-1])
        with torch.no_grad():
            return features, self.target.lm_head(features)

    def loss(self, features: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), device=features.device)
        target = logits.float().log_softmax(-1)
        for index, row in enumerate(self.head(features, self.target.lm_head)):
            p, q = target[:, 1 + index :], row[:, : -1 - index].float().log_softmax(-1)
            total = total + MEDUSA_DECAY**index * forward_kl(p, q).mean()
        return total


@dataclass(frozen=True, slots=True)
class BiasObjective:
    """A distance from the target's own later distributions to those of frozen heads with the bias, all depths alike.

    A confidence head learns how much both overlap, which is how often a drawn token is accepted."""

    parts: FittedParts
    heads: MedusaHeads | BlockTrainingHead
    target: LlamaForCausalLM
    distance: str

    @torch.no_grad()
    def inputs(self, windows: torch.Tensor, step: int) -> Inputs:
        """Gives, depth by depth, features, the heads' logits [..., V], the tokens before, and the target's logits."""
        tokens = windows[:, :-1]
        if isinstance(self.heads, BlockTrainingHead):
            return block_guesses(self.heads, self.target, tokens, step)
        features = features_of(self.target, tokens)
        logits = self.target.lm_head(features)
        found: list[torch.Tensor] = []
        for index, row in enumerate(self.heads(features, self.target.lm_head)):
            shift = index + 1
            found += [features[:, :-shift], row[:, :-shift], tokens[:, shift:], logits[:, shift:]]
        return tuple(found)

    def loss(self, *inputs: torch.Tensor) -> torch.Tensor:
        losses = []
        for depth in range(len(inputs) // 4):
            features, guessed, before, logits = inputs[4 * depth : 4 * depth + 4]
            q = self.parts.markov.biased(depth, before, guessed).float().log_softmax(-1)
            p = logits.float().log_softmax(-1)
            losses.append(DISTANCES[self.distance](p, q).mean())
            if self.parts.confidence_head is not None:
                row = self.parts.markov.embed(before)
                said = self.parts.confidence_head.logits(features, row.detach())
                overlap = 1 - total_variation(p, q.detach())
                losses.append(binary_cross_entropy_with_logits(said, overlap))
        return torch.stack(losses).sum() / (len(inputs) // 4)


@dataclass(frozen=True, slots=True)
class EagleObjective:
    """Smooth L1 between predicted and real features plus 0.1 x cross-entropy from the target's to the head's tokens."""

    head: EagleTrainingHead
    target: LlamaForCausalLM

    def inputs(self, windows: torch.Tensor, step: int) -> Inputs:
        tokens = windows[:, :-1]
        features = features_of(self.target, tokens)
        noise = (
            torch.zeros_like(features) if not self.head.training else uniform_noise(features, step)
        )
        with torch.no_grad():
            return (
                features[:, :-1] + noise[:, :-1],
                self.target.model.embed_tokens(tokens[:, 1:]),
                features[:, 1:],
            )

    def loss(
        self, features: torch.Tensor, embedded: torch.Tensor, wanted: torch.Tensor
    ) -> torch.Tensor:
        rotary = rotary_of(self.target, features)
        predicted = self.head(features, embedded, rotary)
        p = self.target.lm_head(wanted).float().log_softmax(-1)
        q = self.target.lm_head(predicted).float().log_softmax(-1)
        token_loss = -(p.exp() * q).sum(-1).mean()
        return smooth_l1_loss(predicted.float(), wanted.float()) + EAGLE_TOKEN_WEIGHT * token_loss


def uniform_noise(features: torch.Tensor, step: int) -> torch.Tensor:
    """Uniform in [-0.1, 0.1], the same for the same step: the head must live with its own small errors."""
    generator = torch.Generator().manual_seed(step)
    return (torch.rand(features.shape, generator=generator) * 0.2 - 0.1).to(features)
