"""Sums that grow shard by shard: of every slice, and of each draft its confidence, reasons and rejection patterns.

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
from specviz.alignment.types import ACCEPTED, BINS, BY_K, KS, Array

PATTERN = ["class_before", "text", "draft_most_likely_text"]  # what rejections are grouped by
MOST_PATTERNS = 100_000  # counted at once; beyond, the patterns that save least are forgotten
PATTERNS_SHOWN = 30
LEAST_SAVED = 1e-4  # a pattern is shown if it costs at least this share of the draft's calls
NAMES = ("num_tokens", "num_readable", "overlap", "keep", "agreement", "outside", "argmax")


@dataclass(slots=True)
class Totals:
    """Sums over the tokens of one slice under one draft."""

    sums: Array = field(default_factory=lambda: np.zeros(len(NAMES)))
    """By name, in the order of NAMES [7]."""
    by_k: Array = field(default_factory=lambda: np.zeros((len(BY_K), len(KS))))
    """By column of BY_K and by K [6, 16]."""
    accepted: Array = field(default_factory=lambda: np.zeros((len(ACCEPTED), len(KS) + 1)))
    """By column of ACCEPTED: steps that draft, then steps that accept 1, 2, ... 16 tokens or more [2, 17]."""
    num_prompts: int = 0  # with readable tokens

    def add(self, sums: Array, by_k: Array, accepted: Array) -> None:
        """Adds the sums of one text."""
        self.sums += sums
        self.by_k += by_k
        self.accepted += accepted
        self.num_prompts += int(sums[NAMES.index("num_readable")] > 0)

    def __getitem__(self, name: str) -> float:
        return float(self.sums[NAMES.index(name)])

    def share(self, name: str) -> float | None:
        """A mean over readable tokens; None where there are none."""
        num_readable = self["num_readable"]
        return self[name] / num_readable if num_readable else None

    def tokens_per_call(self, *, by_argmax: bool = False) -> Array:
        """Tokens per target call of the steps that begin here, by K; nan where none begins. [16]"""
        calls, emitted, _ = self._rows_by_k(by_argmax)
        has_calls = calls > 0
        return np.where(has_calls, emitted / np.where(has_calls, calls, 1.0), np.nan)

    def by_position(self, k: int, *, by_argmax: bool = False) -> tuple[float, ...]:
        """The share of the drafting steps at this K that accept 1, 2, ... k tokens or more; empty if no step drafts."""
        steps = self.accepted[int(by_argmax), : k + 1]
        num_drafting = steps[0]
        return tuple((steps[1:] / num_drafting).tolist()) if num_drafting > 0 else ()

    def speedups(self, plain_ms: float, *, by_argmax: bool = False) -> list[float] | None:
        """The speedup for every K; None where the times of some K are not known.

        plain_ms: the time of a step without a draft.
        """
        _, emitted, time_ms = self._rows_by_k(by_argmax)
        return (emitted * plain_ms / time_ms).tolist() if (time_ms > 0).all() else None

    def _rows_by_k(self, by_argmax: bool) -> Array:
        """Calls, emitted tokens and time of one way of drafting [3, 16]."""
        return self.by_k[3:] if by_argmax else self.by_k[:3]


class DraftTotals:
    """The totals of one draft besides its slices."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.confidence = np.zeros((BINS, 3))  # as in `AnalysedText`, summed over texts
        self._patterns: pandas.DataFrame | None = None
        self._lost_overlap = np.zeros(len(REASONS))  # by reason
        self._num_places = np.zeros(len(REASONS), dtype=np.int64)  # by reason
        self._losses: dict[str, Counter[str]] = {"class": Counter(), "reason": Counter()}

    def add(self, rows: pandas.DataFrame) -> None:
        """Adds this draft's rows of one shard."""
        tokens = {name: cells.to_numpy() for name, cells in rows.items()}
        self._lost_overlap += lost_by_reason(tokens)
        num_places = np.bincount(find_reasons(tokens), minlength=NO_REASON + 1)
        self._num_places += num_places[:NO_REASON]
        lost_tokens = rows["lost"].astype(np.float64)
        for kind, sums in self._losses.items():
            values = rows[kind].astype(str)
            for value, lost in lost_tokens.groupby(values).sum().items():
                if value and lost > 0:
                    sums[value] += lost
        self._add_patterns(rows)

    def _add_patterns(self, rows: pandas.DataFrame) -> None:
        costly = rows[rows["saved"] > EQUAL].astype({"saved": np.float64})
        costly = costly.sort_values(["prompt", "saved"], ascending=[True, False], kind="stable")
        by_text = costly.groupby([*PATTERN, "prompt"], sort=False).agg(
            saved=("saved", "sum"), num_places=("saved", "size"), place=("place", "first")
        )
        by_text["squares"] = by_text["saved"] ** 2
        by_text["num_prompts"] = 1
        known = pandas.concat([self._patterns, by_text.reset_index("prompt")])
        rules = {
            "saved": "sum",
            "squares": "sum",
            "num_places": "sum",
            "num_prompts": "sum",
            "prompt": "first",
            "place": "first",
        }
        patterns = known.groupby(level=PATTERN, sort=False).agg(rules)
        if len(patterns) > MOST_PATTERNS:
            patterns = patterns.nlargest(MOST_PATTERNS, "saved")
        self._patterns = patterns

    def patterns(self, ids: Mapping[int, str], calls: float) -> tuple[Pattern, ...]:
        """The patterns that recur in several texts beyond chance, most saved first.

        A pattern is shown if its interval leaves out 0. ids: of all prompts, by number. calls: all of the draft's.
        """
        if self._patterns is None or len(ids) < 2:
            return ()
        rows = self._patterns.reset_index()
        rows = rows.sort_values(["saved", *PATTERN], ascending=[False, True, True, True])
        saved = rows["saved"].to_numpy()
        low, high = interval_of_sum(saved, rows["squares"].to_numpy(), len(ids))
        rows = rows.assign(low=low, high=high)
        is_shown = (low > 0) & (saved >= LEAST_SAVED * calls)
        patterns = []
        for row in rows[is_shown].head(PATTERNS_SHOWN).itertuples():
            pattern = Pattern(
                before=row.class_before,
                token=row.text,
                draft_token=row.draft_most_likely_text,
                num_places=row.num_places,
                num_prompts=row.num_prompts,
                saved=row.saved,
                interval=(row.low, row.high),
                prompt=row.prompt,
                id=ids[row.prompt],
                place=row.place,
            )
            patterns.append(pattern)
        return tuple(patterns)

    def reasons(self) -> tuple[Reason, ...]:
        """The reasons that take a part of the lost overlap, largest first."""
        whole = max(self._lost_overlap.sum(), 1e-300)
        reasons = []
        for number, (name, words) in enumerate(REASONS.items()):
            lost = self._lost_overlap[number]
            if lost > 0:
                num_places = int(self._num_places[number])
                reasons.append(Reason(name, float(lost / whole), num_places, words))
        return tuple(sorted(reasons, key=lambda reason: -reason.share))

    def losses(self) -> tuple[Loss, ...]:
        """The losses by class, largest first, then the losses by reason."""
        losses = []
        for kind, sums in self._losses.items():
            whole = sums.total()
            for value, lost in sorted(sums.items(), key=lambda item: (-item[1], item[0])):
                losses.append(Loss(kind, value, lost, lost / whole))
        return tuple(losses)
