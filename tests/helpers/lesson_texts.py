"""Lessons made up for tests: one of every kind of screen and task, over recorded runs that come with specviz."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specviz import settings

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>${3}{{4}}"


def screen(title: str = "A screen", **more: Any) -> dict[str, Any]:
    return {
        "title": title,
        "words": ["One paragraph.", ["The draft wrote ", "dog", ", the target ", "fox", "."]],
        **more,
    }


def task(done: dict[str, Any], words: str = "Do it.") -> dict[str, Any]:
    return {"words": words, "done": done, "praise": "Well done indeed."}


def lesson(name: str = "first", **changes: Any) -> dict[str, Any]:
    made = {
        "name": name,
        "title": f"The {name} lesson",
        "minutes": 7,
        "misconception": "rejected means wrong",
        "question": "What happens to a rejected token?",
        "teacher": ["Ask first.", "Then show."],
        "setup": {"k": 2, "temperature": 0.5},
        "screens": [screen()],
    }
    return {**made, **changes}


def stage_lesson() -> dict[str, Any]:
    """What is done on the stage."""
    options = [
        {"words": "It is wrong", "right": False, "why": "It may be a fine word."},
        {"words": "It is replaced", "right": True, "why": "By the target's own draw."},
    ]
    two_cuts = {"kind": "pin", "status": ["rejected"], "times": 2}
    screens = [
        screen("Guess", task=task({"kind": "guess", "options": ["Lost", "Kept"], "reveal": "It is replaced."})),
        screen("Watch", show={"run": "sum"}, task=task({"kind": "play"})),
        screen("Pin", show={"run": "first-visit", "pin": PIN}, task=task(two_cuts)),
        screen("Throw", task=task({"kind": "throw", "times": 10})),
        screen("Choose", task=task({"kind": "choose", "options": options})),
    ]
    return lesson("stage", screens=screens)


PIN = {"step": 0, "ref": "1"}  # of the run first-visit: a cut token


def other_lesson() -> dict[str, Any]:
    """What is done elsewhere: laws, several runs, the making of a draft, two runs side by side, the game."""
    rules = ["speculative_sampling", "broken:resample_p"]
    screens = [
        screen("Law", distribution={"run": "first-visit", **PIN, "rules": rules}),
        screen("See", task=task({"kind": "see", "runs": ["k-1", "sum"]})),
        screen("Made", show={"run": "eagle"}, task=task({"kind": "made"})),
        screen("Side by side", show={"compare": ["first-visit", "broken-residual"]}),
        screen("Game", task=task({"kind": "predict", "times": 2})),
    ]
    return lesson("other", setup=None, screens=screens)


def hostile_lesson() -> dict[str, Any]:
    """A script in every field that may hold a text."""
    options = [{"words": HOSTILE, "right": right, "why": HOSTILE} for right in (True, False)]
    return lesson(
        "hostile",
        title=HOSTILE,
        misconception=HOSTILE,
        question=HOSTILE,
        teacher=[[HOSTILE, HOSTILE]],
        setup={"prompt": HOSTILE, "draft": HOSTILE},
        screens=[
            {
                "title": HOSTILE,
                "words": [HOSTILE, [HOSTILE, HOSTILE]],
                "task": {
                    "words": [HOSTILE, HOSTILE],
                    "done": {"kind": "choose", "options": options},
                    "praise": HOSTILE,
                },
            }
        ],
    )


@contextmanager
def taught(folder: Path, *values: dict[str, Any]) -> Iterator[Path]:
    """The assets with these lessons in place of their own."""
    own = settings.assets_dir()
    for path in own.iterdir():
        if path.name != "lessons":
            (folder / path.name).symlink_to(path, target_is_directory=path.is_dir())
    (folder / "lessons").mkdir()
    for number, value in enumerate(values, 1):
        (folder / "lessons" / f"{number:02}-{value['name']}.json").write_text(json.dumps(value), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECVIZ_ASSETS", str(folder))
        yield folder / "lessons"
