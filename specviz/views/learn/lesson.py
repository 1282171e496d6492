"""One lesson as the panel beside the stage gets it; the browser remembers the tasks done. Loads no torch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from specviz.drafters import METHODS
from specviz.lessons.load import found_lessons
from specviz.lessons.types import Lesson, PassCosts, Screen, Show
from specviz.request import spell_options
from specviz.rules.facts import FACTS
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.views import blocks
from specviz.views.blocks import BarsBlock, PageRecord
from specviz.views.check.distributions import distribution_block
from specviz.views.explore.message import TokenPlace, TokenStatus
from specviz.views.learn.plan import GameLink, LessonTasks, game_after, tasks_of
from specviz.views.words import label, quantity, reveal, title_of

READS = {
    "play": ("numbers", "player"),
    "pin": ("inspector",),
    "throw": ("inspector", "tools"),
    "made": ("inspector", "views"),
    "see": ("numbers",),
}
"""The parts of the stage where a task of each kind is done or read, beside the text and the lanes."""
NEEDS_SERVER = (
    "This needs specviz itself: the engine in this page has one pair of models and one rule."
)
SHIPPED = "shipped:"
"""The beginning of a recorded run's id in the page; the run's name follows."""
StagePart = Literal["text", "lanes", "inspector", "numbers", "player", "tools", "views"]


class RecordedRun(PageRecord):
    """A recorded run that a lesson shows."""

    run: str  # its name
    id: str  # its id in the page
    title: str
    about: str
    pin: TokenPlace | None = None  # the token that is pinned there


class RunPair(PageRecord):
    """Two recorded runs that a lesson shows side by side."""

    runs: tuple[RecordedRun, RecordedRun]


class TaskOption(PageRecord):
    """An answer of a task."""

    why: str  # it is right or wrong; "" where anything may be guessed
    words: str
    right: bool


class LessonTask(PageRecord):
    """A task of a lesson, and what completes it."""

    words: Sequence[str]  # every second one is set off
    praise: str
    kind: Literal["play", "made", "throw", "predict", "pin", "see", "choose", "guess"]
    times: int  # how often it must be done
    counts: Sequence[str]  # words for 0, 1, ... times
    status: Sequence[TokenStatus]  # the marks of which a token must have one to be pinned
    runs: Sequence[RecordedRun]  # to be opened
    options: Sequence[TaskOption]
    reveal: str  # said after a guess


class LessonScreen(PageRecord):
    """One screen of a lesson."""

    title: str
    place: str  # among the screens
    width: float  # the part of the lesson behind it, in percent
    words: Sequence[Sequence[str]]  # paragraphs; every second text of one is set off
    show: RecordedRun | None  # on the stage
    compare: RunPair | None
    lit: Sequence[StagePart]  # what it is about
    bars: BarsBlock | None
    task: LessonTask | None


class NextLesson(PageRecord):
    """The lesson that follows in the plan."""

    name: str
    title: str


class LessonPanel(PageRecord, kw_only=True):
    """A lesson for the panel beside the stage."""

    name: str
    title: str
    question: str
    place: str  # among the lessons, and its minutes
    live: str  # what to look for in the live run; "" without one
    next: NextLesson | None
    game: GameLink | None  # the game that follows
    tasks: LessonTasks
    screens: Sequence[LessonScreen]
    not_live: str | UnsetType = UNSET  # why the live run cannot be made here
    in_page: Mapping[str, Any] | UnsetType = (
        UNSET  # what the live page is asked for, where it can make the run
    )


def lesson_props(
    name: str, *, has_server: bool = True, pass_ms: Mapping[str, Sequence[float]] = {}
) -> LessonPanel:
    """The lesson of this name. Raises KeyError for an unknown name.

    pass_ms: by a target's name, the milliseconds of its passes over 1, 2, ... tokens, as measured on this machine.
    """
    known = list(found_lessons().lessons.values())
    lesson = found_lessons().lessons[name]
    place = known.index(lesson)
    live = ""
    if lesson.setup is not None:
        live = lesson.live or f"{', '.join(_setup_words(lesson.setup))}."
    following = None
    if place + 1 < len(known):
        after = known[place + 1]
        following = NextLesson(after.name, after.title)
    return LessonPanel(
        name=name,
        title=lesson.title,
        question=lesson.question,
        place=f"Lesson {place + 1} of {len(known)} · {lesson.minutes} min",
        live=live,
        next=following,
        game=game_after(lesson, known, has_server),
        tasks=tasks_of(lesson),
        screens=list(_screens(lesson, pass_ms)),
        not_live=UNSET if has_server or lesson.in_page else NEEDS_SERVER,
        in_page=lesson.in_page or UNSET,
    )


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


def _screens(lesson: Lesson, pass_ms: Mapping[str, Sequence[float]]) -> Iterator[LessonScreen]:
    run = None  # the one on the stage
    for number, screen in enumerate(lesson.screens, 1):
        if screen.show and screen.show.run:
            run = screen.show.run
        show, pair = _stage(screen.show, run)
        yield LessonScreen(
            screen.title,
            f"{number} of {len(lesson.screens)}",
            round(100 * number / len(lesson.screens), 1),
            screen.words,
            show,
            pair,
            _lit(screen),
            _bars(screen, pass_ms),
            _task(screen),
        )


def _bars(screen: Screen, pass_ms: Mapping[str, Sequence[float]]) -> BarsBlock | None:
    """The bars that the screen shows: a distribution, or costs."""
    if distribution := screen.distribution:
        trace = shipped_trace(distribution.run)
        return distribution_block(trace, distribution.step, distribution.ref, distribution.rules)
    if screen.costs:
        return cost_bars(screen.costs, pass_ms.get(screen.costs.target, ()))
    return None


def cost_bars(costs: PassCosts, here: Sequence[float]) -> BarsBlock:
    """A bar for each number of tokens in one pass.

    here: the milliseconds of passes over 1, 2, ... tokens on this machine; with fewer than are shown the bars are those
    that were measured elsewhere.
    """
    is_here = len(here) >= max(costs.tokens)
    times = [here[tokens - 1] for tokens in costs.tokens] if is_here else costs.ms
    machine = "this machine" if is_here else reveal(costs.machine)
    scale = 100 / max(times)
    rows = []
    for tokens, ms in zip(costs.tokens, times, strict=True):
        rows.append(blocks.bar(quantity(tokens, "token"), [("p", scale * ms)], (f"{ms:.2f} ms",)))
    words = f"one pass of {label(costs.target)}, measured on {machine}"
    return BarsBlock(rows, heads=("time",), key=[("p", words)], first="tokens in one pass")


def _task(screen: Screen) -> LessonTask | None:
    task = screen.task
    if task is None:
        return None
    done = task.done
    times = len(done.runs) if done.kind == "see" else done.times
    counts = []
    if times > 1:
        counts = [f"{number} of {times}" for number in range(times + 1)]
    return LessonTask(
        task.words,
        task.praise,
        done.kind,
        times,
        counts,
        done.status,
        [_run(run.run, run.words) for run in done.runs],
        [TaskOption(option.why, option.words, option.right) for option in done.options],
        done.reveal,
    )


def _lit(screen: Screen) -> list[StagePart]:
    """The parts of the stage that the screen is about; none marks all of them."""
    show = screen.show or Show()
    parts = list(READS.get(screen.task.done.kind, ())) if screen.task else []
    if show.pin and "inspector" not in parts:
        parts.append("inspector")
    if not parts and show.run:
        parts.append("numbers")
    return ["text", "lanes", *parts] if parts else []


def _stage(show: Show | None, run: str | None) -> tuple[RecordedRun | None, RunPair | None]:
    """The content of the stage: one run with a pin, two runs to compare, or nothing."""
    if show is None:
        return None, None
    if show.compare:
        left, right = show.compare
        return None, RunPair((_run(left), _run(right)))
    pin = TokenPlace(show.pin.step, show.pin.ref) if show.pin else None
    return _run(run, pin=pin), None


def _run(name: str, title: str = "", pin: TokenPlace | None = None) -> RecordedRun:
    entry = shipped_runs()[name]
    title = title or reveal(entry.title)
    return RecordedRun(name, f"{SHIPPED}{name}", title, reveal(entry.about), pin)
