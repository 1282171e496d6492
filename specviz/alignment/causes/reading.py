"""A draft as a trial reads it: with a changed module, on changed texts, with other states or divided logits.

A change works on a twin that shares every weight it does not replace, so that nothing changes for anybody else.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from specviz.alignment.ahead import Draft, Proposer
from specviz.alignment.causes.sample import TargetTexts
from specviz.alignment.types import Array
from specviz.decoding.drafter import Ahead, Drafter
from specviz.decoding.forward.doubles import double_of
from specviz.drafters.block.heads import BlockHead
from specviz.drafters.eagle.drafter import EagleDrafter
from specviz.drafters.eagle.heads import EagleHead
from specviz.models.pool import LoadedModel
from specviz.models.score import TextIds

NUM_DEPTHS = 3
"""How many tokens a head drafts from each place: a wrong position shows at the second only."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A draft and what it reads, changed or not."""

    module: nn.Module | None
    """The draft model's, or the heads'; None for a method without weights of its own."""
    half: int
    """Which half of the texts it reads."""
    texts: Sequence[TextIds]
    """What a draft model reads, by text: the target's ids behind any prompt."""
    divided_by: float = 1.0
    """The divisor of its logits."""
    layers: tuple[int, ...] | None = None
    """The target's states that heads read, as in `Drafter.hidden_layers`; None: those of their files."""
    places: int = 0
    """How many tokens earlier than usual each of these states is taken; of a draft model, what it proposes."""
    shift: int = 0
    """What is added to the positions of the tokens that heads have drafted."""

    def with_module(self, change: Callable[[nn.Module], None]) -> "Reading":
        """This reading with a changed twin of its module."""
        module = twin(self.module)
        change(module)
        return replace(self, module=module)


@dataclass(frozen=True, slots=True, eq=False)
class Undo:
    """A change that would take back one fault."""

    kind: str
    """The kind of the fault, one of `probes.KINDS`."""
    cure: str
    """What is changed, in words that go on after "with"."""
    apply: Callable[[Reading], Reading]
    is_soft: bool = False
    """Whether it gives a part more or less weight, which helps against any damage."""
    is_local: bool = False
    """Whether it changes one layer alone."""
    parts: "tuple[Undo, ...]" = ()
    """The undos that it is made of, if it is made of several."""


Family = tuple[Undo, ...]
"""Undos of one sort, the mildest first; the next one is tried as long as none was clearly worse."""


def on_module(
    kind: str, cure: str, change: Callable[[nn.Module], None], *, is_soft: bool = False
) -> Undo:
    """An undo that changes the module."""
    return Undo(kind, cure, lambda reading: reading.with_module(change), is_soft)


def twin(module: nn.Module) -> nn.Module:
    """A double of a module and all modules in it. It has tables of its own, which hold the very same weights."""
    return double_of(module, _with_own_tables)


def _with_own_tables(double: nn.Module) -> None:
    double._parameters = copy.copy(double._parameters)
    double._buffers = copy.copy(double._buffers)


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """The draft that is examined, beside its target."""

    draft: Draft
    target: LoadedModel

    @property
    def module(self) -> nn.Module | None:
        if isinstance(self.draft, LoadedModel):
            return self.draft.model
        heads = self.draft.setup.heads
        return None if heads is None else heads.module

    def agreements(self, readings: Sequence[Reading], sample: TargetTexts) -> list[Array]:
        """The agreement of each reading with the target, by text [texts]; of heads, a mean over NUM_DEPTHS depths.

        The target reads each text once for all readings of heads.
        """
        draft = self.draft
        if isinstance(draft, Proposer):
            drafters = [self.drafter(reading) for reading in readings]
            return list(sample.agreement_of_drafters(drafters, NUM_DEPTHS))
        found = []
        for reading in readings:
            model = replace(draft, model=reading.module)
            found.append(sample.agreement(model, reading.texts, reading.divided_by))
        return found

    def drafter(self, reading: Reading) -> Drafter:
        """The drafter of a draft that is no model."""
        setup = self.draft.setup
        module = reading.module
        if isinstance(module, EagleHead) and not isinstance(module, BlockHead):
            drafter = EagleDrafter(module, width=1, nodes=1, shift=reading.shift)
        elif module is not None:
            changed = replace(setup, heads=replace(setup.heads, module=module))
            drafter = changed.drafter(self.target.cached_lm())
        else:
            drafter = self.draft.drafter()
        layers = drafter.hidden_layers if reading.layers is None else reading.layers
        return Changed(drafter, layers, reading.places, reading.divided_by)


class Changed(Drafter):
    """A drafter that reads other states of the target, or divides its logits."""

    def __init__(
        self, drafter: Drafter, layers: tuple[int, ...], places: int, divided_by: float
    ) -> None:
        """Wraps a drafter; at the ends of the text, the nearest state is taken. The rest is as in `Reading`."""
        self._drafter = drafter
        self._places = places
        self._divided_by = divided_by
        self.hidden_layers = layers

    def along(self, tokens: Tensor, states: Tensor) -> Ahead | None:
        places = torch.arange(len(states), device=states.device) - self._places
        nearest = places.clamp(0, len(states) - 1)
        ahead = self._drafter.along(tokens, states[nearest])

        def changed_ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, Tensor | None]]:
            for rows, known in ahead(starts, depths):
                is_logits = rows.dim() == 2  # else the ids of drafted tokens
                yield rows / self._divided_by if is_logits else rows, known

        return changed_ahead
