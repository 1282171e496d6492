"""A picture for each lesson, from the lesson's own recorded runs. Loads no torch.

It shows two rules' distributions as bars, a random draw on its bar, or a few steps as lanes. `picture.js` draws it and
computes nothing.
"""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from specviz.lessons.types import Lesson, See, Show, Throw
from specviz.rules.facts import facts_of
from specviz.trace import DraftToken, EmittedToken, Step
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.views import blocks
from specviz.views.blocks import BarRow, PageRecord
from specviz.views.check.distributions import distribution_block
from specviz.views.explore.message import TokenStatus
from specviz.views.explore.steps import most_telling
from specviz.views.explore.titles import last_token
from specviz.views.words import SPACE, percent, reveal, token_label

MOST_ROWS = 3
PictureCell = tuple[str, TokenStatus]
"""The text and the status of a token."""


class LessonPicture(PageRecord):
    """A picture of bars or of lanes; a lesson that shows no run has neither."""

    words: str  # what it shows
    bars: Sequence[BarRow] | UnsetType = UNSET
    lanes: Sequence[tuple[str, Sequence[PictureCell]]] | UnsetType = UNSET  # words, and tokens


def picture(lesson: Lesson) -> LessonPicture:
    """The picture of a lesson."""
    for draw in (_distribution_picture, _draw_picture, _runs_picture, _steps_picture):
        if (drawn := draw(lesson)) is not None:
            return drawn
    return LessonPicture("")


def _distribution_picture(lesson: Lesson) -> LessonPicture | None:
    """The first distribution that the lesson shows."""
    for screen in lesson.screens:
        shown = screen.distribution
        if shown:
            trace = shipped_trace(shown.run)
            block = distribution_block(trace, shown.step, shown.ref, shown.rules)
            bars = block.rows[: 2 * len(shown.rules)]
            return LessonPicture("how often each token is written, by two rules", bars)
    return None


def _draw_picture(lesson: Lesson) -> LessonPicture | None:
    """The first bar on which the lesson lets a random draw fall."""
    for screen in lesson.screens:
        is_throw = screen.task is not None and isinstance(screen.task.done, Throw)
        if is_throw and screen.show and (bar := _draw_bar(screen.show)) is not None:
            return LessonPicture("a random draw falls on a bar", [bar])
    return None


def _runs_picture(lesson: Lesson) -> LessonPicture | None:
    """A step of each run that the lesson's first task of seeing runs names, if there are several."""
    conditions = [screen.task.done for screen in lesson.screens if screen.task]
    seen = next((done for done in conditions if isinstance(done, See)), None)
    if seen is None or len(seen.runs) < 2:
        return None
    lanes = []
    for run in seen.runs[:MOST_ROWS]:
        words = run.words or reveal(shipped_runs()[run.run].title)
        steps = shipped_trace(run.run).steps
        if steps:
            # the first step that drafts most, so that runs can be told apart by their drafts
            longest = max(steps, key=lambda step: len(step.draft))
            lanes.append((words, _cells(longest)))
    return LessonPicture("a step of each run", lanes=lanes)


def _steps_picture(lesson: Lesson) -> LessonPicture | None:
    """Some steps of the first run with a pinned token, from that token's step on; else of the first run."""
    shows = [screen.show for screen in lesson.screens if screen.show and screen.show.run]
    if not shows:
        return None
    shown = next((show for show in shows if show.pin), shows[0])
    first = shown.pin.step if shown.pin else 0
    steps = shipped_trace(shown.run).steps[first : first + MOST_ROWS]
    lanes = [(f"step {step.index + 1}", _cells(step)) for step in steps]
    return LessonPicture("steps of its run", lanes=lanes)


def _cells(step: Step) -> list[PictureCell]:
    nodes, _ = most_telling(step)
    cells = []
    for node in nodes:
        token = step.draft[node]
        cells.append((_word(token), token.status))
    last = last_token(step)
    if last is not None:
        cells.append((_word(last), last.kind))
    return cells


def _word(token: DraftToken | EmittedToken) -> str:
    """The token without its leading space: a picture is looked at, not counted."""
    word = token_label(token)
    return word.strip(SPACE) or word


def _draw_bar(show: Show) -> BarRow | None:
    """The bar on which the random draw fell for the pinned token; None if no draw judged it."""
    if not show.run or not show.pin:
        return None
    step = shipped_trace(show.run).steps[show.pin.step]
    by_ref = {str(node): token for node, token in enumerate(step.draft)}
    token = by_ref.get(show.pin.ref)
    if token is None or token.accept_prob is None or token.u is None:
        return None
    if not facts_of(step.settings.rule).uses_draw:
        return None
    chance = 100 * token.accept_prob
    values = [percent(token.accept_prob)]
    return blocks.bar(
        _word(token), [("both", chance), ("excess", 100 - chance)], values, 100 * token.u
    )
