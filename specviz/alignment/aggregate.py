"""The tables of all shards, one at a time and in order -> the summary of the job.

Of a prompt it keeps only two sums per slice and draft, else totals, so that memory stays flat in tokens. Knows no model
and no file; what the job knows comes in `Facts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas

from specviz.alignment.causes import findings
from specviz.alignment.causes.findings import Cliff
from specviz.alignment.job_folder import Job, Preparation
from specviz.alignment.summary import (
    ENOUGH_PROMPTS,
    DraftComparison,
    DraftingMode,
    DraftSummary,
    Interval,
    Slice,
    Summary,
)
from specviz.alignment.tables.compare import compare_drafts, sampling_of
from specviz.alignment.tables.shard_tables import CLASSES
from specviz.alignment.tables.slices import (
    DraftSlice,
    Parts,
    alpha_intervals,
    bucket_start,
    by_part,
    excess_of_loss,
    excludes_zero,
    records,
)
from specviz.alignment.tables.totals import NAMES, DraftTotals, Totals
from specviz.alignment.types import ACCEPTED, BY_K, KS, SAMPLED, Array, RefusedRow, ShardTables
from specviz.analysis import theory, whatif
from specviz.request import Request
from specviz.views.words import quantity

if TYPE_CHECKING:
    from specviz.analysis.costs import Costs

MOST_TAGS = 1000  # told apart; of them the summary has the largest
TAGS_SHOWN = 100
MOST_REFUSED = 20  # lines listed; all are counted
LEAST_EXCESS, LEAST_TIMES = (
    0.05,
    1.25,
)  # of a slice's share of the loss to that of the tokens, before it is named
KINDS = ("all", "tag", "class", "depth", "context", "ahead")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known besides the tables. costs: per draft, those that the shards' step_ms were made from. refused,
    num_refused: lines of the prompt file. warnings: beside those of the preparation. num_ids: that the target or a
    draft can write, where known."""

    job: Job
    preparation: Preparation
    costs: Mapping[str, Costs] = field(default_factory=dict)
    refused: Sequence[RefusedRow] = ()
    num_refused: int = 0
    warnings: Sequence[str] = ()
    num_ids: Mapping[str, int] = field(default_factory=dict)

    def steady_costs(self, draft: str) -> Costs | None:
        """Those that carry advice."""
        costs = self.costs.get(draft)
        return None if costs is None or costs.doubt else costs

    def ids_of(self, draft: str) -> tuple[int, int] | None:
        """How many ids the draft and the target can write."""
        names = draft, self.job.request.target
        return (
            tuple(self.num_ids[name] for name in names) if self.num_ids.keys() >= {*names} else None
        )

    def speedups(self, draft: str, total: Totals, *, by_argmax: bool = False) -> list[float] | None:
        """For every K; None where costs are not known or not steady."""
        costs = self.steady_costs(draft)
        return (
            None if costs is None else total.speedups(theory.step_ms(costs, 0), by_argmax=by_argmax)
        )

    def way(self, draft: str, total: Totals, k: int, *, by_argmax: bool) -> DraftingMode:
        speedups = self.speedups(draft, total, by_argmax=by_argmax)
        per_call = (
            tuple(total.tokens_per_call(by_argmax=by_argmax).tolist())
            if total["num_tokens"]
            else ()
        )
        kept = total.by_position(k, by_argmax=by_argmax)
        alpha = total.share("argmax" if by_argmax else "overlap")
        best_k = speedups and whatif.best_range(dict(zip(KS, speedups, strict=True)))
        return DraftingMode(alpha, per_call, speedups and tuple(speedups), best_k, kept)


class Aggregator:
    """`add` every shard's tables once, in order; then `summary`."""

    def __init__(self, k: int, drafts: Sequence[str]) -> None:
        if k not in KS:
            raise ValueError(f"k must be from {KS[0]} to {KS[-1]} (got {k})")
        self.k, self.drafts = k, tuple(drafts)
        self._num_cut = 0
        self.ids: dict[int, str] = {}
        self._lengths: list[Array] = []  # of the prompts' texts, in the order of `ids`
        self._sources: Counter[tuple[str, bool]] = Counter()
        self._drafts = {name: DraftTotals(name) for name in drafts}
        self._totals: dict[DraftSlice, Totals] = {}
        self._numbers: dict[DraftSlice, int] = {}  # from 1, of a part in the records
        self._rows: list[Array] = []  # records of readable tokens
        self._shared: list[Array] = []  # records of the tokens that every draft can read
        self._tags: set[str] = set()
        self._too_many_tags = False
        self._refused: list[RefusedRow] = []
        self._num_refused = 0
        self._warnings: dict[str, None] = {}

    def add(self, tables: ShardTables) -> None:
        self._add_prompts(tables.prompts)
        self._add_sums(tables.sums)
        for name, confidence in tables.confidence.items():
            self._drafts[name].confidence += confidence
        for name, rows in tables.tokens.groupby("draft"):
            self._drafts[name].add(rows)
        self._refused = [*self._refused, *tables.refused][:MOST_REFUSED]
        self._num_refused += len(tables.refused)
        self._warnings |= dict.fromkeys(tables.warnings)

    def _add_prompts(self, prompts: pandas.DataFrame) -> None:
        own = prompts[prompts["draft"] == self.drafts[0]]
        self._lengths.append(
            own["num_tokens"].to_numpy(copy=True)
        )  # a view would keep the whole frame
        self.ids |= zip(own["prompt"], own["id"], strict=True)
        self._num_cut += int((own["finish"] == "context").sum())
        self._sources.update(zip(own["source"], own["exact"], strict=True))

    def _add_sums(self, sums: pandas.DataFrame) -> None:
        numbers = sums[list(NAMES)].to_numpy(np.float64)
        by_k = np.array([list(sums[name]) for name in BY_K], dtype=np.float64)
        kept = np.array([list(sums[name]) for name in ACCEPTED], dtype=np.float64)
        part_numbers = np.zeros(len(numbers), dtype=np.int32)
        for place, part in enumerate(map(DraftSlice, sums["draft"], sums["kind"], sums["value"])):
            if self._has_room_for(part):
                self._totals.setdefault(part, Totals()).add(
                    numbers[place], by_k[:, place], kept[:, place]
                )
                part_numbers[place] = self._numbers.setdefault(part, 1 + len(self._numbers))
        own = records(sums["prompt"], part_numbers, sums["num_readable"], sums["overlap"])
        shared = records(sums["prompt"], part_numbers, sums["num_shared"], sums["shared_overlap"])
        self._rows.append(own)
        self._shared.append(own if np.array_equal(own, shared) else shared)

    def _has_room_for(self, part: DraftSlice) -> bool:
        """Whether the part is counted: all but tags after the first MOST_TAGS."""
        if part.kind != "tag" or part.value in self._tags:
            return True
        self._too_many_tags |= len(self._tags) == MOST_TAGS
        if not self._too_many_tags:
            self._tags.add(part.value)
        return not self._too_many_tags

    @property
    def num_tokens(self) -> int:
        return sum(int(lengths.sum()) for lengths in self._lengths)

    def summary(self, facts: Facts) -> Summary:
        every = by_part(self._rows, self._numbers)
        parts, cliffs = self._select_shown(every), findings.cliffs(every)
        intervals = alpha_intervals(parts)
        job, request = facts.job, facts.job.request
        return Summary(
            specviz=job.specviz,
            created=facts.preparation.created,
            prompts=job.prompts,
            **{
                name: getattr(request, name)
                for name in ("target", "seed", "max_new_tokens", "chat", "chat_options")
            },
            sampling=sampling_of(request),
            k=self.k,
            num_prompts=len(self.ids),
            num_tokens=self.num_tokens,
            num_cut=self._num_cut,
            num_refused=facts.num_refused + self._num_refused,
            refused=tuple(sorted(map(astuple, {*facts.refused, *self._refused}))[:MOST_REFUSED]),
            exact=bool(self._sources) and all(is_exact for _, is_exact in self._sources),
            note=self._note(request),
            warnings=self._all_warnings(facts),
            looked_for=(*facts.preparation.looked_for, *findings.looked_for(every))
            if self.ids
            else (),
            costs={name: costs.to_dict() for name, costs in facts.costs.items()},
            costs_from="measured"
            if job.costs == "measured"
            else "given"
            if facts.costs
            else "left out",
            drafts=tuple(
                self._draft(name, facts, intervals, every, cliffs) for name in self.drafts
            ),
            slices=tuple(self._slices(facts, parts, intervals, cliffs)),
            comparisons=self._comparisons(parts),
            by_prompt=self._by_prompt(parts),
            models=dict(job.models),
        )

    def _select_shown(self, parts: Parts) -> Parts:
        """Those of the report's kinds in its order; of too many tags those that most prompts have."""
        sizes = Counter({part.value: len(own) for part, own in parts.items() if part.kind == "tag"})
        tags = {value for value, _ in sizes.most_common(TAGS_SHOWN)}
        shown = [
            part
            for part in parts
            if part.kind in KINDS and (part.kind != "tag" or part.value in tags)
        ]
        return {part: parts[part] for part in sorted(shown, key=self._order)}

    def _order(self, part: DraftSlice) -> tuple[int, int, int, str]:
        order = {
            "class": CLASSES.index,
            "depth": bucket_start,
            "context": bucket_start,
            "ahead": int,
        }
        own = order.get(part.kind, lambda _: 0)
        return self.drafts.index(part.draft), KINDS.index(part.kind), own(part.value), part.value

    def _draft(
        self,
        name: str,
        facts: Facts,
        intervals: Mapping[DraftSlice, Interval | None],
        every: Parts,
        cliffs: Sequence[Cliff],
    ) -> DraftSummary:
        whole, own, costs = (
            DraftSlice(name, "all", "all"),
            self._drafts[name],
            facts.steady_costs(name),
        )
        total = self._totals.get(whole, Totals())
        calls = float(total.by_k[0][self.k - KS[0]])
        outside, drawn = total.share("outside"), facts.way(name, total, self.k, by_argmax=False)
        made = DraftSummary(
            name=name,
            num_tokens=int(total["num_tokens"]),
            num_prompts=total.num_prompts,
            alpha_interval=intervals.get(whole),
            greedy_agreement=total.share("agreement"),
            mean_acceptance=total.share("keep"),
            calls=calls,
            **asdict(drawn),
            readable=total["num_readable"] / max(total["num_tokens"], 1.0),
            ceiling=None if outside is None else 1 - outside,
            calibration=findings.calibration(
                own.confidence, None if costs is None else theory.cost_ratio(costs)
            ),
            reasons=own.reasons(),
            losses=own.losses(),
            findings=(),
            by_argmax=facts.way(name, total, self.k, by_argmax=True),
            patterns=own.patterns(self.ids, calls),
        )
        of_models = tuple(
            finding for finding in facts.preparation.findings if finding.draft == name
        )
        return replace(
            made, findings=of_models + findings.of_draft(made, cliffs, every, facts.ids_of(name))
        )

    def _slices(
        self,
        facts: Facts,
        parts: Parts,
        intervals: Mapping[DraftSlice, Interval | None],
        cliffs: Sequence[Cliff],
    ) -> Iterator[Slice]:
        falls = {cliff.part for cliff in cliffs if cliff.significant}
        for part, own in parts.items():
            total = self._totals[part]
            whole = parts[DraftSlice(part.draft, "all", "all")]
            excess = None if part.kind == "ahead" else excess_of_loss(own, whole)
            share, loss_share, around = excess or (None, None, None)
            speedups = facts.speedups(part.draft, total)
            rate = float(total.tokens_per_call()[self.k - KS[0]])
            yield Slice(
                *part,
                num_tokens=int(total["num_readable"]),
                num_prompts=total.num_prompts,
                alpha=total.share("overlap"),
                alpha_interval=intervals[part],
                greedy_agreement=total.share("argmax" if part.kind == "ahead" else "agreement"),
                tokens_per_call=rate if np.isfinite(rate) else None,
                best_k=speedups and KS[int(np.argmax(speedups))],
                speedup=speedups and max(speedups),
                cliff=part in falls,
                share=share,
                loss_share=loss_share,
                excess=around,
                stands_out=excess is not None and _stands_out(*excess, len(whole), len(parts)),
            )

    def _by_prompt(self, parts: Parts) -> dict[str, dict[str, float]]:
        """Overlap over all tokens of the text: what the draft cannot read counts 0."""
        whole = {part.draft: own for part, own in parts.items() if part.kind == "all"}
        columns = {
            name: pandas.Series(own.overlap, own.prompts, np.float64) for name, own in whole.items()
        }
        overlaps = pandas.DataFrame(columns, [*self.ids], self.drafts, np.float64).fillna(0.0)
        alphas = overlaps.div(np.concatenate([[], *self._lengths]), axis="index")
        return alphas.set_axis([*self.ids.values()]).to_dict("index")

    def _comparisons(self, parts: Parts) -> tuple[DraftComparison, ...]:
        """Over the tokens that all drafts can read, or the nearer reach of one would look like a better draft."""
        if all(own is shared for own, shared in zip(self._rows, self._shared, strict=True)):
            return compare_drafts(parts, self.drafts, self.ids)
        every = by_part(self._shared, self._numbers)
        shared = {part: every[part] for part in parts if part in every}
        whole = shared.get(DraftSlice(self.drafts[0], "all", "all"))
        words = "No token can be read by all drafts, so nothing is compared."
        if whole is not None:
            num_shared = int(whole.num_tokens.sum(dtype=np.float64))
            count = f"{num_shared:,} of {self.num_tokens:,} tokens"
            words = f"Only over the {count} that all drafts can read: their contexts or vocabularies differ."
            words = words if num_shared < self.num_tokens else ""
        return compare_drafts(shared, self.drafts, self.ids, words)

    def _all_warnings(self, facts: Facts) -> tuple[str, ...]:
        warnings = [*facts.preparation.warnings, *facts.warnings, *self._warnings]
        if self._too_many_tags or len(self._tags) > TAGS_SHOWN:
            beyond = (
                f", of the first {MOST_TAGS:,}; later ones were not counted separately"
                if self._too_many_tags
                else ""
            )
            warnings.append(f"Only the {TAGS_SHOWN} tags with the most prompts are listed{beyond}.")
        return tuple(dict.fromkeys(warnings))

    def _note(self, request: Request) -> str:
        """What the numbers rest on."""
        top_k = f", top-k {request.top_k}" if request.top_k else ""
        top_p = f", top-p {request.top_p:g}" if request.top_p < 1 else ""
        distribution = f"{request.target} at temperature {request.temperature:g}{top_k}{top_p}"
        sentences = []
        for (source, is_exact), size in sorted(self._sources.items()):
            texts, origin = (
                quantity(size, "text"),
                "" if source == SAMPLED else ", as their rows say",
            )
            estimate = f"{texts} given: an estimate, exact only if sampled from {distribution}."
            sentences.append(
                f"{texts} sampled from {distribution}{origin}." if is_exact else estimate
            )
        return " ".join(sentences) or "No text could be used."


def _stands_out(
    share: float, loss_share: float, around: Interval | None, size: int, num_asked: int
) -> bool:
    """Whether its share of the loss is above that of the tokens by an amount that matters, and beyond chance. size: how
    many prompts the interval rests on."""
    matters = loss_share >= max(share + LEAST_EXCESS, LEAST_TIMES * share)
    return (
        size >= ENOUGH_PROMPTS
        and matters
        and excludes_zero(around, loss_share - share, size, num_asked)
    )
