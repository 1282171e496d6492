"""What heads, modules and early exits would draft behind every token of a text that exists."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from specviz.analysis.whatif import Chances, acceptance_chances, draft_room
from specviz.decoding.drafter import Ahead, Drafter
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
    no_states = torch.zeros(len(tokens), 0, dtype=torch.float32, device=tokens.device)
    layers = tuple(sorted({layer for group in wanted for layer in group}))
    if not layers:
        return [no_states for _ in wanted]
    lm = target.cached_lm()
    ids = tokens.tolist()
    lm.capture(layers)
    lm.forward(ids)
    hidden = lm.hidden([*ids, 0])  # [T, layers x C]
    states = dict(zip(layers, hidden.chunk(len(layers), -1), strict=True))
    groups = []
    for group in wanted:
        columns = [states[layer] for layer in group]
        groups.append(torch.cat(columns, -1) if columns else no_states)
    return groups


def each_depth(along: Ahead, starts: Tensor, depths: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(depth, logits [S, V] or ids [S], known [S]); a place with too little before it is not known."""
    has_enough = starts >= FEWEST_BEFORE
    for depth, (rows, known) in enumerate(along(starts.clamp_min(FEWEST_BEFORE), depths)):
        give_way()
        yield depth, rows, has_enough if known is None else has_enough & known


@torch.inference_mode()
def chances_of(
    setup: Setup,
    before: Sequence[int],
    text: Sequence[int],
    sampling: Sampling,
    depths: int,
    most_tokens: int,
) -> Chances:
    """The acceptance probability of each token, by where its step begins.

    most_tokens: the length that the run was allowed. Raises SpecvizError where the method cannot tell what it would
    draft elsewhere.
    """
    target = setup.target
    ids = [*before, *text]
    drafter = setup.drafter(target.cached_lm())
    tokens = torch.tensor(ids, device=target.model.device)
    along = _drafts_along(setup, drafter, tokens)
    p = np.array(score(target, None, ids, len(text), sampling).p)
    accept = np.zeros((len(text), depths))
    is_read = np.zeros((len(text), depths), dtype=bool)
    for begin in range(0, len(text), CHUNK):
        end = min(begin + CHUNK, len(text))
        starts = torch.arange(len(before) + begin, len(before) + end, device=tokens.device)
        for depth, rows, known in each_depth(along, starts, depths):
            is_read[begin:end, depth] = known.cpu()
            inside = starts + depth < len(tokens)
            places = (starts + depth)[inside]
            q = _drafted_probability(rows[inside], tokens[places], sampling) * known[inside]
            p_here = p[places.cpu().numpy() - len(before)]
            accept[begin : begin + len(p_here), depth] = acceptance_chances(p_here, q.cpu().numpy())
    num_read = np.cumprod(is_read, axis=1).sum(1)
    drafted = np.minimum(draft_room(len(text), most_tokens), num_read)
    drafted[:1] *= not drafter.waits
    return Chances(accept, drafted)


def _drafts_along(setup: Setup, drafter: Drafter, tokens: Tensor) -> Ahead:
    """What the drafter proposes behind every token. Raises SpecvizError where it cannot tell."""
    states = read_states(setup.target, [drafter.hidden_layers], tokens)[0]
    along = drafter.along(tokens, states)
    if along is None:
        raise SpecvizError(
            f"what {setup.method.name} drafts with these settings depends on where its step begins"
        )
    return along


def _drafted_probability(rows: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
    """The probability [S] that each token is drafted. rows: logits [S, V], or the drafted ids [S]."""
    if rows.dim() == 1:
        return (rows == tokens).float()
    return of_tokens(sampling.of_draft.probs(rows), tokens)
