"""ChainRule: judges a chain, token after token up to the first rejection.

A rule defines three things: the threshold that u must stay below, the residual that a rejected token's replacement is
sampled from, and the law of the bonus token. All tokens are judged at once on the device; one transfer to the host.
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
    """A chain's laws on the device; p and q are those of the drafted tokens."""

    p_rows: Tensor  # [1+N, V]
    q_rows: Tensor  # [N, V]
    ids: Tensor  # [N, 1]
    p: Tensor  # [N, 1]
    q: Tensor  # [N, 1]

    def __len__(self) -> int:
        return len(self.ids)

    def after(self, num_accepted: Tensor) -> tuple[Tensor, Tensor]:
        """p and q [V] at the place after `num_accepted` [] accepted tokens; after all of them q is the draft's
        last row."""
        p = self.p_rows.index_select(0, num_accepted[None])[0]
        return p, self.q_rows.index_select(0, num_accepted.clamp_max(len(self) - 1)[None])[0]


def rows_of(draft: Draft, probs: Tensor) -> ChainRows:
    """The rows of a chain with at least one token."""
    ids = to_device(draft.tokens, torch.long, probs.device)[:, None]
    q_rows = torch.stack([proposal(draft, node, probs) for node in range(len(draft))])
    return ChainRows(probs, q_rows, ids, probs[:-1].gather(1, ids), q_rows.gather(1, ids))


def is_plain_chain(draft: Draft) -> bool:
    return draft.is_chain and not draft.num_scratch


class ChainRule(Rule):
    """Abstract. judges_alone: whether a token's chance to be accepted depends only on p and q at its own place."""

    facts: RuleFacts
    judges_alone = True

    def __getattr__(self, name: str) -> object:
        """What else the engine's Rule declares (its name, its title, ...) stands in the facts."""
        return getattr(self.facts, name)

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        """What u must stay below, for tokens with p and q [..., M], M = 1 or V; row [..., V] is all of p."""
        raise NotImplementedError

    def residual(self, p: Tensor, q: Tensor) -> Tensor:
        """The law [..., V] of the token written in place of a rejected one; p and q [..., V] at its place."""
        raise NotImplementedError

    def bonus(self, p: Tensor) -> Tensor:
        """The law [..., V] of a token that the target adds where no drafted one was rejected."""
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
        """The law [V] of the token after the accepted ones."""
        p, q = rows.after(num_accepted)
        return torch.where(num_accepted == len(rows), self.bonus(p), self.residual(p, q))

    def __call__(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        judge = self.judge_chain if is_plain_chain(draft) else self.judge_tree
        return judge(draft, probs, draws, position)

    def judge_tree(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        """The verdict on a draft with branches or scratch nodes."""
        raise NotImplementedError

    def judge_chain(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        if not len(draft):
            distribution = self.bonus(probs[0])
            return Verdict(
                (),
                draw_last(distribution, draws, position),
                "plain",
                (),
                Distributions(probs[:0], probs[:0], distribution, (), ()),
            )
        rows, size, wide = rows_of(draft, probs), len(draft), exact_dtype(probs.device)
        thresholds = self.thresholds(rows)
        u, passed = draws.below(thresholds, ACCEPT, position, 0)
        num_accepted = self.num_accepted(passed)
        final = self.last_distribution(rows, num_accepted)
        token = draws.sample(final, FINAL, position, ROOT)
        columns = torch.stack(
            [rows.p[:, 0].to(wide), rows.q[:, 0].to(wide), thresholds, u.to(wide)]
        ).reshape(-1)
        singles = torch.stack([num_accepted.to(wide), token.to(wide), final.sum(dtype=wide)])
        *numbers, num_accepted, token, total = to_host(torch.cat([columns, singles])).tolist()
        num_accepted, token = int(num_accepted), int(token)
        p, q, thresholds, u = (numbers[size * i : size * (i + 1)] for i in range(4))
        refuse_nan([*p, total], TARGET)
        judged = range(min(num_accepted + 1, size))
        checks = tuple(
            Check(i, p[i], p[i], q[i], min(1.0, thresholds[i]), u[i], i < num_accepted)
            for i in judged
        )
        distributions = Distributions(
            probs[: len(judged)], rows.q_rows[: len(judged)], final, tuple(p), tuple(q)
        )
        return Verdict(
            tuple(range(num_accepted)),
            token,
            "bonus" if num_accepted == size else "resampled",
            checks,
            distributions,
        )

    def one_step_accepted(self, p: Tensor, q: Tensor) -> Tensor:
        p, q = widen(p), widen(q)
        return q * self.threshold(p, q, p).clamp_max(1)

    def one_step_distribution(self, p: Tensor, q: Tensor) -> Tensor:
        kept, p, q = self.one_step_accepted(p, q), widen(p), widen(q)
        return kept + (1 - kept.sum(-1, keepdim=True)) * self.residual(p, q)

    def length_distribution(self, draft: Draft, probs: Tensor) -> Tensor:
        if not is_plain_chain(draft):
            raise ValueError(
                f"draft must be a chain without scratch nodes (got parents {draft.parents})"
            )
        if not len(draft):
            return torch.ones(1, dtype=exact_dtype(probs.device), device=probs.device)
        return self.distribution_of_num_accepted(
            self.thresholds(rows_of(draft, probs)).clamp_max(1)
        )

    def distribution_of_num_accepted(self, chances: Tensor) -> Tensor:
        """The law [N+1] of `num_accepted`, from the chance [N] that each u stays below its threshold."""
        one = torch.ones_like(chances[:1])
        return torch.cat([one, chances.cumprod(0)]) * torch.cat([1 - chances, one])


def widen(row: Tensor) -> Tensor:
    """The same numbers in the device's widest float."""
    return row.to(exact_dtype(row.device))


def greedy_distribution(p: Tensor) -> Tensor:
    """All on the likeliest token [..., V]."""
    return Sampling(0.0).probs(p)
