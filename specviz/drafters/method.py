"""What a drafter is, and how a method describes itself to the page, the command line and the help."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import nn

from specviz.decoding.drafter import Drafter
from specviz.errors import SpecvizError

if TYPE_CHECKING:
    from specviz.decoding.cached_lm import CachedLM
    from specviz.models.tokens import TokenText


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A model that a drafter works with. lm: the reader that it may use; another: makes more over the same weights;
    text: its tokenizer's ids as text."""

    name: str
    lm: CachedLM
    another: Callable[[], CachedLM]
    text: TokenText | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Everything a method drafts with. target.lm is the engine's own reader: look at its text, never drop its rows.

    heads: trained draft heads; others: further models by the names that the method's parameters give them.
    """

    target: Part | None = None
    draft: Part | None = None
    heads: nn.Module | None = None
    others: Mapping[str, Part] = field(default_factory=dict)


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

    def checked(self, value: object) -> Value:
        """The value, or SpecvizError: what is wrong, what was got, what is allowed."""
        raise NotImplementedError

    def read(self, text: str) -> object:
        """What was typed, for `checked`."""
        return text


@dataclass(frozen=True, slots=True)
class IntParam(Param):
    """A whole number from low to high."""

    low: int
    high: int

    def read(self, text: str) -> object:
        return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else text

    def checked(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise SpecvizError(f"{self.name} must be a whole number from {self.low} to {self.high} (got {value!r:.80})")
        return value


@dataclass(frozen=True, slots=True)
class FloatParam(Param):
    """A number from low to high, both included."""

    low: float
    high: float

    def read(self, text: str) -> object:
        is_number = re.fullmatch(r"-?[0-9]{0,9}\.?[0-9]{1,17}(e-?[0-9]{1,2})?", text)
        return float(text) if is_number else text

    def checked(self, value: object) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not self.low <= value <= self.high:
            raise SpecvizError(f"{self.name} must be a number from {self.low:g} to {self.high:g} (got {value!r:.80})")
        return float(value)


@dataclass(frozen=True, slots=True)
class Choice(Param):
    """One of a few names. options: name -> the words that a list shows for it."""

    options: Mapping[str, str] = field(hash=False)

    def checked(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.options:
            raise SpecvizError(f"{self.name} must be one of {', '.join(self.options)} (got {value!r:.80})")
        return value


@dataclass(frozen=True, slots=True)
class ModelParam(Param):
    """Names of further models, separated by commas. None: the catalogue's for the target.

    kind: what must lie there: "draft" (a model of the target's vocabulary) or a kind of heads, see heads.KINDS;
    most: how many may be named; beside: names that stand for no model.
    """

    kind: str
    most: int = 1
    beside: tuple[str, ...] = ()

    def checked(self, value: object) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or not 1 <= len(names_in(value)) <= self.most:
            allowed = "a model" if self.most == 1 else f"1 to {self.most} models, separated by commas"
            raise SpecvizError(f"{self.name} must name {allowed} (got {value!r:.80})")
        return ", ".join(names_in(value))


def names_in(value: str) -> list[str]:
    """The names that a text separates by commas."""
    return [name.strip() for name in value.split(",") if name.strip()]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to draft.

    summary: what it does, one sentence; caution: when it pays and when not, one sentence. roles: the models it needs
    beside the target ("draft", "heads"). rules: the names of the rules that can judge its drafts, its own first. depth:
    the parameter that stands for K, where K is not what a person sets. foreign: its draft model may have another
    vocabulary than the target. target_has: what the target must bring along, as the name of a number in its
    configuration that is not 0 there, and in words.
    """

    name: str
    title: str
    summary: str
    source: str
    roles: tuple[str, ...]
    params: tuple[Param, ...]
    rules: tuple[str, ...]
    build: Callable[[Parts, Mapping[str, Value]], Drafter]
    caution: str = ""
    depth: str | None = None
    foreign: bool = False
    target_has: tuple[str, str] | None = None

    @property
    def default_rule(self) -> str:
        return self.rules[0]

    def read(self, pairs: Sequence[str]) -> dict[str, object]:
        """Parameters that were typed as NAME=VALUE, for `checked`. SpecvizError for anything else."""
        known, values = {param.name: param for param in self.params}, {}
        for pair in pairs:
            name, _, text = pair.partition("=")
            if not name or not text:
                raise SpecvizError(f"a parameter must be given as NAME=VALUE (got {pair!r:.100})")
            if name in values:
                raise SpecvizError(f"the parameter {name:.80} was given twice; give it once")
            values[name] = known[name].read(text) if name in known else text
        return values

    def checked(self, values: Mapping[str, object]) -> dict[str, Value]:
        """All parameters, defaults filled in. Raises SpecvizError for unknown names and values out of range."""
        known = {param.name: param for param in self.params}
        if unknown := sorted(set(values) - set(known)):
            allowed = ", ".join(known) or "none"
            raise SpecvizError(f"the method {self.name} has no parameter {unknown[0]!r:.80} (it has: {allowed})")
        given = {name: values.get(name, param.default) for name, param in known.items()}
        return {name: known[name].checked(value) for name, value in given.items()}


def needs(method: Method) -> str:
    """What a run must give the method beside the target, in words."""
    said = {"draft": "a draft model", "heads": "draft heads"}
    words = [said[role] for role in method.roles]
    return ", ".join([*words, f"the target's own {method.target_has[1]}"] if method.target_has else words) or "nothing"


def sets_k(method: Method) -> bool:
    """Whether K is what a person sets for this method."""
    return method.depth is None and drafts(method)


def drafts(method: Method) -> bool:
    """Whether the method drafts at all."""
    return method.name != "none"


CHAIN_RULES = (
    "speculative_sampling",
    "block_verification",
    "sample_and_match",
    "typical",
    "lenience",
    "ensemble",
)
"""What can judge a draft without branches."""
TREE_RULES = ("speculative_sampling", "sample_and_match", "typical")
"""What can judge a token tree."""
