"""Hybrid: the text itself proposes where its end stood before; a draft model writes where it did not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.method import Method, Part, Parts
from specviz.drafters.params import Value
from specviz.drafters.policy import K_PARAMS, ChainDrafter, Policy, make_policy
from specviz.drafters.suffix import MATCH_PARAMS, SuffixDrafter, make_drafter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from specviz.decoding.draft import Draft
    from specviz.decoding.drafter import Context, PhaseTimes
    from specviz.decoding.rule import Verdict

SHORTEST = 3  # tokens; a shorter match says less than a draft model does
TEXT = "suffix"
"""The method that drafts from the text, as the evidence names it."""


class HybridDrafter(ChainDrafter):
    """Asks the text first, and the draft model where the text proposes nothing.

    A draft comes from one of them alone, and the text decides from which before anything is drawn. So a token of the
    draft model was drawn from the q beside it, and a token of the text is a point mass.
    """

    def __init__(self, by_text: SuffixDrafter, model: Part, policy: Policy | None = None) -> None:
        """policy: of the draft model's drafts; it learns from these alone."""
        super().__init__(model.lm)
        self._by_text = by_text
        self._by_model = ModelDrafter(model.lm, policy)
        self._name = model.name
        self._asked: ChainDrafter = by_text

    def draft(self, context: Context, k: int) -> Draft:
        self._asked = self._by_text
        name = TEXT
        draft = self._by_text.draft(context, k)
        if not len(draft):
            self._asked = self._by_model
            name = self._name
            draft = self._by_model.draft(context, k)
        return replace(draft, evidence={**draft.evidence, "by": name}) if len(draft) else draft

    def observe(self, draft: Draft, probs: Tensor, verdict: Verdict, timing: PhaseTimes) -> None:
        self._asked.observe(draft, probs, verdict, timing)


def _build(parts: Parts, params: Mapping[str, Value]) -> HybridDrafter:
    return HybridDrafter(make_drafter(parts, params), parts.draft, make_policy(params))


METHOD = Method(
    name="hybrid",
    title="Text, else draft model",
    summary="What followed the same words earlier is proposed again; where nothing did, a draft model writes.",
    caution="Pays where a draft model pays, and more where the text repeats itself: such a draft costs no call of the "
    "draft model. At a high temperature the draft model alone is accepted more often.",
    source="SuffixDecoding's hybrid, Oliaro et al., arXiv:2411.04975",
    roles=("draft",),
    params=(
        replace(MATCH_PARAMS[0], default=SHORTEST),
        *MATCH_PARAMS[1:],
        *K_PARAMS,
    ),
    build=_build,
    proposer="Earlier text or a draft model proposes up to ",
    needs_only_probabilities=True,
)
