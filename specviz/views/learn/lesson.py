"""The props of one lesson, for the panel beside the stage; the browser remembers what was done. Loads no torch."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import asdict

from specviz.drafters import METHODS
from specviz.lessons.load import found_lessons
from specviz.lessons.types import Done, Lesson, Screen, Show
from specviz.request import spell_options
from specviz.rules.facts import FACTS
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.views.blocks import Props
from specviz.views.check.distributions import distribution_block
from specviz.views.learn.plan import game_after, tasks_of
from specviz.views.words import label, reveal, title_of

AT_INSPECTOR = ("throw", "made")  # kinds of tasks that are done there
SHIPPED = "shipped:"
"""Begins the id of a recorded run in the page; its name follows."""


def lesson_props(name: str, *, has_server: bool = True) -> Props:
    """What the panel shows of a lesson. Raises KeyError for a name that is not one."""
    known = list(found_lessons().lessons.values())
    lesson = found_lessons().lessons[name]
    place = known.index(lesson)
    after = known[place + 1] if place + 1 < len(known) else None
    return {
        "name": name,
        "title": lesson.title,
        "question": lesson.question,
        "place": f"Lesson {place + 1} of {len(known)} · {lesson.minutes} min",
        "live": ""
        if lesson.setup is None
        else lesson.live or f"{', '.join(_setup_words(lesson.setup))}.",
        "next": None if after is None else {"name": after.name, "title": after.title},
        "game": game_after(lesson, known, has_server),
        "tasks": tasks_of(lesson),
        "screens": list(_screens(lesson)),
    }


def _setup_words(setup: Mapping[str, Any]) -> list[str]:
    return [
        _SETUP_WORDS[field](value)
        if field in _SETUP_WORDS
        else f"{field.replace('_', ' ')} {label(str(value))}"
        for field, value in setup.items()
    ]


_SETUP_WORDS = {
    "k": "K {}".format,
    "temperature": "temperature {:g}".format,
    "max_new_tokens": "{:,} tokens".format,
    "method": lambda value: f"method {title_of(value, METHODS)}",
    "rule": lambda value: (
        "the method's own rule" if value is None else f"rule {title_of(value, FACTS)}"
    ),
    "draft": lambda value: "no draft model" if value is None else f"draft model {label(value)}",
    "prompt": lambda _: "a prompt of its own",
    "params": lambda value: ", ".join(
        f"{label(name)} {label(str(each))}" for name, each in value.items()
    ),
    "chat": lambda value: "chat template" if value else "no chat template",
    "chat_options": lambda value: label(", ".join(spell_options(value))),
}


def _screens(lesson: Lesson) -> Iterator[Props]:
    run = None  # the one on the stage
    for number, screen in enumerate(lesson.screens, 1):
        run = screen.show.run if screen.show and screen.show.run else run
        distribution, task = screen.distribution, screen.task
        yield {
            "title": screen.title,
            "place": f"{number} of {len(lesson.screens)}",
            "width": round(100 * number / len(lesson.screens), 1),
            "words": [list(each) for each in screen.words],
            **_stage(screen.show, run),
            "lit": _lit(screen),
            "distribution": distribution
            and distribution_block(
                shipped_trace(distribution.run),
                distribution.step,
                distribution.ref,
                distribution.rules,
            ),
            "task": task
            and {"words": list(task.words), "praise": task.praise, **_condition(task.done)},
        }


def _lit(screen: Screen) -> list[str]:
    """The panels of the stage that the screen is about; all of them where it shows nothing there."""
    if screen.show is None or not (screen.show.run or screen.show.pin):
        return []
    kind = screen.task.done.kind if screen.task else ""
    at_inspector = screen.show.pin is not None or kind in AT_INSPECTOR
    return [
        "text",
        "lanes",
        *(["inspector"] if at_inspector else ["numbers"]),
        *(["player"] if kind == "play" else []),
    ]


def _stage(show: Show | None, run: str | None) -> Props:
    """What a screen puts on the stage, if anything: one run with a pin, or two runs to compare."""
    if show is None:
        return {"show": None, "compare": None}
    if show.compare:
        return {"show": None, "compare": {"runs": [_run(name) for name in show.compare]}}
    return {"show": {**_run(run), "pin": show.pin and asdict(show.pin)}, "compare": None}


def _run(name: str, title: str = "") -> Props:
    entry = shipped_runs()[name]
    words = {"title": title or reveal(entry.title), "about": reveal(entry.about)}
    return {"run": name, "id": f"{SHIPPED}{name}", **words}


def _condition(done: Done) -> Props:
    times = len(done.runs) if done.kind == "see" else done.times
    return {
        "kind": done.kind,
        "times": times,
        "counts": [f"{number} of {times}" for number in range(times + 1)] if times > 1 else [],
        "status": list(done.status),
        "runs": [_run(each.run, each.words) for each in done.runs],
        "options": [{"why": each.why, **asdict(each)} for each in done.options],
        "reveal": done.reveal,
    }
