"""Laws of the page's callbacks, called as Gradio calls them but without a server."""

from __future__ import annotations

import ast
import gzip
import inspect
import json
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from queue import Queue
from types import SimpleNamespace

import gradio as gr
import pytest

from specviz.analysis.rounds import SpeedComparison
from specviz.bench.speed import Measuring, Speed
from specviz.decoding.turns import FairQueue, Turn
from specviz.drafters import METHODS
from specviz.drafters.method import CHAIN_RULES, TREE_RULES
from specviz.drafters.params import Choice
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.models.catalog import CatalogHeads, CatalogModel
from specviz.models.pool import ModelPool
from specviz.request import MAX_TEMPERATURE, Request
from specviz.rules import RULES
from specviz.session import run as session
from specviz.session.run import Status
from specviz.session.workbench import Workbench, workbench
from specviz.trace import Footer, Step, Trace, dump_event
from specviz.trace.shipped import shipped_trace
from specviz.ui import choices, components
from specviz.ui.choices import list_methods, make_offer
from specviz.ui.events import FAILED, errors_on_page
from specviz.ui.explore import form, handlers
from specviz.ui.explore.handlers import Form, Handlers, every_k_of, increments_since, opening_of
from specviz.ui.page import build
from specviz.ui.registry import Registry
from specviz.ui.reports import trace_models
from specviz.ui.startup import first_visit
from specviz.ui.view import View, increments, view_of
from specviz.views.explore.every_k import every_k
from specviz.views.explore.feed import Feed
from specviz.views.explore.opening import telling_step
from tests.helpers import tiny_server, traces
from tests.helpers.hub_errors import hub_error
from tests.helpers.made_up_methods import EVERY_KIND, MADE_UP
from tests.helpers.waits import until

SESSION = SimpleNamespace(session_hash="one")
OTHER = SimpleNamespace(session_hash="two")
FIRST = {
    "prompt": "The fox said",
    "draft": "tiny-draft",
    "k": 4,
    "temperature": 1.0,
    "pace": "full",
    "method": "draft_model",
    "rule": "speculative_sampling",
    **{f"{name}.{param.name}": param.default for name, method in METHODS.items() for param in method.params},
    "target": "tiny-target",
    "top_p": 1.0,
    "min_p": 0.0,
    "top_k": 0,
    "draft_temperature": None,
    "draft_top_p": None,
    "draft_min_p": None,
    "draft_top_k": None,
    "max_new_tokens": 24,
    "stop": "",
    "seed": 0,
    "chat": False,
    "chat_options": "",
}
FORM = Form(tuple(FIRST))


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return tiny_server.tiny_library(tmp_path_factory.mktemp("models"))


@pytest.fixture
def registry():
    return Registry()


@pytest.fixture
def page(pool, registry):
    return Handlers(registry, Workbench(pool), FORM, tiny_server.tiny_offer())


def values(**changes):
    return tuple((FIRST | changes).values())


def beats(registry, pool):
    return opening_of(registry, tiny_server.tiny_offer(), Workbench(pool))


def messages(stream):
    return [json.loads(text) for text in stream]


def steps(said):
    return [step for message in said for step in message["steps"]]


def test_increments_follow_each_other_without_gap_or_overlap(page):
    said = messages(page.run(SESSION, *values()))
    cursor = 0
    for message in said:
        assert message["from"] == cursor
        cursor += len(message["steps"])
    assert said[-1]["done"] == cursor > 0


def test_no_head_comes_before_the_prompt_is_known(page):
    said = messages(page.run(SESSION, *values()))
    heads = [message["head"] for message in said if "head" in message]
    assert all(head["prompt"] == [[FIRST["prompt"], ""]] for head in heads)


def test_the_last_message_says_that_the_run_is_finished(page, registry):
    last = messages(page.run(SESSION, *values()))[-1]
    assert last["state"]["name"] == "finished"
    assert registry.current("one").trace.footer.reason in ("length", "eos")


def test_a_greedy_run_is_laid_beside_the_run_without_a_draft(page):
    plain = messages(page.run(SESSION, *values(temperature=0.0, method="none")))[-1]
    assert "a draft" not in plain["end"]["words"]
    drafted = messages(page.run(SESSION, *values(temperature=0.0, seed=3)))[-1]
    assert drafted["end"]["words"].endswith("same text as the run without a draft, as far as both go")
    drawn = messages(page.run(SESSION, *values()))[-1]
    assert "a draft" not in drawn["end"]["words"]


def test_pausing_ends_the_stream_and_resuming_goes_on_with_the_same_run(page, registry):
    streaming = page.run(SESSION, *values(pace="normal"))
    until_first_step(streaming)
    page.pause(SESSION)
    said = messages(streaming)
    assert said[-1]["state"]["name"] == "paused"
    run = registry.current("one").run
    page.live("pace")(SESSION, "full")
    assert messages(page.resume(SESSION))[-1]["run"] == run.id
    assert run.trace.footer is not None


def until_first_step(streaming):
    for text in streaming:
        if json.loads(text)["steps"]:
            return
    raise AssertionError("the run ended before its first step")


def test_step_makes_exactly_one_real_step_each_time(page, registry):
    first = messages(page.step(SESSION, *values()))
    second = messages(page.step(SESSION, *values()))
    assert (len(steps(first)), len(steps(second))) == (1, 1)
    assert first[-1]["state"]["name"] == second[-1]["state"]["name"] == "paused"
    assert first[-1]["run"] == second[-1]["run"]


def test_a_step_asked_for_during_a_step_belongs_to_the_same_run(page, registry):
    first = page.step(SESSION, *values())
    until_first_step(first)
    other = []
    thread = threading.Thread(target=lambda: other.extend(messages(page.step(SESSION, *values()))))
    thread.start()
    told = messages(first)
    thread.join(10)
    assert {message["run"] for message in told + other} == {registry.current("one").id}
    assert len(registry.current("one").trace.steps) == 2


def test_resuming_what_is_not_paused_is_said_in_words(page):
    with pytest.raises(gr.Error, match="press Run"):
        list(page.resume(SESSION))


def test_stopping_a_paused_run_finishes_it_on_the_stage(page, registry):
    list(page.step(SESSION, *values()))
    last = json.loads(page.stop(SESSION))
    assert last["state"]["name"] == "finished"
    assert registry.current("one").trace.footer.reason == "stopped"


def test_stopping_a_running_run_ends_it_before_its_next_step(page, registry):
    streaming = page.run(SESSION, *values(pace="normal"))
    until_first_step(streaming)
    page.stop(SESSION)
    assert len(steps(messages(streaming))) <= 1
    assert registry.current("one").trace.footer.reason == "stopped"


def left_in_the_middle(page, registry):
    """The view of a run whose tab was closed while it streamed."""
    streaming = page.run(SESSION, *values(pace="normal"))
    until_first_step(streaming)
    view = registry.current("one")
    streaming.close()
    registry.leave("one")
    return view


def left_while_paused(page, registry):
    list(page.step(SESSION, *values()))
    view = registry.current("one")
    registry.leave("one")
    return view


@pytest.mark.parametrize("left", [left_in_the_middle, left_while_paused])
def test_a_closed_tab_stops_its_run_after_the_grace_period_and_keeps_its_trace(page, registry, left):
    view = left(page, registry)
    assert view.is_live
    num_steps = len(view.trace.steps)
    view.grace_s = 0.1
    view.linger()  # the grace period begins anew, now a short one
    until(lambda: view.status == Status("finished"))
    assert len(view.trace.steps) == num_steps, "nobody watched, so nothing was computed"
    assert registry.get(view.id).trace.footer.reason == "stopped"
    assert json.loads(view.whole())["state"]["name"] == "finished"
    assert json.loads(view.whole())["end"]["reason"] == "stopped"


def test_a_tab_that_is_closed_while_its_run_waits_leaves_no_waiting_run(page, registry):
    holder = page._bench.engine.join()
    streaming = page.run(SESSION, *values())
    assert any(json.loads(text)["state"]["name"] == "queued" for text in streaming)
    streaming.close()
    view = registry.current("one")
    assert view.stop()
    assert json.loads(view.whole())["state"]["name"] == "finished"
    page._bench.engine.leave(holder)


def test_of_several_steps_in_a_turn_those_that_nobody_read_are_shown_too(page, registry, monkeypatch):
    monkeypatch.setattr(Turn, "is_over", False)
    monkeypatch.setattr(FairQueue, "num_waiting", 1)
    monkeypatch.setattr("specviz.ui.view.FLUSH_S", 0.0)  # else a quick run sends all its steps in one message
    streaming = page.run(SESSION, *values())
    until_first_step(streaming)
    streaming.close()
    view = registry.current("one")
    num_steps = len(view.trace.steps)
    assert num_steps > len(view.feed)
    assert view.stop()
    assert [step["index"] for step in json.loads(view.whole())["steps"]] == list(range(num_steps))


def told(**data):
    return SimpleNamespace(_data=data)


def arrived(page, who=OTHER, **data):
    return messages(page.arrive(who, told(**data)))


def test_a_reloaded_page_goes_on_with_its_run_and_no_step_is_lost(page, registry):
    view = left_in_the_middle(page, registry)
    view.run.controls.set("pace", "full")
    said = arrived(page, run=view.id)
    assert (said[0]["from"], "head" in said[0]) == (0, True)
    assert [step["index"] for step in steps(said)] == list(range(len(view.trace.steps)))
    assert view.trace.footer.reason in ("length", "eos")
    assert registry.current("two") is view


def test_a_page_whose_stream_broke_goes_on_with_its_own_run(page, registry):
    streaming = page.run(SESSION, *values(pace="normal"))
    until_first_step(streaming)
    view = registry.current("one")
    streaming.close()
    view.run.controls.set("pace", "full")
    said = arrived(page, SESSION, run=view.id)
    assert said[-1]["done"] == len(view.trace.steps)


def test_a_run_that_is_gone_on_with_is_not_stopped_for_having_been_left(page, registry):
    view = left_in_the_middle(page, registry)
    end = view._end
    streaming = increments(view, warn=print)
    next(streaming)
    assert end.finished.is_set(), "it will not come to that end"
    assert view._end is None
    assert not view.run.controls.read().stopped
    streaming.close()


def test_a_reloaded_page_finds_a_paused_run_paused(page, registry):
    view = left_while_paused(page, registry)
    end = view._end
    (message,) = arrived(page, run=view.id)
    assert (message["state"]["name"], len(message["steps"])) == ("paused", 1)
    assert end.finished.is_set(), "who came back is not stopped"
    assert (view._end, view.is_live) == (None, True)
    assert len(steps(messages(page.step(OTHER, *values())))) == 1


def test_a_reloaded_page_finds_a_finished_run(page, registry):
    list(page.run(SESSION, *values()))
    view = registry.current("one")
    registry.leave("one")
    (message,) = arrived(page, run=view.id)
    assert message["done"] == len(view.trace.steps) > 0


def test_a_page_never_takes_a_live_run_from_another(page, registry, monkeypatch):
    list(page.step(SESSION, *values()))
    view = registry.current("one")
    assert registry.adopt("two", view.id, patience_s=0.1) is None
    assert registry.current("two") is None
    assert registry.current("one") is view


def test_a_page_that_has_begun_something_keeps_it(page, registry):
    list(page.run(SESSION, *values()))
    list(page.run(OTHER, *values()))
    own = registry.current("two")
    assert arrived(page, run=registry.current("one").id) == []
    assert registry.current("two") is own


@pytest.mark.parametrize("data", [{}, {"run": "0" * 32}, {"run": None, "isFirst": True}, {"run": [1]}, {"isFirst": 1}])
def test_what_is_not_known_is_forgotten_silently(page, data):
    assert arrived(page, **data) == []


def test_a_first_visit_opens_with_one_step_of_the_recorded_run_and_starts_no_run(pool, registry):
    bench = Workbench(pool)
    page = Handlers(registry, bench, FORM, tiny_server.tiny_offer(), traces.chain())
    first, second = (arrived(page, who, isFirst=True)[0] for who in (SESSION, OTHER))
    assert first["opening"] is True
    assert first["head"]["recorded"] is True
    assert first == second, "one view for all"
    assert registry.current("one").run is None
    assert arrived(page, SimpleNamespace(session_hash="three"), isFirst=False) == []


def test_a_first_visit_does_not_replace_what_has_begun_meanwhile(pool, registry):
    page = Handlers(registry, Workbench(pool), FORM, tiny_server.tiny_offer(), traces.chain())
    list(page.step(SESSION, *values()))
    assert arrived(page, SESSION, isFirst=True) == []


def test_a_shipped_recorded_run_is_the_first_request(capsys):
    """A first visit sees the run that the page makes first where its real model is here."""
    recorded, first = first_visit(), make_offer("smollm2").first
    assert capsys.readouterr().out == ""
    changed = {"rule": None, "params": {}}
    assert Request.from_dict(recorded.header.request | changed) == first
    assert recorded.footer.reason in ("length", "eos")


def test_a_recorded_run_that_cannot_be_read_is_left_out(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SPECVIZ_ASSETS", str(tmp_path))
    assert first_visit() is None
    assert "no recorded run" in capsys.readouterr().out


def test_remembered_fields_come_back(page):
    given = FIRST | {"k": 7, "prompt": "Ben", "draft": "tiny-other", "pace": "slow"}
    updates = dict(zip(FIRST, page.restore(told(fields=given)), strict=True))
    assert (updates["k"], updates["prompt"], updates["pace"]) == (7, "Ben", "slow")
    assert updates["draft"]["value"] == "tiny-other"
    assert {"tiny-draft", "tiny-other"} <= {name for _, name in updates["draft"]["choices"]}


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {"k": 2},
        FIRST | {"k": 10**9},
        FIRST | {"k": "4"},
        FIRST | {"target": "../etc"},
        FIRST | {"draft": "somebody/else"},
        FIRST | {"pace": "never"},
        FIRST | {"method": "<b>"},
        FIRST | {"other": 1},
    ],
)
def test_remembered_fields_that_cannot_be_used_change_nothing(page, fields):
    assert page.restore(told(fields=fields)) == [gr.skip() for _ in FIRST]


def test_a_new_run_first_stops_the_old_one_of_the_same_session_only(page, registry):
    list(page.step(SESSION, *values()))
    list(page.step(OTHER, *values()))
    old, others = registry.current("one"), registry.current("two")
    list(page.run(SESSION, *values()))
    assert old.run.controls.read().stopped
    assert not others.run.controls.read().stopped
    assert registry.current("one") is not old


def test_the_temperature_can_be_set_as_high_as_a_request_may_ask():
    assert components.setup_fields(tiny_server.tiny_offer())["temperature"].maximum == MAX_TEMPERATURE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("k", 2),
        ("temperature", 0.5),
        ("top_k", 5),
        ("top_p", 0.5),
        ("min_p", 0.5),
        ("draft_temperature", 0.5),
        ("draft_top_k", 5),
    ],
)
def test_a_live_number_is_in_force_from_the_next_step(page, registry, name, value):
    list(page.step(SESSION, *values()))
    page.live(name)(SESSION, value)
    list(page.step(SESSION, *values()))
    before, after = registry.current("one").trace.steps
    assert (getattr(before.settings, name), getattr(after.settings, name)) == (FIRST[name], value)
    assert after.changed == (name,)


@pytest.mark.parametrize(("typed", "value"), [("", None), (" 0.5 ", 0.5), ("0", 0.0), ("2", 2.0)])
def test_a_field_of_the_draft_alone_may_be_empty(page, registry, typed, value):
    """Gradio shows an empty number as 0, which would be a greedy draft: so these fields are texts."""
    assert components.drawer_fields(tiny_server.tiny_offer().first)["draft_temperature"].value == ""
    list(page.step(SESSION, *values(draft_temperature=typed)))
    assert registry.current("one").trace.steps[0].settings.draft_temperature == value
    page.live("draft_temperature")(SESSION, "1.5")
    page.live("draft_temperature")(SESSION, typed)
    list(page.step(SESSION, *values()))
    assert registry.current("one").trace.steps[1].settings.draft_temperature == value
    with pytest.raises(gr.Error, match="draft_temperature must be a number"):
        page.live("draft_temperature")(SESSION, "warm")


def test_what_is_typed_as_a_stop_ends_the_answer_and_comes_back_into_the_field(page, registry):
    list(page.run(SESSION, *values()))
    text = registry.current("one").trace.text
    stop = next(char for char in text if char.isprintable() and char != "\ufffd" and char.strip())
    list(page.run(SESSION, *values(stop=f"{stop}\n\\n\\n")))
    run = registry.current("one").run
    assert run.request.stop == (stop, "\n\n")
    assert run.trace.answer == text[: text.index(stop)]
    fields = dict(zip(FORM.names, FORM.fill(run.request, tiny_server.tiny_offer()), strict=True))
    assert fields["stop"] == f"{stop}\n\\n\\n"


def test_a_live_draft_is_in_force_from_the_next_step(page, registry):
    list(page.step(SESSION, *values()))
    assert page.live_choice("draft")(SESSION, "tiny-other") == gr.skip(), "a late answer would hide a refusal"
    list(page.step(SESSION, *values()))
    assert registry.current("one").trace.steps[-1].settings.draft_model == "tiny-other"


def test_a_draft_that_is_not_on_offer_is_a_warning_and_the_list_shows_what_is_in_force(page, monkeypatch):
    warned = []
    monkeypatch.setattr(gr, "Warning", warned.append)
    list(page.step(SESSION, *values()))
    assert page.live_choice("draft")(SESSION, "../elsewhere") == "tiny-draft"
    assert "elsewhere" in warned[0]


def test_a_live_number_out_of_range_changes_nothing(page, registry):
    list(page.step(SESSION, *values()))
    with pytest.raises(gr.Error, match="k must be"):
        page.live("k")(SESSION, 10**6)
    assert registry.current("one").run.controls.settings.num_speculative_tokens == FIRST["k"]


def test_live_changes_without_a_run_do_nothing(page):
    assert page.live("k")(SESSION, 3) is None
    assert page.live_choice("draft")(SESSION, "anything") == gr.skip()
    assert page.pause(SESSION) is None


@pytest.mark.parametrize(
    "change", [{"k": 0}, {"k": 4.5}, {"temperature": -1}, {"prompt": ""}, {"max_new_tokens": 10**9}, {"seed": -1}]
)
def test_what_the_form_may_not_say_is_refused_in_words(page, change):
    with pytest.raises(gr.Error, match=next(iter(change))):
        list(page.run(SESSION, *values(**change)))


def test_the_form_gives_each_method_its_own_parameters_only():
    request, pace = FORM.request(values(method="prompt_lookup", pace="slow"))
    own = {param.name: param.default for param in METHODS["prompt_lookup"].params}
    assert (dict(request.params), pace) == (own, "slow")
    assert FORM.request(values(method="none"))[0].params == {}


def fitted(page, method, rule="speculative_sampling", draft="tiny-draft", target="tiny-target"):
    """The updates of draft, K and rule, and which methods' own fields are shown."""
    draft, k, rule, *own, _ = page.fit_method(method, rule, draft, target)
    with_own = [name for name, each in METHODS.items() if each.params]
    return draft, k, rule, {name for name, update in zip(with_own, own, strict=True) if update["visible"]}


@pytest.mark.parametrize(
    ("method", "has_draft", "has_k", "has_rule"),
    [("draft_model", True, True, True), ("prompt_lookup", False, True, True), ("none", False, False, False)],
)
def test_fields_that_do_nothing_under_a_method_are_hidden(page, method, has_draft, has_k, has_rule):
    draft, k, rule, own = fitted(page, method)
    assert (draft["visible"], k["visible"], rule["visible"]) == (has_draft, has_k, has_rule)
    assert own == ({method} if METHODS[method].params else set())


# methods of every kind, as their data describes them


@pytest.fixture
def more_methods(monkeypatch):
    """Three made-up methods beside the real ones."""
    for method in MADE_UP:
        monkeypatch.setitem(METHODS, method.name, method)


@pytest.fixture
def methods(more_methods, monkeypatch):
    """The same with a catalogue in which the tiny target has all that they need; no model can be loaded any more."""
    target = CatalogModel("tiny-target", "Tiny", ("tiny-draft", "tiny-other"), foreign=("stranger",))
    monkeypatch.setitem(catalog.MODELS, "tiny-target", target)
    heads = CatalogHeads("tiny-heads", "Tiny heads", "made-up", "tiny-target")
    monkeypatch.setitem(catalog.HEADS, heads.name, heads)


GIVEN = {"width": 5, "least": 0.5, "way": "down", "stages": ["tiny-other", "prompt_lookup"], "heads": "tiny-heads"}


def whole_form(**changes):
    """Names and values of a form with the fields of all methods that there are now."""
    params = {f"{name}.{each.name}": each.default for name, method in METHODS.items() for each in method.params}
    given = {**FIRST, **params, **changes}
    return Form(tuple(given)), given


def test_parameters_of_every_kind_reach_the_request(methods):
    form, given = whole_form(method="everything", **{f"everything.{name}": value for name, value in GIVEN.items()})
    request, _ = form.request(tuple(given.values()))
    assert METHODS["everything"].validate(request.params) == {**GIVEN, "stages": "tiny-other, prompt_lookup"}


ODD = (None, "", "x", "5", "\ud800", True, -1, 1.5, 1e308, float("nan"), 10**40, [], [["a"]], {}, {"a": 1})


@pytest.mark.parametrize("name", FIRST)
def test_whatever_a_field_holds_is_taken_or_refused_in_words(page, name):
    """Gradio checks none of the values that start a run."""
    for value in ODD:
        with suppress(SpecvizError):
            request, pace = FORM.request(values(**{name: value}))
            session.open_run(request, bench=page._bench, pace=pace)


# the models behind a trace that may come from anywhere


@pytest.fixture
def forge(page, registry, more_methods, request):
    """A real run's trace with other settings in its last step."""
    list(page.step(SESSION, *values(method="draft_model")))
    trace = registry.current("one").trace
    request.getfixturevalue("methods")

    def forge(**settings):
        *events, last = [event for event in trace.events() if not isinstance(event, Footer)]
        return Trace([*events, replace(last, settings=replace(last.settings, **settings))])

    return forge


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"method": "everything", "rule": "typical", "params": {"stages": "../elsewhere"}},
            "elsewhere, which is not on",
        ),
        ({"method": "everything", "rule": "typical", "params": {"heads": "some/heads"}}, "some/heads, which is not on"),
        ({"method": "everything", "rule": "typical", "params": {"heads": "a, b"}}, "heads must name a model"),
        ({"method": "everything", "rule": "typical", "params": {"width": 10**9}}, "width must be a whole number"),
        ({"method": "everything", "rule": "typical", "params": {"other": 1}}, "has no parameter 'other'"),
        ({"method": "everything", "rule": "lenience"}, "Lenience cannot judge the drafts of Everything"),
    ],
)
def test_what_a_trace_names_is_offered_or_refused(pool, forge, settings, words):
    trace, bench, offer = forge(**settings), Workbench(pool), tiny_server.tiny_offer()
    models = trace_models.RunModels(bench, offer)
    for ask in (models.names, models.load):
        with pytest.raises(SpecvizError, match=words):
            ask(trace)


def test_the_models_that_parameters_name_belong_to_the_run(pool, forge):
    models = trace_models.RunModels(Workbench(pool), tiny_server.tiny_offer())
    trace = forge(method="everything", rule="typical", params={"stages": "tiny-other, prompt_lookup"})
    assert models.names(trace) == ["tiny-target", "tiny-draft", "tiny-other"]
    assert not models.are_at_hand(trace), "the heads are not bundled, so nobody loads them unasked"
    assert models.are_at_hand(forge(method="deep", params={}))
    assert not models.are_at_hand(forge(method="everything", params={"width": "x"}))


def test_a_run_is_asked_again_with_its_rule_and_its_parameters(forge):
    request = trace_models.request_of(forge(method="deep", rule="typical", params={"longest": 5}))
    assert (request.method, request.rule, dict(request.params)) == ("deep", "typical", {"longest": 5})


@pytest.mark.parametrize("empty", [None, "", []])
def test_a_list_of_models_with_nothing_chosen_means_what_is_usual(methods, empty):
    form, given = whole_form(method="everything", **{"everything.stages": empty})
    assert form.request(tuple(given.values()))[0].params["stages"] is None


def test_controls_build_themselves_from_the_parameters(methods):
    offer = replace(tiny_server.tiny_offer(), first=replace(tiny_server.tiny_offer().first, target="tiny-target"))
    made = {param.name: components.parameter(METHODS["everything"], param, offer) for param in EVERY_KIND}
    assert [type(made[name]) for name in ("width", "least", "way")] == [gr.Slider, gr.Slider, gr.Dropdown]
    assert (made["width"].minimum, made["width"].maximum, made["width"].value) == (1, 8, 2)
    assert (made["least"].maximum, made["least"].step, made["least"].value) == (1.0, 0.05, 0.25)
    assert made["way"].choices == [("Upwards", "up"), ("Downwards", "down")]
    assert (made["stages"].multiselect, made["stages"].max_choices) == (True, 3)
    assert [name for _, name in made["stages"].choices] == ["prompt_lookup", "tiny-other", "tiny-draft"]
    assert (made["stages"].value, made["heads"].value) == (["tiny-other"], "tiny-heads")
    assert all(part.info for part in made.values())


@pytest.mark.parametrize("any_model", [True, False])
def test_models_may_be_typed_where_any_may(methods, any_model):
    offer = tiny_server.tiny_offer(any_model=any_model)
    assert components.parameter(METHODS["everything"], EVERY_KIND[3], offer).allow_custom_value is any_model


def test_the_methods_that_people_meet_first_stand_first():
    names = [name for _, name in list_methods()]
    assert names[:3] == ["draft_model", "prompt_lookup", "early_exit"]
    assert sorted(names) == sorted(METHODS)
    assert "sv-first-3" in components.method_list(list_methods(), "none").elem_classes


def test_the_rules_are_those_of_the_method_each_with_its_badge(page, methods):
    _, _, rule, _ = fitted(page, "deep")
    assert rule["choices"] == [
        ("Speculative sampling · exact", "speculative_sampling"),
        ("Typical acceptance · lossy", "typical"),
    ]
    assert rule["value"] == "speculative_sampling"


@pytest.mark.parametrize(
    ("method", "rule", "expected"),
    [
        ("draft_model", "lenience", "lenience"),
        ("deep", "typical", "typical"),
        ("deep", "block_verification", "speculative_sampling"),
        ("everything", "speculative_sampling", "typical"),
        ("deep", None, "speculative_sampling"),
        ("deep", ["typical"], "speculative_sampling"),
    ],
)
def test_a_rule_stays_where_it_can_judge_the_methods_drafts(page, methods, method, rule, expected):
    _, _, update, _ = fitted(page, method, rule)
    assert update["value"] == expected
    assert update["visible"] == (len(METHODS[method].rules) > 1)


@pytest.mark.parametrize(
    ("children", "rules", "kept"),
    [("top", TREE_RULES, "speculative_sampling"), ("drawn", CHAIN_RULES, "block_verification")],
)
def test_the_rules_on_offer_are_those_that_can_judge_what_the_parameters_make_of_the_drafts(children, rules, kept):
    page = Handlers(Registry(), Workbench(None), whole_form()[0], tiny_server.tiny_offer())
    given = [children if name == "eagle.children" else None for name in page.form.governors()]
    _, _, update, *_ = page.fit_method("eagle", "block_verification", None, "tiny-target", *given)
    assert ([name for _, name in update["choices"]], update["value"]) == (list(rules), kept)
    said = json.loads(page.explain("eagle", "block_verification", "tiny-target", *given))
    assert said["rule"]["title"] == RULES[kept].title
    request = replace(
        tiny_server.tiny_offer().first, method="eagle", params={"children": children, "heads": "fable-eagle"}
    )
    allowed = [rule for rule in RULES if _is_allowed(replace(request, rule=rule))]
    assert allowed == list(rules)


def _is_allowed(request):
    try:
        form.refuse_unoffered(
            tiny_server.tiny_offer(any_model=True), replace(request, params=METHODS["eagle"].validate(request.params))
        )
    except SpecvizError:
        return False
    return True


def test_k_is_hidden_where_a_parameter_stands_for_it(page, methods):
    assert fitted(page, "deep")[1]["visible"] is False


def test_a_method_brings_a_draft_model_that_it_can_use(page, methods):
    update = fitted(page, "other_words")[0]
    assert (update["value"], update["choices"][0][1]) == ("stranger", "stranger")
    back = fitted(page, "draft_model", draft="stranger")[0]
    assert (back["value"], "stranger" in [name for _, name in back["choices"][1:]]) == ("tiny-draft", False)
    assert fitted(page, "other_words", draft="some/typed")[0]["value"] == "some/typed"
    assert fitted(page, "prompt_lookup", draft="stranger")[0]["value"] == "stranger", "hidden, so nothing changes"


def test_another_target_brings_what_suits_it(methods):
    form, _ = whole_form()
    page = Handlers(Registry(), Workbench(None), form, tiny_server.tiny_offer())
    others = [None for name in form.model_params() if not name.startswith("everything.")]
    stages, heads = page.fit_models("tiny-target", *others, ["tiny-draft"], "of-another-target")[-2:]
    assert (stages["value"], heads["value"]) == (["tiny-draft"], "tiny-heads")
    stages, heads = page.fit_models("unknown/model", *others, ["tiny-draft"], "tiny-heads")[-2:]
    assert (stages["value"], heads["value"]) == (["prompt_lookup"], None)


@pytest.mark.parametrize(
    ("target", "chat"),
    [("smollm2", True), ("fable-target", False), ("Qwen/Qwen3-8B", "as it was"), ("a/b", "as it was")],
)
def test_a_chat_model_on_offer_is_asked_in_its_chat_form(page, target, chat):
    update, prompt = page.fit_chat(SESSION, target, "My own prompt")
    assert update == (gr.skip() if chat == "as it was" else chat)
    assert prompt == gr.skip()


def test_a_lone_question_is_shown_without_who_asks_it(page):
    questions = page._offer.prompts["Ask a question"].values()
    assert "Why is the sky blue?" in questions
    assert any(text.startswith("System: ") and text.endswith("Assistant:") for text in questions)


def test_a_ready_prompt_gives_way_to_one_that_the_target_can_use(page):
    stories, questions = (list(page._offer.prompts[kind].values()) for kind in ("Story", "Ask a question"))
    assert page.fit_chat(SESSION, "smollm2", stories[1]) == (True, questions[0])
    assert page.fit_chat(SESSION, "fable-target", questions[2]) == (False, stories[0])
    assert page.fit_chat(SESSION, "fable-target-x4", stories[1]) == (False, gr.skip())


def test_a_target_that_is_chosen_during_a_run_leaves_its_prompt_alone(page):
    running = page.run(SESSION, *values(max_new_tokens=32))
    next(running)
    assert page.fit_chat(SESSION, "smollm2", next(iter(page._offer.prompts["Story"].values()))) == (
        gr.skip(),
        gr.skip(),
    )
    running.close()


@pytest.mark.parametrize(("target", "answers"), [("smollm2", True), ("fable-target", False), ("tiny-target", False)])
def test_questions_are_offered_with_a_model_that_answers(page, target, answers):
    field, kinds = page.fit_prompts(target)
    assert ("ask a question" in field["label"]) is answers
    assert ("Ask a question" in json.loads(kinds)) is answers
    assert next(iter(json.loads(kinds))) == ("Ask a question" if answers else "Story")


def test_a_model_that_was_typed_stays_beside_another_target(methods):
    form, _ = whole_form()
    offers = (tiny_server.tiny_offer(any_model=True), tiny_server.tiny_offer(any_model=False))
    typed, offered = (Handlers(Registry(), Workbench(None), form, offer) for offer in offers)
    fit = [page.fit_target("fable-target", "my/own-draft", "draft_model")[0]["value"] for page in (typed, offered)]
    assert fit == ["my/own-draft", "fable-draft"]
    known = ("tiny-other", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B:int8", None, ["a"])
    assert {typed.fit_target("fable-target", name, "draft_model")[0]["value"] for name in known} == {"fable-draft"}
    assert (
        typed.fit_target("fable-target", "fable-draft-tiny:int8", "draft_model")[0]["value"] == "fable-draft-tiny:int8"
    )
    view = SimpleNamespace(
        run=SimpleNamespace(controls=SimpleNamespace(settings=Request(target="x", draft="tiny-other")))
    )
    assert typed._changes(view, "target", "fable-target", None) == {"target": "fable-target", "draft": "fable-draft"}
    others = [None for name in form.model_params() if not name.startswith("everything.")]
    stages, heads = typed.fit_models("tiny-target", *others, ["tiny-draft", "my/own"], "my/own-heads")[-2:]
    assert (stages["value"], heads["value"]) == (["tiny-draft", "my/own"], "my/own-heads")


def test_the_help_says_what_the_method_does_and_what_the_rule_means(page, methods):
    said = json.loads(page.explain("draft_model", "lenience", "tiny-target"))
    assert (said["summary"], said["caution"]) == (METHODS["draft_model"].summary, METHODS["draft_model"].caution)
    assert (said["rule"]["title"], said["rule"]["badge"]) == ("Lenience", "lossy")
    assert json.loads(page.explain("deep", "lenience", None))["rule"]["badge"] == "exact", "the method's own rule"
    assert "longest guess" in json.loads(page.explain("deep", None, None))["notes"][0]


def test_an_unknown_method_is_refused_in_words(page):
    for callback in (lambda: page.explain([], None, None), lambda: page.fit_method("<b>", None, None, None)):
        with pytest.raises(gr.Error, match="method must be one of"):
            callback()


# live


def test_without_a_draft_the_help_names_no_rule_and_no_rule_is_in_force(page):
    assert json.loads(page.explain("none", "typical", "tiny-target"))["rule"] is None
    assert fitted(page, "none", "typical")[2]["value"] == "speculative_sampling"


def test_parameters_that_count_under_some_values_of_another_are_hidden_under_the_rest():
    governing, dependent = FORM.governors(), FORM.dependents()
    assert "draft_model.k_policy" in governing
    assert "reasoning.least_grade" in dependent
    first = dict(zip(dependent, FORM.show_dependents(*(FIRST[name] for name in governing)), strict=True))
    assert not first["draft_model.least_confidence"]["visible"]
    assert first["reasoning.threshold"]["visible"]
    changed = {**FIRST, "draft_model.k_policy": "confidence", "reasoning.judged_by": "score"}
    then = dict(zip(dependent, FORM.show_dependents(*(changed[name] for name in governing)), strict=True))
    assert then["draft_model.least_confidence"]["visible"]
    assert (then["reasoning.threshold"]["visible"], then["reasoning.least_grade"]["visible"]) == (False, True)


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_what_a_parameter_depends_on_is_a_choice_of_its_method(method):
    choices = {param.name: param.options for param in method.params if isinstance(param, Choice)}
    for name, options in (param.needs for param in method.params if param.needs):
        assert set(options) < set(choices[name])


def test_a_control_that_counts_for_nothing_at_first_is_not_shown():
    shown = {
        param.name: components.parameter(METHODS["reasoning"], param, tiny_server.tiny_offer()).visible
        for param in METHODS["reasoning"].params
    }
    assert shown == {"judged_by": True, "threshold": True, "least_grade": False, "delimiter": True, "longest": True}


def test_a_method_that_the_target_is_not_made_for_says_so_and_leaves_the_run_on_the_stage(page, registry):
    list(page.run(SESSION, *values(max_new_tokens=2)))
    before = registry.current("one")
    with pytest.raises(gr.Error, match="tiny-target has no modules for multi-token prediction"):
        list(page.run(SESSION, *values(method="mtp")))
    assert registry.current("one") is before
    assert "no modules" in json.loads(page.explain("mtp", None, "tiny-target"))["lacks"]
    assert "no Medusa heads are known" in json.loads(page.explain("medusa", None, "tiny-target"))["lacks"]
    assert json.loads(page.explain("draft_model", None, "tiny-target"))["lacks"] == ""
    assert "no modules" in json.loads(page.explain("mtp", None, "Qwen/Qwen3-8B:int8"))["lacks"]


@pytest.mark.parametrize(("target", "is_offered"), [("tiny-target", False), ("fable-target", False), ("own/one", True)])
def test_multi_token_prediction_is_offered_where_the_target_may_have_modules(page, target, is_offered):
    *_, update = page.fit_method("draft_model", None, None, target)
    assert ("mtp" in [name for _, name in update["choices"]]) is is_offered
    *_, update = page.fit_method("mtp", None, None, target)
    assert "mtp" in [name for _, name in update["choices"]], "what is chosen stays in its list"


def test_of_a_target_that_is_not_loaded_nothing_is_claimed(page):
    assert json.loads(page.explain("mtp", None, "unheard-of"))["lacks"] == ""


def test_the_rule_that_was_chosen_last_comes_back_after_a_method_that_cannot_use_it(page, registry):
    list(page.step(SESSION, *values(method="prompt_lookup", rule="typical", prompt="a b a b a b")))
    change = page.live_choice("method")
    change(SESSION, "none", "typical")
    assert registry.current("one").run.controls.settings.rule == "speculative_sampling"
    change(SESSION, "prompt_lookup", "typical")
    assert registry.current("one").run.controls.settings.rule == "typical"
    assert page.fit_method("draft_model", "typical", "tiny-draft", "tiny-target")[2]["value"] == "typical"


def test_a_live_rule_is_in_force_from_the_next_step(page, registry):
    list(page.step(SESSION, *values()))
    assert page.live_choice("rule")(SESSION, "typical") == gr.skip()
    list(page.step(SESSION, *values()))
    before, after = registry.current("one").trace.steps
    assert ((before.settings.lossless, after.settings.lossless), after.changed) == ((True, False), ("rule",))


def test_a_live_method_brings_its_rule_and_its_draft_at_once(page, registry, more_methods, request):
    list(page.step(SESSION, *values(rule="block_verification")))
    request.getfixturevalue("methods")
    controls = registry.current("one").run.controls
    assert page.live_choice("method")(SESSION, "other_words") == gr.skip()
    now = controls.settings
    assert (now.method, now.rule, now.draft) == ("other_words", "speculative_sampling", "stranger")
    page.live_choice("method")(SESSION, "draft_model")
    assert (controls.settings.method, controls.settings.draft) == ("draft_model", "tiny-draft")


def test_a_live_method_that_cannot_be_used_leaves_method_rule_and_draft(page, registry, monkeypatch):
    warned = []
    monkeypatch.setattr(gr, "Warning", warned.append)
    list(page.step(SESSION, *values(rule="lenience")))
    assert page.live_choice("method")(SESSION, "<b>") == "draft_model"
    now = registry.current("one").run.controls.settings
    assert (now.method, now.rule, now.draft) == ("draft_model", "lenience", "tiny-draft")
    assert "&lt;b&gt;" in warned[0]


def test_after_a_refusal_the_lists_show_what_is_in_force(page, registry):
    list(page.step(SESSION, *values(rule="lenience")))
    draft, method, rule, target, wanted = page.list_settings(SESSION)
    assert (draft["value"], method, rule["value"], target) == ("tiny-draft", "draft_model", "lenience", "tiny-target")
    assert wanted == "lenience"
    assert "lenience" in [name for _, name in rule["choices"]]


def found_to_be(ratio: float = 2.5) -> Speed:
    return Speed(100.0, 100.0 * ratio, 4.0, 8, SpeedComparison((ratio,) * 6, most=4.0))


@pytest.fixture
def measuring(monkeypatch):
    """What was asked to be measured; what the measurement says is the test's, one turn each time it is let on."""
    asked, turns = [], Queue()

    def measure_in_rounds(request, bench, most_tokens):
        asked.append((request, most_tokens))
        while True:
            yield turns.get()

    monkeypatch.setattr(handlers, "measure_in_rounds", measure_in_rounds)
    asked_and_turns = SimpleNamespace(asked=asked, say=turns.put)
    yield asked_and_turns
    turns.put(Measuring(2, 2))  # lets a thread go that still waits


def speeds(stream):
    return (json.loads(message)["speed"] for message in stream)


def test_measuring_keeps_the_rule_and_the_parameters_of_the_run(page, registry, measuring):
    list(page.step(SESSION, *values(method="prompt_lookup", rule="typical", **{"prompt_lookup.max_ngram": 2})))
    measuring.say(Measuring(2, 2, speed=found_to_be()))
    list(page.measure(SESSION))
    ((asked, most),) = measuring.asked
    assert (asked.method, asked.rule, asked.params["max_ngram"]) == ("prompt_lookup", "typical", 2)
    trace = registry.current("one").trace
    assert asked.prompt_ids == tuple(token.id for token in trace.header.prompt.tokens), "as the run read it, cut or not"
    assert most == len(trace.tokens), "the very text of the run"


def test_what_was_measured_of_other_settings_is_not_shown(page, measuring):
    list(page.step(SESSION, *values()))
    measuring.say(Measuring(2, 2, speed=found_to_be(2.5)))
    (*_, shown) = speeds(page.measure(SESSION))
    assert "measured here" in shown["words"] or "tokens/s; no ratio: the measured runs wrote" in shown["words"]
    (*_, same) = messages(page.step(SESSION, *values()))
    assert "250" in same["speed"]["words"]
    page.live("k")(SESSION, 2)
    (*_, other) = messages(page.step(SESSION, *values()))
    assert (other["speed"]["words"], other["speed"]["can_measure"]) == ("not measured yet", True)


def test_a_measurement_tells_how_far_it_is_and_whoever_comes_later_follows_it(page, registry, measuring):
    list(page.step(SESSION, *values()))
    first = speeds(page.measure(SESSION))
    assert next(first)["progress"]["words"] == "waiting for its turn"
    measuring.say(Measuring(7, 26, round=2))
    assert next(first)["progress"]["words"] == "round 2 of 6"
    first.close()  # the browser has lost its stream, and asks again
    again = speeds(page.measure(SESSION))
    assert next(again)["progress"]["words"] == "round 2 of 6"
    measuring.say(Measuring(26, 26, speed=found_to_be()))
    (*_, last) = again
    assert last["progress"] is None
    assert len(measuring.asked) == 1, "it went on"


def test_a_page_that_comes_back_follows_the_measurement_of_its_run(page, registry, measuring):
    list(page.step(SESSION, *values()))
    next(page.measure(SESSION))
    run = registry.current("one").id
    registry.leave("one")
    back = speeds(page.arrive(SESSION, told(run=run, isOwn=True)))
    assert next(back)["progress"] is not None
    measuring.say(Measuring(26, 26, speed=found_to_be()))
    (*_, last) = back
    assert last["progress"] is None
    assert "250" in last["words"]


@pytest.mark.parametrize("end", ["stop", "run", "another"])
def test_a_measurement_ends_when_it_is_stopped_or_its_run_goes_on_or_leaves_the_stage(end, page, registry, measuring):
    list(page.step(SESSION, *values()))
    stream, view = speeds(page.measure(SESSION)), registry.current("one")
    next(stream)
    if end == "stop":
        page.stop_measuring(SESSION)
    elif end == "run":
        threading.Timer(0.2, measuring.say, [Measuring(2, 26)]).start()  # the turn that it is in for the engine
        list(page.step(SESSION, *values()))
    else:
        registry.show(view_of(traces.chain()), "one")
    *_, last = stream
    measuring.say(Measuring(26, 26, speed=found_to_be()))
    assert (last["value"], last["progress"]) == ("", None)
    assert (view.feed.measured, view.feed.measuring) == (None, None)


def test_why_nothing_could_be_measured_is_said(page, monkeypatch):
    def refuse(request, bench, most_tokens):
        raise SpecvizError("no room to measure")
        yield

    monkeypatch.setattr(handlers, "measure_in_rounds", refuse)
    list(page.step(SESSION, *values()))
    with pytest.raises(gr.Error, match="no room to measure"):
        list(page.measure(SESSION))


def test_a_run_whose_drafts_never_reached_the_target_is_called_neither_faster_nor_slower():
    feed = Feed("run")
    for event in traces.plain().events():
        feed.add(event)
    assert json.loads(feed.message(0, None))["speed"]["value"] == ""


def test_remembered_lists_come_back_with_what_was_chosen_in_them(methods):
    changes = {"method": "other_words", "rule": "typical", "draft": "stranger"}
    form, given = whole_form(**changes, **{"everything.stages": ["tiny-other", "prompt_lookup"]})
    page = Handlers(Registry(), Workbench(None), form, tiny_server.tiny_offer())
    updates = dict(zip(form.names, page.restore(told(fields=given)), strict=True))
    assert updates["method"] == "other_words"
    assert [updates[name]["value"] for name in ("rule", "draft")] == ["typical", "stranger"]
    assert [name for _, name in updates["rule"]["choices"]] == ["speculative_sampling", "typical"]
    assert updates["everything.stages"]["value"] == ["tiny-other", "prompt_lookup"]


@pytest.mark.parametrize(
    "changes",
    [
        {"everything.width": 10**6},
        {"everything.least": "0.5"},
        {"everything.way": "sideways"},
        {"everything.stages": ["a", "b", "c", "d"]},
        {"everything.stages": ["../elsewhere"]},
        {"everything.stages": [{}, {}]},
        {"everything.heads": "somebody/elses"},
        {"rule": "graded by me"},
        {"rule": "block_verification", "method": "deep"},
        {"rule": None},
    ],
)
def test_remembered_parameters_that_cannot_be_used_change_nothing(methods, changes):
    form, given = whole_form(**changes)
    page = Handlers(Registry(), Workbench(None), form, tiny_server.tiny_offer())
    assert page.restore(told(fields=given)) == [gr.skip() for _ in form.names]


def chosen(page, kind, title=None):
    title = title or next(iter(page._offer.prompts[kind]))
    return page.choose_prompt("tiny-target", told(kind=kind, title=title))


@pytest.mark.parametrize("kind", ["Story", "Code", "Arithmetic", "Summarise this text", "Repeat after me"])
def test_a_ready_prompt_is_a_text_to_go_on_with(page, kind):
    text, chat = chosen(page, kind)
    assert (text in page._offer.prompts[kind].values(), chat) == (True, False)


def test_a_ready_conversation_is_plain_lines_with_a_note_where_there_is_no_template(page, monkeypatch):
    warned = []
    monkeypatch.setattr(gr, "Warning", warned.append)
    text, chat = chosen(page, "Ask a question", "Bedtime")
    assert text.startswith("System: ")
    assert text.endswith("\nAssistant:")
    assert chat is False
    assert "tiny-target has no chat template" in warned[0]


def test_a_ready_conversation_uses_the_models_template_where_it_has_one(pool, page, monkeypatch):
    monkeypatch.setattr(pool.load("tiny-target").tokenizer, "chat_template", "{{ messages | length }}")
    text, chat = chosen(page, "Ask a question", "Bedtime")
    assert chat is True
    rendered, options = page.render_prompt(text, "tiny-target", chat, "")
    assert (rendered["value"], options["visible"]) == ("2", False)


def test_the_options_of_a_chat_template_are_shown_where_it_has_some_and_change_what_the_target_reads(
    pool, page, monkeypatch
):
    template = "{{ messages[0].content }}{% if enable_thinking is false %}, at once{% endif %}"
    monkeypatch.setattr(pool.load("tiny-target").tokenizer, "chat_template", template)
    rendered, options = page.render_prompt("Hi", "tiny-target", True, "enable_thinking=false\n")
    assert (rendered["value"], options["visible"]) == ("Hi, at once", True)
    assert options["info"].endswith("This template has: enable_thinking.")
    with pytest.raises(gr.Error, match="has no option"):
        page.render_prompt("Hi", "tiny-target", True, "thinking=false")
    assert page.render_prompt("Hi", "tiny-target", False, "thinking=false")[1] == gr.update(
        visible=False, info=components.OPTIONS_INFO
    )


def test_chat_options_are_the_requests_while_the_chat_template_is_used():
    typed = "enable_thinking=false\neffort=high"
    options = {"enable_thinking": False, "effort": "high"}
    asked, _ = FORM.request(values(chat=True, chat_options=typed))
    assert asked.chat_options == options
    fields = dict(zip(FORM.names, FORM.fill(replace(asked, draft="tiny-draft"), tiny_server.tiny_offer()), strict=True))
    assert fields["chat_options"] == typed
    assert FORM.request(values(chat=False, chat_options=typed))[0].chat_options == {}


@pytest.mark.parametrize("data", [{}, {"kind": "Story"}, {"kind": [], "title": {}}, {"kind": "Story", "title": "no"}])
def test_what_is_no_ready_prompt_changes_nothing(page, data):
    assert page.choose_prompt("tiny-target", told(**data)) == (gr.skip(), gr.skip())


def test_a_prompt_that_is_too_long_is_cut_and_said_so(page, registry, monkeypatch):
    warned = []
    monkeypatch.setattr(gr, "Warning", warned.append)
    list(page.run(SESSION, *values(prompt="The fox said. " * 400, max_new_tokens=8)))
    view = registry.current("one")
    assert view.trace.footer.reason in ("length", "eos")
    assert view.trace.header.prompt.text.endswith("The fox said. ")
    assert "were left out" in warned[0]


@pytest.mark.parametrize(
    "data", [None, 3, [], {}, {"run": None}, {"run": []}, {"run": "x" * 32, "from": 0}, {"run": {}, "from": {}}]
)
def test_the_pull_gives_nothing_to_what_it_does_not_know(registry, data):
    assert increments_since(registry)(data) is None


@pytest.mark.parametrize("first", [-1, 1.5, "0", None, True, [0]])
def test_the_pull_wants_a_whole_cursor(registry, first):
    view = registry.keep(traces.chain())
    assert increments_since(registry)({"run": view.id, "from": first}) is None


@pytest.mark.parametrize("step", [-1, 1.5, "0", True, [0], 10**9])
def test_the_opening_of_a_step_that_is_not_there_is_nothing(registry, pool, step):
    view = registry.keep(traces.chain())
    assert beats(registry, pool)({"run": view.id, "step": step}) is None
    assert beats(registry, pool)({"run": "x" * 32, "step": 0}) is None


def test_the_opening_tells_nothing_of_another_engines_steps(registry, pool):
    view = registry.keep(traces.foreign())
    assert beats(registry, pool)({"run": view.id, "step": 0}) is None


def test_every_k_is_told_of_a_known_run_that_is_over(registry):
    view, unended = (
        registry.show(view_of(shipped_trace("greedy")), "one"),
        registry.show(view_of(traces.chain()), "two"),
    )
    told = every_k_of(registry, Workbench(ModelPool()))
    assert told({"run": view.id}) == every_k(view.trace)
    unended.trace.footer = None
    for run in (unended.id, "x" * 32, None, 7):
        assert told({"run": run}) is None


def test_another_k_of_a_run_of_layers_is_told_where_it_was_made_and_its_target_is_loaded(registry):
    bench = workbench()

    def made(k):
        asked = {"method": "early_exit", "temperature": 0.0, "num_speculative_tokens": k, "max_new_tokens": 16}
        run = session.open_run(Request(prompt="Tom and Mia", target="fable-target", **asked), bench=bench)
        for _ in run.events():
            pass
        return run

    run, told = made(2), every_k_of(registry, bench)
    here, opened = registry.add_run("one", run), registry.show(view_of(run.trace), "two")
    answer = told({"run": here.id})
    assert answer.sure
    for k in (1, 5):
        assert len(answer.by_k[k - 1].steps) == len(made(k).trace.steps)
    for refused in (told({"run": opened.id}), every_k_of(registry, Workbench(ModelPool()))({"run": here.id})):
        assert refused.refusal == "No other K here: its other drafts are unknown."
        assert "was not recorded" in refused.why


def test_a_k_that_is_to_be_run_for_real_comes_with_all_that_the_run_was_asked_with(page):
    list(page.run(SESSION, *values(prompt="Once", temperature=0.5, seed=9, max_new_tokens=5, draft="tiny-other")))
    given = dict(zip(FORM.names, page.otherwise(SESSION, told(k=7)), strict=True))
    own = {name: given[name] for name in ("prompt", "temperature", "seed", "max_new_tokens", "k")}
    assert own == {"prompt": "Once", "temperature": 0.5, "seed": 9, "max_new_tokens": 5, "k": 7}
    assert given["draft"]["value"] == "tiny-other"
    for k in (0, 99, "7", None):
        with pytest.raises(gr.Error, match="k must be"):
            page.otherwise(SESSION, told(k=k))


def test_another_prompt_comes_with_all_that_the_run_was_asked_with(page):
    list(page.run(SESSION, *values(prompt="Once", temperature=0.5, seed=9, max_new_tokens=5, k=3)))
    given = dict(zip(FORM.names, page.otherwise(SESSION, told(prompt="Two")), strict=True))
    own = {name: given[name] for name in ("prompt", "temperature", "seed", "max_new_tokens", "k")}
    assert own == {"prompt": "Two", "temperature": 0.5, "seed": 9, "max_new_tokens": 5, "k": 3}
    for prompt in (7, None, ["Two"]):
        with pytest.raises(gr.Error, match="prompt"):
            page.otherwise(SESSION, told(prompt=prompt))


def test_a_run_whose_prompt_was_given_as_ids_is_not_run_from_the_page(page, registry):
    header, *events = traces.chain().events()
    asked = {**header.request, "prompt": "", "prompt_ids": [1, 2]}
    registry.show(view_of(Trace([replace(header, request=asked), *events])), "one")
    with pytest.raises(gr.Error, match="given as token ids: it can be run again from Python"):
        page.otherwise(SESSION, told(k=2))


def test_the_opening_shows_the_step_that_is_asked_for_else_the_most_telling(registry, pool):
    view = registry.keep(traces.chain())
    assert beats(registry, pool)({"run": view.id, "step": 2}).step == 3
    assert beats(registry, pool)({"run": view.id}).step == telling_step(view.trace) + 1


def test_the_opening_says_which_models_run_where_its_own_are_not_here(registry, pool):
    """The bundled models of a recorded run are on every machine; the real one is not known to this page."""
    real, bundled = (registry.show(registry.find_recorded(name), "one") for name in ("real-function", "first-visit"))
    asked = opening_of(registry, make_offer(any_model=False), Workbench(pool))
    assert (asked({"run": bundled.id}).run, asked({"run": bundled.id}).note) == ("Run it yourself", "")
    told = asked({"run": real.id})
    assert told.run == "Run fable-target instead"
    assert told.note == "Run needs smollm2. fable-target with fable-draft runs here, on the first prompt."


def test_the_pull_gives_what_is_missing(registry):
    view = registry.keep(traces.chain())
    answer = json.loads(increments_since(registry)({"run": view.id, "from": 2}))
    assert (answer["from"], len(answer["steps"])) == (2, len(view.trace.steps) - 2)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_opened_trace_stands_on_the_stage_with_no_model(page, pack):
    trace = traces.chain()
    content = pack("".join(f"{dump_event(event)}\n" for event in trace.events()).encode())
    message = json.loads(page.open_trace(SESSION, content))
    assert (message["from"], message["done"]) == (0, len(trace.steps))


@pytest.mark.parametrize("content", [b"", b"{}", b"\x1f\x8bnot gzip", b"[" * 10**6, b'{"event":"<b>"}'])
def test_what_is_no_trace_is_refused_in_harmless_words(page, content):
    with pytest.raises(gr.Error) as caught:
        page.open_trace(SESSION, content)
    assert "<" not in caught.value.message


def test_opening_a_trace_stops_the_run_in_progress(page, registry):
    list(page.step(SESSION, *values()))
    run = registry.current("one").run
    page.open_trace(SESSION, "".join(f"{dump_event(event)}\n" for event in traces.chain().events()).encode())
    assert run.controls.read().stopped


def test_measuring_an_opened_trace_is_refused_in_words(page, registry):
    registry.show(view_of(traces.chain()), "one")
    with pytest.raises(gr.Error, match="press Run first"):
        list(page.measure(SESSION))


def test_only_messages_meant_for_the_person_are_shown():
    with pytest.raises(gr.Error, match="&lt;b&gt;"), errors_on_page():
        raise SpecvizError("<b>")
    with pytest.raises(gr.Error) as told, errors_on_page():
        raise ValueError("inner")
    assert told.value.message == FAILED
    assert isinstance(told.value.__cause__, ValueError), "the log has it"
    assert told.value.print_exception


class Scripted:
    """A run that gives the events of a list, beside as many others at the engine."""

    def __init__(self, events, pace="full", num_others=0):
        self.id, self.state, self.trace = "scripted", "running", Trace()
        self._events, self.bench = events, Workbench()
        self.controls = SimpleNamespace(read=lambda: SimpleNamespace(pace=pace), set=lambda *pair: None)
        for _ in range(num_others):
            self.bench.engine.join()

    def events(self, max_steps=None):
        yield from self._events

    def stop(self):
        self.state = "finished"


def scripted(events, pace="full", num_others=0):
    run = Scripted(events, pace, num_others)
    return messages(increments(View("scripted", Feed("scripted"), run.trace, run), warn=lambda words: None))


def test_a_place_in_the_queue_is_said_once_per_change():
    waiting = [Status("queued", "waiting", ahead) for ahead in (3, 3, 3, 2, 2, 1)]
    assert [message["state"]["ahead"] for message in scripted(waiting)] == [3, 2, 1, 1]


def test_steps_are_gathered_at_full_pace_alone_and_else_sent_at_once():
    events = list(traces.chain().events())
    num_steps = sum(isinstance(event, Step) for event in events)
    assert len(scripted(events, "full")) < num_steps
    assert len(scripted(events, "slow")) >= num_steps
    assert len(scripted(events, "full", 1)) >= num_steps, "others have the engine before the next step"


def test_a_run_that_waited_is_running_again_with_its_next_step():
    events = [*traces.chain().events()]
    events.insert(3, Status("queued", "waiting", 2))
    assert scripted(events, "slow")[-1]["state"]["name"] == "running"


def test_the_registry_forgets_the_least_recently_used():
    registry = Registry(most_views=2)
    first, second = (registry.keep(traces.empty()) for _ in range(2))
    registry.get(first.id)
    registry.keep(traces.empty())
    assert registry.get(first.id) is first
    assert registry.get(second.id) is None


def test_the_registry_forgets_by_bytes_but_never_the_newest_nor_one_that_streams():
    registry = Registry(most_bytes=1)
    streaming, idle = (registry.show(view_of(traces.chain()), name) for name in ("one", "two"))
    assert registry.get(streaming.id) is None
    assert idle.claim()
    newest = registry.show(view_of(traces.chain()), "three")
    assert (registry.current("one"), registry.current("two"), registry.current("three")) == (None, idle, newest)


def test_what_is_on_nobodys_stage_is_forgotten_first_and_an_unfinished_run_last(page, pool):
    registry = Registry(most_views=3)
    paused = registry.show(View("paused", Feed("paused"), traces.chain(), run=SimpleNamespace(state="paused")), "one")
    shown, idle = registry.show(view_of(traces.chain()), "two"), registry.keep(traces.chain())
    kept = [registry.keep(traces.empty()) for _ in range(3)]
    assert [registry.get(view.id) for view in (paused, shown, idle, *kept)] == [paused, shown, *[None] * 3, kept[-1]]
    last = [registry.show(view_of(traces.empty()), name) for name in ("three", "four")]
    assert [registry.current(name) for name in ("one", "two", "three", "four")] == [paused, None, *last]
    assert not registry.has_lost("two"), "it was over"


def test_whoever_takes_most_of_the_memory_loses_first():
    registry = Registry(most_views=16)
    others = [registry.show(view_of(traces.chain()), f"visitor{number}.tab") for number in range(5)]
    for number in range(30):
        registry.show(view_of(traces.chain()), f"greedy.tab{number}")
    assert [registry.get(view.id) for view in others] == others


def test_a_visitor_has_few_runs_at_a_time_and_a_network_leaves_places_to_others():
    def begin(session):
        registry.require_place(session, 8)
        live = SimpleNamespace(state="running")
        registry.show(View(session, Feed(session), traces.empty(), run=live), session)

    registry = Registry()
    for number in range(4):
        begin(f"near-one.{number}")
    with pytest.raises(SpecvizError, match="4 of your runs and jobs go on"):
        begin("near-one.5")
    for number in range(2):
        begin(f"near-{number}.0")
    with pytest.raises(SpecvizError, match="too many runs from your network"):
        begin("near-0.1")
    begin("far-one.0")


def test_in_a_class_behind_one_address_each_browser_may_wait_for_its_first_place():
    registry = Registry()
    with ExitStack() as stack:
        for number in range(60):
            stack.enter_context(registry.job(f"near-{number}", 8))
        with pytest.raises(SpecvizError, match="too many runs from your network"):
            stack.enter_context(registry.job("near-0", 8))
        with pytest.raises(SpecvizError, match="too many runs from your network"):
            stack.enter_context(registry.job("near", 8))
        for number in range(36):
            stack.enter_context(registry.job(f"near-more{number}", 8))
        with pytest.raises(SpecvizError, match="too many runs from your network"):
            stack.enter_context(registry.job("near-last", 8))
        stack.enter_context(registry.job("far-one", 8))
    with registry.job("near", 8):
        pass  # all places are free again


def test_what_is_shown_again_is_the_newest():
    registry = Registry(most_views=2)
    first = registry.keep(traces.empty())
    registry.keep(traces.empty())
    registry.show(first, "one")
    registry.keep(traces.empty())
    assert registry.current("one") is first


@pytest.mark.parametrize("press", ["step", "resume"])
def test_where_a_paused_run_was_let_go_the_next_press_says_so_and_starts_nothing(pool, press):
    registry = Registry(most_views=1)
    page = Handlers(registry, Workbench(pool), FORM, tiny_server.tiny_offer())
    pressed = {"step": lambda: page.step(SESSION, *values()), "resume": lambda: page.resume(SESSION)}[press]
    list(page.step(SESSION, *values()))
    registry.show(view_of(traces.chain()), "two")
    assert registry.current("one") is None
    with pytest.raises(gr.Error, match="is gone"):
        list(pressed())
    assert registry.current("one") is None
    assert messages(page.step(SESSION, *values()))[-1]["state"]["name"] == "paused", "it was said once"
    assert not registry.has_lost("one")


def test_whoever_begins_something_or_leaves_is_told_nothing_of_a_run_that_was_let_go(pool):
    registry = Registry(most_views=1)
    page = Handlers(registry, Workbench(pool), FORM, tiny_server.tiny_offer())
    list(page.step(SESSION, *values()))
    registry.show(view_of(traces.chain()), "two")
    list(page.run(SESSION, *values()))
    assert not registry.has_lost("one")
    list(page.step(SESSION, *values()))
    registry.show(view_of(traces.chain()), "two")
    registry.leave("one")
    assert not registry.has_lost("one")


def test_a_run_streams_to_one_stage_at_a_time(page, registry):
    first = page.run(SESSION, *values(pace="normal"))
    until_first_step(first)
    assert list(increments(registry.current("one"), warn=print)) == []
    first.close()


def test_the_first_screen_shows_a_cut_inside_a_bonus_and_a_cut_at_once():
    first = make_offer().first
    run = session.open_run(replace(first, max_new_tokens=24))
    steps = [event for event in run.events() if isinstance(event, Step)][:3]
    kept = [sum(token.status == "accepted" for token in step.draft) for step in steps]
    assert 0 < kept[0] < first.num_speculative_tokens
    assert kept[1:] == [first.num_speculative_tokens, 0]
    assert [step.emitted[-1].kind for step in steps] == ["resampled", "bonus", "resampled"]


def callbacks():
    trees = [ast.parse(inspect.getsource(module)) for module in (handlers, form)]
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("function", callbacks(), ids=lambda function: function.name)
def test_callbacks_are_short_and_do_no_arithmetic(function):
    body = [node for node in function.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    holds_others = any(isinstance(node, ast.FunctionDef) for node in body)
    statements = [node for part in body for node in ast.walk(part) if isinstance(node, ast.stmt)]
    assert holds_others or len(statements) <= 12
    assert not [
        node for node in ast.walk(function) if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.BitOr)
    ]


def test_every_method_can_be_chosen_while_tokens_flow(registry, monkeypatch):
    """On the bundled family, from the lists of the page alone: each takes over at once, or is refused in words."""
    warned = []
    monkeypatch.setattr(handlers, "warn", warned.append)
    first = make_offer().first
    form, given = whole_form(target=first.target, draft=first.draft, max_new_tokens=128, prompt=first.prompt)
    page = Handlers(registry, workbench(), form, make_offer())
    list(page.step(SESSION, *given.values()))
    for name in [*METHODS, "draft_model"]:
        told_before = len(warned)
        chosen = page.live_choice("method")(SESSION, name)
        list(page.step(SESSION, *given.values()))
        settings = registry.current("one").trace.steps[-1].settings
        assert (chosen, settings.method) == (gr.skip(), name) or len(warned) > told_before
        assert settings.rule in METHODS[settings.method].rules
    assert settings.draft_model == first.draft, "the way back finds the draft model of the same vocabulary"


# ---- models that are not on this machine -----------------------------------------------------------------------------

AWAY = "openai-community/gpt2"


@pytest.fixture
def offline(monkeypatch):
    def fail(*_, **__):
        raise hub_error("not cached")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)


@pytest.mark.parametrize("begin", ["run", "step"])
def test_a_model_that_cannot_be_had_leaves_the_stage_as_it_was(pool, registry, offline, begin):
    page = Handlers(registry, Workbench(ModelPool(allow_any=True)), FORM, tiny_server.tiny_offer(any_model=True))
    shown = registry.show(view_of(traces.chain()), "one")
    said, stream = [], getattr(page, begin)(SESSION, *values(target=AWAY, draft=AWAY))
    with pytest.raises(gr.Error, match="the hub cannot be reached"):
        said.extend(iter(lambda: json.loads(next(stream)), None))
    before = json.loads(shown.whole())
    assert said[-1] == before | {"state": said[-1]["state"], "back": True}
    assert "the hub cannot be reached" in said[-1]["state"]["words"]
    assert registry.current("one") is shown
    assert json.loads(shown.whole()) == before


def test_a_paused_run_that_gave_way_to_one_that_cannot_begin_comes_back_with_its_end(pool, registry, offline):
    page = Handlers(registry, Workbench(pool), FORM, tiny_server.tiny_offer(any_model=True))
    list(page.step(SESSION, *values()))
    said, stream = [], page.run(SESSION, *values(draft=AWAY))
    with pytest.raises(gr.Error):
        said.extend(iter(lambda: json.loads(next(stream)), None))
    assert said[-1]["back"] is True
    assert (len(said[-1]["steps"]), said[-1]["end"]["reason"]) == (1, "stopped")


def test_whatever_the_server_answers_to_a_part_of_the_page_is_a_value_of_json(pool, registry):
    run = registry.show(view_of(shipped_trace("first-visit")), None).id
    asked = {"run": run, "from": 0, "step": 0, "name": "why-slow", "packed": "", "link": ""}
    demo = build(tiny_server.tiny_offer(), registry, Workbench(pool))
    calls = {call.__name__: call for part in demo.blocks.values() for call in getattr(part, "server_fns", ())}
    assert {"since", "opening", "every_k", "standing", "lesson", "kept", "offered", "linked"} <= set(calls)
    answers = {name: json.loads(json.dumps(call(asked))) for name, call in calls.items()}
    assert answers["lesson"]["screens"]
    assert answers["standing"]["about"]["titles"]
    assert set(answers["bring"]) == {"refusal"}


def test_a_model_that_is_looked_at_is_not_loaded(registry, offline):
    page = Handlers(registry, Workbench(ModelPool(allow_any=True)), FORM, tiny_server.tiny_offer(any_model=True))
    rendered, options = page.render_prompt("Hello", AWAY, True, "")
    assert rendered == gr.update(visible=False)
    assert options["visible"] is True  # nobody knows yet whether it has some


def test_the_first_request_and_what_is_measured_are_no_longer_than_the_server_allows(pool, registry, monkeypatch):
    trace = traces.chain()
    monkeypatch.setenv("SPECVIZ_MAX_NEW_TOKENS", "32")
    for request in (make_offer().first, trace_models.request_of(trace)):
        assert request.validate().max_new_tokens == 32


@pytest.mark.parametrize("gains", [True, False])
def test_bfloat16_is_offered_beside_a_target_that_is_here_where_it_is_faster(monkeypatch, gains):
    offer = make_offer(gains_by_bfloat16=gains)
    assert "smollm2:bfloat16" not in {name for _, name in offer.targets}  # it was not fetched
    monkeypatch.setattr(choices, "is_here", lambda name: True)
    offer = make_offer("smollm2", gains_by_bfloat16=gains)
    assert offer.first.target == "smollm2"  # never chosen for a person
    words = {name: words for words, name in offer.targets}.get("smollm2:bfloat16")
    assert words == ("smollm2 in bfloat16: faster, may part at near-ties" if gains else None)
    assert (offer.targets[1][1] == "smollm2:bfloat16") == gains  # beside the target
    assert offer.allows("smollm2:bfloat16")
    assert offer.drafts_for("smollm2:bfloat16", METHODS["draft_model"]) == offer.drafts_for(
        "smollm2", METHODS["draft_model"]
    )


def test_the_lists_name_what_is_not_downloaded(monkeypatch, tmp_path):
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes(b"{}")
    here = {"openai-community/gpt2-large": str(folder / "config.json"), AWAY: str(tmp_path / "config.json")}
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: here.get(name))
    offer = make_offer()
    shown = {name: words for words, name in offer.targets}
    assert shown["fable-target"] == "fable-target"
    assert shown["openai-community/gpt2-large"] == "gpt2-large"
    assert shown[AWAY] == "gpt2 · not downloaded"  # its weights are missing
    drafts = dict(map(reversed, offer.drafts_for("openai-community/gpt2-large", METHODS["draft_model"])))
    assert drafts == {AWAY: "gpt2 · not downloaded", "distilbert/distilgpt2": "distilgpt2 · not downloaded"}
