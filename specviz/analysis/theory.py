"""The formulas and the published numbers of Leviathan et al. 2022 (arXiv:2211.17192). Standard library only.

alpha: the probability that a drafted token is accepted, the same at every place (the paper's "i.i.d."; real texts are
not so, and `whatif` is exact without it). k: drafted tokens per step. c: the time of one draft forward over the time of
one target forward. The same speed is given with measured times in place of c.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specviz.analysis.costs import Costs

PAPER = "Leviathan et al. 2022, arXiv:2211.17192"


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens per target call: (1 - alpha^(k+1)) / (1 - alpha), which is k + 1 at alpha = 1. Section 3.1, equation 1."""
    _check(alpha, k)
    return sum(alpha**num_accepted for num_accepted in range(k + 1))


def walltime_improvement(alpha: float, k: int, c: float) -> float:
    """How many times faster it is where a target call costs the same for any number of tokens. Theorem 3.8."""
    _check(alpha, k, c)
    return expected_tokens(alpha, k) / (k * c + 1)


def arithmetic_factor(alpha: float, k: int, c_hat: float) -> float:
    """How many times more arithmetic a token takes. Theorem 3.11.

    c_hat: the operations of a draft forward over the operations of a target forward.
    """
    _check(alpha, k, c_hat)
    return (k * c_hat + k + 1) / expected_tokens(alpha, k)


def can_improve(alpha: float, c: float) -> bool:
    """Whether some k makes it faster: exactly if alpha > c. Corollary 3.9."""
    _check(alpha, 0, c)
    return alpha > c


def least_improvement(alpha: float, c: float) -> float:
    """The improvement at k = 1, (1 + alpha) / (1 + c): the best k gives no less. Corollary 3.9."""
    return walltime_improvement(alpha, 1, c)


def best_k(alpha: float, c: float, ks: Iterable[int] = range(1, 33)) -> int:
    """The k of `ks` with the largest walltime improvement, the smallest of equals. Section 3.5."""
    return max(ks, key=lambda k: walltime_improvement(alpha, k, c))


def least_alpha(speedup: float, c: float, ks: Sequence[int] = range(1, 33)) -> float | None:
    """The smallest alpha, in thousandths, at which some k of `ks` is that much faster; None where none is."""
    for thousandth in range(1001):
        alpha = thousandth / 1000
        if walltime_improvement(alpha, best_k(alpha, c, ks), c) >= speedup:
            return alpha
    return None


def stated_rates(
    num_drafted: int, draft_ms: float, check_ms: float, num_accepted: int
) -> tuple[float, float, float]:
    """Tokens per second by three counts: accepted tokens alone; with the target's own; without a draft.

    draft_ms: the time to draft all num_drafted tokens. check_ms: the time of one target call.
    """
    if not (0 <= num_accepted <= num_drafted and draft_ms >= 0 and check_ms > 0):
        got = f"{num_accepted} of {num_drafted} in {draft_ms} + {check_ms} ms"
        raise ValueError(
            f"num_accepted must be from 0 to num_drafted, and a check must take time (got {got})"
        )
    step_s = (draft_ms + check_ms) / 1000
    return num_accepted / step_s, (num_accepted + 1) / step_s, 1000 / check_ms


def oracle_tokens(alpha: float) -> float:
    """Tokens per target call, at most, if every step knew its best k: 1 / (1 - alpha). Section 3.5."""
    _check(alpha, 0)
    return 1 / (1 - alpha) if alpha < 1 else float("inf")


def step_ms(costs: Costs, k: int) -> float:
    """Predicted time of a step that drafts k tokens; nan where no such verification was measured."""
    if k >= len(costs.verify_ms):
        return float("nan")
    if k == 0:
        return costs.verify_ms[0] + costs.plain_overhead_ms
    return k * costs.draft_ms + costs.verify_ms[k] + costs.overhead_ms


def cost_ratio(costs: Costs) -> float:
    """The measured c: the time of one drafted token over the time of one target call for one token."""
    return costs.draft_ms / costs.verify_ms[0]


def measured_speedup(alpha: float, k: int, costs: Costs) -> float:
    """The paper's speedup with measured step times, in which longer checks and a step's other work cost time."""
    return expected_tokens(alpha, k) * step_ms(costs, 0) / step_ms(costs, k)


@dataclass(frozen=True, slots=True)
class Trade:
    """A row of the paper's Table 1 (c and c_hat taken as 0)."""

    alpha: float
    k: int
    operations: float
    speed: float


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A row of the paper's Tables 2 and 4: T5-XXL (11B) as the target; speedups as the paper prints them."""

    task: str
    draft: str
    temperature: float
    k: int
    alpha: float
    c: float
    expected: float
    measured: float

    @property
    def by_formula(self) -> float:
        """The speedup by the formula, from the row's own rounded alpha and c; the paper prints `expected`."""
        return walltime_improvement(self.alpha, self.k, self.c)


TABLE_1 = (
    Trade(0.6, 2, 1.53, 1.96),
    Trade(0.7, 3, 1.58, 2.53),
    Trade(0.8, 2, 1.23, 2.44),
    Trade(0.8, 5, 1.63, 3.69),
    Trade(0.9, 2, 1.11, 2.71),
    Trade(0.9, 10, 1.60, 6.86),
)
_TRANSLATION = "translation, English to German"
_SUMMARY = "summaries, CNN/DM"
_SMALL = "T5-small (77M)"
_BASE = "T5-base (250M)"
_LARGE = "T5-large (800M)"
TABLES_2_AND_4 = (
    PublishedRun(_TRANSLATION, _SMALL, 0.0, 7, 0.75, 0.02, 3.2, 3.4),
    PublishedRun(_TRANSLATION, _BASE, 0.0, 7, 0.80, 0.04, 3.3, 2.8),
    PublishedRun(_TRANSLATION, _LARGE, 0.0, 7, 0.82, 0.11, 2.5, 1.7),
    PublishedRun(_TRANSLATION, _SMALL, 1.0, 7, 0.62, 0.02, 2.3, 2.6),
    PublishedRun(_TRANSLATION, _BASE, 1.0, 5, 0.68, 0.04, 2.4, 2.4),
    PublishedRun(_TRANSLATION, _LARGE, 1.0, 3, 0.71, 0.11, 2.0, 1.4),
    PublishedRun(_SUMMARY, _SMALL, 0.0, 5, 0.65, 0.02, 2.4, 3.1),
    PublishedRun(_SUMMARY, _BASE, 0.0, 5, 0.73, 0.04, 2.6, 3.0),
    PublishedRun(_SUMMARY, _LARGE, 0.0, 3, 0.74, 0.11, 2.0, 2.2),
    PublishedRun(_SUMMARY, _SMALL, 1.0, 5, 0.53, 0.02, 1.9, 2.3),
    PublishedRun(_SUMMARY, _BASE, 1.0, 3, 0.55, 0.04, 1.8, 2.2),
    PublishedRun(_SUMMARY, _LARGE, 1.0, 3, 0.56, 0.11, 1.6, 1.7),
)


def _check(alpha: float, k: int, c: float = 0.0) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be from 0 to 1 (got {alpha})")
    if k < 0:
        raise ValueError(f"k must be >= 0 (got {k})")
    if not c >= 0:
        raise ValueError(f"c must be >= 0 (got {c})")
