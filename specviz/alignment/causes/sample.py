"""The texts that faults are looked for in, with the target's rows on them, and how far any draft agrees with these."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from specviz.alignment.ahead import measure_ahead
from specviz.alignment.token_stats import blocks
from specviz.alignment.types import Array
from specviz.decoding.drafter import Drafter
from specviz.decoding.sampling import Sampling, fit
from specviz.models.pool import LoadedModel
from specviz.models.score import TextIds, overlap_of, read

Change = Callable[[Tensor], Tensor]
"""Logits [R, V] of a draft -> logits [R, V]."""


class TargetTexts:
    """texts: those of the target, as it reads them. p: its probabilities, row behind row [R, V]."""

    def __init__(self, target: LoadedModel, texts: Sequence[TextIds], sampling: Sampling) -> None:
        self.target, self.sampling = target, sampling
        self.texts = tuple(texts)
        self.starts = np.cumsum([0, *(len(text.ids) for text in self.texts)])
        self.p = torch.empty(
            int(self.starts[-1]), target.info.vocab_size, device=target.model.device
        )
        for number, place, logits in _rows(target, self.texts):
            self.p[int(self.starts[number]) + place] = sampling.probs(logits).float()

    def each(
        self, draft: LoadedModel, texts: Sequence[TextIds]
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Pieces of a text's rows: its number, the target's p [R, V], the draft's logits [R, V].

        texts: what the draft reads, one for each of the sample's: the same ids behind any prompt.
        """
        for number, place, logits in _rows(draft, texts):
            p = self.p[int(self.starts[number]) + place.to(self.p.device)]
            yield number, p, fit(logits.to(p.device).float(), p.shape[1])

    def agreement(
        self, draft: LoadedModel, texts: Sequence[TextIds], change: Change | None = None
    ) -> Array:
        """The mean of sum min(p, q) over each text, the logits changed [texts]."""
        sums = np.zeros(len(texts))
        for number, p, logits in self.each(draft, texts):
            q = self.sampling.probs(change(logits) if change else logits)
            sums[number] += float(overlap_of(p, q).double().sum())
        return sums / np.diff(self.starts)

    def ahead(self, drafters: Sequence[Drafter]) -> Array:
        """The same of drafts that are no models, of the first token of every draft [drafters, texts]; the target reads
        each text once for all."""
        return np.hstack(
            [agreement_ahead(self.target, drafters, text, self.sampling, 1) for text in self.texts]
        )


def _rows(model: LoadedModel, texts: Sequence[TextIds]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Pieces of a text's rows: its number, the places [R], the logits [R, V]. One text at a time: prompts differ much
    in length, and together each would be read as far as the longest."""
    for number, text in enumerate(texts):
        for rows in read(model, [], [text]):
            for piece in blocks(len(rows.token), rows.target):
                yield number, rows.place[piece], rows.target[piece]


def agreement_ahead(
    target: LoadedModel, drafters: Sequence[Drafter], text: TextIds, sampling: Sampling, depths: int
) -> Array:
    """The means of sum min(p, q) by depth, over the same tokens at every depth [drafters, depths]."""
    places = np.add.outer(np.arange(len(text.ids)), np.arange(depths))
    judged = (places >= depths - 1) & (places < len(text.ids))
    found = []
    for numbers in measure_ahead(target, drafters, text, sampling, depths):
        ahead = numbers["ahead"]
        counted = judged[:, : ahead.overlap.shape[1]] * ahead.readable
        found.append((ahead.overlap * counted).sum(0) / np.maximum(counted.sum(0), 1))
    return np.array(found)
