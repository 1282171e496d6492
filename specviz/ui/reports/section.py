"""The parts of a page of sections: the place that is looked at, a section, and the work of its buttons."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specviz.errors import SpecvizError
from specviz.trace import Settings, Trace
from specviz.views.blocks import ExampleBlock, PageSection


@dataclass(frozen=True, slots=True)
class StagePlace:
    """The place that is looked at on the stage: a run, and the step and token that are pinned there, if any."""

    run: str | None = None
    step: int | None = None
    ref: str | None = None

    @classmethod
    def from_data(cls, data: Any) -> StagePlace:
        """The place that the browser names. Nothing of the data has been checked; what cannot be is None."""
        fields = data if isinstance(data, dict) else {}
        run = fields.get("run")
        step = fields.get("step")
        ref = fields.get("ref")
        return cls(
            run if isinstance(run, str) else None,
            step if type(step) is int and step >= 0 else None,
            ref if isinstance(ref, str) else None,
        )


@dataclass(frozen=True, slots=True)
class Look:
    """A place with its trace as it was at this moment."""

    place: StagePlace
    trace: Trace | None
    """The trace of the run; None where nothing has been run."""

    @property
    def run(self) -> Trace | None:
        """The trace once it has a step."""
        if self.trace is None or not self.trace.steps:
            return None
        return self.trace

    @property
    def settings(self) -> Settings | None:
        """The settings of the newest step; None before there is one."""
        return None if self.run is None else self.run.steps[-1].settings

    @property
    def text(self) -> tuple[object, ...]:
        """A value that changes with the text: a run that goes on has another one."""
        if self.trace is None:
            return (self.place.run,)
        return (self.place.run, len(self.trace.steps), len(self.trace.scores))


Work = Generator[PageSection, None, None]
"""The work of a section. Every value that it yields is the whole section as it is by then."""
Act = Callable[[Look, Mapping[str, str]], Work]


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a page: its contents for a place, and its buttons' work."""

    name: str
    key: Callable[[Look], object]
    """A value that changes when the contents have to begin again."""
    begin: Callable[[Look], PageSection]
    """The contents before anything is pressed."""
    acts: Mapping[str, Act] = field(default_factory=dict)
    """The work of each button, by name, from the values of the section's controls."""
    needs: Callable[[Look], Sequence[str]] = lambda look: ()
    """The models that the buttons need."""
    opening: Callable[[Look], Work] | None = None
    """The work that begins by itself in a new section, with models that are loaded already."""
    example: Callable[[], ExampleBlock] | None = None
    """What is shown until there is a result."""
    engine: bool = True
    """Whether the work asks models, and so takes turns at the engine."""
    again: Callable[[Look, PageSection], PageSection] | None = None
    """The contents for another place, from those that the section has already."""

    @property
    def tells_time(self) -> bool:
        """Whether the section says how long its first button's work takes."""
        return self.example is not None and self.engine and bool(self.acts)


def whole_number(values: Mapping[str, str], name: str, low: int, high: int) -> int:
    """The whole number from `low` to `high` among a section's values. Raises SpecvizError."""
    text = values.get(name, "")
    is_number = text.isascii() and text.isdigit() and len(text) <= 9
    if not is_number or not low <= int(text) <= high:
        label = name.replace("_", " ")
        raise SpecvizError(
            f"{label} must be a whole number from {low:,} to {high:,} (got {text!r:.40})"
        )
    return int(text)


def own_prompts(
    values: Mapping[str, str], most: int, most_characters: int, hint: str = ""
) -> list[str]:
    """The prompts in a section's box, one per line. Raises SpecvizError, in words that end with the hint."""
    text = values.get("own", "")
    own = [line.strip() for line in text.splitlines() if line.strip()]
    # as the browser counts them
    num_characters = len(text.encode("utf-16-le", "surrogatepass")) // 2
    if len(own) > most or num_characters > most_characters:
        allowed = f"{most} and {most_characters:,} characters"
        got = f"{len(own)} and {num_characters:,}"
        raise SpecvizError(f"own prompts must be at most {allowed} (got {got}){hint}")
    return own


def one_of(values: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    """The text among a section's values that must be one of those allowed. Raises SpecvizError."""
    text = values.get(name, "")
    if text not in allowed:
        raise SpecvizError(f"{name} must be one of {', '.join(allowed)} (got {text!r:.100})")
    return text
