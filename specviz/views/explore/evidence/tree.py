"""The drawing of a token tree: every node's place in a grid, its mark and its words; and candidates by head or level.

A column is a depth. A leaf has a row of its own, and a node stands in the row of its first child, so the accepted path
is the first row. Nodes come in reading order: a node, then everything below it.
"""

from collections.abc import Mapping, Sequence

from specviz.trace import ROOT, Step
from specviz.views.explore.evidence.parts import Evidence, line, lines
from specviz.views.explore.message import Chip, LinesPart, TreeNode, TreePart
from specviz.views.words import (
    Sentence,
    drafted_nodes,
    percent,
    share_words,
    token_label,
)

MOST_NODES = 160
OF_HEAD = "Percent: the probability that its own head gave the token, whatever comes before it."
OF_PATH = "Percent: the probability that the draft gave the whole path down to the token."
BEST_FIRST = ("accepted", "rejected", "ignored", "scratch")


def tree_words(step: Step) -> Sentence:
    """One sentence for a draft with branches, none for a chain."""
    if not step.is_tree:
        return []
    nodes = {node: step.draft[node] for node in drafted_nodes(step)}
    num_accepted = sum(token.status == "accepted" for token in nodes.values())
    deepest = max(token.depth for token in nodes.values())
    num_leaves = len(nodes.keys() - {token.parent for token in nodes.values()})
    size = f"{len(nodes):,} drafted tokens, {num_leaves:,} branches, {deepest} deep: "
    if num_accepted:
        return [f"{size}a path of {num_accepted} was accepted."]
    return [f"{size}no branch was accepted."]


def tree(step: Step, evidence: Evidence, _text: Sequence[str]) -> list[TreePart]:
    """The drawing of a draft with branches."""
    if not step.is_tree:
        return []
    shown, num_hidden = _choose_nodes(step)
    children = _children(step, shown)
    rows = _rows(children)
    scores = _scores(step, evidence)
    nodes = []
    notes = []
    by_head = "ranks" in evidence
    for node in rows:
        if node == ROOT:
            continue
        score = share_words(scores[node]) if scores else ""
        nodes.append(_node(step, node, rows, children[step.draft[node].parent], score))
        if score and not notes:
            notes.append(OF_HEAD if by_head else OF_PATH)
    if num_hidden:
        notes.append(f"{num_hidden:,} more nodes are not shown.")
    column = "head" if "heads" in evidence else "depth"
    deepest = max(step.draft[node].depth for node in shown)
    drawing = TreePart(
        title="The tree",
        note=" ".join(notes),
        rows=1 + max(rows.values()),
        heads=[f"{column} {number}" for number in range(1, deepest + 1)],
        whose="its head gave it" if by_head else "the draft gave its path",
        nodes=nodes,
    )
    return [drawing]


def _scores(step: Step, evidence: Evidence) -> dict[int, float]:
    """The score of each node by its number; evidence may leave out nodes that only helped to draft. Empty: none."""
    for nodes in (range(len(step.draft)), drafted_nodes(step)):
        numbers = evidence.numbers("scores", len(nodes))
        if numbers:
            return dict(zip(nodes, numbers, strict=True))
    return {}


def _choose_nodes(step: Step) -> tuple[set[int], int]:
    """The accepted path and the first other nodes, each with its parent; and how many nodes are left out."""
    drafted = drafted_nodes(step)
    path = [node for node in drafted if step.draft[node].status == "accepted"][:MOST_NODES]
    others = [node for node in drafted if step.draft[node].status != "accepted"]
    shown = {ROOT, *path}
    for node in others[: MOST_NODES - len(path)]:
        if step.draft[node].parent in shown:
            shown.add(node)
    shown.remove(ROOT)
    return shown, len(drafted) - len(shown)


def _children(step: Step, shown: set[int]) -> dict[int, list[int]]:
    """Each node's children: the accepted one first, so that the path is a straight line, then as they are judged."""
    children: dict[int, list[int]] = {}
    for node in sorted(shown, key=lambda node: (step.draft[node].status != "accepted", node)):
        children.setdefault(step.draft[node].parent, []).append(node)
    return children


def _rows(children: Mapping[int, list[int]]) -> dict[int, int]:
    """Each node's row, in reading order from ROOT on. No recursion: a draft may be thousands deep."""
    rows: dict[int, int] = {}
    waiting = [ROOT]
    next_row = 0
    while waiting:
        node = waiting.pop()
        rows[node] = next_row
        below = children.get(node, [])
        waiting += reversed(below)
        if not below:
            next_row += 1
    return rows


def _node(
    step: Step, node: int, rows: Mapping[int, int], siblings: list[int], score: str
) -> TreeNode:
    token = step.draft[node]
    return TreeNode(
        ref=str(node),
        text=token_label(token),
        status=token.status,
        depth=token.depth,
        row=rows[node],
        parent_row=rows[token.parent],
        score=score,
        place=siblings.index(node) + 1,
        num_siblings=len(siblings),
        p="" if token.p is None else percent(token.p),
    )


def candidates(step: Step, evidence: Evidence, _text: Sequence[str]) -> list[LinesPart]:
    """The most likely tokens of each Medusa head, or of each EAGLE level; a tree shows them already."""
    size = len(step.draft)
    scores = evidence.numbers("scores", size)
    if scores is None or not size or step.is_tree:
        return []
    if "heads" in evidence:
        ranks = evidence.wholes("ranks")
        if len(ranks) == size:
            return [_by_depth(step, "Most likely by head", "head", ranks, scores)]
    if "levels" in evidence:
        ranks = [0] * size
        for rank, node in enumerate(sorted(range(size), key=lambda node: -scores[node])):
            ranks[node] = rank
        return [_by_depth(step, "Grown by level", "level", ranks, scores)]
    return []


def _by_depth(
    step: Step, title: str, name: str, ranks: Sequence[int], scores: Sequence[float]
) -> LinesPart:
    """A line per depth, its tokens by rank. A token on several branches comes once, with its best status."""
    rows: dict[int, dict[tuple[int, int], Chip]] = {}
    best_first = sorted(
        range(len(ranks)), key=lambda node: BEST_FIRST.index(step.draft[node].status)
    )
    for node in best_first:
        token = step.draft[node]
        chip = (token_label(token), token.status, share_words(scores[node]))
        rows.setdefault(token.depth, {}).setdefault((ranks[node], token.id), chip)
    shown = []
    for depth, chips in sorted(rows.items()):
        in_order = [chips[rank] for rank in sorted(chips)]
        shown.append(line(f"{name} {depth}", in_order))
    return lines(title, shown)
