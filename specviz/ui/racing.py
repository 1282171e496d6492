"""The first sections of the Compare page: a race of two setups on one prompt, and two runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from specviz.crew import names_of as names_in_force
from specviz.drafters import METHODS
from specviz.drafters.base import Method, Models
from specviz.errors import SpecvizError
from specviz.race import Side, Start, racing
from specviz.request import Request
from specviz.rules import RULES
from specviz.session import Workbench
from specviz.shipped import FIRST_VISIT, shipped, shipped_trace
from specviz.trace import Trace
from specviz.ui.models_of import is_at_hand, lacks, names_of, request_of
from specviz.ui.offer import Offer, fitting_draft, sets_k
from specviz.ui.registry import Registry
from specviz.ui.reports import Look, Props, Section, Work, one_of, whole_number
from specviz.views import race as view
from specviz.views.sentences import label, visible

PAGE = "explore"  # the setup of the run that is looked at
AS_ON_EXPLORE = "as on Explore: "
SHIPPED = "shipped:"
ONE_BY_ONE = "one-by-one"
FIRST = {"left": "none", "right": PAGE, "temperature": 0.0, "tokens": 64, "prompts": 5}
TEMPERATURES = (0.0, 0.5, 1.0, 1.5)
MOST_WORDS = 48  # characters of a prompt that stand for it
GONE = "this run is not known here any more, or has written nothing yet: open it again from the library"


@dataclass(frozen=True, slots=True)
class _Base:
    """What is raced when nothing is changed; `problem`: why it is not the run on Explore, if there is one."""

    request: Request
    problem: str = ""


class Racing:
    """The sections "race" and "two-runs"."""

    def __init__(self, bench: Workbench, offer: Offer, registry: Registry) -> None:
        self._bench, self._offer, self._registry = bench, offer, registry

    def sections(self) -> list[Section]:
        return [
            Section(view.NAME, self._base, self._begin, {"race": self._race}, needs=self._needs),
            Section(view.PAIR_NAME, self._on_stage, self._pair, {"show": self._show}),
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
            return _Base(self._offer.first, words if has_run else "")

    def _needs(self, look: Look) -> list[str]:
        """Heads are read with their target."""
        return [name for kind, name in _parts(self._base(look).request) if kind in ("target", "draft")]

    def _begin(self, look: Look) -> Props:
        base = self._base(look)
        chosen = FIRST if base.request.method != "none" else {**FIRST, "right": f"draft:{self._offer.first.draft}"}
        return self._shown(base, chosen)

    def _shown(self, base: _Base, chosen: Mapping[str, object], **result: object) -> Props:
        options = [(words, value) for value, words in self._setups(base.request).items()]
        known = [value for _, value in options]
        sides = {name: chosen[name] if chosen[name] in known else known[0] for name in ("left", "right")}
        given = {**chosen, **sides, "temperatures": _temperatures(base.request)}
        return view.race(options, given, problem=base.problem, **result)

    def _setups(self, base: Request) -> dict[str, str]:
        """value -> words: the run's own setup, no draft, every draft model and every method that can run here."""
        setups = {PAGE: f"{AS_ON_EXPLORE}{_words_of(base)}", "none": METHODS["none"].title}
        for name in self._drafts(base.target):
            setups[f"draft:{name}"] = f"{METHODS['draft_model'].title}: {label(Path(name).name)}"
        for method in METHODS.values():
            if method.name not in ("none", "draft_model") and self._can_run(method, base):
                lossy = "" if RULES[method.default_rule].lossless else " (lossy)"
                setups[f"method:{method.name}"] = f"{method.title}{lossy}"
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
        for _, name in _parts(request):
            if not is_at_hand(name, self._bench):
                raise SpecvizError(f"{label(name)} is not loaded here: run it once on Explore first")

    def _race(self, look: Look, values: Mapping[str, str]) -> Work:
        base = self._base(look)
        setups = self._setups(base.request)
        chosen = {
            **{name: _setup(values.get(name, ""), setups, base.request.target) for name in ("left", "right")},
            "temperature": float(one_of(values, "temperature", _temperatures(base.request))),
            "tokens": whole_number(values, "tokens", view.FEWEST_TOKENS, view.MOST_TOKENS),
            "prompts": whole_number(values, "prompts", 1, view.MOST_PROMPTS),
        }
        same = {"temperature": chosen["temperature"], "max_new_tokens": chosen["tokens"]}
        values = chosen["left"], chosen["right"]
        titles = tuple(
            f"{letter} · {setups[value].removeprefix(AS_ON_EXPLORE)}"
            for letter, value in zip(view.LETTERS, values, strict=True)
        )
        requests = [replace(self._request(value, base.request), **same) for value in values]
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
        return view.two_runs([(words, value) for value, words in options.items()], chosen)

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
        left, right = (f"{letter} · {options[value]}" for letter, value in zip(view.LETTERS, chosen, strict=True))
        pairs = [(words, value) for value, words in options.items()]
        yield view.two_runs(pairs, chosen, traces, (left, right))


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


def _parts(request: Request) -> list[tuple[str, str]]:
    """(kind, name) of every model that the request needs."""
    method = METHODS[request.method]
    values = method.checked(request.params)
    asked = [param for param in method.params if isinstance(param, Models)]
    named = [(param, name) for param in asked for name in names_in_force(param, values[param.name], request.target)]
    drafts = [("draft", request.draft)] if "draft" in method.roles and request.draft else []
    return [("target", request.target), *drafts, *((param.kind, name) for param, name in named
                                                   if name not in param.beside)]  # fmt: skip


def _words_of(request: Request) -> str:
    method = METHODS[request.method]
    drafts = [label(Path(request.draft).name)] if request.draft and "draft" in method.roles else []
    return ", ".join([method.title, *drafts, *([f"K {request.k}"] if sets_k(method) else [])])


def _temperatures(request: Request) -> list[str]:
    """Those that a race may be run at, the run's own among them."""
    return [repr(each) for each in sorted({*TEMPERATURES, request.temperature})]


def _beginning(prompt: str) -> str:
    shown = visible(" ".join(prompt[: 4 * MOST_WORDS].split()))
    return shown if len(shown) <= MOST_WORDS else f"{shown[: MOST_WORDS - 1]}…"


def _told(trace: Trace) -> str:
    """A run in a few words, of which none is trusted."""
    settings = trace.steps[-1].settings
    method = METHODS[settings.method].title if settings.method in METHODS else label(settings.method)
    drafts = [label(settings.draft_model)] if settings.draft_model else []
    begins = f"“{_beginning(trace.header.prompt.text)}”"
    return ", ".join([method, *drafts, f"temperature {settings.temperature:g}", begins])
