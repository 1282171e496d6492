"""One lesson for reading, as the panel beside the stage shows it.

Plain values in, props out; the browser lays them out, counts what was done and remembers it. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from specviz.drafters import METHODS
from specviz.lessons.load import found_lessons
from specviz.lessons.types import Done, Law, Lesson, Screen, Seen, Task
from specviz.rules.facts import FACTS
from specviz.settings import assets_dir
from specviz.trace.recorded import recorded_runs, recorded_trace
from specviz.views.blocks import Props
from specviz.views.check.laws import law_block
from specviz.views.explore.sentences import label, titled, visible
from specviz.views.learn.plan import game_after, tasks_of

SHIPPED = "shipped:"
"""Begins the id of a recorded run wherever it is shown: what follows is its name."""


def lesson_props(name: str, *, has_server: bool = True) -> Props:
    """What the panel shows of a lesson, not to be changed. Raises KeyError for a name that is not one."""
    return _props(assets_dir(), name, has_server)


@cache
def _props(assets: Path, name: str, has_server: bool) -> Props:
    """assets: where lessons and runs are read from."""
    known = list(found_lessons().lessons.values())
    lesson = found_lessons().lessons[name]
    place = known.index(lesson)
    after = known[place + 1] if place + 1 < len(known) else None
    return {
        "name": name,
        "title": lesson.title,
        "question": lesson.question,
        "place": f"Lesson {place + 1} of {len(known)} · {lesson.minutes} min",
        "live": _live(lesson),
        "next": None if after is None else {"name": after.name, "title": after.title},
        "game": game_after(lesson, known, has_server),
        "tasks": tasks_of(lesson),
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
    "method": lambda _, value: f"method {titled(value, METHODS)}",
    "rule": lambda _, value: "the method's own rule" if value is None else f"rule {titled(value, FACTS)}",
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
    entry = recorded_runs()[run]
    return {"run": run, "id": f"{SHIPPED}{run}", "title": visible(entry.title), "about": visible(entry.about)}


def _seen(seen: Seen) -> Props:
    named = _named(seen.run)
    return {**named, "title": seen.words or named["title"]}


def _law(law: Law) -> Props:
    return law_block(recorded_trace(law.run), law.pin.step, law.pin.ref, law.rules)


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
