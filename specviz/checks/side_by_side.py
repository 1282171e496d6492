"""All rules, right and wrong ones, on the same drafts with the same u: what each accepts and how far its text is off.

The drafts and the u come from a recorded run; a rule whose mistake lies in drafting gets its own draft. Shares and
distances are by formula, for each judged token alone. Every rule's program is enumerated over one small language.
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
from specviz.session.setup import Setup

NOT_THE_MODELS = 0.05  # recorded probabilities that are this far off were made by other models
PAUSE_S = 0.25  # between two results


@dataclass(frozen=True, slots=True)
class RuleResult:
    """A rule over the steps so far."""

    rule: Rule
    num_judged: int
    num_accepted: int  # drafted tokens that it accepts with the run's u
    acceptance: float | None
    """The exact mean over the places that the run judged; None for a rule that judges a draft as a whole."""
    tokens_per_call: float | None  # expected over the rule's own draws, given these drafts
    mean_distance: float | None
    """The total variation between one emitted token's distribution and p: the mean over the judged places.

    None where nothing was judged, and for a wrong rule whose mistake one place does not show.
    """
    largest_distance: float | None  # the largest at any judged place; None likewise
    whole_distance: float | None = (
        None  # of whole texts, enumerated; None where nothing was drafted
    )

    @property
    def verdict(self) -> str:
        """Whether the rule is "exact" by formula and by enumeration, or "differs".

        It is "unsure" where nothing was judged, and for a wrong rule that does no harm here.
        """
        if not self.num_judged:
            return "unsure"
        if max(self.largest_distance or 0.0, self.whole_distance or 0.0) > EXACT:
            return "differs"
        return "exact" if self.rule.lossless else "unsure"

    @property
    def is_broken(self) -> bool:
        return isinstance(self.rule, BrokenRule)

    @property
    def order(self) -> tuple[bool, bool, float]:
        distance = self.mean_distance or 0.0
        if distance <= EXACT:
            distance = 0.0
        return not self.rule.lossless, self.is_broken, distance


@dataclass(frozen=True, slots=True)
class SideBySide:
    """All rules over the steps so far."""

    done: int  # steps of the run that were judged again
    total: int
    rows: tuple[RuleResult, ...]  # lossless rules first, by distance
    num_skipped: int = 0  # steps that other models drafted

    @property
    def twins(self) -> tuple[RuleResult, RuleResult] | None:
        """An exact rule and a rule that differs, of equal acceptance; the pair that differs most."""
        comparable = [row for row in self.rows if row.acceptance is not None]
        right = [row for row in comparable if row.verdict == "exact"]
        wrong = [row for row in comparable if (row.largest_distance or 0.0) > EXACT]
        pairs = []
        for one in right:
            for other in wrong:
                if abs(one.acceptance - other.acceptance) < EXACT:
                    pairs.append((one, other))
        return max(pairs, key=lambda pair: pair[1].mean_distance, default=None)


def side_by_side(
    recorded: trace.Trace,
    target: LoadedModel,
    draft: LoadedModel | None,
    rules: Sequence[Rule] = (*ANY_CHAIN.values(), *BROKEN.values()),
) -> Iterator[SideBySide]:
    """Yields cumulative results over the steps that `target` and `draft` made; the first ones have done = 0.

    Without a draft model every draft counts as certain, and mistakes in drafting are left out. Raises SpecvizError for
    drafts that are no chain, for a run without steps and for models that made none of them.
    """
    if not recorded.steps:
        raise SpecvizError("the run has no steps, so there is nothing to judge again")
    tallies = []
    for rule in rules:
        if draft is not None or not _drafts_wrongly(rule):
            tallies.append(_Tally(rule, target, draft))
    total = sum(is_made_by(step, target, draft) for step in recorded.steps)
    if not total:
        raise SpecvizError(
            "none of the run's steps was drafted by these models; choose the models that made it"
        )
    nothing = SideBySide(0, total, (), len(recorded.steps) - total)
    for _ in _enumerate(tallies, recorded, target, draft):
        yield nothing
    fallback = _seeded_as(recorded)
    reported = time.perf_counter()
    for done, rows in enumerate(step_rows(recorded, target, draft), start=1):
        _refuse_other_models(rows)
        draws = _recorded_draws(rows.record, fallback)
        for tally in tallies:
            give_way()
            tally.judge(rows, draws)
        if done == total or time.perf_counter() - reported > PAUSE_S:
            results = sorted((tally.result() for tally in tallies), key=lambda result: result.order)
            yield replace(nothing, done=done, rows=tuple(results))
            reported = time.perf_counter()


def _seeded_as(recorded: trace.Trace) -> Seeded:
    """The draws of the run's own seed; of seed 0 where the header names no seed that can be used."""
    seed = recorded.header.request.get("seed", 0)
    is_usable = isinstance(seed, int) and 0 <= seed < 1 << 64
    return Seeded(seed if is_usable else 0)


def _recorded_draws(step: trace.Step, fallback: Draws) -> Recorded:
    """The u of a step's judged tokens; all other draws come from `fallback`."""
    recorded = {}
    for place, token in enumerate(step.draft):
        if token.u is not None:
            recorded[step.context_length + place, place] = token.u
    return Recorded(recorded, fallback)


def _enumerate(
    tallies: Sequence[_Tally], recorded: trace.Trace, target: LoadedModel, draft: LoadedModel | None
) -> Generator[None, None, None]:
    """Enumerates every rule over one small language, after the text of the first step that drafted; pauses often."""
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
        is_same = _agrees(token.p, rows.probs[node], token.id)
        if not is_same or not _agrees(token.q, rows.draft.probs[node], token.id):
            raise SpecvizError(
                f"step {rows.record.index + 1}: these models give {token.text!r:.40} a different probability from "
                "the recorded one; choose the models that made it"
            )


def _agrees(recorded: float | None, row: Tensor | None, token: int) -> bool:
    """Whether a row [V] gives the token about the recorded probability; True where either is not known."""
    if recorded is None or row is None:
        return True
    return not abs(float(row[token]) - recorded) > NOT_THE_MODELS


class _Tally:
    """One rule and what it has judged so far."""

    def __init__(self, rule: Rule, target: LoadedModel, draft: LoadedModel | None) -> None:
        self.rule = rule
        self.whole_distance: float | None = None
        self._drafter = ModelDrafter(draft.cached_lm()) if _drafts_wrongly(rule) else None
        self._target = target.cached_lm() if _drafts_wrongly(rule) else None
        self._num_steps = 0
        self._num_judged = 0
        self._num_accepted = 0
        self._expected_tokens = 0.0
        self._acceptances: list[float] = []
        self._distances: list[float] = []

    @torch.inference_mode()
    def judge(self, rows: StepRows, draws: Draws) -> None:
        """Adds a step, and the exact distribution of one emitted token at each of its judged places."""
        draft, probs = self._draft(rows, draws)
        verdict = self.rule(draft, probs, draws, len(rows.tokens))
        shares = self.rule.length_distribution(draft, probs)  # of 0, 1, ... accepted tokens
        lengths = torch.arange(len(shares), dtype=shares.dtype, device=shares.device)
        self._num_steps += 1
        self._num_judged += len(verdict.checks)
        self._num_accepted += len(verdict.path)
        self._expected_tokens += 1 + float(shares @ lengths)
        if nodes := [node for node, token in enumerate(rows.record.draft) if token.is_judged]:
            p = normalise(rows.probs[nodes])
            q = normalise(torch.stack([proposal(rows.draft, node, rows.probs) for node in nodes]))
            self._acceptances += self.rule.one_step_accepted(p, q).sum(-1).tolist()
            self._distances += total_variation(self.rule.one_step_distribution(p, q), p).tolist()

    def _draft(self, rows: StepRows, draws: Draws) -> tuple[Draft, Tensor]:
        """The recorded draft with its rows; for a rule whose mistake lies in drafting, a draft with that mistake."""
        if self._drafter is None or not len(rows.draft):
            return rows.draft, rows.probs
        tampered = self.rule.tamper(draws)
        context = Context(rows.tokens, rows.sampling.of_draft, tampered, self._target.vocab_size)
        draft = self._drafter.draft(context, len(rows.draft))
        return draft, rows.sampling.probs(self._target.forward(rows.tokens, draft))

    def result(self) -> RuleResult:
        is_told = self.rule.judges_alone or self.rule.lossless
        distances = self._distances if is_told else []
        return RuleResult(
            self.rule,
            num_judged=self._num_judged,
            num_accepted=self._num_accepted,
            acceptance=_mean(self._acceptances) if self.rule.judges_alone else None,
            tokens_per_call=self._expected_tokens / self._num_steps,
            mean_distance=_mean(distances),
            largest_distance=max(distances, default=None),
            whole_distance=self.whole_distance,
        )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
