"""What a drafter is, and how a method describes itself to the page, the command line and the help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..accept import Verdict
from ..draft import Draft
from ..draws import Draws
from ..errors import SpecvizError
from ..sampling import Sampling


@dataclass(frozen=True, slots=True)
class Work:
    """Forwards made and tokens read."""

    calls: int = 0
    fed: int = 0

    def __sub__(self, other: Work) -> Work:
        return Work(self.calls - other.calls, self.fed - other.fed)


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What a drafter may look at. tokens: the text so far, the same growing list at every step."""

    tokens: Sequence[int]
    sampling: Sampling
    draws: Draws
    vocab_size: int  # the target's; rows of q are this wide


class Drafter:
    """Proposes drafts. Keeps whatever state it likes, but its draft may depend on the context and the draws alone."""

    @property
    def work(self) -> Work:
        """What drafting has cost so far."""
        return Work()

    def draft(self, context: Context, k: int) -> Draft:
        """A draft of depth at most k; empty where the drafter has nothing to say or cannot read the text."""
        raise NotImplementedError

    def observe(self, draft: Draft, probs: Tensor, verdict: Verdict) -> None:
        """Called after each step with the target's rows [1+N, V] and the verdict."""


@dataclass(frozen=True, slots=True)
class Param:
    """A whole-number parameter of a method; the page builds its control from this."""

    name: str
    title: str
    default: int
    low: int
    high: int
    help: str

    def checked(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise SpecvizError(f"{self.name} must be a whole number from {self.low} to {self.high} (got {value!r})")
        return value


@dataclass(frozen=True, slots=True)
class Method:
    """A way to draft. roles: the models it needs besides the target. build(models by role, parameters) -> Drafter."""

    name: str
    title: str
    summary: str
    source: str
    roles: tuple[str, ...]
    params: tuple[Param, ...]
    default_rule: str
    build: Callable[[Mapping[str, object], Mapping[str, int]], Drafter]

    def checked(self, values: Mapping[str, object]) -> dict[str, int]:
        """All parameters, defaults filled in. Raises SpecvizError for unknown names and values out of range."""
        known = {param.name: param for param in self.params}
        if unknown := sorted(set(values) - set(known)):
            allowed = ", ".join(known) or "none"
            raise SpecvizError(f"the method {self.name} has no parameter {unknown[0]!r} (it has: {allowed})")
        return {name: param.checked(values.get(name, param.default)) for name, param in known.items()}
