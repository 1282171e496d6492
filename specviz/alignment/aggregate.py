"""Adds up the tables of all shards, one at a time and in order, to the summary of the job.

It stores two sums per prompt, slice and draft, and totals else, so memory does not grow with tokens. Knows no model and
no file; what the job knows comes in `Facts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas

from specviz.alignment.causes import findings
from specviz.alignment.causes.findings import Cliff
from specviz.alignment.causes.verdict import next_step, verdict_of
from specviz.alignment.job_folder import Job, Preparation
from specviz.alignment.served.beside import beside, finding_of, note_of
from specviz.alignment.summary import (
    ENOUGH_PROMPTS,
    AsServed,
    Counters,
    DraftBounds,
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
    Excess,
    Parts,
    alpha_intervals,
    bucket_start,
    by_part,
    excess_of_loss,
    excludes_zero,
    interval_of_mean,
    records,
)
from specviz.alignment.tables.totals import NAMES, DraftTotals, Totals
from specviz.alignment.types import (
    ACCEPTED,
    BY_K,
    KS,
    SAMPLED,
    WIDEST,
    Array,
    RefusedRow,
    ShardTables,
    is_vague,
)
from specviz.analysis import theory, whatif
from specviz.request import Request
from specviz.views.words import filter_words, percent, quantity

if TYPE_CHECKING:
    from specviz.analysis.costs import Costs

MOST_TAGS = 1000  # counted separately; the summary lists the largest
TAGS_SHOWN = 100
MOST_REFUSED = 20  # lines listed; all are counted
LEAST_EXCESS = 0.05  # a slice stands out if its share of the loss exceeds its share of the tokens
LEAST_TIMES = 1.25  # by both this difference and this factor
FEWEST_JUDGED = 8  # texts, before they are said not to be the target's own
LEAST_ODD = 0.03  # of the places, by which the share of most likely tokens must differ
ONE_IN = 1000  # such judgements that chance may make wrong
EXACT = 1e-6  # of tokens per target call; bounds that are closer are rounding
KINDS = ("all", "tag", "class", "depth", "context", "ahead")


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a job that its tables do not hold."""

    job: Job
    preparation: Preparation
    costs: Mapping[str, Costs] = field(default_factory=dict)
    """The costs that the shards' step_ms were made from, by draft."""
    refused: Sequence[RefusedRow] = ()  # lines of the prompt file
    num_refused: int = 0
    warnings: Sequence[str] = ()  # besides those of the preparation
    num_ids: Mapping[str, int] = field(default_factory=dict)
    """The number of ids that a model can write, by name, where known."""
    prompt_file: str = ""  # its name
    number_formats: Mapping[str, str] = field(
        default_factory=dict
    )  # of the models' weights, by name
    counters: Counters | None = None  # of an engine that served the one draft of the job
    state_layers: tuple[int, ...] = ()  # see `Summary`

    @property
    def costs_from(self) -> str:
        """The source of the costs, or the reason why there are none."""
        if self.job.costs == "measured":
            return "measured"
        if self.costs:
            return "given"
        if self.job.num_top is not None:
            return "served"
        return "states" if self.state_layers else "left out"

    def steady_costs(self, draft: str) -> Costs | None:
        """The draft's costs if they are steady enough for advice."""
        costs = self.costs.get(draft)
        return None if costs is None or costs.doubt else costs

    def ids_of(self, draft: str) -> tuple[int, int] | None:
        """The number of ids that the draft and the target can write; None if either is not known."""
        target = self.job.request.target
        if draft not in self.num_ids or target not in self.num_ids:
            return None
        return self.num_ids[draft], self.num_ids[target]

    def speedups(self, draft: str, total: Totals, *, by_argmax: bool = False) -> list[float] | None:
        """The speedup for every K; None where costs are not known or not steady."""
        costs = self.steady_costs(draft)
        if costs is None:
            return None
        return total.speedups(theory.step_ms(costs, 0), by_argmax=by_argmax)

    def drafting_mode(self, draft: str, total: Totals, k: int, *, by_argmax: bool) -> DraftingMode:
        """The numbers of drafting the most likely tokens (by_argmax), or drawn tokens."""
        per_call = ()
        if total["num_tokens"]:
            per_call = tuple(total.tokens_per_call(by_argmax=by_argmax).tolist())
        speedups = self.speedups(draft, total, by_argmax=by_argmax)
        best_k = None
        if speedups is not None:
            best_k = whatif.best_range(dict(zip(KS, speedups, strict=True)))
        return DraftingMode(
            alpha=total.share("argmax" if by_argmax else "overlap"),
            tokens_per_call=per_call,
            speedups=None if speedups is None else tuple(speedups),
            best_k=best_k,
            by_position=total.by_position(k, by_argmax=by_argmax),
        )


class Aggregator:
    """`add` every shard's tables once, in order; then `summary`."""

    def __init__(self, k: int, drafts: Sequence[str]) -> None:
        if k not in KS:
            raise ValueError(f"k must be from {KS[0]} to {KS[-1]} (got {k})")
        self.k = k
        self.drafts = tuple(drafts)
        self._num_cut = 0  # texts that end where the target's context ends
        self.ids: dict[int, str] = {}
        self._lengths: list[Array] = []  # of the prompts' texts, in the order of `ids`
        self._sources: Counter[tuple[str, bool]] = Counter()
        self._drafts = {name: DraftTotals(name) for name in drafts}
        self._totals: dict[DraftSlice, Totals] = {}
        self._numbers: dict[DraftSlice, int] = {}  # from 1, of a part in the records
        self._bounds: dict[str, pandas.Series] = {}  # sums of the bounds, by draft
        self._most_likely: list[Array] = []
        """By text, the share of the target's most likely tokens: as it is, and as sampling would make it [texts, 2]."""
        self._steps: dict[bool, list[Array]] = {False: [], True: []}
        """The first draft's expected steps at `k`, by whether the most likely tokens are drafted [texts, k + 1]."""
        self._rows: list[Array] = []  # records of readable tokens
        self._shared: list[Array] = []  # records of the tokens that every draft can read
        self._tags: set[str] = set()
        self._too_many_tags = False
        self._refused: list[RefusedRow] = []
        self._num_refused = 0
        self._warnings: dict[str, None] = {}

    def add(self, tables: ShardTables) -> None:
        self._add_prompts(tables.prompts)
        self._add_most_likely(tables.tokens)
        self._add_sums(tables.sums)
        self._add_bounds(tables.bounds)
        for name, confidence in tables.confidence.items():
            self._drafts[name].confidence += confidence
        for name, rows in tables.tokens.groupby("draft"):
            self._drafts[name].add(rows)
        self._refused = [*self._refused, *tables.refused][:MOST_REFUSED]
        self._num_refused += len(tables.refused)
        self._warnings |= dict.fromkeys(tables.warnings)

    def _add_prompts(self, prompts: pandas.DataFrame) -> None:
        rows = prompts[prompts["draft"] == self.drafts[0]]
        # a view would hold the whole frame in memory
        self._lengths.append(rows["num_tokens"].to_numpy(copy=True))
        self.ids |= zip(rows["prompt"], rows["id"], strict=True)
        self._num_cut += int((rows["finish"] == "context").sum())
        self._sources.update(zip(rows["source"], rows["exact"], strict=True))

    def _add_most_likely(self, tokens: pandas.DataFrame) -> None:
        rows = tokens[tokens["draft"] == self.drafts[0]]
        is_it = (rows["token"] == rows["most_likely"]).astype(np.float64)
        shares = pandas.DataFrame({"found": is_it, "expected": rows["most_likely_p"]})
        self._most_likely.append(shares.groupby(rows["prompt"]).mean().to_numpy(copy=True))

    def _add_sums(self, sums: pandas.DataFrame) -> None:
        numbers = sums[list(NAMES)].to_numpy(np.float64)
        by_k = np.array([list(sums[name]) for name in BY_K], dtype=np.float64)  # [6, rows, 16]
        accepted = np.array([list(sums[name]) for name in ACCEPTED], dtype=np.float64)
        is_whole = (sums["kind"] == "all") & (sums["draft"] == self.drafts[0])
        if is_whole.any():  # no row of a part may be usable
            for by_argmax, steps in self._steps.items():
                own = accepted[int(by_argmax), is_whole, : self.k + 1]
                steps.append(own.astype(np.float32))
        part_numbers = np.zeros(len(numbers), dtype=np.int32)
        names = zip(sums["draft"], sums["kind"], sums["value"], strict=True)
        for place, (draft, kind, value) in enumerate(names):
            part = DraftSlice(draft, kind, value)
            if self._has_room_for(part):
                total = self._totals.setdefault(part, Totals())
                total.add(numbers[place], by_k[:, place], accepted[:, place])
                part_numbers[place] = self._numbers.setdefault(part, 1 + len(self._numbers))
        own = records(sums["prompt"], part_numbers, sums["num_readable"], sums["overlap"])
        shared = records(sums["prompt"], part_numbers, sums["num_shared"], sums["shared_overlap"])
        self._rows.append(own)
        self._shared.append(own if np.array_equal(own, shared) else shared)

    def _add_bounds(self, bounds: pandas.DataFrame) -> None:
        for name, rows in bounds.groupby("draft"):
            added = rows.drop(columns=["prompt", "draft"]).sum()
            self._bounds[name] = added + self._bounds[name] if name in self._bounds else added

    def _has_room_for(self, part: DraftSlice) -> bool:
        """Whether the part is counted; only tags after the first MOST_TAGS are not."""
        if part.kind != "tag" or part.value in self._tags:
            return True
        if len(self._tags) == MOST_TAGS:
            self._too_many_tags = True
        if self._too_many_tags:
            return False
        self._tags.add(part.value)
        return True

    @property
    def num_tokens(self) -> int:
        return sum(int(lengths.sum()) for lengths in self._lengths)

    def summary(self, facts: Facts) -> Summary:
        every = by_part(self._rows, self._numbers)
        parts = self._select_shown(every)
        cliffs = findings.cliffs(every)
        intervals = alpha_intervals(parts)
        job = facts.job
        request = job.request
        refused = {(row.line, row.reason) for row in (*facts.refused, *self._refused)}
        odd = self._odd_words(request)
        as_served, words_on_counters = self._as_served(facts, odd)
        looked_for = ()
        if self.ids:
            looked_for = (*facts.preparation.looked_for, *findings.looked_for(every))
        are_own = [is_exact for _, is_exact in self._sources]
        drafts = tuple(
            self._draft(name, facts, intervals, every, cliffs, as_served) for name in self.drafts
        )
        return Summary(
            specviz=job.specviz,
            created=facts.preparation.created,
            prompts=job.prompts,
            target=request.target,
            seed=request.seed,
            max_new_tokens=request.max_new_tokens,
            chat=request.chat,
            chat_options=request.chat_options,
            sampling=sampling_of(request),
            k=self.k,
            num_prompts=len(self.ids),
            num_tokens=self.num_tokens,
            num_cut=self._num_cut,
            num_refused=facts.num_refused + self._num_refused,
            refused=tuple(sorted(refused)[:MOST_REFUSED]),
            exact=bool(are_own) and all(are_own) and not odd,
            note=self._note(request),
            warnings=(*odd, *words_on_counters, *self._all_warnings(facts, drafts)),
            looked_for=looked_for,
            costs={name: costs.to_dict() for name, costs in facts.costs.items()},
            costs_from=facts.costs_from,
            drafts=drafts,
            slices=tuple(self._slices(facts, parts, intervals, cliffs)),
            comparisons=self._comparisons(parts),
            by_prompt=self._by_prompt(parts),
            models=dict(job.models),
            floors=facts.preparation.floors,
            prompt_file=facts.prompt_file,
            number_formats=facts.number_formats,
            as_served=as_served,
            state_layers=facts.state_layers,
        )

    def _as_served(self, facts: Facts, odd: Sequence[str]) -> tuple[AsServed | None, Sequence[str]]:
        """What an engine counted beside what the draft's files allow on these texts, with sentences on it.

        None where no counters are given, or where they cannot be compared. odd: as `_odd_words` gives it.
        """
        counters = facts.counters
        if counters is None:
            return None, ()
        why = ""
        if counters.is_forged:
            why = "the engine was set to draw acceptance at random (synthetic acceptance)"
        elif odd:
            why = "these texts are not the target's own"
        elif len(self.ids) < FEWEST_JUDGED:
            why = f"fewer than {FEWEST_JUDGED} texts do not tell"
        if why:
            return None, (f"The counters of {counters.source} say nothing of this draft: {why}.",)
        found = beside(
            self.drafts[0],
            counters,
            {by_argmax: np.concatenate(steps) for by_argmax, steps in self._steps.items()},
            facts.preparation.engine_faults,
            are_same_texts=all(source != SAMPLED and is_own for source, is_own in self._sources),
        )
        return found, tuple(note_of(found))

    def _select_shown(self, parts: Parts) -> Parts:
        """The parts that a report shows, in its order; of too many tags the ones with the most prompts."""
        tag_sizes = Counter()
        for part, own in parts.items():
            if part.kind == "tag":
                tag_sizes[part.value] = len(own)
        tags = {value for value, _ in tag_sizes.most_common(TAGS_SHOWN)}
        shown = []
        for part in parts:
            is_hidden_tag = part.kind == "tag" and part.value not in tags
            if part.kind in KINDS and not is_hidden_tag:
                shown.append(part)
        return {part: parts[part] for part in sorted(shown, key=self._order)}

    def _order(self, part: DraftSlice) -> tuple[int, int, int, str]:
        value = part.value
        number = 0
        if part.kind == "class":
            number = CLASSES.index(value)
        elif part.kind in ("depth", "context"):
            number = bucket_start(value)
        elif part.kind == "ahead":
            number = int(value)
        return self.drafts.index(part.draft), KINDS.index(part.kind), number, value

    def _draft(
        self,
        name: str,
        facts: Facts,
        intervals: Mapping[DraftSlice, Interval | None],
        every: Parts,
        cliffs: Sequence[Cliff],
        as_served: AsServed | None,
    ) -> DraftSummary:
        whole = DraftSlice(name, "all", "all")
        own = self._drafts[name]
        total = self._totals.get(whole, Totals())
        calls = float(total.by_k[0][self.k - KS[0]])
        outside = total.share("outside")
        costs = facts.steady_costs(name)
        cost_ratio = None if costs is None else theory.cost_ratio(costs)
        drawn = facts.drafting_mode(name, total, self.k, by_argmax=False)
        bounds = self._draft_bounds(name, total)
        if bounds is not None:
            drawn = _only_known(drawn, bounds, self.k)
        summary = DraftSummary(
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
            calibration=findings.calibration(own.confidence, cost_ratio),
            reasons=own.reasons(),
            losses=own.losses(),
            findings=(),
            by_argmax=facts.drafting_mode(name, total, self.k, by_argmax=True),
            patterns=own.patterns(self.ids, calls),
            bounds=bounds,
        )
        of_models = [finding for finding in facts.preparation.findings if finding.draft == name]
        of_tables = findings.of_draft(summary, cliffs, every, facts.ids_of(name))
        of_engine = finding_of(as_served, self.k) if as_served is not None else None
        found = (*of_models, *of_tables, *([of_engine] if of_engine else ()))
        is_examined = name in facts.preparation.agreements
        floors = facts.preparation.floors if is_examined else None
        verdict = verdict_of(summary.alpha, floors, found)
        return replace(
            summary, findings=found, verdict=verdict, next_step=next_step(verdict, found)
        )

    def _draft_bounds(self, name: str, total: Totals) -> DraftBounds | None:
        if name not in self._bounds:
            return None
        sums = self._bounds[name]
        num_readable = max(float(sums["num_readable"]), 1.0)

        def interval(column: str) -> Interval:
            low, high = (float(sums[f"{column}_{end}"]) / num_readable for end in ("low", "high"))
            return low, high

        num_tokens = total["num_tokens"]
        fewest = (num_tokens / np.asarray(sums["calls_high"])).tolist()
        most = (num_tokens / np.asarray(sums["calls_low"])).tolist()
        return DraftBounds(
            interval("overlap"),
            interval("keep"),
            interval("argmax"),
            tuple(zip(fewest, most, strict=True)),
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
            is_ahead = part.kind == "ahead"
            excess = None if is_ahead else excess_of_loss(own, whole)
            stands_out = excess is not None and _stands_out(excess, len(whole), len(parts))
            speedups = facts.speedups(part.draft, total)
            tokens_per_call = float(total.tokens_per_call()[self.k - KS[0]])
            yield Slice(
                *part,
                num_tokens=int(total["num_readable"]),
                num_prompts=total.num_prompts,
                alpha=total.share("overlap"),
                alpha_interval=intervals[part],
                greedy_agreement=total.share("argmax" if is_ahead else "agreement"),
                tokens_per_call=tokens_per_call if np.isfinite(tokens_per_call) else None,
                best_k=None if speedups is None else KS[int(np.argmax(speedups))],
                speedup=None if speedups is None else max(speedups),
                cliff=part in falls,
                share=None if excess is None else excess.share,
                loss_share=None if excess is None else excess.loss_share,
                excess=None if excess is None else excess.interval,
                stands_out=stands_out,
            )

    def _by_prompt(self, parts: Parts) -> dict[str, dict[str, float]]:
        """Alpha by prompt id and draft, over all tokens of the text: unreadable ones count 0."""
        columns = {}
        for part, own in parts.items():
            if part.kind == "all":
                columns[part.draft] = pandas.Series(own.overlap, own.prompts, np.float64)
        overlaps = pandas.DataFrame(columns, [*self.ids], self.drafts, np.float64).fillna(0.0)
        alphas = overlaps.div(np.concatenate([[], *self._lengths]), axis="index")
        return alphas.set_axis([*self.ids.values()]).to_dict("index")

    def _comparisons(self, parts: Parts) -> tuple[DraftComparison, ...]:
        """Compares the drafts over the tokens that all of them can read.

        Else a draft with a shorter context would look better.
        """
        if all(own is shared for own, shared in zip(self._rows, self._shared, strict=True)):
            return compare_drafts(parts, self.drafts, self.ids)
        every = by_part(self._shared, self._numbers)
        shared = {part: every[part] for part in parts if part in every}
        whole = shared.get(DraftSlice(self.drafts[0], "all", "all"))
        if whole is None:
            words = "No token can be read by all drafts, so nothing is compared."
            return compare_drafts(shared, self.drafts, self.ids, words)
        num_shared = int(whole.num_tokens.sum(dtype=np.float64))
        words = ""
        if num_shared < self.num_tokens:
            count = f"{num_shared:,} of {self.num_tokens:,} tokens"
            words = f"Only over the {count} that all drafts can read: their contexts or vocabularies differ."
        return compare_drafts(shared, self.drafts, self.ids, words)

    def _all_warnings(self, facts: Facts, drafts: Sequence[DraftSummary]) -> tuple[str, ...]:
        warnings = [*facts.preparation.warnings, *facts.warnings, *self._warnings]
        for draft in drafts:
            if draft.bounds is not None:
                warnings += _bounds_words(draft.name, draft.bounds, self.k)
        if self._too_many_tags or len(self._tags) > TAGS_SHOWN:
            beyond = ""
            if self._too_many_tags:
                beyond = f", of the first {MOST_TAGS:,}; later ones were not counted separately"
            warnings.append(f"Only the {TAGS_SHOWN} tags with the most prompts are listed{beyond}.")
        return tuple(dict.fromkeys(warnings))

    def _odd_words(self, request: Request) -> tuple[str, ...]:
        """Says that the texts are not the target's own at these settings, where their tokens show it beyond chance."""
        if len(self.ids) < FEWEST_JUDGED:
            return ()
        found, expected = np.concatenate(self._most_likely).T
        odd = found - expected
        mean = float(odd.mean())
        is_beyond = excludes_zero(interval_of_mean(odd), mean, len(odd), ONE_IN)
        if abs(mean) < LEAST_ODD or not is_beyond:
            return ()
        return (
            f"These texts were not sampled from {request.target} at these settings: its most likely token stands at "
            f"{percent(found.mean())} of the places, and would at {percent(expected.mean())}. So what is said of drawn "
            "tokens holds for no engine.",
        )

    def _note(self, request: Request) -> str:
        """Says which texts the numbers rest on."""
        sampling = ", ".join([f"temperature {request.temperature:g}", *filter_words(request)])
        distribution = f"{request.target} at {sampling}"
        sentences = []
        for (source, is_exact), size in sorted(self._sources.items()):
            texts = quantity(size, "text")
            if is_exact:
                origin = "" if source == SAMPLED else ", as their rows say"
                sentence = f"{texts} sampled from {distribution}{origin}."
            elif source == SAMPLED:
                sentence = (
                    f"{texts} written by the server of {distribution}: an estimate, as engines apply several filters "
                    "in different orders."
                )
            else:
                sentence = f"{texts} given: an estimate, exact only if sampled from {distribution}."
            sentences.append(sentence)
        return " ".join(sentences) or "No text could be used."


def _bounds_words(name: str, bounds: DraftBounds, k: int) -> Iterator[str]:
    """Says how closely a draft's numbers are known, where that is not exactly."""
    fewest, most = bounds.tokens_per_call[k - KS[0]]
    if most <= (1 + EXACT) * fewest:
        return
    words = (
        f"{name}: its server and the target's tell only the likeliest tokens of each place, so at these settings "
        f"agreement is known between {bounds.alpha[0]:.3f} and {bounds.alpha[1]:.3f}, and tokens per target call at "
        f"K={k} between {fewest:.2f} and {most:.2f}. Shown are the middles"
    )
    num_known = _num_known(bounds, k)
    if num_known < len(KS):
        words += (
            f", and only up to K={num_known}: beyond, they are not known within {percent(WIDEST)}"
        )
    yield f"{words}."


def _num_known(bounds: DraftBounds, k: int) -> int:
    """How many K, from 1 on, are given: up to the job's, and on as long as they are known closely enough."""
    beyond = [is_vague(*interval) for interval in bounds.tokens_per_call[k:]]
    return k + [*beyond, True].index(True)


def _only_known(mode: DraftingMode, bounds: DraftBounds, k: int) -> DraftingMode:
    """The numbers of drafting drawn tokens, without the K beyond the job's whose bounds lie far apart."""
    num_known = _num_known(bounds, k)
    speedups = None
    best_k = None
    if mode.speedups is not None:
        speedups = mode.speedups[:num_known]
        best_k = whatif.best_range(dict(zip(KS, speedups, strict=False)))
    return replace(
        mode,
        tokens_per_call=mode.tokens_per_call[:num_known],
        speedups=speedups,
        best_k=best_k,
    )


def _stands_out(excess: Excess, size: int, num_asked: int) -> bool:
    """Whether a slice loses more than its share of the tokens, by an amount that matters and beyond chance.

    size: the prompts that the interval rests on. num_asked: slices that are asked about together.
    """
    share = excess.share
    difference = excess.loss_share - share
    matters = excess.loss_share >= max(share + LEAST_EXCESS, LEAST_TIMES * share)
    return (
        size >= ENOUGH_PROMPTS
        and matters
        and excludes_zero(excess.interval, difference, size, num_asked)
    )
