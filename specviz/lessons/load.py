"""Lessons: the files of assets/lessons, read and checked, strictly; every message names the file and the field.

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
from specviz.lessons.types import Lesson, Pin, RuleDistributions
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
    """What the folder of lessons holds. faults: per file that is left out, what is wrong with it."""

    lessons: Mapping[str, Lesson]
    faults: tuple[str, ...]


def lessons() -> Mapping[str, Lesson]:
    """All of them by name, in the order of their files. Raises SpecvizError where one cannot be used."""
    found = found_lessons()
    if found.faults:
        raise SpecvizError(found.faults[0])
    return found.lessons


def found_lessons() -> Found:
    """Those that can be used: a file with a fault takes no other lesson away."""
    return _read_all(assets_dir() / "lessons")


def read_lesson(content: str, file: str, runs: Collection[str]) -> Lesson:
    """The lesson of one file. runs: the names of the recorded runs. Raises SpecvizError."""
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
        place = re.sub(
            r"\[(\d+)\]", lambda number: f"[{int(number[1]) + 1}]", error.path
        )  # as people count
        raise SpecvizError(
            f"{': '.join([file, *filter(None, place.split('.'))])} {error.problem}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise SpecvizError(f"{file} must be JSON ({str(error)[:200]})") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field stands there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _check_texts(value: Any, path: str, field: str, runs: Collection[str]) -> None:
    """TraceError for a text with control characters, and for a run that is not known. field: the name of the value's
    own field, or of its list's."""
    if isinstance(value, dict):
        for name, each in value.items():
            _check_texts(each, f"{path}.{name}", name, runs)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _check_texts(each, f"{path}[{index}]", field, runs)
    elif isinstance(value, str):
        is_plain = not any(unicodedata.category(char).startswith("C") for char in value)
        require(is_plain, path, f"must be a text without control characters {format_got(value)}")
        is_known = field not in RUN_FIELDS or value in runs
        require(is_known, path, f"must be one of {', '.join(runs)} {format_got(value)}")


def _read_setup(setup: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Its values as a request has them. Raises TraceError."""
    if setup is None:
        return None
    require(setup, "setup", f"must be null or at least one field of a request {format_got(setup)}")
    for name in setup:
        require(
            name in SETUP, "setup", f"has no field {name!r:.60}; it may have {', '.join(SETUP)}"
        )
    try:
        found = Request.from_dict({"target": "any", "prompt": "any", **setup}).to_dict()
    except SpecvizError as error:
        raise TraceError(str(error), "setup:") from None
    return {name: found[name] for name in setup}


@cache
def _read_all(folder: Path) -> Found:
    found: dict[str, Lesson] = {}
    paths, faults = sorted(folder.glob("*.json")), []
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
    """The lesson of one file, with all that it points at there. Raises SpecvizError."""
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
    """A token that a screen pins must be in the run that is on the stage by then; a law needs both models' odds."""
    run = None
    for number, screen in enumerate(lesson.screens, 1):
        run = screen.show.run if screen.show and screen.show.run else run
        if screen.show and screen.show.pin and not _is_in(screen.show.pin, run):
            _refuse_pin(
                screen.show.pin,
                f"{file}: screens[{number}]: the run {run} must have what is pinned",
            )
        if screen.distribution and not _has_probabilities(screen.distribution):
            what = f"{screen.distribution.run} must have a draft token there with both models' probabilities"
            _refuse_pin(screen.distribution, f"{file}: screens[{number}]: law: the run {what}")


def _refuse_pin(pin: Pin, must: str) -> NoReturn:
    raise SpecvizError(f"{must} (got step {pin.step}, ref {pin.ref!r:.20})")


def _is_in(pin: Pin, run: str | None) -> bool:
    steps = () if run is None else shipped_trace(run).steps
    if pin.step >= len(steps):
        return False
    return pin.ref == LAST_REF or pin.ref in [
        str(place) for place in range(len(steps[pin.step].draft))
    ]


def _has_probabilities(distribution: RuleDistributions) -> bool:
    steps = shipped_trace(distribution.run).steps
    positions = steps[distribution.step].positions if distribution.step < len(steps) else ()
    return any(place.child is not None and str(place.child) == distribution.ref and place.overlap is not None
               for place in positions)  # fmt: skip
