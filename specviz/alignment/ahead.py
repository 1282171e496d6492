"""Drafts that are no models (heads, modules, early exit, prompt lookup) along a text: their numbers at every depth.

A step may begin at every place of the text; `Drafter.along` says what would be drafted behind it. One interface: what
a method does to get there is its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specviz.alignment.token_stats import Numbers, blocks, draft_numbers
from specviz.alignment.types import AHEAD, DEPTHS, Ahead
from specviz.analysis.along import FEWEST_BEFORE, each_depth, read_states
from specviz.analysis.whatif import acceptance_chances
from specviz.decoding.draft import chain
from specviz.decoding.drafter import Drafter
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.drafters.heads import kind_of
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
    """A draft that is no model. name: as it is shown."""

    name: str
    setup: Setup

    def drafter(self) -> Drafter:
        return self.setup.drafter(self.setup.target.cached_lm())


Draft = LoadedModel | Proposer


def load_draft(wanted: Any, pool: ModelPool, target: LoadedModel) -> Draft:
    """A draft model, or the drafter that the name asks for: heads by their name or folder, or METHOD:HEADS,NAME=VALUE.

    Raises SpecvizError, also for a method that cannot be read along a text.
    """
    method, heads, pairs = _split(wanted) if isinstance(wanted, str) else ("", "", ())
    if not method:
        return pool.load(wanted, as_draft=True)
    params = METHODS[method].read(pairs) | ({"heads": heads} if heads else {})
    setup = gather(METHODS[method], params, target, None, pool)
    held = "" if setup.heads is None else setup.heads.name
    options = ",".join(filter(None, (held, *pairs)))
    made = Proposer(held if held and not pairs else f"{method}:{options}".rstrip(":"), setup)
    drafter, tokens = (
        made.drafter(),
        torch.zeros(FEWEST_BEFORE, dtype=torch.long, device=target.model.device),
    )
    if drafter.along(tokens, *read_states(target, [drafter.hidden_layers], tokens)) is None:
        can = ", ".join(sorted(READABLE))
        raise SpecvizError(
            f"{made.name} cannot be read along a text: what it drafts depends on more than the text before (these can "
            f"be: {can})"
        )
    return made


READABLE = tuple(method.name for method in METHODS.values() if method.reads_ahead)


def _split(wanted: str) -> tuple[str, str, tuple[str, ...]]:
    """Method, heads and parameters; an empty method for the name of a draft model."""
    method, _, rest = wanted.partition(":")
    if method in READABLE:
        words = [word for word in rest.split(",") if word]
        return (
            method,
            "".join(word for word in words if "=" not in word),
            tuple(w for w in words if "=" in w),
        )
    known = catalog.HEADS.get(wanted)
    return (known.kind if known else kind_of(Path(wanted)), wanted, ())


# ---- numbers along a text -------------------------------------------------------------------------------------------


@torch.inference_mode()
def measure_ahead(
    target: LoadedModel,
    drafters: Sequence[Drafter],
    text: TextIds,
    sampling: Sampling,
    depths: int = DEPTHS,
) -> list[Numbers]:
    """Of each drafter what `measure_texts` gives of a draft model, at depth 1, and as "ahead" every depth."""
    lm, tokens = (
        target.cached_lm(),
        torch.tensor([*text.prompt, *text.ids], device=target.model.device),
    )
    states = read_states(target, [drafter.hidden_layers for drafter in drafters], tokens)
    ways = [drafter.along(tokens, own) for drafter, own in zip(drafters, states, strict=True)]
    found: list[list] = [[] for _ in drafters]  # by drafter, window and depth
    most = LOGITS_BYTES_CUDA if lm.device.type == "cuda" else LOGITS_BYTES
    window = max(1, most // (8 * lm.vocab_size) - depths)
    for begin in range(0, len(text.ids), window):
        end = min(begin + window, len(text.ids))
        places = text.ids[begin : end + depths - 1]
        before = [*text.prompt, *text.ids[:begin]]
        logits = lm.forward(before, chain(places))[: len(places)]
        starts = torch.arange(len(before), len(before) + end - begin, device=lm.device)
        for own, along in zip(found, ways, strict=True):
            guesses = each_depth(along, starts, min(depths, len(places)))
            own.append([_numbers(*guess, logits, places, sampling) for guess in guesses])
    return [
        _join(windows, len(text.ids), drafter)
        for windows, drafter in zip(found, drafters, strict=True)
    ]


def _numbers(
    depth: int,
    rows: Tensor,
    known: Tensor,
    logits: Tensor,
    places: Sequence[int],
    sampling: Sampling,
) -> tuple[Numbers, Numbers]:
    """The columns of `Ahead` so far behind each start, as far as the text goes; at depth 0 also all of a draft's."""
    size = min(len(known), len(places) - depth)
    token, p_logits = (
        torch.tensor(places[depth : depth + size], device=logits.device),
        logits[depth : depth + size],
    )
    found: list[tuple[Numbers, Numbers]] = []
    for piece in blocks(size, logits):
        it, own, reads = token[piece], rows[:size][piece], known[:size][piece]
        q_logits = (
            own
            if rows.dim() == 2
            else torch.full_like(p_logits[piece], NOTHING).scatter_(1, own[:, None], 0.0)
        )
        p, q, mine = sampling.probs(p_logits[piece]), sampling.probs(q_logits), q_logits.argmax(-1)
        p_token, q_token = of_tokens(p, it).cpu().numpy(), of_tokens(q, it).cpu().numpy()
        ahead = {
            "acceptance": acceptance_chances(p_token, q_token),
            "hit": (mine == it).cpu().numpy(),
            "overlap": overlap_of(p, q).cpu().numpy(),
            "most_likely_p": of_tokens(p, mine).cpu().numpy(),
            "readable": reads.cpu().numpy(),
        }
        whole = {}
        if depth == 0:
            read = ScoredRows(it, it, it, p_logits[piece], ())
            whole = draft_numbers(
                DraftRows(q_logits, reads), read, p, p_logits[piece].argmax(-1), sampling
            )
        found.append((ahead, {name: values.cpu().numpy() for name, values in whole.items()}))
    ahead, whole = (_behind_each_other(side) for side in zip(*found, strict=True))
    return ahead, whole


def _behind_each_other(pieces: Sequence[Numbers]) -> Numbers:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _join(
    windows: Sequence[Sequence[tuple[Numbers, Numbers]]], size: int, drafter: Drafter
) -> Numbers:
    """The windows of one text behind each other."""
    columns = _behind_each_other([window[0][1] for window in windows])
    ahead = {name: np.zeros((size, len(windows[0]))) for name in AHEAD}
    ahead["readable"] += 1  # nothing stops a draft behind the text
    begin = 0
    for window in windows:
        for depth, (numbers, _) in enumerate(window):
            for name, values in numbers.items():
                ahead[name][begin : begin + len(values), depth] = values
        begin += len(window[0][0]["acceptance"])
    columns["confidence"] = columns["confidence"].sum(0, dtype=np.float64)
    return columns | {"ahead": Ahead(**ahead, waits=drafter.waits)}
