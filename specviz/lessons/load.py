"""Reads the files of assets/lessons and checks them strictly; every error names the file and the field.

Loads no model.
"""

import json
import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from msgspec.structs import replace

from specviz.errors import SpecvizError
from specviz.lessons.types import Lesson, Pin, RuleDistributions, Show
from specviz.request import REQUEST_KEYS, Request
from specviz.settings import assets_dir
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.trace.values import TraceError, convert, format_got, require

MOST_BYTES = 100_000
MOST_LESSONS = 40
LAST_REF = "last"
TOO_MANY = f"assets/lessons must hold at most {MOST_LESSONS} files of lessons (got %d)"
RUN_FIELDS = ("run", "runs", "compare")
SETUP = [key for key in REQUEST_KEYS if key not in ("prompt_ids", "time_limit_s")]


@dataclass(frozen=True, slots=True)
class Found:
    """The lessons of a folder, and the faults of its other files."""

    lessons: Mapping[str, Lesson]  # by name, in the order of their files
    faults: tuple[str, ...]  # what is wrong with each file that is left out


def lessons() -> Mapping[str, Lesson]:
    """All lessons by name, in the order of their files. Raises SpecvizError where one cannot be used."""
    found = found_lessons()
    if found.faults:
        raise SpecvizError(found.faults[0])
    return found.lessons


def found_lessons() -> Found:
    """The lessons that can be used, and the faults of the others. A file with a fault takes no other lesson away."""
    return _read_all(assets_dir() / "lessons")


def read_lesson(content: str, file: str, runs: Collection[str]) -> Lesson:
    """Checks the content of one file, returns its lesson. runs: the names of the recorded runs. Raises SpecvizError."""
    if len(content) > MOST_BYTES:
        raise SpecvizError(
            f"{file} must have at most {MOST_BYTES:,} characters (got {len(content):,})"
        )
    try:
        data = json.loads(content, object_pairs_hook=_distinct, parse_constant=_no_constant)
        lesson = convert(data, Lesson)
        _check_texts({**data, "setup": None}, "", "", runs)
        return replace(lesson, setup=_read_setup(lesson.setup))
    except TraceError as error:
        path = re.sub(r"\[(\d+)\]", _count_from_1, error.path)
        fields = [field for field in path.split(".") if field]
        raise SpecvizError(f"{': '.join([file, *fields])} {error.problem}") from None
    except (ValueError, RecursionError) as error:
        raise SpecvizError(f"{file} must be JSON ({str(error)[:200]})") from None


def _count_from_1(index: re.Match[str]) -> str:
    """The index as people count."""
    return f"[{int(index[1]) + 1}]"


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field stands there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _check_texts(value: Any, path: str, field: str, runs: Collection[str]) -> None:
    """Raises TraceError for a text with control characters, and for a run that is not known.

    field: the name of the field that holds the value, or a list with the value.
    """
    if isinstance(value, dict):
        for name, item in value.items():
            _check_texts(item, f"{path}.{name}", name, runs)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_texts(item, f"{path}[{index}]", field, runs)
    elif isinstance(value, str):
        is_plain = not any(unicodedata.category(char).startswith("C") for char in value)
        require(is_plain, path, f"must be a text without control characters {format_got(value)}")
        is_known = field not in RUN_FIELDS or value in runs
        require(is_known, path, f"must be one of {', '.join(runs)} {format_got(value)}")


def _read_setup(setup: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The values of a lesson's setup as a request has them. Raises TraceError."""
    if setup is None:
        return None
    require(setup, "setup", f"must be null or at least one field of a request {format_got(setup)}")
    allowed = ", ".join(SETUP)
    for name in setup:
        require(name in SETUP, "setup", f"has no field {name!r:.60}; it may have {allowed}")
    try:
        request = Request.from_dict({"target": "any", "prompt": "any", **setup}).to_dict()
    except SpecvizError as error:
        raise TraceError(str(error), "setup:") from None
    return {name: request[name] for name in setup}


@cache
def _read_all(folder: Path) -> Found:
    found: dict[str, Lesson] = {}
    faults = []
    paths = sorted(folder.glob("*.json"))
    if len(paths) > MOST_LESSONS:
        faults.append(TOO_MANY % len(paths))
    for path in paths[:MOST_LESSONS]:
        try:
            lesson = _read_file(path, found)
            found[lesson.name] = lesson
        except SpecvizError as error:
            faults.append(str(error))
    return Found(found, tuple(faults))


def _read_file(path: Path, before: Collection[str]) -> Lesson:
    """Reads one file, returns its lesson, checked with the runs that it shows. Raises SpecvizError.

    before: the names of the lessons read so far.
    """
    try:
        lesson = read_lesson(path.read_text("utf-8"), path.name, shipped_runs())
    except (OSError, UnicodeDecodeError) as error:
        raise SpecvizError(f"{path.name} cannot be read ({error})") from None
    if lesson.name in before:
        raise SpecvizError(
            f"{path.name}: name must be used by one lesson alone (got {lesson.name!r} again)"
        )
    _refuse_absent_tokens(lesson, path.name)
    return lesson


def _refuse_absent_tokens(lesson: Lesson, file: str) -> None:
    """Raises SpecvizError for a token that its recorded run lacks.

    A pinned token must be in the run that is on the stage. A distribution needs the probabilities of both models.
    """
    run = None
    for number, screen in enumerate(lesson.screens, start=1):
        where = f"{file}: screens[{number}]"
        show = screen.show or Show()
        run = show.run or run
        if show.pin and not _is_in(show.pin, run):
            _refuse_pin(show.pin, f"{where}: the run {run} must have what is pinned")
        distribution = screen.distribution
        if distribution and not _has_probabilities(distribution):
            needed = "must have a draft token there with both models' probabilities"
            _refuse_pin(distribution, f"{where}: distribution: the run {distribution.run} {needed}")


def _refuse_pin(pin: Pin, must: str) -> NoReturn:
    raise SpecvizError(f"{must} (got step {pin.step}, ref {pin.ref!r:.20})")


def _is_in(pin: Pin, run: str | None) -> bool:
    """Whether the run has the pinned token."""
    steps = () if run is None else shipped_trace(run).steps
    if pin.step >= len(steps):
        return False
    draft = steps[pin.step].draft
    return pin.ref == LAST_REF or pin.ref in map(str, range(len(draft)))


def _has_probabilities(distribution: RuleDistributions) -> bool:
    """Whether the run has both models' probabilities for the draft token."""
    steps = shipped_trace(distribution.run).steps
    if distribution.step >= len(steps):
        return False
    for position in steps[distribution.step].positions:
        is_there = position.child is not None and str(position.child) == distribution.ref
        if is_there and position.overlap is not None:
            return True
    return False
