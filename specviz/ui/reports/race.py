"""The first section of the Compare page: a race of two setups. The newest are kept, for replays and for their files."""

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
from specviz.ui.reports.section import Look, Props, Section, Work, one_of, own_prompts, whole_number
from specviz.ui.reports.trace_models import RunModels, lacks, request_of
from specviz.views.compare import race as view
from specviz.views.explore.opening import question_of
from specviz.views.words import label, reveal

PAGE = "explore"  # the setup of the run that is looked at
AS_ON_EXPLORE = "as the run on Explore: "
AS_AT_FIRST = "the page's first setup: "
ALONE = "none"  # the method that a race has on its left at first
FIRST = {"left": ALONE, "right": PAGE, "temperature": 0.0, "tokens": 64, "prompts": 6, "own": ""}
TEMPERATURES = (0.0, 0.2, 0.5, 0.7, 0.8, 1.0, 1.2, 1.5)
MOST_WORDS = 48  # characters of a prompt that stand for it
MOST_STEPS = 8_000  # of all races that are kept; a step takes about 10 kB
GONE = "this race is gone: race again"


@dataclass(frozen=True, slots=True)
class _Base:
    """What is raced when nothing is changed: the run on Explore, or else the page's first setup; `problem`: why it is
    not the run, if there is one. asked: its prompt, without the form in which a chat model reads it."""

    request: Request
    asked: str
    is_run: bool = True
    problem: str = ""


@dataclass(slots=True, eq=False)
class _KeptRace:
    """A race that was begun, with its results so far. files: per heat the ids of its two runs, once asked for."""

    base: _Base
    chosen: Mapping[str, object]
    titles: view.Titles
    result: Race | None = None
    files: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        heats = () if self.result is None else self.result.heats
        return sum(len(heat.left.steps) + len(heat.right.steps) for heat in heats)


class RaceSection:
    def __init__(self, bench: Workbench, offer: Offer, registry: Registry) -> None:
        self._bench, self._offer, self._registry = bench, offer, registry
        self._models = RunModels(bench, offer)
        self._races: OrderedDict[str, _KeptRace] = OrderedDict()  # the oldest first

    def section(self) -> Section:
        acts = {"race": self._race, "replay": self._replay}
        return Section(
            view.NAME,
            self._base,
            self._begin,
            acts,
            needs=self._needs,
            keeps=True,
            again=self._begin_again,
        )

    def _base(self, look: Look) -> _Base:
        """The setup in force on Explore, or the page's first one where there is none that can be run again."""
        first = self._offer.first
        try:
            self._models.names(look.trace)
            request = request_of(look.trace)
            k = (
                request.num_speculative_tokens or first.num_speculative_tokens
            )  # a run without a draft has none
            return _Base(
                replace(request, num_speculative_tokens=k).validate(),
                question_of(look.trace.header),
            )
        except SpecvizError as refusal:
            words = f"The run on Explore cannot be raced here: {reveal(str(refusal))}. The page's first setup is used."
            return _Base(
                first, first.prompt, is_run=False, problem="" if look.run is None else words
            )

    def _needs(self, look: Look) -> list[str]:
        """Without heads: they are loaded with their target."""
        return [
            name
            for kind, name in models_named(self._base(look).request)
            if kind in ("target", "draft")
        ]

    def _begin(self, look: Look) -> Props:
        base = self._base(look)
        _, _, *others = self._setups(base)
        right = PAGE if METHODS[base.request.method].drafts or not others else others[0]
        ks = dict.fromkeys(("k_left", "k_right"), base.request.num_speculative_tokens)
        return self._props(
            base, {**FIRST, **ks, "right": right, "tokens": min(FIRST["tokens"], _most_tokens())}
        )

    def _begin_again(self, look: Look, shown: Props) -> Props:
        """With another run on Explore: choices and results stay, under a line that says so."""
        if not view.has_result(shown):
            return self._begin(look)
        base, chosen = self._base(look), view.chosen_values(shown)
        warm = (
            chosen["temperature"]
            if chosen["temperature"] in _list_temperatures(base.request)
            else "0.0"
        )
        return view.with_earlier_result(
            self._props(base, {**chosen, "temperature": float(warm)}), shown
        )

    def _props(self, base: _Base, chosen: Mapping[str, object], **result: object) -> Props:
        options = [(words, value) for value, (words, _) in self._setups(base).items()]
        known = [value for _, value in options]
        sides = {
            name: chosen[name] if chosen[name] in known else known[0] for name in ("left", "right")
        }
        limits = {"temperatures": _list_temperatures(base.request), "most_tokens": _most_tokens()}
        given = {**chosen, **sides, **limits, "prompt": f"“{_shorten(base.asked)}”"}
        return view.race(options, given, problem=base.problem, **result)

    def _setups(self, base: _Base) -> dict[str, tuple[str, Request]]:
        """value -> words and request: the run's own setup, no draft, each draft model and method that can run here."""
        alone, plain = METHODS[ALONE], METHODS["draft_model"]
        title = f"{AS_ON_EXPLORE if base.is_run else AS_AT_FIRST}{_describe(base.request, with_k=False)}"
        setups = {
            PAGE: (title, base.request),
            alone.name: (alone.title, self._change_method(base.request, alone)),
        }
        for _, name in self._offer.drafts_for(base.request.target, plain):
            if self._models.is_at_hand(name):
                request = replace(self._change_method(base.request, plain), draft=name)
                setups[f"draft:{name}"] = f"{plain.title}: {label(Path(name).name)}", request
        for method in METHODS.values():
            request = self._change_method(base.request, method)
            if method.drafts and not method.is_plain and self._can_run(request):
                words = ", ".join([method.title, *_lossy_rule(method, method.default_rule)])
                setups[f"method:{method.name}"] = words, request
        return setups

    def _change_method(self, base: Request, method: Method) -> Request:
        """The same request by another method, with its default parameters and its own rule."""
        draft = choose_draft(method, base.target, base.draft or self._offer.first.draft)
        draft = draft if "draft" in method.roles else None
        return replace(base, method=method.name, params={}, rule=None, draft=draft)

    def _can_run(self, request: Request) -> bool:
        """Whether the request's models are at hand, because a click on this page downloads nothing. Loads nothing."""
        try:
            at_hand = all(self._models.is_at_hand(name) for _, name in models_named(request))
        except SpecvizError:
            return False
        return at_hand and not lacks(METHODS[request.method], request.target, self._bench.pool)

    def _race(self, look: Look, values: Mapping[str, str]) -> Work:
        base = self._base(look)
        chosen, starts = self._choices(base, values), self._starts(base, values)
        requests = [self._contestant(base, chosen, name) for name in ("left", "right")]
        if _identify(requests[0]) == _identify(requests[1]):
            same = _describe(requests[0])
            raise SpecvizError(
                f"A and B are the same setup, {same}: choose another one, or another K, for one of them"
            )
        titles = tuple(
            f"{letter} · {_describe(each)}"
            for letter, each in zip(view.LETTERS, requests, strict=True)
        )
        kept, key = _KeptRace(base, chosen, titles), uuid.uuid4().hex
        self._races[key] = kept
        for result in run_race(*map(RaceSide, titles, requests), starts, self._bench):
            kept.result = result
            while (
                len(self._races) > 1
                and sum(each.num_steps for each in self._races.values()) > MOST_STEPS
            ):
                self._races.popitem(last=False)
            files = (
                self._files(kept, view.heat_to_replay(result))
                if result.done == result.total
                else ()
            )
            yield self._props(
                base, chosen, result=result, titles=titles, seat=view.Seat(key, files=files)
            )

    def _choices(self, base: _Base, values: Mapping[str, str]) -> dict[str, object]:
        """The checked values of the section's controls. Raises SpecvizError."""
        setups = self._setups(base)
        sides = {name: values.get(name, "") for name in ("left", "right")}
        if not all(side in setups for side in sides.values()):
            target = label(Path(base.request.target).name)
            raise SpecvizError(f"this setup cannot be run on {target} here: choose another one")
        return {
            **sides,
            **{name: whole_number(values, name, 1, MAX_K) for name in ("k_left", "k_right")},
            "temperature": float(one_of(values, "temperature", _list_temperatures(base.request))),
            "tokens": whole_number(
                values, "tokens", min(view.FEWEST_TOKENS, _most_tokens()), _most_tokens()
            ),
            "prompts": whole_number(values, "prompts", 1, view.MOST_PROMPTS),
            "own": values.get("own", "")[: view.MOST_CHARACTERS],
        }

    def _contestant(self, base: _Base, chosen: Mapping[str, object], side: str) -> Request:
        """One side's setup at its own K, and at the temperature and length of both."""
        _, request = self._setups(base)[chosen[side]]
        k = (
            chosen[f"k_{side}"]
            if METHODS[request.method].sets_k
            else request.num_speculative_tokens
        )
        limits = {"temperature": chosen["temperature"], "max_new_tokens": chosen["tokens"]}
        return replace(request, num_speculative_tokens=k, **limits)

    def _replay(self, look: Look, values: Mapping[str, str]) -> Work:
        """Both runs of another prompt of a race that is kept."""
        kept = self._races.get(values.get("race", ""))
        if kept is None or kept.result is None or not kept.result.heats:
            raise SpecvizError(GONE)
        place = whole_number(values, "heat", 0, len(kept.result.heats) - 1)
        seat = view.Seat(values["race"], place, self._files(kept, place))
        base = self._base(look)
        section = self._props(base, kept.chosen, result=kept.result, titles=kept.titles, seat=seat)
        yield section if base == kept.base else view.with_earlier_result(section, section)

    def _files(self, kept: _KeptRace, place: int) -> tuple[str, ...]:
        """The ids under which both runs of a heat can be saved."""
        if not all(self._registry.get(name) for name in kept.files.get(place, ("",))):
            heat, is_shared = kept.result.heats[place], kept.result.is_shared
            runs = [_mark_shared(each) if is_shared else each for each in (heat.left, heat.right)]
            kept.files[place] = tuple(self._registry.keep(run).id for run in runs)
        return kept.files[place]

    def _starts(self, base: _Base, values: Mapping[str, str]) -> list[Start]:
        """Own prompts, where there are any; else the page's own, then ready ones, of each kind in turn."""
        if own := own_prompts(values, view.MOST_PROMPTS, view.MOST_CHARACTERS):
            return [Start(_shorten(line), line) for line in own]
        kinds = [
            texts
            for kind, texts in self._offer.prompts.items()
            if kind not in self._offer.dialogues
        ]
        rounds = zip_longest(*(texts.items() for texts in kinds))
        ready = [
            Start(title, text)
            for each in rounds
            for title, text in filter(None, each)
            if text != base.request.prompt
        ]
        starts = [Start(_shorten(base.asked), base.request.prompt, base.request.prompt_ids), *ready]
        return starts[: whole_number(values, "prompts", 1, view.MOST_PROMPTS)]


def _mark_shared(run: Trace) -> Trace:
    """The run with a footer that says that others slowed it down."""
    events = (
        replace(event, extra={**event.extra, "shared_engine": True})
        if isinstance(event, Footer)
        else event
        for event in run.events()
    )
    return Trace(events)


def _identify(request: Request) -> tuple[object, ...]:
    """The values that tell two sides of a race apart, as far as they count under their methods."""
    method = METHODS[request.method]
    rule = (request.rule or method.default_rule) if method.drafts else None
    draft = request.draft if "draft" in method.roles else None
    k = request.num_speculative_tokens if method.sets_k else None
    return method.name, draft, rule, k, method.validate(request.params)


def _describe(request: Request, *, with_k: bool = True) -> str:
    method = METHODS[request.method]
    models = [label(Path(request.draft).name)] if request.draft and "draft" in method.roles else []
    k = [f"K {request.num_speculative_tokens}"] if with_k and method.sets_k else []
    return ", ".join(
        [method.title, *models, *k, *_lossy_rule(method, request.rule or method.default_rule)]
    )


def _lossy_rule(method: Method, rule: str) -> list[str]:
    """The name of a rule that does not preserve the target's distribution; nothing for the others."""
    return [f"lossy ({RULES[rule].title})"] if method.drafts and not RULES[rule].lossless else []


def _most_tokens() -> int:
    return min(view.MOST_TOKENS, settings().max_new_tokens)


def _list_temperatures(request: Request) -> list[str]:
    """Those that a race may be run at, with the run's own."""
    return [repr(each) for each in sorted({*TEMPERATURES, request.temperature})]


def _shorten(prompt: str) -> str:
    words = reveal(" ".join(prompt[: 4 * MOST_WORDS].split()))
    return words if len(words) <= MOST_WORDS else f"{words[: MOST_WORDS - 1]}…"
