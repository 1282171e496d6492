"""Replays: a forward over few tokens as one CUDA graph, a single launch where Python would make hundreds.

A graph does again, with the same tensors, what it was made of. So a forward that is to be replayed takes everything
that changes from call to call from tensors on the device, and reads all the rows that there is room for.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

MOST_TOKENS = 64
"""Of one forward that is replayed: beyond, the device works longer than Python."""
MOST_GRAPHS = 64

_RECORDING = threading.Lock()
"""One at a time: they share a stream, and nothing else may come to a stream that is being recorded."""
Read = Callable[..., tuple[Tensor, ...]]


class Replays:
    """Graphs of one reader's forwards, by the shape of the call. The first call of a shape is made as it is, the second
    becomes a graph, those that follow replay it, as long as tables and rows lie where they lay.

    failure: what came in the way of a graph, in words; from then on no more are made.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tables = [(each._parameters, name) for each in model.modules() for name in each._parameters]
        self._lies: list[int] = []
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, Graph] = {}
        self.failure = ""

    def __call__(self, read: Read, inputs: Sequence[Tensor], shape: Hashable, rows: Tensor) -> Sequence[Tensor]:
        """What `read(*inputs)` gives. shape: what tells apart calls that one graph cannot serve; rows: the store."""
        tables = (table[name] for table, name in self._tables)
        lies = [rows.data_ptr(), *(each.data_ptr() for each in tables if each is not None)]
        if lies != self._lies:
            self._lies, self._seen, self._graphs = lies, set(), {}
        if shape in self._seen and shape not in self._graphs and len(self._graphs) < MOST_GRAPHS and not self.failure:
            try:
                self._graphs[shape] = Graph(read, inputs, next(iter(self._graphs.values()), None))
            except RuntimeError as error:  # the forward itself may still work
                self.failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.80}"
        self._seen.add(shape)
        graph = self._graphs.get(shape)
        return graph(inputs) if graph else read(*inputs)


class Graph:
    """A forward that was recorded once, with inputs and outputs of its own. beside: one that shares memory with it."""

    def __init__(self, read: Read, inputs: Sequence[Tensor], beside: Graph | None) -> None:
        self._inputs = [each.clone() for each in inputs]
        here, aside = torch.cuda.current_stream(inputs[0].device), _stream(inputs[0].device)
        self._graph = torch.cuda.CUDAGraph()
        with _RECORDING, _without_collection():
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                self._graph.capture_begin(beside and beside._graph.pool(), capture_error_mode="thread_local")
                try:
                    self._outputs = read(*self._inputs)
                finally:
                    self._graph.capture_end()
            here.wait_stream(aside)

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given)
        self._graph.replay()  # on the stream of whoever calls, so that no two run at once
        return [each.clone() for each in self._outputs]


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The one on which graphs are made: each has buffers of its own for matrix products."""
    return torch.cuda.Stream(device)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Python collects no garbage: a graph that is thrown away while another is made spoils that one."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
