"""Sums that grow shard by shard: those of a slice, and of a draft its confidence, reasons and patterns of rejections.

Their size does not grow with the number of prompts beyond MOST_PATTERNS.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas

from specviz.alignment.summary import Loss, Pattern, Reason
from specviz.alignment.tables.reasons import EQUAL, NO_REASON, REASONS, find_reasons, lost_by_reason
from specviz.alignment.tables.slices import interval_of_sum
from specviz.alignment.types import BINS, BY_K, KEPT, KS, Array

PATTERN = ["class_before", "text", "draft_most_likely_text"]  # what rejections are grouped by
MOST_PATTERNS = 100_000  # counted at once; beyond, those that save least are forgotten
PATTERNS_SHOWN = 30
LEAST_SAVED = 1e-4  # of the draft's calls, that a pattern costs which is shown
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
        self._patterns: pandas.DataFrame | None = None
        self._lost = np.zeros(len(REASONS))  # overlap, by reason
        self._places = np.zeros(len(REASONS), dtype=np.int64)
        self._losses: dict[str, Counter[str]] = {"class": Counter(), "reason": Counter()}

    def add(self, rows: pandas.DataFrame) -> None:
        """rows: this draft's rows of a shard."""
        tokens = {name: cells.to_numpy() for name, cells in rows.items()}
        self._lost += lost_by_reason(tokens)
        self._places += np.bincount(find_reasons(tokens), minlength=NO_REASON + 1)[:NO_REASON]
        lost = rows["lost"].astype(np.float64)
        for kind, sums in self._losses.items():
            found = lost.groupby(rows[kind].astype(str)).sum()
            sums.update({value: lost for value, lost in found.items() if value and lost > 0})
        self._add_patterns(rows)

    def _add_patterns(self, rows: pandas.DataFrame) -> None:
        costly = rows[rows["saved"] > EQUAL].astype({"saved": np.float64})
        costly = costly.sort_values(["prompt", "saved"], ascending=[True, False], kind="stable")
        by_text = costly.groupby([*PATTERN, "prompt"], sort=False).agg(
            saved=("saved", "sum"), num_places=("saved", "size"), place=("place", "first")
        )
        by_text = by_text.assign(squares=by_text["saved"] ** 2, num_prompts=1).reset_index("prompt")
        added = pandas.concat([self._patterns, by_text])
        rules = dict.fromkeys(("saved", "squares", "num_places", "num_prompts"), "sum")
        found = added.groupby(level=PATTERN, sort=False).agg(
            rules | {"prompt": "first", "place": "first"}
        )
        self._patterns = (
            found if len(found) <= MOST_PATTERNS else found.nlargest(MOST_PATTERNS, "saved")
        )

    def patterns(self, ids: Mapping[int, str], calls: float) -> tuple[Pattern, ...]:
        """Those whose interval leaves out 0, which recur in several texts; most saved first. ids: of all prompts, by
        number. calls: the draft's in all."""
        if self._patterns is None or len(ids) < 2:
            return ()
        found = self._patterns.reset_index().sort_values(
            ["saved", *PATTERN], ascending=[False, True, True, True]
        )
        low, high = interval_of_sum(
            found["saved"].to_numpy(), found["squares"].to_numpy(), len(ids)
        )
        found = found.assign(low=low, high=high)
        found = found[(low > 0) & (found["saved"] >= LEAST_SAVED * calls)].head(PATTERNS_SHOWN)
        return tuple(
            Pattern(
                row.class_before, row.text, row.draft_most_likely_text, row.num_places, row.num_prompts, row.saved,
                (row.low, row.high), row.prompt, ids[row.prompt], row.place,
            )
            for row in found.itertuples()
        )  # fmt: skip

    def reasons(self) -> tuple[Reason, ...]:
        """Those that take a part of the lost overlap, most first."""
        whole = max(self._lost.sum(), 1e-300)
        rows = zip(REASONS.items(), self._lost, self._places, strict=True)
        found = [
            Reason(name, float(lost / whole), int(num), words)
            for (name, words), lost, num in rows
            if lost > 0
        ]
        return tuple(sorted(found, key=lambda reason: -reason.share))

    def losses(self) -> tuple[Loss, ...]:
        """Those by class, largest first, then those by reason."""
        return tuple(
            Loss(kind, value, lost, lost / sums.total())
            for kind, sums in self._losses.items()
            for value, lost in sorted(sums.items(), key=lambda item: (-item[1], item[0]))
        )
