"""Parameters of methods: each checks a value, reads what was typed, and tells the page which control to show."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from specviz.errors import SpecvizError

Value = int | float | str | None


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a method; the page builds its control from this, by kind.

    needs: a Choice of the same method, by name, and those of its options under which this parameter counts.
    """

    name: str
    title: str
    default: Value
    help: str
    needs: tuple[str, tuple[str, ...]] | None = field(default=None, kw_only=True)

    def counts(self, values: Mapping[str, object]) -> bool:
        """Whether it does anything among these values of its method's parameters."""
        return self.needs is None or values.get(self.needs[0]) in self.needs[1]

    def validate(self, value: object) -> Value:
        """The value, or SpecvizError: what is wrong, what was got, what is allowed."""
        raise NotImplementedError

    def read(self, text: str) -> object:
        """What was typed, for `validate`."""
        return text


@dataclass(frozen=True, slots=True)
class NumberParam(Param):
    """A number from low to high, both included; its kinds are IntParam and FloatParam.

    TYPES: what a value may be, the first what it becomes. TYPED: how it is typed.
    """

    TYPES: ClassVar[tuple[type, ...]]
    TYPED: ClassVar[str]
    WORDS: ClassVar[str]

    low: float
    high: float

    def read(self, text: str) -> object:
        return self.TYPES[0](text) if re.fullmatch(self.TYPED, text) else text

    def validate(self, value: object) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, self.TYPES)
            or not self.low <= value <= self.high
        ):
            allowed = f"{self.WORDS} from {self.low:g} to {self.high:g}"
            raise SpecvizError(f"{self.name} must be {allowed} (got {value!r:.80})")
        return self.TYPES[0](value)


@dataclass(frozen=True, slots=True)
class IntParam(NumberParam):
    TYPES, TYPED, WORDS = (int,), r"-?[0-9]{1,9}", "a whole number"


@dataclass(frozen=True, slots=True)
class FloatParam(NumberParam):
    TYPES, TYPED, WORDS = (float, int), r"-?[0-9]{0,9}\.?[0-9]{1,17}(e-?[0-9]{1,2})?", "a number"


@dataclass(frozen=True, slots=True)
class Choice(Param):
    """One of a few names. options: name -> the words that a list shows for it."""

    options: Mapping[str, str] = field(hash=False)

    def validate(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.options:
            raise SpecvizError(
                f"{self.name} must be one of {', '.join(self.options)} (got {value!r:.80})"
            )
        return value


@dataclass(frozen=True, slots=True)
class ModelParam(Param):
    """Names of further models, separated by commas. None: the catalogue's for the target.

    kind: what the name must lead to: "draft" (a model of the target's vocabulary) or a kind of heads, see heads.KINDS.
    most: how many may be named. reserved: names that stand for no model.
    """

    kind: str
    most: int = 1
    reserved: tuple[str, ...] = ()

    def validate(self, value: object) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or not 1 <= len(split_names(value)) <= self.most:
            allowed = (
                "a model" if self.most == 1 else f"1 to {self.most} models, separated by commas"
            )
            raise SpecvizError(f"{self.name} must name {allowed} (got {value!r:.80})")
        return ", ".join(split_names(value))


def split_names(value: str) -> list[str]:
    """The names that a text separates by commas."""
    return [name.strip() for name in value.split(",") if name.strip()]


TOP, DRAWN = "top", "drawn"


def drawn_or_top(top: str, drawn: str, *of_trees: Param) -> tuple[Param, ...]:
    """The choice between a tree of likely tokens and a chain of drawn ones, in words; what counts only for trees."""
    words = (
        "What is drafted. A drawn token is accepted as often as head and target overlap, a most likely one only as "
        "often as the target draws it."
    )
    choice = Choice("children", "drafts", TOP, words, {TOP: top, DRAWN: drawn})
    return choice, *(replace(param, needs=("children", (TOP,))) for param in of_trees)
