"""What a target says at each place of texts: one pass over them, whose rows go into a store."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.utils import ModelOutput

from specviz.models.pool import LoadedModel
from specviz.zoo.for_target.store import TOP, Batch, StoredDistribution

_BATCH = 8


def distributions_of(
    target: LoadedModel, texts: Sequence[Sequence[int]]
) -> list[StoredDistribution]:
    """The target's distributions along each text; a text has at least two tokens."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    made: dict[int, StoredDistribution] = {}
    for start in range(0, len(order), _BATCH):
        some = order[start : start + _BATCH]
        made |= zip(some, _read([texts[index] for index in some], target), strict=True)
    return [made[index] for index in range(len(texts))]


@torch.inference_mode()
def _read(texts: Sequence[Sequence[int]], target: LoadedModel) -> list[StoredDistribution]:
    """Reads a batch of texts; padding is on the right, so that no place sees it."""
    padded = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(text[:-1]) for text in texts], batch_first=True
    )
    done = target.model(padded.to(target.model.device), use_cache=False)
    return [
        distribution_at(done, (), row, slice(0, len(text) - 1)) for row, text in enumerate(texts)
    ]


def distribution_at(
    done: ModelOutput, layers: Sequence[int], *places: int | slice
) -> StoredDistribution:
    """The distributions at n of the places [B, L] of the target's outputs.

    layers: the states to keep, by transformers' numbers.
    """
    ids, log_probs = likeliest(done.logits[places])
    kept = [done.hidden_states[layer][places] for layer in layers]
    return StoredDistribution(
        ids.cpu(), log_probs.cpu(), torch.cat(kept, dim=-1).cpu() if kept else None
    )


@torch.inference_mode()
def states_of(target: LoadedModel, tokens: Tensor, layers: Sequence[int]) -> Tensor:
    """The states [B, L, C] of these layers at tokens [B, L], padded on the right."""
    asked = {"use_cache": False, "output_hidden_states": True, "logits_to_keep": 1}
    states = target.model(tokens.to(target.model.device), **asked).hidden_states
    return torch.cat([states[layer] for layer in layers], dim=-1).float().cpu()


@torch.inference_mode()
def with_whole_distributions(target: LoadedModel, batch: Batch) -> Batch:
    """A batch with whole distributions in place of the stored ones: ids and log_probs [B, L, V].

    The most likely token comes first, the others in no order.
    """
    logits = (
        target.model(batch.tokens[:, :-1].to(target.model.device), use_cache=False)
        .logits.float()
        .cpu()
    ) / batch.temperatures
    ids = torch.arange(logits.shape[-1]).expand(logits.shape).clone()
    likeliest_ids = logits.argmax(-1, keepdim=True)
    ids.scatter_(-1, likeliest_ids, 0)[..., :1] = (
        likeliest_ids  # the first token changes places with it
    )
    return replace(batch, ids=ids, log_probs=logits.log_softmax(-1).gather(-1, ids))


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [n, V] -> ids and log-probabilities [n, TOP], the likeliest first; of fewer tokens the rest have none."""
    top = logits.float().log_softmax(-1).topk(min(TOP, logits.shape[-1]), dim=-1)
    missing = (0, TOP - top.indices.shape[-1])
    return pad(top.indices, missing), pad(top.values, missing, value=-torch.inf)
