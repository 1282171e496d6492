"""Products of a few rows with a weight matrix on the CPU, each in the form that is fastest on this machine.

`linear` is slow at 2 to 8 rows of float32. With tokens as columns, W @ x.T reads the weights once and costs little more
than one row. A copy packed in oneDNN's blocks takes as much memory again. It makes five rows of a large matrix as cheap
as one, and one row of bfloat16 twice as fast. The forms add in different orders. So the choice is made once for a
machine (`measure`), stored, and shown.
"""

from __future__ import annotations

import copy
import os
import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import cycle
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.weak import WeakTensorKeyDictionary

MOST_ROWS = 8
"""The most rows that are multiplied by columns; beyond them `linear` is as fast."""
MOST_PACKED = 64
"""The most rows that are multiplied with a packed copy."""
MORE = MOST_ROWS + 1
"""Stands for all numbers of rows from here to MOST_PACKED."""
SHAPES = ((512, 192), (1536, 576), (4096, 1024))
"""A matrix [out, in] of each size class; the largest takes 16 MB in float32."""
FORMATS = (torch.float32, torch.bfloat16)
MOST_BYTES = 2**30
"""The most that a model's packed copies may take: larger weights are not stored twice."""

_LARGEST = SHAPES[-1][0] * SHAPES[-1][1]
_LIMITS = tuple(2 * out * width for out, width in SHAPES[:-1])  # most elements; the last has none
_TURNS = 7  # how often each form is timed
_QUIET = 0.9  # the share of the time that this thread must have run
_GAIN = 0.9  # a form gives way to one that takes at most this share of its time
_NEVER: frozenset[int] = frozenset()
_ROWS = frozenset(range(1, MORE + 1))
_UNPACKED = (_NEVER,) * (len(FORMATS) * len(SHAPES))
_copies = WeakTensorKeyDictionary()  # weight -> (its state then, its packed copy)


@dataclass(frozen=True, slots=True)
class Products:
    """A choice of the form for each number of rows and size of matrix; a call multiplies in that form."""

    columns: tuple[frozenset[int], ...] = (frozenset(range(1, MOST_ROWS + 1)),) * len(SHAPES)
    """The numbers of rows, per size class, that are multiplied by columns, in float32."""
    packed: tuple[frozenset[int], ...] = _UNPACKED
    """The numbers of rows, per format and size class, that take a packed copy, whatever `columns` says."""

    def __call__(self, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        """The result of linear(x, weight, bias), x [..., in] of any number format on any device."""
        num_rows = x.numel() // x.shape[-1]
        if num_rows > MOST_PACKED or not self.applies(weight):
            return functional.linear(x, weight, bias)
        size = bisect_left(_LIMITS, weight.numel())
        if min(num_rows, MORE) in self._packed_rows(weight, size) and not weight.is_inference():
            packed = _packed_copy(weight)
            return torch.ops.mkldnn._linear_pointwise(x.contiguous(), packed, bias, "none", [], "")
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

    def _packed_rows(self, weight: Tensor, size: int) -> frozenset[int]:
        return self.packed[size + len(SHAPES) * FORMATS.index(weight.dtype)]

    def packed_bytes(self, model: nn.Module) -> int:
        """The bytes that packed copies of a model's linear layers take; a shared matrix counts once."""
        weights = {}
        for module in model.modules():
            if isinstance(module, nn.Linear):
                weight = module.weight
                weights[id(weight)] = weight
        total = 0
        for weight in weights.values():
            size = bisect_left(_LIMITS, weight.numel())
            if self.applies(weight) and self._packed_rows(weight, size):
                total += weight.nbytes
        return total

    def fitting(self, model: nn.Module) -> Products:
        """A choice like this one, but without packed copies if those of this model would be too large."""
        return self if self.packed_bytes(model) <= MOST_BYTES else replace(self, packed=_UNPACKED)

    def __str__(self) -> str:
        """The numbers of rows, from small to large matrices: columns, then packed in float32, then in bfloat16.

        9 stands for MORE and 0 for none:
        "columns 12345678 2345678 2345678 packed 0 3456789 3456789 0 123456789 123456789".
        """
        return f"columns {_digits(self.columns)} packed {_digits(self.packed)}"


def _digits(classes: Iterable[frozenset[int]]) -> str:
    words = ("".join(map(str, sorted(rows))) for rows in classes)
    return " ".join(word or "0" for word in words)


BY_ROWS = Products((_NEVER,) * len(SHAPES))


def _packed_copy(weight: Tensor) -> Tensor:
    """A copy in oneDNN's blocks, made again if the weight has changed since, but for changes through `.data`."""
    state = weight._version, weight.data_ptr()
    stored = _copies.get(weight)
    if stored is None or stored[0] != state:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), MOST_ROWS)
        stored = (state, packed)
        _copies[weight] = stored
    return stored[1]


def read_products(text: str) -> Products:
    """Reads what str() wrote; raises ValueError for any other text."""
    words = text.split()
    classes = tuple(frozenset(map(int, word)) - {0} for word in words if word.isdecimal())
    products = Products(classes[: len(SHAPES)], classes[len(SHAPES) :])
    is_whole = str(products).split() == words and len(classes) == len(SHAPES) + len(_UNPACKED)
    if not is_whole or any(MORE in rows for rows in products.columns):
        raise ValueError(f"products must be what str() gives of them (got {text!r:.80})")
    return products


@torch.no_grad()
def measure() -> Products | None:
    """Times all forms on this machine, in about a second; None where it was too busy to tell."""
    cpu_began = time.thread_time()
    began = time.perf_counter()
    columns = []
    for shape in SHAPES:
        by_rows = _where_faster(BY_ROWS, Products(), torch.float32, shape)
        columns.append(_ROWS - {MORE} - by_rows)
    unpacked = Products(tuple(columns))
    all_packed = replace(unpacked, packed=(_ROWS,) * len(_UNPACKED))
    packed = []
    for dtype in FORMATS:
        can_pack = _can_pack(dtype)
        for shape in SHAPES:
            faster = _where_faster(all_packed, unpacked, dtype, shape) if can_pack else _NEVER
            packed.append(faster)
    cpu_s = time.thread_time() - cpu_began
    is_quiet = cpu_s > _QUIET * (time.perf_counter() - began)
    return replace(unpacked, packed=tuple(packed)) if is_quiet else None


def _can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of torch multiplies with a packed copy on this processor, and does it right."""
    weight = torch.arange(64 * 48).view(64, 48).sin().to(dtype)
    x = torch.arange(5 * 48).view(5, 48).sin().to(dtype)
    try:
        packed = _packed_copy(weight)
        product = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return False
    right = functional.linear(x.float(), weight.float())
    return torch.allclose(product.float(), right, rtol=0.02, atol=0.1)


def _where_faster(
    form: Products, other: Products, dtype: torch.dtype, shape: tuple[int, int]
) -> frozenset[int]:
    """The numbers of rows at which `form` takes at most _GAIN of the other's time.

    Each product takes the next of several matrices, as in a model.
    """
    out, width = shape
    num_matrices = 1 + _LARGEST // (out * width)
    matrices = [torch.ones(shape, dtype=dtype) for _ in range(num_matrices)]
    for matrix in matrices:
        form(matrix, None, torch.ones(1, width, dtype=dtype))  # makes the packed copies, if any
    turns = cycle(matrices)
    faster = set()
    for num_rows in _ROWS:
        size = num_rows if num_rows < MORE else 2 * MOST_ROWS
        rows = torch.ones(size, width, dtype=dtype)
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


def with_products(model: nn.Module, products: Products) -> nn.Module:
    """A double of the model, with shared weights, that multiplies a few rows as `products` says.

    The model itself stays as it is. Each of its modules has a double with the very same tables of parameters and
    buffers: a weight that changes, changes in both. A model to which no form applies is returned as it is.
    """
    return _double(model, products, {}) if products.applies(next(model.parameters())) else model


def _double(module: nn.Module, products: Products, doubles: dict[int, nn.Module]) -> nn.Module:
    if is_parametrized(module):
        return module  # each use computes its weights, from tables that a copy would not share
    if id(module) in doubles:
        return doubles[id(module)]
    double = copy.copy(module)
    doubles[id(module)] = double
    double._forward_hooks = module._forward_hooks.copy()  # transformers adds some, and notes it
    double._modules = {}
    for name, child in module._modules.items():
        double._modules[name] = child and _double(child, products, doubles)
    if type(module) is nn.Linear:
        double.__class__ = _ProductLinear
        double.products = products
    return double
