"""Early exit: some of the target's own layers, then its last norm and head, write K tokens ahead."""

from specviz.drafters.method import Method, load_build
from specviz.drafters.params import Choice, IntParam
from specviz.drafters.policy import K_PARAMS

METHOD = Method(
    name="early_exit",
    title="Early exit",
    summary="The target drafts for itself: only some of its layers run, and all of them check the draft in one pass.",
    caution=(
        "Needs no second model and pays where the layers that draft already agree with all of them, which most models "
        "were not trained for; with the target's full vocabulary to score for every token it is never nearly free."
    ),
    source="LayerSkip: Elhoushi et al., arXiv:2404.16710; Draft & Verify: Zhang et al., arXiv:2309.08168",
    params=(
        IntParam(
            "layers", "layers that draft", 0, "How many of the target's layers draft; 0: a third of them.", 0, 512
        ),
        Choice(
            "which",
            "which layers",
            "first",
            "Models that were not trained to be left early may do better when layers in between are skipped.",
            {"first": "the first ones", "outer": "both ends, none in the middle", "spread": "evenly spaced"},
        ),
        *K_PARAMS,
    ),
    build=load_build(f"{__name__}.drafter"),
    is_common=True,
    proposer="The large model's own first layers write ",
    why_no_what_if="the first layers read the target's own context up to where a step begins, and their odds were not "
    "recorded for the whole text",
)
