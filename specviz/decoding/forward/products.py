"""Products of a few rows with a weight matrix on the CPU, each in the form that is fastest on this machine.

`linear` is slow at 2 to 8 rows of float32. Compiled code (`quick.cpp`) reads the weights once for a few rows, at the
memory's speed. Where there is none, tokens become columns: W @ x.T costs little more than one row. The forms add in
different orders. So the choice is made once for a machine (`measure`), stored, and shown.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

from specviz.decoding.forward.compiled import FORMATS, Compiled
from specviz.decoding.forward.doubles import double_of

MOST_ROWS = 8
"""The most rows that are multiplied by columns; beyond them `linear` is as fast."""
SHAPES = ((512, 192), (1536, 576), (4096, 1024))
"""A matrix [out, in] of each size class; the largest takes 16 MB in float32."""

_LARGEST = SHAPES[-1][0] * SHAPES[-1][1]
_LIMITS = tuple(2 * out * width for out, width in SHAPES[:-1])  # most elements; the last has none
_TURNS = 7  # how often each form is timed
_QUIET = 0.9  # the share of the time that this thread must have run
_GAIN = 0.9  # a form gives way to one that takes at most this share of its time
_NEVER: frozenset[int] = frozenset()
_ROWS = frozenset(range(1, MOST_ROWS + 1))


@dataclass(frozen=True, slots=True)
class Products:
    """A choice of the form for each number of rows and size of matrix; a call multiplies in that form."""

    columns: tuple[frozenset[int], ...] = (_ROWS,) * len(SHAPES)
    """The numbers of rows, per size class, that are multiplied by columns, in float32."""
    compiled: Compiled | None = None
    """Compiled code, which multiplies a few rows of float32 and bfloat16, whatever `columns` says."""
    why_not_compiled: str = "none was built"

    def __call__(self, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        """The result of linear(x, weight, bias), x [..., in] of any number format on any device."""
        num_rows = x.numel() // x.shape[-1]
        if not self.applies(weight):
            return functional.linear(x, weight, bias)
        if self.compiled is not None and self.compiled.can_multiply(weight, bias, x, num_rows):
            return self.compiled.product(weight, bias, x)
        size = bisect_left(_LIMITS, weight.numel())
        if weight.dtype != torch.float32 or num_rows not in self.columns[size]:
            return functional.linear(x, weight, bias)
        rows = x if x.dim() == 2 else x.reshape(num_rows, -1)
        if num_rows > 1:  # a column whose numbers lie apart is six times slower
            out = torch.mm(weight, rows.contiguous().t()).t()
        else:  # one row alone takes a slow path
            out = torch.mm(weight, torch.cat([rows, rows]).t()).t()[:1]
        if bias is not None:
            out = out + bias
        return out if x.dim() == 2 else out.reshape(*x.shape[:-1], -1)

    @staticmethod
    def applies(weight: Tensor) -> bool:
        """Whether this matrix may be multiplied in another form than by rows; quantised ones are of other types."""
        return weight.is_cpu and weight.dtype in FORMATS and type(weight) in (Tensor, nn.Parameter)

    def __str__(self) -> str:
        """The numbers of rows by columns, from small to large matrices, 0 for none: "columns 12345678 2345678 0".

        " compiled" follows where compiled code takes their place.
        """
        return f"columns {_digits(self.columns)}{' compiled' if self.compiled else ''}"


def _digits(classes: Iterable[frozenset[int]]) -> str:
    words = ("".join(map(str, sorted(rows))) for rows in classes)
    return " ".join(word or "0" for word in words)


BY_ROWS = Products((_NEVER,) * len(SHAPES))


def read_products(text: str) -> Products:
    """Reads what str() wrote; raises ValueError for any other text."""
    words = text.split()
    products = Products(
        tuple(frozenset(map(int, word)) - {0} for word in words if word.isdecimal())
    )
    is_whole = str(products).split() == words and len(products.columns) == len(SHAPES)
    if not is_whole or not all(rows <= _ROWS for rows in products.columns):
        raise ValueError(f"products must be what str() gives of them (got {text!r:.80})")
    return products


@torch.no_grad()
def measure() -> Products | None:
    """Times both forms of torch on this machine, in half a second; None where it was too busy to tell."""
    cpu_began = time.thread_time()
    began = time.perf_counter()
    columns = tuple(_ROWS - _where_faster(BY_ROWS, Products(), shape) for shape in SHAPES)
    cpu_s = time.thread_time() - cpu_began
    is_quiet = cpu_s > _QUIET * (time.perf_counter() - began)
    return Products(columns) if is_quiet else None


def _where_faster(form: Products, other: Products, shape: tuple[int, int]) -> frozenset[int]:
    """The numbers of rows at which `form` takes at most _GAIN of the other's time.

    Each product takes the next of several matrices, as in a model.
    """
    out, width = shape
    num_matrices = 1 + _LARGEST // (out * width)
    turns = cycle([torch.ones(shape, dtype=torch.float32) for _ in range(num_matrices)])
    faster = set()
    for num_rows in _ROWS:
        rows = torch.ones(num_rows, width, dtype=torch.float32)
        form_s = []
        other_s = []
        for _ in range(_TURNS):
            form_s.append(_seconds(form, next(turns), rows))
            other_s.append(_seconds(other, next(turns), rows))
        if median(form_s) <= _GAIN * median(other_s):
            faster.add(num_rows)
    return frozenset(faster)


def _seconds(form: Products, matrix: Tensor, rows: Tensor) -> float:
    """The time of one product; on Windows a thread's own clock is too coarse for it."""
    clock = time.perf_counter if os.name == "nt" else time.thread_time
    started = clock()
    form(matrix, None, rows)
    return clock() - started


class _ProductLinear(nn.Linear):
    """A linear layer that multiplies a few rows as `products` says."""

    products: Products

    def forward(self, x: Tensor) -> Tensor:
        out = self.products(self.weight, self.bias, x)
        return out.contiguous()  # some models view numbers in pairs


def products_of(linear: nn.Linear) -> Products:
    """How a linear layer multiplies: by rows, unless `with_products` was told otherwise."""
    return linear.products if isinstance(linear, _ProductLinear) else BY_ROWS


def with_products(model: nn.Module, products: Products) -> nn.Module:
    """A double of the model, with shared weights, that multiplies a few rows as `products` says.

    The model itself stays as it is. Each of its modules has a double with the very same tables of parameters and
    buffers: a weight that changes, changes in both. A model to which no form applies is returned as it is.
    """
    if not products.applies(next(model.parameters())):
        return model

    def multiply(double: nn.Module) -> None:
        if type(double) is nn.Linear:
            double.__class__ = _ProductLinear
            double.products = products

    return double_of(model, multiply)
