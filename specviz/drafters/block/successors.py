"""What the token before says of the next one in a block, where no place of it sees another's guess.

DSpark's biases and its confidence head (arXiv:2607.05147, section 3; DeepSpec, modeling/dspark), and DFlash2's selector
(z-lab/dflash, model.py). All read the block's features, behind the head's last norm.
"""

import torch
from torch import Tensor, nn

from specviz.drafters.markov import Additions, Biased, MarkovBias

NOTHING = -1e4
"""A logit that leaves no probability. An id with minus infinity is one that a draft can write nowhere."""


class GatedBias(MarkovBias):
    """DSpark's gated bias: the feature of a place says how much of each number of the token's row counts there."""

    def __init__(self, hidden_size: int, vocab_size: int, rank: int, num_choices: int) -> None:
        super().__init__(vocab_size, rank, 1, num_choices)
        self.gate_proj = nn.Linear(hidden_size + rank, rank)

    def additions(self, features: Tensor) -> Additions:
        def addition(depth: int, before: Tensor) -> Tensor:
            row = self.embed(before)
            gate = self.gate_proj(torch.cat([features[..., depth, :], row], -1)).sigmoid()
            return self.table(depth)(gate * row)

        return addition


class RecurrentBias(MarkovBias):
    """DSpark's recurrent bias: a state carries what the earlier tokens of the block said."""

    def __init__(self, hidden_size: int, vocab_size: int, rank: int, num_choices: int) -> None:
        super().__init__(vocab_size, rank, 1, num_choices)
        self.joint_proj = nn.Linear(hidden_size + 2 * rank, 3 * rank)

    def additions(self, features: Tensor) -> Additions:
        state: Tensor | None = None

        def addition(depth: int, before: Tensor) -> Tensor:
            nonlocal state
            row = self.embed(before)
            old = torch.zeros_like(row) if state is None else state
            inputs = torch.cat([old, row, features[..., depth, :]], -1)
            gate, new, out = self.joint_proj(inputs).chunk(3, -1)
            gate = gate.sigmoid()
            state = gate * old + (1 - gate) * new.tanh()
            return self.table(depth)(out.tanh())

        return addition


BIASES = {"gated": GatedBias, "rnn": RecurrentBias}
"""DSpark's biases that read more than the token before, by markov_head_type."""


class CandidateSelector(nn.Module):
    """DFlash2's selector: it scores how well each of a place's likeliest tokens follows the token before.

    No other token can be drafted there.
    """

    def __init__(self, hidden_size: int, vocab_size: int, rank: int, top_k: int) -> None:
        super().__init__()
        self._top_k = top_k
        self.hidden_projection = projection = nn.Linear(hidden_size, rank, bias=False)
        self.predecessor_codebook = nn.Parameter(projection.weight.new_empty(vocab_size, rank))
        self.successor_codebook = nn.Parameter(projection.weight.new_empty(vocab_size, rank))

    def chain(self, features: Tensor) -> Biased:
        """The scores behind the features of a block [N, H], or of several [S, N, H], as logits."""

        def biased(depth: int, before: Tensor, logits: Tensor) -> Tensor:
            own, ids = logits.topk(self._top_k)  # [..., k]
            follows = self.predecessor_codebook[before] * self.hidden_projection(
                features[..., depth, :]
            )
            added = (self.successor_codebook[ids] @ follows[..., None])[..., 0]
            return torch.full_like(logits, NOTHING).scatter(-1, ids, own + added)

        return biased


class ConfidenceHead(nn.Module):
    """DSpark's confidence head: how probable it is that a token is accepted, if those before it in the block were.

    It does not see that token: its inputs are the feature of the place and, with a bias, the row of the token before.
    """

    def __init__(self, size: int, has_bias: bool) -> None:
        """size: of a feature, with the rank of the bias whose rows it reads."""
        super().__init__()
        self.proj = nn.Linear(size, 1, bias=has_bias)

    def forward(self, feature: Tensor, row: Tensor | None) -> Tensor:
        """Gives probabilities [...] from features [..., H] and, where it reads them, rows [..., r]."""
        return self.logits(feature, row).sigmoid()

    def logits(self, feature: Tensor, row: Tensor | None) -> Tensor:
        inputs = feature if row is None else torch.cat([feature, row], -1)
        return self.proj(inputs)[..., 0].float()
