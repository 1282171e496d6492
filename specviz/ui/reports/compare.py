"""The Compare page: every K and every draft on the run's text, what things cost here, why the run is not faster."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from types import MappingProxyType

from specviz.alignment import types
from specviz.alignment.ahead import ways_to_ask
from specviz.alignment.job import align_steps
from specviz.alignment.report import live
from specviz.alignment.report.texts import read_texts, texts_block
from specviz.analysis.breakdown import why_slow
from specviz.analysis.costs import Costs, measure_costs
from specviz.analysis.draft_temperature import ask_models, read_overlaps
from specviz.analysis.every_k import DraftOnText, OtherDrafts, other_drafts
from specviz.analysis.given_text import KS
from specviz.bench.claims import measure_claims, measure_poor_cases
from specviz.bench.lossy import measure_quality
from specviz.bench.report import BenchProgress
from specviz.bench.speed import (
    NUM_TOKENS,
    Measuring,
    Speed,
    estimate_seconds,
    measure_in_rounds,
)
from specviz.bench.waits import measure_waits
from specviz.drafters import facts_of
from specviz.drafters.heads import are_loaded
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.prompts import prompts_file
from specviz.request import Request
from specviz.session.workbench import Workbench
from specviz.ui.choices import Offer, list_drafts
from specviz.ui.reports.section import Look, Section, Work, one_of, own_prompts, whole_number
from specviz.ui.reports.trace_models import RunModels, request_of
from specviz.views.blocks import PageSection
from specviz.views.compare import claims as claim_view
from specviz.views.compare import costs as cost_view
from specviz.views.compare import plan, plan_theory
from specviz.views.explore.speed import doubt_words
from specviz.views.words import quantity

MOST_CONTEXT = 1_000_000
MOST_SPEEDS = 64
ABSENT = "not loaded here: choose it as the draft model on Explore first"
NO_DRAFT = "no draft model for {target} is loaded: run it with one on Explore first"
NO_HEADS = "no draft heads for {target} are known: choose draft models"
ABSENT_HEADS = "not loaded here, run it on Explore first"
MORE = "; use python -m specviz align for more"
SHARD = 4  # prompts per turn: others wait for the engine no longer than that takes
ROOM = 64  # tokens that a measurement of the costs may add to a context
Key = tuple[object, ...]
FINDINGS = {"claims": measure_claims, "poor-cases": measure_poor_cases, "lossy": measure_quality}


class CompareSections:
    """The sections of the page. Measured costs and speeds belong to this machine: they are kept for all visitors."""

    def __init__(self, bench: Workbench, offer: Offer) -> None:
        self._models = RunModels(bench, offer)
        self._costs: dict[tuple[str, str | None], Costs] = {}
        self._speeds: OrderedDict[Request, Speed] = OrderedDict()
        self._findings: dict[str, BenchProgress] = {}
        self._newest: tuple[Key, tuple[PageSection, PageSection]] | None = None
        self._kinds = prompts_file()["kinds"]

    def sections(self) -> list[Section]:
        return [
            Section("every-k", self._speed_key, lambda look: self._given_text(look)[0]),
            Section(
                "costs",
                self._costs_key,
                self._costs_section,
                {"measure": self._measure_costs},
                needs=self._needs,
            ),
            *self._draft_sections(),
            Section("theory", self._speed_key, lambda look: self._given_text(look)[1]),
            Section(
                "why-slow",
                self._speed_key,
                self._why_slow,
                {"speed": self._measure_speed},
                needs=self._needs,
            ),
            Section(
                "waits",
                _text_of,
                _no_waits,
                {"measure": self._measure_waits},
                needs=self._needs,
            ),
            *(self._finding_section(name, measure) for name, measure in FINDINGS.items()),
            Section(
                claim_view.NUMBERS,
                _constant,
                lambda look: next(_work_out(look)),
                {"work": _work_out},
                engine=False,
            ),
            Section("tool-names", _text_of, lambda look: plan.tool_names(look.run)),
        ]

    def _draft_sections(self) -> list[Section]:
        """The sections that ask draft models again."""
        return [
            Section(
                "other-drafts",
                _text_of,
                self._other_drafts,
                {"ask": self._ask_drafts},
                needs=self._needs,
            ),
            Section(
                "draft-temperature",
                _text_of,
                self._draft_temperature,
                {"ask": self._ask_pair},
                needs=self._needs,
            ),
            # names its own settings, so it stays while other runs are looked at
            Section(
                live.NAME,
                _constant,
                self._many_prompts,
                {"analyse": self._analyse},
                needs=self._models_to_analyse,
            ),
        ]

    def _needs(self, look: Look) -> list[str]:
        return self._models.names(look.trace)

    def _speed_key(self, look: Look) -> Key:
        return (look.text, self._known_costs(look), self._known_speed(look))

    def _costs_key(self, look: Look) -> Key:
        return (_pair_of(look), self._known_costs(look))

    def _known_costs(self, look: Look) -> Costs | None:
        return self._costs.get(_pair_of(look))

    def _known_speed(self, look: Look) -> Speed | None:
        if look.run is None:
            return None
        return self._speeds.get(request_of(look.run))

    def _given_text(self, look: Look) -> tuple[PageSection, PageSection]:
        """The sections "every-k" and "theory"; those of the newest text are kept."""
        key = self._speed_key(look)
        if self._newest is None or self._newest[0] != key:
            _, costs, speed = key
            ratio = None
            if speed is not None and not speed.doubt:
                ratio = speed.found.ratio
            self._newest = (key, plan_theory.given_text(look.run, costs, ratio))
        return self._newest[1]

    def _costs_section(self, look: Look, **state: object) -> PageSection:
        state.setdefault("context_length", _middle_context(look))
        return cost_view.costs(self._known_costs(look), most_context=MOST_CONTEXT, **state)

    def _measure_costs(self, look: Look, values: Mapping[str, str]) -> Work:
        length = whole_number(values, "context_length", 1, MOST_CONTEXT)
        yield self._costs_section(look, context_length=length)
        target, draft = self._models.load(look.trace)
        drafts = [] if draft is None else [draft]
        for measured in measure_costs(target, drafts, context_length=length):
            for costs in measured.costs:
                self._costs[costs.target, costs.draft] = costs
                self._models.bench.pool.pass_ms[costs.target] = costs.verify_ms
            if not measured.costs:
                yield self._costs_section(look, context_length=length, running=measured)
        yield self._costs_section(look, context_length=length)

    def _other_drafts(self, look: Look, result: OtherDrafts | None = None) -> PageSection:
        k = 1
        if look.run is not None:
            k = max(step.settings.k for step in look.run.steps)
        return plan.other_drafts(look.run, result, min(k, max(KS)))

    def _ask_drafts(self, look: Look, values: Mapping[str, str]) -> Work:
        """Asks the drafts that are at hand: a click here downloads nothing."""
        target, draft = self._models.load(look.trace)
        known = list_drafts(target.name, None if draft is None else draft.name)
        names = [name for _, name in known]
        at_hand = [name for name in names if self._models.is_at_hand(name)]
        absent = [DraftOnText(name, refusal=ABSENT) for name in names if name not in at_hand]
        costs = self._costs_of(target.name)
        models = [self._models.bench.pool.load(name) for name in at_hand]
        for result in other_drafts(look.trace, target, models, costs=costs):
            yield self._other_drafts(look, replace(result, rows=(*result.rows, *absent)))

    def _costs_of(self, target: str) -> dict[str, Costs]:
        """The measured costs of this target with each draft model, by the draft model's name."""
        costs = {}
        for (measured_target, draft), measured in self._costs.items():
            if measured_target == target and draft:
                costs[draft] = measured
        return costs

    def _draft_temperature(self, look: Look) -> PageSection:
        if look.run is None:
            return plan.draft_temperature(None, refusal=plan.NO_RUN)
        try:
            return plan.draft_temperature(read_overlaps(look.run), may_ask=_has_draft(look))
        except SpecvizError as refusal:
            words = f"The recorded numbers do not tell: {refusal}."
            return plan.draft_temperature(None, may_ask=_has_draft(look), refusal=words)

    def _ask_pair(self, look: Look, values: Mapping[str, str]) -> Work:
        target, draft = self._models.load(look.trace)
        if draft is None:
            raise SpecvizError("this run has no draft model")
        yield plan.draft_temperature(ask_models(look.trace, target, draft), may_ask=True)

    def _why_slow(self, look: Look, running: Measuring | None = None) -> PageSection:
        if look.run is None:
            return plan.why_slow(None)
        costs = self._known_costs(look)
        speed = self._known_speed(look)
        known = {
            "has_run": True,
            "has_costs": costs is not None,
            "has_speed": speed is not None,
            "running": running,
            "seconds": None if costs is None else estimate_seconds(look.run, costs),
        }
        if costs is None or speed is None:
            return plan.why_slow(None, **known)
        if speed.doubt in ("impossible", "shared"):
            return plan.why_slow(None, refusal=f"No breakdown: {doubt_words(speed)}", **known)
        baseline = speed.baseline_tokens_per_s
        try:
            causes = why_slow(
                look.run,
                costs,
                most_timed=NUM_TOKENS,
                tokens_per_s=baseline * speed.found.ratio,
                baseline_tokens_per_s=baseline,
            )
            return plan.why_slow(causes, instead=doubt_words(speed), **known)
        except SpecvizError as refusal:
            words = f"The recorded numbers do not tell: {refusal}."
            return plan.why_slow(None, refusal=words, **known)

    def _measure_speed(self, look: Look, values: Mapping[str, str]) -> Work:
        self._models.load(look.trace)
        request = request_of(look.trace)
        for progress in measure_in_rounds(request, self._models.bench):
            if progress.speed is None:
                yield self._why_slow(look, progress)
                continue
            self._speeds[request] = progress.speed
            while len(self._speeds) > MOST_SPEEDS:
                self._speeds.popitem(last=False)
            yield self._why_slow(look)

    def _measure_waits(self, look: Look, values: Mapping[str, str]) -> Work:
        self._models.load(look.trace)
        for found in measure_waits(request_of(look.trace), self._models.bench):
            yield claim_view.finding("waits", found)

    def _many_prompts(self, look: Look, **state: object) -> PageSection:
        kinds = tuple((kind["title"], kind["name"]) for kind in self._kinds)
        return live.many_prompts(kinds, **state)

    def _models_to_analyse(self, look: Look) -> list[str]:
        """The target, then its drafts that are at hand: a click here downloads nothing. Raises SpecvizError."""
        first = self._models.offer.first
        target, draft = first.target, first.draft
        named = [] if draft is None else [draft]
        if look.run is not None:
            target, *named = self._models.names(look.run)
        drafts = [name for _, name in list_drafts(target, *named) if self._models.is_at_hand(name)]
        may_have_heads = self._models.is_at_hand(target) and catalog.heads_for(target)
        if not drafts and not may_have_heads:
            raise SpecvizError(NO_DRAFT.format(target=target))
        return [target, *drafts]

    def _drafts_to_analyse(
        self, chosen: str, target: str, models: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """The chosen ones of these draft models and of the target's heads, and why other heads are not asked.

        Heads are asked with and without their Markov bias. Raises SpecvizError where nothing can be asked.
        """
        asked = [] if chosen == live.HEADS else [*models]
        refused = []
        pool = self._models.bench.pool
        for heads in () if chosen == live.MODELS else catalog.heads_for(target):
            try:
                loaded = pool.load(target)
                if not heads.is_bundled and not are_loaded(pool, heads.name, heads.kind, loaded):
                    raise SpecvizError(ABSENT_HEADS)
                asked += ways_to_ask(heads.name, pool, loaded)
            except SpecvizError as error:
                refused.append(f"{heads.name} is not asked: {error}.")
        if not asked:
            lacking = NO_DRAFT if chosen == live.MODELS else NO_HEADS
            raise SpecvizError(" ".join(refused) or lacking.format(target=target))
        return asked, refused

    def _analyse(self, look: Look, values: Mapping[str, str]) -> Work:
        target, *models = self._models_to_analyse(look)
        chosen = one_of(values, "drafts", [name for _, name in live.DRAFTS])
        drafts, refused = self._drafts_to_analyse(chosen, target, models)
        costs = {name: costs for name, costs in self._costs_of(target).items() if name in drafts}
        prompts, words = self._prompts(values)
        settings = self._models.offer.first if look.settings is None else look.settings
        k = max(1, settings.to_dict()["k"])
        work = align_steps(
            prompts,
            target=target,
            draft=drafts,
            k=min(k, types.KS[-1]),
            max_new_tokens=whole_number(values, "tokens", live.TOKENS[0], live.TOKENS[2]),
            costs=costs,
            shard_size=SHARD,
            **{name: getattr(settings, name) for name in Request.SAMPLING},
        )
        with closing(work):
            for progress in work:
                so_far = (progress.done, progress.total, progress.how_far)
                yield self._many_prompts(look, progress=so_far)
        result = progress.result
        summary = result.summary
        names = [draft.name for draft in summary.drafts]
        texts = texts_block(
            read_texts(result.tokens, result.prompts),
            names,
            summary.num_prompts,
        )
        yield self._many_prompts(
            look,
            summary=summary,
            asked=words,
            texts=texts,
            with_heads=any(name not in models for name in drafts),
            refused=refused,
        )

    def _prompts(
        self, values: Mapping[str, str]
    ) -> tuple[Sequence[str | Mapping[str, object]], str]:
        """The chosen prompts, and the choice in words. Raises SpecvizError."""
        titles = {live.EVERY: "all kinds", **{kind["name"]: kind["title"] for kind in self._kinds}}
        chosen = one_of(values, "prompts", [live.OWN, *titles])
        if chosen == live.OWN:
            own = own_prompts(values, live.MOST_PROMPTS, live.MOST_CHARACTERS, MORE)
            if not own:
                raise SpecvizError(
                    "write at least one prompt into the box, one per line (got none)"
                )
            return own, quantity(len(own), "own prompt")
        ready = []
        for kind in self._kinds:
            if chosen in (live.EVERY, kind["name"]):
                for prompt in kind["prompts"]:
                    tags = [kind["name"]]
                    ready.append({"id": prompt["name"], "prompt": prompt["text"], "tags": tags})
        return ready, f"{quantity(len(ready), 'ready prompt')}: {titles[chosen]}"

    def _finding_section(
        self, name: str, measure: Callable[[Workbench], Iterator[BenchProgress]]
    ) -> Section:
        def begin(look: Look) -> PageSection:
            return claim_view.finding(name, self._findings.get(name))

        def work(look: Look, values: Mapping[str, str]) -> Work:
            for found in measure(self._models.bench):
                yield claim_view.finding(name, found)
            self._findings[name] = found

        return Section(name, lambda look: self._findings.get(name), begin, {"measure": work})


def _work_out(look: Look, values: Mapping[str, str] = MappingProxyType({})) -> Work:
    """Yields the worked example, with the usual number wherever no value came. Raises SpecvizError."""
    numbers = {}
    for name, (_, usual) in claim_view.FIELDS.items():
        numbers[name] = values.get(name, str(usual))
    drafted = whole_number(numbers, "drafted", 1, claim_view.MOST)
    draft_ms = whole_number(numbers, "draft_ms", 0, claim_view.MOST)
    check_ms = whole_number(numbers, "check_ms", 1, claim_view.MOST)
    accepted = whole_number(numbers, "accepted", 0, drafted)
    yield claim_view.claim_numbers(drafted, draft_ms, check_ms, accepted)


def _text_of(look: Look) -> Key:
    """The key of a section that begins again with each text."""
    return look.text


def _constant(look: Look) -> Key:
    """The key of a section that never begins again."""
    return ()


def _no_waits(look: Look) -> PageSection:
    return claim_view.finding("waits", None, may_measure=look.run is not None)


def _has_draft(look: Look) -> bool:
    return look.settings.draft_model is not None and not facts_of(look.settings.method).foreign


def _pair_of(look: Look) -> tuple[str, str | None] | None:
    """The names of the target and the draft model; None before there is a run."""
    if look.settings is None:
        return None
    return (look.settings.target, look.settings.draft_model)


def _middle_context(look: Look) -> int:
    """The context in the middle of the run, in tokens, as far as the target leaves room."""
    if look.run is None:
        return 128
    steps = look.run.steps
    middle = (steps[0].context_length + steps[-1].context_length) // 2
    limit = look.run.models[-1].target.context_limit
    if limit is not None:
        middle = min(middle, limit - ROOM)
    return max(1, middle)
