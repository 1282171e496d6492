"""Speculative sampling: Leviathan et al. 2022, algorithm 1; Chen et al. 2023, algorithm 2.

Sources: arXiv:2211.17192 and arXiv:2302.01318. The draft model has written x_1 ... x_K, each x_i ~ q_i. One call of the
target model has given p_1 ... p_K+1. For i = 1 ... K:

    draw u ~ U(0, 1)
    if u < p_i(x_i) / q_i(x_i)    accept x_i
    else                          reject x_i, write a token from norm(max(0, p_i - q_i)) instead, and stop

If all were accepted, the same call gives one more token for nothing: the bonus, drawn from p_K+1.

Lossless: a token x is accepted with probability q min(1, p/q) = min(p, q). It replaces another one with probability
max(0, p - q): a rejection has probability 1 - sum min(p, q), and norm divides by the same sum. The two add up to p.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specviz.rules.chain import widen
from specviz.rules.facts import FACTS
from specviz.rules.tree import TreeRule


def reference(
    p: Tensor, q: Tensor, tokens: Sequence[int], uniform: Callable[[int], float]
) -> tuple[int, int]:
    """Speculative sampling as the papers write it, for one text and one chain: the oracle that tests hold the rule to.

    p: the target's distributions [1+N, V]. q: the draft's [N, V]. tokens: N, drawn from q. uniform(i): the random draw
    that judges token i, and uniform(N) the one for the last token. Returns how many tokens are accepted, and the last.
    """
    num_accepted = 0
    for i, x in enumerate(tokens):
        u = uniform(i)
        if u < p[i, x] / q[i, x]:
            num_accepted += 1
        else:
            break

    if num_accepted == len(tokens):
        last_distribution = p[num_accepted]  # the bonus
    else:
        shortfall = (p[num_accepted] - q[num_accepted]).clamp_min(0)
        last_distribution = shortfall / shortfall.sum()  # norm(max(0, p - q))

    # Draw from it: the first token whose cumulative probability lies above the random draw.
    cumulative = last_distribution.cumsum(0)
    last = torch.searchsorted(cumulative, uniform(len(tokens)), right=True)
    return num_accepted, int(last)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """The distribution norm(max(0, p - q)) [..., V]; p itself where nothing is left (p = q up to rounding)."""
    shortfall = (p - q).clamp_min_(0)
    total = shortfall.sum(-1, keepdim=True)
    tiny = torch.finfo(shortfall.dtype).tiny
    return shortfall.div_(total.clamp_min(tiny)).add_(p * (total <= 0))  # faster than torch.where


class SpeculativeSampling(TreeRule):
    """Accepts x with probability min(1, p/q), else draws from norm(max(0, p - q)).

    Over siblings of a token tree, p becomes the residual after each rejection: SpecInfer, Miao et al. 2023.
    """

    facts = FACTS["speculative_sampling"]

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        q = widen(q)
        return widen(p) / q.clamp_min(torch.finfo(q.dtype).tiny)  # finite where q is 0

    def residual(self, p: Tensor, q: Tensor) -> Tensor:
        return residual(p, q)

    def bonus(self, p: Tensor) -> Tensor:
        return p
