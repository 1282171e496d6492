"""The records of a lesson's file: a lesson, its screens, what each puts on the stage, and the task completed there.

A paragraph is a text, or a list of texts with every second one set off.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from specviz.trace.values import format_got

TEXT = 800  # characters of a paragraph
DISTRIBUTION_RULES = ("speculative_sampling", "broken:resample_p")
"""The rules for which a distribution can be drawn (`views.check.distributions`)."""
PACES = ("slow", "normal", "full")
MARKS = ("accepted", "rejected", "ignored", "resampled", "bonus", "plain")
"""The marks of tokens on the stage."""


def _one_of(names: tuple[str, ...]) -> Any:
    """The type of one of these names; an error lists them in this order."""
    return Annotated[Literal[names], Meta(title=f"one of {', '.join(names)}")]


DistributionRule = _one_of(DISTRIBUTION_RULES)
Pace = _one_of(PACES)
Mark = _one_of(MARKS)
Name = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$(?!\n)",
        max_length=160,
        title="small letters, digits and dashes",
    ),
]
Line = Annotated[str, Meta(min_length=1, max_length=160)]
Text = Annotated[str, Meta(min_length=1, max_length=TEXT)]
Piece = Annotated[str, Meta(max_length=TEXT, title=f"a text of 1 to {TEXT} characters")]
Paragraph = Text | Annotated[tuple[Piece, ...], Meta(min_length=1, max_length=24)]
Paragraphs = Annotated[tuple[Paragraph, ...], Meta(min_length=1, max_length=8)]
Run = Annotated[str, Meta(title="one of the recorded runs")]
Times = Annotated[int, Meta(ge=1, le=100)]


def _list_pieces(field: str, paragraphs: Sequence[Paragraph]) -> tuple[tuple[str, ...], ...]:
    """The texts of each paragraph. Raises ValueError for a paragraph that is empty or too long."""
    pieces = []
    for place, paragraph in enumerate(paragraphs):
        if not 1 <= sum(map(len, paragraph)) <= TEXT:
            got = format_got(paragraph)
            raise ValueError(
                f"{field}[{place}] must be a paragraph of 1 to {TEXT} characters {got}"
            )
        pieces.append((paragraph,) if isinstance(paragraph, str) else paragraph)
    return tuple(pieces)


class LessonObject(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An object of a lesson's file."""


class Pin(LessonObject):
    """A token of the run on the stage."""

    step: Annotated[int, Meta(ge=0, le=100_000, title="a whole number from 0 to 100,000")]
    ref: Annotated[str, Meta(min_length=1, max_length=20)]


class Show(LessonObject):
    """What a screen puts on the stage: a recorded run, a token of it, or two recorded runs side by side."""

    run: Run | None = None
    compare: Annotated[tuple[Run, ...], Meta(min_length=2, max_length=2)] | None = None
    pin: Pin | None = None


class RuleDistributions(Pin):
    """The distributions of the emitted token that some rules give at one recorded position."""

    run: Run
    rules: Annotated[tuple[DistributionRule, ...], Meta(min_length=1, max_length=4)]


class PassCosts(LessonObject):
    """The times of a target's pass over some numbers of tokens, as measured elsewhere."""

    target: Name
    tokens: Annotated[tuple[Times, ...], Meta(min_length=1, max_length=6)]
    ms: Annotated[tuple[Annotated[float, Meta(gt=0)], ...], Meta(min_length=1, max_length=6)]
    machine: Line
    """The machine on which they were measured."""

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.ms):
            raise ValueError(f"ms must have one time for each of tokens {format_got(self.ms)}")


class OpenedRun(LessonObject):
    """A recorded run that a task opens."""

    run: Run
    words: Line
    """What the button says; empty for a run named alone: the run's title."""


class Option(LessonObject):
    """An answer to choose, or to guess."""

    words: Text
    right: bool = False
    why: ClassVar[str] = ""


class Reasoned(Option):
    """An answer that says why it is right or wrong."""

    right: bool
    why: Text


class Done(LessonObject, tag_field="kind"):
    """What completes a task. A kind declares the fields that it needs and leaves the others as they are here."""

    times: ClassVar[int] = 1
    status: ClassVar[tuple[Mark, ...]] = ()
    runs: ClassVar[tuple[OpenedRun, ...]] = ()
    options: ClassVar[tuple[Option, ...]] = ()
    reveal: ClassVar[str] = ""

    @property
    def kind(self) -> str:
        return self.__struct_config__.tag


class Play(Done, tag="play"):
    """The replay has come to its end."""


class Made(Done, tag="made"):
    """The panel that shows how a draft was made has been opened."""


class Throw(Done, tag="throw"):
    """The random draw was drawn again."""

    times: Times = 1


class Predict(Done, tag="predict"):
    """A verdict was predicted in the game."""

    times: Times = 1


class PinMark(Done, tag="pin"):
    """A token with one of these marks was pinned."""

    status: Annotated[tuple[Mark, ...], Meta(min_length=1, max_length=len(MARKS))]
    times: Times = 1


class See(Done, tag="see"):
    """The task of opening all of these runs. Each counts once."""

    runs: Annotated[tuple[Run | OpenedRun, ...], Meta(min_length=1, max_length=4)]

    def __post_init__(self) -> None:
        last_of_each = {}  # by name; the last entry of a run counts, at its place
        for opened in reversed(self.runs):
            if isinstance(opened, str):
                opened = OpenedRun(run=opened, words="")
            last_of_each[opened.run] = opened
        force_setattr(self, "runs", tuple(last_of_each.values())[::-1])


class Choose(Done, tag="choose"):
    """A right answer was chosen."""

    options: Annotated[tuple[Reasoned, ...], Meta(min_length=2, max_length=6)]

    def __post_init__(self) -> None:
        if not any(option.right for option in self.options):
            raise ValueError(
                f"options must have at least one right answer {format_got(self.options)}"
            )


class Guess(Done, tag="guess"):
    """Anything was guessed: a guess need not have a right answer."""

    options: Annotated[tuple[Text | Option, ...], Meta(min_length=2, max_length=6)]
    reveal: Text

    def __post_init__(self) -> None:
        options = []
        for option in self.options:
            options.append(Option(words=option) if isinstance(option, str) else option)
        if sum(option.right for option in options) > 1:
            raise ValueError(
                f"options must have at most one right answer {format_got(self.options)}"
            )
        force_setattr(self, "options", tuple(options))


class Task(LessonObject):
    """What the reader of a screen is asked to do."""

    words: Paragraph
    done: Play | Made | Throw | Predict | PinMark | See | Choose | Guess
    praise: Text

    def __post_init__(self) -> None:
        force_setattr(self, "words", _list_pieces("words", [self.words])[0])


class Screen(LessonObject):
    """One page of a lesson."""

    title: Line
    words: Paragraphs
    show: Show | None = None
    distribution: RuleDistributions | None = None
    costs: PassCosts | None = None
    task: Task | None = None

    def __post_init__(self) -> None:
        show = self.show
        if show is not None:
            has_too_much = show.compare and (show.run or show.pin)
            if show == Show() or has_too_much:
                must = "must be a run, a pin, both of these, or two runs to compare"
                raise ValueError(f"show {must} {format_got(show)}")
        if self.distribution and self.costs:
            raise ValueError(f"costs must not stand beside a distribution {format_got(self.costs)}")
        force_setattr(self, "words", _list_pieces("words", self.words))

    @property
    def runs(self) -> list[str]:
        """The recorded runs that the screen uses."""
        names = []
        if self.show is not None:
            names += [self.show.run, *(self.show.compare or ())]
        if self.distribution is not None:
            names.append(self.distribution.run)
        if self.task is not None:
            names += [opened.run for opened in self.task.done.runs]
        return [name for name in names if name]


class Lesson(LessonObject):
    """A lesson: its screens, and what is set for its live run."""

    name: Name
    title: Line
    minutes: Annotated[int, Meta(ge=1, le=30)]
    misconception: Line
    question: Text
    teacher: Text | Paragraphs
    """A note for teachers."""
    setup: Mapping[str, Any] | None
    """The fields of the live run's request that differ from the bundled pair's first request; None: no live run."""
    screens: Annotated[tuple[Screen, ...], Meta(min_length=1, max_length=12)]
    live: Text = ""
    """What to look for in the live run; empty: the fields of setup are listed."""
    pace: Pace | None = None
    """The pace of the live run; None: unchanged."""
    in_page: Mapping[str, Any] | None = None
    """The fields of the live page for the live run; None: it cannot make the run, or not all that `live` speaks of."""

    def __post_init__(self) -> None:
        note = [self.teacher] if isinstance(self.teacher, str) else self.teacher
        force_setattr(self, "teacher", _list_pieces("teacher", note))

    def runs(self) -> list[str]:
        """The recorded runs that the lesson uses, each once."""
        names = []
        for screen in self.screens:
            names += screen.runs
        return list(dict.fromkeys(names))
