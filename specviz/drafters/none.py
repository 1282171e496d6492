"""No draft: the target makes one call per token. Speedups are measured against this baseline."""

from specviz.decoding.draft import EMPTY, Draft
from specviz.decoding.drafter import Context, Drafter
from specviz.drafters.method import Method


class NoDraft(Drafter):
    """Drafts nothing."""

    def draft(self, context: Context, k: int) -> Draft:
        return EMPTY


METHOD = Method(
    name="none",
    title="No draft",
    summary="The target alone, one call per token.",
    caution="The baseline: every other method is measured against it.",
    build=lambda parts, params: NoDraft(),
    drafts_as="nothing",
    needs_only_probabilities=True,
    why_no_what_if="the run had no draft",
)
