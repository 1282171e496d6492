"""speculate(): the only decoding loop of the project. It knows token ids, no text, no files, no screens.

A step: the drafter proposes, the target reads the proposal in one forward, the rule judges. `plan()` is asked before
every step, so K, sampling, drafter and target can change while tokens flow. Close the generator to stop.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.device import PhaseClock
from specviz.decoding.draft import Draft
from specviz.decoding.drafter import Context, Drafter, Work
from specviz.decoding.draws import Draws
from specviz.decoding.rule import Rule, Verdict
from specviz.decoding.sampling import Sampling
from specviz.decoding.turns import give_way
from specviz.errors import SpecvizError

IsStop = Callable[[int], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What is in force for one step. k: num_speculative_tokens, the largest depth of a draft."""

    target: CachedLM
    drafter: Drafter
    rule: Rule
    sampling: Sampling
    k: int


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    draft_ms: float
    verify_ms: float
    accept_ms: float


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """One draft-verify round. tokens: what it emitted, after cutting `truncated` tokens behind the end of the text."""

    index: int
    context_length: int  # tokens before this step
    plan: Plan
    draft: Draft
    logits: Tensor  # [1+N, V]
    probs: Tensor  # [1+N, V]
    verdict: Verdict
    tokens: tuple[int, ...]
    truncated: int
    timing: PhaseTimes
    target_work: Work
    draft_work: Work
    finish: str | None  # "length" | "eos" | "stop" | "context" on the last step


def speculate(
    tokens: Sequence[int],
    plan: Callable[[], Plan],
    draws: Draws,
    *,
    max_new_tokens: int,
    eos_ids: frozenset[int] = frozenset(),
    first_index: int = 0,
    is_stop: IsStop = lambda token: False,
) -> Iterator[StepResult]:
    """Continues `tokens` until max_new_tokens, an end token, a stop or the target's context limit.

    is_stop: asked of every token of the text in order, whether it completes what the text is to end with.
    first_index: the number of the first step. A text is gone on with where it was left: with the same draws, the rest
    is the same.
    Raises SpecvizError for an empty prompt, one that leaves no room in the context, and a rule that cannot judge the
    draft. Inference mode is entered and left inside each step: a generator may be resumed on another thread.
    """
    if not tokens:
        raise SpecvizError("the prompt has no tokens; type at least one word")
    text, end = list(tokens), len(tokens) + max_new_tokens
    index, finish = first_index, None
    while finish is None:
        give_way()
        current = plan()
        if len(text) >= current.target.context_limit:
            raise SpecvizError(
                f"the text has {len(text)} tokens and the target model reads at most {current.target.context_limit}: "
                "shorten the prompt or choose a target with a longer context"
            )
        with torch.inference_mode():
            step = _step(index, text, current, draws, end, eos_ids, is_stop)
        text.extend(step.tokens)
        index, finish = index + 1, step.finish
        yield step


def _step(
    index: int,
    text: list[int],
    plan: Plan,
    draws: Draws,
    end: int,
    eos_ids: frozenset[int],
    is_stop: IsStop,
) -> StepResult:
    position, limit = len(text), min(end, plan.target.context_limit)
    before = _work(plan), plan.drafter.work
    clock = PhaseClock(plan.target.device)
    plan.target.capture(plan.drafter.hidden_layers)
    context = Context(
        text, plan.sampling.of_draft, draws, plan.target.vocab_size, plan.target.hidden(text)
    )
    most = min(plan.k, limit - position - 1)  # the last token comes from the target
    draws.bring(position, most, plan.target.device)
    draft = plan.drafter.draft(context, most).on(plan.target.device)
    if not plan.rule.supports(draft):
        raise SpecvizError(
            f"{plan.rule.title} cannot judge the drafts of this method; choose another rule"
        )
    clock.mark()
    logits = plan.target.forward(text, draft)
    probs = plan.sampling.probs(logits)
    clock.mark()
    verdict = plan.rule(draft, probs, draws, position)
    clock.mark()
    plan.drafter.observe(draft, probs, verdict)
    emitted = verdict.emitted(draft)
    kept, finish = _cut(emitted, position, end, plan.target.context_limit, eos_ids, is_stop)
    return StepResult(
        index=index,
        context_length=position,
        plan=plan,
        draft=draft,
        logits=logits,
        probs=probs,
        verdict=verdict,
        tokens=kept,
        truncated=len(emitted) - len(kept),
        timing=PhaseTimes(*clock.phases_ms()),
        target_work=_work(plan) - before[0],
        draft_work=plan.drafter.work - before[1],
        finish=finish,
    )


def _work(plan: Plan) -> Work:
    return Work(plan.target.calls, plan.target.fed) + plan.drafter.target_work


def _cut(
    emitted: tuple[int, ...],
    position: int,
    end: int,
    context_limit: int,
    eos_ids: frozenset[int],
    is_stop: IsStop,
) -> tuple[tuple[int, ...], str | None]:
    """What remains of the emitted tokens, and why the text ends here if it does."""
    kept = emitted[: min(end, context_limit) - position]
    for i, token in enumerate(kept):
        if token in eos_ids:
            return kept[: i + 1], "eos"
        if is_stop(token):
            return kept[: i + 1], "stop"
    if position + len(kept) >= end:
        return kept, "length"
    return kept, "context" if position + len(kept) >= context_limit else None
