"""How drafted tokens are judged. A rule sees one draft, the target's rows and the draws, and nothing else.

Every rule is a separate object; whether the text keeps the target's law is a property of the rule alone.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from specviz.decoding.device import exact_dtype
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.draws import FINAL, Draws
from specviz.decoding.sampling import TARGET, fetch_tokens


@dataclass(frozen=True, slots=True)
class Check:
    """One judged node: p is the target's probability at the parent, p_judged the one after earlier siblings failed."""

    node: int
    p: float
    p_judged: float
    q: float  # 1 for a point mass
    accept_prob: float
    u: float
    accepted: bool


@dataclass(frozen=True, slots=True, eq=False)
class Distributions:
    """The distributions behind a verdict, for showing.

    One row per check, the row the last token was drawn from, and every node's p and q at its parent (q 1 for a point
    mass).
    """

    judged: Tensor  # [C, V] the target's row each check was made against
    drawn_from: Tensor  # [C, V] the q of each check, one-hot for a point mass
    final: Tensor  # [V]
    node_p: tuple[float, ...]  # N
    node_q: tuple[float, ...]  # N


@dataclass(frozen=True, slots=True)
class Verdict:
    """path: the accepted nodes from ROOT down. token: what follows them, and of which kind."""

    path: tuple[int, ...]
    token: int
    kind: str  # "bonus" | "resampled" | "plain"
    checks: tuple[Check, ...]
    distributions: Distributions = field(compare=False, repr=False)

    @property
    def last_node(self) -> int:
        return self.path[-1] if self.path else ROOT

    def emitted(self, draft: Draft) -> tuple[int, ...]:
        """The accepted tokens and the one that follows them, before anything is cut at the end of the text."""
        return (*(draft.tokens[node] for node in self.path), self.token)


class Rule:
    """A named acceptance rule. `lossless`: the emitted text follows the target's law exactly."""

    name: str
    title: str
    summary: str
    lossless: bool

    def supports(self, draft: Draft) -> bool:
        raise NotImplementedError

    def __call__(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        """Judges `draft` against probs [1+N, V] (row 0 follows the context of `position` tokens, row 1+i node i)."""
        raise NotImplementedError

    def one_step_accepted(self, p: Tensor, q: Tensor) -> Tensor:
        """Where one token x ~ q is judged against p: the probability [..., V] that it was x and was kept.

        p and q [..., V]; the sum over the last axis is the acceptance.
        """
        raise NotImplementedError

    def one_step_distribution(self, p: Tensor, q: Tensor) -> Tensor:
        """The exact law [..., V] of the first token emitted where one token x ~ q [..., V] is judged against p."""
        raise NotImplementedError

    def length_distribution(self, draft: Draft, probs: Tensor) -> Tensor:
        """The exact law [N+1] of how many tokens of this chain are kept, over the rule's own draws.

        probs [1+N, V] as in a call. Raises ValueError for a tree.
        """
        raise NotImplementedError


def proposal(draft: Draft, node: int, probs: Tensor) -> Tensor:
    """The law [V] that a node's token was drawn from; one-hot where it was chosen without chance."""
    q = draft.probs[node]
    return point_mass(draft, node, probs) if q is None else q.to(probs.dtype)


def point_mass(draft: Draft, node: int, probs: Tensor) -> Tensor:
    """All on a node's token [V], however it was drafted."""
    row = torch.zeros_like(probs[0])
    token = draft.tokens[node]
    row[token : token + 1] = (
        1.0  # a slice is filled on the device; of one element CUDA would wait for a copy
    )
    return row


def draw_last(row: Tensor, draws: Draws, position: int) -> int:
    """The token after the accepted ones, from its law [V]."""
    token = draws.sample(row, FINAL, position, ROOT)
    return fetch_tokens(token, row.sum(dtype=exact_dtype(row.device)), TARGET)[0]
