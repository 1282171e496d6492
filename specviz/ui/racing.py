"""The first sections of the Compare page: a race of two setups on one prompt, and two runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import compress, zip_longest
from pathlib import Path

from specviz.drafters import METHODS
from specviz.drafters.base import Method
from specviz.errors import SpecvizError
from specviz.parting import are_of_one_prompt
from specviz.race import Side, Start, racing
from specviz.request import Request
from specviz.rules import RULES
from specviz.session import Workbench
from specviz.settings import settings
from specviz.shipped import FIRST_VISIT, shipped, shipped_trace
from specviz.trace import Trace
from specviz.ui.models_of import is_at_hand, lacks, models_named, names_of, request_of
from specviz.ui.offer import Offer, drafts, fitting_draft, sets_k
from specviz.ui.registry import Registry
from specviz.ui.sections import Look, Props, Section, Work, one_of, whole_number
from specviz.views import library, pair
from specviz.views import race as view
from specviz.views.lessons import SHIPPED
from specviz.views.sentences import label, visible

PAGE = "explore"  # the setup of the run that is looked at
AS_ON_EXPLORE = "as the run on Explore: "
AS_AT_FIRST = "the page's first setup: "
SEPARATOR = " · "  # of the parts of a title in the library
ONE_BY_ONE = "one-by-one"
FIRST = {"left": "none", "right": PAGE, "temperature": 0.0, "tokens": 64, "prompts": 5}
TEMPERATURES = (0.0, 0.5, 1.0, 1.5)
MOST_WORDS = 48  # characters of a prompt that stand for it
EQUAL = "A and B are the same setup, so there is nothing to compare: choose another one for one of them"
GONE = "this run is not known here any more, or has written nothing yet: open it again from the library"


@dataclass(frozen=True, slots=True)
class _Base:
    """What is raced when nothing is changed: the run on Explore, or else the page's first setup; `problem`: why it is
    not the run, if there is one."""

    request: Request
    is_run: bool = True
    problem: str = ""

    @property
    def title(self) -> str:
        return f"{AS_ON_EXPLORE if self.is_run else AS_AT_FIRST}{_words_of(self.request)}"


class Racing:
    """The sections "race" and "two-runs"."""

    def __init__(self, bench: Workbench, offer: Offer, registry: Registry) -> None:
        self._bench, self._offer, self._registry = bench, offer, registry

    def sections(self) -> list[Section]:
        return [
            Section(view.NAME, self._base, self._begin, {"race": self._race}, needs=self._needs, keeps=True),
            Section(pair.NAME, self._on_stage, self._pair, {"show": self._show}, engine=False, again=self._again),
        ]

    # ---- the race ---------------------------------------------------------------------------------------------------

    def _base(self, look: Look) -> _Base:
        """The setup in force on Explore, or the page's first one where there is none that can be run again."""
        try:
            names_of(look.trace, self._bench, self._offer)
            return _Base(_draftable(request_of(look.trace), self._offer.first).checked())
        except SpecvizError as refusal:
            has_run = look.trace is not None and bool(look.trace.steps)
            words = f"The run on Explore cannot be raced here: {visible(str(refusal))}. The page's first setup is used."
            return _Base(self._offer.first, is_run=False, problem=words if has_run else "")

    def _needs(self, look: Look) -> list[str]:
        """Heads are read with their target."""
        return [name for kind, name in models_named(self._base(look).request) if kind in ("target", "draft")]

    def _begin(self, look: Look) -> Props:
        base = self._base(look)
        other = next((value for value in self._setups(base) if value not in (PAGE, "none")), PAGE)
        right = PAGE if base.request.method != "none" else other
        return self._shown(base, {**FIRST, "right": right, "tokens": min(FIRST["tokens"], _most_tokens())})

    def _shown(self, base: _Base, chosen: Mapping[str, object], **result: object) -> Props:
        options = [(words, value) for value, words in self._setups(base).items()]
        known = [value for _, value in options]
        sides = {name: chosen[name] if chosen[name] in known else known[0] for name in ("left", "right")}
        known = {"temperatures": _temperatures(base.request), "most_tokens": _most_tokens()}
        given = {**chosen, **sides, **known, "prompt": f"“{_beginning(base.request.prompt)}”"}
        return view.race(options, given, problem=base.problem, **result)

    def _setups(self, base: _Base) -> dict[str, str]:
        """value -> words: the run's own setup, no draft, every draft model and every method that can run here."""
        setups = {PAGE: base.title, "none": METHODS["none"].title}
        for name in self._drafts(base.request.target):
            setups[f"draft:{name}"] = f"{METHODS['draft_model'].title}: {label(Path(name).name)}"
        for method in METHODS.values():
            if method.name not in ("none", "draft_model") and self._can_run(method, base.request):
                setups[f"method:{method.name}"] = ", ".join([method.title, *_lossy_rule(method, method.default_rule)])
        return setups

    def _drafts(self, target: str) -> list[str]:
        offered = self._offer.drafts_for(target, METHODS["draft_model"])
        return [name for _, name in offered if is_at_hand(name, self._bench)]

    def _can_run(self, method: Method, base: Request) -> bool:
        """As far as it is known without loading anything."""
        if lacks(method, base.target, self._bench.library):
            return False
        try:
            self._refuse_absent(_with_method(base, method, self._offer.first))
        except SpecvizError:
            return False
        return True

    def _refuse_absent(self, request: Request) -> None:
        """A click on this page downloads nothing."""
        for _, name in models_named(request):
            if not is_at_hand(name, self._bench):
                raise SpecvizError(f"{label(name)} is not loaded here: run it once on Explore first")

    def _race(self, look: Look, values: Mapping[str, str]) -> Work:
        base = self._base(look)
        setups = self._setups(base)
        chosen = {
            **{name: _setup(values.get(name, ""), setups, base.request.target) for name in ("left", "right")},
            "temperature": float(one_of(values, "temperature", _temperatures(base.request))),
            "tokens": whole_number(values, "tokens", min(view.FEWEST_TOKENS, _most_tokens()), _most_tokens()),
            "prompts": whole_number(values, "prompts", 1, view.MOST_PROMPTS),
        }
        same = {"temperature": chosen["temperature"], "max_new_tokens": chosen["tokens"]}
        values = chosen["left"], chosen["right"]
        words = [_words_of(base.request) if value == PAGE else setups[value] for value in values]
        titles = tuple(f"{letter} · {each}" for letter, each in zip(view.LETTERS, words, strict=True))
        requests = [replace(self._request(value, base.request), **same) for value in values]
        if _law(requests[0]) == _law(requests[1]):
            raise SpecvizError(EQUAL)
        sides = map(Side, titles, requests)
        starts = self._starts(look, base.request)[: chosen["prompts"]]
        for result in racing(*sides, starts, self._bench):
            yield self._shown(base, chosen, result=result, titles=titles)

    def _request(self, value: str, base: Request) -> Request:
        """The setup that was chosen, of which all is at hand: the others are not in the list."""
        kind, _, name = value.partition(":")
        if kind == PAGE:
            return base
        if kind == "draft":
            return replace(_with_method(base, METHODS["draft_model"], self._offer.first), draft=name)
        return _with_method(base, METHODS[name or "none"], self._offer.first)

    def _starts(self, look: Look, base: Request) -> list[Start]:
        """The page's own prompt, then ready ones, of each kind in turn."""
        kinds = [texts for kind, texts in self._offer.prompts.items() if kind not in self._offer.dialogues]
        rounds = zip_longest(*(texts.items() for texts in kinds))
        ready = [Start(title, text) for each in rounds for title, text in filter(None, each) if text != base.prompt]
        return [Start(_beginning(base.prompt), base.prompt, base.prompt_ids), *ready]

    # ---- two runs ---------------------------------------------------------------------------------------------------

    def _on_stage(self, look: Look) -> str | None:
        return look.place.run if look.trace is not None and look.trace.steps else None

    def _pair(self, look: Look) -> Props:
        options, run = self._runs(look), self._on_stage(look)
        right = SHIPPED + FIRST_VISIT if run is None else run
        chosen = (SHIPPED + ONE_BY_ONE, right) if SHIPPED + ONE_BY_ONE in options else (next(iter(options)), right)
        return pair.two_runs([(words, value) for value, words in options.items()], chosen)

    def _again(self, look: Look, shown: Props) -> Props:
        """With another run on the stage: what was chosen and is shown stays, and the lists are made anew."""
        chosen = pair.chosen_runs(shown)
        if not pair.has_shown(shown) or not all(map(self._is_known, chosen)):
            return self._pair(look)
        options = self._runs(look, *chosen)
        fresh = pair.two_runs([(words, value) for value, words in options.items()], chosen)
        return {**fresh, "blocks": shown["blocks"]}

    def _is_known(self, value: str) -> bool:
        try:
            return bool(self._trace(value).steps)
        except SpecvizError:
            return False

    def _runs(self, look: Look, *others: str) -> dict[str, str]:
        """value -> words: the run on the stage, the recorded ones, and `others` of the registry."""
        run = self._on_stage(look)
        stage = {} if run is None else {run: f"on Explore: {_told(look.trace)}"}
        recorded = {SHIPPED + each.name: f"recorded: {each.title}" for each in shipped().values()}
        return stage | recorded | {each: _told(self._trace(each)) for each in others if each not in stage | recorded}

    def _trace(self, value: str) -> Trace:
        """The run of this name or id, as it is now. SpecvizError where there is none."""
        if value.startswith(SHIPPED):
            return shipped_trace(value.removeprefix(SHIPPED))
        seen = self._registry.get(value)
        if seen is None or not seen.trace.steps:
            raise SpecvizError(GONE)
        return Trace(seen.trace.events())

    def _show(self, look: Look, values: Mapping[str, str]) -> Work:
        chosen = values.get("left", ""), values.get("right", "")
        traces = self._trace(chosen[0]), self._trace(chosen[1])
        options = self._runs(look, *chosen)
        names = [options[value] for value in chosen]
        if are_of_one_prompt(*traces) and not any(value.startswith(SHIPPED) for value in chosen):
            names = _apart(*(library.entry(trace)["title"] for trace in traces))
        left, right = (f"{letter} · {name}" for letter, name in zip(view.LETTERS, names, strict=True))
        pairs = [(words, value) for value, words in options.items()]
        yield pair.two_runs(pairs, chosen, traces, (left, right))


def _setup(value: str, setups: Mapping[str, str], target: str) -> str:
    if value not in setups:
        raise SpecvizError(f"this setup cannot be run on {label(Path(target).name)} here: choose another one")
    return value


def _draftable(request: Request, first: Request) -> Request:
    """With a K that other methods can take: a run without a draft has none."""
    return request if request.k > 0 else replace(request, k=first.k)


def _with_method(base: Request, method: Method, first: Request) -> Request:
    """The same text law by another method, with its usual parameters and its own rule."""
    draft = fitting_draft(method, base.target, base.draft or first.draft)
    return replace(base, method=method.name, params={}, rule=None, draft=draft if "draft" in method.roles else None)


def _law(request: Request) -> tuple[object, ...]:
    """All by which two sides of a race may differ, as far as it counts under their methods."""
    method = METHODS[request.method]
    rule = (request.rule or method.default_rule) if drafts(method) else None
    draft = request.draft if "draft" in method.roles else None
    return method.name, draft, rule, request.k if sets_k(method) else None, method.checked(request.params)


def _words_of(request: Request) -> str:
    method = METHODS[request.method]
    models = [label(Path(request.draft).name)] if request.draft and "draft" in method.roles else []
    k = [f"K {request.k}"] if sets_k(method) else []
    return ", ".join([method.title, *models, *k, *_lossy_rule(method, request.rule or method.default_rule)])


def _lossy_rule(method: Method, rule: str) -> list[str]:
    """The name of a rule that does not keep the target's own odds; nothing for the others."""
    return [f"lossy ({RULES[rule].title})"] if drafts(method) and not RULES[rule].lossless else []


def _most_tokens() -> int:
    return min(view.MOST_TOKENS, settings().max_new_tokens)


def _temperatures(request: Request) -> list[str]:
    """Those that a race may be run at, the run's own among them."""
    return [repr(each) for each in sorted({*TEMPERATURES, request.temperature})]


def _beginning(prompt: str) -> str:
    shown = visible(" ".join(prompt[: 4 * MOST_WORDS].split()))
    return shown if len(shown) <= MOST_WORDS else f"{shown[: MOST_WORDS - 1]}…"


def _apart(one: str, other: str) -> list[str]:
    """Two titles of the library without what both have in common, but for the method."""
    parts = [title.split(SEPARATOR) for title in (one, other)]
    if one == other or len(parts[0]) != len(parts[1]):
        return [one, other]
    keeps = [not place or both[0] != both[1] for place, both in enumerate(zip(*parts, strict=True))]
    return [SEPARATOR.join(compress(each, keeps)) for each in parts]


def _told(trace: Trace) -> str:
    """A run in the words of the library."""
    told = library.entry(trace)
    return ", ".join(filter(None, [told["title"], told["words"]]))
