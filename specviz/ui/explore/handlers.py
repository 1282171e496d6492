"""The callbacks of the page's events: they unpack, call the session or a view, and return what the stage shows.

Anyone who reaches the server can call every function here, whatever its visibility. So names are looked up, and numbers
go through `Request.validate` or `Controls.set`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from msgspec import UNSET

from specviz.bench.speed import NUM_TOKENS, measure_in_rounds
from specviz.decoding.turns import Asker
from specviz.drafters import METHODS, find_method
from specviz.drafters.method import Method
from specviz.errors import SpecvizError
from specviz.models.catalog import MODELS, without_format
from specviz.models.chat import as_messages, chat_switches, has_chat_form, render_chat
from specviz.request import Request, field_of, read_options
from specviz.session.run import Status, open_run
from specviz.session.workbench import Workbench
from specviz.settings import settings
from specviz.trace import Trace
from specviz.trace.shipped import WELCOME
from specviz.ui.choices import (
    Offer,
    choose_draft,
    choose_models,
    choose_rule,
    number_or_none,
    rule_to_explain,
)
from specviz.ui.components import OPTIONS_INFO, prompt_label
from specviz.ui.events import (
    as_fields,
    callback,
    data_of,
    errors_on_page,
    in_one_turn,
    text_or_none,
    warn,
)
from specviz.ui.explore.form import Form, update_drafts, update_models, update_rules
from specviz.ui.explore.showcase import showcase
from specviz.ui.explore.standing import (
    about_fields,
    not_followed,
    request_shown,
    standing_props,
    usable_rule,
)
from specviz.ui.measuring import Measurement
from specviz.ui.registry import Registry
from specviz.ui.reports.trace_models import lacks, methods_for, request_of
from specviz.ui.view import View, increments, measured, view_of, view_sent, what_goes_on
from specviz.ui.visitors import asking_visitor, runner_of, visitor_of
from specviz.views.blocks import dump
from specviz.views.explore.every_k import every_k as plan
from specviz.views.explore.help import method_help
from specviz.views.explore.message import EveryK, NoOtherK, Opening
from specviz.views.explore.opening import RUN_IT, telling_step
from specviz.views.explore.opening import opening as tell
from specviz.views.explore.panels import MethodShowcase, StandingRun
from specviz.views.learn.lesson import SHIPPED
from specviz.views.words import label

SUPERSEDE_S = 5.0
"""Seconds that a new run waits for the old one to end its step."""
GONE = "The run shown here is gone: the server restarted or dropped it. Finished runs are in the library."
RUN_OTHERS = "Run {target} instead"
INSTEAD = "{}. {} with {} runs here, on the first prompt."
RUN_ID = re.compile(r"[0-9a-f]{32}")


class Handlers:
    """The callbacks of one page, over one registry and one workbench."""

    def __init__(
        self,
        registry: Registry,
        bench: Workbench,
        form: Form,
        offer: Offer,
        welcome: Trace | None = None,
    ) -> None:
        """Stores what the callbacks use. welcome: the recorded run that a first visit sees."""
        self._registry = registry
        self._welcome = None if welcome is None else view_of(welcome, f"{SHIPPED}{WELCOME}")
        self._bench = bench
        self.form = form
        self._offer = offer

    def _current(self, request: gr.Request) -> View | None:
        return self._registry.current(request.session_hash)

    def _live_view(self, request: gr.Request) -> View | None:
        """The session's current view while its run is not over."""
        view = self._current(request)
        return view if view is not None and view.is_live else None

    def _start(self, request: gr.Request, values: Sequence[Any]) -> View:
        """A new current view. The previous run has left the stage when this returns, so that its words come first."""
        run_request, pace = self.form.request(values)
        method = METHODS[run_request.method]
        missing = lacks(method, run_request.target, self._bench.pool) if method.target_has else ""
        if missing:
            raise SpecvizError(missing)  # before the previous run leaves the stage
        self._registry.require_place(request.session_hash, settings().max_runs)
        if previous := self._current(request):
            previous.stop()
            previous.idle.wait(SUPERSEDE_S)
        asker = runner_of(request.session_hash)
        run = open_run(run_request, bench=self._bench, pace=pace, may_cut=True, asker=asker)
        return self._registry.add_run(request.session_hash, run)

    def _begin(
        self, request: gr.Request, values: Sequence[Any], max_steps: int | None = None
    ) -> Iterator[str]:
        """The increments of a new run. If it fails before its first token, the stage stays as it was."""
        previous = self._current(request)
        view = self._start(request, values)
        try:
            yield from increments(view, warn, max_steps)
        except SpecvizError as error:
            if previous and view.trace.header is None and self._current(request) is view:
                self._registry.show(previous, request.session_hash)
                if previous.run:  # it was stopped for the new one: its end is still to be read
                    list(increments(previous, warn))
                yield previous.whole(begin="back", status=Status("finished", str(error)))
            raise

    @callback
    def run(self, request: gr.Request, *values: Any) -> Iterator[str]:
        yield from self._begin(request, values)

    def _pause_live(self, request: gr.Request) -> View | None:
        """The session's unfinished run, paused, with no stream from it. Raises SpecvizError, once, for a lost run."""
        if self._current(request) is None and self._registry.has_lost(request.session_hash):
            raise SpecvizError(GONE)
        if view := self._live_view(request):
            view.run.pause()
            view.idle.wait(SUPERSEDE_S)
        return view if view and view.is_live else None

    @callback
    def step(self, request: gr.Request, *values: Any) -> Iterator[str]:
        """Makes one real step: of the unfinished run, or the first one of a new run."""
        view = self._pause_live(request)
        if view is None:
            yield from self._begin(request, values, max_steps=1)
        else:
            yield from increments(view, warn, max_steps=1)

    @callback
    def resume(self, request: gr.Request) -> Iterator[str]:
        view = self._pause_live(request)
        if view is None:
            raise SpecvizError("no run is paused: press Run")
        yield from increments(view, warn)

    def pause(self, request: gr.Request) -> None:
        if view := self._live_view(request):
            view.run.pause()

    def cancel(self, request: gr.Request) -> None:
        """Stops waiting for a model that is being loaded."""
        if view := self._live_view(request):
            view.run.cancel()

    def stop(self, request: gr.Request) -> Any:
        """Stops the run. A running one reports its end in its own stream; for a paused one this reports it."""
        view = self._live_view(request)
        if view is None or not view.stop():
            return gr.skip()
        view.idle.wait(SUPERSEDE_S)
        last = gr.skip()
        for increment in increments(view, warn):
            last = increment
        return last

    @callback
    def arrive(self, request: gr.Request, event: gr.EventData) -> Iterator[str]:
        """Shows a page that was just opened the recorded run that its address names, else the run that it had before.
        At a first visit it shows a recorded run."""
        browser = data_of(event)
        session = request.session_hash
        if name := text_or_none(browser.get("recorded")):
            yield self._registry.show(self._registry.find_recorded(name), session).whole()
        elif view := self._registry.adopt(session, browser.get("run")):
            yield view.whole()
            yield from what_goes_on(view, warn)
        elif self._welcome and browser.get("isFirst") is True and not self._current(request):
            yield self._registry.show(self._welcome, session).whole(begin="opening")
        elif browser.get("isOwn") is True and self._has_let_go(browser.get("run")):
            warn(GONE)

    def _has_let_go(self, run: Any) -> bool:
        """Whether this is the id of a run that the registry does not have."""
        if not isinstance(run, str) or not RUN_ID.fullmatch(run):
            return False
        return self._registry.get(run) is None

    def restore(self, event: gr.EventData) -> list[Any]:
        """The fields as this browser remembers them; as they are if that cannot be used any more."""
        try:
            return self.form.restore(data_of(event).get("fields"), self._offer)
        except SpecvizError:
            return [gr.skip() for _ in self.form.names]

    def live(self, name: str) -> Callable[..., None]:
        """The callback that sets one control of the run in progress; it takes effect from the next step."""

        @callback
        def change(request: gr.Request, value: Any) -> None:
            if view := self._live_view(request):
                typed = number_or_none(value) if name in Request.DRAFT_SAMPLING else value
                view.run.controls.set(field_of(name), typed)

        return change

    def live_choice(self, name: str) -> Callable[..., Any]:
        """The callback that sets one list of the run in progress; it takes effect from the next step.

        A choice that cannot be used brings a warning, and the list shows the value in force again. After a choice that
        can be used the page stays as it is.
        """

        def change(request: gr.Request, value: Any, last_rule: Any = None) -> Any:
            view = self._live_view(request)
            if view is None:
                return gr.skip()
            with errors_on_page(mildly=True):
                changes = self._changes(view, name, value, last_rule)
                self._offer_typed(view, changes)
                view.run.controls.change(**changes)
            in_force = getattr(view.run.controls.settings, name)
            return gr.skip() if in_force == value else in_force

        return change

    def _changes(self, view: View, name: str, value: Any, last_rule: Any) -> dict[str, Any]:
        """The settings that a choice changes. A method brings a rule that can judge its drafts and a draft model that
        it can use; a target brings a draft model that suits it.

        last_rule: the rule that was chosen last, under any method.
        """
        in_force = view.run.controls.settings
        if name == "target":
            draft = in_force.draft
            if draft:
                draft = self._suiting(value, draft, METHODS[in_force.method])
            return {"target": value, "draft": draft}
        if name != "method":
            return {name: value}
        method = find_method(value)
        draft = choose_draft(method, in_force.target, in_force.draft)
        rule = choose_rule(method, text_or_none(last_rule) or in_force.rule)
        return {"method": value, "rule": rule, "draft": draft}

    def _offer_typed(self, view: View, changes: Mapping[str, Any]) -> None:
        """Lets a model that was typed be chosen where any model may; loading it shows whether it can be used."""
        for kind, name in changes.items():
            if kind in ("target", "draft") and isinstance(name, str) and self._offer.allows(name):
                view.run.controls.offer(kind, name)

    def list_settings(self, request: gr.Request) -> Any:
        """The values of the lists after a run could not adopt a change, and the rule that counts as chosen last."""
        view = self._live_view(request)
        if view is None:
            return tuple(gr.skip() for _ in range(5))
        in_force = view.run.controls.settings
        method = METHODS[in_force.method].under(in_force.params)
        drafts = update_drafts(self._offer, in_force.target, method, in_force.draft)
        rules = update_rules(method, choose_rule(method, in_force.rule))
        return drafts, method.name, rules, in_force.target, in_force.rule

    @callback
    def otherwise(self, request: gr.Request, event: gr.EventData) -> list[Any]:
        """Updates that put the run on the stage, as it was asked for, into the fields, with another K or prompt."""
        view = self._current(request)
        if view is None or view.trace.header is None:
            raise SpecvizError(GONE)
        values = dict(view.trace.header.request)
        asked = data_of(event)
        values |= {name: asked[name] for name in ("k", "prompt") if name in asked}
        values["time_limit_s"] = None
        run_request = Request.from_dict(values)
        if not run_request.prompt:
            raise SpecvizError(
                "this run's prompt was given as token ids: it can be run again from Python only"
            )
        return self.form.fill(run_request, self._offer)

    def as_made(self, request: gr.Request) -> list[Any]:
        """Updates that put the run on the stage into the fields; none where the bar cannot say how it was made."""
        if view := self._current(request):
            with suppress(SpecvizError):
                return self.form.show(usable_rule(request_shown(view.trace)), self._offer)
        return [gr.skip() for _ in self.form.names]

    def as_at_first(self) -> list[Any]:
        """Updates that put the page's first request into the fields."""
        return self.form.fill(self._offer.first, self._offer)

    @callback
    def open_trace(self, request: gr.Request, content: bytes | None) -> str:
        """Shows a saved trace on the stage. The views are those of a run, and no model is needed."""
        if content is None:
            raise SpecvizError("no file was sent: choose one that ends in .jsonl or .jsonl.gz")
        return self._registry.show(view_sent(content), request.session_hash).increment()

    @callback
    def measure(self, request: gr.Request) -> Iterator[str]:
        """Measures the speed of the run's last settings against one target call per token, and reports its progress.
        A measurement that goes on already is watched further."""
        view = self._current(request)
        if view is None or view.run is None or not view.trace.steps:
            raise SpecvizError("nothing to measure yet: press Run first")
        if not view.is_measured:
            session = request.session_hash
            self._registry.require_place(session, settings().max_runs)
            most = min(NUM_TOKENS, len(view.trace.tokens))
            work = measure_in_rounds(request_of(view.trace), self._bench, most)
            view.measurement = Measurement(view.feed, work, self._bench, visitor_of(session))
        yield from measured(view)

    def stop_measuring(self, request: gr.Request) -> None:
        if view := self._current(request):
            view.stop_measuring()

    @callback
    def choose_prompt(self, target: str, event: gr.EventData) -> Any:
        """The text of a ready prompt, and whether the chat template is used for it."""
        chosen = data_of(event)
        kind = str(chosen.get("kind"))
        title = str(chosen.get("title"))
        text = self._offer.prompts.get(kind, {}).get(title)
        if text is None:
            return gr.skip(), gr.skip()
        is_dialogue = kind in self._offer.dialogues
        if not is_dialogue or self._can_chat(target):
            return text, is_dialogue
        warn(f"{target} has no chat template: it reads the conversation as plain lines")
        return text, False

    def _can_chat(self, target: str) -> bool:
        """Whether the target has a chat template. True as well for an unknown model that is not in memory: its run
        would say."""
        pool = self._bench.pool
        known = MODELS.get(without_format(target))
        if known and known.is_bundled:
            return known.chats
        return target not in pool.loaded_names() or has_chat_form(pool.load(target).tokenizer)

    @callback
    def render_prompt(self, prompt: str, target: str, chat: bool, typed: str) -> tuple[Any, Any]:
        """The prompt as the target reads it and the options of its chat template, both shown while the template is
        used.

        A model that is not in memory may have options. A target without a template says so at Run only: fields that
        are filled one after the other pair any target with any prompt.
        """
        # a look at a model must not fetch it
        if not chat or target not in self._bench.pool.loaded_names():
            return gr.update(visible=False), gr.update(visible=bool(chat), info=OPTIONS_INFO)
        tokenizer = self._bench.pool.load(target).tokenizer
        if not has_chat_form(tokenizer):
            return gr.update(visible=False), gr.update(value="", visible=False)
        switches = chat_switches(tokenizer)
        options = read_options(str(typed or "").splitlines()) if switches else {}
        shown = gr.update(
            value=render_chat(tokenizer, as_messages(prompt), options),
            visible=True,
        )
        if not switches:
            return shown, gr.update(value="", visible=False)
        info = f"{OPTIONS_INFO} This template has: {', '.join(switches)}."
        return shown, gr.update(visible=True, info=info)

    @callback
    def fit_target(
        self, target: Any, draft: Any, method: Any, request: gr.Request = None
    ) -> list[Any]:
        """The draft models that suit this target, and its methods. The chosen draft model stays if it suits, if it was
        typed, or if the run on the stage has this very pair."""
        known = find_method(method)
        view = None if request is None else self._current(request)
        last = view.trace.steps[-1].settings if view and view.trace.steps else None
        is_pair = last is not None and (target, draft) == (last.target, last.draft_model)
        chosen = draft if is_pair else self._suiting(str(target), draft, known)
        drafts = update_drafts(self._offer, str(target), known, chosen)
        return [drafts, self._methods(str(target), method)]

    def _suiting(self, target: str, draft: Any, method: Method) -> str | None:
        """The draft model if it may stay with this target, else the first one that suits."""
        names = [name for _, name in self._offer.drafts_for(target, method)]
        if self._offer.may_stay(draft, names):
            return draft
        return next(iter(names), None)

    @callback
    def fit_chat(self, request: gr.Request, target: Any, prompt: Any) -> Any:
        """Whether the chat template is used, and a ready prompt that suits the target.

        It is on for a chat model on offer, off for the bundled ones. Else both stay as they were. During a run they
        stay as well: its prompt is fixed.
        """
        known = MODELS.get(without_format(str(target)))
        if not known or not (known.chats or known.is_bundled) or self._live_view(request):
            return gr.skip(), gr.skip()
        suiting = self._offer.suit(prompt, answers=known.chats)
        return known.chats, gr.skip() if suiting is None else suiting

    @callback
    def fit_prompts(self, target: Any) -> Any:
        """The label of the prompt's field, and the ready prompts that the target can use."""
        answers = self._can_chat(str(target))
        kinds = self._offer.kinds_for(answers=answers)
        return gr.update(label=prompt_label(answers=answers)), json.dumps(kinds)

    def _methods(self, target: str, chosen: Any) -> Any:
        return gr.update(choices=list(methods_for(target, self._bench.pool, chosen)))

    def fit_models(self, target: Any, *values: Any) -> list[Any]:
        """Updates of the methods' own lists of models for this target; what is chosen stays if it suits."""
        params = self.form.model_params().values()
        updates = []
        for param, value in zip(params, values, strict=True):
            chosen = choose_models(self._offer, param, str(target), value)
            updates.append(update_models(param, str(target), chosen))
        return updates

    @callback
    def fit_method(
        self, name: Any, rule: Any, draft: Any, target: Any, *governors: Any
    ) -> list[Any]:
        """Shows the fields that count under this method, and lists the methods that this target is made for."""
        target = str(target)
        method = self.form.method(name, *governors)
        fit = choose_draft(method, target, text_or_none(draft))
        drafts = update_drafts(self._offer, target, method, fit, visible="draft" in method.roles)
        k = gr.update(visible=method.sets_k)
        rules = update_rules(method, choose_rule(method, rule))
        names = [known.name for known in METHODS.values() if known.params]
        groups = [gr.update(visible=known == name) for known in names]
        return [drafts, k, rules, *groups, self._methods(target, name)]

    @callback
    def explain(self, name: Any, rule: Any, target: Any, *governors: Any) -> str:
        """The help for this method under this rule and for this target, as JSON."""
        method = self.form.method(name, *governors)
        missing = lacks(method, str(target), self._bench.pool)
        explained = rule_to_explain(method, rule)
        step_ms = self._bench.pool.step_ms.get((method.name, str(target)))
        words = method_help(method, explained, has_k=method.sets_k, lacks=missing, step_ms=step_ms)
        return dump(words)

    @callback
    def offer_showcase(self, name: Any, target: Any, prompt: Any) -> str:
        """What shows this method best, as JSON; null where it is asked already, or where any prompt does."""
        case = showcase(find_method(name), str(target), self._bench.pool)
        if case is None or (case.request.target, case.request.prompt) == (target, prompt):
            return dump(None)
        return dump(MethodShowcase(case.words, str(name), str(target)))

    @callback
    def as_showcase(self, event: gr.EventData) -> list[Any]:
        """Updates that put the showcase of a method into the fields."""
        asked = data_of(event)
        case = showcase(
            find_method(asked.get("method")), str(asked.get("target")), self._bench.pool
        )
        if case is None:
            raise SpecvizError("any prompt shows this method: press Run")
        return self.form.fill(case.request, self._offer)


def increments_since(registry: Registry) -> Callable[[Any], str | None]:
    """The function that the stage calls for what it has missed: {"run", "from"} -> an increment, or None."""

    def since(data: Any) -> str | None:
        fields = as_fields(data)
        view = registry.get(fields.get("run"))
        first = fields.get("from")
        if view is None or type(first) is not int or not 0 <= first <= len(view.feed):
            return None
        return view.since(first)

    return since


def opening_of(
    registry: Registry, offer: Offer, bench: Workbench
) -> Callable[[Any], Opening | None]:
    """The function that gives one step as the opening shows it: {"run", "step"} -> its beats, or None where there is
    no such step. Without a step it takes the most telling one."""

    def opening(data: Any) -> Opening | None:
        fields = as_fields(data)
        view = registry.get(fields.get("run"))
        if view is None or not view.trace.steps:
            return None
        step = fields.get("step")
        if step is None:
            step = telling_step(view.trace)
        if type(step) is not int or not 0 <= step < len(view.trace.steps):
            return None
        if view.trace.steps[step].settings.is_foreign:
            return None
        return tell(view.trace, step, *_run_offered(view.trace, offer, bench))

    return opening


def _run_offered(trace: Trace, offer: Offer, bench: Workbench) -> tuple[str, str]:
    """The words of the button that makes a run like this one, and what is to be known before it is pressed: without
    its models here, the page's first models take their place."""
    button = standing_props(trace, offer, bench.pool)
    if not button.missing:
        return RUN_IT, ""
    target, draft = (
        label(Path(name or "").name) for name in (offer.first.target, offer.first.draft)
    )
    return RUN_OTHERS.format(target=target), INSTEAD.format(button.words, target, draft)


def standing_of(
    registry: Registry, offer: Offer, bench: Workbench
) -> Callable[[Any], StandingRun | None]:
    """The function that tells what the bar says of a run that stands: {"run"} -> its words, or None for an unknown
    run. For a run that is over it names the settings that came too late for any step, with those that the last step
    had."""

    def standing(data: Any) -> StandingRun | None:
        view = registry.get(as_fields(data).get("run"))
        if view is None:
            return None
        button = standing_props(view.trace, offer, bench.pool)
        made = UNSET
        if view.run is not None and view.trace.footer is not None:
            made = not_followed(view.trace, view.run.controls.settings, bench.pool)
        return StandingRun(
            button.words, button.missing, button.needs, about=about_fields(), made=made
        )

    return standing


def every_k_of(registry: Registry, bench: Workbench) -> Callable[..., EveryK | NoOtherK | None]:
    """The function that tells how every K would have done on a run's text: {"run"}, or None for a run that is
    unknown or not over. Heads, modules and layers of a run made here read the text again while its target is loaded."""

    def every_k(data: Any, request: gr.Request = None) -> EveryK | NoOtherK | None:
        view = registry.get(as_fields(data).get("run"))
        if view is None or view.trace.footer is None:
            return None
        if view.reader in bench.pool.loaded_names():
            with suppress(SpecvizError):
                return read_again(view, asking_visitor(request))
        return plan(view.trace)  # as far as the records tell

    def read_again(view: View, visitor: str) -> EveryK | NoOtherK:
        with registry.job(visitor, settings().max_runs):
            work = partial(plan, view.trace, view.reader)
            return in_one_turn(bench, work, Asker(visitor))

    return every_k
