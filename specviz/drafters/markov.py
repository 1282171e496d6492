"""A Markov bias for heads that guess all depths at once without seeing each other's guesses (DSpark, arXiv:2607.05147).

The token before a depth chooses a row that is added to the depth's logits: B[A[token]], of low rank. Tokens are then
drawn one after another, so that each has a distribution q of its own, given the token before it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from specviz.decoding.device import exact_dtype, to_device
from specviz.decoding.draft import Draft, chain
from specviz.decoding.drafter import Context
from specviz.decoding.draws import DRAFT
from specviz.decoding.sampling import HEADS, fetch_tokens
from specviz.errors import SpecvizError

PREFIX = "markov."
"""Stands before the names of the bias's tensors in a checkpoint."""
MOST_RANK = 2048
_EMBED = f"{PREFIX}embed.weight"


class MarkovBias(nn.Module):
    """The bias of each depth: A [V, r] is `embed`, B [V, r] of depth i (0, 1, ...) is the module named i.

    If there is one B alone, all depths share it.
    """

    def __init__(self, vocab_size: int, rank: int, num_tables: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, rank)
        self._num_tables = num_tables
        for depth in range(num_tables):
            self.add_module(str(depth), nn.Linear(rank, vocab_size, bias=False))

    @property
    def tables(self) -> list[nn.Module]:
        """The modules that hold B, by depth."""
        return [self.get_submodule(str(depth)) for depth in range(self._num_tables)]

    def forward(self, depth: int, before: Tensor) -> Tensor:
        """What the tokens before [...] add to the logits of a depth: [..., V]."""
        table = depth if self._num_tables > 1 else 0
        return self.get_submodule(str(table))(self.embed(before))


def empty_bias(state: Mapping[str, Tensor], vocab_size: int, num_depths: int) -> MarkovBias | None:
    """A bias for a checkpoint's tensors, to be filled with them; None where it holds no bias.

    Its shapes are the ones that the tensors must have. Raises SpecvizError for a rank or a number of tables that no
    bias can have.
    """
    names = [name for name in state if name.startswith(PREFIX)]
    if not names:
        return None
    shape = list(state[_EMBED].shape) if _EMBED in state else []
    if len(shape) != 2 or not 1 <= shape[1] <= MOST_RANK:
        raise SpecvizError(
            f"{_EMBED} must be of the shape {vocab_size} x rank, the rank from 1 to {MOST_RANK} (got "
            f"{' x '.join(map(str, shape)) or 'none'})"
        )
    num_tables = len(names) - 1
    if num_tables not in (1, num_depths):
        raise SpecvizError(
            f"its Markov bias must have 1 matrix for all heads or {num_depths}, one per head (got {num_tables})"
        )
    return MarkovBias(vocab_size, shape[1], num_tables)


def draw_chain(context: Context, rows: Tensor, bias: MarkovBias | None) -> Draft:
    """Draws a chain from the logits of heads that guess all depths at once: rows [depth, V].

    Without a bias all tokens are drawn at once. With one they are drawn in turn, each given the token before it; the
    token before the first is the text's last. Ids stay on the device until the one transfer.
    """
    if bias is None:
        probs = context.sampling.probs(rows)  # [depth, V]
        tokens = context.draws.sample(probs, DRAFT, len(context.tokens), 0)
        ids, _ = fetch_tokens(tokens, probs.sum(-1, dtype=exact_dtype(probs.device)), HEADS)
        return chain(ids, probs, rows)
    return _draw_in_turn(context, rows, bias)


def _draw_in_turn(context: Context, rows: Tensor, bias: MarkovBias) -> Draft:
    token = to_device(context.tokens[-1:], torch.long, rows.device)[0]
    logits: list[Tensor] = []
    probs: list[Tensor] = []
    tokens: list[Tensor] = []
    for depth, row in enumerate(rows):
        logits.append(row + bias(depth, token))
        probs.append(context.sampling.probs(logits[-1]))
        token = context.draws.sample(probs[-1], DRAFT, len(context.tokens) + depth, depth)
        tokens.append(token)
    sums = torch.stack([q.sum(dtype=exact_dtype(q.device)) for q in probs])
    ids, _ = fetch_tokens(torch.stack(tokens), sums, HEADS)
    return chain(ids, probs, logits)
