"""The Compare page: every K and every draft on the text of the run, what things cost here, and why it is not faster."""

from __future__ import annotations

from collections.abc import Mapping

from specviz.breakdown import why_slow
from specviz.costing import Costs, measure_costs
from specviz.errors import SpecvizError
from specviz.judged import KS, judge_run
from specviz.measures import metrics
from specviz.planning import OtherDrafts, other_drafts
from specviz.session import Workbench
from specviz.speed import Speed, measuring
from specviz.tool_names import SGLANG, VLLM, export, tool_numbers
from specviz.trace import Trace
from specviz.ui.models_of import models_of, request_of
from specviz.ui.offer import Offer, draft_choices
from specviz.ui.reports import Look, Props, Section, Work, whole_number
from specviz.views import costs as cost_view
from specviz.views import plan, plan_theory
from specviz.whatif import WhatIf

MOST_CONTEXT = 1_000_000
ROOM = 64  # tokens that measuring the costs may add to a context
Key = tuple[object, ...]


class Comparing:
    """The sections of the page. Measured costs and speeds are kept for all visitors: they are this machine's."""

    def __init__(self, bench: Workbench, offer: Offer) -> None:
        self._bench, self._offer = bench, offer
        self._costs: dict[tuple[str, str | None], Costs] = {}
        self._speeds: dict[Key, Speed] = {}

    def sections(self) -> list[Section]:
        return [
            Section("every-k", self._of_text, self._every_k),
            Section("costs", _pair, self._costs_section, {"measure": self._measure_costs}),
            Section("other-drafts", _text, lambda look: self._other_drafts(look, None), {"ask": self._ask_drafts}),
            Section("theory", self._of_text, self._theory),
            Section("why-slow", self._of_speed, self._why_slow, {"speed": self._measure_speed}),
            Section("tool-names", _text, _tool_names),
        ]

    # ---- what sections depend on ------------------------------------------------------------------------------------

    def _of_text(self, look: Look) -> Key:
        return (*_text(look), id(self._known_costs(look.trace)))

    def _of_speed(self, look: Look) -> Key:
        return (*self._of_text(look), id(self._known_speed(look.trace)))

    def _known_costs(self, trace: Trace | None) -> Costs | None:
        return None if trace is None or not trace.steps else self._costs.get(_names(trace))

    def _known_speed(self, trace: Trace | None) -> Speed | None:
        return None if trace is None or not trace.steps else self._speeds.get(_settings_key(trace))

    # ---- every K, and theory ----------------------------------------------------------------------------------------

    def _every_k(self, look: Look) -> Props:
        trace = look.trace
        if trace is None or not trace.steps:
            return plan.every_k(None, None)
        try:
            judged = judge_run(trace)
        except SpecvizError as refusal:
            return plan.every_k(trace, None, refusal=str(refusal))
        what_if = judged.every_k(KS, self._known_costs(trace))
        return plan.every_k(trace, what_if, judged.cuts(), point=self._point(trace))

    def _theory(self, look: Look) -> Props:
        trace, costs = look.trace, self._known_costs(look.trace)
        what_if = None if trace is None else self._what_if(trace)
        if what_if is None:
            return plan_theory.theory(None, None, None)
        return plan_theory.theory(what_if, metrics(trace)["alpha"], costs, self._point(trace))

    def _what_if(self, trace: Trace) -> WhatIf | None:
        try:
            return judge_run(trace).every_k(KS, self._known_costs(trace))
        except SpecvizError:
            return None

    def _point(self, trace: Trace) -> plan.Point | None:
        speed = self._known_speed(trace)
        return plan.run_point(trace, None if speed is None else speed.speedup)

    # ---- costs ------------------------------------------------------------------------------------------------------

    def _costs_section(self, look: Look, **state: object) -> Props:
        length = 128 if look.trace is None else _middle(look.trace)
        given = {"context_length": length, "most_context": MOST_CONTEXT, **state}
        return cost_view.costs(self._known_costs(look.trace), **given)

    def _measure_costs(self, look: Look, values: Mapping[str, str]) -> Work:
        length = whole_number(values, "context_length", 1, MOST_CONTEXT)
        yield self._costs_section(look, context_length=length)
        target, draft = models_of(look.trace, self._bench, self._offer)
        for measured in measure_costs(target, draft, context_length=length):
            if measured.costs is None:
                yield self._costs_section(look, context_length=length, running=measured)
            else:
                self._costs[_names(look.trace)] = measured.costs
        yield self._costs_section(look, context_length=length)

    # ---- other drafts -----------------------------------------------------------------------------------------------

    def _other_drafts(self, look: Look, result: OtherDrafts | None) -> Props:
        trace = look.trace if look.trace is not None and look.trace.steps else None
        k = 1 if trace is None else max(step.settings.k for step in trace.steps)
        return plan.other_drafts(trace, result, min(k, max(KS)))

    def _ask_drafts(self, look: Look, values: Mapping[str, str]) -> Work:
        target, own = models_of(look.trace, self._bench, self._offer)
        names = [name for _, name in draft_choices(target.name, own and own.name)]
        costs = {draft: costs for (name, draft), costs in self._costs.items() if name == target.name and draft}
        loaded = [_loaded(self._bench, name) for name in names]
        for result in other_drafts(look.trace, target, loaded, costs=costs):
            yield self._other_drafts(look, result)

    # ---- why is it slow? --------------------------------------------------------------------------------------------

    def _why_slow(self, look: Look, running: Speed | None = None) -> Props:
        trace = look.trace
        if trace is None or not trace.steps:
            return plan.why_slow(None)
        costs, speed = self._known_costs(trace), self._known_speed(trace)
        known = {"has_run": True, "has_costs": costs is not None, "has_speed": speed is not None, "running": running}
        if costs is None or speed is None:
            return plan.why_slow(None, **known)
        rates = {"tokens_per_s": speed.tokens_per_s, "baseline_tokens_per_s": speed.baseline_tokens_per_s}
        try:
            return plan.why_slow(why_slow(trace, costs, **rates), **known)
        except SpecvizError as refusal:
            return plan.why_slow(None, refusal=str(refusal), **known)

    def _measure_speed(self, look: Look, values: Mapping[str, str]) -> Work:
        models_of(look.trace, self._bench, self._offer)
        for speed in measuring(request_of(look.trace), self._bench):
            if speed.done == speed.total:
                self._speeds[_settings_key(look.trace)] = speed
            yield self._why_slow(look, None if speed.done == speed.total else speed)


def _tool_names(look: Look) -> Props:
    if look.trace is None or not look.trace.steps:
        return plan.tool_names((), {})
    return plan.tool_names(tool_numbers(look.trace), {tool: export(look.trace, tool) for tool in (VLLM, SGLANG)})


def _loaded(bench: Workbench, name: str):
    """The model, or its name where it cannot be loaded: then the table says why."""
    try:
        return bench.library.load(name)
    except SpecvizError:
        return name


def _text(look: Look) -> Key:
    """What changes with the text: a run that goes on has another one."""
    trace = look.trace
    return (look.place.run,) if trace is None else (look.place.run, len(trace.steps), len(trace.scores))


def _pair(look: Look) -> Key:
    return () if look.trace is None or not look.trace.steps else _names(look.trace)


def _names(trace: Trace) -> tuple[str, str | None]:
    settings = trace.steps[-1].settings
    return settings.target, settings.draft_model


def _settings_key(trace: Trace) -> Key:
    """What a measured speed is the speed of."""
    return (trace.header.prompt.text, request_of(trace))


def _middle(trace: Trace) -> int:
    """The context in the middle of the run, as far as the target leaves room."""
    if not trace.steps:
        return 128
    limit = trace.models[-1].target.context_limit
    middle = (trace.steps[0].context_length + trace.steps[-1].context_length) // 2
    return max(1, middle if limit is None else min(middle, limit - ROOM))
