"""A smaller language model writes K tokens ahead, one by one, each drawn from its own q."""

from specviz.drafters.method import Method, load_build
from specviz.drafters.policy import K_PARAMS

METHOD = Method(
    name="draft_model",
    title="Draft model",
    summary="A small model writes K tokens ahead; the target checks them in one pass.",
    caution=(
        "Pays where the small model often agrees with the target and one call of it costs far less time than one of "
        "the target; otherwise it is slower than no draft."
    ),
    source="Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318",
    roles=("draft",),
    params=K_PARAMS,
    build=load_build(f"{__name__}.drafter"),
    is_common=True,
    proposer="The small model writes ",
    is_plain=True,
    needs_only_odds=True,
)
