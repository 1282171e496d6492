"""The few things that depend on the kind of device: transfers without a hidden synchronise, and a phase clock.

On CUDA, `to_device` and `to_host` go through pinned memory and wait on an event of their own. So a whole step can run
under torch.cuda.set_sync_debug_mode("error"). Nothing here knows a model.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from specviz.decoding.turns import clock, waited_s


def exact_dtype(device: torch.device) -> torch.dtype:
    """The widest float of a device, for cumulative sums and comparisons with u."""
    return torch.float32 if device.type == "mps" else torch.float64


def to_device(values: Sequence, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Makes a tensor of host values on the device; nothing waits for the copy."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype).pin_memory().to(device, non_blocking=True)


def to_host(values: Tensor) -> Tensor:
    """Waits for `values` alone and returns them on the CPU. No other function copies from a device."""
    if values.device.type != "cuda":
        return values.cpu()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(values.device))
    done.synchronize()
    return host


def argmax(rows: Tensor) -> Tensor:
    """The place [...] of the largest number of each row [..., V]: the first of equal ones, or of not-a-number.

    On a CPU numpy finds it in a sixth of torch's time.
    """
    if not rows.is_cpu:
        return rows.argmax(-1)
    if rows.dtype == torch.bfloat16:
        rows = rows.float()  # numpy does not know it
    return torch.from_numpy(np.asarray(rows.detach().numpy().argmax(-1)))


def without_plans(device: torch.device) -> None:
    """Tells torch not to attend with cuDNN, which makes a plan for every new length of a text."""
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on any device: torch has its own error for CUDA only."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    words = str(error)
    return "out of memory" in words or "t allocate memory" in words


class PhaseClock:
    """A clock with marks between the phases of one step. Time in which others had the engine does not count.

    On CUDA the marks are events, read after the step's last transfer.
    """

    __slots__ = ("_device", "_marks", "_waited_s")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list = []
        self._waited_s: list[float] = []  # at each mark, where the marks are events
        self.mark()

    def mark(self) -> None:
        if self._device.type != "cuda":
            self._marks.append(clock())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._marks.append(event)
        self._waited_s.append(waited_s())

    def phases_ms(self) -> list[float]:
        """Milliseconds between consecutive marks."""
        pairs = list(pairwise(self._marks))
        if self._device.type != "cuda":
            return [(after - before) * 1e3 for before, after in pairs]
        self._marks[-1].synchronize()
        elapsed_ms = [before.elapsed_time(after) for before, after in pairs]
        away_ms = [(after - before) * 1e3 for before, after in pairwise(self._waited_s)]
        # Never below 0: the device may have worked while others had the engine.
        return [max(0.0, ms - away) for ms, away in zip(elapsed_ms, away_ms, strict=True)]
