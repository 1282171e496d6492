"""BROKEN: rules that are wrong on purpose, each a mistake that a demo, an engine or a paper shows. For checks alone.

No run can choose them. Where the mistake is in drafting, `tamper` makes an ordinary drafter sample from another
distribution, and its draft still reports q.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

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


class Dropping(BrokenRule):
    """A rule that throws a drawn token away, with all tokens behind it, and then samples p."""

    def drops(self, rows: ChainRows) -> Tensor:
        """Whether each token [N] is thrown away, if those before it were accepted."""
        raise NotImplementedError

    def thresholds(self, rows: ChainRows) -> Tensor:
        return torch.where(self.drops(rows), 0.0, super().thresholds(rows))

    def last_distribution(self, rows: ChainRows, num_accepted: Tensor) -> Tensor:
        p, _ = rows.after(num_accepted)
        judged_last = num_accepted.clamp_max(len(rows) - 1)
        is_dropped = self.drops(rows).index_select(0, judged_last[None])  # [1]
        is_dropped = is_dropped & (num_accepted < len(rows))
        return torch.where(is_dropped, p, super().last_distribution(rows, num_accepted))


class DroppedDraft(Dropping):
    def __init__(self, least_q: float = 0.4) -> None:
        self._least_q = least_q
        self.facts = RuleFacts(
            name="dropped_draft",
            title="Dropped draft",
            summary=f"A drawn token is thrown away because its own q is below {least_q:g}, then p is sampled.",
        )

    def drops(self, rows: ChainRows) -> Tensor:
        return rows.q[:, 0] < self._least_q

    def one_step_accepted(self, p: Tensor, q: Tensor) -> Tensor:
        return torch.where(q < self._least_q, 0.0, super().one_step_accepted(p, q))

    def one_step_distribution(self, p: Tensor, q: Tensor) -> Tensor:
        accepted = self.one_step_accepted(p, q)
        p = widen(p)
        q = widen(q)
        dropped = torch.where(q < self._least_q, q, 0.0).sum(-1, keepdim=True)
        rejected = 1 - dropped - accepted.sum(-1, keepdim=True)
        return accepted + dropped * p + rejected * self.residual(p, q)


class PeekingScheduler(Dropping):
    """A scheduler that decides on a token after it has seen how sure the draft is behind it.

    The draft's confidence behind a token depends on that token. So the tokens that stay are no sample of q: DSpark,
    appendix A (arXiv:2607.05147). Take p = (.7, .3), q = (.5, .5), and a draft that is sure behind the first token
    only. Drawn, the first one stays and is accepted. The second one is always thrown away, and p is sampled. So the
    first is written .5 + .5 * .7 = .85 of the time. A token that is judged alone shows nothing: no token stands behind
    it.
    """

    judges_alone = False

    def __init__(self, least_confidence: float = 0.6) -> None:
        self._least_confidence = least_confidence
        self.facts = RuleFacts(
            name="peeking_scheduler",
            title="Peeking scheduler",
            summary="A drawn token is thrown away because the draft gives no token behind it as much as "
            f"{least_confidence:g}, then p is sampled.",
        )

    def drops(self, rows: ChainRows) -> Tensor:
        confidence = rows.q_rows[1:].amax(-1)  # [N-1] behind each token but the last
        return pad(confidence < self._least_confidence, (0, 1))


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
    PeekingScheduler,
    ClampedQ,
    ArgmaxTarget,
)
_RULES = [kind() for kind in _KINDS]
BROKEN: dict[str, BrokenRule] = {rule.name: rule for rule in _RULES}
