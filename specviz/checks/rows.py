"""The rows of both models behind a recorded run, and how far two distributions lie apart."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz import trace
from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import ROOT, Draft, chain
from specviz.decoding.sampling import Sampling, fit
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """One recorded step, with the rows of both models."""

    record: trace.Step
    tokens: tuple[int, ...]  # the text before the step
    sampling: Sampling
    draft: Draft  # the recorded chain; its probs are the draft model's rows, None for point masses
    probs: Tensor  # [1+N, V] the target's row after the text, then after each drafted token


def step_rows(
    recorded: trace.Trace, target: LoadedModel, draft: LoadedModel | None
) -> Iterator[StepRows]:
    """Yields the steps that these models made, in order.

    Raises SpecvizError for ids that a model lacks and for drafted trees.
    """
    target_lm = target.cached_lm()
    draft_lm = None if draft is None else draft.cached_lm()
    tokens = [token.id for token in recorded.header.prompt.tokens]
    for step in recorded.steps:
        if is_made_by(step, target, draft):
            yield _rows_of(step, tuple(tokens), target_lm, draft_lm)
        tokens += [token.id for token in step.emitted]


def is_made_by(step: trace.Step, target: LoadedModel, draft: LoadedModel | None) -> bool:
    """Whether these models made the step and drew its draft, by their names; both may change during a run.

    Heads, layers and drafts of another vocabulary draw from probabilities that are not a draft model's rows.
    """
    used = step.settings
    if _has_q(step):
        method = METHODS.get(used.method)
        if used.draft_model is None or method is None or method.foreign:
            return False
    is_of_draft = used.draft_model is None or (draft is not None and used.draft_model == draft.name)
    return used.target == target.name and is_of_draft


def _has_q(step: trace.Step) -> bool:
    return any(token.q is not None for token in step.draft)


def _rows_of(
    step: trace.Step, tokens: tuple[int, ...], target: CachedLM, draft: CachedLM | None
) -> StepRows:
    words = f"step {step.index + 1}"
    ids = [token.id for token in step.draft]
    if [token.parent for token in step.draft] != list(range(ROOT, len(ids) - 1)):
        raise SpecvizError(f"{words} drafted a tree; only chains can be judged again here")
    if any(token >= target.vocab_size for token in (*tokens, *ids)):
        raise SpecvizError(f"{words} has tokens that the target model does not know")
    sampling = Sampling.of(step.settings)
    with torch.inference_mode():
        probs = sampling.probs(target.forward(tokens, chain(ids)))
        draft_rows = None
        if draft is not None and _has_q(step):
            is_known = max(*tokens, *ids) < draft.vocab_size
            if not is_known or len(tokens) + len(ids) > draft.context_limit:
                raise SpecvizError(f"{words} has tokens that the draft model cannot read")
            logits = draft.forward(tokens, chain(ids[:-1]))
            draft_rows = sampling.of_draft.probs(fit(logits, target.vocab_size))
    return StepRows(step, tokens, sampling, chain(ids, draft_rows), probs)


def total_variation(distribution: Tensor, other: Tensor) -> Tensor:
    """How much probability [...] one distribution [..., V] puts on other tokens than the other one."""
    return (distribution - other).abs().sum(-1) / 2


def normalise(rows: Tensor) -> Tensor:
    """Rows of probabilities [..., V] in float64 on the CPU, each with a sum of 1 to the last digit."""
    wide = rows.cpu().double()
    return wide / wide.sum(-1, keepdim=True)
