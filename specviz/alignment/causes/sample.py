"""Texts of the target with its probabilities for their tokens, and the agreement of any draft with these.

Agreement is the mean of sum min(p, q): p the target's probabilities, q the draft's.
"""

import copy
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from specviz.alignment.shard import READ_TOKENS, group_by_length
from specviz.alignment.token_stats import blocks
from specviz.alignment.types import Array
from specviz.analysis.along import each_depth, read_states
from specviz.decoding.drafter import Drafter
from specviz.decoding.sampling import Sampling, fit
from specviz.models.pool import LoadedModel
from specviz.models.score import TextIds, of_tokens, overlap_of, read


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
        self._states: dict[int, dict[int, Tensor]] = {}  # by text and layer
        self.p = torch.empty(size, dtype=torch.float32, device=target.model.device)  # [R, V]
        self._first_rows = torch.from_numpy(self.starts).to(self.p.device)
        for numbers, places, logits in _read_rows(target, self.texts):
            rows = self._first_rows[numbers] + places
            self.p[rows] = sampling.probs(logits).float()

    def first(self, count: int) -> "TargetTexts":
        """The first of these texts, with all that is known of them."""
        few = copy.copy(self)
        few.texts = self.texts[:count]
        few.starts = self.starts[: count + 1]
        few.p = self.p[: few.starts[-1]]
        return few

    def read_draft(
        self, draft: LoadedModel, texts: Sequence[TextIds]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Reads the texts with a draft model, returns pieces of their rows.

        A piece is the number of each row's text [R], the target's p [R, V] and the draft's logits [R, V]. texts: what
        the draft reads, one per text of the target: its ids behind any prompt.
        """
        for numbers, rows, logits in self.draft_rows(draft, texts):
            yield numbers, self.p[rows], logits

    def draft_rows(
        self, draft: LoadedModel, texts: Sequence[TextIds]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Reads the texts as `read_draft` does, with the number of each row in p [R] instead of the target's p."""
        device = self.p.device
        for numbers, places, logits in _read_rows(draft, texts):
            numbers = numbers.to(device)
            rows = self._first_rows[numbers] + places.to(device)
            yield numbers, rows, fit(logits.to(device).float(), self.p.shape[1])

    def agreement(
        self, draft: LoadedModel, texts: Sequence[TextIds], divided_by: float = 1.0
    ) -> Array:
        """The agreement of a draft model with the target, by text [texts].

        texts: what the draft reads. divided_by: the divisor of its logits.
        """
        sums = torch.zeros(len(texts), dtype=torch.float32, device=self.p.device)
        for numbers, p, logits in self.read_draft(draft, texts):
            q = self.sampling.probs(logits / divided_by)  # [R, V]
            sums.index_add_(0, numbers, overlap_of(p, q))
        num_tokens = np.diff(self.starts)
        return sums.cpu().numpy().astype(np.float64) / num_tokens

    @torch.inference_mode()
    def agreement_of_drafters(self, drafters: Sequence[Drafter], depths: int) -> Array:
        """The agreement of drafts that are no models, a mean over these depths [drafters, texts].

        It counts the same tokens at every depth. A text of fewer tokens has fewer depths. The target reads a text once
        for each layer whose states are asked for, however many drafters ask.
        """
        columns = []
        for number, text in enumerate(self.texts):
            first = self.starts[number]
            p = self.p[first : first + len(text.ids)]  # [R, V]
            ids = [*text.prompt, *text.ids]
            tokens = torch.tensor(ids, device=self.target.model.device)
            starts = torch.arange(len(text.prompt), len(ids), device=tokens.device)
            column = []
            for drafter in drafters:
                states = self._states_of(number, drafter.hidden_layers, tokens)
                along = drafter.along(tokens, states)
                by_depth = []
                for drafted in each_depth(along, starts, min(depths, len(text.ids))):
                    by_depth.append(self._overlap(p, *drafted, depths))
                column.append(np.mean(by_depth))
            columns.append(column)
        return np.array(columns).T

    def _overlap(self, p: Tensor, depth: int, rows: Tensor, known: Tensor, depths: int) -> float:
        """The mean agreement at one depth. rows: logits [R, V] or ids [R] behind each start. known [R]."""
        size = len(p) - depth
        p = p[depth:]
        rows = rows[:size].to(p.device)
        is_certain = rows.dim() == 1
        overlap = of_tokens(p, rows) if is_certain else overlap_of(p, self.sampling.probs(rows))
        places = torch.arange(depth, depth + size, device=p.device)
        is_read = known[:size].to(p.device)
        first = min(depths, depth + size) - 1
        counted = (places >= first) & is_read
        num_counted = counted.sum().clamp_min(1)
        return float((overlap * counted).sum() / num_counted)

    def _states_of(self, number: int, layers: tuple[int, ...], tokens: Tensor) -> Tensor:
        """The target's states of these layers side by side, behind every token of a text [T, C]."""
        if not layers:
            (nothing,) = read_states(self.target, [()], tokens)
            return nothing
        known = self._states.setdefault(number, {})
        missing = [layer for layer in layers if layer not in known]
        found = read_states(self.target, [(layer,) for layer in missing], tokens)
        for layer, states in zip(missing, found, strict=True):
            known[layer] = states
        columns = [known[layer] for layer in layers]
        return torch.cat(columns, dim=-1)


def _read_rows(
    model: LoadedModel, texts: Sequence[TextIds]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Reads texts, those of similar length together; returns pieces of their rows.

    A piece is the number of each row's text [R], its place there [R] and its logits [R, V].
    """
    for group in group_by_length(texts, len(texts), READ_TOKENS):
        group_numbers = torch.tensor(group, device=model.model.device)
        for rows in read(model, [], [texts[number] for number in group]):
            for piece in blocks(len(rows.token), rows.target):
                yield group_numbers[rows.text[piece]], rows.place[piece], rows.target[piece]
