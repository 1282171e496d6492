"""No draft: one target call per token, the baseline that speedups are measured against."""

from __future__ import annotations

from specviz.decoding.draft import EMPTY, Draft
from specviz.decoding.drafter import Context, Drafter
from specviz.drafters.method import CHAIN_RULES, Method


class NoDraft(Drafter):
    def draft(self, context: Context, k: int) -> Draft:
        return EMPTY


METHOD = Method(
    name="none",
    title="No draft",
    summary="The target alone, one call per token.",
    caution="Never faster and never slower: this is the measure for every other method.",
    source="",
    roles=(),
    params=(),
    rules=CHAIN_RULES,
    build=lambda parts, params: NoDraft(),
)
