"""A draft model over a token tree: several guesses at a place, so that one of them is more often right."""

from specviz.drafters.method import TREE_RULES, Method, load_build
from specviz.drafters.params import Choice, IntParam

METHOD = Method(
    name="tree",
    title="Token tree",
    summary="A small model writes a tree of guesses; the target checks all branches in one pass and follows one.",
    source="EAGLE-2 (arXiv:2406.16858) without its head; SpecInfer, arXiv:2305.09781; Sequoia, arXiv:2402.12374",
    roles=("draft",),
    params=(
        Choice(
            "children",
            "children",
            "suited",
            "Which tokens hang below a node: the draft's likeliest ones, or tokens drawn from its odds.",
            {
                "suited": "the likeliest at temperature 0, else drawn, none twice",
                "top": "the likeliest",
                "independent": "drawn, each from all of q",
                "without_replacement": "drawn, none twice",
            },
        ),
        Choice(
            "shape",
            "shape",
            "dynamic",
            "Where the tree grows. Among drawn tokens that goes by their order and never by their odds.",
            {
                "dynamic": "where most is to be hoped for",
                "even": "below every node, while the budget lasts",
                "fan": "several first tokens, one chain behind each",
            },
        ),
        IntParam("width", "width", 3, "How many children a node has at most.", 1, 10),
        IntParam("nodes", "most tokens", 12, "How many drafted tokens the target reads at most in one call.", 1, 64),
    ),
    rules=TREE_RULES,
    build=load_build(f"{__name__}.drafter"),
    caution=(
        "Pays where reading many tokens costs the target little more than one, as on a GPU: it gives more tokens per "
        "target call than a chain of the same depth, for one draft call and one transfer per level."
    ),
    proposer="The small model writes a tree of guesses, up to ",
    drafts_as="token tree",
    needs_only_odds=True,
)
