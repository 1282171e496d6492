"""The lessons for reading: the plan that opens the Learn page, and one lesson as the panel beside the stage shows it.

Plain values in, props out; the browser lays them out, counts what was done and remembers it. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from specviz.lesson_types import Done, Law, Lesson, Screen, Seen, Task
from specviz.lessons import lessons
from specviz.shipped import shipped, shipped_trace
from specviz.views import blocks
from specviz.views.blocks import Props
from specviz.views.laws import law_block
from specviz.views.names import METHOD_TITLES, RULE_TITLES
from specviz.views.sentences import label, titled, visible

NAME, TITLE = "plan", "The plan"
FILE_ROUTE = "/specviz/lessons.html"
FILE_NAME = "specviz-lessons.html"
NONE_YET = "No lesson is there: the folder assets/lessons is empty."
SHIPPED = "shipped:"
"""Begins the id of a recorded run wherever it is shown: what follows is its name."""

ROOM = (
    (
        "Open one lesson on the projector and press ", "Present", ": the type grows. Read the question aloud and "
        "collect guesses before anything is shown. Then let the room do the task; a task marks itself as done.",
    ),
    ("Each lesson has a note for the teacher. Lessons stand alone: for half the time, leave out the last ones.",),
)  # fmt: skip
HAND_OUT = (
    "For every student: save the one file below and hand it out, by mail or on a stick. It opens from disk on a "
    "laptop or a phone and asks no network and no server. What it cannot do is run a model.",
)
HANDED_OUT = (
    "For every student: hand out this file, by mail or on a stick. It opens from disk on a laptop or a phone and asks "
    "no network and no server. What it cannot do is run a model: that, and the second game, need specviz itself.",
)
FILE_WORDS = "Save all lessons as one file"
FILE_NOTE = "All lessons with their recorded runs and the first game, for a browser without network."


@dataclass(frozen=True, slots=True)
class Pause:
    """What stands in the plan between two lessons. section: of the Learn page; needs_model: not in a file."""

    minutes: int
    title: str
    words: str
    section: str = ""
    needs_model: bool = False


PREDICT = Pause(6, "Game: predict the verdict", "See both models' odds, guess, then the dart falls.", "predict")
BREAK = Pause(5, "Break", "Coffee, fresh air, questions.")
BE_THE_DRAFT = Pause(
    8,
    "Game: you are the draft model",
    "Type the next words; the target judges them with your words as its draft.",
    "be-the-draft",
    needs_model=True,
)
AFTER: Mapping[int, Pause] = {3: PREDICT, 6: BREAK}
"""Behind so many lessons; the last game ends the plan."""


def plan(*, has_server: bool = True) -> Props:
    """The section "plan". has_server: False in a file, which cannot give out the file and runs no model."""
    known = list(lessons().values())
    if not known:
        return blocks.section(NAME, TITLE, "", (), [blocks.words(NONE_YET)])
    total = sum(slot.minutes for slot in _slots(known))
    listed: Props = {"kind": "lessons", "entries": list(_entries(known, has_server)), "file": None}
    if has_server:
        listed["file"] = {"href": FILE_ROUTE, "name": FILE_NAME, "words": FILE_WORDS, "note": FILE_NOTE}
    use = [ROOM[0], HAND_OUT if has_server else HANDED_OUT, ROOM[-1]]
    room = blocks.details("How to use this in a room", [blocks.words(list(each)) for each in use])
    return blocks.section(NAME, f"{TITLE}: {total} minutes", _lead(len(known), has_server), (), [room, listed])


def _lead(count: int, has_server: bool) -> str:
    number = "One short lesson" if count == 1 else f"{count} short lessons"
    games = "two games" if has_server else "a game"
    return (
        f"{number}, {games} and a break. Every lesson begins with a question, has something to do, and breaks one "
        "wrong idea. The runs are recorded: no model is needed to take part."
    )


def _slots(known: Sequence[Lesson]) -> Iterator[Lesson | Pause]:
    """The plan in order."""
    for number, lesson in enumerate(known, 1):
        yield lesson
        if number in AFTER and number < len(known):
            yield AFTER[number]
    yield BE_THE_DRAFT


def _entries(known: Sequence[Lesson], has_server: bool) -> Iterator[Props]:
    begin, number = 0, 0
    for slot in _slots(known):
        entry: Props = {
            "clock": f"{begin // 60}:{begin % 60:02}",
            "minutes": f"{slot.minutes} min",
            "title": slot.title,
        }
        begin += slot.minutes
        if isinstance(slot, Pause):
            absent = slot.needs_model and not has_server
            more = " It needs specviz itself, with a model." if absent else ""
            yield {**entry, "words": f"{slot.words}{more}", "section": "" if absent else slot.section}
        else:
            number += 1
            yield {**entry, **_listed(slot), "number": f"{number}"}


def _listed(lesson: Lesson) -> Props:
    return {
        "name": lesson.name,
        "question": lesson.question,
        "misconception": lesson.misconception,
        "teacher": [list(each) for each in lesson.teacher],
    }


# ---- one lesson ------------------------------------------------------------------------------------------------------


@cache
def lesson_props(name: str) -> Props:
    """What the panel shows of a lesson, not to be changed. Raises KeyError for a name that is not one."""
    known = list(lessons().values())
    lesson = lessons()[name]
    place = known.index(lesson)
    after = known[place + 1] if place + 1 < len(known) else None
    return {
        "name": name,
        "title": lesson.title,
        "question": lesson.question,
        "place": f"Lesson {place + 1} of {len(known)} · {lesson.minutes} min",
        "live": _live(lesson),
        "next": None if after is None else {"name": after.name, "title": after.title},
        "screens": list(_screens(lesson)),
    }


def _live(lesson: Lesson) -> str:
    """What is tried live, in words; nothing where nothing is."""
    if lesson.setup is None:
        return ""
    return lesson.live or f"{', '.join(setup_words(lesson.setup))}."


def setup_words(setup: Mapping[str, Any]) -> list[str]:
    """What a setup sets, one entry per field."""
    return [_SPELLED.get(field, _plain)(field, value) for field, value in setup.items()]


def _plain(field: str, value: Any) -> str:
    return f"{field.replace('_', ' ')} {label(str(value))}"


_SPELLED = {
    "k": lambda _, value: f"K {value}",
    "temperature": lambda _, value: f"temperature {value:g}",
    "max_new_tokens": lambda _, value: f"{value:,} tokens",
    "method": lambda _, value: f"method {titled(value, METHOD_TITLES)}",
    "rule": lambda _, value: "the method's own rule" if value is None else f"rule {titled(value, RULE_TITLES)}",
    "draft": lambda _, value: "no draft model" if value is None else f"draft model {label(value)}",
    "prompt": lambda _, value: "a prompt of its own",
    "params": lambda _, value: ", ".join(f"{label(name)} {label(str(each))}" for name, each in value.items()),
    "chat": lambda _, value: "chat template" if value else "no chat template",
}


def _screens(lesson: Lesson) -> Iterator[Props]:
    run = None  # what is on the stage by then
    for number, screen in enumerate(lesson.screens, 1):
        run = screen.show.run if screen.show and screen.show.run else run
        yield {
            "title": screen.title,
            "place": f"{number} of {len(lesson.screens)}",
            "width": round(100 * number / len(lesson.screens), 1),
            "words": [list(each) for each in screen.words],
            **_shown(screen, run),
            "law": None if screen.law is None else _law(screen.law),
            "task": None if screen.task is None else _task(screen.task),
        }


def _shown(screen: Screen, run: str | None) -> Props:
    show = screen.show
    if show is None:
        return {"show": None, "compare": None}
    if show.compare:
        return {"show": None, "compare": {"runs": [_named(name) for name in show.compare]}}
    pin = show.pin and {"step": show.pin.step, "ref": show.pin.ref}
    return {"show": {**_named(run), "pin": pin}, "compare": None}


def _named(run: str) -> Props:
    entry = shipped()[run]
    return {"run": run, "id": f"{SHIPPED}{run}", "title": visible(entry.title), "about": visible(entry.about)}


def _seen(seen: Seen) -> Props:
    named = _named(seen.run)
    return {**named, "title": seen.words or named["title"]}


def _law(law: Law) -> Props:
    return law_block(shipped_trace(law.run), law.pin.step, law.pin.ref, law.rules)


def _task(task: Task) -> Props:
    return {"words": list(task.words), "praise": task.praise, **_done(task.done)}


def _done(done: Done) -> Props:
    times = len(done.runs) if done.kind == "see" else done.times
    return {
        "kind": done.kind,
        "times": times,
        "counts": [f"{number} of {times}" for number in range(times + 1)] if times > 1 else [],
        "status": list(done.status),
        "runs": [_seen(each) for each in done.runs],
        "options": [{"words": each.words, "right": each.right, "why": each.why} for each in done.options],
        "reveal": done.reveal,
    }
