"""A draft is a token tree: a parent per node and, per node, the distribution it was drawn from, or None.

Nodes come in topological order and hang from ROOT, the last context token. Whatever a drafter does, this is all the
engine, the rules and the recorder know of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ROOT = -1
NO_EVIDENCE: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """N drafted tokens.

    tokens: N ids. parents: N node indices, each smaller than its node's own, or ROOT. probs: per node the row q [V]
    that its token was drawn from, as wide as the target's vocabulary, or None for a token chosen without chance (a
    point mass). logits: rows [V] behind q, shown only. num_scratch: trailing nodes that ride the target's forward but
    cannot be accepted. evidence: what the drafter wants to show, as JSON values.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probs: tuple[Tensor | None, ...] = ()
    logits: tuple[Tensor | None, ...] = ()
    num_scratch: int = 0
    evidence: Mapping[str, object] = field(default_factory=lambda: NO_EVIDENCE)
    _children: dict[int, tuple[int, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.parents) == len(self.probs):
            raise ValueError(
                "a draft needs one parent and one probs entry per token "
                f"(got {len(self.tokens)} tokens, {len(self.parents)} parents, {len(self.probs)} probs)"
            )
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(
                    f"node {node} must hang from ROOT or an earlier node (got parent {parent})"
                )
            if node < len(self.tokens) - self.num_scratch:
                children.setdefault(parent, []).append(node)
        object.__setattr__(
            self, "_children", {parent: tuple(nodes) for parent, nodes in children.items()}
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def children(self, node: int) -> tuple[int, ...]:
        """The nodes below `node` that may be accepted, in the order in which they are judged."""
        return self._children.get(node, ())

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(ROOT, len(self.parents) - 1))

    @property
    def depths(self) -> tuple[int, ...]:
        """Per node its distance from ROOT, at least 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    def on(self, device: torch.device) -> Draft:
        """The same draft with its rows on this device; what lies elsewhere comes over in one transfer."""
        rows = [row for row in (*self.probs, *self.logits) if row is not None]
        if all(row.device == device for row in rows):
            return self
        import torch  # not before: the facts of a method load none

        moved = iter(torch.stack(rows).to(device))  # [R, V], in the widest of their formats
        columns = (self.probs, self.logits)
        probs, logits = (
            tuple(None if row is None else next(moved) for row in column) for column in columns
        )
        return replace(self, probs=probs, logits=logits)


EMPTY = Draft()


class DraftBuilder:
    """Collects nodes; `build` makes a Draft of them."""

    __slots__ = ("_nodes",)

    def __init__(self) -> None:
        self._nodes: list[tuple[int, int, Tensor | None, Tensor | None]] = []

    def add(
        self,
        token: int,
        parent: int = ROOT,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
    ) -> int:
        """Hangs `token` below `parent` and returns the new node's index."""
        self._nodes.append((token, parent, probs, logits))
        return len(self._nodes) - 1

    def build(self, *, num_scratch: int = 0, evidence: Mapping[str, object] = NO_EVIDENCE) -> Draft:
        columns = zip(*self._nodes, strict=True) if self._nodes else [()] * 4
        return Draft(*columns, num_scratch, evidence)


def chain(tokens, probs=None, logits=None, evidence: Mapping[str, object] = NO_EVIDENCE) -> Draft:
    """A draft without branches. `probs` and `logits`: rows [N, V], or None for point masses."""
    tokens = tuple(tokens)
    probs, logits = (
        (None,) * len(tokens) if rows is None else tuple(rows) for rows in (probs, logits)
    )
    return Draft(tokens, tuple(range(ROOT, len(tokens) - 1)), probs, logits, 0, evidence)


def common_prefix(known: Sequence[int], tokens: Sequence[int], limit: int) -> int:
    """How many of the first `limit` tokens, which both have, are the same from the start on; slices are compared."""
    if list(known[:limit]) == list(tokens[:limit]):
        return limit
    return bisect_left(
        range(limit), True, key=lambda place: list(known[: place + 1]) != list(tokens[: place + 1])
    )
