"""EAGLE: a small head predicts the target's next features and grows a token tree (arXiv:2401.15077, 2406.16858)."""

from specviz.drafters.method import TREE_RULES, Method, load_build
from specviz.drafters.params import DRAWN, IntParam, ModelParam, SizeParam, drawn_or_top

PER_CALL = {2: 1.57, 3: 1.70, 4: 1.78, 5: 1.84, 6: 1.89, 8: 1.97, 12: 2.06, 16: 2.12, 24: 2.17}
"""Tokens per target call by the number of nodes: the mean of both bundled heads at the temperatures 0 and 1, K = 4."""
OF_TREES = (
    IntParam(
        "width",
        "width",
        4,
        "How many tokens are tried at a place, and at how many places per level.",
        1,
        32,
    ),
    SizeParam(
        "nodes",
        "tree nodes",
        0,
        "How many of the most likely draft tokens are checked. 0: the best by time on this device, as measured when "
        "the page started, else 8. K is the depth.",
        0,
        256,
        usual=8,
        per_call=PER_CALL,
    ),
)
METHOD = Method(
    name="eagle",
    title="EAGLE",
    summary="A trained head predicts the target's next inner states and grows a tree of likely tokens from them.",
    caution="The head must be trained on this very target. A step costs a small pass per level, and the target reads "
    "the whole tree, so it pays where reading many tokens costs hardly more time than reading one.",
    source="Li et al., arXiv:2401.15077, arXiv:2406.16858, arXiv:2503.01840",
    roles=("heads",),
    params=(
        ModelParam("heads", "EAGLE head", None, "A head that was trained for the target.", "eagle"),
        *drawn_or_top(
            "a tree of the head's most likely tokens", "a chain of K tokens, each drawn", *OF_TREES
        ),
    ),
    rules=TREE_RULES,
    build=load_build(f"{__name__}.drafter"),
    proposer="A small head that reads the target's states guesses up to ",
    drafts_as="token tree",
    chain_when=("children", (DRAWN,)),
    why_no_what_if="an EAGLE head's draft depends on where its step begins",
    reads_ahead=True,
)
