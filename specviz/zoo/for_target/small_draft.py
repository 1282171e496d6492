"""A small Llama model with the target's own vocabulary, distilled from what the target says at each place of texts.

It starts from the target's embeddings along their widest directions; they are its output matrix too."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from specviz.models.pool import LoadedModel
from specviz.zoo.config import Shape
from specviz.zoo.for_target.learning import DepthScore, distribution_losses
from specviz.zoo.for_target.store import Batch
from specviz.zoo.training.export import replacing, save_model
from specviz.zoo.training.model import build_model

_CHUNK = 128  # places whose rows of V logits are held at once: larger blocks of memory are fetched anew every time
_SPREAD = 0.05  # standard deviation of the first table's entries


class SmallDraft:
    """A draft model that learns; see learning.Learner."""

    reads_states = False

    def __init__(self, target: LoadedModel, shape: Shape, seed: int) -> None:
        self._target, self._shape = target, shape
        end = target.model.config.eos_token_id
        self.module = build_model(
            shape, seed, target.info.vocab_size, end[0] if isinstance(end, list) else end
        )
        table = target.model.get_input_embeddings().weight.detach().float().cpu()
        with torch.no_grad():
            self.module.get_input_embeddings().weight.copy_(projected(table, shape.hidden_size))

    def loss(self, batch: Batch, overlap_weight: float) -> Tensor:
        judged = batch.weights > 0
        hidden, weights = self._hidden(batch)[judged], batch.weights[judged]
        columns = (hidden, batch.ids[judged], batch.log_probs[judged].exp(), weights)
        total = torch.zeros(())
        for rows in zip(*(column.split(_CHUNK) for column in columns), strict=True):
            total = total + checkpoint(self._chunk_loss, *rows, overlap_weight, use_reentrant=False)
        return total / weights.sum()

    def _chunk_loss(
        self, hidden: Tensor, ids: Tensor, p: Tensor, weights: Tensor, overlap_weight: float
    ) -> Tensor:
        log_q = self._log_q(self.module.lm_head(hidden), ids)
        return (distribution_losses(p, log_q, overlap_weight) * weights).sum()

    def score(self, batch: Batch) -> list[DepthScore]:
        judged = batch.weights == 1
        logits, ids = self.module.lm_head(self._hidden(batch)[judged]), batch.ids[judged]
        overlap = torch.minimum(batch.log_probs[judged].exp(), self._log_q(logits, ids).exp()).sum()
        return [DepthScore(float(overlap), float((logits.argmax(-1) == ids[:, 0]).sum()), len(ids))]

    def _hidden(self, batch: Batch) -> Tensor:
        """States [B, L, H] behind the final norm."""
        return self.module.model(input_ids=batch.tokens[:, :-1], use_cache=False).last_hidden_state

    def _log_q(self, logits: Tensor, ids: Tensor) -> Tensor:
        """Logits [n, V] -> log-probabilities [n, TOP] of `ids`."""
        return logits.gather(-1, ids).float() - logits.float().logsumexp(-1, keepdim=True)

    def settings(self) -> dict[str, Any]:
        return {"target": self._target.name, **asdict(self._shape)}

    def export(self, folder: Path) -> None:
        """A folder that loads as any model does, with the target's own tokenizer."""
        with replacing(folder) as partial:
            save_model(self.module, partial)
            self._target.tokenizer.save_pretrained(partial)


def projected(table: Tensor, width: int) -> Tensor:
    """A table [V, H] along its `width` widest directions [V, width], scaled as a fresh table is."""
    centred = table - table.mean(0)
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -width:]
    rows = centred @ directions
    return rows * (_SPREAD / rows.std())
