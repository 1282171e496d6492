"""Staged speculation: the draft model is drafted for itself, to any depth (arXiv:2308.04623)."""

from specviz.drafters.method import Method, load_build
from specviz.drafters.params import IntParam, ModelParam
from specviz.drafters.policy import K_PARAMS

METHOD = Method(
    name="staged",
    title="Staged",
    summary="A still smaller drafter helps the draft model: it proposes, the draft model checks, then the target "
    "checks.",
    caution="Pays where a call of the draft model costs much and its text is easy to guess. With a small draft model, "
    "checking the guesses costs more than it saves.",
    source="Spector and Ré, arXiv:2308.04623",
    roles=("draft",),
    params=(
        ModelParam(
            "stages",
            "who drafts for the draft model",
            "prompt_lookup",
            "prompt_lookup, or a smaller model; of several names, separated by commas, each drafts for the one before.",
            kind="draft",
            most=3,
            reserved=("prompt_lookup",),
        ),
        IntParam(
            "inner_k",
            "inner K",
            3,
            "How many tokens are proposed to the draft model at once.",
            1,
            16,
        ),
        *K_PARAMS,
    ),
    build=load_build(f"{__name__}.drafter"),
    proposer="A small draft model, helped by a still smaller drafter, writes ",
)
