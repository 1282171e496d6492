"""A CUDA device that computes on the CPU: what crosses over to the host, and what would make it wait, is counted.

A tensor there is a wrapper that names the device; mixing it with the CPU's fails as on CUDA. A copy to pinned memory is
made only when an event behind it is waited for, so whoever reads it earlier reads something else.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from specviz.decoding.forward import replays

DEVICE = torch.device("cuda", 0)
aten = torch.ops.aten
WAITS = {  # what needs to know values before it can go on, wherever it is called from
    aten._local_scalar_dense,
    aten.item,
    aten.is_nonzero,
    aten.nonzero,
    aten.masked_select,
    aten.equal,
    aten._unique2,
}
READS = {Tensor.__bool__, Tensor.__float__, Tensor.__int__, Tensor.__index__, Tensor.item, Tensor.tolist, Tensor.numpy}
READS |= {Tensor.nonzero, torch.nonzero, Tensor.cpu}
MOVES = {aten.to, aten._to_copy}


@dataclass
class Traffic:
    """copies: to the host, each waited for once. uploads: from it. hidden: what else made the host wait, by name."""

    copies: int = 0
    uploads: int = 0
    hidden: list[str] = field(default_factory=list)
    pending: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def arrive(self) -> None:
        for host, values in self.pending:
            host.copy_(values)
        self.copies += bool(self.pending)
        self.pending.clear()

    def forget(self) -> None:
        self.copies, self.uploads = 0, 0
        self.hidden.clear()


_now = Traffic()


class There(Tensor):
    """values: the CPU's tensor that it stands for."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> There:
        own = Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), dtype=values.dtype, device=DEVICE, requires_grad=False
        )
        own.values = values
        return own

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        flat = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
        wrappers = {id(each.values): each for each in flat if isinstance(each, There)}
        strangers = [each for each in flat if not isinstance(each, There) and each.dim()]
        if strangers and op.overloadpacket is not aten.copy_:
            raise RuntimeError(f"{op} was given tensors of the CPU beside its own")
        if op.overloadpacket in WAITS or (op.overloadpacket in (aten.index, aten.index_put_) and _has_mask(args[1])):
            _now.hidden.append(str(op))
        bare_args, bare_kwargs = tree_map(lambda each: each.values if isinstance(each, There) else each, (args, kwargs))
        if op.overloadpacket in MOVES and (kwargs.get("device") or DEVICE).type == "cpu":
            _now.hidden.append("a blocking copy to the host")
            return op(*bare_args, **bare_kwargs)
        if op.overloadpacket is aten.copy_ and not isinstance(args[0], There):
            if not kwargs.get("non_blocking") and not (len(args) > 2 and args[2]):
                _now.hidden.append("a blocking copy to the host")
                return args[0].copy_(bare_args[1])
            _now.pending.append((args[0], bare_args[1].clone()))
            return args[0]
        if "device" in bare_kwargs:
            bare_kwargs["device"] = torch.device("cpu")
        bare_kwargs.pop("pin_memory", None)
        made = op(*bare_args, **bare_kwargs)

        def wrap(each):
            if not isinstance(each, Tensor):
                return each
            return wrappers[id(each)] if id(each) in wrappers else There(each)

        return tree_map(wrap, made)


def _has_mask(indices) -> bool:
    return any(isinstance(each, Tensor) and each.dtype == torch.bool for each in indices)


def _index(function, there: There, place, *value):
    """Reads or writes a part, which in C++ would ask for a driver."""
    places = place if isinstance(place, tuple) else (place,)
    if _has_mask(places):
        _now.hidden.append("a mask as an index")
    if any(isinstance(each, Tensor) and not isinstance(each, There) and each.dim() for each in (*places, *value)):
        raise RuntimeError("indices or values of the CPU beside a tensor there")
    bare = tree_map(lambda each: each.values if isinstance(each, There) else each, (place, *value))
    made = function(there.values, *bare)
    return made if made is None else There(made)


class _Factories(TorchFunctionMode):
    """Makes tensors there where the device is asked for, and lets no call reach a driver."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is Tensor.pin_memory:
            return args[0]
        if function in READS and isinstance(args[0], There):
            _now.hidden.append(function.__name__)
            made = function(args[0].values, *args[1:], **kwargs)
            return There(made) if function in (Tensor.nonzero, torch.nonzero) else made
        if function in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], There):
            return _index(function, *args)
        if function is Tensor.copy_ and all(isinstance(each, There) for each in args[:2]):
            args[0].values.copy_(args[1].values)  # which in C++ would ask for a driver, too
            return args[0]
        kwargs.pop("pin_memory", None)
        asked = kwargs.get("device") if function is not Tensor.to else _asked_of_to(args, kwargs)
        if asked is None or torch.device(asked).type != "cuda":
            return function(*args, **kwargs)
        if function is Tensor.to:
            if isinstance(args[0], There):
                bare = [each for each in args[1:] if isinstance(each, torch.dtype)]
                return args[0].to(*bare, **{key: each for key, each in kwargs.items() if key == "dtype"})
            _now.uploads += 1
            return There(args[0].clone())
        return There(function(*args, **{**kwargs, "device": torch.device("cpu")}))


def _asked_of_to(args, kwargs) -> torch.device | None:
    given = [each for each in (*args[1:2], kwargs.get("device")) if isinstance(each, torch.device | str)]
    given += [each.device for each in args[1:2] if isinstance(each, There)]
    return given[0] if given else None


class _Event:
    def __init__(self, **_: object) -> None:
        pass

    def record(self, stream: object) -> None:
        """On the stream of the device that was asked for."""
        assert stream == DEVICE

    def synchronize(self) -> None:
        _now.arrive()

    def elapsed_time(self, other: _Event) -> float:
        return 0.0


class Repeated:
    """Its forward is made anew each time, of inputs that it keeps."""

    def __init__(self, read, inputs) -> None:
        self._read, self._inputs = read, [each.clone() for each in inputs]

    def __call__(self, inputs) -> list[Tensor]:
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given)
        return [each.clone() for each in self._read(*self._inputs)]


@contextmanager
def pretended() -> Iterator[Traffic]:
    """The device, and what has crossed over so far."""
    with pytest.MonkeyPatch.context() as patch, _Factories():
        patch.setattr(torch.cuda, "Event", _Event)
        patch.setattr(torch.cuda, "current_stream", lambda device: device)
        patch.setattr(torch.cuda, "default_stream", lambda device: device)
        patch.setattr(replays, "Graph", Repeated)
        patch.setattr(replays, "IS_SAFE", True)
        patch.setattr(replays.Replays, "failure", "")
        _now.forget()
        _now.pending.clear()
        yield _now


def moved(model: nn.Module) -> nn.Module:
    """A copy of the model there."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = nn.Parameter(There(weight.detach()), requires_grad=False)
        for name, values in module._buffers.items():
            if values is not None:
                module._buffers[name] = There(values)
    return model
