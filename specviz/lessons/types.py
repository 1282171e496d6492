"""What a lesson is, as its file declares it: its screens, what each puts on the stage, and the task completed there.

A paragraph is a text, or a list of texts of which every second one is set off.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from specviz.trace.values import format_got

TEXT = 800  # characters of a paragraph
DISTRIBUTION_RULES = ("speculative_sampling", "broken:resample_p")
"""The rules of which a law can be drawn (views.laws)."""
PACES = ("slow", "reading", "full")
MARKS = (
    "accepted",
    "rejected",
    "ignored",
    "resampled",
    "bonus",
    "plain",
)  # what a token of the stage can be


def _one_of(names: tuple[str, ...]) -> Any:
    """The type of one of these names; an error lists them in this order."""
    return Annotated[Literal[names], Meta(title=f"one of {', '.join(names)}")]


DistributionRule, Pace, Mark = map(_one_of, (DISTRIBUTION_RULES, PACES, MARKS))
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
    """Each paragraph as its texts. ValueError for one that is empty or too long."""
    for place, paragraph in enumerate(paragraphs):
        if not 1 <= sum(map(len, paragraph)) <= TEXT:
            got = format_got(paragraph)
            raise ValueError(
                f"{field}[{place}] must be a paragraph of 1 to {TEXT} characters {got}"
            )
    return tuple((each,) if isinstance(each, str) else each for each in paragraphs)


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
    """The laws that some rules make of one recorded position."""

    run: Run
    rules: Annotated[tuple[DistributionRule, ...], Meta(min_length=1, max_length=4)]


class OpenedRun(LessonObject):
    """A recorded run that a task opens. words: what its button says; empty: the run's title."""

    run: Run
    words: Line


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
    """What completes a task. Each kind declares what it needs; the rest is as here."""

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
    """How a draft was made has been opened."""


class Throw(Done, tag="throw"):
    """The dart was thrown again."""

    times: Times = 1


class Predict(Done, tag="predict"):
    """A verdict was predicted in the game."""

    times: Times = 1


class PinMark(Done, tag="pin"):
    """A token with one of these marks was pinned."""

    status: Annotated[tuple[Mark, ...], Meta(min_length=1, max_length=len(MARKS))]
    times: Times = 1


class See(Done, tag="see"):
    """All of these runs were opened, each of which counts once."""

    runs: Annotated[tuple[Run | OpenedRun, ...], Meta(min_length=1, max_length=4)]

    def __post_init__(self) -> None:
        seen = [
            OpenedRun(run=each, words="") if isinstance(each, str) else each
            for each in reversed(self.runs)
        ]
        force_setattr(self, "runs", tuple({each.run: each for each in seen}.values())[::-1])


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
        options = tuple(
            Option(words=each) if isinstance(each, str) else each for each in self.options
        )
        if sum(option.right for option in options) > 1:
            raise ValueError(
                f"options must have at most one right answer {format_got(self.options)}"
            )
        force_setattr(self, "options", options)


class Task(LessonObject):
    words: Paragraph
    done: Play | Made | Throw | Predict | PinMark | See | Choose | Guess
    praise: Text

    def __post_init__(self) -> None:
        force_setattr(self, "words", _list_pieces("words", [self.words])[0])


class Screen(LessonObject):
    title: Line
    words: Paragraphs
    show: Show | None = None
    distribution: RuleDistributions | None = None
    task: Task | None = None

    def __post_init__(self) -> None:
        if self.show and (
            self.show == Show() or (self.show.compare and (self.show.run or self.show.pin))
        ):
            must = "must be a run, a pin, both of these, or two runs to compare"
            raise ValueError(f"show {must} {format_got(self.show)}")
        force_setattr(self, "words", _list_pieces("words", self.words))

    @property
    def runs(self) -> list[str]:
        """The recorded runs that it uses."""
        show, distribution, task = self.show or Show(), self.distribution, self.task
        named = [
            show.run,
            *(show.compare or ()),
            distribution and distribution.run,
            *(seen.run for seen in (task.done.runs if task else ())),
        ]
        return [name for name in named if name]


class Lesson(LessonObject):
    """setup: what the request to try live changes in the bundled pair's first one; None: nothing to try.

    live: what to look for in it, in a sentence; empty: what it sets is listed. pace: that of the run; None: as it is.
    teacher: a note, in paragraphs.
    """

    name: Name
    title: Line
    minutes: Annotated[int, Meta(ge=1, le=30)]
    misconception: Line
    question: Text
    teacher: Text | Paragraphs
    setup: Mapping[str, Any] | None
    screens: Annotated[tuple[Screen, ...], Meta(min_length=1, max_length=12)]
    live: Text = ""
    pace: Pace | None = None

    def __post_init__(self) -> None:
        note = [self.teacher] if isinstance(self.teacher, str) else self.teacher
        force_setattr(self, "teacher", _list_pieces("teacher", note))

    def runs(self) -> list[str]:
        """The recorded runs that it uses, each once."""
        return list(dict.fromkeys(run for screen in self.screens for run in screen.runs))
