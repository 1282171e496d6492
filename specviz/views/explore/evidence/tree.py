"""A token tree as props: every node's place in a grid, its mark and its words; and candidates by head or level.

A column is a depth; a leaf has a row of its own, and a node stands in the row of its first child, so that the path
taken is the first row. Nodes come in the order in which a reader walks a tree: a node, then everything below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specviz.trace.file import ROOT, Step
from specviz.views.explore.evidence.parts import Chip, Part, Said, line, lines
from specviz.views.explore.sentences import Sentence, label, percent

MOST_NODES = 160
OF_HEAD = "Percent: how likely its own head found the token, whatever stands before it."
OF_PATH = "Percent: how likely the draft found the whole path down to the token."


def tree_words(step: Step) -> Sentence:
    """One sentence for a draft with branches."""
    if not step.is_tree:
        return []
    nodes = [token for token in step.draft if token.status != "scratch"]
    kept, deepest = sum(token.status == "accepted" for token in nodes), max(token.depth for token in nodes)
    parents = {token.parent for token in nodes}
    num_ends = sum(token.status != "scratch" and node not in parents for node, token in enumerate(step.draft))
    size = f"{len(nodes):,} drafted tokens, {num_ends:,} branches, {deepest} deep: "
    return [size + (f"a path of {kept} was kept." if kept else "no branch was kept.")]


def tree(step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    if not step.is_tree:
        return []
    shown, num_hidden = _shown(step)
    children = _children(step, shown)
    rows, order = _rows(children)
    scores = said.numbers("scores", len(step.draft)) or said.numbers("scores", _num_drafted(step))
    nodes = [_node(step, node, rows, children, scores) for node in order]
    depth = max(step.draft[node].depth for node in shown)
    hidden = f"{num_hidden:,} more nodes are not shown." if num_hidden else ""
    heads = [_column(said, number) for number in range(1, depth + 1)]
    num_rows = 1 + max(rows.values())
    by_head = "ranks" in said
    whose = "its head gave it" if by_head else "the draft gave its path"
    meaning = (OF_HEAD if by_head else OF_PATH) if any(score for *_, score, _, _, _ in nodes) else ""
    note = " ".join(filter(None, (meaning, hidden)))
    whole = {"rows": num_rows, "heads": heads, "whose": whose, "nodes": nodes}
    return [{"kind": "tree", "title": "The tree", "note": note, **whole}]


def _num_drafted(step: Step) -> int:
    return sum(token.status != "scratch" for token in step.draft)


def _column(said: Said, number: int) -> str:
    return f"head {number}" if "heads" in said else f"depth {number}"


def _shown(step: Step) -> tuple[set[int], int]:
    """The path and the first others, every one with its parent; and how many there are besides."""
    drafted = [node for node, token in enumerate(step.draft) if token.status != "scratch"]
    path = [node for node in drafted if step.draft[node].status == "accepted"][:MOST_NODES]
    others = [node for node in drafted if step.draft[node].status != "accepted"]
    shown = set(path)
    for node in others[: MOST_NODES - len(path)]:
        if step.draft[node].parent == ROOT or step.draft[node].parent in shown:
            shown.add(node)
    return shown, len(drafted) - len(shown)


def _children(step: Step, shown: set[int]) -> dict[int, list[int]]:
    """Per node those below it: the one taken first, so that the path is a straight line, then as they are judged."""
    children: dict[int, list[int]] = {}
    for node in sorted(shown, key=lambda node: (step.draft[node].status != "accepted", node)):
        children.setdefault(step.draft[node].parent, []).append(node)
    return children


def _rows(children: dict[int, list[int]]) -> tuple[dict[int, int], list[int]]:
    """Per node its row, and the nodes in reading order. No recursion: a draft may be thousands deep."""
    rows: dict[int, int] = {ROOT: 0}
    order, waiting, next_row = [], [ROOT], 0
    while waiting:
        node = waiting.pop()
        below = children.get(node, [])
        if node != ROOT:
            rows[node] = next_row
            order.append(node)
        waiting += reversed(below)
        next_row += not below
    return rows, order


def _node(
    step: Step, node: int, rows: dict[int, int], children: dict[int, list[int]], scores: Sequence[float] | None
) -> list[Any]:
    """[ref, text, status, depth, row, the parent's row, its score, place among its siblings, their number, the target's
    odds of it]."""
    token = step.draft[node]
    text, beside = label(token.text, token.bytes), children[token.parent]
    score = "" if scores is None or not 0 <= scores[node] <= 1 else percent(scores[node])
    place = [token.depth, rows[node], rows[token.parent], score, beside.index(node) + 1, len(beside)]
    return [str(node), text, token.status, *place, "" if token.p is None else percent(token.p)]


def candidates(step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    """What each head of Medusa, or each level of EAGLE, found likeliest; a tree says it already."""
    size = len(step.draft)
    scores = said.numbers("scores", size)
    if scores is None or not size or step.is_tree:
        return []
    if "heads" in said and len(ranks := said.wholes("ranks")) == size:
        return [_by_depth(step, "Likeliest by head", "head", ranks, scores)]
    if "levels" in said:
        order = sorted(range(size), key=lambda node: -scores[node])
        places = dict(zip(order, range(size), strict=True))
        return [_by_depth(step, "Grown by level", "level", [places[node] for node in range(size)], scores)]
    return []


def _by_depth(step: Step, title: str, name: str, ranks: Sequence[int], scores: Sequence[float]) -> Part:
    """A line per depth, its tokens by rank; one that stands on several branches comes once, as its best fate."""
    deepest = max(token.depth for token in step.draft)
    rows = []
    for depth in range(1, deepest + 1):
        here = [node for node, token in enumerate(step.draft) if token.depth == depth]
        rows.append(line(f"{name} {depth}", _once(step, here, ranks, scores)))
    return lines(title, rows)


def _once(step: Step, here: Sequence[int], ranks: Sequence[int], scores: Sequence[float]) -> list[Chip]:
    fates = ("accepted", "rejected", "ignored", "scratch")
    by_fate = sorted(here, key=lambda node: fates.index(step.draft[node].status))
    firsts: dict[tuple[int, int], int] = {}
    for node in by_fate:
        firsts.setdefault((ranks[node], step.draft[node].id), node)
    chips = []
    for _, node in sorted(firsts.items()):
        token, share = step.draft[node], scores[node]
        chips.append([label(token.text, token.bytes), token.status, percent(share) if 0 <= share <= 1 else ""])
    return chips
