"""What the page says, and whether a table of another language has it: looked up by other code than core/language.js."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from specviz.lessons.load import lessons
from specviz.trace import Trace
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.views.explore.feed import Feed
from specviz.views.explore.opening import opening
from specviz.views.learn.lesson import lesson_props
from specviz.views.learn.plan import plan
from tests.helpers import evidence_traces, traces

ELEMENT = "<>"
PLACE = re.compile(r"\{(\w+)\}")
SENTENCE_ENDS = re.compile(r"(?<=[.?!]) ")


class Table:
    """All sentences of a language."""

    def __init__(self, rooms: Mapping[str, Mapping[str, str]]) -> None:
        self.entries = {english: other for table in rooms.values() for english, other in table.items()}
        self._patterns = []
        for english in self.entries:
            if PLACE.search(english):
                parts = PLACE.split(english)
                names = parts[1::2]
                parts[::2] = map(re.escape, parts[::2])
                parts[1::2] = [r"([<>~+-]?\d[^ ]*?)" if name.startswith("number") else "(.+?)" for name in names]
                self._patterns.append((re.compile("".join(parts), re.DOTALL), names))
        self.knows = cache(self.knows)

    def knows(self, english: str) -> bool:
        """Whether every sentence of this text is in the table."""
        if english in self.entries:
            return True
        for pattern, names in self._patterns:
            found = pattern.fullmatch(english)
            if found and all(
                self.knows(value) for name, value in zip(names, found.groups(), strict=True) if name.startswith("words")
            ):
                return True
        ends = [end.start() for end in SENTENCE_ENDS.finditer(english)]
        return any(self.knows(english[:end]) and self.knows(english[end + 1 :]) for end in ends)


def sentence(parts: Sequence[str]) -> str:
    """The key of a sentence whose every second part is set off."""
    return "".join(ELEMENT if place % 2 else part for place, part in enumerate(parts)).strip()


def said_by_lesson(name: str) -> Iterator[str]:
    """What a lesson says."""
    panel = lesson_props(name)
    yield from (panel.title, panel.question, panel.live)
    for screen in panel.screens:
        yield screen.title
        yield from map(sentence, screen.words)
        runs = [*filter(None, [screen.show]), *(screen.compare.runs if screen.compare else ())]
        if task := screen.task:
            runs += task.runs
            yield from (sentence(task.words), task.praise, task.reveal)
            for option in task.options:
                yield from (option.words, option.why)
        for run in runs:
            yield from (run.title, run.about)


def said_by_plan() -> Iterator[str]:
    """What the plan says of the lessons."""
    for has_server in (True, False):
        section = plan(has_server=has_server)
        yield from (section.title, section.lead)
    for name, lesson in lessons().items():
        yield from (lesson.title, lesson.misconception, lesson_props(name).place)
        yield from map(sentence, lesson.teacher)


def said_by_opening(trace: Trace) -> Iterator[str]:
    """What the opening says of every step of a run."""
    for index in range(len(trace.steps)):
        told = opening(trace, index)
        yield from (told.title, told.run)
        yield from (token.fell for token in told.tokens if token.fell)
        for beat in told.beats:
            yield beat.sentence
            yield from (whose for whose, _ in beat.clocks)
            yield from (words for _, words in beat.numbers or [])


def said_by_run(trace: Trace) -> Iterator[str]:
    """What the stage says of a run, of its steps and of its tokens."""
    feed = Feed.from_trace(trace, "run")
    first = 0
    while steps := feed.since(first).steps:
        for step in steps:
            yield sentence(step.sentence or [])
            yield step.say
            for look in step.looks.values():
                yield sentence(look.title)
                yield sentence(look.note or [])
        first += len(steps)
    if end := feed.since(first).end:
        yield end.words


RUNS: dict[str, Callable[[], Trace]] = {
    **{name: (lambda name=name: shipped_trace(name)) for name in shipped_runs()},
    **{f"made {name}": made for name, made in {**traces.ALL, **evidence_traces.ALL}.items()},
}
SAID = {
    **{f"lesson {name}": (lambda name=name: said_by_lesson(name)) for name in lessons()},
    "the plan": said_by_plan,
    **{f"the opening of {name}": (lambda made=made: said_by_opening(made())) for name, made in RUNS.items()},
    **{f"the run {name}": (lambda made=made: said_by_run(made())) for name, made in RUNS.items()},
    "the run of another engine": lambda: said_by_run(traces.foreign()),
}
"""Where something is said -> all of it in English."""
