"""One acceptance walk for synthetic traces, in plain Python: laws, tokens and darts that make a wanted verdict true."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence

from specviz.trace import ROOT, round9

Distribution = list[float]


class Walk:
    """One acceptance walk over a tree of nodes, with laws, tokens and darts drawn so that `accept` comes true."""

    def __init__(
        self,
        chance: random.Random,
        width: int,
        parents: Sequence[int],
        accept: Collection[int],
        num_scratch: int,
        point_mass: bool,
    ) -> None:
        self._chance, self.parents, self.point_mass = chance, tuple(parents), point_mass
        self.depths: list[int] = []
        for parent in parents:
            self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
        self.p = {node: random_distribution(chance, width) for node in range(ROOT, len(parents))}
        self.q = {node: mix(distribution, random_distribution(chance, width)) for node, distribution in self.p.items()}
        judgeable = len(parents) - num_scratch
        self.tokens: list[int] = [self._any(node) for node in range(len(parents))]
        self.statuses = ["ignored" if node < judgeable else "scratch" for node in range(len(parents))]
        self.judged: dict[int, tuple[float, float, float]] = {}
        self.rows: list[tuple[int, int | None, Distribution, Distribution | None]] = []
        self.path: list[int] = []
        self.scores: list[tuple[float, float, float]] = []
        node, distribution = ROOT, self.p[ROOT]
        while (taken := self._level(node, judgeable, accept)) is not None:
            kept, distribution = taken
            if kept is None:
                break
            node = kept
        rejected = bool(self.rows) and self.statuses[self.rows[-1][1]] == "rejected"
        self.kind = "resampled" if rejected else "bonus" if judgeable else "plain"
        if not rejected:
            distribution = self.p[node]
        self.final = chance.choices(range(width), distribution)[0]
        self._score(node, self.final)
        self.rows.append((node, None, distribution, None))

    def _level(self, node: int, judgeable: int, accept: Collection[int]) -> tuple[int | None, Distribution] | None:
        """Judge the children of `node`: (the kept one or None, what is left of p); None when it has no children."""
        children = [child for child in range(judgeable) if self.parents[child] == node]
        if not children:
            return None
        distribution, used = self.p[node], set()
        for child in children:
            keep = child in accept
            token = self._fitting(distribution, self.q[node], keep, used)
            q = one_hot(token, len(distribution)) if self.point_mass else self.q[node]
            used.add(token)
            chance = min(1.0, distribution[token] / q[token])
            u = (
                self._chance.uniform(0, chance * 0.99)
                if keep
                else self._chance.uniform(chance + (1 - chance) * 0.01, 1)
            )
            self.tokens[child], self.judged[child] = token, (distribution[token], chance, u)
            self.statuses[child] = "accepted" if keep else "rejected"
            self.rows.append((node, child, distribution, None if self.point_mass else q))
            if keep:
                self.path.append(child)
                self._score(node, token)
                return child, distribution
            distribution = residual(distribution, q)
        return None, distribution

    def _fitting(self, distribution: Distribution, q: Distribution, keep: bool, used: Collection[int]) -> int:
        """A token that the verdict wanted here can befall: a fair chance of it, and no sibling's."""
        q = [1.0] * len(distribution) if self.point_mass else q
        chances = {i: min(1.0, distribution[i] / q[i]) for i in range(len(distribution)) if i not in used}
        fitting = [i for i, chance in chances.items() if (chance > 0.3 if keep else chance < 0.9)]
        best = max(chances, key=lambda i: chances[i] if keep else -chances[i])
        return self._chance.choices(fitting, [q[i] for i in fitting])[0] if fitting else best

    def _any(self, node: int) -> int:
        distribution = self.q[self.parents[node]]
        return self._chance.choices(range(len(distribution)), distribution)[0]

    def _score(self, node: int, token: int) -> None:
        p, q = self.p[node], self.q[node]
        self.scores.append((p[token], q[token], overlap(p, q)))

    def node_numbers(self, node: int) -> tuple[float | None, float | None, tuple[float | None, ...]]:
        """p and q of the node's token at its parent, and (p_judged, accept_prob, u)."""
        parent, token = self.parents[node], self.tokens[node]
        if self.statuses[node] == "scratch":
            return None, None, (None, None, None)
        q = None if self.point_mass else round9(self.q[parent][token])
        judged = self.judged.get(node, (None, None, None))
        return round9(self.p[parent][token]), q, tuple(map(round9, judged))


def residual(p: Distribution, q: Distribution) -> Distribution:
    rest = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
    return [x / sum(rest) for x in rest] if sum(rest) > 0 else p


def overlap(p: Distribution, q: Distribution) -> float:
    return sum(map(min, p, q))


def entropy(distribution: Distribution) -> float:
    return -sum(x * math.log(x) for x in distribution if x > 0)


def one_hot(token: int, width: int) -> Distribution:
    return [float(i == token) for i in range(width)]


def random_distribution(chance: random.Random, width: int) -> Distribution:
    weights = [chance.expovariate(1.0) ** 3 + 1e-4 for _ in range(width)]
    return [weight / sum(weights) for weight in weights]


def mix(p: Distribution, other: Distribution) -> Distribution:
    return [0.6 * a + 0.4 * b for a, b in zip(p, other, strict=True)]
