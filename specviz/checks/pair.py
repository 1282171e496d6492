"""Pair: a target, what drafts for it and how, ready to be run with any rule. What every check is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specviz.decoding.engine import Plan
from specviz.decoding.rule import Rule
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.models.library import Library, LoadedModel
from specviz.session.setup import Setup, gather


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
    def beside(self) -> LoadedModel | None:
        """The draft model where its odds can be laid beside the target's, token by token."""
        return None if METHODS[self.method].foreign else self.draft

    def plan(self, rule: Rule, sampling: Sampling, k: int) -> Plan:
        """A plan with readers and a drafter of its own: nothing that another plan has cached is used."""
        setup, reader = self.setup(), self.target.cached_lm()
        return Plan(reader, setup.drafter(reader), rule, sampling, setup.k(k))

    def setup(self) -> Setup:
        """The method with its models. Raises SpecvizError for parameters and pairs that do not fit it."""
        return gather(METHODS[self.method], self.params, self.target, self.draft, self.library)
