"""What a member of the family learns: token windows -> a loss. One class per way of training.

`inputs` turns the windows of a step into tensors (with the step's own randomness, so that a resumed run repeats it);
`loss` is a pure function of those tensors and is what gets compiled."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from transformers import LlamaForCausalLM

from specviz.zoo.config import EarlyExitRecipe, Recipe
from specviz.zoo.training.model import (
    dropout_rates,
    layer_outputs,
    next_token_losses,
    output_logits,
)

Inputs = tuple[torch.Tensor, ...]


class Objective(Protocol):
    def inputs(self, windows: torch.Tensor, step: int) -> Inputs:
        """The inputs of `loss`, from windows [B, L+1] int64 on the device."""
        ...

    def loss(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The mean loss, a scalar."""
        ...


@dataclass(frozen=True, slots=True)
class NextToken:
    """Cross-entropy of the next token."""

    model: LlamaForCausalLM

    def inputs(self, windows: torch.Tensor, step: int) -> Inputs:
        return (windows,)

    def loss(self, windows: torch.Tensor) -> torch.Tensor:
        logits = self.model(input_ids=windows[:, :-1], use_cache=False).logits
        return next_token_losses(logits, windows).mean()


@dataclass(frozen=True, slots=True)
class NextTokenWithExits:
    """Cross-entropy of the last layer and of one early exit, with layer dropout (LayerSkip, arXiv:2404.16710)."""

    model: LlamaForCausalLM
    early_exit: EarlyExitRecipe
    seed: int

    def inputs(self, windows: torch.Tensor, step: int) -> Inputs:
        rates = np.array(
            dropout_rates(self.model.config.num_hidden_layers, self.early_exit.dropout)
        )
        drawn = np.random.default_rng((self.seed, step, 1)).random((len(rates), len(windows)))
        kept = drawn >= rates[:, None] if self.model.training else np.ones_like(drawn)
        keep = torch.from_numpy(kept.astype(np.float32)).to(windows.device)
        turn = torch.tensor([step % len(self.early_exit.layers)], device=windows.device)
        return windows, keep, turn

    def loss(self, windows: torch.Tensor, keep: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        hidden = layer_outputs(self.model, windows[:, :-1], keep)
        exits = torch.stack([hidden[layer - 1] for layer in self.early_exit.layers])
        chosen = exits.index_select(0, turn)[0]
        last, early = (
            next_token_losses(output_logits(self.model, row), windows).mean()
            for row in (hidden[-1], chosen)
        )
        weight = self.early_exit.weight
        return (1 - weight) * last + weight * early


@dataclass(frozen=True, slots=True)
class Distil:
    """A distance between the target's next-token distribution p and the draft's q, at temperature 1.

    total_variation is 1 - sum min(p, q): the very probability that a draft token is rejected (DistillSpec,
    arXiv:2310.08461, section 4); forward_kl is KL(p||q), reverse_kl is KL(q||p), in nats."""

    model: LlamaForCausalLM
    teacher: LlamaForCausalLM
    distance: str

    def inputs(self, windows: torch.Tensor, step: int) -> Inputs:
        tokens = windows[:, :-1]
        with torch.no_grad():
            return tokens, self.teacher(input_ids=tokens, use_cache=False).logits

    def loss(self, tokens: torch.Tensor, teacher_logits: torch.Tensor) -> torch.Tensor:
        p = teacher_logits.float().log_softmax(-1)
        q = self.model(input_ids=tokens, use_cache=False).logits.float().log_softmax(-1)
        return DISTANCES[self.distance](p, q).mean()


def total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [..., V] -> half the sum of absolute differences [...]."""
    return (p.exp() - q.exp()).abs().sum(-1) / 2


def forward_kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [..., V] -> KL(p||q) in nats [...]."""
    return (p.exp() * (p - q)).sum(-1)


def reverse_kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [..., V] -> KL(q||p) in nats [...]."""
    return forward_kl(q, p)


DISTANCES = {"total_variation": total_variation, "forward_kl": forward_kl, "reverse_kl": reverse_kl}


def objective_of(
    recipe: Recipe, model: LlamaForCausalLM, teacher: LlamaForCausalLM | None
) -> Objective:
    """The objective that a recipe of a language model names."""
    if recipe.distillation:
        assert teacher is not None
        return Distil(model, teacher, recipe.distillation.loss)
    if recipe.early_exit:
        return NextTokenWithExits(model, recipe.early_exit, recipe.seed)
    return NextToken(model)
