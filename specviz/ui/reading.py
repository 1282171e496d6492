"""Strangers' files: two are read at a time, each for a bounded time; a few more may wait."""

from threading import BoundedSemaphore

from specviz.trace.file import TraceError, read_trace
from specviz.ui.view import View, view_of

MOST_CPU_S, MOST_SHOWN_CPU_S = 1.0, 8.0
"""For the records of a file, and for what is shown of them: a run of 5,000 steps takes half of each."""
_waiting, _at_once = BoundedSemaphore(32), BoundedSemaphore(2)


def view_sent(content: bytes) -> View:
    """The view of the trace in bytes that a stranger sent. Raises TraceError."""
    if not _waiting.acquire(blocking=False):
        raise TraceError("must wait: too many are being read here just now, try again", "the file")
    try:
        with _at_once:
            return view_of(read_trace(content, max_cpu_s=MOST_CPU_S), max_cpu_s=MOST_SHOWN_CPU_S)
    finally:
        _waiting.release()
