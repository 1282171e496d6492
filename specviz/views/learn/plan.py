"""The plan of the lessons, first section of the Learn page: lessons with a picture each, games, a break, times.

Loads no torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specviz.lessons.load import found_lessons
from specviz.lessons.types import Lesson
from specviz.views import blocks
from specviz.views.blocks import PageBlock, PageRecord
from specviz.views.learn.picture import LessonPicture, picture
from specviz.views.words import quantity, reveal

NAME = "plan"
TITLE = "The plan"
FILE_ADDRESS = "specviz/lessons.html"  # beside the page
FILE_NAME = "specviz-lessons.html"
NONE_YET = "There are no lessons: the folder assets/lessons is empty."
ROOM = (
    "Open one lesson on the projector and press ", "Present", ": the type grows. Read the question aloud and collect "
    "guesses before you show anything. Then let the room do the task; it marks itself as done.",
)  # fmt: skip
NOTES = "Each lesson has a note for the teacher."
LESS_TIME = " Lessons 1 to 4 build on each other. With less time, take the short way in the plan: {minutes} minutes."
HAND_OUT = (
    "For every student: save the one file below and share it, by mail or on a stick. It opens from disk on a laptop or "
    "a phone, without network or server. It cannot run a model.",
)
HANDED_OUT = (
    "For every student: share this file, by mail or on a stick. It opens from disk on a laptop or a phone, without "
    "network or server. It cannot run a model: that needs specviz itself.",
)
LEFT_OUT = "A lesson that cannot be shown"
NO_FILE = "Until it is fixed, all lessons cannot be saved as one file."
LEAD = (
    "{lessons}, {games} and a break. Every lesson begins with a question, has something to do, and corrects one wrong "
    "idea. The runs are recorded: no model is needed to take part."
)


class LessonFile(PageRecord):
    """The link to all lessons in one file."""

    href: str
    name: str
    words: str
    note: str


class LessonTasks(PageRecord):
    """The tasks of a lesson."""

    places: Sequence[int]  # of the screens that have one
    words: Sequence[str]  # for 0, 1, ... of them done


class GameLink(PageRecord):
    """The button at the end of a lesson that leads to a game."""

    section: str  # of the Learn page
    words: str


class PlanEntry(PageRecord):
    """An entry of the plan."""

    # when it begins in the whole plan and in the short way; None where the short way leaves it out
    clocks: tuple[str, str | None]
    minutes: str
    title: str


class PauseEntry(PlanEntry):
    """A break or a game between two lessons."""

    words: str
    section: str  # the game's on the Learn page; "" for a break


class LessonEntry(PlanEntry):
    """A lesson in the plan."""

    name: str
    question: str
    misconception: str
    teacher: Sequence[Sequence[str]]  # paragraphs; every second text of one is set off
    tasks: LessonTasks
    number: str
    picture: LessonPicture


class LessonsBlock(PageBlock, tag="lessons"):
    """The lessons, games and breaks in the plan's order."""

    entries: Sequence[PlanEntry]
    ways: Sequence[str]  # the whole plan and the short way, if there is one
    file: LessonFile | None


FILE = LessonFile(
    FILE_ADDRESS,
    FILE_NAME,
    "Save all lessons as one file",
    "All lessons, their recorded runs and the first game, for a browser without network.",
)


@dataclass(frozen=True, slots=True)
class Pause:
    """A break or a game between two lessons."""

    minutes: int
    title: str
    words: str
    section: str = ""
    """The game's section on the Learn page."""

    @property
    def name(self) -> str:
        """The name in the short way; a lesson has a name of its own."""
        return self.title


Slot = Lesson | Pause

PREDICT = Pause(
    6,
    "Game: predict the verdict",
    "See both probabilities and guess; then the draw falls.",
    "predict",
)
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
    "Choose another run in the game: a weak draft, or a higher temperature. Do you guess better now?",
    "predict",
)
"""The last game where no model can run."""
AFTER: Mapping[int, Pause] = {3: PREDICT, 6: BREAK}
"""Number of lessons -> the pause that follows them; a game ends the plan."""
SHORT = (
    "why-slow",
    "draft-and-verify",
    "acceptance-rule",
    PREDICT.title,
    "residual",
    "when-it-does-not-help",
)
"""The short way, in the plan's order. It is offered only if all its parts are in the plan."""


def plan(*, has_server: bool = True) -> blocks.PageSection:
    """The section "plan". has_server: False in the one-file export, which offers no file and runs no model."""
    found = found_lessons()
    known = list(found.lessons.values())
    faults = []
    for fault in found.faults:
        words = [f"{LEFT_OUT}: ", "", f"{reveal(fault)}. {NO_FILE}"]
        faults.append(blocks.WordsBlock(words))
    if not known:
        return blocks.PageSection(NAME, TITLE, "", (), [*faults, blocks.WordsBlock(NONE_YET)])
    slots = list(_slots(known, has_server))
    total = sum(slot.minutes for slot in slots)
    short = sum(slot.minutes for slot in _short_way(slots))
    title = f"{TITLE}: {total} minutes"
    ways = []
    notes = NOTES
    if short:
        title = TITLE
        ways = [f"All of it: {total} minutes", f"The short way: {short} minutes"]
        notes += LESS_TIME.format(minutes=short)
    file = FILE if has_server and not faults else None
    listed = LessonsBlock(list(_entries(slots)), ways, file)
    use = [ROOM, HAND_OUT if has_server else HANDED_OUT, (notes,)]
    room = blocks.DetailsBlock(
        "How to use this in a room", [blocks.WordsBlock(list(text)) for text in use]
    )
    lessons = "One short lesson" if len(known) == 1 else f"{len(known)} short lessons"
    games = "two games" if has_server else "a game that is played twice"
    lead = LEAD.format(lessons=lessons, games=games)
    return blocks.PageSection(NAME, title, lead, (), [*faults, listed, room])


def _slots(known: Sequence[Lesson], has_server: bool) -> Iterator[Slot]:
    """The lessons, with the pauses between them and the game at the end."""
    for number, lesson in enumerate(known, 1):
        yield lesson
        if number in AFTER and number < len(known):
            yield AFTER[number]
    yield BE_THE_DRAFT if has_server else ONCE_MORE


def _short_way(slots: Sequence[Slot]) -> list[Slot]:
    """The slots of the short way; none where one of them is missing."""
    short = [slot for slot in slots if slot.name in SHORT]
    return short if [slot.name for slot in short] == list(SHORT) else []


def _entries(slots: Sequence[Slot]) -> Iterator[PlanEntry]:
    """An entry for each slot."""
    clocks = _clocks(slots)
    short_clocks = _clocks(_short_way(slots))
    number = 0
    for slot in slots:
        begins = clocks[slot.name], short_clocks.get(slot.name)
        minutes = f"{slot.minutes} min"
        if isinstance(slot, Pause):
            yield PauseEntry(begins, minutes, slot.title, slot.words, slot.section)
        else:
            number += 1
            yield LessonEntry(
                begins,
                minutes,
                slot.title,
                slot.name,
                slot.question,
                slot.misconception,
                slot.teacher,
                tasks_of(slot),
                f"{number}",
                picture(slot),
            )


def _clocks(slots: Sequence[Slot]) -> dict[str, str]:
    """Name -> the time at which it begins, as hours and minutes."""
    clocks = {}
    begin = 0
    for slot in slots:
        clocks[slot.name] = f"{begin // 60}:{begin % 60:02}"
        begin += slot.minutes
    return clocks


def tasks_of(lesson: Lesson) -> LessonTasks:
    """The tasks of a lesson, with words for how many of them are done."""
    places = [place for place, screen in enumerate(lesson.screens) if screen.task is not None]
    tasks = quantity(len(places), "task")
    return LessonTasks(places, [f"{number} of {tasks}" for number in range(len(places))])


def game_after(lesson: Lesson, known: Sequence[Lesson], has_server: bool) -> GameLink | None:
    """The game that follows the lesson in the plan."""
    slots = list(_slots(known, has_server))
    after = slots[slots.index(lesson) + 1]
    if isinstance(after, Lesson) or not after.section:
        return None
    return GameLink(after.section, f"Play{after.title.removeprefix('Game')}")
