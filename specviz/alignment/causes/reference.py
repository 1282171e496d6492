"""Compares a draft with a sound ancestor of the same shape: which tensors differ, and which of them cost agreement.

The ancestor's tensors are put back in groups: by layer, and by name across layers. The grouping that needs fewer groups
for the same gain tells where the damage is: in one layer, or in one sort of matrix everywhere.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from specviz.alignment.causes.reading import Reading, Subject
from specviz.alignment.causes.sample import TargetTexts
from specviz.alignment.causes.verdict import LEAST_GAIN, least_explained
from specviz.alignment.tables.slices import gain_interval_words, gain_numbers, interval_of_mean
from specviz.alignment.types import Array
from specviz.errors import SpecvizError
from specviz.models.files.checkpoint import list_keys

MOST_OF_IT = 0.9  # of the gain; the groups that reach it are named
MOST_GROUPS = 6  # that are named
LOW_RANK = 0.25  # of the smaller side of a matrix
ENERGY = 0.99  # of the squared change, which the counted ranks hold
MOST_RANKED = 2048  # rows or columns of a matrix whose rank is counted
Groups = Mapping[str, Sequence[str]]
"""Names of tensors by the words for their group."""


class Reference:
    """A draft beside its ancestor. Raises SpecvizError for an ancestor of another shape.

    halves: the texts that choose the groups, and those that measure.
    """

    @staticmethod
    def check(draft: nn.Module, ancestor: nn.Module) -> None:
        """Raises SpecvizError unless both have the same tensors in the same shapes."""
        own = {key: value.shape for key, value in draft.named_parameters()}
        others = {key: value.shape for key, value in ancestor.named_parameters()}
        if own != others:
            key = next(key for key in own | others if own.get(key) != others.get(key))
            raise SpecvizError(
                f"the reference must have the tensors of the draft, in the same shapes (they differ in {key!r:.80})"
            )

    def __init__(
        self, subject: Subject, ancestor: nn.Module, name: str, halves: Sequence[TargetTexts]
    ) -> None:
        self._subject = subject
        self._halves = halves
        self._name = name
        self._own = dict(subject.module.named_parameters())
        self.check(subject.module, ancestor)
        self._ancestors: dict[str, Tensor] = {}
        """The ancestor's tensors that are not the draft's."""
        for key, value in ancestor.named_parameters():
            alike = value.to(self._own[key])
            if not torch.equal(self._own[key], alike):
                self._ancestors[key] = alike

    def compare(self) -> tuple[str, Mapping[str, float]]:
        """What the differing tensors cost, in words, with the groups that cost most; and its numbers.

        The numbers are empty where nothing differs, or the difference costs nothing that can be measured.
        """
        changed = tuple(self._ancestors)
        opening = f"Beside {self._name}, {len(changed):,} of {len(self._own):,} tensors differ"
        if not changed:
            return f"{opening}: the weights are the same.", {}
        before = self._agreement((), 1)
        whole = self._agreement(changed, 1) - before
        halfway = self._agreement(changed, 1, 0.5) - before
        chosen = [self._agreement(changed, 0, share) for share in (0.5, 1.0)]
        was_added_twice = interval_of_mean(chosen[0] - chosen[1])[0] > 0
        gain = halfway if was_added_twice else whole
        numbers = gain_numbers(gain)
        lost = 1 - float(before.mean())
        interval = gain_interval_words(gain)
        if gain.mean() < least_explained(1 - lost) or numbers["low"] <= 0:
            words = (
                f"{opening} ({list_keys(changed)}), and they cost nothing that can be measured: with the reference's, "
                f"the agreement changes by {100 * gain.mean():+.1f} points ({interval}). {100 * lost:.1f} points stay "
                "unexplained."
            )
            return words, {}
        what = "half of the change taken back" if was_added_twice else "the reference's put back"
        words = (
            f"{opening}. With {what}, the agreement rises by {100 * gain.mean():.1f} points ({interval}), from "
            f"{before.mean():.2f} to {(before + gain).mean():.2f}: that is so much of the {100 * lost:.1f} points "
            f"that are lost; {100 * (lost - gain.mean()):.1f} stay unexplained."
        )
        if was_added_twice:
            words += (
                " So half of it agrees better than all of it, as when a change was added twice."
            )
        elif groups := self._costly_groups():
            costs = [f"{group} {100 * cost:.1f}" for group, cost in groups]
            words += f" Put back alone, in points: {'; '.join(costs)}."
        return words + self._rank_words(), numbers

    # ---- groups ------------------------------------------------------------------------------------------------------

    def _costly_groups(self) -> list[tuple[str, float]]:
        """The fewest groups that gain most of it, each with its own gain, by layer or by name; the costliest first."""
        best: list[tuple[str, float]] = []
        before = self._agreement((), 0)
        for words_of in (_by_layer, _by_name):
            gains = {}
            for words, keys in _grouped(self._ancestors, words_of).items():
                gains[words] = float((self._agreement(keys, 0) - before).mean())
            ranked = sorted(gains.items(), key=lambda each: -each[1])
            total = sum(max(gain, 0.0) for _, gain in ranked)
            chosen: list[tuple[str, float]] = []
            for words, gain in ranked[:MOST_GROUPS]:
                if gain >= LEAST_GAIN and sum(own for _, own in chosen) < MOST_OF_IT * total:
                    chosen.append((words, gain))
            if chosen and (not best or len(chosen) < len(best)):
                best = chosen
        return best

    def _agreement(self, keys: Sequence[str], half: int, share: float = 1.0) -> Array:
        """The agreement with these tensors moved so far to the reference's, by text of a half [texts]."""
        sample = self._halves[half]
        reading = Reading(self._subject.module, half, sample.texts)
        if keys:
            replaced = {}
            for key in keys:
                own = self._own[key]
                replaced[id(own)] = torch.lerp(own.detach(), self._ancestors[key], share)
            reading = reading.with_module(partial(_replace, replaced=replaced))
        return self._subject.agreements([reading], sample)[0]

    # ---- what the change looks like ----------------------------------------------------------------------------------

    def _rank_words(self) -> str:
        """How low the rank of the changes is, if it is low in every matrix that is small enough to count."""
        ranks = []
        for key, value in self._ancestors.items():
            if value.ndim == 2 and max(value.shape) <= MOST_RANKED:
                rank = _rank((self._own[key].detach() - value).float())
                if rank > LOW_RANK * min(value.shape):
                    return ""
                ranks.append(rank)
        if not ranks:
            return ""
        return (
            f" The matrices differ by changes of rank {max(ranks)} at most, as a LoRA makes them."
        )


def _replace(module: nn.Module, replaced: Mapping[int, Tensor]) -> None:
    """Puts other tensors in the place of parameters, tied ones everywhere. replaced: by the parameter's identity."""
    for part in module.modules():
        for name, weight in list(part._parameters.items()):
            if id(weight) in replaced:
                part._parameters[name] = nn.Parameter(replaced[id(weight)], requires_grad=False)


def _place(key: str) -> tuple[int | None, str]:
    """The number of the layer that a tensor belongs to, if any, and the tensor's name in it."""
    parts = key.split(".")
    for at, part in enumerate(parts):
        if part.isdecimal():
            return int(part), ".".join(parts[at + 1 :])
    return None, key


def _grouped(keys: Iterable[str], words_of: Callable[[int, str], str]) -> Groups:
    """The tensors in groups. words_of: names the group of a tensor by its layer, from 1, and its name there."""
    groups: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        layer, name = _place(key)
        groups[name if layer is None else words_of(layer + 1, name)].append(key)
    return groups


def _by_layer(layer: int, name: str) -> str:
    return f"{name.split('.')[0]} of layer {layer}"


def _by_name(layer: int, name: str) -> str:
    return f"{name} of every layer"


def _rank(change: Tensor) -> int:
    """The number of singular values that hold nearly all of a matrix."""
    squared = torch.linalg.svdvals(change).square()
    held = squared.cumsum(0) / squared.sum().clamp_min(1e-30)
    return int((held < ENERGY).sum()) + 1
