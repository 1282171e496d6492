"""The search for the undos that a draft needs: greedy, and joint.

Every family of undos is screened on a few texts. The best ones are compared on half of the texts, and the best of these
is kept. Then all others are tried again on top of it, and what it makes needless goes: of two undos that gain, the one
that takes back the fault is left. What each gains is measured on the other half, which chose nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations, permutations

import numpy as np

from specviz.alignment.ahead import Proposer
from specviz.alignment.causes.reading import Family, Reading, Subject, Undo
from specviz.alignment.causes.sample import TargetTexts
from specviz.alignment.causes.undo import heads, matrices, prompts, rounding, rows, settings
from specviz.alignment.causes.verdict import LEAST_GAIN, least_explained, over_floor
from specviz.alignment.summary import Floors
from specviz.alignment.tables.slices import excludes_zero, interval_of_mean
from specviz.alignment.types import Array, RowText
from specviz.decoding.sampling import Sampling
from specviz.models.pool import LoadedModel, ModelPool
from specviz.models.score import TextIds

NUM_SCREENED = 4  # texts
MOST_COMPARED = 10  # undos, on half of the texts
MOST_UNDOS = 3  # faults of one draft
SAME = 0.001  # of two gains that differ by less, the simpler undo is kept, which was tried first
WORSE = 0.005  # a family is left where its next undo is worse by so much
EASY_LAYERS = 4  # a draft with more is searched layer by layer only where damping gains
MOST_LAYERS = 3
MOST_NUMBERS = 200_000_000  # of changed heads that are held at once
LOCAL = 1.5  # times the gain of an undo in every layer that one in a single layer must have
MENDED = 1 / 3
"""Another weight of a part counts as an undo where the draft then gains this share of what token pairs leave."""
STRUCTURE = ("norm", "exchange", "layout", "order")
TEMPERATURES = ((0.9, 0.8, 0.7, 0.6, 0.5, 0.35, 0.25), (1.1, 1.25, 1.5, 1.7, 2.0, 2.5, 3.5))


@dataclass(frozen=True, slots=True, eq=False)
class Cause:
    """An undo that gains, with its gains by text."""

    undo: Undo
    claim: Array
    """On the half that chose it [texts]."""
    gain: Array
    """On the other half [texts]; of several causes, this one's share in what they gain together."""


class Texts:
    """The texts of a search: half of them choose, the other half measures."""

    def __init__(self, texts: Sequence[RowText], target: LoadedModel, sampling: Sampling) -> None:
        self.halves = (texts[0::2], texts[1::2])
        ids = [[TextIds(text.prompt_ids, text.ids) for text in half] for half in self.halves]
        self.samples = tuple(TargetTexts(target, half, sampling) for half in ids)
        self.few = self.samples[0].first(NUM_SCREENED)
        """The texts on which every undo is screened, the first of the half that chooses."""


class Search:
    """The search in one draft. `run` yields the number of trials so far; the other attributes hold what it found."""

    def __init__(self, subject: Subject, texts: Texts, floors: Floors, pool: ModelPool) -> None:
        self.causes: list[Cause] = []
        """The faults, in the order in which they were taken back."""
        self.hurts: Cause | None = None
        """Where damping helps, if no fault is found; a place and no cause."""
        self.tried: set[str] = set()
        """The kinds of faults that were looked for."""
        self.before = (np.zeros(0), np.zeros(0))
        """The agreement of the unchanged draft, by half [texts]."""
        self.deaf: rows.DeafIds | None = None
        self._subject = subject
        self.texts = texts
        self._floors = floors
        self._pool = pool
        self._num_trials = 0
        self._known: dict[tuple[int, tuple[Undo, ...]], Array] = {}  # agreements by half and undos

    def run(self) -> Iterator[int]:
        """Finds the faults, then measures them on the other half."""
        self.before = (self._agreement((), 0), self._agreement((), 1))
        chosen: list[Undo] = []
        while len(chosen) < MOST_UNDOS:
            best = yield from self._best(chosen)
            if best is None:
                break
            chosen.append(best)
        chosen = self._without_needless(chosen)
        if self._agreement(chosen, 0).mean() <= self._floors.pairs:
            pair = yield from self._best_pair()
            chosen = self._without_needless(pair) or chosen
        causes = self._measure(chosen)
        faults = [cause for cause in causes if cause.undo.kind != "temperature"]
        self.causes = faults or causes
        if not faults:
            yield from self._find_hurts()

    @property
    def least(self) -> float:
        """The smallest gain that is named."""
        return least_explained(float(self.before[0].mean()))

    @property
    def _draft(self) -> LoadedModel | None:
        """The draft if it is a model."""
        draft = self._subject.draft
        return draft if isinstance(draft, LoadedModel) else None

    def _reading(self, half: int, undos: Sequence[Undo] = (), few: bool = False) -> Reading:
        sample = self.texts.few if few else self.texts.samples[half]
        unchanged = Reading(self._subject.module, half, sample.texts)
        return _together(undos).apply(unchanged) if undos else unchanged

    def _agreement(self, undos: Sequence[Undo], half: int) -> Array:
        """The agreement with these undos, by text of a half [texts]; it is measured once."""
        key = half, tuple(undos)
        if key not in self._known:
            reading = self._reading(half, undos)
            (self._known[key],) = self._subject.agreements([reading], self.texts.samples[half])
        return self._known[key]

    def _tried(
        self, undos: Sequence[Undo], reading: Reading, sample: TargetTexts
    ) -> Iterator[list[Array]]:
        """The agreement with each undo on top of a reading, by text [texts], some undos at a time."""
        for piece in self._pieces(undos):
            self._num_trials += len(piece)
            yield self._subject.agreements([undo.apply(reading) for undo in piece], sample)

    # ---- one round ---------------------------------------------------------------------------------------------------

    def _best(self, chosen: Sequence[Undo]) -> Iterator[int]:
        """The undo that gains most on top of the chosen ones, as the generator's value; None where none is clear."""
        reading = self._reading(0, chosen, few=True)
        screened = yield from self._screen(list(self._families(chosen, reading)), reading)
        by_layer: list[Family] = []
        for place in (yield from self._suspects(reading)):
            by_layer += matrices.families_of_layer(reading.module, place)
        screened += yield from self._screen(by_layer, reading)
        return self._compare(screened, chosen)

    def _best_pair(self) -> Iterator[int]:
        """The two undos that gain most together, as the generator's value; empty where none gain.

        Where two faults hide each other, no undo gains alone. Only undos of structure in every layer are paired.
        """
        reading = self._reading(0, few=True)
        module = reading.module
        firsts = [family[0] for family in matrices.families(module)] if module is not None else []
        structural = [undo for undo in firsts if undo.kind in STRUCTURE]
        families = [(_together(pair),) for pair in combinations(structural, 2)]
        screened = yield from self._screen(families, reading)
        best = self._compare(screened, ())
        return [] if best is None else list(best.parts)

    def _compare(
        self, screened: Sequence[tuple[float, Undo]], chosen: Sequence[Undo]
    ) -> Undo | None:
        """The best undo on the half that chooses, of those that gained most on the few texts.

        Where the draft is damaged, little is enough: beside a second fault, the undo of the first may gain little.
        Another weight of a part helps against any damage, so it counts only where the draft is mended by it.
        """
        before = self._agreement(chosen, 0)
        is_damaged = over_floor(float(before.mean()), self._floors) < MENDED
        least = LEAST_GAIN if is_damaged else self.least
        likely = [(gain, undo) for gain, undo in screened if gain >= least / 2]
        likely.sort(key=lambda each: -round(each[0], 3))
        best: Undo | None = None
        least_worth = 0.0
        undos = [undo for _, undo in likely[:MOST_COMPARED]]
        tried = self._tried(undos, self._reading(0, chosen), self.texts.samples[0])
        afters = [after for piece in tried for after in piece]
        for undo, after in zip(undos, afters, strict=True):
            gain = after - before
            mended = over_floor(float(after.mean()), self._floors)
            is_only_soft = undo.is_soft and mended < MENDED
            worth = float(gain.mean()) / (LOCAL if undo.is_local else 1.0)
            if is_clear(gain, least) and not is_only_soft and worth > least_worth + SAME:
                best = undo
                least_worth = worth
        return best

    def _without_needless(self, chosen: list[Undo]) -> list[Undo]:
        """The chosen undos without those that gain too little beside the others, the last one looked at first."""
        for undo in reversed(chosen):
            others = [other for other in chosen if other is not undo]
            gain = self._agreement(chosen, 0) - self._agreement(others, 0)
            if gain.mean() < self.least:
                chosen = others
        return chosen

    def _screen(self, families: Sequence[Family], reading: Reading) -> Iterator[int]:
        """The best undo of each family on the few texts with its gain, as the generator's value.

        A family is followed as long as its next undo is not clearly worse than its best one.
        """
        (before,) = self._subject.agreements([reading], self.texts.few)
        self.tried |= {family[0].kind for family in families}
        best = {id(family): (-1.0, family[0]) for family in families}
        active = list(families)
        step = 0
        while active:
            undos = [family[step] for family in active]
            gains = []
            for afters in self._tried(undos, reading, self.texts.few):
                for after in afters:
                    gain = float((after - before).mean())
                    gains.append(gain if np.isfinite(gain) else -1.0)
                yield self._num_trials
            left = []
            for family, undo, gain in zip(active, undos, gains, strict=True):
                most, _ = best[id(family)]
                if gain > most:
                    best[id(family)] = gain, undo
                if gain > most - WORSE and step + 1 < len(family):
                    left.append(family)
            active = left
            step += 1
        return list(best.values())

    def _pieces(self, undos: Sequence[Undo]) -> Iterator[Sequence[Undo]]:
        """Undos that are tried together: of heads as many as fit in memory, for one reading by the target."""
        size = 1
        module = self._subject.module
        if self._draft is None:
            numbers = sum(weight.numel() for weight in module.parameters()) if module else 0
            size = max(1, min(32, MOST_NUMBERS // max(1, numbers)))
        return (undos[start : start + size] for start in range(0, len(undos), size))

    # ---- what is tried -----------------------------------------------------------------------------------------------

    def _families(self, chosen: Sequence[Undo], reading: Reading) -> Iterator[Family]:
        """All families of undos but those of single layers. reading: of the few texts, with the chosen undos."""
        for divisors in TEMPERATURES:
            yield tuple(divide(divisor) for divisor in divisors)
        module = reading.module
        target = self._subject.target
        if module is not None:
            yield from matrices.families(module)
            yield from settings.families(module, target.model)
        if isinstance(self._subject.draft, Proposer):
            layers = self._subject.drafter(reading).hidden_layers
            if layers:
                yield from heads.families(module, target, layers)
            return
        yield from rounding.families(module)
        yield from rounding.wider(self._draft, self._pool)
        yield from prompts.families(self._draft, target, self.texts.halves)
        deaf = rows.deaf_ids(self.texts.samples[0], self._draft, self._reading(0, chosen))
        self.deaf = self.deaf or deaf
        yield from rows.families(module, deaf)
        yield from rows.shifted_rows(self._subject, reading, self.texts.few, deaf)

    def _suspects(self, reading: Reading) -> Iterator[int]:
        """The layers that are searched one by one, as the generator's value: all of few, else where damping gains."""
        if self._draft is None:
            return []
        count = len(matrices.blocks_of(reading.module))
        if count <= EASY_LAYERS:
            return list(range(count))
        places, families = zip(*matrices.damped(reading.module), strict=True)
        gains = yield from self._screen([family[:1] for family in families], reading)
        by_layer: dict[int, float] = {}
        for place, (gain, _) in zip(places, gains, strict=True):
            by_layer[place] = max(gain, by_layer.get(place, -1.0))
        return sorted(by_layer, key=lambda place: -by_layer[place])[:MOST_LAYERS]

    # ---- results -----------------------------------------------------------------------------------------------------

    def _measure(self, chosen: Sequence[Undo]) -> list[Cause]:
        """The share of each undo in what all gain together, where it is clear on the half that did not choose.

        Of several, one alone may gain nothing while the other fault is there. So each share is the Shapley value: the
        mean of what the undo adds to those before it, over all orders.
        """
        causes = []
        for undo in chosen:
            shares = []
            for half in (0, 1):
                added = []
                for order in permutations(chosen):
                    earlier = order[: order.index(undo)]
                    without = [each for each in chosen if each in earlier]
                    together = [each for each in chosen if each in (*earlier, undo)]
                    added.append(self._agreement(together, half) - self._agreement(without, half))
                shares.append(np.mean(added, axis=0))
            claim, gain = shares
            if is_clear(gain, self.least, len(chosen)):
                causes.append(Cause(undo, claim, gain))
        return causes

    def _find_hurts(self) -> Iterator[int]:
        """Damps every part, and keeps the part that gains most as the place where it hurts.

        A temperature that gains less gives way to it.
        """
        if self._draft is None:
            return
        reading = self._reading(0, few=True)
        families = [family for _, family in matrices.damped(reading.module)]
        screened = yield from self._screen(families, reading)
        best = self._compare(screened, ())
        found = self._measure([best]) if best is not None else []
        gained = sum(float(cause.gain.mean()) for cause in self.causes)
        if found and found[0].gain.mean() > gained:
            self.hurts = found[0]
            self.causes = []


def _together(undos: Sequence[Undo]) -> Undo:
    def apply(reading: Reading) -> Reading:
        return reduce(lambda changed, undo: undo.apply(changed), undos, reading)

    cure = " and ".join(undo.cure for undo in undos)
    return Undo(undos[0].kind, cure, apply, parts=tuple(undos))


def divide(divisor: float) -> Undo:
    def apply(reading: Reading) -> Reading:
        return replace(reading, divided_by=reading.divided_by * divisor)

    cure = f"its logits divided by {divisor:g}"
    return Undo("temperature", cure, apply, is_soft=True)


def is_clear(gain: Array, least: float, num_asked: int = 1) -> bool:
    """Whether the mean gain is large enough, and its interval as one of `num_asked` leaves out 0. gain: [texts]."""
    mean = gain.mean()
    is_enough = mean >= least
    return bool(is_enough and excludes_zero(interval_of_mean(gain), mean, len(gain), num_asked))
