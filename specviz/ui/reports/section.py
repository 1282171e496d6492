"""What a page of sections is made of: what is looked at, a section, and what its buttons do with its values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specviz.errors import SpecvizError
from specviz.trace.file import Settings, Trace

Props = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """What is looked at on the stage: a run, and the step and token that are pinned there, if any."""

    run: str | None = None
    step: int | None = None
    ref: str | None = None

    @classmethod
    def told(cls, data: Any) -> Place:
        """What the browser said, as far as it can be a place at all."""
        given = data if isinstance(data, dict) else {}
        run, ref = (given.get(name) if isinstance(given.get(name), str) else None for name in ("run", "ref"))
        step = given.get("step")
        return cls(run, step if type(step) is int and step >= 0 else None, ref)


@dataclass(frozen=True, slots=True)
class Look:
    """A place with the trace that it is in, as it was at this moment; `trace` is None where nothing has been run."""

    place: Place
    trace: Trace | None

    @property
    def settings(self) -> Settings | None:
        """Those of the newest step; None before there is one."""
        return self.trace.steps[-1].settings if self.trace is not None and self.trace.steps else None

    @property
    def text(self) -> tuple[object, ...]:
        """What changes with the text: a run that goes on has another one."""
        known = () if self.trace is None else (len(self.trace.steps), len(self.trace.scores))
        return (self.place.run, *known)


Work = Generator[Props, None, None]
"""A section that grows: every value is the whole section."""
Act = Callable[[Look, Mapping[str, str]], Work]


def nothing(look: Look) -> Sequence[str]:
    """Work that needs no model."""
    return ()


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a page. `key`: what its contents depend on; the same key, the same section. `begin`: the section
    before anything is pressed. `acts`: what its buttons do, by name, with the section's values; `needs`: the models
    that they need. `opening`: work that begins by itself when the section is new, with what is loaded already. `keeps`:
    while its work shows nothing but how far it is, what was found before stays below. `engine`: whether its work asks
    models, and so takes turns at the engine. `again`: in place of `begin` where there is a section already."""

    name: str
    key: Callable[[Look], object]
    begin: Callable[[Look], Props]
    acts: Mapping[str, Act] = field(default_factory=dict)
    needs: Callable[[Look], Sequence[str]] = nothing
    opening: Callable[[Look], Work] | None = None
    keeps: bool = False
    engine: bool = True
    again: Callable[[Look, Props], Props] | None = None


def whole_number(values: Mapping[str, str], name: str, low: int, high: int) -> int:
    """One of a section's values. Raises SpecvizError."""
    text, what = values.get(name, ""), name.replace("_", " ")
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not low <= int(text) <= high:
        raise SpecvizError(f"{what} must be a whole number from {low:,} to {high:,} (got {text!r:.40})")
    return int(text)


def one_of(values: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    """One of a section's values. Raises SpecvizError."""
    text = values.get(name, "")
    if text not in allowed:
        raise SpecvizError(f"{name} must be one of {', '.join(allowed)} (got {text!r:.100})")
    return text
