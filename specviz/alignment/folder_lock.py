"""One run at a time in a folder: a lock file with the process's number, which the system frees when the process ends.

So that a killed run leaves no lock behind, and a number that was given away again means nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from specviz.alignment.job_folder import saving, shown
from specviz.errors import SpecvizError

NAME = "job.lock"
_HELD = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Makes the folder, and keeps it for this run. Raises SpecvizError where another run works in it."""
    with saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
        held = _held(folder)
    try:
        yield
    finally:
        if held is not None:
            with suppress(OSError):  # where an open file cannot be removed, it stays
                os.unlink(folder / NAME)
            held.close()


def _held(folder: Path) -> TextIO | None:
    """The locked file; None where nothing can be written, so that nothing can be spoilt."""
    while True:
        try:
            stream = (folder / NAME).open("a+", encoding="ascii", errors="replace")
        except OSError as error:
            if error.errno in _READ_ONLY:
                return None
            raise
        if not _locks(stream):
            stream.seek(0)
            process = stream.read(20).strip()
            stream.close()
            raise SpecvizError(
                f"another run works in {shown(folder)} (process {process or 'unknown'}): wait for it, or choose another"
                " folder"
            )
        if _is_there(stream, folder / NAME):
            stream.truncate(0)
            stream.write(f"{os.getpid()}\n")
            stream.flush()
            return stream
        stream.close()  # of a run that ended just now, and took its file along


def _locks(stream: TextIO) -> bool:
    """Whether this run has the lock now. Where a file system knows no locks, everybody has it."""
    try:
        _lock(stream)
    except OSError as error:
        return error.errno not in _HELD
    return True


def _lock(stream: TextIO) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        stream.seek(0)
        msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_there(stream: TextIO, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(place))
    except OSError:
        return False
