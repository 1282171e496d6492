"""Lessons: the files of assets/lessons, read and checked, strictly; every message names the file and the field.

Loads no model.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from specviz.errors import SpecvizError
from specviz.lessons.fields import TEXT, Paragraph, Part, parse
from specviz.lessons.types import LAW_RULES, Done, Law, Lesson, Option, Pin, Screen, Seen, Show, Task
from specviz.request import REQUEST_KEYS, Request
from specviz.settings import assets_dir
from specviz.trace.recorded import recorded_runs, recorded_trace

MOST_BYTES = 100_000
MOST_LESSONS, MOST_SCREENS, MOST_OPTIONS = 40, 12, 6
LAST_REF = "last"
TOO_MANY = f"assets/lessons must hold at most {MOST_LESSONS} files of lessons (got %d)"
NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
MARKS = ("accepted", "rejected", "ignored", "resampled", "bonus", "plain")  # what a token of the stage can be
PACES = ("slow", "reading", "full")
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
        raise SpecvizError(f"{file} must have at most {MOST_BYTES:,} characters (got {len(content):,})")
    return _lesson(parse(content, file), runs)


@cache
def _read_all(folder: Path) -> Found:
    found: dict[str, Lesson] = {}
    paths, faults = sorted(folder.glob("*.json")), []
    if len(paths) > MOST_LESSONS:
        faults.append(TOO_MANY % len(paths))
    for path in paths[:MOST_LESSONS]:
        try:
            lesson = _checked(path, found)
            found[lesson.name] = lesson
        except SpecvizError as error:
            faults.append(str(error))
    return Found(found, tuple(faults))


def _checked(path: Path, before: Collection[str]) -> Lesson:
    """The lesson of one file, with all that it points at there. Raises SpecvizError."""
    lesson = read_lesson(_content(path), path.name, recorded_runs())
    if lesson.name in before:
        raise SpecvizError(f"{path.name}: name must be used by one lesson alone (got {lesson.name!r} again)")
    _refuse_absent_tokens(lesson, path.name)
    return lesson


def _content(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecvizError(f"{path.name} cannot be read ({error})") from None


def _refuse_absent_tokens(lesson: Lesson, file: str) -> None:
    """A token that a screen pins must be in the run that is on the stage by then; a law needs both models' odds."""
    run = None
    for number, screen in enumerate(lesson.screens, 1):
        run = screen.show.run if screen.show and screen.show.run else run
        if screen.show and screen.show.pin and not _is_in(screen.show.pin, run):
            _refuse_pin(screen.show.pin, f"{file}: screens[{number}]: the run {run} must have what is pinned")
        if screen.law and not _has_odds(screen.law):
            what = f"{screen.law.run} must have a drafted token there, judged by both models' odds"
            _refuse_pin(screen.law.pin, f"{file}: screens[{number}]: law: the run {what}")


def _refuse_pin(pin: Pin, must: str) -> NoReturn:
    raise SpecvizError(f"{must} (got step {pin.step}, ref {pin.ref!r:.20})")


def _is_in(pin: Pin, run: str | None) -> bool:
    steps = () if run is None else recorded_trace(run).steps
    if pin.step >= len(steps):
        return False
    return pin.ref == LAST_REF or pin.ref in [str(place) for place in range(len(steps[pin.step].draft))]


def _has_odds(law: Law) -> bool:
    steps = recorded_trace(law.run).steps
    positions = steps[law.pin.step].positions if law.pin.step < len(steps) else ()
    return any(place.child is not None and str(place.child) == law.pin.ref and place.overlap is not None
               for place in positions)  # fmt: skip


# ---- reading ---------------------------------------------------------------------------------------------------------


def _lesson(part: Part, runs: Collection[str]) -> Lesson:
    given = part.parts(
        ("name", "title", "minutes", "misconception", "question", "teacher", "setup", "screens"), ("live", "pace")
    )
    return Lesson(
        name=given["name"].matched(NAME, "small letters, digits and dashes"),
        title=given["title"].text(),
        minutes=given["minutes"].whole(1, 30),
        misconception=given["misconception"].text(),
        question=given["question"].text(TEXT),
        teacher=_note(given["teacher"]),
        setup=_setup(given["setup"]),
        screens=tuple(_screen(screen, runs) for screen in given["screens"].entries(1, MOST_SCREENS)),
        live=given["live"].text(TEXT) if "live" in given else "",
        pace=given["pace"].one_of(PACES) if "pace" in given else None,
    )


def _note(part: Part) -> tuple[Paragraph, ...]:
    """One text, or a list of paragraphs."""
    return (part.paragraph(),) if isinstance(part.value, str) else part.paragraphs()


def _setup(part: Part) -> Mapping[str, Any] | None:
    if part.value is None:
        return None
    given = part.parts((), SETUP)
    if not given:
        part.refuse("null or at least one field of a request")
    values = {name: each.value for name, each in given.items()}
    try:
        found = Request.from_dict({"target": "any", "prompt": "any", **values}).to_dict()
    except SpecvizError as error:
        raise SpecvizError(f"{part.where}: {error}") from None
    return {name: found[name] for name in values}


def _screen(part: Part, runs: Collection[str]) -> Screen:
    given = part.parts(("title", "words"), ("show", "law", "task"))
    return Screen(
        title=given["title"].text(),
        words=given["words"].paragraphs(),
        show=_show(given["show"], runs) if "show" in given else None,
        law=_law(given["law"], runs) if "law" in given else None,
        task=_task(given["task"], runs) if "task" in given else None,
    )


def _show(part: Part, runs: Collection[str]) -> Show:
    given = part.parts((), ("run", "compare", "pin"))
    if not given or ("compare" in given and len(given) > 1):
        part.refuse("a run, a pin, both of these, or two runs to compare")
    compare = tuple(each.one_of(runs) for each in given["compare"].entries(2, 2)) if "compare" in given else None
    run = given["run"].one_of(runs) if "run" in given else None
    return Show(run, compare, _pin(given["pin"]) if "pin" in given else None)


def _pin(part: Part) -> Pin:
    return _place(part.parts(("step", "ref")))


def _place(given: Mapping[str, Part]) -> Pin:
    return Pin(given["step"].whole(0, 100_000), given["ref"].text(20))


def _law(part: Part, runs: Collection[str]) -> Law:
    given = part.parts(("run", "step", "ref", "rules"))
    rules = [each.one_of(LAW_RULES) for each in given["rules"].entries(1, 4)]
    return Law(given["run"].one_of(runs), _place(given), tuple(rules))


def _task(part: Part, runs: Collection[str]) -> Task:
    given = part.parts(("words", "done", "praise"))
    return Task(given["words"].paragraph(), _done(given["done"], runs), given["praise"].text(TEXT))


def _done(part: Part, runs: Collection[str]) -> Done:
    if not isinstance(part.value, dict) or "kind" not in part.value:
        part.refuse("an object with a kind")
    kind = Part(part.value["kind"], part.within("kind")).one_of(DONE)
    return DONE[kind](part, runs)


def _plain(part: Part, runs: Collection[str]) -> Done:
    return Done(part.parts(("kind",))["kind"].value)


def _counted(part: Part, runs: Collection[str]) -> Done:
    given = part.parts(("kind",), ("times",))
    return Done(given["kind"].value, _times(given))


def _pinned(part: Part, runs: Collection[str]) -> Done:
    given = part.parts(("kind", "status"), ("times",))
    status = tuple(each.one_of(MARKS) for each in given["status"].entries(1, len(MARKS)))
    return Done("pin", _times(given), status)


def _seen(part: Part, runs: Collection[str]) -> Done:
    given = part.parts(("kind", "runs"))
    seen = [_run_seen(each, runs) for each in given["runs"].entries(1, 4)]
    return Done("see", runs=tuple({each.run: each for each in reversed(seen)}.values())[::-1])


def _run_seen(part: Part, runs: Collection[str]) -> Seen:
    """The name of a run, or its name with the words of its button."""
    if isinstance(part.value, str):
        return Seen(part.one_of(runs))
    given = part.parts(("run", "words"))
    return Seen(given["run"].one_of(runs), given["words"].text())


def _choice(part: Part, runs: Collection[str]) -> Done:
    options = part.parts(("kind", "options"))["options"]
    read = [each.parts(("words", "right", "why")) for each in options.entries(2, MOST_OPTIONS)]
    made = tuple(Option(one["words"].text(TEXT), one["right"].truth(), one["why"].text(TEXT)) for one in read)
    if not any(option.right for option in made):
        options.refuse("options of which one is right")
    return Done("choose", options=made)


def _guess(part: Part, runs: Collection[str]) -> Done:
    given = part.parts(("kind", "options", "reveal"))
    options = tuple(_guessed(each) for each in given["options"].entries(2, MOST_OPTIONS))
    if sum(option.right for option in options) > 1:
        given["options"].refuse("options of which at most one is right")
    return Done("guess", options=options, reveal=given["reveal"].text(TEXT))


def _guessed(part: Part) -> Option:
    """A text, or a text with whether it is right: a guess need not have a right answer."""
    if isinstance(part.value, str):
        return Option(part.text(TEXT))
    given = part.parts(("words",), ("right",))
    return Option(given["words"].text(TEXT), given["right"].truth() if "right" in given else False)


def _times(given: Mapping[str, Part]) -> int:
    return given["times"].whole(1, 100) if "times" in given else 1


DONE: Mapping[str, Callable[[Part, Collection[str]], Done]] = {
    "play": _plain,
    "made": _plain,
    "throw": _counted,
    "predict": _counted,
    "pin": _pinned,
    "see": _seen,
    "choose": _choice,
    "guess": _guess,
}
"""How the words of a task's `done` are read, by its kind."""
