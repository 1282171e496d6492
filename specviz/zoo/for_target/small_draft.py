"""A draft model that is distilled from what the target says at each place of texts: of any architecture, or a small
Llama model with the target's own vocabulary.

The small one starts from the target's embeddings along their widest directions; they are its output matrix too."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from specviz.decoding.sampling import fit
from specviz.models.pool import LoadedModel
from specviz.zoo.config import Shape
from specviz.zoo.for_target.learning import DepthScore, Judged
from specviz.zoo.for_target.store import Batch
from specviz.zoo.training.export import replacing, save_model
from specviz.zoo.training.model import build_model

Export = Callable[[nn.Module, Path], None]
"""Writes what was learned into a folder that loads as any draft does."""
_LOGITS = 1 << 23  # that are held at once: larger blocks of memory are fetched anew every time
_SPREAD = 0.05  # standard deviation of the first table's entries


class DraftLearner:
    """A draft model that learns; see learning.Learner."""

    reads_states = False

    def __init__(
        self, target: LoadedModel, module: PreTrainedModel, settings: dict[str, Any], export: Export
    ) -> None:
        self.module = module
        self._width = target.info.vocab_size
        self._num_ids = module.get_output_embeddings().weight.shape[0]
        self._settings, self._export = settings, export

    def loss(self, batch: Batch, overlap_weight: float) -> Tensor:
        at_once = max(1, _LOGITS // (self._num_ids * batch.weights.shape[1]))
        if len(batch.tokens) <= at_once:
            return self._loss(batch, overlap_weight) / batch.weights.sum()
        total = torch.zeros(())
        for piece in batch.split(at_once):
            total = total + checkpoint(self._loss, piece, overlap_weight, use_reentrant=False)
        return total / batch.weights.sum()

    def _loss(self, batch: Batch, overlap_weight: float) -> Tensor:
        return self._judged(batch, batch.weights > 0).loss(overlap_weight)

    def score(self, batch: Batch) -> list[DepthScore]:
        return [self._judged(batch, batch.is_answer).score()]

    def _judged(self, batch: Batch, places: Tensor) -> Judged:
        """The chosen places [B, L], their tokens numbered as in both models."""
        logits = self.module(input_ids=batch.tokens[:, :-1], use_cache=False).logits[places]
        ids = batch.ids[places]
        ids = ids.masked_fill(ids >= self._num_ids, -1)
        temperatures = batch.temperatures.expand(*places.shape, 1)[places]
        weights = batch.weights[places]
        return Judged.of(
            batch.log_probs[places], ids, fit(logits, self._width), temperatures, weights
        )

    def settings(self) -> dict[str, Any]:
        return self._settings

    def export(self, folder: Path) -> None:
        self._export(self.module, folder)


def small_draft(target: LoadedModel, shape: Shape, seed: int) -> DraftLearner:
    """A fresh Llama model."""
    end = target.model.config.eos_token_id
    module = build_model(
        shape, seed, target.info.vocab_size, end[0] if isinstance(end, list) else end
    )
    table = target.model.get_input_embeddings().weight.detach().float().cpu()
    with torch.no_grad():
        module.get_input_embeddings().weight.copy_(projected(table, shape.hidden_size))

    def export(module: nn.Module, folder: Path) -> None:
        with replacing(folder) as partial:
            save_model(module, partial)
            target.tokenizer.save_pretrained(partial)

    return DraftLearner(target, module, {"target": target.name, **asdict(shape)}, export)


def projected(table: Tensor, width: int) -> Tensor:
    """A table [V, H] along its `width` widest directions [V, width], scaled as a fresh table is."""
    centred = table - table.mean(0)
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -width:]
    rows = centred @ directions
    return rows * (_SPREAD / rows.std())
