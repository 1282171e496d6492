"""The first section of the Compare page: a race of two setups. The newest races are kept, for replays and files."""

import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

from specviz.bench.race import Race, RaceSide, Start, run_race
from specviz.drafters import METHODS
from specviz.drafters.method import Method
from specviz.errors import SpecvizError
from specviz.request import MAX_K, Request
from specviz.rules import RULES
from specviz.session.setup import models_named
from specviz.session.workbench import Workbench
from specviz.settings import settings
from specviz.trace import Footer, Trace
from specviz.ui.choices import Offer, choose_draft
from specviz.ui.registry import Registry
from specviz.ui.reports.section import Look, Section, Work, one_of, own_prompts, whole_number
from specviz.ui.reports.trace_models import RunModels, lacks, request_of
from specviz.views.blocks import PageSection
from specviz.views.compare import race as view
from specviz.views.compare.race import RaceChoices, RaceOffer
from specviz.views.explore.opening import question_of
from specviz.views.words import label, reveal

PAGE = "explore"  # the setup of the run that is looked at
AS_ON_EXPLORE = "as the run on Explore: "
AS_AT_FIRST = "the page's first setup: "
ALONE = "none"  # the method that a race has on its left at first
FIRST_TOKENS = 64
FIRST_PROMPTS = 6
TEMPERATURES = (0.0, 0.2, 0.5, 0.7, 0.8, 1.0, 1.2, 1.5)
MOST_WORDS = 48  # characters of a prompt that stand for it
MOST_STEPS = 8_000  # of all races that are kept; a step takes about 10 kB
GONE = "this race is gone: race again"


@dataclass(frozen=True, slots=True)
class _Base:
    """The setup that is raced when nothing is changed: the run on Explore, else the page's first setup."""

    request: Request
    asked: str
    """The prompt, without the form in which a chat model reads it."""
    is_run: bool = True
    problem: str = ""
    """The reason why a run on Explore is not raced, in words."""


@dataclass(slots=True, eq=False)
class _KeptRace:
    """A race that was begun, with its results so far."""

    base: _Base
    choices: RaceChoices
    titles: view.Titles
    result: Race | None = None
    files: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """The ids of both runs of each heat, once somebody asked for them."""

    @property
    def num_steps(self) -> int:
        if self.result is None:
            return 0
        heats = self.result.heats
        return sum(len(heat.left.steps) + len(heat.right.steps) for heat in heats)


class RaceSection:
    def __init__(self, bench: Workbench, offer: Offer, registry: Registry) -> None:
        self._bench = bench
        self._offer = offer
        self._registry = registry
        self._models = RunModels(bench, offer)
        self._races: OrderedDict[str, _KeptRace] = OrderedDict()  # the oldest first

    def section(self) -> Section:
        return Section(
            view.NAME,
            self._base,
            self._begin,
            {"race": self._race, "replay": self._replay},
            needs=self._needs,
            again=self._begin_again,
        )

    def _base(self, look: Look) -> _Base:
        """The setup in force on Explore, or the page's first one where there is none that can be run again."""
        first = self._offer.first
        try:
            self._models.names(look.trace)
            request = request_of(look.trace)
            # a run without a draft has no K
            k = request.num_speculative_tokens or first.num_speculative_tokens
            request = replace(request, num_speculative_tokens=k).validate()
            return _Base(request, question_of(look.trace.header))
        except SpecvizError as refusal:
            problem = ""
            if look.run is not None:
                reason = reveal(str(refusal))
                problem = f"The run on Explore cannot be raced here: {reason}. The page's first setup is used."
            return _Base(first, first.prompt, is_run=False, problem=problem)

    def _needs(self, look: Look) -> list[str]:
        """The models to load, without heads, which are loaded with their target."""
        models = models_named(self._base(look).request)
        return [name for kind, name in models if kind in ("target", "draft")]

    def _begin(self, look: Look) -> PageSection:
        base = self._base(look)
        _, _, *others = self._setups(base)  # behind the run's own and no draft
        right = PAGE
        if others and not METHODS[base.request.method].drafts:
            right = others[0]
        k = base.request.num_speculative_tokens
        choices = RaceChoices(
            left=ALONE,
            right=right,
            k_left=k,
            k_right=k,
            temperature=0.0,
            tokens=min(FIRST_TOKENS, _most_tokens()),
            prompts=FIRST_PROMPTS,
        )
        return view.race(self._race_offer(base), choices)

    def _begin_again(self, look: Look, shown: PageSection) -> PageSection:
        """The section with another run on Explore: choices and results stay, under a line that says so."""
        if not view.has_result(shown):
            return self._begin(look)
        base = self._base(look)
        values = view.chosen_values(shown)
        temperature = float(values.pop("temperature"))
        offer = self._race_offer(base)
        choices = _on_offer(RaceChoices(temperature=temperature, **values), offer)
        section = view.race(offer, choices)
        return view.with_earlier_result(section, shown)

    def _race_offer(self, base: _Base) -> RaceOffer:
        setups = self._setups(base)
        return RaceOffer(
            [(words, value) for value, (words, _) in setups.items()],
            _list_temperatures(base.request),
            _most_tokens(),
            f"“{_shorten(base.asked)}”",
            base.problem,
        )

    def _setups(self, base: _Base) -> dict[str, tuple[str, Request]]:
        """The setups to choose from, value -> words and request: the run's own, no draft, every draft model, every
        method."""
        alone = METHODS[ALONE]
        plain = METHODS["draft_model"]
        source = AS_ON_EXPLORE if base.is_run else AS_AT_FIRST
        setups = {
            PAGE: (f"{source}{_describe(base.request, with_k=False)}", base.request),
            alone.name: (alone.title, self._change_method(base.request, alone)),
        }
        for _, name in self._offer.drafts_for(base.request.target, plain):
            if self._models.is_at_hand(name):
                request = replace(self._change_method(base.request, plain), draft=name)
                setups[f"draft:{name}"] = (f"{plain.title}: {label(Path(name).name)}", request)
        for method in METHODS.values():
            request = self._change_method(base.request, method)
            if method.drafts and not method.is_plain and self._can_run(request):
                words = ", ".join([method.title, *_lossy_rule(method, method.default_rule)])
                setups[f"method:{method.name}"] = (words, request)
        return setups

    def _change_method(self, base: Request, method: Method) -> Request:
        """The request by another method, with the default parameters and the rule of that method."""
        draft = None
        if "draft" in method.roles:
            draft = choose_draft(method, base.target, base.draft or self._offer.first.draft)
        return replace(
            base,
            method=method.name,
            params={},
            rule=None,
            draft=draft,
        )

    def _can_run(self, request: Request) -> bool:
        """Whether the request's models are at hand, because a click on this page downloads nothing. It loads
        nothing."""
        try:
            at_hand = all(self._models.is_at_hand(name) for _, name in models_named(request))
        except SpecvizError:
            return False
        return at_hand and not lacks(METHODS[request.method], request.target, self._bench.pool)

    def _race(self, look: Look, values: Mapping[str, str]) -> Work:
        base = self._base(look)
        choices = self._choices(base, values)
        starts = self._starts(base, values)
        left = self._contestant(base, choices, choices.left, choices.k_left)
        right = self._contestant(base, choices, choices.right, choices.k_right)
        if _identify(left) == _identify(right):
            same = _describe(left)
            raise SpecvizError(
                f"A and B are the same setup, {same}: choose another one, or another K, for one of them"
            )
        titles = (
            f"{view.LETTERS[0]} · {_describe(left)}",
            f"{view.LETTERS[1]} · {_describe(right)}",
        )
        sides = (RaceSide(titles[0], left), RaceSide(titles[1], right))
        key = uuid.uuid4().hex
        kept = _KeptRace(base, choices, titles)
        self._races[key] = kept
        offer = self._race_offer(base)
        for result in run_race(*sides, starts, self._bench):
            kept.result = result
            self._drop_oldest()
            files = ()
            if result.done == result.total:
                files = self._files(kept, view.heat_to_replay(result))
            seat = view.Seat(key, files=files)
            yield view.race(offer, choices, result, titles, seat)

    def _drop_oldest(self) -> None:
        """Drops the oldest races until the rest has few enough steps. The newest one stays."""
        num_steps = sum(kept.num_steps for kept in self._races.values())
        while len(self._races) > 1 and num_steps > MOST_STEPS:
            _, dropped = self._races.popitem(last=False)
            num_steps -= dropped.num_steps

    def _choices(self, base: _Base, values: Mapping[str, str]) -> RaceChoices:
        """The checked values of the section's controls. Raises SpecvizError."""
        setups = self._setups(base)
        left = values.get("left", "")
        right = values.get("right", "")
        if left not in setups or right not in setups:
            target = label(Path(base.request.target).name)
            raise SpecvizError(f"this setup cannot be run on {target} here: choose another one")
        most = _most_tokens()
        return RaceChoices(
            left,
            right,
            k_left=whole_number(values, "k_left", 1, MAX_K),
            k_right=whole_number(values, "k_right", 1, MAX_K),
            temperature=float(one_of(values, "temperature", _list_temperatures(base.request))),
            tokens=whole_number(values, "tokens", min(view.FEWEST_TOKENS, most), most),
            prompts=whole_number(values, "prompts", 1, view.MOST_PROMPTS),
            own=values.get("own", "")[: view.MOST_CHARACTERS],
        )

    def _contestant(self, base: _Base, choices: RaceChoices, setup: str, k: int) -> Request:
        """The request of one side: its setup at its own K, and at the temperature and length that both sides share."""
        _, request = self._setups(base)[setup]
        if not METHODS[request.method].sets_k:
            k = request.num_speculative_tokens
        return replace(
            request,
            num_speculative_tokens=k,
            temperature=choices.temperature,
            max_new_tokens=choices.tokens,
        )

    def _replay(self, look: Look, values: Mapping[str, str]) -> Work:
        """Shows both runs of another prompt of a race that is kept."""
        kept = self._races.get(values.get("race", ""))
        if kept is None or kept.result is None or not kept.result.heats:
            raise SpecvizError(GONE)
        heat = whole_number(values, "heat", 0, len(kept.result.heats) - 1)
        seat = view.Seat(values["race"], heat, self._files(kept, heat))
        base = self._base(look)
        offer = self._race_offer(base)
        choices = _on_offer(kept.choices, offer)
        section = view.race(offer, choices, kept.result, kept.titles, seat)
        if base != kept.base:
            section = view.with_earlier_result(section, section)
        yield section

    def _files(self, kept: _KeptRace, place: int) -> tuple[str, ...]:
        """The ids under which both runs of a heat can be saved."""
        ids = kept.files.get(place)
        if ids is None or not all(self._registry.get(view_id) for view_id in ids):
            heat = kept.result.heats[place]
            runs = [heat.left, heat.right]
            if kept.result.is_shared:
                runs = [_mark_shared(run) for run in runs]
            ids = tuple(self._registry.keep(run).id for run in runs)
            kept.files[place] = ids
        return ids

    def _starts(self, base: _Base, values: Mapping[str, str]) -> list[Start]:
        """The visitor's own prompts, if any; else the run's prompt, then ready ones, by turns from each kind."""
        if own := own_prompts(values, view.MOST_PROMPTS, view.MOST_CHARACTERS):
            return [Start(_shorten(line), line) for line in own]
        kinds = [
            texts.items()
            for kind, texts in self._offer.prompts.items()
            if kind not in self._offer.dialogues
        ]
        request = base.request
        starts = [Start(_shorten(base.asked), request.prompt, request.prompt_ids)]
        for by_turns in zip_longest(*kinds):
            for title, text in filter(None, by_turns):
                if text != request.prompt:
                    starts.append(Start(title, text))
        return starts[: whole_number(values, "prompts", 1, view.MOST_PROMPTS)]


def _on_offer(choices: RaceChoices, offer: RaceOffer) -> RaceChoices:
    """The choices, with the run's own setup and temperature 0 in place of what is not on offer any more."""
    setups = [value for _, value in offer.setups]
    left = choices.left if choices.left in setups else PAGE
    right = choices.right if choices.right in setups else PAGE
    temperature = choices.temperature if repr(choices.temperature) in offer.temperatures else 0.0
    return replace(choices, left=left, right=right, temperature=temperature)


def _mark_shared(run: Trace) -> Trace:
    """The run with a footer that says that others slowed it down."""
    events = []
    for event in run.events():
        if isinstance(event, Footer):
            event = replace(event, extra={**event.extra, "shared_engine": True})
        events.append(event)
    return Trace(events)


def _identify(request: Request) -> tuple[object, ...]:
    """The values that tell two sides of a race apart, as far as they count under their methods."""
    method = METHODS[request.method]
    rule = None
    if method.drafts:
        rule = request.rule or method.default_rule
    draft = request.draft if "draft" in method.roles else None
    k = request.num_speculative_tokens if method.sets_k else None
    return method.name, draft, rule, k, method.validate(request.params)


def _describe(request: Request, *, with_k: bool = True) -> str:
    """The method, draft model and K of a setup in words, with the rule where that is lossy."""
    method = METHODS[request.method]
    words = [method.title]
    if request.draft and "draft" in method.roles:
        words.append(label(Path(request.draft).name))
    if with_k and method.sets_k:
        words.append(f"K {request.num_speculative_tokens}")
    words += _lossy_rule(method, request.rule or method.default_rule)
    return ", ".join(words)


def _lossy_rule(method: Method, rule: str) -> list[str]:
    """The name of a rule that does not preserve the target's distribution; nothing for other rules."""
    if not method.drafts or RULES[rule].lossless:
        return []
    return [f"lossy ({RULES[rule].title})"]


def _most_tokens() -> int:
    return min(view.MOST_TOKENS, settings().max_new_tokens)


def _list_temperatures(request: Request) -> list[str]:
    """The temperatures that a race may be run at, with the run's own."""
    return [repr(temperature) for temperature in sorted({*TEMPERATURES, request.temperature})]


def _shorten(prompt: str) -> str:
    words = reveal(" ".join(prompt[: 4 * MOST_WORDS].split()))
    return words if len(words) <= MOST_WORDS else f"{words[: MOST_WORDS - 1]}…"
