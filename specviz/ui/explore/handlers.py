"""What the page's events do: unpack, call the session or a view, return what the stage shows.

Every function here can be called by anyone who reaches the server, whatever its visibility: names are looked up and
numbers go through `Request.validate` or `Controls.set`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gradio as gr

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
from specviz.ui.events import as_fields, callback, data_of, errors_on_page, text_or_none, warn
from specviz.ui.explore.form import Form, update_drafts, update_models, update_rules
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
from specviz.ui.visitors import asking_visitor, visitor_of
from specviz.views.explore.every_k import every_k as plan
from specviz.views.explore.help import method_help
from specviz.views.explore.opening import opening as tell
from specviz.views.explore.opening import telling_step
from specviz.views.learn.lesson import SHIPPED

SUPERSEDE_S = 5.0
"""How long a new run waits for the end of the step that the old one is in."""
GONE = "The run shown here is gone: the server restarted or dropped it. Finished runs are in the library."
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
        """welcome: the recorded run that a first visit sees."""
        self._registry = registry
        self._welcome = welcome and view_of(welcome, f"{SHIPPED}{WELCOME}")
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
        wanted, pace = self.form.request(values)
        method = METHODS[wanted.method]
        if method.target_has and (missing := lacks(method, wanted.target, self._bench.pool)):
            raise SpecvizError(missing)  # before the previous run leaves the stage
        self._registry.require_place(request.session_hash, settings().max_runs)
        if previous := self._current(request):
            previous.stop()
            previous.idle.wait(SUPERSEDE_S)
        asker = Asker(visitor_of(request.session_hash))
        run = open_run(wanted, bench=self._bench, pace=pace, may_cut=True, asker=asker)
        return self._registry.add_run(request.session_hash, run)

    def _begin(
        self, request: gr.Request, values: Sequence[Any], max_steps: int | None = None
    ) -> Iterator[str]:
        """The increments of a new run; one that fails before its first token leaves the stage as it was."""
        previous, view = self._current(request), self._start(request, values)
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
        """The session's unfinished run, paused, with no stream from it, if any. SpecvizError, once, for a lost one."""
        if self._current(request) is None and self._registry.has_lost(request.session_hash):
            raise SpecvizError(GONE)
        if view := self._live_view(request):
            view.run.pause()
            view.idle.wait(SUPERSEDE_S)
        return view if view and view.is_live else None

    @callback
    def step(self, request: gr.Request, *values: Any) -> Iterator[str]:
        """One real step: of the unfinished run, or the first one of a new run."""
        view = self._pause_live(request)
        yield from (
            increments(view, warn, max_steps=1)
            if view
            else self._begin(request, values, max_steps=1)
        )

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
        """Stop waiting for a model that is being loaded."""
        if view := self._live_view(request):
            view.run.cancel()

    def stop(self, request: gr.Request) -> Any:
        """A running run reports its end in its own stream; for a paused one this reports it."""
        view = self._live_view(request)
        if view is None or not view.stop():
            return gr.skip()
        view.idle.wait(SUPERSEDE_S)
        return [gr.skip(), *increments(view, warn)][-1]

    @callback
    def arrive(self, request: gr.Request, event: gr.EventData) -> Iterator[str]:
        """What a page that was just opened shows: the recorded run that its address names, the run that it had before,
        at a first visit a recorded one."""
        asked = data_of(event)
        if name := text_or_none(asked.get("recorded")):
            yield self._registry.show(
                self._registry.find_recorded(name), request.session_hash
            ).whole()
        elif view := self._registry.adopt(request.session_hash, asked.get("run")):
            yield view.whole()
            yield from what_goes_on(view, warn)
        elif self._welcome and asked.get("isFirst") is True and not self._current(request):
            yield self._registry.show(self._welcome, request.session_hash).whole(begin="opening")
        elif asked.get("isOwn") is True and self._has_let_go(asked.get("run")):
            warn(GONE)

    def _has_let_go(self, run: Any) -> bool:
        """Whether this is the id of a run that the registry does not have."""
        return (
            isinstance(run, str)
            and RUN_ID.fullmatch(run) is not None
            and self._registry.get(run) is None
        )

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
        """As `live` for a list: of a bad choice it warns and shows the one in force, to a good one it says nothing."""

        def change(request: gr.Request, value: Any, wanted: Any = None) -> Any:
            now = value
            if view := self._live_view(request):
                with errors_on_page(mildly=True):
                    changes = self._changes(view, name, value, wanted)
                    self._offer_typed(view, changes)
                    view.run.controls.change(**changes)
                now = getattr(view.run.controls.settings, name)
            return gr.skip() if now == value else now

        return change

    def _changes(self, view: View, name: str, value: Any, wanted: Any) -> dict[str, Any]:
        """What a choice changes: a method brings a rule that can judge its drafts and a draft model that it can use, a
        target one that suits it. wanted: the rule that was chosen last, under whatever method."""
        now = view.run.controls.settings
        if name == "target":
            return {
                "target": value,
                "draft": now.draft and self._suiting(value, now.draft, METHODS[now.method]),
            }
        if name != "method":
            return {name: value}
        method = find_method(value)
        draft = choose_draft(method, now.target, now.draft)
        return {
            "method": value,
            "rule": choose_rule(method, text_or_none(wanted) or now.rule),
            "draft": draft,
        }

    def _offer_typed(self, view: View, changes: Mapping[str, Any]) -> None:
        """A model that was typed may be chosen where any may; loading it shows whether it can be used."""
        for kind, name in changes.items():
            if kind in ("target", "draft") and isinstance(name, str) and self._offer.allows(name):
                view.run.controls.offer(kind, name)

    def list_settings(self, request: gr.Request) -> Any:
        """What the lists show after a run could not adopt a change, and the rule that counts as chosen last."""
        view = self._live_view(request)
        if view is None:
            return tuple(gr.skip() for _ in range(5))
        values = view.run.controls.settings
        method = METHODS[values.method].under(values.params)
        drafts = update_drafts(self._offer, values.target, method, values.draft)
        return (
            drafts,
            method.name,
            update_rules(method, choose_rule(method, values.rule)),
            values.target,
            values.rule,
        )

    @callback
    def with_k(self, request: gr.Request, event: gr.EventData) -> list[Any]:
        """Updates that put the run on the stage, as it was asked for, into the fields, with another K."""
        view = self._current(request)
        if view is None or view.trace.header is None:
            raise SpecvizError(GONE)
        asked = Request.from_dict(
            {**view.trace.header.request, "k": data_of(event).get("k"), "time_limit_s": None}
        )
        if not asked.prompt:
            raise SpecvizError(
                "this run's prompt was given as token ids: it can be run again from Python only"
            )
        return self.form.fill(asked, self._offer)

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
        """Show a saved trace on the stage; the views are those of a run, and no model is needed."""
        if content is None:
            raise SpecvizError("no file was sent: choose one that ends in .jsonl or .jsonl.gz")
        return self._registry.show(view_sent(content), request.session_hash).increment()

    @callback
    def measure(self, request: gr.Request) -> Iterator[str]:
        """Measures the speed of the settings this run has come to, against one target call per token, and tells how far
        that is; one that goes on already is gone on with."""
        view = self._current(request)
        if view is None or view.run is None or not view.trace.steps:
            raise SpecvizError("nothing to measure yet: press Run first")
        if not view.is_measured:
            self._registry.require_place(request.session_hash, settings().max_runs)
            most = min(NUM_TOKENS, len(view.trace.tokens))
            work = measure_in_rounds(request_of(view.trace), self._bench, most)
            view.measurement = Measurement(
                view.feed, work, self._bench, visitor_of(request.session_hash)
            )
        yield from measured(view)

    def stop_measuring(self, request: gr.Request) -> None:
        if view := self._current(request):
            view.stop_measuring()

    @callback
    def choose_prompt(self, target: str, event: gr.EventData) -> Any:
        """The text of a ready prompt, and whether the chat template is used for it."""
        asked = data_of(event)
        kind = str(asked.get("kind"))
        text = self._offer.prompts.get(kind, {}).get(str(asked.get("title")))
        if text is None:
            return gr.skip(), gr.skip()
        if kind not in self._offer.dialogues or self._can_chat(target):
            return text, kind in self._offer.dialogues
        warn(f"{target} has no chat template: it reads the conversation as plain lines")
        return text, False

    def _can_chat(self, target: str) -> bool:
        """True for a model that is not in memory, too; a run would say if it cannot."""
        pool = self._bench.pool
        known = MODELS.get(without_format(target))
        if known and known.is_bundled:
            return known.chats
        return target not in pool.loaded_names() or has_chat_form(pool.load(target).tokenizer)

    @callback
    def render_prompt(self, prompt: str, target: str, chat: bool, typed: str) -> tuple[Any, Any]:
        """The prompt as the target reads it and the options of the chat template, both shown while it is used. A model
        that is not in memory may have options; a target without a template tells so at Run, as fields that are filled
        one after the other pair any target with any prompt."""
        if (
            not chat or target not in self._bench.pool.loaded_names()
        ):  # looking at a model must not fetch it
            return gr.update(visible=False), gr.update(visible=bool(chat), info=OPTIONS_INFO)
        tokenizer = self._bench.pool.load(target).tokenizer
        if not has_chat_form(tokenizer):
            return gr.update(visible=False), gr.update(value="", visible=False)
        switches = chat_switches(tokenizer)
        options = read_options(str(typed or "").splitlines()) if switches else {}
        rendered = gr.update(
            value=render_chat(tokenizer, as_messages(prompt), options), visible=True
        )
        if not switches:
            return rendered, gr.update(value="", visible=False)
        return rendered, gr.update(
            visible=True, info=f"{OPTIONS_INFO} This template has: {', '.join(switches)}."
        )

    @callback
    def fit_target(
        self, target: Any, draft: Any, method: Any, request: gr.Request = None
    ) -> list[Any]:
        """The draft models that suit this target, the chosen one stays if it does, was typed, or if this very pair is
        that of the run on the stage; and its methods."""
        known, view = find_method(method), request and self._current(request)
        last = view.trace.steps[-1].settings if view and view.trace.steps else None
        is_pair = last is not None and (target, draft) == (last.target, last.draft_model)
        chosen = draft if is_pair else self._suiting(str(target), draft, known)
        return [
            update_drafts(self._offer, str(target), known, chosen),
            self._methods(str(target), method),
        ]

    def _suiting(self, target: str, draft: Any, method: Method) -> str | None:
        names = [name for _, name in self._offer.drafts_for(target, method)]
        return draft if self._offer.may_stay(draft, names) else next(iter(names), None)

    @callback
    def fit_chat(self, request: gr.Request, target: Any, prompt: Any) -> Any:
        """The chat template, and a ready prompt that suits: on for a chat model on offer, off for the bundled ones, and
        else as it was, as during a run, whose prompt is written."""
        known = MODELS.get(without_format(str(target)))
        if not known or not (known.chats or known.is_bundled) or self._live_view(request):
            return gr.skip(), gr.skip()
        suiting = self._offer.suit(prompt, answers=known.chats)
        return known.chats, gr.skip() if suiting is None else suiting

    @callback
    def fit_prompts(self, target: Any) -> Any:
        """What the prompt's field asks for, and the ready prompts that the target can use."""
        answers = self._can_chat(str(target))
        return gr.update(label=prompt_label(answers=answers)), json.dumps(
            self._offer.kinds_for(answers=answers)
        )

    def _methods(self, target: str, chosen: Any) -> Any:
        return gr.update(choices=list(methods_for(target, self._bench.pool, chosen)))

    def fit_models(self, target: Any, *values: Any) -> list[Any]:
        """What the methods' own lists of models offer for this target; what is chosen stays if it suits."""
        pairs = zip(self.form.model_params().values(), values, strict=True)
        offer, name = self._offer, str(target)
        return [
            update_models(param, name, choose_models(offer, param, name, value))
            for param, value in pairs
        ]

    @callback
    def fit_method(
        self, name: Any, rule: Any, draft: Any, target: Any, *governors: Any
    ) -> list[Any]:
        """Shows the fields that count under this method, and lists the methods that this target is made for."""
        method, target = self.form.method(name, *governors), str(target)
        fit = choose_draft(method, target, text_or_none(draft))
        drafts = update_drafts(self._offer, target, method, fit, visible="draft" in method.roles)
        rules = update_rules(method, choose_rule(method, rule))
        own = [gr.update(visible=name == other) for other, each in METHODS.items() if each.params]
        return [drafts, gr.update(visible=method.sets_k), rules, *own, self._methods(target, name)]

    @callback
    def explain(self, name: Any, rule: Any, target: Any, *governors: Any) -> str:
        """What the help panel says of this method under this rule for this target."""
        method = self.form.method(name, *governors)
        missing = lacks(method, str(target), self._bench.pool)
        return json.dumps(
            method_help(method, rule_to_explain(method, rule), has_k=method.sets_k, lacks=missing)
        )


def increments_since(registry: Registry) -> Callable[[Any], dict[str, Any] | None]:
    """The stage's pull for what it has missed: {"run", "from"} -> an increment, or None for what it may not have."""

    def since(data: Any) -> dict[str, Any] | None:
        asked = as_fields(data)
        view, first = registry.get(asked.get("run")), asked.get("from")
        if view is None or type(first) is not int or not 0 <= first <= len(view.feed):
            return None
        return view.since(first)

    return since


def opening_of(registry: Registry) -> Callable[[Any], dict[str, Any] | None]:
    """One step as the opening shows it: {"run", "step"} -> props; without a step the most telling. None for others."""

    def opening(data: Any) -> dict[str, Any] | None:
        asked = as_fields(data)
        view = registry.get(asked.get("run"))
        steps = view.trace.steps if view is not None else []
        step = asked.get("step")
        if not steps or not (step is None or (type(step) is int and 0 <= step < len(steps))):
            return None
        return tell(view.trace, telling_step(view.trace) if step is None else step)

    return opening


def standing_of(
    registry: Registry, offer: Offer, bench: Workbench
) -> Callable[[Any], Mapping[str, Any] | None]:
    """What Run says while a run stands as it was made: {"run"} -> props; None for a run that is not known. With them
    comes what the browser must know of the fields to tell whether they say something else, and, of a run that is over,
    what it was made with in place of what it did not follow any more."""

    def standing(data: Any) -> Mapping[str, Any] | None:
        view = registry.get(as_fields(data).get("run"))
        if view is None:
            return None
        props = {**standing_props(view.trace, offer, bench.pool), "about": about_fields()}
        if view.run is None or view.trace.footer is None:
            return props
        return {
            **props,
            "made": not_followed(view.trace, view.run.controls.settings, bench.pool),
        }

    return standing


def every_k_of(registry: Registry, bench: Workbench) -> Callable[..., dict[str, Any] | None]:
    """What every K would have made of a run's text: {"run"} -> props; None for a run that is not known or not over. Of
    a run made here heads, modules and layers read the text again while its target is loaded."""

    def every_k(data: Any, request: gr.Request = None) -> dict[str, Any] | None:
        view = registry.get(as_fields(data).get("run"))
        if view is None or view.trace.footer is None:
            return None
        if view.reader in bench.pool.loaded_names():
            with suppress(SpecvizError):
                return read_again(view, asking_visitor(request))
        return plan(view.trace)  # as far as the records tell

    def read_again(view: View, visitor: str) -> dict[str, Any]:
        with registry.job(visitor, settings().max_runs):
            (made,) = bench.in_turns(
                (plan(view.trace, view.reader) for _ in range(1)), Asker(visitor)
            )
        return made

    return every_k
