"""ChainRule: judges a chain, token after token up to the first rejection.

A rule defines three things: the threshold that u must stay below, the residual that replaces a rejected token, and the
distribution of the bonus token. All tokens are judged at once on the device, with one transfer to the host.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.decoding.device import exact_dtype, to_device, to_host
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.draws import ACCEPT, FINAL, Draws
from specviz.decoding.rule import Check, Distributions, Rule, Verdict, draw_last, proposal
from specviz.decoding.sampling import TARGET, Sampling, refuse_nan
from specviz.rules.facts import RuleFacts


@dataclass(frozen=True, slots=True, eq=False)
class ChainRows:
    """The distributions that a chain is judged by, on the device."""

    p_rows: Tensor  # [1+N, V]
    q_rows: Tensor  # [N, V]
    ids: Tensor  # [N, 1] the drafted tokens
    p: Tensor  # [N, 1] their p
    q: Tensor  # [N, 1] their q

    def __len__(self) -> int:
        return len(self.ids)

    def after(self, num_accepted: Tensor) -> tuple[Tensor, Tensor]:
        """The rows p and q [V] behind `num_accepted` [] accepted tokens; behind all of them, q is the last row."""
        last = num_accepted.clamp_max(len(self) - 1)
        p = self.p_rows.index_select(0, num_accepted[None])[0]
        q = self.q_rows.index_select(0, last[None])[0]
        return p, q


def rows_of(draft: Draft, probs: Tensor) -> ChainRows:
    """The rows of a chain with at least one token."""
    ids = to_device(draft.tokens, torch.long, probs.device)[:, None]
    q_rows = torch.stack([proposal(draft, node, probs) for node in range(len(draft))])
    return ChainRows(probs, q_rows, ids, probs[:-1].gather(1, ids), q_rows.gather(1, ids))


def is_plain_chain(draft: Draft) -> bool:
    """Whether the draft has neither branches nor scratch nodes."""
    return draft.is_chain and not draft.num_scratch


class ChainRule(Rule):
    """A rule for chains that its subclasses complete with a threshold, a residual and a bonus."""

    facts: RuleFacts

    def __getattr__(self, name: str) -> object:
        """Finds in the facts what the engine's Rule declares: its name, its title, ..."""
        return getattr(self.facts, name)

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        """The threshold that u must stay below.

        p, q: probabilities of tokens [..., M], M = 1 or V. row: all of p [..., V].
        """
        raise NotImplementedError

    def residual(self, p: Tensor, q: Tensor) -> Tensor:
        """The distribution [..., V] of the token that replaces a rejected one; p and q [..., V] at its place."""
        raise NotImplementedError

    def bonus(self, p: Tensor) -> Tensor:
        """The distribution [..., V] of the token that the target adds where none was rejected."""
        raise NotImplementedError

    def supports(self, draft: Draft) -> bool:
        return self.facts.judges_trees or is_plain_chain(draft)

    def thresholds(self, rows: ChainRows) -> Tensor:
        """The threshold of each drafted token [N]."""
        return self.threshold(rows.p, rows.q, rows.p_rows[:-1])[:, 0]

    def num_accepted(self, passed: Tensor) -> Tensor:
        """How many tokens are accepted []; passed [N]: whether each u stayed below its threshold."""
        return passed.long().cumprod(0).sum()

    def last_distribution(self, rows: ChainRows, num_accepted: Tensor) -> Tensor:
        """The distribution [V] of the token behind the accepted ones."""
        p, q = rows.after(num_accepted)
        return torch.where(num_accepted == len(rows), self.bonus(p), self.residual(p, q))

    def __call__(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        judge = self.judge_chain if is_plain_chain(draft) else self.judge_tree
        return judge(draft, probs, draws, position)

    def judge_tree(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        """The verdict on a draft with branches or scratch nodes."""
        raise NotImplementedError

    def judge_chain(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        """The verdict on a plain chain."""
        if not len(draft):
            return self._write_plain(probs, draws, position)
        rows = rows_of(draft, probs)
        thresholds = self.thresholds(rows)  # [N]
        u, passed = draws.below(thresholds, ACCEPT, position, 0)  # [N]
        num_accepted = self.num_accepted(passed)
        final = self.last_distribution(rows, num_accepted)  # [V]
        token = draws.sample(final, FINAL, position, ROOT)

        wide = exact_dtype(probs.device)
        columns = torch.cat([rows.p[:, 0].to(wide), rows.q[:, 0].to(wide), thresholds, u.to(wide)])
        singles = torch.stack([num_accepted.to(wide), token.to(wide), final.sum(dtype=wide)])
        numbers = to_host(torch.cat([columns, singles]))  # [4N + 3]
        size = len(draft)
        p, q, thresholds, u = numbers[:-3].reshape(4, size).tolist()
        num_accepted, token, total = numbers[-3:].tolist()
        refuse_nan([*p, total], TARGET)

        num_accepted = int(num_accepted)
        num_judged = min(num_accepted + 1, size)
        checks = []
        for i in range(num_judged):
            accept_prob = min(1.0, thresholds[i])
            checks.append(Check(i, p[i], p[i], q[i], accept_prob, u[i], i < num_accepted))
        judged = probs[:num_judged].unbind()
        distributions = Distributions(judged, final, tuple(p), tuple(q))
        kind = "bonus" if num_accepted == size else "resampled"
        path = tuple(range(num_accepted))
        return Verdict(path, int(token), kind, tuple(checks), distributions)

    def _write_plain(self, probs: Tensor, draws: Draws, position: int) -> Verdict:
        """The verdict where nothing was drafted: one token of the target alone."""
        final = self.bonus(probs[0])
        token = draw_last(final, draws, position)
        return Verdict((), token, "plain", (), Distributions((), final, (), ()))

    def one_step_accepted(self, p: Tensor, q: Tensor) -> Tensor:
        p = widen(p)
        q = widen(q)
        return q * self.threshold(p, q, p).clamp_max(1)

    def one_step_distribution(self, p: Tensor, q: Tensor) -> Tensor:
        accepted = self.one_step_accepted(p, q)
        rejection = 1 - accepted.sum(-1, keepdim=True)
        return accepted + rejection * self.residual(widen(p), widen(q))

    def length_distribution(self, draft: Draft, probs: Tensor) -> Tensor:
        if not is_plain_chain(draft):
            raise ValueError(
                f"draft must be a chain without scratch nodes (got parents {draft.parents})"
            )
        if not len(draft):
            return torch.ones(1, dtype=exact_dtype(probs.device), device=probs.device)
        chances = self.thresholds(rows_of(draft, probs)).clamp_max(1)
        return self.distribution_of_num_accepted(chances)

    def distribution_of_num_accepted(self, chances: Tensor) -> Tensor:
        """The distribution [N+1] of `num_accepted`; chances [N]: that each u stays below its threshold."""
        one = torch.ones_like(chances[:1])
        all_pass = torch.cat([one, chances.cumprod(0)])  # [N+1] the first n pass
        next_fails = torch.cat([1 - chances, one])
        return all_pass * next_fails


def widen(row: Tensor) -> Tensor:
    """Numbers converted to the device's widest float."""
    return row.to(exact_dtype(row.device))


def greedy_distribution(p: Tensor) -> Tensor:
    """The distribution [..., V] with all probability on the most likely token."""
    return Sampling(0.0).probs(p)
