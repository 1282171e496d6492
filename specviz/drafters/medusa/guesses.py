"""Guesses of Medusa's heads on the host: the likeliest tokens below every node that a tree may take further.

Without a Markov bias all nodes of a depth have the same ones below them. With it each node has its own, by its token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from specviz.decoding.device import exact_dtype, to_device
from specviz.decoding.sampling import HEADS, fetch_tokens
from specviz.drafters.markov import MarkovBias
from specviz.drafters.medusa import Path


@dataclass(frozen=True, slots=True, eq=False)
class Guesses:
    """The guesses below M nodes, the likeliest first."""

    ids: Sequence[Sequence[int]]  # [M, ranks]
    chances: Sequence[Sequence[float]]  # [M, ranks], their probabilities
    logits: Tensor  # [M, V]
    rows: Mapping[Path, int] | None = None
    """The row of each path that has guesses below it; None: row i holds those below every path of i ranks."""

    def row_of(self, path: Path) -> int | None:
        """The row of the guesses below a path; None where there are none."""
        if self.rows is not None:
            return self.rows.get(path)
        return len(path) if len(path) < len(self.ids) else None

    def probs(self, path: Path) -> Sequence[float]:
        """The probabilities below a path by rank."""
        row = self.row_of(path)
        return () if row is None else self.chances[row]

    def at(self, path: Path) -> tuple[int, float, Tensor]:
        """The token at the end of a path, its probability, and the logits [V] that ranked it."""
        row = self.row_of(path[:-1])
        assert row is not None, "a path is taken after its parent"
        return self.ids[row][path[-1]], self.chances[row][path[-1]], self.logits[row]


def guess(logits: Tensor, num_ranks: int) -> Guesses:
    """The guesses of heads without a bias, in one transfer. logits: [depth, V]."""
    probs, ids = _rank(logits, num_ranks)
    return Guesses(*fetch_tokens(ids, probs, HEADS), logits)


def guess_biased(
    logits: Tensor,
    bias: MarkovBias,
    last: int,
    num_ranks: int,
    num_nodes: int,
    paths: tuple[Path, ...] = (),
) -> Guesses:
    """The guesses of heads with a bias behind the text's last token, depth by depth, in one transfer.

    Those of a fixed tree's `paths`; without paths those that can be among the num_nodes likeliest. logits: [depth, V].
    """
    dtype = exact_dtype(logits.device)
    tokens = to_device([last], torch.long, logits.device)  # [F], whose children are ranked
    places = torch.zeros_like(tokens)  # [F], where each stands among the children ranked before
    reached = torch.ones(1, dtype=dtype, device=logits.device)  # [F], the product along its path
    levels: list[_Level] = []
    scores: list[Tensor] = []
    for depth, row in enumerate(logits):
        if depth > 0:
            if paths:
                inner = _inner_places(paths, depth, num_ranks)
                places = to_device(inner, torch.long, logits.device)
            else:
                places = _leading(scores, num_nodes)
            tokens = levels[-1].ids.flatten()[places]
            reached = scores[-1][places]
        if not len(tokens):
            break
        biased = row + bias(depth, tokens)  # [F, V]
        probs, ids = _rank(biased, num_ranks)  # [F, ranks]
        levels.append(_Level(ids, probs, biased, places))
        scores.append((reached[:, None] * probs).flatten())
    return _to_host(levels, num_ranks)


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """The children of F nodes of a depth."""

    ids: Tensor  # [F, ranks]
    probs: Tensor  # [F, ranks]
    logits: Tensor  # [F, V]
    places: Tensor  # [F], where each node stands among the children of the level before


def _rank(logits: Tensor, num_ranks: int) -> tuple[Tensor, Tensor]:
    """The probabilities and ids [M, ranks] of the likeliest tokens, the best first, from logits [M, V]."""
    return logits.to(exact_dtype(logits.device)).softmax(-1).topk(num_ranks)


@cache
def _inner_places(paths: tuple[Path, ...], length: int, num_ranks: int) -> tuple[int, ...]:
    """Finds the places of the paths of this length that go on, among the children of the shorter ones that do."""
    inner = sorted({path[:length] for path in paths if len(path) > length})
    fronts = sorted({path[: length - 1] for path in paths if len(path) >= length})
    return tuple(fronts.index(path[:-1]) * num_ranks + path[-1] for path in inner)


def _leading(scores: list[Tensor], num_nodes: int) -> Tensor:
    """The places [F] of the last depth's children that can be among the num_nodes best of all depths.

    Only they can have children that are. On a CPU their number is known at once; elsewhere it would take a transfer.
    """
    best, places = scores[-1].topk(min(num_nodes, len(scores[-1])))
    grown = torch.cat(scores)
    if grown.is_cpu and len(grown) > num_nodes:
        return places[best >= grown.topk(num_nodes).values[-1]]
    return places


def _to_host(levels: list[_Level], num_ranks: int) -> Guesses:
    """Brings the ids, probabilities and places of all levels to the host in one transfer."""
    ids = torch.cat([torch.cat([level.ids, level.places[:, None]], dim=1) for level in levels])
    probs = torch.cat([functional.pad(level.probs, (0, 1)) for level in levels])
    host_ids, chances = fetch_tokens(ids, probs, HEADS)  # [M, ranks + 1]
    paths: list[Path] = [()]
    above = 0
    for level in levels[1:]:
        first = len(paths)
        for *_, place in host_ids[first : first + len(level.places)]:
            parent, rank = divmod(place, num_ranks)
            paths.append((*paths[above + parent], rank))
        above = first
    return Guesses(
        [row[:-1] for row in host_ids],
        [row[:-1] for row in chances],
        torch.cat([level.logits for level in levels]),
        {path: row for row, path in enumerate(paths)},
    )
