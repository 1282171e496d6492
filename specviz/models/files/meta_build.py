"""Builds the model of an untrusted configuration, without its numbers and with no more parts than MOST_PARTS."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules import module as hooks

from specviz.errors import SpecvizError

MOST_PARTS = 100_000
"""The most modules, parameters and buffers; 1,024 layers of Qwen2-VL's tower have a fourth of that."""
_made = threading.local()


def build_without_numbers(make: Callable[[], nn.Module]) -> nn.Module:
    """Builds a module with `make` on the meta device. Raises SpecvizError as soon as it has too many parts."""
    _made.num_parts = 0
    try:
        with torch.device("meta"):
            return make()
    finally:
        _made.num_parts = None


def _count(*_part: object) -> None:
    if getattr(_made, "num_parts", None) is None:  # of a model that another thread builds
        return
    _made.num_parts += 1
    if _made.num_parts > MOST_PARTS:
        raise SpecvizError(f"its config.json asks for more than {MOST_PARTS:,} modules and tensors")


hooks.register_module_module_registration_hook(_count)
hooks.register_module_parameter_registration_hook(_count)
hooks.register_module_buffer_registration_hook(_count)
