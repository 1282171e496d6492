"""Blocks drafted at once: a head fills K places in one pass, and none sees another's guess (DFlash)."""

from specviz.drafters.method import Method, load_build
from specviz.drafters.params import DRAWN, MARKOV, TOP, Choice, ModelParam
from specviz.drafters.policy import HEAD_K_PARAMS

METHOD = Method(
    name="block",
    title="Block at once",
    summary="A trained head reads the target's states and fills all places of a draft in one pass.",
    caution="A draft of any length costs one small pass. No place sees another's guess, so later tokens are right less "
    "often, unless a bias tells each guess the token before. The head must be trained on this very target.",
    source="DFlash, arXiv:2602.06036; DSpark, arXiv:2607.05147",
    roles=("heads",),
    params=(
        ModelParam("heads", "block head", None, "A head that was trained for the target.", "block"),
        Choice(
            "children",
            "drafts",
            DRAWN,
            "What is drafted. A drawn token is accepted as often as head and target overlap, a most likely one only as "
            "often as the target draws it.",
            {DRAWN: "tokens drawn from the head's distributions", TOP: "its most likely tokens"},
        ),
        MARKOV,
        *HEAD_K_PARAMS,
    ),
    build=load_build(f"{__name__}.drafter"),
    proposer="A small head that reads the target's states fills a block of up to ",
    why_no_what_if="a block's draft depends on where its step begins",
    reads_ahead=True,
)
