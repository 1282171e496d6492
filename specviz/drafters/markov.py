"""A Markov bias for heads that guess all depths at once without seeing each other's guesses (DSpark, arXiv:2607.05147).

The token before a depth chooses a row that is added to the depth's logits: B[A[token]], of low rank. Tokens are then
drawn one after another, so that each has a distribution q of its own, given the token before it.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from specviz.decoding.device import argmax, exact_dtype, to_device
from specviz.decoding.draft import EMPTY, Draft, chain
from specviz.decoding.drafter import Context
from specviz.decoding.draws import DRAFT
from specviz.decoding.sampling import HEADS, fetch_tokens
from specviz.drafters.params import IN_TURN, TOGETHER
from specviz.errors import SpecvizError

PREFIX = "markov."
"""Stands before the names of the bias's tensors in a checkpoint."""
MOST_RANK = 2048
_EMBED = f"{PREFIX}embed.weight"
Biased = Callable[[int, Tensor, Tensor], Tensor]
"""Gives the logits [..., V] of a depth, from the depth, the tokens before it [...], and the logits without them."""
Additions = Callable[[int, Tensor], Tensor]
"""Gives what is added to the logits of a depth [..., D], from the depth and the tokens before it [...]."""
Refuses = Callable[[int, Tensor], bool]
"""Whether a draft ends before a depth, from the depth and the token [] before it."""


class MarkovBias(nn.Module):
    """The bias of each depth: A [V, r] is `embed`, B [D, r] of depth i (0, 1, ...) is the module named i.

    If there is one B alone, all depths share it. D is the number of tokens that the heads can propose.
    """

    def __init__(
        self, vocab_size: int, rank: int, num_tables: int, num_choices: int | None = None
    ) -> None:
        """num_choices: D; None: all V."""
        super().__init__()
        self.embed = nn.Embedding(vocab_size, rank)
        self._num_tables = num_tables
        for depth in range(num_tables):
            self.add_module(str(depth), nn.Linear(rank, num_choices or vocab_size, bias=False))

    @property
    def tables(self) -> list[nn.Module]:
        """The modules that hold B, by depth."""
        return [self.get_submodule(str(depth)) for depth in range(self._num_tables)]

    def forward(self, depth: int, before: Tensor) -> Tensor:
        """What the tokens before [...] add to the logits of a depth: [..., D]."""
        return self.table(depth)(self.embed(before))

    def table(self, depth: int) -> nn.Module:
        """The module that holds B of a depth; depths behind the last one have its B."""
        return self.get_submodule(str(min(depth, self._num_tables - 1)))

    def additions(self, features: Tensor) -> Additions:
        """What is added behind the features of a block [N, H], or of several [S, N, H]; depths are asked in order."""
        return self

    def biased(self, depth: int, before: Tensor, logits: Tensor) -> Tensor:
        """The logits [..., V] of a depth with the bias by the tokens before [...]."""
        return logits + self(depth, before)


def bias_sizes(
    shapes: Mapping[str, Sequence[int]], vocab_size: int, num_depths: int
) -> tuple[int, int]:
    """The rank and the number of tables of the bias that a checkpoint holds. shapes: of its tensors, by name.

    Raises SpecvizError for a rank or a number of tables that no bias can have.
    """
    shape = shapes.get(_EMBED, ())
    if len(shape) != 2 or not 1 <= shape[1] <= MOST_RANK:
        raise SpecvizError(
            f"{_EMBED} must be of the shape {vocab_size} x rank, the rank from 1 to {MOST_RANK} (got "
            f"{' x '.join(map(str, shape)) or 'none'})"
        )
    num_tables = sum(re.fullmatch(rf"{PREFIX}\d+\.weight", name) is not None for name in shapes)
    if num_tables not in (1, num_depths):
        raise SpecvizError(
            f"its Markov bias must have 1 matrix for all depths or {num_depths}, one per depth (got {num_tables})"
        )
    return shape[1], num_tables


def filled(bias: object | None) -> dict[str, str]:
    """What the evidence tells of a draft that one pass filled. bias: what chains its tokens; None: nothing."""
    return {"filled": TOGETHER if bias is None else IN_TURN}


def draw_chain(
    context: Context,
    rows: Tensor,
    biased: Biased | None = None,
    *,
    draws: bool = True,
    refuses: Refuses | None = None,
) -> Draft:
    """Drafts a chain from the logits of heads that guess all depths at once: rows [depth, V].

    Without a bias all tokens are chosen at once. With one they are chosen in turn, each given the token before it; the
    token before the first is the text's last. Ids stay on the device until the one transfer.
    draws: whether each token is drawn from its distribution; else the most likely one is taken, as a point mass.
    refuses: asked before each token; it never sees the token that it decides on.
    """
    start = len(context.tokens)
    if biased is None and refuses is None:
        tokens, probs = _choose(context, rows, draws, start, 0)
    else:
        before = to_device(context.tokens[-1:], torch.long, rows.device)[0]
        chosen: list[tuple[Tensor, Tensor]] = []
        logits: list[Tensor] = []
        for depth, row in enumerate(rows):
            if refuses is not None and refuses(depth, before):
                break
            logits.append(row if biased is None else biased(depth, before, row))
            chosen.append(_choose(context, logits[-1], draws, start + depth, depth))
            before = chosen[-1][0]
        if not chosen:
            return EMPTY
        tokens, probs = map(torch.stack, zip(*chosen, strict=True))
        rows = torch.stack(logits)
    ids, _ = fetch_tokens(tokens, probs.sum(-1, dtype=exact_dtype(probs.device)), HEADS)
    return chain(ids, probs if draws else None, rows, filled(biased))


def _choose(
    context: Context, logits: Tensor, draws: bool, place: int, depth: int
) -> tuple[Tensor, Tensor]:
    """Tokens [...] by logits [..., V] from a place of the text on, and the probabilities [..., V] they come from."""
    if not draws:
        return argmax(logits), logits.softmax(-1)
    probs = context.sampling.probs(logits)
    return context.draws.sample(probs, DRAFT, place, depth), probs


def is_chained(heads: nn.Module) -> bool:
    """Whether something tells each guess of these heads the token before: a bias, or a selector (DFlash2)."""
    parts = (getattr(heads, name, None) for name in ("markov", "candidate_selector"))
    return any(part is not None for part in parts)


def tokens_before(tokens: Tensor, starts: Tensor, depth: int) -> Tensor:
    """The tokens [S] of a known text before the places at a depth behind these starts [S]."""
    return tokens[(starts + depth - 1).clamp_max(len(tokens) - 1)]
