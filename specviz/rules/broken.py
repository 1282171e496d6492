"""BROKEN: rules that are wrong on purpose, each a mistake seen in a public demo or engine. For the checks alone.

They are in no list that a run can choose from. Where the mistake is in drafting, `tamper` makes an ordinary drafter
sample from another law than the q that its draft still reports.
"""

import torch
from torch import Tensor

from specviz.decoding.draws import DRAFT, Draws
from specviz.decoding.rule import Rule
from specviz.rules.chain import ChainRows, greedy_distribution, widen
from specviz.rules.facts import RESAMPLE_P, RuleFacts
from specviz.rules.speculative_sampling import SpeculativeSampling


class BrokenRule(SpeculativeSampling):
    """A rule whose `summary` says what is wrong. drafts_wrongly: whether the mistake is in drafting."""

    drafts_wrongly = False

    def draft_distribution(self, q: Tensor) -> Tensor:
        """The law [..., V] that its drafts are really sampled from, where the draft model says q."""
        return q

    def tamper(self, draws: Draws) -> Draws:
        """Draws with which an ordinary drafter samples from `draft_law(q)` and still reports q."""
        return Tampered(draws, self) if self.drafts_wrongly else draws

    def one_step_accepted(self, p: Tensor, q: Tensor) -> Tensor:
        p, q = widen(p), widen(q)
        return self.draft_distribution(q) * self.threshold(p, q, p).clamp_max(1)


class Tampered(Draws):
    """Drafted tokens come from `rule.draft_law(q)`; every other draw is unchanged."""

    def __init__(self, draws: Draws, rule: BrokenRule) -> None:
        self._draws, self._rule = draws, rule
        self.uniform, self.below = draws.uniform, draws.below

    def sample(self, probs: Tensor, role: str, position: int, node: int) -> Tensor:
        return self._draws.sample(
            self._rule.draft_distribution(probs) if role == DRAFT else probs, role, position, node
        )


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
        words = f"The draft is drawn from its {top_k} most likely tokens, yet the test uses q over all tokens."
        self._top_k, self.facts = (
            top_k,
            RuleFacts(name="untruncated_q", title="Untruncated q", summary=words),
        )

    def draft_distribution(self, q: Tensor) -> Tensor:
        places = q.topk(min(self._top_k, q.shape[-1]), dim=-1).indices
        kept = torch.zeros_like(q).scatter_(-1, places, q.gather(-1, places))
        return kept / kept.sum(-1, keepdim=True)


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
        words = f"A drawn token is thrown away because its own q is below {least_q:g}, then p is sampled."
        self._least_q, self.facts = (
            least_q,
            RuleFacts(name="dropped_draft", title="Dropped draft", summary=words),
        )

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return torch.where(q < self._least_q, 0.0, super().threshold(p, q, row))

    def last_distribution(self, rows: ChainRows, num_accepted: Tensor) -> Tensor:
        at = num_accepted.clamp_max(len(rows) - 1)[None]
        dropped = rows.q.index_select(0, at)[0] < self._least_q  # [1]
        return torch.where(
            dropped & (num_accepted < len(rows)),
            rows.after(num_accepted)[0],
            super().last_distribution(rows, num_accepted),
        )

    def one_step_distribution(self, p: Tensor, q: Tensor) -> Tensor:
        kept, p, q = self.one_step_accepted(p, q), widen(p), widen(q)
        dropped = torch.where(q < self._least_q, q, 0.0).sum(-1, keepdim=True)
        cut = 1 - dropped - kept.sum(-1, keepdim=True)
        return kept + dropped * p + cut * self.residual(p, q)


class ClampedQ(BrokenRule):
    def __init__(self, least_q: float = 1e-4) -> None:
        words = f"Every q below {least_q:g} is raised to {least_q:g} before it is used."
        self._least_q, self.facts = (
            least_q,
            RuleFacts(name="clamped_q", title="Clamped q", summary=words),
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
BROKEN: dict[str, BrokenRule] = {rule.name: rule for rule in (kind() for kind in _KINDS)}
