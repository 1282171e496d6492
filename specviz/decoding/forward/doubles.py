"""Doubles of modules: the same structure over the very same weights, for a change that the original must not see."""

import copy
from collections.abc import Callable

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
)


def double_of(module: nn.Module, change: Callable[[nn.Module], None]) -> nn.Module:
    """A double of a module and of all modules in it, each changed. Hooks of a double are its own."""
    return _double(module, change, {})


def _double(
    module: nn.Module, change: Callable[[nn.Module], None], doubles: dict[int, nn.Module]
) -> nn.Module:
    if is_parametrized(module):
        return module  # each use computes its weights, from tables that a copy would not share
    if id(module) in doubles:
        return doubles[id(module)]
    double = copy.copy(module)
    doubles[id(module)] = double
    for name in _HOOKS:  # transformers adds some, and notes it
        setattr(double, name, copy.copy(getattr(module, name)))
    double._modules = {}
    for name, child in module._modules.items():
        double._modules[name] = child and _double(child, change, doubles)
    change(double)
    return double
