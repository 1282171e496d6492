"""The only decoding loop of the project: `speculate`. It knows token ids, no text, no files, no screens.

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
from specviz.decoding.drafter import Context, Drafter, PhaseTimes
from specviz.decoding.draws import Draws
from specviz.decoding.rule import Rule, Verdict
from specviz.decoding.sampling import Sampling
from specviz.decoding.turns import give_way
from specviz.decoding.work import Work
from specviz.errors import SpecvizError

IsStop = Callable[[int], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The models, rule and settings of one step."""

    target: CachedLM
    drafter: Drafter
    rule: Rule
    sampling: Sampling
    k: int  # num_speculative_tokens, the largest depth of a draft


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """The record of a draft-verify round."""

    index: int
    context_length: int  # tokens before this step
    plan: Plan
    draft: Draft
    logits: Tensor  # [1+N, V]
    probs: Tensor  # [1+N, V]
    verdict: Verdict
    tokens: tuple[int, ...]  # emitted, up to the end of the text
    truncated: int  # tokens of the verdict behind the end of the text
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

    is_stop: called with every new token in order; whether the text ends with it. first_index: the number of the first
    step. A text can be continued where it was left: with the same draws, the rest is the same.
    Raises SpecvizError for an empty prompt, one that leaves no room in the context, and a rule that cannot judge the
    draft. Inference mode is entered and left inside each step: a generator may be resumed on another thread.
    """
    if not tokens:
        raise SpecvizError("the prompt has no tokens; type at least one word")
    text = list(tokens)
    end = len(tokens) + max_new_tokens
    index = first_index
    finish = None
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
        index += 1
        finish = step.finish
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
    target = plan.target
    drafter = plan.drafter
    position = len(text)
    target_before = _target_work(plan)
    draft_before = drafter.work
    clock = PhaseClock(target.device)

    room = min(end, target.context_limit) - position
    k = min(plan.k, room - 1)  # the last token comes from the target
    draft = _propose(text, plan, draws, k)
    clock.mark()

    logits = target.forward(text, draft)
    probs = plan.sampling.probs(logits)
    clock.mark()

    verdict = plan.rule(draft, probs, draws, position)
    clock.mark()

    timing = PhaseTimes(*clock.phases_ms())
    drafter.observe(draft, probs, verdict, timing)
    emitted = verdict.emitted(draft)
    tokens, finish = _shorten(emitted, position, end, target.context_limit, eos_ids, is_stop)
    return StepResult(
        index=index,
        context_length=position,
        plan=plan,
        draft=draft,
        logits=logits,
        probs=probs,
        verdict=verdict,
        tokens=tokens,
        truncated=len(emitted) - len(tokens),
        timing=timing,
        target_work=_target_work(plan) - target_before,
        draft_work=drafter.work - draft_before,
        finish=finish,
    )


def _propose(text: list[int], plan: Plan, draws: Draws, k: int) -> Draft:
    """The drafter's draft behind the text, on the target's device. Raises SpecvizError if the rule cannot judge it."""
    target = plan.target
    drafter = plan.drafter
    target.capture(drafter.hidden_layers)
    context = Context(text, plan.sampling.of_draft, draws, target.vocab_size, target.hidden(text))
    draws.bring(len(text), k, target.device)
    draft = drafter.draft(context, k).on(target.device)
    if not plan.rule.supports(draft):
        raise SpecvizError(
            f"{plan.rule.title} cannot judge the drafts of this method; choose another rule"
        )
    return draft


def _target_work(plan: Plan) -> Work:
    return plan.target.work + plan.drafter.target_work


def _shorten(
    emitted: tuple[int, ...],
    position: int,
    end: int,
    context_limit: int,
    eos_ids: frozenset[int],
    is_stop: IsStop,
) -> tuple[tuple[int, ...], str | None]:
    """The emitted tokens up to the end of the text, and why the text ends here, if it does."""
    tokens = emitted[: min(end, context_limit) - position]
    for i, token in enumerate(tokens):
        if token in eos_ids:
            return tokens[: i + 1], "eos"
        if is_stop(token):
            return tokens[: i + 1], "stop"
    length = position + len(tokens)
    if length >= end:
        return tokens, "length"
    if length >= context_limit:
        return tokens, "context"
    return tokens, None
