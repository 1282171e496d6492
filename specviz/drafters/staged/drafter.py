"""Staged speculation: the draft model is drafted for itself, by prompt lookup or by a smaller model, to any depth.

The one drafter that runs the engine: the same step over a smaller target. The inner rule is lossless, so every token is
drawn from the draft model's own row, and that row is q.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import EMPTY, Draft, chain
from specviz.decoding.drafter import Context, Drafter, Work
from specviz.decoding.rule import Verdict
from specviz.decoding.sampling import DRAFT_MODEL, TARGET, NotANumber, fit
from specviz.drafters.draft_model.drafter import ModelDrafter
from specviz.drafters.method import Parts
from specviz.drafters.params import Value, split_names
from specviz.drafters.policy import Constant, Policy, make_policy
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.drafters.staged.inner_run import InnerDraws, Within, wide
from specviz.errors import SpecvizError
from specviz.rules.speculative_sampling import SpeculativeSampling

if TYPE_CHECKING:
    from specviz.decoding.engine import Step

LOOKUP = "prompt_lookup"
MOST_SHOWN = 70  # tokens in the evidence; a round counts for as much as ROUND of them
ROUND = 3


class StagedDrafter(Drafter):
    """name, by: what the draft model and the one that drafts for it are called in the evidence."""

    def __init__(
        self, lm: CachedLM, name: str, inner: Drafter, by: str, inner_k: int, policy: Policy | None = None
    ) -> None:
        self._lm, self._name = lm, name
        self._inner, self._by, self._inner_k = inner, by, inner_k
        self._policy = policy or Constant()

    @property
    def work(self) -> Work:
        return Work(self._lm.calls, self._lm.fed) + self._inner.work

    def draft(self, context: Context, k: int) -> Draft:
        k = self._policy.most(min(k, self._lm.context_limit - len(context.tokens)), context.tokens)
        if k < 1 or any(token >= self._lm.vocab_size for token in self._lm.missing(context.tokens)):
            return EMPTY
        tokens, probs, logits, rounds, calls = [], [], [], [], {self._name: 0, self._by: 0}
        for step in self._steps(context, k):
            rows = [0, *(node + 1 for node in step.verdict.path)]  # where the emitted tokens were drawn
            drawn = fit(step.logits[rows], context.vocab_size)
            stop = self._stop(drawn, step.tokens)
            tokens += step.tokens[:stop]
            probs += wide(step.probs[rows], context.vocab_size)[:stop]
            logits += drawn[:stop]
            rounds += [*step.draft.evidence.get("rounds", ()), self._round(step)]
            inner = step.draft.evidence.get("calls", {self._by: step.draft_work.calls})
            for name, count in (*inner.items(), (self._name, step.target_work.calls)):
                calls[name] = calls.get(name, 0) + count
            if stop is not None:
                break
        evidence = {"rounds": _shown(rounds), "calls": calls, **self._policy.evidence(k)}
        return chain(tokens, probs, logits, evidence)

    def observe(self, draft: Draft, probs: Tensor, verdict: Verdict) -> None:
        self._policy.observe(draft, verdict)

    def _steps(self, context: Context, k: int) -> Iterator[Step]:
        """The draft model's own run for the next k tokens."""
        from specviz.decoding.engine import Plan, speculate  # which reads the drafters' table first

        lm = Within(self._lm, context.vocab_size)
        plan = Plan(lm, self._inner, SpeculativeSampling(), context.sampling, self._inner_k)
        draws = InnerDraws(context.draws, len(context.tokens))
        try:
            yield from speculate(context.tokens, lambda: plan, draws, max_new_tokens=k)
        except NotANumber as error:  # the inner target is this draft model
            who = {TARGET: f"the draft model {self._name}", DRAFT_MODEL: f"the draft model {self._by}"}
            raise NotANumber(who.get(error.who, error.who)) from error

    def _stop(self, logits: Tensor, tokens: Sequence[int]) -> int | None:
        """How many of the drawn tokens the draft takes where the policy stops behind one of them; None where not."""
        ids = torch.tensor(tokens)
        stops = (place + 1 for place, row in enumerate(logits) if self._policy.stops(row, ids[place]))
        return next(stops, None)

    def _round(self, step: Step) -> dict[str, object]:
        num_kept, num_judged = len(step.verdict.path), len(step.verdict.checks)
        status = ["accepted"] * num_kept + ["rejected"] * (num_judged - num_kept)
        status += ["ignored"] * (len(step.draft) - num_judged)
        drafted = [{"id": token, "status": fate} for token, fate in zip(step.draft.tokens, status, strict=True)]
        last, kind = {"id": step.verdict.token}, step.verdict.kind
        return {"by": self._by, "for": self._name, "tokens": drafted, "last": last, "kind": kind}


def _shown(rounds: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The first rounds, as many as the evidence has room for."""
    sizes = accumulate(ROUND + len(each["tokens"]) for each in rounds)
    return [each for each, size in zip(rounds, sizes, strict=True) if size <= MOST_SHOWN]


def build(parts: Parts, params: Mapping[str, Value]) -> Drafter:
    """The draft model's drafter, and that one's, down to the last stage that is named."""
    names = split_names(str(params["stages"]))
    if LOOKUP in names[:-1]:
        raise SpecvizError(f"stages must have {LOOKUP} at the end, as nothing drafts for it (got {', '.join(names)})")
    models = [parts.draft.name, *names]
    if again := next((name for name in names if models.count(name) > 1), None):
        raise SpecvizError(f"stages must name each model once, and not the draft model (got {again} again)")
    inner_k = int(params["inner_k"])

    def over(lm: CachedLM, name: str, below: Sequence[str], policy: Policy) -> Drafter:
        if not below:
            return ModelDrafter(lm)
        if below[0] == LOOKUP:
            inner: Drafter = PromptLookup(3, 1)
        else:
            inner = over(parts.others[below[0]].lm, below[0], below[1:], Constant())
        return StagedDrafter(lm, name, inner, below[0], inner_k, policy)

    return over(parts.draft.lm, parts.draft.name, names, make_policy(params))
