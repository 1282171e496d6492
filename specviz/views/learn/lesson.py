"""The props of one lesson, for the panel beside the stage; the browser remembers the tasks done. Loads no torch."""

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

AT_INSPECTOR = ("throw", "made")  # kinds of tasks that are done at the inspector
SHIPPED = "shipped:"
"""The beginning of a recorded run's id in the page; the run's name follows."""


def lesson_props(name: str, *, has_server: bool = True) -> Props:
    """The props of a lesson's panel. Raises KeyError for an unknown name."""
    known = list(found_lessons().lessons.values())
    lesson = found_lessons().lessons[name]
    place = known.index(lesson)
    live = ""
    if lesson.setup is not None:
        live = lesson.live or f"{', '.join(_setup_words(lesson.setup))}."
    following = None
    if place + 1 < len(known):
        after = known[place + 1]
        following = {"name": after.name, "title": after.title}
    return {
        "name": name,
        "title": lesson.title,
        "question": lesson.question,
        "place": f"Lesson {place + 1} of {len(known)} · {lesson.minutes} min",
        "live": live,
        "next": following,
        "game": game_after(lesson, known, has_server),
        "tasks": tasks_of(lesson),
        "screens": list(_screens(lesson)),
    }


def _setup_words(setup: Mapping[str, Any]) -> list[str]:
    """The fields of a request that a live run changes, in words."""
    words = []
    for field, value in setup.items():
        spell = _SETUP_WORDS.get(field)
        if spell is not None:
            words.append(spell(value))
        else:
            words.append(f"{field.replace('_', ' ')} {label(str(value))}")
    return words


def _rule_words(name: str | None) -> str:
    return "the method's own rule" if name is None else f"rule {title_of(name, FACTS)}"


def _draft_words(name: str | None) -> str:
    return "no draft model" if name is None else f"draft model {label(name)}"


def _params_words(params: Mapping[str, Any]) -> str:
    words = [f"{label(name)} {label(str(value))}" for name, value in params.items()]
    return ", ".join(words)


_SETUP_WORDS = {
    "k": "K {}".format,
    "temperature": "temperature {:g}".format,
    "max_new_tokens": "{:,} tokens".format,
    "method": lambda name: f"method {title_of(name, METHODS)}",
    "rule": _rule_words,
    "draft": _draft_words,
    "prompt": lambda _: "a prompt of its own",
    "params": _params_words,
    "chat": lambda is_on: "chat template" if is_on else "no chat template",
    "chat_options": lambda options: label(", ".join(spell_options(options))),
}


def _screens(lesson: Lesson) -> Iterator[Props]:
    run = None  # the one on the stage
    for number, screen in enumerate(lesson.screens, 1):
        if screen.show and screen.show.run:
            run = screen.show.run
        distribution = screen.distribution
        bars = None
        if distribution:
            trace = shipped_trace(distribution.run)
            bars = distribution_block(
                trace, distribution.step, distribution.ref, distribution.rules
            )
        yield {
            "title": screen.title,
            "place": f"{number} of {len(lesson.screens)}",
            "width": round(100 * number / len(lesson.screens), 1),
            "words": [list(words) for words in screen.words],
            **_stage(screen.show, run),
            "lit": _lit(screen),
            "distribution": bars,
            "task": _task(screen),
        }


def _task(screen: Screen) -> Props | None:
    task = screen.task
    if task is None:
        return None
    return {"words": list(task.words), "praise": task.praise, **_condition(task.done)}


def _lit(screen: Screen) -> list[str]:
    """The panels of the stage that the screen is about; none marks all of them."""
    if screen.show is None or not (screen.show.run or screen.show.pin):
        return []
    kind = screen.task.done.kind if screen.task else ""
    at_inspector = screen.show.pin is not None or kind in AT_INSPECTOR
    panels = ["text", "lanes", "inspector" if at_inspector else "numbers"]
    if kind == "play":
        panels.append("player")
    return panels


def _stage(show: Show | None, run: str | None) -> Props:
    """The content of the stage: one run with a pin, two runs to compare, or nothing."""
    if show is None:
        return {"show": None, "compare": None}
    if show.compare:
        return {"show": None, "compare": {"runs": [_run(name) for name in show.compare]}}
    pin = asdict(show.pin) if show.pin else None
    return {"show": {**_run(run), "pin": pin}, "compare": None}


def _run(name: str, title: str = "") -> Props:
    entry = shipped_runs()[name]
    return {
        "run": name,
        "id": f"{SHIPPED}{name}",
        "title": title or reveal(entry.title),
        "about": reveal(entry.about),
    }


def _condition(done: Done) -> Props:
    """When a task counts as done."""
    times = len(done.runs) if done.kind == "see" else done.times
    counts = []
    if times > 1:
        counts = [f"{number} of {times}" for number in range(times + 1)]
    return {
        "kind": done.kind,
        "times": times,
        "counts": counts,
        "status": list(done.status),
        "runs": [_run(run.run, run.words) for run in done.runs],
        "options": [{"why": option.why, **asdict(option)} for option in done.options],
        "reveal": done.reveal,
    }
