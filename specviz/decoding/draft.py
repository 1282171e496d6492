"""Draft: a token tree. Each node has a parent, and the distribution it was drawn from or None.

Nodes come in topological order and hang from ROOT, the last context token. Whatever a drafter does, the engine, the
rules and the recorder know only this.
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
    """A token tree of N drafted tokens."""

    tokens: tuple[int, ...] = ()  # N ids
    parents: tuple[int, ...] = ()  # N nodes, each before its child, or ROOT
    probs: tuple[Tensor | None, ...] = ()
    """The row q [V] that each token was drawn from, as wide as the target's vocabulary.

    None stands for a token that was chosen without chance (a point mass).
    """
    logits: tuple[Tensor | None, ...] = ()  # N rows [V] behind q, only shown
    num_scratch: int = 0
    """The number of trailing nodes that ride the target's forward but cannot be accepted."""
    evidence: Mapping[str, object] = field(default_factory=lambda: NO_EVIDENCE)
    """JSON values that the drafter wants to show."""
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
        frozen = {parent: tuple(nodes) for parent, nodes in children.items()}
        object.__setattr__(self, "_children", frozen)

    def __len__(self) -> int:
        return len(self.tokens)

    def children(self, node: int) -> tuple[int, ...]:
        """The nodes below `node` that may be accepted, in the order in which they are judged."""
        return self._children.get(node, ())

    @property
    def is_chain(self) -> bool:
        return self.parents == _chain_parents(len(self.parents))

    @property
    def depths(self) -> tuple[int, ...]:
        """The distance of each node from ROOT, at least 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    def on(self, device: torch.device) -> Draft:
        """This draft with its rows on the device; if any lies elsewhere, all are copied in one transfer."""
        rows = [row for row in (*self.probs, *self.logits) if row is not None]
        if all(row.device == device for row in rows):
            return self
        import torch  # not before: the facts of a method load none

        moved = iter(torch.stack(rows).to(device))  # [R, V], in the widest of their formats
        probs = tuple(None if row is None else next(moved) for row in self.probs)
        logits = tuple(None if row is None else next(moved) for row in self.logits)
        return replace(self, probs=probs, logits=logits)


EMPTY = Draft()


def _chain_parents(size: int) -> tuple[int, ...]:
    return tuple(range(ROOT, size - 1))


class DraftBuilder:
    """A list of nodes that grows; `build` makes a Draft of them."""

    __slots__ = ("_logits", "_parents", "_probs", "_tokens")

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._probs: list[Tensor | None] = []
        self._logits: list[Tensor | None] = []

    def add(
        self,
        token: int,
        parent: int = ROOT,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
    ) -> int:
        """Hangs `token` below `parent` and returns the new node's index."""
        self._tokens.append(token)
        self._parents.append(parent)
        self._probs.append(probs)
        self._logits.append(logits)
        return len(self._tokens) - 1

    def build(self, *, num_scratch: int = 0, evidence: Mapping[str, object] = NO_EVIDENCE) -> Draft:
        return Draft(
            tuple(self._tokens),
            tuple(self._parents),
            tuple(self._probs),
            tuple(self._logits),
            num_scratch,
            evidence,
        )


def chain(tokens, probs=None, logits=None, evidence: Mapping[str, object] = NO_EVIDENCE) -> Draft:
    """A draft without branches. `probs` and `logits`: rows [N, V], or None for point masses."""
    tokens = tuple(tokens)
    nothing = (None,) * len(tokens)
    probs = nothing if probs is None else tuple(probs)
    logits = nothing if logits is None else tuple(logits)
    return Draft(tokens, _chain_parents(len(tokens)), probs, logits, 0, evidence)


def common_prefix(known: Sequence[int], tokens: Sequence[int], limit: int) -> int:
    """How many of the first `limit` tokens, which both lists have, are the same from the start on."""
    if list(known[:limit]) == list(tokens[:limit]):
        return limit

    def differs(place: int) -> bool:  # comparing slices is faster than comparing tokens
        return list(known[: place + 1]) != list(tokens[: place + 1])

    return bisect_left(range(limit), True, key=differs)
