"""Measures drafts that are no models (heads, modules, early exit, prompt lookup) along a text, at every depth.

A step may begin at every place of the text; `Drafter.along` says what the method would draft there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specviz.alignment.states.target import StatesTarget
from specviz.alignment.token_stats import Numbers, blocks, draft_numbers, join_pieces, to_arrays
from specviz.alignment.types import AHEAD, DEPTHS, Ahead
from specviz.analysis.along import FEWEST_BEFORE, each_depth, read_states
from specviz.analysis.whatif import acceptance_chances
from specviz.decoding.draft import chain
from specviz.decoding.drafter import Drafter
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS, READABLE, split_draft
from specviz.drafters.heads import kind_of
from specviz.drafters.markov import is_chained
from specviz.drafters.params import LEFT_OUT, MARKOV
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.models.pool import LoadedModel, ModelPool
from specviz.models.score import (
    LOGITS_BYTES,
    LOGITS_BYTES_CUDA,
    DraftRows,
    ScoredRows,
    TextIds,
    of_tokens,
    overlap_of,
)
from specviz.session.setup import Setup, gather

NOTHING = -1e4  # a logit that leaves no probability at any temperature in use


@dataclass(frozen=True, slots=True, eq=False)
class Proposer:
    """A draft that is no model."""

    name: str  # shown to people
    setup: Setup

    def drafter(self) -> Drafter:
        return self.setup.drafter(self.setup.target.cached_lm())


Draft = LoadedModel | Proposer


def load_draft(wanted: Any, pool: ModelPool, target: LoadedModel) -> Draft:
    """Loads a draft model, or the drafter that the name asks for.

    wanted: heads by their name or folder, METHOD:HEADS,NAME=VALUE, or what a draft model is loaded by.
    Raises SpecvizError, also for a method that cannot be read along a text.
    """
    method = ""
    if isinstance(wanted, str):
        method, heads, pairs = _split(wanted)
    if not method:
        return pool.load(wanted, as_draft=True)
    params = METHODS[method].read(pairs)
    if heads:
        params = params | {"heads": heads}
    setup = gather(METHODS[method], params, target, None, pool)
    heads_name = setup.heads.name if setup.heads is not None else ""
    name = heads_name
    if pairs or not heads_name:
        options = [heads_name, *pairs] if heads_name else pairs
        name = f"{method}:{','.join(options)}".rstrip(":")
    proposer = Proposer(name, setup)
    if isinstance(target, StatesTarget):
        target.check(name, setup)
    drafter = proposer.drafter()
    model = target.model
    tokens = torch.zeros(FEWEST_BEFORE, dtype=torch.long, device=model.device)
    width = model.config.get_text_config(decoder=True).hidden_size
    size = (FEWEST_BEFORE, len(drafter.hidden_layers) * width)
    states = torch.zeros(size, dtype=model.dtype, device=model.device)
    if drafter.along(tokens, states) is None:
        can = ", ".join(sorted(READABLE))
        raise SpecvizError(
            f"{name} cannot be read along a text: what it drafts depends on more than the text before (these can "
            f"be: {can})"
        )
    return proposer


def ways_to_ask(heads: str, pool: ModelPool, target: LoadedModel) -> list[str]:
    """The names by which heads are asked: as they are, and without what chains their guesses if they have that.

    Raises SpecvizError as `load_draft`.
    """
    setup = load_draft(heads, pool, target).setup
    if not is_chained(setup.heads.module):
        return [heads]
    return [heads, f"{setup.method.name}:{heads},{MARKOV.name}={LEFT_OUT}"]


def _split(wanted: str) -> tuple[str, str, tuple[str, ...]]:
    """The method, heads and parameters that a name asks for; the method of a draft model is empty."""
    method, heads, pairs = split_draft(wanted)
    if method:
        return method, heads, pairs
    known = catalog.HEADS.get(wanted)
    kind = known.kind if known else kind_of(Path(wanted))
    return kind, wanted, ()


# ---- numbers along a text -------------------------------------------------------------------------------------------


@torch.inference_mode()
def measure_ahead(
    target: LoadedModel,
    drafters: Sequence[Drafter],
    text: TextIds,
    sampling: Sampling,
    depths: int = DEPTHS,
) -> list[Numbers]:
    """The numbers of each drafter: at depth 1 the columns of a draft model, and "ahead" for every depth.

    See `measure_texts` for the columns, and `Ahead`.
    """
    lm = target.cached_lm()
    tokens = torch.tensor([*text.prompt, *text.ids], device=target.model.device)
    states = read_states(target, [drafter.hidden_layers for drafter in drafters], tokens)
    drafts_along = [
        drafter.along(tokens, own_states)
        for drafter, own_states in zip(drafters, states, strict=True)
    ]
    windows: list[list] = [[] for _ in drafters]  # by drafter, window and depth
    most = LOGITS_BYTES_CUDA if lm.device.type == "cuda" else LOGITS_BYTES
    width = max(1, most // (8 * lm.vocab_size) - depths)
    for begin in range(0, len(text.ids), width):
        end = min(begin + width, len(text.ids))
        ids = text.ids[begin : end + depths - 1]
        before = [*text.prompt, *text.ids[:begin]]
        logits = lm.forward(before, chain(ids))[: len(ids)]
        starts = torch.arange(len(before), len(before) + end - begin, device=lm.device)
        for own_windows, along in zip(windows, drafts_along, strict=True):
            by_depth = []
            for depth, rows, known in each_depth(along, starts, min(depths, len(ids))):
                by_depth.append(_numbers(depth, rows, known, logits, ids, sampling))
            own_windows.append(by_depth)
    return [
        _join(own_windows, len(text.ids), drafter)
        for own_windows, drafter in zip(windows, drafters, strict=True)
    ]


def _numbers(
    depth: int,
    rows: Tensor,
    known: Tensor,
    logits: Tensor,
    ids: Sequence[int],
    sampling: Sampling,
) -> tuple[Numbers, Numbers]:
    """The columns of `Ahead` at one depth behind each start, as far as the text goes; at depth 0 also a draft's.

    rows: the drafter's logits [S, V] or ids [S]. logits: of the target for `ids` [len(ids), V].
    """
    size = min(len(known), len(ids) - depth)
    tokens = torch.tensor(ids[depth : depth + size], device=logits.device)
    target_logits = logits[depth : depth + size]
    ahead: list[Numbers] = []
    columns: list[Numbers] = []
    for block in blocks(size, logits):
        token = tokens[block]
        readable = known[:size][block]
        p_logits = target_logits[block]
        q_logits = rows[:size][block]
        if rows.dim() == 1:  # ids: the draft is certain of them
            certain = torch.full_like(p_logits, NOTHING)
            q_logits = certain.scatter_(1, q_logits[:, None], 0.0)
        p = sampling.probs(p_logits)
        q = sampling.probs(q_logits)
        most_likely = q_logits.argmax(-1)
        p_token = of_tokens(p, token).cpu().numpy()
        q_token = of_tokens(q, token).cpu().numpy()
        own_ahead = {
            "hit": most_likely == token,
            "overlap": overlap_of(p, q),
            "most_likely_p": of_tokens(p, most_likely),
            "readable": readable,
        }
        ahead.append({"acceptance": acceptance_chances(p_token, q_token)} | to_arrays(own_ahead))
        if depth == 0:
            scored = ScoredRows(token, token, token, p_logits, ())
            draft = DraftRows(q_logits, readable)
            target_most_likely = p_logits.argmax(-1)
            own_columns = draft_numbers(draft, scored, p, target_most_likely, sampling)
            columns.append(to_arrays(own_columns))
    return join_pieces(ahead), join_pieces(columns) if columns else {}


def _join(
    windows: Sequence[Sequence[tuple[Numbers, Numbers]]], size: int, drafter: Drafter
) -> Numbers:
    """Joins the windows of one text."""
    columns = join_pieces([by_depth[0][1] for by_depth in windows])
    ahead = {name: np.zeros((size, len(windows[0]))) for name in AHEAD}
    ahead["readable"] += 1  # nothing stops a draft behind the text
    begin = 0
    for by_depth in windows:
        for depth, (numbers, _) in enumerate(by_depth):
            for name, values in numbers.items():
                ahead[name][begin : begin + len(values), depth] = values
        begin += len(by_depth[0][0]["acceptance"])
    columns["confidence"] = columns["confidence"].sum(0, dtype=np.float64)
    return columns | {"ahead": Ahead(**ahead, waits=drafter.waits)}
