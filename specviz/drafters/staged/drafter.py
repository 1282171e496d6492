"""StagedDrafter: the draft model is drafted for itself, by prompt lookup or by a smaller model, to any depth.

It runs the engine over a smaller target. The inner rule is lossless, so every token is sampled from the draft model's
own row, and that row is q.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.device import to_device
from specviz.decoding.draft import EMPTY, Draft, chain
from specviz.decoding.drafter import Context, Drafter, Work, limit_depth, no_draft
from specviz.decoding.draws import ACCEPT, DRAFT, FINAL, Draws
from specviz.decoding.engine import Plan, StepResult, speculate
from specviz.decoding.sampling import DRAFT_MODEL, TARGET, NotANumber, fit
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.method import Parts
from specviz.drafters.params import Value, split_names
from specviz.drafters.policy import ChainDrafter, Policy, make_policy
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.errors import SpecvizError
from specviz.rules.speculative_sampling import SpeculativeSampling

LOOKUP = "prompt_lookup"
MOST_SHOWN = 70  # tokens in the evidence; a round counts for as much as ROUND of them
ROUND = 3


class StagedDrafter(ChainDrafter):
    """name, by: what the draft model and the one that drafts for it are called in the evidence."""

    def __init__(
        self,
        lm: CachedLM,
        name: str,
        inner: Drafter,
        by: str,
        inner_k: int,
        policy: Policy | None = None,
    ) -> None:
        super().__init__(lm, policy)
        self._name, self._inner, self._by, self._inner_k = name, inner, by, inner_k

    @property
    def work(self) -> Work:
        return super().work + self._inner.work

    def draft(self, context: Context, k: int) -> Draft:
        room = (
            limit_depth(self._lm, context.tokens, k + 1) - 1
        )  # the engine reads every token that it writes
        k = self._policy.most(room, context.tokens)
        if k < 1:
            return no_draft(self._lm, context.tokens, num_read=1)
        tokens, probs, logits, rounds, calls = [], [], [], [], {self._name: 0, self._by: 0}
        for step in self._steps(context, k):
            nodes = [
                0,
                *(node + 1 for node in step.verdict.path),
            ]  # where the emitted tokens were sampled
            nodes = to_device(nodes, torch.long, step.logits.device)
            rows, q = fit(step.logits[nodes], context.vocab_size), step.probs[nodes]
            ids = torch.tensor(step.tokens)
            stops = (
                place + 1 for place, row in enumerate(rows) if self._policy.stops(row, ids[place])
            )
            stop = next(stops, None)  # how many tokens the draft takes; None: all
            tokens += step.tokens[:stop]
            probs += pad(q, (0, context.vocab_size - q.shape[-1]))[:stop]
            logits += rows[:stop]
            rounds += [*step.draft.evidence.get("rounds", ()), self._round(step)]
            inner = step.draft.evidence.get("calls", {self._by: step.draft_work.calls})
            for name, count in (*inner.items(), (self._name, step.target_work.calls)):
                calls[name] = calls.get(name, 0) + count
            if stop is not None:
                break
        sizes = accumulate(ROUND + len(each["tokens"]) for each in rounds)
        shown = [each for each, size in zip(rounds, sizes, strict=True) if size <= MOST_SHOWN]
        return chain(
            tokens, probs, logits, {"rounds": shown, "calls": calls, **self._policy.evidence(k)}
        )

    def _steps(self, context: Context, k: int) -> Iterator[StepResult]:
        """The draft model's own run for the next k tokens."""
        lm = InnerTarget(self._lm, context.vocab_size)
        plan = Plan(lm, self._inner, SpeculativeSampling(), context.sampling, self._inner_k)
        draws = InnerDraws(context.draws, len(context.tokens))
        try:
            yield from speculate(context.tokens, lambda: plan, draws, max_new_tokens=k)
        except NotANumber as error:  # the inner target is this draft model
            who = {
                TARGET: f"the draft model {self._name}",
                DRAFT_MODEL: f"the draft model {self._by}",
            }
            raise NotANumber(who.get(error.who, error.who)) from error

    def _round(self, step: StepResult) -> dict[str, object]:
        num_accepted, num_judged = len(step.verdict.path), len(step.verdict.checks)
        status = ["accepted"] * num_accepted + ["rejected"] * (num_judged - num_accepted)
        status += ["ignored"] * (len(step.draft) - num_judged)
        drafted = [
            {"id": token, "status": fate}
            for token, fate in zip(step.draft.tokens, status, strict=True)
        ]
        last, kind = {"id": step.verdict.token}, step.verdict.kind
        return {"by": self._by, "for": self._name, "tokens": drafted, "last": last, "kind": kind}


class InnerDraws(Draws):
    """The draws of a run inside a draft: each has its own address among the step's DRAFT draws, at any depth."""

    def __init__(self, outer: Draws, start: int) -> None:
        self._outer, self._start = outer, start

    def uniform(self, role: str, position: int, node: int) -> float:
        return self._outer.uniform(*self._address(role, position, node))

    def below(
        self, threshold: Tensor, role: str, position: int, node: int
    ) -> tuple[Tensor, Tensor]:
        if threshold.ndim == 0:
            return self._outer.below(threshold, *self._address(role, position, node))
        pairs = [self.below(one, role, position + i, node + i) for i, one in enumerate(threshold)]
        return torch.stack([u for u, _ in pairs]), torch.stack([passed for _, passed in pairs])

    def sample(self, probs: Tensor, role: str, position: int, node: int) -> Tensor:
        if probs.ndim == 1:
            return self._outer.sample(probs, *self._address(role, position, node))
        return torch.stack(
            [self.sample(row, role, position + i, node + i) for i, row in enumerate(probs)]
        )

    def _address(self, role: str, position: int, node: int) -> tuple[str, int, int]:
        """(role, offset, node) as one number beyond the nodes of other drafts; three stages stay below 64 bits."""
        offset = position - self._start
        assert 0 <= offset < 1024, "a draft is far shorter"
        return (
            DRAFT,
            self._start,
            ((node + 2) * 1024 + offset) * 3 + (DRAFT, ACCEPT, FINAL).index(role),
        )


class InnerTarget:
    """The draft model as a target whose vocabulary is no larger than the outer one's."""

    def __init__(self, lm: CachedLM, vocab_size: int) -> None:
        self._lm = lm
        self.vocab_size = min(lm.vocab_size, vocab_size)

    def __getattr__(self, name: str) -> object:
        return getattr(self._lm, name)

    def forward(self, tokens: Sequence[int], draft: Draft = EMPTY) -> Tensor:
        return fit(self._lm.forward(tokens, draft), self.vocab_size)


def build(parts: Parts, params: Mapping[str, Value]) -> Drafter:
    """The draft model's drafter, and that one's, down to the last stage that is named."""
    names = split_names(str(params["stages"]))
    if LOOKUP in names[:-1]:
        raise SpecvizError(
            f"stages must have {LOOKUP} at the end, as nothing drafts for it (got {', '.join(names)})"
        )
    models = [parts.draft.name, *names]
    if again := next((name for name in names if models.count(name) > 1), None):
        raise SpecvizError(
            f"stages must name each model once, and not the draft model (got {again} again)"
        )
    inner_k = int(params["inner_k"])

    def over(
        lm: CachedLM, name: str, below: Sequence[str], policy: Policy | None = None
    ) -> Drafter:
        if not below:
            return ModelDrafter(lm)
        if below[0] == LOOKUP:
            inner: Drafter = PromptLookup(3, 1)
        else:
            inner = over(parts.others[below[0]].lm, below[0], below[1:])
        return StagedDrafter(lm, name, inner, below[0], inner_k, policy)

    return over(parts.draft.lm, parts.draft.name, names, make_policy(params))
