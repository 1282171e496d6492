"""Draws: the only randomness while generating.

Every draw has an address (role, position, node): a run is repeated by its seed, and two rules can be given the very
same u. `Seeded` serves the product, `Recorded` replays the u of a trace, `Enumerating` walks every outcome with its
probability and so gives the exact law of the code that asks.
"""

import hashlib
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor

from specviz.decoding.device import exact_dtype, to_device
from specviz.decoding.draft import ROOT

DRAFT, ACCEPT, FINAL = "draft", "accept", "final"
_ROLES = {DRAFT: 0, ACCEPT: 1, FINAL: 2}
_TWO_TO_24, _TWO_TO_53 = float(1 << 24), float(1 << 53)
T = TypeVar("T")


class Draws:
    """A source of u in [0, 1), addressed by role, position (tokens before the draw) and node."""

    _on_device: Mapping[tuple[str, int, int], Tensor] = MappingProxyType(
        {}
    )  # the u brought there, from an address on

    def bring(self, position: int, count: int, device: torch.device) -> None:
        """Takes ahead to the device what a chain of `count` tokens behind `position` may need, where that is known."""

    def uniform(self, role: str, position: int, node: int) -> float:
        raise NotImplementedError

    def _uniforms(self, like: Tensor, role: str, position: int, node: int) -> Tensor:
        """One u per element of `like` [] or [N]; element i has the address (role, position + i, node + i)."""
        brought = self._on_device.get((role, position, node))
        if brought is not None and brought.device == like.device and len(brought) >= like.numel():
            return brought[: like.numel()].reshape(like.shape)
        u = self._draw_each(like.numel(), role, position, node)
        dtype = exact_dtype(like.device)
        if dtype == torch.float32:  # never round up to 1
            u = [int(value * _TWO_TO_24) / _TWO_TO_24 for value in u]
        return to_device(u, dtype, like.device).reshape(like.shape)

    def _draw_each(self, count: int, role: str, position: int, node: int) -> list[float]:
        return [self.uniform(role, position + i, node + i) for i in range(count)]

    def below(
        self, threshold: Tensor, role: str, position: int, node: int
    ) -> tuple[Tensor, Tensor]:
        """(u, u < threshold) for one threshold [] or a chain's thresholds [N]."""
        u = self._uniforms(threshold, role, position, node)
        return u, u < threshold

    def sample(self, probs: Tensor, role: str, position: int, node: int) -> Tensor:
        """Token ids [] or [N] by inverse CDF from rows [V] or [N, V], which must add up to more than 0."""
        cdf = probs.cumsum(-1, dtype=exact_dtype(probs.device))
        if (
            probs.dim() == 1 and probs.is_cpu
        ):  # the same arithmetic, without an operation of torch for each number
            u, total = self._draw_each(1, role, position, node)[0], float(cdf[-1])
            point = min(u * total, math.nextafter(total, 0.0))
            return torch.searchsorted(cdf, point, right=True).clamp_max(len(cdf) - 1)  # NaN gives V
        total = cdf[..., -1:]
        u = self._uniforms(cdf[..., 0], role, position, node)[..., None]
        point = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
        return (
            torch.searchsorted(cdf, point, right=True).squeeze(-1).clamp_max(probs.shape[-1] - 1)
        )  # NaN gives V


class Seeded(Draws):
    """Counter-based: u is a hash of (seed, role, position, node), the same on every device and in any order."""

    def __init__(self, seed: int) -> None:
        self._key = struct.pack("<Q", seed)

    def uniform(self, role: str, position: int, node: int) -> float:
        address = struct.pack("<Bqq", _ROLES[role], position, node)
        digest = hashlib.blake2b(address, digest_size=8, key=self._key).digest()
        return (int.from_bytes(digest, "little") >> 11) / _TWO_TO_53

    def bring(self, position: int, count: int, device: torch.device) -> None:
        """On CUDA, in one transfer."""
        if device.type != "cuda":
            return
        u = [
            *self._draw_each(count, DRAFT, position, 0),
            *self._draw_each(count, ACCEPT, position, 0),
        ]
        u = to_device([*u, self.uniform(FINAL, position, ROOT)], exact_dtype(device), device)
        chains = ((DRAFT, u[:count]), (ACCEPT, u[count:-1]))
        self._on_device = {
            (role, position + i, i): row[i:] for role, row in chains for i in range(count)
        }
        self._on_device[FINAL, position, ROOT] = u[-1:]


def seed_of(seed: int, number: int) -> int:
    """The seed of text `number` in a run with this seed; of text 0 the seed itself. No two runs share one if their
    seeds are below 2**32."""
    return (seed + (number << 32)) % (1 << 64)


class BatchDraws(Draws):
    """Draws for a batch of texts: row i comes from `sources[i]`, `starts[i]` tokens behind the position asked for."""

    def __init__(self, sources: Sequence[Draws], starts: Sequence[int]) -> None:
        self._texts = tuple(zip(sources, starts, strict=True))

    def _draw_each(self, count: int, role: str, position: int, node: int) -> list[float]:
        assert count == len(self._texts), "one row per text"
        return [source.uniform(role, start + position, node) for source, start in self._texts]


class Recorded(Draws):
    """The acceptance u of a recorded run, by (position, node); every other draw comes from `otherwise`."""

    def __init__(self, accept_u: Mapping[tuple[int, int], float], otherwise: Draws) -> None:
        self._accept_u = accept_u
        self._otherwise = otherwise

    def uniform(self, role: str, position: int, node: int) -> float:
        if role == ACCEPT and (position, node) in self._accept_u:
            return self._accept_u[position, node]
        return self._otherwise.uniform(role, position, node)


class Enumerating(Draws):
    """Follows a script of choices and remembers the alternatives it passed. Made by `enumerate_outcomes`."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.weight = 1.0
        self.choices: list[int] = []
        self.untried: list[list[int]] = []

    def _choose(self, weights: Sequence[float]) -> int:
        possible = [outcome for outcome, weight in enumerate(weights) if weight > 0]
        depth = len(self.choices)
        choice = self._script[depth] if depth < len(self._script) else possible[0]
        if depth >= len(self._script):
            self.untried.append(possible[1:])
        self.weight *= weights[choice]
        self.choices.append(choice)
        return choice

    def below(
        self, threshold: Tensor, role: str, position: int, node: int
    ) -> tuple[Tensor, Tensor]:
        chances = [min(1.0, max(0.0, float(value))) for value in threshold.reshape(-1)]
        taken = [self._choose([chance, 1.0 - chance]) == 0 for chance in chances]
        u = [
            chance / 2 if kept else (1 + chance) / 2
            for chance, kept in zip(chances, taken, strict=True)
        ]
        shape = threshold.shape
        return torch.tensor(u, dtype=torch.float64).reshape(shape), torch.tensor(taken).reshape(
            shape
        )

    def sample(self, probs: Tensor, role: str, position: int, node: int) -> Tensor:
        rows = probs.double().reshape(-1, probs.shape[-1])
        tokens = [self._choose((row / row.sum()).tolist()) for row in rows]
        return torch.tensor(tokens).reshape(probs.shape[:-1])


def enumerate_outcomes(experiment: Callable[[Draws], T]) -> Iterator[tuple[float, T]]:
    """Every (probability, result) of `experiment(draws)`, which must be a function of its draws alone."""
    stack: list[list[int]] = [[]]
    while stack:
        script = stack.pop()
        draws = Enumerating(script)
        result = experiment(draws)
        yield draws.weight, result
        for depth, untried in enumerate(draws.untried, start=len(script)):
            prefix = draws.choices[:depth]
            stack.extend([*prefix, choice] for choice in untried)


def distribution(experiment: Callable[[Draws], T]) -> dict[T, float]:
    """The exact distribution of `experiment(draws)`: result -> probability."""
    outcomes: dict[T, list[float]] = {}
    for weight, result in enumerate_outcomes(experiment):
        outcomes.setdefault(result, []).append(weight)
    return {result: math.fsum(weights) for result, weights in outcomes.items()}
