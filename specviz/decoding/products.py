"""Products of a few rows with a weight matrix on the CPU, by rows (`linear`) or by columns, whichever is faster.

`linear` is slow at 2 to 8 rows of float32: the same product with tokens as columns, W @ x.T, reads the weights once and
costs little more than one row. The two add in another order, so which form is taken is decided once for a machine
(`measure`), kept, and told.
"""

from __future__ import annotations

import copy
import os
import time
from bisect import bisect_left
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.nn import functional

MOST_ROWS = 8  # beyond them `linear` is as fast
SHAPES = ((512, 192), (1536, 576), (4096, 1024))  # [out, in]: a matrix of each size class, the last of 16 MB
_LARGEST = SHAPES[-1][0] * SHAPES[-1][1]
_TURNS, _QUIET = 12, 0.9  # how often each form is timed at most; the share of the time that this thread must have run
_LIMITS = tuple(2 * out * width for out, width in SHAPES[:-1])  # the most elements of a class; the last has no limit


@dataclass(frozen=True, slots=True)
class Products:
    """columns: for each size class the numbers of rows that are multiplied by columns."""

    columns: tuple[frozenset[int], ...] = (frozenset(range(1, MOST_ROWS + 1)),) * len(SHAPES)

    def __call__(self, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        """linear(x, weight, bias), x [..., in] of any number format on any device."""
        num_rows = x.numel() // x.shape[-1]
        if num_rows > MOST_ROWS or not self.applies(weight) or num_rows not in self._class_of(weight):
            return functional.linear(x, weight, bias)
        rows = x if x.dim() == 2 else x.reshape(num_rows, -1)
        if num_rows > 1:  # columns that lie in columns are six times slower
            out = torch.mm(weight, rows.contiguous().t()).t()
        else:  # one row alone goes a slow way
            out = torch.mm(weight, torch.cat([rows, rows]).t()).t()[:1]
        out = out if bias is None else out + bias
        return out if x.dim() == 2 else out.reshape(*x.shape[:-1], -1)

    @staticmethod
    def applies(weight: Tensor) -> bool:
        """Whether a few rows times this matrix may go by columns."""
        return weight.dtype == torch.float32 and weight.is_cpu

    def _class_of(self, weight: Tensor) -> frozenset[int]:
        return self.columns[bisect_left(_LIMITS, weight.numel())]

    def __str__(self) -> str:
        """The rows that go by columns, from small to large matrices: "columns 12345678 2345678 2345678"."""
        return " ".join(["columns", *("".join(map(str, sorted(rows))) or "0" for rows in self.columns)])


def read_products(text: str) -> Products:
    """What str() wrote; ValueError for any other text."""
    kind, *classes = text.split()
    columns = tuple(frozenset(map(int, rows)) - {0} for rows in classes)
    if kind != "columns" or len(columns) != len(SHAPES) or max(frozenset({0}).union(*columns)) > MOST_ROWS:
        raise ValueError(f"products must be 'columns' and {len(SHAPES)} lists of rows (got {text!r:.80})")
    return Products(columns)


@torch.inference_mode()
def measure() -> Products:
    """Both forms timed on this machine, in about half a second; all by columns where it was too busy to tell."""
    ran, passed = time.thread_time(), time.perf_counter()
    found = Products(tuple(_faster_by_columns(*shape) for shape in SHAPES))
    is_quiet = time.thread_time() - ran > _QUIET * (time.perf_counter() - passed)
    return found if is_quiet else Products()


def _faster_by_columns(out: int, width: int) -> frozenset[int]:
    """The numbers of rows for which `linear` was not the faster in every turn, each over another matrix, as in a model:
    so a busy machine does not decide by chance."""
    matrices = [nn.utils.skip_init(nn.Linear, width, out, bias=False) for _ in range(1 + _LARGEST // (out * width))]
    for matrix in matrices:
        nn.init.ones_(matrix.weight)  # neither draws random numbers
    columns, linear, turns, found = Products(), Products((frozenset(),) * len(SHAPES)), cycle(matrices), set()
    for num_rows in range(1, MOST_ROWS + 1):
        rows = torch.ones(num_rows, width)
        if any(_seconds(columns, next(turns), rows) <= _seconds(linear, next(turns), rows) for _ in range(_TURNS)):
            found.add(num_rows)
    return frozenset(found)


def _seconds(form: Products, matrix: nn.Linear, rows: Tensor) -> float:
    clock = time.perf_counter if os.name == "nt" else time.thread_time  # where it is fine enough: others do not count
    started = clock()
    form(matrix.weight, None, rows)
    return clock() - started


class _Linear(nn.Linear):
    """A linear layer whose few rows are multiplied as `products` says."""

    products: Products

    def forward(self, x: Tensor) -> Tensor:
        return self.products(self.weight, self.bias, x)


def with_products(model: nn.Module, products: Products) -> nn.Module:
    """The same model, its weights shared, whose plain linear layers multiply few rows as `products` says.

    The model itself stays as it is: each of its modules has a double that holds the very same tables of parameters and
    buffers, so a weight that changes changes in both. What is no float32 on the CPU is given back as it is.
    """
    embedding = model.get_input_embeddings().weight
    return _double(model, products, {}) if products.applies(embedding) else model


def _double(module: nn.Module, products: Products, known: dict[int, nn.Module]) -> nn.Module:
    if id(module) not in known:
        double = known[id(module)] = copy.copy(module)
        children = module._modules.items()
        double._forward_hooks = module._forward_hooks.copy()  # transformers adds some, and notes that it did
        double._modules = {name: child and _double(child, products, known) for name, child in children}
        if type(module) is nn.Linear:
            double.__class__, double.products = _Linear, products
    return known[id(module)]
