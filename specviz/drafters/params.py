"""Parameters of methods. A parameter checks a value, reads typed text, and tells the page which control to show."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from specviz.errors import SpecvizError

Value = int | float | str | None


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a method. The page builds its control from it, by kind."""

    name: str
    title: str
    default: Value
    help: str
    needs: tuple[str, tuple[str, ...]] | None = field(default=None, kw_only=True)
    """A Choice of the same method, and the options under which this parameter has an effect; None: always."""

    def counts(self, values: Mapping[str, object]) -> bool:
        """Whether it has an effect under these values of its method's parameters."""
        return self.needs is None or values.get(self.needs[0]) in self.needs[1]

    def validate(self, value: object) -> Value:
        """The value, checked. Raises SpecvizError that says what is wrong, what was got and what is allowed."""
        raise NotImplementedError

    def read(self, text: str) -> object:
        """The value of typed text, for `validate`."""
        return text


@dataclass(frozen=True, slots=True)
class NumberParam(Param):
    """A number from low to high, both included. Its kinds are IntParam and FloatParam."""

    TYPES: ClassVar[tuple[type, ...]]  # of a value; it becomes the first one
    TYPED: ClassVar[str]  # a pattern of typed text
    WORDS: ClassVar[str]  # for errors

    low: float
    high: float

    def read(self, text: str) -> object:
        return self.TYPES[0](text) if re.fullmatch(self.TYPED, text) else text

    def validate(self, value: object) -> float:
        is_number = isinstance(value, self.TYPES) and not isinstance(value, bool)
        if not is_number or not self.low <= value <= self.high:
            allowed = f"{self.WORDS} from {self.low:g} to {self.high:g}"
            raise SpecvizError(f"{self.name} must be {allowed} (got {value!r:.80})")
        return self.TYPES[0](value)


@dataclass(frozen=True, slots=True)
class IntParam(NumberParam):
    """A whole number."""

    TYPES = (int,)
    TYPED = r"-?[0-9]{1,9}"
    WORDS = "a whole number"


@dataclass(frozen=True, slots=True)
class SizeParam(IntParam):
    """How many tokens a drafted tree has. 0: the size that is best by time on this device, or `usual` where no times
    are known."""

    usual: int
    per_call: Mapping[int, float] = field(hash=False)
    """Some sizes, and the tokens per target call with each."""

    def validate(self, value: object) -> int:
        return IntParam.validate(self, value) or self.usual

    def best(self, step_ms: Mapping[int, float]) -> int:
        """The size with the most tokens per time. step_ms: the milliseconds of a step with each size of per_call."""
        return max(self.per_call, key=lambda size: self.per_call[size] / step_ms[size])


@dataclass(frozen=True, slots=True)
class FloatParam(NumberParam):
    """A decimal number."""

    TYPES = (float, int)
    TYPED = r"-?[0-9]{0,9}\.?[0-9]{1,17}(e-?[0-9]{1,2})?"
    WORDS = "a number"


@dataclass(frozen=True, slots=True)
class Choice(Param):
    """A choice among a few names."""

    options: Mapping[str, str] = field(hash=False)
    """Name -> the words that a list shows for it."""

    def validate(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.options:
            raise SpecvizError(
                f"{self.name} must be one of {', '.join(self.options)} (got {value!r:.80})"
            )
        return value


@dataclass(frozen=True, slots=True)
class ModelParam(Param):
    """Names of further models, separated by commas. None: the catalogue's for the target."""

    kind: str
    """The kind of the models: "draft" (a model of the target's vocabulary) or a kind of heads; see heads.KINDS."""
    most: int = 1
    """How many may be named."""
    reserved: tuple[str, ...] = ()
    """Names that stand for no model."""

    def validate(self, value: object) -> str | None:
        if value is None:
            return None
        names = split_names(value) if isinstance(value, str) else []
        if not 1 <= len(names) <= self.most:
            several = f"1 to {self.most} models, separated by commas"
            allowed = "a model" if self.most == 1 else several
            raise SpecvizError(f"{self.name} must name {allowed} (got {value!r:.80})")
        return ", ".join(names)


def split_names(value: str) -> list[str]:
    """The names that a text separates by commas."""
    return [name.strip() for name in value.split(",") if name.strip()]


TOP, DRAWN = "top", "drawn"
TRAINED, LEFT_OUT = "on", "off"
MARKOV = Choice(
    "bias",
    "Markov bias",
    TRAINED,
    "Heads guess without seeing each other's guesses. A bias by the token before each guess mends that, or a selector "
    "(DFlash2), where the heads were given one; others draft the same either way.",
    {TRAINED: "as trained", LEFT_OUT: "left out"},
)
"""The bias of heads that guess all depths at once (DSpark, arXiv:2607.05147)."""


TOGETHER, IN_TURN = "together", "in turn"
"""How the tokens of one pass were chosen, in the evidence: at once, or each knowing the one before it."""


def drawn_or_top(top: str, drawn: str, *of_trees: Param) -> tuple[Param, ...]:
    """A choice between a tree of likely tokens and a chain of drawn ones, then the parameters that only trees have.

    top, drawn: the words for both.
    """
    words = (
        "What is drafted. A drawn token is accepted as often as head and target overlap, a most likely one only as "
        "often as the target draws it."
    )
    choice = Choice("children", "drafts", TOP, words, {TOP: top, DRAWN: drawn})
    needs = ("children", (TOP,))
    return choice, *(replace(param, needs=needs) for param in of_trees)
