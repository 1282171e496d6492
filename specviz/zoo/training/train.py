"""The training loop: recipe + token files -> checkpoint. Cut off anywhere and run again, the same steps follow.

State is (model, optimizer, step); batches and learning rate are functions of the step, so an uninterrupted run and a
resumed one give bit-equal weights on one machine."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from specviz.errors import SpecvizError
from specviz.zoo.config import Recipe
from specviz.zoo.data.corpus import Batches, TokenFile, valid_windows
from specviz.zoo.training.objectives import Objective

VALID_WINDOWS = 16


@dataclass(frozen=True, slots=True)
class TrainingPace:
    """How often, in steps, a run reports, validates and saves; where it stops early; whether it compiles the loss."""

    log_every: int = 50
    valid_every: int = 500
    save_every: int = 250
    stop_at: int | None = None
    compiled: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """What a run reads: training batches, and held-out tokens by source name."""

    batches: Batches
    valid: Mapping[str, TokenFile]


@dataclass(slots=True)
class Trainer:
    """One model on its way through its recipe; `step` counts finished steps. `model` holds what is learned, no more."""

    recipe: Recipe
    model: torch.nn.Module
    objective: Objective
    optimizer: torch.optim.Optimizer
    device: torch.device
    step: int = 0

    @classmethod
    def start(
        cls, recipe: Recipe, model: torch.nn.Module, objective: Objective, device: torch.device
    ) -> "Trainer":
        """A fresh optimiser around a model that is on `device`, before the first step."""
        return cls(
            recipe,
            model,
            objective,
            make_optimizer(model, recipe.schedule.learning_rate, recipe.schedule.weight_decay),
            device,
        )

    @property
    def tokens_seen(self) -> int:
        return self.step * self.recipe.schedule.tokens_per_step

    def update(self, windows: torch.Tensor, loss_of: Callable[..., torch.Tensor]) -> torch.Tensor:
        """One optimiser step on windows [B, L+1]; returns the mean loss, on the device."""
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate(self.step)
        with mixed_precision(self.device):
            loss = loss_of(*self.objective.inputs(windows.to(self.device), self.step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.schedule.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss.detach()

    def save(self, path: Path) -> None:
        """Write the whole state; the file is complete or absent, never half."""
        state = {"recipe": self.recipe.to_dict(), "step": self.step}
        state |= {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Go on from a saved state; raises SpecvizError when another recipe made it."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        if state["recipe"] != self.recipe.to_dict():
            raise SpecvizError(
                f"{path.name} was trained by another recipe; remove it or restore the recipe"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]


def mixed_precision(device: torch.device) -> AbstractContextManager:
    return torch.autocast(device.type, dtype=torch.bfloat16)


def make_optimizer(
    model: torch.nn.Module, learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """AdamW; matrices decay, vectors (norm weights) do not."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)


def train(
    trainer: Trainer, data: Data, pace: TrainingPace, on_save: Callable[[Trainer], None]
) -> None:
    """Run from `trainer.step` to the recipe's end or `pace.stop_at`; `on_save` is called every `save_every` steps."""
    last = min(
        trainer.recipe.num_steps, trainer.recipe.num_steps if pace.stop_at is None else pace.stop_at
    )
    loss_of = trainer.objective.loss
    if pace.compiled:
        loss_of = torch.compile(loss_of, dynamic=False)
    progress = TrainingProgress(trainer)
    while trainer.step < last:
        count, length = trainer.recipe.window(trainer.step)
        windows = torch.from_numpy(data.batches.batch(trainer.step, count, length + 1))
        progress.add(trainer.update(windows, loss_of))
        if trainer.step % pace.log_every == 0:
            progress.report()
        if trainer.step % pace.valid_every == 0 or trainer.step == last:
            losses = valid_losses(trainer, data.valid)
            print(
                "  valid " + "  ".join(f"{name} {loss:.3f}" for name, loss in losses.items()),
                flush=True,
            )
        if trainer.step % pace.save_every == 0 or trainer.step == last:
            on_save(trainer)


@torch.no_grad()
def valid_losses(trainer: Trainer, valid: Mapping[str, TokenFile]) -> dict[str, float]:
    """The objective's mean by source, on held-out windows as long as the last batch's; randomness as at step 0."""
    trainer.model.eval()
    _, length = trainer.recipe.window(trainer.step - 1)
    losses = {}
    for name, file in valid.items():
        windows = torch.from_numpy(valid_windows(file, length + 1, VALID_WINDOWS))
        with mixed_precision(trainer.device):
            losses[name] = trainer.objective.loss(
                *trainer.objective.inputs(windows.to(trainer.device), 0)
            ).item()
    return losses


class TrainingProgress:
    """Mean loss, speed and time left since the last report."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.started = self.last = time.perf_counter()
        self.losses: list[torch.Tensor] = []

    def add(self, loss: torch.Tensor) -> None:
        self.losses.append(loss)

    def report(self) -> None:
        now, trainer = time.perf_counter(), self.trainer
        rate = len(self.losses) / (now - self.last)  # steps per second
        tokens_per_s = rate * trainer.recipe.schedule.tokens_per_step
        minutes = (trainer.recipe.num_steps - trainer.step) / rate / 60
        mean = torch.stack(self.losses).mean().item()
        print(
            f"{trainer.recipe.name} step {trainer.step}/{trainer.recipe.num_steps}  loss {mean:.3f}  "
            f"{tokens_per_s:,.0f} tokens/s  {minutes:.1f} min left  ({(now - self.started) / 60:.1f} min)",
            flush=True,
        )
        self.losses.clear()
        self.last = now
