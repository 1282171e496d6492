"""Sums that grow shard by shard: those of a slice, and of a draft its confidence, reasons and costliest rejections.

Their size does not depend on the number of prompts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from specviz.alignment.summary import Loss, Reason, Rejection
from specviz.alignment.tables.reasons import NO_REASON, REASONS, find_reasons, lost_by_reason
from specviz.alignment.types import BINS, BY_K, KEPT, KS, Array, Columns

if TYPE_CHECKING:
    import pandas

MOST_COSTLY = 50
MOST_ALIKE = 2  # of one token in one text among these
AROUND = 12  # tokens shown on either side of a rejection
AROUND_CHARACTERS = 240


NAMES = ("num_tokens", "num_readable", "overlap", "keep", "agreement", "outside", "argmax")


@dataclass(slots=True)
class Totals:
    """Sums over the tokens of one slice under one draft: of NAMES, of BY_K for every K [6, 16], of KEPT [2, 17].
    num_prompts: those with readable tokens."""

    sums: Array = field(default_factory=lambda: np.zeros(len(NAMES)))
    by_k: Array = field(default_factory=lambda: np.zeros((len(BY_K), len(KS))))
    kept: Array = field(default_factory=lambda: np.zeros((len(KEPT), len(KS) + 1)))
    num_prompts: int = 0

    def add(self, sums: Array, by_k: Array, kept: Array) -> None:
        """Those of one text."""
        self.sums += sums
        self.by_k += by_k
        self.kept += kept
        self.num_prompts += int(sums[NAMES.index("num_readable")] > 0)

    def __getitem__(self, name: str) -> float:
        return float(self.sums[NAMES.index(name)])

    def share(self, name: str) -> float | None:
        """A mean over readable tokens; None where there are none."""
        return self[name] / self["num_readable"] if self["num_readable"] else None

    def tokens_per_call(self, *, by_argmax: bool = False) -> Array:
        """For every K, of steps that begin here; nan where none does. [16]"""
        calls, emitted, _ = self._way(by_argmax)
        return np.where(calls > 0, emitted / np.where(calls > 0, calls, 1.0), np.nan)

    def by_position(self, k: int, *, by_argmax: bool = False) -> tuple[float, ...]:
        """Of the steps at this K that draft, the share that keeps 1, 2, ... k tokens or more; empty without any."""
        drafting, *kept = self.kept[int(by_argmax), : k + 1]
        return tuple((np.array(kept) / drafting).tolist()) if drafting > 0 else ()

    def _way(self, by_argmax: bool) -> Array:
        return self.by_k[3:] if by_argmax else self.by_k[:3]

    def speedups(self, plain_ms: float, *, by_argmax: bool = False) -> list[float] | None:
        """For every K; None where the times of some K are not known. plain_ms: of a step without a draft."""
        _, emitted, time_ms = self._way(by_argmax)
        return (emitted * plain_ms / time_ms).tolist() if (time_ms > 0).all() else None


class DraftTotals:
    """What is kept of one draft besides its slices. confidence: as `AnalysedText` has it, summed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.confidence = np.zeros((BINS, 3))
        self.costliest: list[Rejection] = []
        self._lost = np.zeros(len(REASONS))  # overlap, by reason
        self._places = np.zeros(len(REASONS), dtype=np.int64)
        self._losses: dict[str, Counter[str]] = {"class": Counter(), "reason": Counter()}

    def add(self, rows: pandas.DataFrame, ids: Mapping[int, str]) -> None:
        """rows: this draft's rows of a shard, each text's together. ids: of prompts, by number."""
        tokens = {name: cells.to_numpy() for name, cells in rows.items()}
        self._lost += lost_by_reason(tokens)
        self._places += np.bincount(find_reasons(tokens), minlength=NO_REASON + 1)[:NO_REASON]
        lost = rows["lost"].astype(np.float64)
        for kind, sums in self._losses.items():
            found = lost.groupby(rows[kind].astype(str)).sum()
            sums.update({value: lost for value, lost in found.items() if value and lost > 0})
        saved = rows["price"].astype(np.float64) * (1 - rows["keep"].astype(np.float64))
        dearest = rows[["prompt", "token"]].assign(saved=saved.to_numpy(), at=np.arange(len(rows)))
        dearest = dearest[dearest["saved"] > 0].sort_values("saved", ascending=False, kind="stable")
        dearest = dearest[dearest.groupby(["prompt", "token"]).cumcount() < MOST_ALIKE].head(MOST_COSTLY)
        made = [
            self._rejection(tokens, at, saved, ids) for at, saved in zip(dearest["at"], dearest["saved"], strict=True)
        ]
        ranked = sorted([*self.costliest, *made], key=lambda each: (-each.saved, each.prompt, each.place))
        self.costliest = ranked[:MOST_COSTLY]

    def reasons(self) -> tuple[Reason, ...]:
        """Those that take a part of the lost overlap, most first."""
        whole = max(self._lost.sum(), 1e-300)
        rows = zip(REASONS.items(), self._lost, self._places, strict=True)
        found = [Reason(name, float(lost / whole), int(num), words) for (name, words), lost, num in rows if lost > 0]
        return tuple(sorted(found, key=lambda reason: -reason.share))

    def losses(self) -> tuple[Loss, ...]:
        """Those by class, largest first, then those by reason."""
        return tuple(
            Loss(kind, value, lost, lost / sums.total())
            for kind, sums in self._losses.items()
            for value, lost in sorted(sums.items(), key=lambda item: (-item[1], item[0]))
        )

    def _rejection(self, tokens: Columns, at: int, saved: float, ids: Mapping[int, str]) -> Rejection:
        prompts, texts = tokens["prompt"], tokens["text"]
        before, after = (
            "".join(texts[part][prompts[part] == prompts[at]])
            for part in (slice(max(0, at - AROUND), at), slice(at + 1, at + AROUND + 1))
        )
        return Rejection(
            draft=self.name,
            prompt=int(prompts[at]),
            id=ids[int(prompts[at])],
            place=int(tokens["place"][at]),
            before=before[-AROUND_CHARACTERS:],
            token=str(texts[at]),
            after=after[:AROUND_CHARACTERS],
            target_favourite=str(tokens["favourite_text"][at]),
            draft_favourite=str(tokens["draft_favourite_text"][at]),
            reason=str(tokens["reason"][at]),
            saved=saved,
            **{name: float(tokens[name][at]) for name in ("p", "q", "keep", "price")},
        )
