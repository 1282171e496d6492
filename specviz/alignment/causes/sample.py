"""Texts of the target with its probabilities for their tokens, and the agreement of any draft with these.

Agreement is the mean of sum min(p, q): p the target's probabilities, q the draft's.
"""

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
    """Texts that the target wrote, with its probabilities for each of their tokens."""

    def __init__(self, target: LoadedModel, texts: Sequence[TextIds], sampling: Sampling) -> None:
        self.target = target
        self.sampling = sampling
        self.texts = tuple(texts)  # as the target reads them
        lengths = [len(text.ids) for text in self.texts]
        self.starts = np.cumsum([0, *lengths])  # the first row of each text in p
        num_rows = int(self.starts[-1])
        size = num_rows, target.info.vocab_size
        self.p = torch.empty(size, dtype=torch.float32, device=target.model.device)  # [R, V]
        for number, places, logits in _read_rows(target, self.texts):
            rows = int(self.starts[number]) + places
            self.p[rows] = sampling.probs(logits).float()

    def read_draft(
        self, draft: LoadedModel, texts: Sequence[TextIds]
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Reads the texts with a draft model, returns pieces of their rows.

        A piece is the number of its text, the target's p [R, V] and the draft's logits [R, V]. texts: what the draft
        reads, one per text of the target: its ids behind any prompt.
        """
        for number, places, logits in _read_rows(draft, texts):
            rows = int(self.starts[number]) + places.to(self.p.device)
            p = self.p[rows]  # [R, V]
            logits = logits.to(p.device).float()
            yield number, p, fit(logits, p.shape[1])

    def agreement(
        self, draft: LoadedModel, texts: Sequence[TextIds], change: Change | None = None
    ) -> Array:
        """The agreement of a draft model with the target, by text [texts].

        texts: what the draft reads. change: is applied to its logits.
        """
        sums = np.zeros(len(texts))
        for number, p, logits in self.read_draft(draft, texts):
            if change is not None:
                logits = change(logits)
            q = self.sampling.probs(logits)  # [R, V]
            sums[number] += float(overlap_of(p, q).double().sum())
        num_tokens = np.diff(self.starts)
        return sums / num_tokens

    def agreement_of_drafters(self, drafters: Sequence[Drafter]) -> Array:
        """The agreement of the first token of every draft, for drafts that are no models [drafters, texts].

        The target reads each text once for all drafters.
        """
        columns = []
        for text in self.texts:
            columns.append(agreement_ahead(self.target, drafters, text, self.sampling, 1))
        return np.hstack(columns)


def _read_rows(
    model: LoadedModel, texts: Sequence[TextIds]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Reads texts, returns pieces of their rows: the number of the text, the places [R], the logits [R, V].

    Texts are read one by one: a batch would read each as far as the longest, and prompts differ much in length.
    """
    for number, text in enumerate(texts):
        for rows in read(model, [], [text]):
            for piece in blocks(len(rows.token), rows.target):
                yield number, rows.place[piece], rows.target[piece]


def agreement_ahead(
    target: LoadedModel, drafters: Sequence[Drafter], text: TextIds, sampling: Sampling, depths: int
) -> Array:
    """The agreement at each depth of a draft, over the same tokens at every depth [drafters, depths]."""
    starts = np.arange(len(text.ids))
    places = np.add.outer(starts, np.arange(depths))  # [starts, depths]
    is_common = (places >= depths - 1) & (places < len(text.ids))
    agreements = []
    for numbers in measure_ahead(target, drafters, text, sampling, depths):
        ahead = numbers["ahead"]
        overlap = ahead.overlap  # [starts, depths]
        counted = is_common[:, : overlap.shape[1]] * ahead.readable
        num_counted = np.maximum(counted.sum(0), 1)
        agreements.append((overlap * counted).sum(0) / num_counted)
    return np.array(agreements)
