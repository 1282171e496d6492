"""Both models' rows behind a recorded run, and how far two laws lie apart."""

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
    """One recorded step. draft: its chain, with the draft model's rows as probs, or None for point masses."""

    record: trace.Step
    tokens: tuple[int, ...]  # the text before the step
    sampling: Sampling
    draft: Draft
    probs: Tensor  # [1+N, V] the target's row after the text, then after each drafted token


def step_rows(
    recorded: trace.Trace, target: LoadedModel, draft: LoadedModel | None
) -> Iterator[StepRows]:
    """The steps that these models made, in order. SpecvizError for ids that the target lacks and for drafted trees."""
    lms = target.cached_lm(), None if draft is None else draft.cached_lm()
    tokens = [token.id for token in recorded.header.prompt.tokens]
    for step in recorded.steps:
        if is_made_by(step, target, draft):
            yield _rows_of(step, tuple(tokens), *lms)
        tokens += [token.id for token in step.emitted]


def is_made_by(step: trace.Step, target: LoadedModel, draft: LoadedModel | None) -> bool:
    """Whether these models were in force, by their names, and drew the draft: both may change while tokens flow. Heads,
    layers and drafts of another vocabulary draw from odds that a draft model's rows are not."""
    named, method = step.settings.draft_model, METHODS.get(step.settings.method)
    if any(token.q is not None for token in step.draft) and (
        named is None or method is None or method.foreign
    ):
        return False
    return step.settings.target == target.name and named in (
        None,
        None if draft is None else draft.name,
    )


def _rows_of(
    step: trace.Step, tokens: tuple[int, ...], target: CachedLM, draft: CachedLM | None
) -> StepRows:
    ids = [token.id for token in step.draft]
    if [token.parent for token in step.draft] != list(range(ROOT, len(ids) - 1)):
        raise SpecvizError(
            f"step {step.index + 1} drafted a tree; only chains can be judged again here"
        )
    if any(token >= target.vocab_size for token in (*tokens, *ids)):
        raise SpecvizError(f"step {step.index + 1} has tokens that the target model does not know")
    sampling = Sampling.of(step.settings)
    with torch.inference_mode():
        probs = sampling.probs(target.forward(tokens, chain(ids)))
        rows = None
        if draft is not None and any(token.q is not None for token in step.draft):
            if (
                max(*tokens, *ids) >= draft.vocab_size
                or len(tokens) + len(ids) > draft.context_limit
            ):
                raise SpecvizError(
                    f"step {step.index + 1} has tokens that the draft model cannot read"
                )
            rows = sampling.of_draft.probs(
                fit(draft.forward(tokens, chain(ids[:-1])), target.vocab_size)
            )
    return StepRows(step, tokens, sampling, chain(ids, rows), probs)


def total_variation(distribution: Tensor, other: Tensor) -> Tensor:
    """How much probability [...] of a law [..., V] lies on other tokens than that of the other one."""
    return (distribution - other).abs().sum(-1) / 2


def normalise(rows: Tensor) -> Tensor:
    """Rows of probabilities [..., V] in float64 on the CPU, each with a sum of 1 to the last digit."""
    wide = rows.cpu().double()
    return wide / wide.sum(-1, keepdim=True)
