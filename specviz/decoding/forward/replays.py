"""Replays: a forward over few tokens as one CUDA graph, a single launch where Python would make hundreds.

A graph does again, with the same tensors, what it was made of. So a forward that is to be replayed takes everything
that changes from call to call from tensors on the device, and reads all the rows that there is room for.

All graphs of a process share their memory, buffers of cuBLAS too. So one at a time is recorded or replayed, and what it
gives is copied before another is, all on the device's default stream; whoever works on another one has none.
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
"""Of one forward that is replayed: beyond, the device works longer than Python."""
MOST_GRAPHS = 64
UNSAFE_SINCE = 2, 12
"""The torch whose graphs, when thrown away, take those buffers along while others use them (pytorch issue 193402)."""
IS_SAFE = tuple(map(int, torch.__version__.split(".")[:2])) < UNSAFE_SINCE
_ONE_AT_A_TIME = threading.Lock()
Read = Callable[..., tuple[Tensor, ...]]
Result = TypeVar("Result")


def can_replay(device: torch.device) -> bool:
    return device.type == "cuda" and IS_SAFE


class Replays:
    """Graphs of one reader's forwards, by the shape of the call. The first call of a shape is made as it is, the second
    becomes a graph, those that follow replay it, as long as tables and rows lie where they lay.

    failure: what came in the way of a graph, in words. From then on no reader of this process has any: torch does not
    recover from it.
    """

    failure = ""

    def __init__(self, model: nn.Module) -> None:
        self._tables = [
            (each._parameters, name) for each in model.modules() for name in each._parameters
        ]
        self._lies: list[int] = []
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, Graph] = {}

    def __call__(
        self, read: Read, inputs: Sequence[Tensor], shape: Hashable, rows: Tensor
    ) -> Sequence[Tensor]:
        """What `read(*inputs)` gives. shape: what tells apart calls that one graph cannot serve; rows: the store."""
        device = rows.device
        if self.failure or torch.cuda.current_stream(device) != torch.cuda.default_stream(device):
            return read(*inputs)
        tables = (table[name] for table, name in self._tables)
        lies = [
            rows.data_ptr(),
            rows.shape[3],
            *(each.data_ptr() for each in tables if each is not None),
        ]
        if lies != self._lies:
            self._lies, self._seen, self._graphs = lies, set(), {}
        if shape in self._seen and shape not in self._graphs and len(self._graphs) < MOST_GRAPHS:
            try:
                self._graphs[shape] = Graph(read, inputs)
            except RuntimeError as error:  # the forward itself may still work
                Replays.failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.80}"
        self._seen.add(shape)
        graph = self._graphs.get(shape)
        return graph(inputs) if graph else read(*inputs)


class Graph:
    """A forward that was recorded once, with inputs and outputs of its own."""

    def __init__(self, read: Read, inputs: Sequence[Tensor]) -> None:
        self._inputs, device = [each.clone() for each in inputs], inputs[0].device
        with _ONE_AT_A_TIME:
            self._graph, self._outputs = _record(
                partial(read, *self._inputs), device, _first_graph(device).pool()
            )

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        with _ONE_AT_A_TIME:
            for own, given in zip(self._inputs, inputs, strict=True):
                own.copy_(given)
            self._graph.replay()
            return [each.clone() for each in self._outputs]


@cache
def _first_graph(device: torch.device) -> torch.cuda.CUDAGraph:
    """Of next to nothing; it stays, and with it the memory that all graphs of this device share."""
    return _record(lambda: torch.zeros(1, device=device), device)[0]


def _record(
    work: Callable[[], Result], device: torch.device, pool: tuple[int, int] | None = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """The graph and what `work` gave. No garbage is collected meanwhile: a graph that is thrown away by the thread that
    records another spoils that one."""
    here, aside, graph = torch.cuda.current_stream(device), _stream(device), torch.cuda.CUDAGraph()
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
    """The one on which graphs are recorded: each stream has buffers of its own for matrix products."""
    return torch.cuda.Stream(device)
