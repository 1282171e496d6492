"""Replays: a forward over few tokens as one CUDA graph, a single launch where Python would make hundreds.

A graph repeats its operations on the same tensors. So a forward that is replayed takes everything that changes from
tensors on the device. It reads all rows that there is room for. All graphs of a process share their memory, even
the buffers of cuBLAS. So they are recorded and replayed one at a time on the default stream, and results are copied.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import TypeVar

import torch
from torch import Tensor, nn

MOST_TOKENS = 64
"""The most tokens of a replayed forward: beyond them the device works longer than Python."""
MOST_GRAPHS = 64
UNSAFE_SINCE = 2, 12
"""The torch that frees those buffers with a graph although others use them (pytorch issue 193402)."""
IS_SAFE = tuple(map(int, torch.__version__.split(".")[:2])) < UNSAFE_SINCE
_ONE_AT_A_TIME = threading.Lock()
Read = Callable[..., tuple[Tensor, ...]]
Result = TypeVar("Result")


def can_replay(device: torch.device) -> bool:
    """Whether graphs can be made on this device."""
    return device.type == "cuda" and IS_SAFE


class Replays:
    """The graphs of one reader's forwards, by the shape of the call.

    The first call of a shape is made as it is, the second one becomes a graph, and later ones replay it. All graphs go
    once the weights or rows have moved in memory.
    """

    failure = ""
    """Why a graph could not be made, in words. No reader of this process makes any then: torch does not recover."""

    def __init__(self, model: nn.Module) -> None:
        self._tables = [
            (module._parameters, name) for module in model.modules() for name in module._parameters
        ]
        self._addresses: list[int] = []
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, Graph] = {}

    def __call__(
        self, read: Read, inputs: Sequence[Tensor], shape: Hashable, rows: Tensor
    ) -> Sequence[Tensor]:
        """The result of `read(*inputs)`.

        shape: equal for calls that one graph can serve. rows: the store of keys and values.
        """
        device = rows.device
        if self.failure or torch.cuda.current_stream(device) != torch.cuda.default_stream(device):
            return read(*inputs)
        addresses = [rows.data_ptr(), rows.shape[3]]
        for table, name in self._tables:
            weight = table[name]
            if weight is not None:
                addresses.append(weight.data_ptr())
        if addresses != self._addresses:
            self._addresses = addresses
            self._seen = set()
            self._graphs = {}
        if shape in self._seen and shape not in self._graphs and len(self._graphs) < MOST_GRAPHS:
            try:
                self._graphs[shape] = Graph(read, inputs)
            except RuntimeError as error:  # the forward itself may still work
                reason = str(error).partition("\n")[0]
                Replays.failure = f"{type(error).__name__}: {reason:.80}"
        self._seen.add(shape)
        graph = self._graphs.get(shape)
        return graph(inputs) if graph else read(*inputs)


class Graph:
    """A forward that was recorded once, with inputs and outputs of its own."""

    def __init__(self, read: Read, inputs: Sequence[Tensor]) -> None:
        device = inputs[0].device
        self._inputs = [tensor.clone() for tensor in inputs]
        work = partial(read, *self._inputs)
        with _ONE_AT_A_TIME:
            pool = _first_graph(device).pool()
            self._graph, self._outputs = _record(work, device, pool)

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        with _ONE_AT_A_TIME:
            for recorded, tensor in zip(self._inputs, inputs, strict=True):
                recorded.copy_(tensor)
            self._graph.replay()
            return [tensor.clone() for tensor in self._outputs]


@cache
def _first_graph(device: torch.device) -> torch.cuda.CUDAGraph:
    """A graph of next to nothing. It stays, and with it the memory that all graphs of this device share."""
    return _record(lambda: torch.zeros(1, dtype=torch.float32, device=device), device)[0]


def _record(
    work: Callable[[], Result], device: torch.device, pool: tuple[int, int] | None = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Records `work`; returns the graph and the work's result.

    No garbage is collected meanwhile: a graph that this thread throws away spoils the one that it records.
    """
    here = torch.cuda.current_stream(device)
    aside = _stream(device)
    graph = torch.cuda.CUDAGraph()
    collects = gc.isenabled()
    gc.disable()
    try:
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            torch.cuda.current_blas_handle()  # each thread has one, which cannot be made while it records
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                out = work()
            finally:
                graph.capture_end()
        here.wait_stream(aside)
    finally:
        if collects:
            gc.enable()
    return graph, out


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which graphs are recorded: each stream has buffers of its own for matrix products."""
    return torch.cuda.Stream(device)
