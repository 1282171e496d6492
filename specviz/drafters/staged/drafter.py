"""StagedDrafter: prompt lookup or a smaller model drafts for the draft model, to any depth.

It runs the engine with the draft model as the target. The inner rule is lossless, so every token is sampled from the
draft model's own distribution, and that is q.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.device import to_device
from specviz.decoding.draft import EMPTY, Draft, chain
from specviz.decoding.drafter import Context, Drafter, limit_depth, no_draft
from specviz.decoding.draws import ACCEPT, DRAFT, FINAL, Draws
from specviz.decoding.engine import Plan, StepResult, speculate
from specviz.decoding.sampling import DRAFT_MODEL, TARGET, NotANumber, fit
from specviz.decoding.work import Work
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.method import Parts
from specviz.drafters.params import Value, split_names
from specviz.drafters.policy import ChainDrafter, Policy, make_policy
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.errors import SpecvizError
from specviz.rules.speculative_sampling import SpeculativeSampling

LOOKUP = "prompt_lookup"
MOST_SHOWN = 70  # tokens in the evidence; a round itself counts as ROUND tokens
ROUND = 3


class StagedDrafter(ChainDrafter):
    """Writes a chain with the draft model, while the `inner` drafter drafts for the draft model.

    name: the draft model's name in the evidence. by: the inner drafter's. inner_k: the inner drafter's K.
    """

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
        self._name = name
        self._inner = inner
        self._by = by
        self._inner_k = inner_k

    @property
    def work(self) -> Work:
        return super().work + self._inner.work

    def draft(self, context: Context, k: int) -> Draft:
        # the engine reads every token that it writes
        room = limit_depth(self._lm, context.tokens, k + 1) - 1
        k = self._policy.most(room, context.tokens)
        if k < 1:
            return no_draft(self._lm, context.tokens, num_read=1)
        tokens: list[int] = []
        probs: list[Tensor] = []
        logits: list[Tensor] = []
        rounds: list[dict[str, object]] = []
        calls = {self._name: 0, self._by: 0}
        for step in self._steps(context, k):
            # the rows that the emitted tokens were sampled from
            nodes = [0, *(node + 1 for node in step.verdict.path)]
            nodes = to_device(nodes, torch.long, step.logits.device)
            rows = fit(step.logits[nodes], context.vocab_size)  # [n, V]
            q = step.probs[nodes]
            stop = self._find_stop(rows, step.tokens)
            tokens += step.tokens[:stop]
            probs += pad(q, (0, context.vocab_size - q.shape[-1]))[:stop]
            logits += rows[:stop]
            rounds += step.draft.evidence.get("rounds", ())
            rounds.append(self._round(step))
            self._count_calls(calls, step)
            if stop is not None:
                break
        evidence = {"rounds": _shorten(rounds), "calls": calls, **self._policy.evidence(k)}
        return chain(tokens, probs, logits, evidence)

    def _find_stop(self, rows: Tensor, tokens: Sequence[int]) -> int | None:
        """How many of a step's tokens the draft takes where the policy stops; None: all of them."""
        ids = torch.tensor(tokens)
        for place, row in enumerate(rows):
            if self._policy.stops(row, ids[place]):
                return place + 1
        return None

    def _count_calls(self, calls: dict[str, int], step: StepResult) -> None:
        """Adds a step's calls to the sums per model."""
        inner = step.draft.evidence.get("calls", {self._by: step.draft_work.calls})
        for name, count in (*inner.items(), (self._name, step.target_work.calls)):
            calls[name] = calls.get(name, 0) + count

    def _steps(self, context: Context, k: int) -> Iterator[StepResult]:
        """The steps of the draft model's own run for the next k tokens."""
        lm = InnerTarget(self._lm, context.vocab_size)
        plan = Plan(lm, self._inner, SpeculativeSampling(), context.sampling, self._inner_k)
        draws = InnerDraws(context.draws, len(context.tokens))
        try:
            yield from speculate(context.tokens, lambda: plan, draws, max_new_tokens=k)
        except NotANumber as error:  # the inner target is this draft model
            names = {
                TARGET: f"the draft model {self._name}",
                DRAFT_MODEL: f"the draft model {self._by}",
            }
            raise NotANumber(names.get(error.who, error.who)) from error

    def _round(self, step: StepResult) -> dict[str, object]:
        num_accepted = len(step.verdict.path)
        num_judged = len(step.verdict.checks)
        drafted: list[dict[str, object]] = []
        for place, token in enumerate(step.draft.tokens):
            if place < num_accepted:
                status = "accepted"
            elif place < num_judged:
                status = "rejected"
            else:
                status = "ignored"
            drafted.append({"id": token, "status": status})
        return {
            "by": self._by,
            "for": self._name,
            "tokens": drafted,
            "last": {"id": step.verdict.token},
            "kind": step.verdict.kind,
        }


def _shorten(rounds: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """The first rounds, as many as the evidence has room for."""
    shown: list[dict[str, object]] = []
    size = 0
    for step in rounds:
        size += ROUND + len(step["tokens"])
        if size <= MOST_SHOWN:
            shown.append(step)
    return shown


class InnerDraws(Draws):
    """The random draws of a run inside a draft. Each has an address of its own among the step's DRAFT draws."""

    def __init__(self, outer: Draws, start: int) -> None:
        self._outer = outer
        self._start = start

    def uniform(self, role: str, position: int, node: int) -> float:
        return self._outer.uniform(*self._address(role, position, node))

    def below(
        self, threshold: Tensor, role: str, position: int, node: int
    ) -> tuple[Tensor, Tensor]:
        if threshold.ndim == 0:
            return self._outer.below(threshold, *self._address(role, position, node))
        draws: list[Tensor] = []
        passes: list[Tensor] = []
        for i, value in enumerate(threshold):
            u, passed = self.below(value, role, position + i, node + i)
            draws.append(u)
            passes.append(passed)
        return torch.stack(draws), torch.stack(passes)

    def sample(self, probs: Tensor, role: str, position: int, node: int) -> Tensor:
        if probs.ndim == 1:
            return self._outer.sample(probs, *self._address(role, position, node))
        return torch.stack(
            [self.sample(row, role, position + i, node + i) for i, row in enumerate(probs)]
        )

    def _address(self, role: str, position: int, node: int) -> tuple[str, int, int]:
        """The outer address: role, offset and node become one node number, beyond the nodes of any other draft.

        Three stages stay below 64 bits.
        """
        offset = position - self._start
        assert 0 <= offset < 1024, "a draft is far shorter"
        role_number = (DRAFT, ACCEPT, FINAL).index(role)
        return DRAFT, self._start, ((node + 2) * 1024 + offset) * 3 + role_number


class InnerTarget:
    """The draft model as a target. Its vocabulary is no larger than the outer target's."""

    def __init__(self, lm: CachedLM, vocab_size: int) -> None:
        self._lm = lm
        self.vocab_size = min(lm.vocab_size, vocab_size)

    def __getattr__(self, name: str) -> object:
        return getattr(self._lm, name)

    def forward(self, tokens: Sequence[int], draft: Draft = EMPTY) -> Tensor:
        return fit(self._lm.forward(tokens, draft), self.vocab_size)


def build(parts: Parts, params: Mapping[str, Value]) -> Drafter:
    """Builds the drafter for the draft model, then the drafter below it, down to the last named stage."""
    names = split_names(str(params["stages"]))
    if LOOKUP in names[:-1]:
        raise SpecvizError(
            f"stages must have {LOOKUP} at the end, as nothing drafts for it (got {', '.join(names)})"
        )
    models = [parts.draft.name, *names]
    for name in names:
        if models.count(name) > 1:
            raise SpecvizError(
                f"stages must name each model once, and not the draft model (got {name} again)"
            )
    inner_k = int(params["inner_k"])

    def build_stage(
        lm: CachedLM, name: str, stages: Sequence[str], policy: Policy | None = None
    ) -> Drafter:
        if not stages:
            return ModelDrafter(lm)
        first = stages[0]
        if first == LOOKUP:
            inner: Drafter = PromptLookup(3, 1)
        else:
            inner = build_stage(parts.others[first].lm, first, stages[1:])
        return StagedDrafter(lm, name, inner, first, inner_k, policy)

    return build_stage(parts.draft.lm, parts.draft.name, names, make_policy(params))
