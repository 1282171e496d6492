"""Pair: a target, what drafts for it and how, ready to be run with any rule. What every check is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..accept import Rule
from ..drafters import METHODS
from ..engine import Plan
from ..models import LoadedModel
from ..sampling import Sampling


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Loaded models and a drafting method; `draft` is None where the method needs no model."""

    target: LoadedModel
    draft: LoadedModel | None
    method: str = "draft_model"
    params: Mapping[str, int] = field(default_factory=dict)

    def plan(self, rule: Rule, sampling: Sampling, k: int) -> Plan:
        """A plan with readers and a drafter of its own: nothing that another plan has cached is used."""
        method = METHODS[self.method]
        roles = {} if self.draft is None else {"draft": self.draft.cached_lm()}
        drafter = method.build(roles, method.checked(self.params))
        return Plan(self.target.cached_lm(), drafter, rule, sampling, k)
