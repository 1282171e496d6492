"""Stores what a job asks and the tables of each finished shard in a folder, so that a killed job resumes.

A part is written beside its place and then moved there, so it is whole or missing. The folder of another job is
refused, and the error says what differs. One run at a time works in a folder. Knows no model.
"""

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import msgspec
import numpy as np
import pyarrow
from pyarrow import parquet

from specviz.alignment.summary import Examined
from specviz.alignment.tables.columns import COLUMNS, to_arrow
from specviz.alignment.types import RefusedRow, ShardTables
from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.trace.lines import write_lines

FORMAT = 3
MOST_JOB_BYTES = 64 << 20
PART_TABLES = ("tokens", "prompts", "sums", "bounds")
OUTPUTS = (
    "summary.json",
    "report.html",
    "tokens.parquet",
    "tokens.csv.gz",
    "prompts.parquet",
    "prompts.csv",
    "slices.parquet",
    "slices.csv",
)
OWN_NAMES = ("job.json", "parts", *OUTPUTS)
_OWN_PART = re.compile(r"\.?part-\d{5,}(-\d+)?")
SAVED = "finished work is saved: run the same command again to go on"
_START_OVER = "choose another folder, or overwrite it to start over"
_DECIDES = ("chat", "chat_options", "k", *Request.SAMPLING, "seed", "max_new_tokens")
_LOCK_NAME = "job.lock"
_IN_USE = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that decides the rows of a job's tables."""

    request: Request  # without a prompt
    models: tuple[tuple[str, str], ...]  # name and hash of each, the target first
    prompts: str  # their fingerprint
    num_rows: int
    shard_size: int
    costs: str  # their source, as `job._costs_word` gives it
    specviz: str  # version
    reference: tuple[str, str] | None = (
        None  # name and hash of the model that drafts are compared with
    )
    num_top: int | None = None  # likeliest tokens that servers name; None where weights are here
    counters: str | None = None  # a hash of the engine's counters

    @property
    def num_parts(self) -> int:
        return math.ceil(self.num_rows / self.shard_size)

    def asks(self) -> dict[str, Any]:
        """The job as plain JSON values by name."""
        request = {
            name: value for name, value in self.request.to_dict().items() if name in _DECIDES
        }
        target, *drafts = (name for name, _ in self.models)
        return {
            **request,
            "target": target,
            "drafts": drafts,
            "models": [list(model) for model in self.models],
            "reference": None if self.reference is None else list(self.reference),
            "logprobs": self.num_top,
            "served": self.counters,
            "prompts": self.prompts,
            "num_rows": self.num_rows,
            "shard_size": self.shard_size,
            "costs": self.costs,
            "specviz": self.specviz,
            "format": FORMAT,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation(Examined):
    """The costs and findings from before the first shard."""

    created: str  # when the job began
    costs: Mapping[str, Mapping[str, Any]]  # by draft, as `Costs.to_dict` gives them


@dataclass(frozen=True, slots=True)
class _Saved:
    """The values of job.json."""

    asks: Mapping[str, Any]
    known: Any  # a Preparation or null
    finished: bool


class JobFolder:
    """The folder of one job, made or opened again. Raises SpecvizError for the folder of anything else."""

    def __init__(self, path: Path, job: Job, *, overwrite: bool = False) -> None:
        self.path = path
        self.job = job
        self.preparation: Preparation | None = None
        self.is_finished = False
        self._parts = path / "parts"
        with explain_disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            if not (path / "job.json").exists():
                self._check_free()
                self._save_job()
            elif overwrite:
                self._clear()
                self._save_job()
            else:
                self._resume(self._load_job())
            self._remove_parts(".part-*")  # of a job that was killed

    def _clear(self) -> None:
        """Removes what an earlier job of ours wrote, and nothing else."""
        if "format" not in self._load_job().asks:
            raise self._damage_error()
        self._remove_parts("*")
        for name in OUTPUTS:
            (self.path / name).unlink(missing_ok=True)

    def _remove_parts(self, which: str) -> None:
        if self._parts.is_symlink() or not self._parts.is_dir():
            return
        for part in self._parts.glob(which):
            if not _OWN_PART.fullmatch(part.name):
                continue
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part)
            else:
                part.unlink(missing_ok=True)
        if not any(self._parts.iterdir()):
            self._parts.rmdir()

    def _check_free(self) -> None:
        for name in OWN_NAMES:
            if (self.path / name).exists():
                where = f"{folder_name(self.path)} holds {name}"
                raise SpecvizError(
                    f"{where}, which does not belong to a job that can go on: choose another folder"
                )

    def _load_job(self) -> _Saved:
        place = self.path / "job.json"
        if place.stat().st_size > MOST_JOB_BYTES:
            raise SpecvizError(f"{folder_name(self.path)}/job.json is too large to be from specviz")
        try:
            return msgspec.json.decode(place.read_bytes(), type=_Saved)
        except (ValueError, RecursionError) as error:
            raise self._damage_error() from error

    def _resume(self, saved: _Saved) -> None:
        asks = self.job.asks()
        # Older jobs name neither chat options nor min_p.
        before = {"chat_options": {}, **Request.FILTERS, **saved.asks}
        try:
            self.preparation = msgspec.convert(saved.known, Preparation | None)
        except msgspec.ValidationError as error:
            raise self._damage_error() from error
        differing = [name for name, now in asks.items() if before.get(name) != now]
        if differing:
            changes = [
                f"{name} was {_shorten(before.get(name))}, is {_shorten(asks[name])}"
                for name in differing[:3]
            ]
            raise SpecvizError(
                f"{folder_name(self.path)} holds another job ({'; '.join(changes)}): {_START_OVER}"
            )
        self.is_finished = saved.finished and self._has_outputs()

    def _has_outputs(self) -> bool:
        """Whether all outputs are there. A job that lacks some is finished again from its parts, or else refused."""
        lacking = [name for name in OUTPUTS if not (self.path / name).exists()]
        if lacking and not all(self.has(number) for number in range(self.job.num_parts)):
            raise SpecvizError(
                f"{folder_name(self.path)} lacks {' and '.join(lacking[:2])} of a finished job: {_START_OVER}"
            )
        return not lacking

    def _damage_error(self) -> SpecvizError:
        return SpecvizError(
            f"{folder_name(self.path)}/job.json is damaged or not from specviz: choose another folder"
        )

    def _save_job(self) -> None:
        known = None if self.preparation is None else asdict(self.preparation)
        values = {"asks": self.job.asks(), "known": known, "finished": self.is_finished}
        write_lines(
            self.path / "job.json",
            [json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)],
        )

    def save_preparation(self, preparation: Preparation) -> None:
        with explain_disk_errors(self.path):
            self.preparation = preparation
            self._save_job()

    def finish(self, *, keep_parts: bool) -> None:
        """Marks the job as finished; to be called when everything else is written."""
        with explain_disk_errors(self.path):
            self.is_finished = True
            self._save_job()
            if not keep_parts:
                self._remove_parts("*")

    def has(self, number: int) -> bool:
        return self._part(number).is_dir()

    def write(self, number: int, tables: ShardTables) -> None:
        """Stores a shard's tables as part `number`."""
        place = self._part(number)
        beside = place.with_name(f".{place.name}-{os.getpid()}")
        with explain_disk_errors(self.path):
            beside.mkdir(parents=True)
            for name in PART_TABLES:
                rows = to_arrow(getattr(tables, name), COLUMNS[name])
                parquet.write_table(rows, beside / f"{name}.parquet")
            confidence = {name: sums.tolist() for name, sums in tables.confidence.items()}
            extras = {
                "confidence": confidence,
                "refused": [[row.line, row.reason] for row in tables.refused],
                "warnings": list(tables.warnings),
            }
            write_lines(beside / "extras.json", [json.dumps(extras, ensure_ascii=False)])
            os.rename(beside, place)

    def read(self, number: int) -> ShardTables:
        place = self._part(number)
        try:
            tables = {
                name: parquet.read_table(place / f"{name}.parquet").to_pandas()
                for name in PART_TABLES
            }
            extras = json.loads((place / "extras.json").read_text("utf-8"))
            return ShardTables(
                **tables,
                confidence={name: np.array(sums) for name, sums in extras["confidence"].items()},
                refused=tuple(RefusedRow(line, reason) for line, reason in extras["refused"]),
                warnings=tuple(extras["warnings"]),
            )
        except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
            raise SpecvizError(
                f"{folder_name(self.path)}/parts/{place.name} is damaged: delete it and run the same command again"
            ) from error

    def parts(self) -> Iterator[ShardTables]:
        """Yields all parts in order, one at a time."""
        return map(self.read, range(self.job.num_parts))

    def _part(self, number: int) -> Path:
        return self._parts / f"part-{number:05d}"


def folder_name(folder: Path) -> str:
    """The own name of a folder, also if it was given as "."."""
    return Path(os.path.abspath(folder)).name or "the folder"


@contextmanager
def explain_disk_errors(folder: Path) -> Iterator[None]:
    """Turns an OSError into a SpecvizError that says what could not be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SpecvizError(
            f"{folder_name(folder)} cannot be written ({reason}){resume_hint(folder)}"
        ) from error


def resume_hint(folder: Path) -> str:
    """Says that the job in this folder can go on; empty where there is none."""
    return f"; {SAVED}" if os.path.isfile(folder / "job.json") else ""


def _shorten(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Makes the folder and locks it for this run, by a file with the process's number.

    The system frees the lock when the process ends. Raises SpecvizError if another run works in the folder.
    """
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = _open_lock(folder)
    try:
        yield
    finally:
        if lock is not None:
            with suppress(OSError):  # where an open file cannot be removed, it stays
                os.unlink(folder / _LOCK_NAME)
            lock.close()


def _open_lock(folder: Path) -> TextIO | None:
    """Opens and locks the lock file; None if the folder cannot be written to."""
    while True:
        try:
            stream = (folder / _LOCK_NAME).open("a+", encoding="ascii", errors="replace")
        except OSError as error:
            if error.errno in _READ_ONLY:
                return None
            raise
        if not _try_lock(stream):
            stream.seek(0)
            process = stream.read(20).strip()
            stream.close()
            where = f"{folder_name(folder)} (process {process or 'unknown'})"
            raise SpecvizError(
                f"another run works in {where}: wait for it, or choose another folder"
            )
        if _is_there(stream, folder / _LOCK_NAME):
            stream.truncate(0)
            stream.write(f"{os.getpid()}\n")
            stream.flush()
            return stream
        stream.close()  # a run that ended just now removed the file


def _try_lock(stream: TextIO) -> bool:
    """Locks the file if it is free; whether this run has the lock. Always true on a file system without locks."""
    try:
        if os.name == "nt":
            import msvcrt

            stream.seek(0)
            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _IN_USE
    return True


def _is_there(stream: TextIO, place: Path) -> bool:
    """Whether the open file is still the one at `place`."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(place))
    except OSError:
        return False
