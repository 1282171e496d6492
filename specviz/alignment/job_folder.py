"""A job's folder on disk: what the job asks, and the tables of each shard that is done, so that a killed job resumes.

A part is written beside its place and moved there: it is whole or it is not there. The folder of another job is
refused, with what differs. Knows no model.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specviz.alignment.summary import Finding
from specviz.alignment.tables.columns import COLUMNS, from_arrow, to_arrow
from specviz.alignment.types import Columns, Refused, ShardTables
from specviz.errors import SpecvizError
from specviz.request import Request

FORMAT = 1
MOST_JOB_BYTES = 64 << 20
PART_TABLES = ("tokens", "prompts", "sums")
OUTPUTS = (
    *("summary.json", "report.html"),
    *("tokens.parquet", "tokens.csv.gz", "prompts.parquet", "prompts.csv", "slices.parquet", "slices.csv"),
)
OWN_NAMES = ("job.json", "parts", *OUTPUTS)
_OWN_PART = re.compile(r"\.?part-\d{5,}(-\d+)?")
KEPT = "what is done is kept: run the same again to go on"
_START_OVER = "choose another folder, or overwrite it to start over"


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that decides the rows. request: without a prompt; models: names, each with a hash of what it holds,
    the target first; prompts: their fingerprint; costs: where they come from, in a word or as a hash of those given."""

    request: Request
    models: tuple[tuple[str, str], ...]
    prompts: str
    num_rows: int
    shard_size: int
    costs: str
    specviz: str

    @property
    def num_parts(self) -> int:
        return -(-self.num_rows // self.shard_size)

    def asks(self) -> dict[str, Any]:
        """Plain JSON values by name."""
        request = {name: value for name, value in self.request.to_dict().items() if name in _DECIDES}
        (target, _), *drafts = self.models
        names = {
            "target": target,
            "drafts": [name for name, _ in drafts],
            "models": [list(each) for each in self.models],
        }
        own = {name: getattr(self, name) for name in ("prompts", "num_rows", "shard_size", "costs", "specviz")}
        return {**request, **names, **own, "format": FORMAT}


_DECIDES = ("chat", "k", *Request.SAMPLING, "seed", "max_new_tokens")


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out before the first shard: costs per draft, as `Costs.to_dict` gives them, and what a look inside
    the drafts told (`faults.Examined`). created: when the job began."""

    created: str
    costs: Mapping[str, Mapping[str, Any]]
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
    looked_for: tuple[str, ...]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Known:
        found = tuple(Finding(**each) for each in values["findings"])
        words = (tuple(values[name]) for name in ("warnings", "looked_for"))
        return cls(values["created"], values["costs"], found, *words)


class JobFolder:
    """The folder of one job, made or opened again. Raises SpecvizError for the folder of anything else."""

    def __init__(self, path: Path, job: Job, *, overwrite: bool = False) -> None:
        self.path, self.job = path, job
        self.known: Known | None = None
        self.is_finished = False
        self._parts = path / "parts"
        with saving(path):
            path.mkdir(parents=True, exist_ok=True)
            if overwrite and (path / "job.json").exists():
                self._clear()
                self._save_job()
            self._begin()

    def _begin(self) -> None:
        if not (self.path / "job.json").exists():
            self._check_free()
            self._save_job()
        else:
            self._resume(self._saved())
        self._remove_parts(".part-*")  # of a job that was killed

    def _clear(self) -> None:
        """Removes what an earlier job of ours wrote, and nothing else."""
        saved = self._saved()
        try:
            is_ours = "format" in saved["asks"] and {"known", "finished"} <= set(saved)
        except (KeyError, TypeError):
            is_ours = False
        if not is_ours:
            raise self._damaged("job.json")
        self._remove_parts("*")
        for name in OUTPUTS:
            (self.path / name).unlink(missing_ok=True)

    def _remove_parts(self, which: str) -> None:
        if self._parts.is_symlink() or not self._parts.is_dir():
            return
        for each in self._parts.glob(which):
            if _OWN_PART.fullmatch(each.name):
                _remove(each)
        if not any(self._parts.iterdir()):
            self._parts.rmdir()

    def _check_free(self) -> None:
        for name in OWN_NAMES:
            if (self.path / name).exists():
                raise SpecvizError(
                    f"{shown(self.path)} holds {name}, which is not of a job that can go on: choose another folder"
                )

    def _saved(self) -> Mapping[str, Any]:
        place = self.path / "job.json"
        if place.stat().st_size > MOST_JOB_BYTES:
            raise SpecvizError(f"{shown(self.path)}/job.json is too large to be one of ours")
        try:
            return json.loads(place.read_text("utf-8"))
        except (ValueError, RecursionError) as error:
            raise self._damaged("job.json") from error

    def _resume(self, saved: Mapping[str, Any]) -> None:
        try:
            before, known, self.is_finished = saved["asks"], saved["known"], saved["finished"] is True
            self.known = None if known is None else Known.from_dict(known)
            differing = [name for name, now in self.job.asks().items() if before.get(name) != now]
        except (KeyError, TypeError, AttributeError) as error:
            raise self._damaged("job.json") from error
        if differing:
            told = "; ".join(f"{name} was {_short(before.get(name))}, is {_short(self.job.asks()[name])}"
                             for name in differing[:3])  # fmt: skip
            raise SpecvizError(f"{shown(self.path)} holds another job ({told}): {_START_OVER}")
        if self.is_finished:
            self._check_outputs()

    def _check_outputs(self) -> None:
        """A finished job that lacks something is put together again where its parts are still there."""
        lacking = [name for name in OUTPUTS if not (self.path / name).exists()]
        if not lacking:
            return
        if not all(self.has(number) for number in range(self.job.num_parts)):
            raise SpecvizError(f"{shown(self.path)} lacks {' and '.join(lacking[:2])} of a finished job: {_START_OVER}")
        self.is_finished = False

    def _damaged(self, name: str) -> SpecvizError:
        return SpecvizError(f"{shown(self.path)}/{name} is damaged or not ours: choose another folder")

    def _save_job(self) -> None:
        known = None if self.known is None else asdict(self.known)
        values = {"asks": self.job.asks(), "known": known, "finished": self.is_finished}
        write_text(self.path / "job.json", json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    # ---- progress ---------------------------------------------------------------------------------------------------

    def learn(self, known: Known) -> None:
        with saving(self.path):
            self.known = known
            self._save_job()

    def finish(self, *, keep_parts: bool) -> None:
        """To be called when everything else is written."""
        with saving(self.path):
            self.is_finished = True
            self._save_job()
            if not keep_parts:
                self._remove_parts("*")

    def has(self, number: int) -> bool:
        return self._part(number).is_dir()

    def write(self, number: int, tables: ShardTables) -> None:
        """Keeps a shard's tables as part `number`."""
        import pyarrow.parquet as parquet

        place = self._part(number)
        beside = place.with_name(f".{place.name}-{os.getpid()}")
        with saving(self.path):
            beside.mkdir(parents=True)
            for name in PART_TABLES:
                parquet.write_table(to_arrow(getattr(tables, name), COLUMNS[name]), beside / f"{name}.parquet")
            write_text(beside / "extras.json", json.dumps(_extras(tables), ensure_ascii=False))
            os.rename(beside, place)

    def read(self, number: int) -> ShardTables:
        import pyarrow
        import pyarrow.parquet as parquet

        place = self._part(number)
        try:
            tables = {name: from_arrow(parquet.read_table(place / f"{name}.parquet")) for name in PART_TABLES}
            return _with_extras(tables, json.loads((place / "extras.json").read_text("utf-8")))
        except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
            raise SpecvizError(
                f"{shown(self.path)}/parts/{place.name} is damaged: delete it and run the same again"
            ) from error

    def parts(self) -> Iterator[ShardTables]:
        """All parts in order, one at a time."""
        for number in range(self.job.num_parts):
            yield self.read(number)

    def _part(self, number: int) -> Path:
        return self._parts / f"part-{number:05d}"


def shown(folder: Path) -> str:
    """A folder's own name, also where it was given as "."."""
    return Path(os.path.abspath(folder)).name or "the folder"


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Whatever the disk refuses, in words."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SpecvizError(f"{shown(folder)} cannot be written ({reason}){kept_words(folder)}") from error


def kept_words(folder: Path) -> str:
    """That a job of this folder can go on, where there is one."""
    return f"; {KEPT}" if os.path.isfile(folder / "job.json") else ""


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a whole file beside its place and moves it there."""
    beside = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _extras(tables: ShardTables) -> dict[str, Any]:
    return {
        "confidence": {name: np.asarray(sums).tolist() for name, sums in tables.confidence.items()},
        "refused": [[row.line, row.reason] for row in tables.refused],
        "warnings": list(tables.warnings),
    }


def _with_extras(tables: Mapping[str, Columns], extras: Mapping[str, Any]) -> ShardTables:
    return ShardTables(
        **tables,
        confidence={name: np.array(sums) for name, sums in extras["confidence"].items()},
        refused=tuple(Refused(line, reason) for line, reason in extras["refused"]),
        warnings=tuple(extras["warnings"]),
    )
