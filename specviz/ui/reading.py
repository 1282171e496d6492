"""Strangers' files: few are read at a time, and a large one first in a process that can be stopped."""

import subprocess
import sys
from pathlib import Path
from threading import BoundedSemaphore

import specviz
from specviz.trace.file import MAX_UNPACKED_BYTES, MAX_UPLOAD_BYTES, Trace, TraceError, read_trace
from specviz.trace.lines import unpack

MOST_CPU_S, MOST_WALL_S, MOST_MEMORY = 2, 60, 2 << 30
SMALL = 1 << 20
"""Bytes unpacked; whatever they hold is read in a tenth of a second."""
_TRIAL = """
import sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, ({cpu_s}, {cpu_s}))
    resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
except ImportError:
    pass  # there the time alone is limited
sys.path.insert(0, {folder!r})
from specviz.trace.file import TraceError, read_trace
try:
    read_trace(sys.stdin.buffer, max_bytes=None)
except TraceError as error:
    sys.stdout.buffer.write(str(error).encode("utf-8", "replace"))
"""
_waiting, _at_once = BoundedSemaphore(32), BoundedSemaphore(2)


def read_sent(content: bytes) -> Trace:
    """The trace in bytes that a stranger sent. Raises TraceError."""
    if not _waiting.acquire(blocking=False):
        raise TraceError("must wait: too many are being read here just now, try again", "the file")
    try:
        with _at_once:
            unpacked = b"".join(unpack(content, MAX_UPLOAD_BYTES, MAX_UNPACKED_BYTES))
            if len(unpacked) > SMALL:
                _try_reading(unpacked)
            return read_trace(unpacked, max_bytes=None)
    finally:
        _waiting.release()


def _try_reading(content: bytes) -> None:
    folder = str(Path(specviz.__file__).parents[1])
    code = _TRIAL.format(cpu_s=MOST_CPU_S, memory=MOST_MEMORY, folder=folder)
    try:
        tried = subprocess.run(
            [sys.executable, "-I", "-c", code], input=content, capture_output=True, timeout=MOST_WALL_S
        )
    except subprocess.TimeoutExpired:
        raise TraceError(f"takes more than {MOST_WALL_S} s to read", "the file") from None
    if tried.returncode != 0:
        raise TraceError(f"takes more than {MOST_CPU_S} s of computing or too much memory to read", "the file")
    if tried.stdout:
        raise TraceError(tried.stdout.decode())
