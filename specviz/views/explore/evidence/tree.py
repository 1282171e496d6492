"""A token tree as props: every node's place in a grid, its mark and its words; and candidates by head or level.

A column is a depth; a leaf has a row of its own, and a node stands in the row of its first child, so that the path
taken is the first row. Nodes come in the order in which a reader walks a tree: a node, then everything below it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from specviz.trace import ROOT, Step
from specviz.views.explore.evidence.parts import Chip, Part, Said, line, lines
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
FATES = ("accepted", "rejected", "ignored", "scratch")  # best first


def tree_words(step: Step) -> Sentence:
    """One sentence for a draft with branches."""
    if not step.is_tree:
        return []
    nodes = {node: step.draft[node] for node in drafted_nodes(step)}
    kept, deepest = (
        sum(token.status == "accepted" for token in nodes.values()),
        max(t.depth for t in nodes.values()),
    )
    num_ends = len(nodes.keys() - {token.parent for token in nodes.values()})
    size = f"{len(nodes):,} drafted tokens, {num_ends:,} branches, {deepest} deep: "
    return [size + (f"a path of {kept} was accepted." if kept else "no branch was accepted.")]


def tree(step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    if not step.is_tree:
        return []
    shown, num_hidden = _choose_nodes(step)
    children = _children(step, shown)
    rows = _rows(children)
    scores = said.numbers("scores", len(step.draft)) or said.numbers(
        "scores", len(drafted_nodes(step))
    )
    nodes = [
        _node(
            step,
            node,
            rows,
            children[step.draft[node].parent],
            share_words(scores and scores[node]),
        )
        for node in rows
        if node != ROOT
    ]
    depth = max(step.draft[node].depth for node in shown)
    by_head = "ranks" in said
    meaning = (
        (OF_HEAD if by_head else OF_PATH) if any(score for *_, score, _, _, _ in nodes) else ""
    )
    whole = {
        "kind": "tree",
        "title": "The tree",
        "note": " ".join(
            filter(
                None, (meaning, f"{num_hidden:,} more nodes are not shown." if num_hidden else "")
            )
        ),
        "rows": 1 + max(rows.values()),
        "heads": [
            f"{'head' if 'heads' in said else 'depth'} {number}" for number in range(1, depth + 1)
        ],
        "whose": "its head gave it" if by_head else "the draft gave its path",
        "nodes": nodes,
    }
    return [whole]


def _choose_nodes(step: Step) -> tuple[set[int], int]:
    """The path and the first others, every one with its parent; and how many are left out."""
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
    """Per node those below it: the one taken first, so that the path is a straight line, then as they are judged."""
    children: dict[int, list[int]] = {}
    for node in sorted(shown, key=lambda node: (step.draft[node].status != "accepted", node)):
        children.setdefault(step.draft[node].parent, []).append(node)
    return children


def _rows(children: Mapping[int, list[int]]) -> dict[int, int]:
    """Per node its row, in reading order, ROOT first. No recursion: a draft may be thousands deep."""
    rows: dict[int, int] = {}
    waiting, next_row = [ROOT], 0
    while waiting:
        node = waiting.pop()
        rows[node] = next_row
        below = children.get(node, [])
        waiting += reversed(below)
        next_row += not below
    return rows


def _node(
    step: Step, node: int, rows: Mapping[int, int], siblings: list[int], score: str
) -> list[Any]:
    """[ref, text, status, depth, row, the parent's row, its score, place among its siblings, their number, the target's
    probability]."""
    token = step.draft[node]
    text, probabilities = token_label(token), "" if token.p is None else percent(token.p)
    place = [
        token.depth,
        rows[node],
        rows[token.parent],
        score,
        siblings.index(node) + 1,
        len(siblings),
    ]
    return [str(node), text, token.status, *place, probabilities]


def candidates(step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    """What each head of Medusa, or each level of EAGLE, found likeliest; a tree says it already."""
    size = len(step.draft)
    scores = said.numbers("scores", size)
    if scores is None or not size or step.is_tree:
        return []
    if "heads" in said and len(ranks := said.wholes("ranks")) == size:
        return [_by_depth(step, "Most likely by head", "head", dict(enumerate(ranks)), scores)]
    if "levels" in said:
        best_first = sorted(range(size), key=lambda node: -scores[node])
        ranks = {node: rank for rank, node in enumerate(best_first)}
        return [_by_depth(step, "Grown by level", "level", ranks, scores)]
    return []


def _by_depth(
    step: Step, title: str, name: str, ranks: Mapping[int, int], scores: Sequence[float]
) -> Part:
    """A line per depth, its tokens by rank; a token that stands on several branches comes once, with its best fate."""
    rows: dict[int, dict[tuple[int, int], Chip]] = {}
    for node in sorted(ranks, key=lambda node: FATES.index(step.draft[node].status)):
        token = step.draft[node]
        chip = [token_label(token), token.status, share_words(scores[node])]
        rows.setdefault(token.depth, {}).setdefault((ranks[node], token.id), chip)
    in_order = (
        (depth, [chips[key] for key in sorted(chips)]) for depth, chips in sorted(rows.items())
    )
    return lines(title, [line(f"{name} {depth}", chips) for depth, chips in in_order])
