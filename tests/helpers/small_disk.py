"""A real disk of a few kilobytes, for tests of what happens when it is full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[Path]:
    """A tmpfs at this place, which only the system's administrator may mount: others skip the test."""
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("no right to mount a disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
