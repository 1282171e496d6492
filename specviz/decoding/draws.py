"""Draws: the only randomness while generating.

Each draw has an address: role, position and node. So a seed repeats a run, and two rules can be given the same u.
`Seeded` serves the product and `Recorded` repeats the u of a trace. `Enumerating` visits every outcome with its
probability: that gives the exact distribution of the code that asks.
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
_TWO_TO_24 = float(1 << 24)
_TWO_TO_53 = float(1 << 53)
T = TypeVar("T")


class Draws:
    """A source of random draws u in [0, 1), each with an address: role, position (tokens before it) and node."""

    _on_device: Mapping[tuple[str, int, int], Tensor] = MappingProxyType({})
    """The draws that `bring` has copied: address -> u of this place in the chain and of all places behind it."""

    def bring(self, position: int, count: int, device: torch.device) -> None:
        """Copies the draws that a chain of `count` tokens behind `position` may need to the device ahead of their use.

        Sources that do not know them ahead do nothing.
        """

    def uniform(self, role: str, position: int, node: int) -> float:
        """The random draw at this address."""
        raise NotImplementedError

    def _uniforms(self, like: Tensor, role: str, position: int, node: int) -> Tensor:
        """Draws in the shape of `like`, [] or [N]; element i has the address (role, position + i, node + i)."""
        count = like.numel()
        brought = self._on_device.get((role, position, node))
        if brought is not None and brought.device == like.device and len(brought) >= count:
            return brought[:count].reshape(like.shape)
        u = self._draw_each(count, role, position, node)
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
        """Token ids [] or [N], drawn from rows [V] or [N, V] by inverse CDF.

        A row need not add up to 1, only to more than 0.
        """
        cdf = probs.cumsum(-1, dtype=exact_dtype(probs.device))
        if probs.dim() == 1 and probs.is_cpu:  # Python's floats are faster than a tensor per number
            u = self._draw_each(1, role, position, node)[0]
            total = float(cdf[-1])
            point = min(u * total, math.nextafter(total, 0.0))
            token = torch.searchsorted(cdf, point, right=True)
        else:
            total = cdf[..., -1:]
            u = self._uniforms(cdf[..., 0], role, position, node)[..., None]
            just_below = torch.nextafter(total, torch.zeros_like(total))
            point = torch.minimum(u * total, just_below)
            token = torch.searchsorted(cdf, point, right=True).squeeze(-1)
        return token.clamp_max(probs.shape[-1] - 1)  # not-a-number gives V


class Seeded(Draws):
    """Draws that are a hash of (seed, role, position, node): the same on every device and in any order."""

    def __init__(self, seed: int) -> None:
        self._key = struct.pack("<Q", seed)

    def uniform(self, role: str, position: int, node: int) -> float:
        address = struct.pack("<Bqq", _ROLES[role], position, node)
        digest = hashlib.blake2b(address, digest_size=8, key=self._key).digest()
        return (int.from_bytes(digest, "little") >> 11) / _TWO_TO_53

    def bring(self, position: int, count: int, device: torch.device) -> None:
        """Copies a chain's draws to a CUDA device in one transfer; other devices need none."""
        if device.type != "cuda":
            return
        draft = self._draw_each(count, DRAFT, position, 0)
        accept = self._draw_each(count, ACCEPT, position, 0)
        final = self.uniform(FINAL, position, ROOT)
        u = to_device([*draft, *accept, final], exact_dtype(device), device)  # [2 count + 1]
        on_device = {(FINAL, position, ROOT): u[-1:]}
        for i in range(count):
            on_device[DRAFT, position + i, i] = u[i:count]
            on_device[ACCEPT, position + i, i] = u[count + i : -1]
        self._on_device = on_device


def seed_of(seed: int, number: int) -> int:
    """The seed of text `number` in a run with this seed; text 0 has the seed itself.

    No two runs share one if their seeds are below 2**32.
    """
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
    """Draws that follow a script of choices and note the alternatives. `enumerate_outcomes` makes them."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.weight = 1.0  # the probability of all choices so far
        self.choices: list[int] = []
        self.untried: list[list[int]] = []  # per choice behind the script: its alternatives

    def _choose(self, weights: Sequence[float]) -> int:
        depth = len(self.choices)
        if depth < len(self._script):
            choice = self._script[depth]
        else:
            possible = [outcome for outcome, weight in enumerate(weights) if weight > 0]
            choice = possible[0]
            self.untried.append(possible[1:])
        self.weight *= weights[choice]
        self.choices.append(choice)
        return choice

    def below(
        self, threshold: Tensor, role: str, position: int, node: int
    ) -> tuple[Tensor, Tensor]:
        u = []
        passed = []
        for value in threshold.reshape(-1).tolist():
            chance = min(1.0, max(0.0, value))
            is_below = self._choose([chance, 1.0 - chance]) == 0
            u.append(chance / 2 if is_below else (1 + chance) / 2)
            passed.append(is_below)
        shape = threshold.shape
        draws = torch.tensor(u, dtype=torch.float64).reshape(shape)
        return draws, torch.tensor(passed).reshape(shape)

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
