"""What every check is about: a target, what drafts for it and how; and both models' rows behind a recorded run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import ROOT, Draft, chain
from specviz.decoding.engine import Plan
from specviz.decoding.rule import Rule
from specviz.decoding.sampling import Sampling, fit
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.models.library import Library, LoadedModel
from specviz.session.setup import Setup, gather
from specviz.trace import file as trace


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Loaded models and a drafting method; `draft` is None where the method needs no model.

    library: where models come from that the parameters name.
    """

    target: LoadedModel
    draft: LoadedModel | None
    method: str = "draft_model"
    params: Mapping[str, object] = field(default_factory=dict)
    library: Library | None = None

    @property
    def comparable_draft(self) -> LoadedModel | None:
        """The draft model where its probabilities can be compared with the target's, token by token."""
        return None if METHODS[self.method].foreign else self.draft

    def plan(self, rule: Rule, sampling: Sampling, k: int) -> Plan:
        """A plan with readers and a drafter of its own: nothing that another plan has cached is used."""
        setup, reader = self.setup(), self.target.cached_lm()
        return Plan(reader, setup.drafter(reader), rule, sampling, setup.k(k))

    def setup(self) -> Setup:
        """The method with its models. Raises SpecvizError for parameters and pairs that do not fit it."""
        return gather(METHODS[self.method], self.params, self.target, self.draft, self.library)


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """One recorded step. draft: its chain, with the draft model's rows as probs, or None for point masses."""

    record: trace.Step
    tokens: tuple[int, ...]  # the text before the step
    sampling: Sampling
    draft: Draft
    probs: Tensor  # [1+N, V] the target's row after the text, then after each drafted token


def step_rows(recorded: trace.Trace, target: LoadedModel, draft: LoadedModel | None) -> Iterator[StepRows]:
    """The steps that these models made, in order. Raises SpecvizError for ids that the target lacks and for drafts
    that are no chain."""
    lms = target.cached_lm(), None if draft is None else draft.cached_lm()
    tokens = [token.id for token in recorded.header.prompt.tokens]
    for step in recorded.steps:
        if is_made_by(step, target, draft):
            yield _rows_of(step, tuple(tokens), *lms)
        tokens += [token.id for token in step.emitted]


def is_made_by(step: trace.Step, target: LoadedModel, draft: LoadedModel | None) -> bool:
    """Whether these models were in force, by their names: both may change while tokens flow."""
    named = step.settings.draft_model
    return step.settings.target == target.name and named in (None, None if draft is None else draft.name)


def _rows_of(step: trace.Step, tokens: tuple[int, ...], target: CachedLM, draft: CachedLM | None) -> StepRows:
    ids = [token.id for token in step.draft]
    if [token.parent for token in step.draft] != list(range(ROOT, len(ids) - 1)):
        raise SpecvizError(f"step {step.index + 1} drafted a tree; only chains can be judged again here")
    if any(token >= target.vocab_size for token in (*tokens, *ids)):
        raise SpecvizError(f"step {step.index + 1} has tokens that the target model does not know")
    settings = step.settings
    sampling = Sampling.of(settings)
    with torch.inference_mode():
        probs = sampling.probs(target.forward(tokens, chain(ids)))
        rows = None
        if draft is not None and ids and any(token.q is not None for token in step.draft):
            rows = sampling.of_draft.probs(fit(draft.forward(tokens, chain(ids[:-1])), target.vocab_size))
    return StepRows(step, tokens, sampling, chain(ids, rows), probs)


def total_variation(law: Tensor, other: Tensor) -> Tensor:
    """How much probability [...] of a law [..., V] lies on other tokens than that of the other one."""
    return (law - other).abs().sum(-1) / 2


def normalise(rows: Tensor) -> Tensor:
    """Rows of probabilities [..., V] in float64 on the CPU, each with a sum of 1 to the last digit."""
    wide = rows.cpu().double()
    return wide / wide.sum(-1, keepdim=True)
