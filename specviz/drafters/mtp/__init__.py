"""Multi-token prediction: modules that a model brings along write further tokens (arXiv:2412.19437, section 2.2)."""

from specviz.drafters.method import Method, load_build
from specviz.drafters.policy import K_PARAMS

METHOD = Method(
    name="mtp",
    title="Multi-token prediction",
    summary="Modules that the target itself brings along write the next tokens, one module per token.",
    caution=(
        "Only for models that were trained with such modules; each costs about as much as one layer of the target, and "
        "K is at most their number."
    ),
    source="DeepSeek-AI, arXiv:2412.19437",
    params=K_PARAMS,
    build=load_build(f"{__name__}.drafter"),
    target_has=("num_mtp_layers", "modules for multi-token prediction"),
    proposer="The large model's own modules for later tokens write ",
    why_no_what_if="a multi-token-prediction module reads the target's state where a step begins and its own guesses "
    "behind it, so its odds belong to that step alone",
)
