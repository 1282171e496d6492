"""K policies: how many tokens a chain drafter writes in a step, at most K. ChainDrafter obeys one.

A policy uses earlier steps, or stops after a token that stays in the draft. It never drops a sampled token, so the
distribution of the text does not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from specviz.decoding.drafter import Drafter
from specviz.drafters.params import Choice, FloatParam, Param, Value

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.decoding.cached_lm import CachedLM
    from specviz.decoding.draft import Draft
    from specviz.decoding.rule import Verdict


class Policy:
    """The plain policy: the K of the request at every step."""

    name = ""
    """The policy's name in the evidence; empty: the evidence says nothing."""

    def __init__(self) -> None:
        self._text: Sequence[int] | None = None

    def most(self, k: int, text: Sequence[int]) -> int:
        """K for the next step, from 1 to k; k itself below 2. Another list object is a new text: the policy resets."""
        if text is not self._text:
            self._text = text
            self._reset()
        return k if k < 2 else min(k, max(self._length(k), 1))

    def stops(self, logits: Tensor, token: Tensor) -> bool:
        """Whether drafting ends after this token [], which stays. logits [V]: the draft's, at the token's place."""
        return False

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Learns from a step whose draft was a chain."""
        if len(draft):
            self._learn(len(draft), len(verdict.path))

    def evidence(self, k: int) -> dict[str, object]:
        """The policy's part of the evidence. k: what `most` returned for this step."""
        return {"k": k, "policy": self.name} if self.name else {}

    def _reset(self) -> None:
        pass

    def _length(self, k: int) -> int:
        return k

    def _learn(self, num_drafted: int, num_accepted: int) -> None:
        pass


class Heuristic(Policy):
    """Two more tokens after a fully accepted draft, one less after any other, as in transformers' assisted mode."""

    name = "heuristic"

    def _reset(self) -> None:
        self._k: int | None = None

    def _length(self, k: int) -> int:
        self._k = k if self._k is None else min(self._k, k)
        return self._k

    def _learn(self, num_drafted: int, num_accepted: int) -> None:
        if self._k is None:
            return
        if num_accepted == num_drafted:
            self._k += 2
        else:
            self._k = max(1, self._k - 1)


class MovingAverage(Policy):
    """Drafts as many tokens as are judged per step on average: 1/(1-a), where a is the moving average of the
    acceptance rate, accepted / judged."""

    name = "moving_average"

    def __init__(self, weight: float = 0.2) -> None:
        super().__init__()
        self._weight = weight

    def _reset(self) -> None:
        self._average: float | None = None

    def _length(self, k: int) -> int:
        if self._average is None or self._average >= 1 - 1 / k:
            return k
        return math.ceil(1 / (1 - self._average))

    def _learn(self, num_drafted: int, num_accepted: int) -> None:
        num_judged = min(num_accepted + 1, num_drafted)
        rate = num_accepted / num_judged
        before = rate if self._average is None else self._average
        self._average = before + self._weight * (rate - before)


class Confidence(Policy):
    """Stops after the first token with a low probability under the draft, before any filter and at temperature 1.

    The probability of every token comes to the host for it.
    """

    name = "confidence"

    def __init__(self, least: float) -> None:
        super().__init__()
        self._least = least

    def stops(self, logits: Tensor, token: Tensor) -> bool:
        return float(logits.softmax(-1)[token]) < self._least


class ChainDrafter(Drafter):
    """A drafter of chains as long as `policy` says. lm: the model that writes them, None where there is none."""

    def __init__(self, lm: CachedLM | None = None, policy: Policy | None = None) -> None:
        self._lm = lm
        self._policy = policy or Policy()

    def observe(self, draft: Draft, probs: Tensor, verdict: Verdict) -> None:
        self._policy.observe(draft, verdict)

    def _write(
        self, tokens: Sequence[int], most: int, choose: Callable[[Tensor], tuple[Tensor, ...]]
    ) -> list[int]:
        """Writes up to `most` tokens after the text, until the policy stops; returns their ids after one transfer.

        choose: logits [V] -> the logits that the policy sees, an id [], and a number that is NaN if the logits are.
        """
        import torch

        from specviz.decoding.sampling import DRAFT_MODEL, fetch_tokens

        chosen: list[Tensor] = []
        sums: list[Tensor] = []
        logits = self._lm.forward(tokens)[0]  # [V]
        while True:
            row, token, total = choose(logits)
            chosen.append(token)
            sums.append(total)
            if len(chosen) == most or self._policy.stops(row, token):
                break
            logits = self._lm.extend(token)
        ids, _ = fetch_tokens(torch.stack(chosen), torch.stack(sums), DRAFT_MODEL)
        self._lm.settle(ids)
        return ids


_BLIND: Mapping[str, tuple[str, Callable[[], Policy]]] = {
    "constant": ("always K", Policy),
    "heuristic": ("two more after a fully accepted draft, else one less", Heuristic),
    "moving_average": ("by the recent share of accepted tokens", MovingAverage),
}
"""Policies that need no probabilities: name -> the words for it, and its class."""
_OPTIONS = {name: words for name, (words, _) in _BLIND.items()}
_HELP = "How long a draft is, K at most. An exact rule stays exact with every choice."

BLIND_K_PARAMS: tuple[Param, ...] = (
    Choice("k_policy", "draft length", "constant", _HELP, _OPTIONS),
)
"""For chain drafters that have no probabilities of their own."""
K_PARAMS: tuple[Param, ...] = (
    Choice(
        "k_policy",
        "draft length",
        "constant",
        _HELP,
        {**_OPTIONS, "confidence": "until the draft is unsure"},
    ),
    FloatParam(
        "least_confidence",
        "unsure below",
        0.4,
        "The draft ends after a token to which the draft itself gives less than this. The token stays in the draft. "
        "Costs one transfer from the device per token.",
        0.0,
        1.0,
        needs=("k_policy", ("confidence",)),
    ),
)
"""For chain drafters that write token by token."""


def make_policy(params: Mapping[str, Value]) -> Policy:
    """A fresh policy, from the values of K_PARAMS or BLIND_K_PARAMS."""
    name = params["k_policy"]
    if name not in _BLIND:
        return Confidence(params["least_confidence"])
    _, policy = _BLIND[name]
    return policy()
