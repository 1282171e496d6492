"""The plan of the lessons, which opens the Learn page: lessons, games, a break by the clock; the whole or a short way.

Plain values in, props out; the browser counts what was done and remembers it. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from specviz.lessons.load import found_lessons
from specviz.lessons.types import Lesson
from specviz.views import blocks
from specviz.views.blocks import Props
from specviz.views.explore.sentences import counted, visible

NAME, TITLE = "plan", "The plan"
FILE_ROUTE = "/specviz/lessons.html"
FILE_NAME = "specviz-lessons.html"
NONE_YET = "No lesson is there: the folder assets/lessons is empty."
ROOM = (
    "Open one lesson on the projector and press ", "Present", ": the type grows. Read the question aloud and collect "
    "guesses before anything is shown. Then let the room do the task; a task marks itself as done.",
)  # fmt: skip
NOTES = "Each lesson has a note for the teacher."
LESS_TIME = " Lessons 1 to 4 build on each other. With less time, choose the short way in the plan: {minutes} minutes."
HAND_OUT = (
    "For every student: save the one file below and hand it out, by mail or on a stick. It opens from disk on a "
    "laptop or a phone and asks no network and no server. What it cannot do is run a model.",
)
HANDED_OUT = (
    "For every student: hand out this file, by mail or on a stick. It opens from disk on a laptop or a phone and asks "
    "no network and no server. What it cannot do is run a model: that needs specviz itself.",
)
LEFT_OUT = "A lesson that cannot be shown"
NO_FILE = "Until this is mended there is no file of all lessons to save."
FILE_WORDS = "Save all lessons as one file"
FILE_NOTE = "All lessons with their recorded runs and the first game, for a browser without network."


@dataclass(frozen=True, slots=True)
class Pause:
    """What stands in the plan between two lessons. section: of the Learn page, if it is a game."""

    minutes: int
    title: str
    words: str
    section: str = ""

    @property
    def invitation(self) -> str:
        return f"Play{self.title.removeprefix('Game')}"


Slot = Lesson | Pause

PREDICT = Pause(6, "Game: predict the verdict", "See both models' odds, guess, then the dart falls.", "predict")
BREAK = Pause(5, "Break", "Coffee, fresh air, questions.")
BE_THE_DRAFT = Pause(
    8,
    "Game: you are the draft model",
    "Type the next words; the target judges them with your words as its draft.",
    "be-the-draft",
)
ONCE_MORE = Pause(
    8,
    "Game: predict the verdict once more",
    "Choose another run in the game: with a weak draft, or at a higher temperature. Do you guess better by now?",
    "predict",
)
"""In place of the last game where no model can run."""
AFTER: Mapping[int, Pause] = {3: PREDICT, 6: BREAK}
"""Behind so many lessons; the last game ends the plan."""
SHORT = ("why-slow", "draft-and-verify", "acceptance-rule", PREDICT.title, "residual", "when-it-does-not-help")
"""The short way, in the plan's order: offered where all of it is there."""


def plan(*, has_server: bool = True) -> Props:
    """The section "plan". has_server: False in a file, which cannot give out the file and runs no model."""
    found = found_lessons()
    known = list(found.lessons.values())
    faults = [blocks.words([f"{LEFT_OUT}: ", "", f"{visible(fault)}. {NO_FILE}"]) for fault in found.faults]
    if not known:
        return blocks.section(NAME, TITLE, "", (), [*faults, blocks.words(NONE_YET)])
    slots = list(_slots(known, has_server))
    total, short = _minutes(slots), _minutes(_short(slots))
    listed: Props = {"kind": "lessons", "entries": _entries(slots), "ways": _ways(total, short), "file": None}
    if has_server and not faults:
        listed["file"] = {"href": FILE_ROUTE, "name": FILE_NAME, "words": FILE_WORDS, "note": FILE_NOTE}
    notes = (NOTES + (LESS_TIME.format(minutes=short) if short else ""),)
    use = [ROOM, HAND_OUT if has_server else HANDED_OUT, notes]
    room = blocks.details("How to use this in a room", [blocks.words(list(each)) for each in use])
    title = TITLE if short else f"{TITLE}: {total} minutes"
    return blocks.section(NAME, title, _lead(len(known), has_server), (), [*faults, room, listed])


def _lead(count: int, has_server: bool) -> str:
    number = "One short lesson" if count == 1 else f"{count} short lessons"
    games = "two games" if has_server else "a game that is played twice"
    return (
        f"{number}, {games} and a break. Every lesson begins with a question, has something to do, and breaks one "
        "wrong idea. The runs are recorded: no model is needed to take part."
    )


def _slots(known: Sequence[Lesson], has_server: bool) -> Iterator[Slot]:
    """The plan in order."""
    for number, lesson in enumerate(known, 1):
        yield lesson
        if number in AFTER and number < len(known):
            yield AFTER[number]
    yield BE_THE_DRAFT if has_server else ONCE_MORE


def _short(slots: Sequence[Slot]) -> list[Slot]:
    """The short way; empty where something of it is not there."""
    kept = [slot for slot in slots if _called(slot) in SHORT]
    return kept if [_called(slot) for slot in kept] == list(SHORT) else []


def _called(slot: Slot) -> str:
    return slot.name if isinstance(slot, Lesson) else slot.title


def _minutes(slots: Sequence[Slot]) -> int:
    return sum(slot.minutes for slot in slots)


def _ways(total: int, short: int) -> list[str]:
    """What can be chosen of the plan, in words; nothing where there is only one way."""
    return [f"All of it: {total} minutes", f"The short way: {short} minutes"] if short else []


def _entries(slots: Sequence[Slot]) -> list[Props]:
    """One per slot; `clocks`: when it begins, by each way, null where that leaves it out."""
    clocks, short = _clocks(slots), _clocks(_short(slots))
    numbers = {lesson.name: number for number, lesson in enumerate(_lessons_of(slots), 1)}
    return [
        {
            "clocks": [clocks[_called(slot)], short.get(_called(slot))],
            "minutes": f"{slot.minutes} min",
            "title": slot.title,
            **({"words": slot.words, "section": slot.section} if isinstance(slot, Pause) else _listed(slot)),
            **({} if isinstance(slot, Pause) else {"number": f"{numbers[slot.name]}"}),
        }
        for slot in slots
    ]


def _lessons_of(slots: Sequence[Slot]) -> list[Lesson]:
    return [slot for slot in slots if isinstance(slot, Lesson)]


def _clocks(slots: Sequence[Slot]) -> dict[str, str]:
    """When each begins."""
    begins = accumulate((slot.minutes for slot in slots), initial=0)
    return {_called(slot): f"{begin // 60}:{begin % 60:02}" for slot, begin in zip(slots, begins, strict=False)}


def _listed(lesson: Lesson) -> Props:
    return {
        "name": lesson.name,
        "question": lesson.question,
        "misconception": lesson.misconception,
        "teacher": [list(each) for each in lesson.teacher],
        "tasks": tasks_of(lesson),
    }


def tasks_of(lesson: Lesson) -> Props:
    """The screens that have a task, by their places, and how many of them were done in words."""
    places = [place for place, screen in enumerate(lesson.screens) if screen.task is not None]
    return {"places": places, "words": [f"{number} of {counted(len(places), 'task')}" for number in range(len(places))]}


def game_after(lesson: Lesson, known: Sequence[Lesson], has_server: bool) -> Props | None:
    """The game that follows the lesson in the plan."""
    slots = list(_slots(known, has_server))
    after = slots[slots.index(lesson) + 1]
    if isinstance(after, Lesson) or not after.section:
        return None
    return {"section": after.section, "words": after.invitation}
