"""A draft model with another tokenizer than the target's (arXiv:2502.05202)."""

from specviz.drafters.method import Method, load_build
from specviz.drafters.params import Choice
from specviz.drafters.policy import K_PARAMS

METHOD = Method(
    name="cross_vocabulary",
    title="Different vocabularies",
    summary="A draft model whose tokenizer cuts text into other tokens than the target's.",
    caution=(
        "Lets any model draft for any other; guesses are lost where the two cut a text differently, and every guess "
        "that goes through text is the draft's favourite, which is kept less often at high temperatures."
    ),
    source="Timor et al., arXiv:2502.05202",
    roles=("draft",),
    params=(
        Choice(
            "way",
            "how tokens are translated",
            "reencode",
            "Through text: the draft writes text, which is cut into the target's tokens. By shared tokens: the draft "
            "writes only tokens that both vocabularies have.",
            {"reencode": "through text", "shared": "by shared tokens"},
        ),
        *K_PARAMS,
    ),
    build=load_build(f"{__name__}.drafter"),
    foreign=True,
    proposer="A small model with other tokens than the large one's proposes up to ",
    why_no_what_if="the draft model writes other tokens than the target: its odds along this text are unknown",
)
