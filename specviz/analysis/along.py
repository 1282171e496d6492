"""Drafters along a text that exists: what heads, modules and early exits would draft behind every place of it."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from specviz.analysis.whatif import Chances, acceptance_chances, draft_room
from specviz.decoding.drafter import Ahead
from specviz.decoding.sampling import Sampling
from specviz.decoding.turns import give_way
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel
from specviz.models.score import CHUNK, of_tokens, score
from specviz.session.setup import Setup

FEWEST_BEFORE = 2  # tokens before a draft: the target must have read one, and the last it never has


def read_states(
    target: LoadedModel, wanted: Sequence[tuple[int, ...]], tokens: Tensor
) -> list[Tensor]:
    """The target's states of each group of layers behind every token [T, C]; the text is read once for all groups."""
    lm, ids, none = (
        target.cached_lm(),
        tokens.tolist(),
        torch.zeros(len(tokens), 0, device=tokens.device),
    )
    layers = tuple(sorted({layer for own in wanted for layer in own}))
    if not layers:
        return [none for _ in wanted]
    lm.capture(layers)
    lm.forward(ids)
    states = dict(zip(layers, lm.hidden([*ids, 0]).chunk(len(layers), -1), strict=True))
    return [torch.cat([states[layer] for layer in own], -1) if own else none for own in wanted]


def each_depth(along: Ahead, starts: Tensor, depths: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(depth, logits [S, V] or ids [S], known [S]); a place with too little before it is not known."""
    can = starts >= FEWEST_BEFORE
    for depth, (rows, known) in enumerate(along(starts.clamp_min(FEWEST_BEFORE), depths)):
        give_way()
        yield depth, rows, can if known is None else can & known


@torch.inference_mode()
def chances_of(
    setup: Setup,
    before: Sequence[int],
    text: Sequence[int],
    sampling: Sampling,
    depths: int,
    most_tokens: int,
) -> Chances:
    """The chance of each token to be kept, by where its step begins. most_tokens: the length the text was allowed.
    SpecvizError where the method does not tell what it would draft elsewhere."""
    target, ids = setup.target, [*before, *text]
    drafter = setup.drafter(target.cached_lm())
    tokens = torch.tensor(ids, device=target.model.device)
    (states,) = read_states(target, [drafter.hidden_layers], tokens)
    along = drafter.along(tokens, states)
    if along is None:
        raise SpecvizError(
            f"what {setup.method.name} drafts with these settings depends on where its step begins"
        )
    p = np.array(score(target, None, ids, len(text), sampling).p)
    keep, reads = np.zeros((len(text), depths)), np.zeros((len(text), depths), dtype=bool)
    for begin in range(0, len(text), CHUNK):
        starts = torch.arange(
            len(before) + begin, len(before) + min(begin + CHUNK, len(text)), device=tokens.device
        )
        for depth, rows, known in each_depth(along, starts, depths):
            reads[begin : begin + len(starts), depth] = known.cpu()
            inside = starts + depth < len(tokens)
            places, rows = (starts + depth)[inside], rows[inside]
            token = tokens[places]
            q = (
                (rows == token).float()
                if rows.dim() == 1
                else of_tokens(sampling.of_draft.probs(rows), token)
            )
            own = acceptance_chances(
                p[places.cpu().numpy() - len(before)], (q * known[inside]).cpu().numpy()
            )
            keep[begin : begin + len(own), depth] = own
    drafted = np.minimum(draft_room(len(text), most_tokens), np.cumprod(reads, axis=1).sum(1))
    drafted[:1] *= not drafter.waits
    return Chances(keep, drafted)
