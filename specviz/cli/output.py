"""Writes a command's result into a file, or to standard output for `-`; prints its progress on standard error."""

import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from specviz.errors import SpecvizError
from specviz.trace.lines import as_bytes, ordinary_place, write_lines
from specviz.views.terminal import escape

PAUSE_S = 1.0  # between two lines of progress


@dataclass(frozen=True, slots=True)
class Output:
    """The place that an option names for a result."""

    name: str
    place: Path | BinaryIO  # a path in a folder, or standard output
    makes_folder: bool = False  # whether the folder may be missing

    def check(self) -> None:
        """Raises SpecvizError, before any work, where no file can be."""
        if not isinstance(self.place, Path):
            return
        if not self.name or self.name.endswith(("/", os.sep)) or self.place.is_dir():
            raise SpecvizError(f"OUT must name a file (got {self.name!r:.200})")
        if not (ordinary_place(self.place, "OUT").parent.is_dir() or self.makes_folder):
            raise SpecvizError(f"OUT must be in an existing folder (got {self.name!r:.200})")

    def write(self, text: str) -> None:
        """Writes the whole text at once, and prints a file's name. Raises SpecvizError."""
        self.write_lines(text.removesuffix("\n").split("\n"))

    def write_lines(self, lines: Iterable[str]) -> None:
        """Writes lines as they come, and prints a file's name. Raises SpecvizError."""
        try:
            if isinstance(self.place, Path):
                write_lines(self.place, lines)
            else:
                self.place.writelines(as_bytes(lines))
                self.place.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise SpecvizError(
                f"{escape(self.name)} could not be written: {error.strerror}"
            ) from None
        self.tell()

    def tell(self) -> None:
        if isinstance(self.place, Path):
            print(f"saved {escape(self.name)}", flush=True)


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Writes files into a folder, by their paths in it; folders that are missing are made."""
    for name, text in texts.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8", newline="\n")


def output(name: str, *, makes_folder: bool = False) -> Output:
    """The type of an option; `-` is the standard output of this moment."""
    place = sys.stdout.buffer if name == "-" else Path(name)
    return Output(name, place, makes_folder)


@contextmanager
def divert_words(outputs: Sequence[Output]) -> Iterator[None]:
    """Checks the outputs. Inside, printed words go to standard error if one of the outputs is standard output."""
    for out in outputs:
        out.check()
    streams = [out for out in outputs if not isinstance(out.place, Path)]
    if len(streams) > 1:
        raise SpecvizError("only one result can go to standard output (-)")
    stdout = sys.stdout
    try:
        with redirect_stdout(sys.stderr) if streams else nullcontext():
            yield
    finally:
        if streams:
            try:
                stdout.flush()
            except OSError:  # else Python would try once more at its end, and fail there
                drop(stdout)


def drop(stdout: TextIO) -> None:
    """Sends everything that is written to this stream from now on to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())


class ProgressLines:
    """Prints what is being done when that changes, and how far it is at most once in PAUSE_S."""

    def __init__(self) -> None:
        self._words = ""
        self._printed_at = -math.inf

    def print(self, words: str, line: str) -> None:
        """Prints a line, if it is time. words: what is being done; line: the words and how far it is."""
        now = time.monotonic()
        if words != self._words or now - self._printed_at >= PAUSE_S:
            self._words = words
            self._printed_at = now
            print(escape(line), file=sys.stderr, flush=True)

    def print_share(self, words: str, share: float | None) -> None:
        self.print(words, words if share is None else f"{words} {100 * share:.0f} %")
