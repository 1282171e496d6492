"""Rule: judges drafted tokens. It sees one draft, the target's rows and the draws, and nothing else.

Every rule is a separate object. Whether the text keeps the target's distribution depends on the rule alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specviz.decoding.device import exact_dtype
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.draws import FINAL, Draws
from specviz.decoding.sampling import TARGET, fetch_tokens


@dataclass(frozen=True, slots=True)
class Check:
    """The judgement of one node."""

    node: int
    p: float  # the target's probability at the parent
    p_judged: float  # the same after earlier siblings failed
    q: float  # 1 for a point mass
    accept_prob: float
    u: float
    accepted: bool


@dataclass(frozen=True, slots=True, eq=False)
class Distributions:
    """The distributions behind a verdict, for showing."""

    judged: Sequence[Tensor]  # C rows [V], the target's that each check was made against
    final: Tensor  # [V] the row the last token was drawn from
    node_p: tuple[float, ...]  # N, each node's p at its parent
    node_q: tuple[float, ...]  # N, each node's q; 1 for a point mass


@dataclass(frozen=True, slots=True)
class Verdict:
    """The accepted nodes of a draft, and the token that follows them."""

    path: tuple[int, ...]  # the accepted nodes from ROOT down
    token: int  # the one that follows them
    kind: str  # the token's: "bonus" | "resampled" | "plain"
    checks: tuple[Check, ...]
    distributions: Distributions = field(compare=False, repr=False)

    @property
    def last_node(self) -> int:
        return self.path[-1] if self.path else ROOT

    def emitted(self, draft: Draft) -> tuple[int, ...]:
        """The accepted tokens and the one that follows them, before the text is shortened at its end."""
        accepted = [draft.tokens[node] for node in self.path]
        return (*accepted, self.token)


class Rule:
    """A named acceptance rule."""

    name: str
    title: str
    summary: str
    lossless: bool
    """Whether the text is distributed exactly as if the target had written it alone."""
    judges_alone = True
    """Whether a token's probability of acceptance depends only on p and q at its own place."""

    def supports(self, draft: Draft) -> bool:
        """Whether this rule can judge the draft."""
        raise NotImplementedError

    def __call__(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        """Judges `draft` against probs [1+N, V] (row 0 follows the context of `position` tokens, row 1+i node i)."""
        raise NotImplementedError

    def one_step_accepted(self, p: Tensor, q: Tensor) -> Tensor:
        """The probability [..., V] that x was drafted and accepted, if one token x ~ q is judged against p.

        p and q [..., V]; the sum over the last axis is the acceptance.
        """
        raise NotImplementedError

    def one_step_distribution(self, p: Tensor, q: Tensor) -> Tensor:
        """The exact distribution [..., V] of the first token, if one token x ~ q [..., V] is judged against p."""
        raise NotImplementedError

    def length_distribution(self, draft: Draft, probs: Tensor) -> Tensor:
        """The exact distribution [N+1] of how many tokens of this chain are accepted, over the rule's own draws.

        probs [1+N, V] as in a call. Raises ValueError for a tree.
        """
        raise NotImplementedError


def proposal(draft: Draft, node: int, probs: Tensor) -> Tensor:
    """The distribution [V] that a node's token was drawn from; one-hot where it was chosen without chance."""
    q = draft.probs[node]
    return point_mass(draft, node, probs) if q is None else q.to(probs.dtype)


def point_mass(draft: Draft, node: int, probs: Tensor) -> Tensor:
    """The distribution [V] with all probability on a node's token, however it was drafted."""
    row = torch.zeros_like(probs[0])
    token = draft.tokens[node]
    row[token : token + 1] = 1.0  # a slice: CUDA would wait for the copy of a single element
    return row


def draw_last(row: Tensor, draws: Draws, position: int) -> int:
    """The token behind the accepted ones, drawn from its distribution [V]."""
    token = draws.sample(row, FINAL, position, ROOT)
    total = row.sum(dtype=exact_dtype(row.device))
    token, _ = fetch_tokens(token, total, TARGET)
    return token
