"""What travels through the alignment lab: rows of the prompt file, shards of work, analysed texts. Plain and picklable.

numpy alone: no model, no tensor, no table library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specviz.request import Request

Array = np.ndarray
KS = range(1, 17)  # the K that every text is planned for
BINS = 10  # of the draft's confidence, all of equal width
SAMPLED, GIVEN = "sampled", "given"


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One checked row of the input: a prompt or messages, and the text that followed, if it exists already.

    number: its place among the accepted rows, from 0. line: in the file, from 1. told: {"target", "temperature",
    "top_k", "top_p"} where the row says what its completion was sampled from.
    """

    number: int
    line: int
    id: str
    tags: tuple[str, ...] = ()
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    completion: str | tuple[int, ...] | None = None
    told: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """A model of a job. name: as it is shown; content: a hash of what it holds; num_ids: ids that have a text; wanted:
    what it is loaded by, a name, a folder's path or a pair in memory, which is never shown or stored."""

    name: str
    content: str
    num_ids: int
    wanted: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Shard:
    """A piece of work of its own: what is asked, without a prompt, and the rows that it is asked about.

    request: target, sampling, seed, max_new_tokens and chat count; text number n is drawn with seed_of(seed, n).
    drafts: names. k: the K at which rejections are priced. step_ms: per draft the time of a step that drafts 0, 1, ...
    16 tokens, where costs are known. batch: the most texts that are read at once. models: who the target and the drafts
    are; without, they are found by their names.
    """

    request: Request
    drafts: tuple[str, ...]
    rows: tuple[PromptRow, ...]
    k: int
    step_ms: Mapping[str, tuple[float, ...]]
    batch: int = 32
    models: tuple[Identity, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that could not be used, and why, in words that go on after "line 7"."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class DraftColumns:
    """What one draft model says along a text of N tokens; probabilities are those at the sampling of the request.

    readable: False beyond the draft's context and behind an id that it lacks, where it drafts nothing: there q, overlap
    and keep are 0.
    rank_in_draft: the place of the target's favourite in the draft's order (1: its favourite too); rank_in_target: the
    other way round. By logits, so that a filter or temperature 0 leaves an order.
    outside: the target's probability of all tokens that the draft has no id for.
    confidence [BINS, 3]: over all places and all tokens x that the draft might have drawn, by q(x) in ten bins: the
    sums of q, of q * q and of min(p, q): how often, how surely, and how often kept.
    price: -dE[target calls] / da[t] at the shard's K, exact. lost: tokens that a rejection there is expected to lose.
    """

    q: Array
    overlap: Array  # sum min(p, q)
    keep: Array  # a[t] = min(1, q/p) of the token that stands there
    entropy: Array  # of q, nats
    favourite: Array  # the draft's likeliest token
    favourite_q: Array  # q of it
    favourite_p: Array  # p of it
    target_favourite_q: Array  # q of the target's likeliest token
    rank_in_draft: Array
    rank_in_target: Array
    outside: Array
    readable: Array  # bool
    price: Array
    lost: Array
    confidence: Array


@dataclass(frozen=True, slots=True, eq=False)
class AnalysedText:
    """One text with everything that its tables are made from. Arrays have one entry per token of the text, [N].

    prompt: as the target read it, chat form included. labels: the tokens' texts as table cells (`TokenText.label`).
    kinds: indices into tables.CLASSES. exact: whether the text is the target's own at the request's sampling.
    finish: eos, length, context or given.
    """

    row: PromptRow
    prompt: str
    prompt_ids: Array
    ids: Array
    labels: tuple[str, ...]
    kinds: Array
    source: str  # SAMPLED or GIVEN
    exact: bool
    finish: str
    p: Array
    entropy: Array  # of p, nats
    favourite: Array  # the target's likeliest token
    favourite_p: Array  # p of it
    favourite_labels: tuple[str, ...]
    drafts: Mapping[str, DraftColumns]
    draft_favourite_labels: Mapping[str, tuple[str, ...]]

    @property
    def context_lengths(self) -> Array:
        """Tokens before each token of the text."""
        return len(self.prompt_ids) + np.arange(len(self.ids))


Columns = Mapping[str, object]
"""A table by columns: name -> a numpy array or a list, all of one length."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardTables:
    """What a shard comes to: tables (see `tables`), what was refused, and sums of confidence per draft [BINS, 3]."""

    tokens: Columns
    prompts: Columns
    sums: Columns
    confidence: Mapping[str, Array]
    refused: tuple[Refused, ...]
    warnings: tuple[str, ...]
