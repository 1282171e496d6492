"""A picture for each lesson, from its own recorded runs: a rule's law as bars, a random draw on its bar, or lanes.

Props for picture.js, which computes nothing. Loads no torch.
"""

from specviz.lessons.types import Lesson, See, Show, Throw
from specviz.rules.facts import facts_of
from specviz.trace import DraftToken, EmittedToken, Step
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.views import blocks
from specviz.views.blocks import Props
from specviz.views.check.distributions import distribution_block
from specviz.views.explore.steps import most_telling
from specviz.views.explore.titles import last_token
from specviz.views.words import SPACE, percent, reveal, token_label

MOST_ROWS = 3


def picture(lesson: Lesson) -> Props:
    """`words`: what is drawn; and either `bars`, rows of a block of bars, or `lanes`, each with its words and cells
    [text, status]. Without both where the lesson shows no run."""
    screens = lesson.screens
    if distribution := next(
        (screen.distribution for screen in screens if screen.distribution), None
    ):
        block = distribution_block(
            shipped_trace(distribution.run),
            distribution.step,
            distribution.ref,
            distribution.rules,
        )
        return {
            "words": "how often each token is written, by two rules",
            "bars": block["rows"][: 2 * len(distribution.rules)],
        }
    thrown = [
        screen.show
        for screen in screens
        if screen.task and isinstance(screen.task.done, Throw) and screen.show
    ]
    if bar := next(filter(None, map(_draw, thrown)), None):
        return {"words": "a random draw falls on a bar", "bars": [bar]}
    seen = next(
        (
            screen.task.done
            for screen in screens
            if screen.task and isinstance(screen.task.done, See)
        ),
        None,
    )
    if seen is not None and len(seen.runs) > 1:
        named = [
            (each.words or reveal(shipped_runs()[each.run].title), each.run)
            for each in seen.runs[:MOST_ROWS]
        ]
        runs = [(words, shipped_trace(run).steps) for words, run in named]
        # of each the first step that drafts most, so that runs can be told apart by their drafts
        lanes = [
            [words, _cells(max(steps, key=lambda step: len(step.draft)))]
            for words, steps in runs
            if steps
        ]
        return {"words": "a step of each run", "lanes": lanes}
    shows = [screen.show for screen in screens if screen.show and screen.show.run]
    pinned = next((show for show in shows if show.pin), shows[0] if shows else None)
    if pinned is None:
        return {"words": ""}
    first = pinned.pin.step if pinned.pin else 0
    steps = shipped_trace(pinned.run).steps[first : first + MOST_ROWS]
    return {
        "words": "steps of its run",
        "lanes": [[f"step {step.index + 1}", _cells(step)] for step in steps],
    }


def _cells(step: Step) -> list[list[str]]:
    drafted = [step.draft[node] for node in most_telling(step)[0]]
    cells, last = [[_word(token), token.status] for token in drafted], last_token(step)
    return cells + ([[_word(last), last.kind]] if last else [])


def _word(token: DraftToken | EmittedToken) -> str:
    """A token without the space that it may begin with: a picture is looked at, not counted."""
    word = token_label(token)
    return word.strip(SPACE) or word


def _draw(show: Show) -> Props | None:
    """The bar on which the random draw fell for the pinned token; None where it is no judged token of a draft."""
    if not (show.run and show.pin):
        return None
    step = shipped_trace(show.run).steps[show.pin.step]
    token = next((each for node, each in enumerate(step.draft) if str(node) == show.pin.ref), None)
    if (
        token is None
        or token.accept_prob is None
        or token.u is None
        or not facts_of(step.settings.rule).uses_draw
    ):
        return None
    chance = 100 * token.accept_prob
    parts = [("both", chance), ("excess", 100 - chance)]
    return blocks.bar(_word(token), parts, (percent(token.accept_prob),), 100 * token.u)
