"""Medusa: heads on the target's last state each guess one later token (arXiv:2401.10774)."""

from specviz.drafters.method import TREE_RULES, Method, load_build
from specviz.drafters.params import Choice, IntParam, ModelParam

METHOD = Method(
    name="medusa",
    title="Medusa",
    summary="Extra heads on the target's last state each guess one of the next tokens; the best combinations are "
    "checked together as a tree.",
    caution=(
        "Drafting costs next to nothing, but the heads must have been trained for this target, and the target reads "
        "the whole tree at every step: it pays where reading many tokens costs hardly more time than reading one."
    ),
    source="Cai et al., arXiv:2401.10774",
    roles=("heads",),
    params=(
        ModelParam("heads", "Medusa heads", None, "Heads that were trained for the target.", "medusa"),
        IntParam("nodes", "tree nodes", 24, "How many tokens the tree may hold at most. K is its depth.", 1, 256),
        Choice(
            "tree",
            "tree",
            "fixed",
            "Which guesses are checked: the paper's tree, the same at all steps, by how often each rank was right; or "
            "one that is grown at each step from what the heads say there.",
            {"fixed": "the same at every step", "likeliest": "the likeliest guesses of each step"},
        ),
    ),
    rules=TREE_RULES,
    build=load_build(f"{__name__}.drafter"),
    proposer="Small heads on the large model guess later tokens as a tree, up to ",
    drafts_as="token tree",
    why_no_what_if="each Medusa head reads the target's state where a step begins, so what the heads would have "
    "proposed between the recorded steps is not known",
)
