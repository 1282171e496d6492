"""Strangers' files: two are read at a time, each for a bounded time; a few more may wait."""

from threading import BoundedSemaphore

from specviz.trace.file import Trace, TraceError, read_trace

MOST_CPU_S = 1.0
_waiting, _at_once = BoundedSemaphore(32), BoundedSemaphore(2)


def read_sent(content: bytes) -> Trace:
    """The trace in bytes that a stranger sent. Raises TraceError."""
    if not _waiting.acquire(blocking=False):
        raise TraceError("must wait: too many are being read here just now, try again", "the file")
    try:
        with _at_once:
            return read_trace(content, max_cpu_s=MOST_CPU_S)
    finally:
        _waiting.release()
