"""All rules, right and wrong ones, on the same drafts with the same u: what each keeps and how far its text is off.

The drafts and the u are a recorded run's; a rule whose mistake lies in drafting gets its own. Shares and distances are
by formula, for each judged token alone; and every rule's program is enumerated over one small language.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specviz import trace
from specviz.checks.enumerated import EXACT, FEWEST_K, distance_of_texts, language_after
from specviz.checks.rows import StepRows, is_made_by, normalise, step_rows, total_variation
from specviz.decoding.draft import Draft
from specviz.decoding.drafter import Context
from specviz.decoding.draws import Draws, Recorded, Seeded
from specviz.decoding.rule import Rule, proposal
from specviz.decoding.turns import give_way
from specviz.drafters import METHODS
from specviz.drafters.draft_model import ModelDrafter
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel
from specviz.rules import ANY_CHAIN
from specviz.rules.broken import BROKEN, BrokenRule
from specviz.rules.chain import ChainRule
from specviz.session.setup import Setup

NOT_THE_MODELS = 0.05  # recorded probabilities that are this far off were made by other models
PAUSE_S = 0.25  # between two results


@dataclass(frozen=True, slots=True)
class RuleResult:
    """A rule over the steps so far. num_accepted: drafted tokens accepted with the run's u. acceptance: exact mean
    over the
    places that the run judged; None for a rule that judges a draft as a whole. tokens_per_call: expected over the
    rule's own draws, given these drafts. mean_distance, largest_distance: total variation between the law of one
    emitted token and p, there. whole_distance: of whole texts, enumerated; None where nothing was drafted."""

    rule: Rule
    num_judged: int
    num_accepted: int
    acceptance: float | None
    tokens_per_call: float | None
    mean_distance: float | None
    largest_distance: float | None
    whole_distance: float | None = None

    @property
    def verdict(self) -> str:
        """ "exact" is by formula and by enumeration; "unsure": nothing judged, or a wrong rule that does no harm."""
        if self.largest_distance is None:
            return "unsure"
        if max(self.largest_distance, self.whole_distance or 0.0) > EXACT:
            return "differs"
        return "exact" if self.rule.lossless else "unsure"

    @property
    def is_broken(self) -> bool:
        return isinstance(self.rule, BrokenRule)

    @property
    def order(self) -> tuple[bool, bool, float]:
        distance = self.mean_distance or 0.0
        return not self.rule.lossless, self.is_broken, distance if distance > EXACT else 0.0


@dataclass(frozen=True, slots=True)
class SideBySide:
    """done, total: steps of the run; others drafted num_skipped more. rows: lossless ones first, by distance."""

    done: int
    total: int
    rows: tuple[RuleResult, ...]
    num_skipped: int = 0

    @property
    def twins(self) -> tuple[RuleResult, RuleResult] | None:
        """An exact rule and one that differs, of equal acceptance; the pair that differs most."""
        right = [row for row in self.rows if row.verdict == "exact" and row.acceptance is not None]
        wrong = [
            row
            for row in self.rows
            if row.acceptance is not None and (row.largest_distance or 0.0) > EXACT
        ]
        pairs = [
            (one, other)
            for one in right
            for other in wrong
            if abs(one.acceptance - other.acceptance) < EXACT
        ]
        return max(pairs, key=lambda pair: pair[1].mean_distance, default=None)


def side_by_side(
    recorded: trace.Trace,
    target: LoadedModel,
    draft: LoadedModel | None,
    rules: Sequence[Rule] = (*ANY_CHAIN.values(), *BROKEN.values()),
) -> Iterator[SideBySide]:
    """Cumulative results over the steps that `target` and `draft` made; the first ones have done = 0. Without a draft
    model every draft counts as certain, and mistakes in drafting are left out. SpecvizError for drafts that are no
    chain, for a run without steps and for models that made none of them."""
    if not recorded.steps:
        raise SpecvizError("the run has no steps, so there is nothing to judge again")
    seed = recorded.header.request.get("seed", 0)
    otherwise = Seeded(seed if isinstance(seed, int) and 0 <= seed < 1 << 64 else 0)
    tallies = [
        _Tally(rule, target, draft)
        for rule in rules
        if draft is not None or not _drafts_wrongly(rule)
    ]
    total = sum(is_made_by(step, target, draft) for step in recorded.steps)
    if not total:
        raise SpecvizError(
            "none of the run's steps was drafted by these models; choose the models that made it"
        )
    nothing = SideBySide(0, total, (), len(recorded.steps) - total)
    for _ in _enumerate(tallies, recorded, target, draft):
        yield nothing
    told = time.perf_counter()
    for done, rows in enumerate(step_rows(recorded, target, draft), start=1):
        _refuse_other_models(rows)
        record = rows.record
        judged = (
            (place, token.u) for place, token in enumerate(record.draft) if token.u is not None
        )
        draws = Recorded(
            {(record.context_length + place, place): u for place, u in judged}, otherwise
        )
        for tally in tallies:
            give_way()
            tally.judge(rows, draws)
        if done == total or time.perf_counter() - told > PAUSE_S:
            results = sorted((tally.result() for tally in tallies), key=lambda result: result.order)
            yield replace(nothing, done=done, rows=tuple(results))
            told = time.perf_counter()


def _enumerate(
    tallies: Sequence[_Tally], recorded: trace.Trace, target: LoadedModel, draft: LoadedModel | None
) -> Generator[None, None, None]:
    """Every rule over one small language, after the text of the first step that drafted; pauses now and then."""
    pair = Setup(METHODS["prompt_lookup" if draft is None else "draft_model"], {}, target, draft)
    first = next((rows for rows in step_rows(recorded, target, draft) if len(rows.draft)), None)
    if first is None:
        return
    language = yield from language_after(pair, first.tokens, first.sampling, FEWEST_K)
    for tally in tallies:
        tally.whole_distance, _ = yield from distance_of_texts(pair, tally.rule, language)
        yield


def _drafts_wrongly(rule: Rule) -> bool:
    """Whether the rule's mistake lies in drafting."""
    return isinstance(rule, BrokenRule) and rule.drafts_wrongly


def _refuse_other_models(rows: StepRows) -> None:
    for node, token in enumerate(rows.record.draft):
        for was, row in ((token.p, rows.probs[node]), (token.q, rows.draft.probs[node])):
            if (
                was is not None
                and row is not None
                and abs(float(row[token.id]) - was) > NOT_THE_MODELS
            ):
                raise SpecvizError(
                    f"step {rows.record.index + 1}: these models give {token.text!r:.40} a different probability from "
                    "the recorded one; choose the models that made it"
                )


class _Tally:
    """One rule and what it has judged so far."""

    def __init__(self, rule: Rule, target: LoadedModel, draft: LoadedModel | None) -> None:
        self.rule = rule
        self.whole_distance: float | None = None
        self._drafter = ModelDrafter(draft.cached_lm()) if _drafts_wrongly(rule) else None
        self._target = target.cached_lm() if _drafts_wrongly(rule) else None
        self._num_steps = self._num_judged = self._num_accepted = 0
        self._tokens = 0.0
        self._acceptances: list[float] = []
        self._distances: list[float] = []

    @torch.inference_mode()
    def judge(self, rows: StepRows, draws: Draws) -> None:
        """Adds a step, and the exact law of one emitted token at every place of it that the run judged."""
        draft, probs = self._draft(rows, draws)
        verdict = self.rule(draft, probs, draws, len(rows.tokens))
        lengths = self.rule.length_distribution(draft, probs)
        self._num_steps += 1
        self._num_judged += len(verdict.checks)
        self._num_accepted += len(verdict.path)
        self._tokens += 1 + float(
            lengths @ torch.arange(len(lengths), dtype=lengths.dtype, device=lengths.device)
        )
        if nodes := [node for node, token in enumerate(rows.record.draft) if token.is_judged]:
            p = normalise(rows.probs[nodes])
            q = normalise(torch.stack([proposal(rows.draft, node, rows.probs) for node in nodes]))
            self._acceptances += self.rule.one_step_accepted(p, q).sum(-1).tolist()
            self._distances += total_variation(self.rule.one_step_distribution(p, q), p).tolist()

    def _draft(self, rows: StepRows, draws: Draws) -> tuple[Draft, Tensor]:
        """The recorded draft with its rows; for a rule whose mistake lies in drafting, one that is drafted with it."""
        if self._drafter is None or not len(rows.draft):
            return rows.draft, rows.probs
        context = Context(
            rows.tokens, rows.sampling.of_draft, self.rule.tamper(draws), self._target.vocab_size
        )
        draft = self._drafter.draft(context, len(rows.draft))
        return draft, rows.sampling.probs(self._target.forward(rows.tokens, draft))

    def result(self) -> RuleResult:
        rule = self.rule
        return RuleResult(
            rule,
            num_judged=self._num_judged,
            num_accepted=self._num_accepted,
            acceptance=_mean(self._acceptances)
            if not isinstance(rule, ChainRule) or rule.judges_alone
            else None,
            tokens_per_call=self._tokens / self._num_steps,
            mean_distance=_mean(self._distances),
            largest_distance=max(self._distances, default=None),
            whole_distance=self.whole_distance,
        )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
