"""K policies: how many tokens a chain drafter writes in a step, at most K. ChainDrafter obeys one.

A policy uses earlier steps, or stops after a token that stays in the draft. It never drops a sampled token, so the
distribution of the text does not change.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import mul
from statistics import median
from typing import TYPE_CHECKING

from specviz.decoding.drafter import Drafter, PhaseTimes
from specviz.drafters.calibration import Calibration
from specviz.drafters.params import Choice, FloatParam, Param, Value
from specviz.errors import SpecvizError

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.decoding.cached_lm import CachedLM
    from specviz.decoding.draft import Draft
    from specviz.decoding.rule import Verdict


_RECENT = 16  # steps


class Policy:
    """The plain policy: the K of the request at every step."""

    name = ""
    """The policy's name in the evidence; empty: the evidence says nothing."""
    asks_the_head = False
    """Whether `refuses` decides, by what a head expects of each token before it is chosen."""

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

    def refuses(self, confidence: Tensor) -> bool:
        """Whether drafting ends before a token of which the head expects that it is accepted so often [].

        The token is not chosen yet: a policy that saw it first would change the text (rules/broken.py).
        """
        return False

    def observe(self, draft: Draft, verdict: Verdict, timing: PhaseTimes) -> None:
        """Learns from a step whose draft was a chain."""
        if len(draft):
            self._learn(len(draft), len(verdict.path), timing)

    def evidence(self, k: int) -> dict[str, object]:
        """The policy's part of the evidence. k: what `most` returned for this step."""
        return {"k": k, "policy": self.name} if self.name else {}

    def _reset(self) -> None:
        pass

    def _length(self, k: int) -> int:
        return k

    def _learn(self, num_drafted: int, num_accepted: int, timing: PhaseTimes) -> None:
        pass


class Heuristic(Policy):
    """Two more tokens after a fully accepted draft, one less after any other, as in transformers' assisted mode."""

    name = "heuristic"

    def _reset(self) -> None:
        self._k: int | None = None

    def _length(self, k: int) -> int:
        self._k = k if self._k is None else min(self._k, k)
        return self._k

    def _learn(self, num_drafted: int, num_accepted: int, timing: PhaseTimes) -> None:
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

    def _learn(self, num_drafted: int, num_accepted: int, timing: PhaseTimes) -> None:
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


class HeadConfidence(Policy):
    """Stops before the first token that a block's confidence head expects to be accepted less often than this.

    The rule of DSpark's own code (DeepSpec, eval/dspark/draft_ops.py). Every estimate comes to the host for it.
    """

    name = "confidence"
    asks_the_head = True

    def __init__(self, least: float) -> None:
        super().__init__()
        self._least = least

    def most(self, k: int, text: Sequence[int]) -> int:
        self._acceptance: list[float] = []  # expected, of this step's drafted tokens
        self._doubt: float | None = None  # expected of the token that was not drafted
        return super().most(k, text)

    def refuses(self, confidence: Tensor) -> bool:
        estimate = float(confidence)
        if math.isnan(estimate):
            raise SpecvizError(
                "the head's confidence head gives what is not a number: its weights are damaged, choose another draft "
                "length (k_policy)"
            )
        is_enough = estimate >= self._least
        if is_enough:
            self._acceptance.append(estimate)
        else:
            self._doubt = estimate
        return not is_enough

    def evidence(self, k: int) -> dict[str, object]:
        estimates = {"acceptance": self._acceptance, "doubt": self._doubt}
        return {**super().evidence(k), **estimates}


class Survival(Policy):
    """Drafts on while the expected tokens per time still rise, as DSpark's prefix scheduler verifies (arXiv:2607.05147,
    algorithm 1).

    S_i is the estimated probability that tokens 1 to i are all accepted: the product of their estimated acceptance,
    which the text's verdicts teach by the draft's probability of each token. A step over i tokens is expected to write
    E_i = 1 + S_1 + ... + S_i tokens in the time 1 + i c, with the time of a target check as 1. Behind token i drafting
    goes on if E / (1 + i c) is expected to rise. The next token is not known then: its acceptance is estimated by the
    rate of all judged tokens. A scheduler that looks at it first changes the text (rules/broken.py).

    cost_ratio: c, the time of one drafted token. 0: the median of the text's last steps, without the first one, which
    reads the prompt. Until it is known, every draft has K tokens.
    """

    name = "survival"

    def __init__(self, cost_ratio: float = 0.0) -> None:
        super().__init__()
        self._fixed_cost = cost_ratio

    def most(self, k: int, text: Sequence[int]) -> int:
        self._probabilities: list[float] = []  # of this step's drafted tokens
        self._acceptance: list[float] = []  # their estimated acceptance
        return super().most(k, text)

    def stops(self, logits: Tensor, token: Tensor) -> bool:
        probability = float(logits.softmax(-1)[token])
        if math.isnan(probability):
            return True  # the transfer of the draft refuses it
        self._probabilities.append(probability)
        self._acceptance.append(self._calibration.estimate(probability))
        return not self._goes_on()

    def _goes_on(self) -> bool:
        cost = self._cost_ratio
        if cost is None:
            return True
        survival = list(accumulate(self._acceptance, mul))
        expected = 1 + sum(survival)
        with_next = expected + survival[-1] * self._calibration.rate
        time = 1 + len(survival) * cost
        return with_next / (time + cost) > expected / time

    @property
    def _cost_ratio(self) -> float | None:
        """The time of one drafted token as a share of a target check; None while it is not known."""
        if self._fixed_cost:
            return self._fixed_cost
        return median(self._ratios) if self._ratios else None

    def evidence(self, k: int) -> dict[str, object]:
        estimates = {"acceptance": self._acceptance, "cost_ratio": self._cost_ratio}
        return {**super().evidence(k), **estimates}

    def _reset(self) -> None:
        self._calibration = Calibration()
        self._ratios: deque[float] = deque(maxlen=_RECENT)
        self._is_first = True

    def _learn(self, num_drafted: int, num_accepted: int, timing: PhaseTimes) -> None:
        for place, probability in enumerate(self._probabilities[: num_accepted + 1]):
            self._calibration.learn(probability, place < num_accepted)
        check_ms = timing.verify_ms + timing.accept_ms
        if not self._is_first and check_ms > 0:
            self._ratios.append(timing.draft_ms / num_drafted / check_ms)
        self._is_first = False


class ChainDrafter(Drafter):
    """A drafter of chains as long as `policy` says. lm: the model that writes them, None where there is none."""

    def __init__(self, lm: CachedLM | None = None, policy: Policy | None = None) -> None:
        self._lm = lm
        self._policy = policy or Policy()

    def observe(self, draft: Draft, probs: Tensor, verdict: Verdict, timing: PhaseTimes) -> None:
        self._policy.observe(draft, verdict, timing)

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
            if self._policy.stops(row, token) or len(chosen) == most:
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
_UNSURE = FloatParam(
    "least_confidence",
    "unsure below",
    0.4,
    "The draft ends after a token to which the draft itself gives less than this. The token stays in the draft. "
    "Costs one transfer from the device per token.",
    0.0,
    1.0,
    needs=("k_policy", ("confidence",)),
)
_UNSURE_WORDS = {"confidence": "until the draft is unsure"}
HEAD_K_PARAMS: tuple[Param, ...] = (
    Choice(
        "k_policy",
        "draft length",
        "constant",
        _HELP,
        {**_OPTIONS, HeadConfidence.name: "until the head is unsure (confidence heads)"},
    ),
    FloatParam(
        "least_acceptance",
        "unsure below",
        0.4,
        "The draft ends before a token that the head's confidence head expects to be accepted less often. Costs one "
        "transfer from the device per token.",
        0.0,
        1.0,
        needs=("k_policy", (HeadConfidence.name,)),
    ),
)
"""For heads that draft a block at once."""

RESPELLED_K_PARAMS: tuple[Param, ...] = (
    Choice("k_policy", "draft length", "constant", _HELP, {**_OPTIONS, **_UNSURE_WORDS}),
    _UNSURE,
)
"""For chain drafters that write other tokens than they draft."""
K_PARAMS: tuple[Param, ...] = (
    Choice(
        "k_policy",
        "draft length",
        "constant",
        _HELP,
        {
            **_OPTIONS,
            **_UNSURE_WORDS,
            "survival": "while one more token is expected to pay, by measured times",
        },
    ),
    _UNSURE,
    FloatParam(
        "cost_ratio",
        "cost of a drafted token",
        0.0,
        "The time of one drafted token as a share of a target check. 0: as measured in this run. Then draft lengths "
        "depend on the machine, and above temperature 0 the same seed may write another text there. Its distribution "
        "stays the target's. Any other number makes the run repeatable.",
        0.0,
        10.0,
        needs=("k_policy", ("survival",)),
    ),
)
"""For chain drafters that write token by token."""


def make_policy(params: Mapping[str, Value]) -> Policy:
    """A fresh policy, from the values of K_PARAMS, RESPELLED_K_PARAMS, BLIND_K_PARAMS or HEAD_K_PARAMS."""
    name = params["k_policy"]
    if name in _BLIND:
        _, policy = _BLIND[name]
        return policy()
    if name == Survival.name:
        return Survival(params["cost_ratio"])
    if "least_acceptance" in params:
        return HeadConfidence(params["least_acceptance"])
    return Confidence(params["least_confidence"])
