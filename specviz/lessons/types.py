"""What a lesson is: its screens, what each puts on the stage, and the task that a person completes there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specviz.lessons.fields import Paragraph

LAW_RULES = ("speculative_sampling", "broken:resample_p")
"""The rules of which a law can be drawn (views.laws)."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A token of the run on the stage."""

    step: int
    ref: str


@dataclass(frozen=True, slots=True)
class Show:
    """What a screen puts on the stage: a recorded run, a token of it, or two recorded runs side by side."""

    run: str | None = None
    compare: tuple[str, str] | None = None
    pin: Pin | None = None


@dataclass(frozen=True, slots=True)
class Law:
    """The laws that some rules make of one recorded position."""

    run: str
    pin: Pin
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """A recorded run that a task opens. words: what its button says; empty: the run's title."""

    run: str
    words: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    words: str
    right: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """What completes a task. Only what its `kind` needs is set."""

    kind: str
    times: int = 1
    status: tuple[str, ...] = ()
    runs: tuple[Seen, ...] = ()
    options: tuple[Option, ...] = ()
    reveal: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    words: Paragraph
    done: Done
    praise: str


@dataclass(frozen=True, slots=True)
class Screen:
    title: str
    words: tuple[Paragraph, ...]
    show: Show | None = None
    law: Law | None = None
    task: Task | None = None


@dataclass(frozen=True, slots=True)
class Lesson:
    """setup: the fields in which the request to try live differs from the page's first one; None: nothing to try.

    live: what to look for in it, in a sentence; empty: what it sets is listed. pace: that of the run; None: as it is.
    """

    name: str
    title: str
    minutes: int
    misconception: str
    question: str
    teacher: tuple[Paragraph, ...]
    setup: Mapping[str, Any] | None
    screens: tuple[Screen, ...]
    live: str = ""
    pace: str | None = None

    def runs(self) -> list[str]:
        """The recorded runs that it uses, each once."""
        found: list[str] = []
        for screen in self.screens:
            found += _runs_of(screen)
        return list(dict.fromkeys(found))


def _runs_of(screen: Screen) -> list[str]:
    show, law, task = screen.show, screen.law, screen.task
    named = [*((show.run,) if show and show.run else ()), *((show.compare or ()) if show else ())]
    return [*named, *([law.run] if law else ()), *(seen.run for seen in (task.done.runs if task else ()))]
