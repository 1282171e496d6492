"""Scorer: what the target and the draft model gave every emitted token, gathered while a run goes on.

Most of it stands in the steps' records. Where a step has no probabilities of the draft model, the target's row is kept
until the draft model has read that place. What no step can tell is read at the end, with both models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from specviz import trace
from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.device import to_device, to_host
from specviz.decoding.draft import ROOT, chain
from specviz.decoding.engine import StepResult
from specviz.decoding.sampling import fit
from specviz.decoding.turns import give_way
from specviz.models.score import of_tokens, overlap_of, score
from specviz.session.active_setup import ActiveSetup

MOST_BYTES = 16 << 20
"""The most that the kept rows take before the draft model should read their places."""
AT_ONCE = 64
"""The tokens that the draft model reads in one forward."""

_Pair = Sequence[float | None]
"""q of an emitted token, and the overlap at its place."""
NO_PAIR: _Pair = (None, None)
"""Where the draft model cannot read the text."""


class Scorer:
    """The scores of one run. They are those of its newest models and sampling, over the whole text."""

    def __init__(self, active: ActiveSetup, tokens: Sequence[int]) -> None:
        """tokens: the text before the first step that is added."""
        self._active = active
        self._text = list(tokens)
        self._conditions: object = None
        """The models and the sampling that everything below holds for."""
        self._pairs: dict[int, _Pair] = {}  # by place in the text
        self._rows: dict[int, Tensor] = {}  # [V] the target's, by place
        self._reader = "draft"

    def add(self, step: StepResult, record: trace.Step) -> None:
        """Adds a step that was made with the run's present settings, and its record."""
        self._text += step.tokens
        setup = self._active.setup
        draft = setup.comparable_draft
        conditions = (setup.target.name, draft and draft.name, step.plan.sampling)
        if conditions != self._conditions:
            self._conditions = conditions
            self._pairs = {}
            self._rows = {}
            self._reader = "draft"
        if draft is None:
            return
        overlaps: dict[int, float | None] = {}  # by the node before a place
        if setup.method.is_plain:
            overlaps = {position.node: position.overlap for position in record.positions[:-1]}
        unknown: list[tuple[int, int]] = []  # (place, row of the step)
        nodes = (ROOT, *step.verdict.path)
        for place, (node, token) in enumerate(
            zip(nodes, record.emitted, strict=False), step.context_length
        ):
            if node in overlaps:
                self._pairs[place] = token.q, overlaps[node]
            else:
                unknown.append((place, node + 1))
        if unknown:
            places, numbers = zip(*unknown, strict=True)
            index = to_device(numbers, torch.long, step.probs.device)
            self._rows.update(zip(places, step.probs[index], strict=True))

    @property
    def is_full(self) -> bool:
        """Whether so many rows are kept that it is time for `read`."""
        row = next(iter(self._rows.values()), None)
        return row is not None and len(self._rows) * row.nbytes > MOST_BYTES

    def read(self) -> None:
        """Lets the draft model read the kept places, through a reader of its own: the run's is left as it is.

        If that fails, the places are read at the end.
        """
        self._reader = "scores"
        self._read(self._active.draft_lm(self._reader))

    def scores(self, recorded: trace.Trace) -> trace.Scores:
        """The scores of the finished run. The draft model reads on behind what it has read for its drafts."""
        active = self._active
        draft = active.setup.comparable_draft
        if draft is not None:
            self._read(active.draft_lm(self._reader))
        sampling = active.plan.sampling
        p: list[float | None] = []
        for step in recorded.steps:
            is_same = step.settings.distribution == active.step_settings.distribution
            p += [token.p if is_same else None for token in step.emitted]
        start = len(self._text) - len(p)
        places = range(start, len(self._text))
        pairs = [NO_PAIR if draft is None else self._pairs.get(place) for place in places]
        num_unread = 0  # up to the last token that lacks something
        for number, known in enumerate(zip(p, pairs, strict=True), 1):
            if None in known:
                num_unread = number
        if num_unread:
            text = self._text[: start + num_unread]
            read = score(active.target, draft, text, num_unread, sampling)
            p[:num_unread] = read.p
            pairs[:num_unread] = zip(read.q, read.overlap, strict=True)
        q, overlap = zip(*pairs, strict=True)
        return trace.Scores(
            None if draft is None else draft.name,
            {name: value for name, value in asdict(sampling).items() if value is not None},
            *(tuple(map(trace.round9, values)) for values in (p, q, overlap)),
        )

    def _read(self, lm: CachedLM) -> None:
        """Lets the draft model read the kept places, some tokens at once, and turns each pair of rows into numbers."""
        rows = self._rows
        self._rows = {}
        lacking = (place for place, token in enumerate(self._text) if token >= lm.vocab_size)
        last_readable = min(lm.context_limit, next(lacking, len(self._text)))
        self._pairs.update((place, NO_PAIR) for place in rows if place > last_readable)
        left = [place for place in rows if place <= last_readable]
        while left:
            give_way()
            first = left[0]
            places = [place for place in left if place < first + AT_ONCE]
            left = left[len(places) :]
            after = chain(self._text[first : places[-1]])
            logits = lm.forward(self._text[:first], after)  # row i is that of place first + i
            pairs = self._pairs_of(places, logits[[place - first for place in places]], rows)
            self._pairs.update(zip(places, pairs, strict=True))

    @torch.inference_mode()
    def _pairs_of(
        self, places: Sequence[int], logits: Tensor, rows: Mapping[int, Tensor]
    ) -> list[_Pair]:
        """The pairs of these places, from the draft model's logits [R, V] and the target's rows."""
        p = torch.stack([rows[place] for place in places])  # [R, V]
        sampling = self._active.plan.sampling.of_draft
        q = sampling.probs(fit(logits.to(p.device), p.shape[1])).to(p.dtype)
        tokens = to_device([self._text[place] for place in places], torch.long, p.device)
        return to_host(torch.stack([of_tokens(q, tokens), overlap_of(p, q)], dim=1)).tolist()
