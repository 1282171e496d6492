"""BROKEN: rules that are wrong on purpose, each a mistake seen in a public demo or engine. For the checks alone.

No run can choose them. Where the mistake is in drafting, `tamper` makes an ordinary drafter sample from another
distribution, and its draft still reports q.
"""

import torch
from torch import Tensor

from specviz.decoding.draws import DRAFT, Draws
from specviz.decoding.rule import Rule
from specviz.rules.chain import ChainRows, greedy_distribution, widen
from specviz.rules.facts import RESAMPLE_P, RuleFacts
from specviz.rules.speculative_sampling import SpeculativeSampling


class BrokenRule(SpeculativeSampling):
    """A wrong rule; its `summary` says what is wrong."""

    drafts_wrongly = False
    """Whether the mistake is in drafting."""

    def draft_distribution(self, q: Tensor) -> Tensor:
        """The distribution [..., V] that its drafts are really sampled from, where the draft model says q."""
        return q

    def tamper(self, draws: Draws) -> Draws:
        """Draws with which an ordinary drafter samples from `draft_distribution(q)` and still reports q."""
        return Tampered(draws, self) if self.drafts_wrongly else draws

    def one_step_accepted(self, p: Tensor, q: Tensor) -> Tensor:
        p = widen(p)
        q = widen(q)
        return self.draft_distribution(q) * self.threshold(p, q, p).clamp_max(1)


class Tampered(Draws):
    """Draws that take drafted tokens from `rule.draft_distribution(q)`; every other draw is unchanged."""

    def __init__(self, draws: Draws, rule: BrokenRule) -> None:
        self._draws = draws
        self._rule = rule
        self.uniform = draws.uniform
        self.below = draws.below

    def sample(self, probs: Tensor, role: str, position: int, node: int) -> Tensor:
        if role == DRAFT:
            probs = self._rule.draft_distribution(probs)
        return self._draws.sample(probs, role, position, node)


def tamper_if_broken(rule: Rule, draws: Draws) -> Draws:
    """The draws of a run with this rule."""
    return rule.tamper(draws) if isinstance(rule, BrokenRule) else draws


class ArgmaxDraft(BrokenRule):
    facts = RuleFacts(
        name="argmax_draft",
        title="Greedy draft",
        summary="The draft always writes its most likely token, yet it is judged as if it had been drawn from q.",
    )
    drafts_wrongly = True

    def draft_distribution(self, q: Tensor) -> Tensor:
        return greedy_distribution(q)


class UntruncatedQ(BrokenRule):
    drafts_wrongly = True

    def __init__(self, top_k: int = 5) -> None:
        self._top_k = top_k
        self.facts = RuleFacts(
            name="untruncated_q",
            title="Untruncated q",
            summary=f"The draft is drawn from its {top_k} most likely tokens, yet the test uses q over all tokens.",
        )

    def draft_distribution(self, q: Tensor) -> Tensor:
        top = q.topk(min(self._top_k, q.shape[-1]), dim=-1).indices
        truncated = torch.zeros_like(q).scatter_(-1, top, q.gather(-1, top))
        return truncated / truncated.sum(-1, keepdim=True)


class ResampleP(BrokenRule):
    facts = RESAMPLE_P

    def residual(self, p: Tensor, q: Tensor) -> Tensor:
        return p


class SoftmaxResidual(BrokenRule):
    facts = RuleFacts(
        name="softmax_residual",
        title="Softmax residual",
        summary="After a rejection the new token is drawn from softmax(p - q), almost the same for all tokens.",
    )

    def residual(self, p: Tensor, q: Tensor) -> Tensor:
        return (p - q).softmax(-1)


class DroppedDraft(BrokenRule):
    def __init__(self, least_q: float = 0.4) -> None:
        self._least_q = least_q
        self.facts = RuleFacts(
            name="dropped_draft",
            title="Dropped draft",
            summary=f"A drawn token is thrown away because its own q is below {least_q:g}, then p is sampled.",
        )

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return torch.where(q < self._least_q, 0.0, super().threshold(p, q, row))

    def last_distribution(self, rows: ChainRows, num_accepted: Tensor) -> Tensor:
        p, _ = rows.after(num_accepted)
        judged_last = num_accepted.clamp_max(len(rows) - 1)
        has_low_q = rows.q.index_select(0, judged_last[None])[0] < self._least_q  # [1]
        is_dropped = has_low_q & (num_accepted < len(rows))
        return torch.where(is_dropped, p, super().last_distribution(rows, num_accepted))

    def one_step_distribution(self, p: Tensor, q: Tensor) -> Tensor:
        accepted = self.one_step_accepted(p, q)
        p = widen(p)
        q = widen(q)
        dropped = torch.where(q < self._least_q, q, 0.0).sum(-1, keepdim=True)
        rejected = 1 - dropped - accepted.sum(-1, keepdim=True)
        return accepted + dropped * p + rejected * self.residual(p, q)


class ClampedQ(BrokenRule):
    def __init__(self, least_q: float = 1e-4) -> None:
        self._least_q = least_q
        self.facts = RuleFacts(
            name="clamped_q",
            title="Clamped q",
            summary=f"Every q below {least_q:g} is raised to {least_q:g} before it is used.",
        )

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return super().threshold(p, q.clamp_min(self._least_q), row)

    def residual(self, p: Tensor, q: Tensor) -> Tensor:
        return super().residual(p, q.clamp_min(self._least_q))


class ArgmaxTarget(BrokenRule):
    facts = RuleFacts(
        name="argmax_target",
        title="Greedy target",
        summary="A token is accepted only if it is the target's most likely one; otherwise that one is written.",
    )

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return widen(p >= row.amax(-1, keepdim=True))

    def residual(self, p: Tensor, q: Tensor) -> Tensor:
        return greedy_distribution(p)

    def bonus(self, p: Tensor) -> Tensor:
        return greedy_distribution(p)


_KINDS = (
    ArgmaxDraft,
    ResampleP,
    SoftmaxResidual,
    UntruncatedQ,
    DroppedDraft,
    ClampedQ,
    ArgmaxTarget,
)
_RULES = [kind() for kind in _KINDS]
BROKEN: dict[str, BrokenRule] = {rule.name: rule for rule in _RULES}
