"""What a page of sections is made of: the place that is looked at, a section, and its buttons' work."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specviz.errors import SpecvizError
from specviz.trace import Settings, Trace
from specviz.views.blocks import Props


@dataclass(frozen=True, slots=True)
class StagePlace:
    """What is looked at on the stage: a run, and the step and token that are pinned there, if any."""

    run: str | None = None
    step: int | None = None
    ref: str | None = None

    @classmethod
    def from_data(cls, data: Any) -> StagePlace:
        """The place that the browser names; nothing of the data has been checked, and what cannot be is None."""
        given = data if isinstance(data, dict) else {}
        run, ref = (
            text if isinstance(text, str) else None for text in map(given.get, ("run", "ref"))
        )
        step = given.get("step")
        return cls(run, step if type(step) is int and step >= 0 else None, ref)


@dataclass(frozen=True, slots=True)
class Look:
    """A place with its trace as it was at this moment; `trace` is None where nothing has been run."""

    place: StagePlace
    trace: Trace | None

    @property
    def run(self) -> Trace | None:
        """The trace once it has a step."""
        return self.trace if self.trace is not None and self.trace.steps else None

    @property
    def settings(self) -> Settings | None:
        """Those of the newest step; None before there is one."""
        return None if self.run is None else self.run.steps[-1].settings

    @property
    def text(self) -> tuple[object, ...]:
        """What changes with the text: a run that goes on has another one."""
        known = () if self.trace is None else (len(self.trace.steps), len(self.trace.scores))
        return (self.place.run, *known)


Work = Generator[Props, None, None]
"""Every value is the whole section as it is by then."""
Act = Callable[[Look, Mapping[str, str]], Work]


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a page.

    `key`: a value that changes when the contents have to begin again. `begin`: the contents before anything is pressed;
    `again`: the same for a section that has contents already. `acts`: the work of its buttons, by name, from the
    section's values; `needs`: the models that they need. `opening`: work that begins by itself in a new section, with
    models that are loaded already. `keeps`: while its work shows only its progress, the earlier findings stay below.
    `engine`: whether its work asks models, and so takes turns at the engine."""

    name: str
    key: Callable[[Look], object]
    begin: Callable[[Look], Props]
    acts: Mapping[str, Act] = field(default_factory=dict)
    needs: Callable[[Look], Sequence[str]] = lambda look: ()
    opening: Callable[[Look], Work] | None = None
    keeps: bool = False
    engine: bool = True
    again: Callable[[Look, Props], Props] | None = None


def whole_number(values: Mapping[str, str], name: str, low: int, high: int) -> int:
    """One of a section's values. Raises SpecvizError."""
    text, what = values.get(name, ""), name.replace("_", " ")
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not low <= int(text) <= high:
        raise SpecvizError(
            f"{what} must be a whole number from {low:,} to {high:,} (got {text!r:.40})"
        )
    return int(text)


def own_prompts(
    values: Mapping[str, str], most: int, most_characters: int, hint: str = ""
) -> list[str]:
    """The prompts in a section's box, one per line. Raises SpecvizError, in words that end with the hint."""
    text = values.get("own", "")
    own = [line.strip() for line in text.splitlines() if line.strip()]
    num_characters = (
        len(text.encode("utf-16-le", "surrogatepass")) // 2
    )  # as the browser counts them
    if len(own) > most or num_characters > most_characters:
        allowed, got = (
            f"{most} and {most_characters:,} characters",
            f"{len(own)} and {num_characters:,}",
        )
        raise SpecvizError(f"own prompts must be at most {allowed} (got {got}){hint}")
    return own


def one_of(values: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    """One of a section's values. Raises SpecvizError."""
    text = values.get(name, "")
    if text not in allowed:
        raise SpecvizError(f"{name} must be one of {', '.join(allowed)} (got {text!r:.100})")
    return text
