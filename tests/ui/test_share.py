"""Laws of sharing: what link a run gets, what a link that came does, and how two texts are compared."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import gradio as gr
import pytest

from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.session import run as session
from specviz.session.workbench import Workbench
from specviz.trace import Trace
from specviz.trace.link import Link, decode, encode
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.ui import components
from specviz.ui.explore import share
from specviz.ui.explore.form import Form, Frame
from specviz.ui.registry import Registry
from specviz.ui.view import increments
from specviz.views.blocks import dump
from specviz.views.explore.message import TokenPlace
from specviz.views.explore.panels import GoneRun
from tests.helpers import tiny_server, traces

REQUEST = Request(
    prompt="The fox said", target="tiny-target", draft="tiny-draft", rule="speculative_sampling", max_new_tokens=24
)


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return tiny_server.tiny_library(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def form():
    """The form of fields made as the page makes them."""
    offer = tiny_server.tiny_offer()
    with gr.Blocks():
        fields = {"prompt": components.prompt_box(""), **components.setup_fields(offer)}
        fields |= {"method": gr.Dropdown(), "rule": gr.Dropdown()}
        for method in METHODS.values():
            fields |= {
                f"{method.name}.{each.name}": components.parameter(method, each, offer) for each in method.params
            }
        fields |= {"target": gr.Dropdown(), **components.drawer_fields(offer.first)}
    return Form.of(fields)


class Machine:
    """A server of its own: its registry, its page's form, and what its drawer may ask."""

    def __init__(self, pool, form, **offer):
        self.registry, self.bench, self.offer = Registry(), Workbench(pool), tiny_server.tiny_offer(**offer)
        frame = Frame(self.registry, self.offer, form, None, None)
        self.frame = frame
        self.offered, self.linked, self.compared = share.calls_of(frame)

    def begun(self, request=REQUEST, max_steps=None):
        view = self.registry.add_run("one", session.open_run(request, bench=self.bench))
        list(increments(view, print, max_steps))
        return view

    def link(self, view, **place):
        return self.offered({"run": view.id, **place}).link

    def words(self, view):
        return " ".join(self.offered({"run": view.id}).words)


@pytest.fixture
def machine(pool, form):
    return Machine(pool, form)


@pytest.fixture
def other(pool, form):
    return Machine(pool, form)


def hash_of(trace, count):
    """The hash of a text's first tokens, made without the code under test."""
    ids = [token.id for step in trace.steps for token in step.emitted][:count]
    return hashlib.blake2b(",".join(str(each) for each in ids).encode(), digest_size=6).hexdigest()


def put(form, request, offer):
    """The fields after a link was put into them."""
    return dict(zip(form.names, form.fill(request, offer), strict=True))


def value_of(update):
    return update["value"] if isinstance(update, dict) and "value" in update else update


def test_a_run_made_from_a_link_on_another_server_is_found_to_be_the_same(machine, other, form):
    view = machine.begun()
    link = machine.link(view, step=1, ref="0")
    count = len(view.trace.tokens)
    complete = replace(REQUEST, params=METHODS["draft_model"].validate({}))
    first, second = view.trace.steps[:2]
    mark = (len(first.emitted), second.draft[0].id)
    assert decode(link) == Link(complete, (1, "0"), count, hash_of(view.trace, count), mark)
    assert other.linked({"link": link}).state == "ready"
    fields = {name: value_of(value) for name, value in put(form, decode(link).request, other.offer).items()}
    skipped = {name: 0 for name, value in fields.items() if value == gr.skip() and name != "pace"}
    made = other.begun(form.request([skipped.get(name, fields[name]) for name in form.names])[0])
    told = other.compared({"link": link, "run": made.id})
    assert (told.state, told.at) == ("same", TokenPlace(1, "0"))
    assert "The same text as the shared run" in told.words
    assert told.words[-1].endswith(" The token selected there is selected here.")


PLACES = [
    {"selection": (99, "0"), "mark": None},
    {"selection": (1, "9"), "mark": None},
    {"mark": (0, 5)},
    {"mark": (7, 5)},
]


@pytest.mark.parametrize("changes", PLACES)
def test_a_place_that_the_same_text_did_not_come_from_here_is_said_and_not_selected(machine, changes):
    view = machine.begun()
    link = decode(machine.link(view, step=1, ref="0"))
    told = machine.compared({"link": encode(replace(link, **changes)), "run": view.id})
    assert told.state == "same"
    assert told.at is None
    assert told.words[-1].endswith(" The token selected there is not in this run.")


def test_a_place_without_a_mark_is_selected_as_far_as_it_is_there(machine):
    view = machine.begun()
    link = replace(decode(machine.link(view, step=1, ref="last")), mark=None)
    assert machine.compared({"link": encode(link), "run": view.id}).at == TokenPlace(1, "last")


def test_a_token_that_a_step_did_not_come_to_is_no_place(machine):
    view = machine.begun()
    step = next((step for step in view.trace.steps if all(token.node is not None for token in step.emitted)), None)
    ended = traces.Builder().chain(4, 4, truncated=1).finish() if step is None else view.trace
    assert share.place_in(ended.steps, (0 if step is None else step.index, "last")) is None


def test_another_text_is_said_and_drops_the_selection(machine):
    view = machine.begun()
    link = replace(decode(machine.link(view, step=1, ref="0")), digest="0" * 12)
    told = machine.compared({"link": encode(link), "run": view.id})
    assert told.state == "differs"
    assert told.at is None
    assert "another text" in told.words[0]
    assert "selection was dropped" in told.words[0]


def test_a_text_that_ended_earlier_by_itself_is_another_text(machine):
    view = machine.begun()
    link = decode(machine.link(view))
    link = replace(link, num_tokens=link.num_tokens + 1)
    assert machine.compared({"link": encode(link), "run": view.id}).state == "differs"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"num_speculative_tokens": 3}, "other"),
        ({"seed": 1}, "other"),
        ({"temperature": 0.5}, "other"),
        ({"prompt": "The fox said "}, "other"),
        ({"draft": "tiny-other"}, "other"),
        ({"max_new_tokens": 25}, "other"),
        ({"rule": "block_verification"}, "other"),
        ({"rule": None}, "same"),
        ({"time_limit_s": 60.0}, "same"),
    ],
)
def test_only_the_same_request_is_compared(machine, changes, state):
    link = machine.link(machine.begun())
    made = machine.begun(replace(REQUEST, **changes))
    assert machine.compared({"link": link, "run": made.id}).state == state


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_speculative_tokens": 3}, "K 3 instead of 4"),
        ({"rule": "block_verification"}, "rule Block verification instead of Speculative sampling"),
        (
            {"temperature": 0.5, "top_p": 0.9, "top_k": 40},
            "temperature 0.5 instead of 1, top-k 40 instead of 0, top-p 0.9",
        ),
        ({"draft_temperature": 0.5}, "draft temperature 0.5 instead of none"),
        ({"stop": ("\n",)}, "stop texts ⏎ instead of none"),
        ({"prompt": "Once"}, "another prompt"),
        ({"chat": True}, "chat template on instead of off"),
        ({"chat": True, "chat_options": {"x": False}}, "chat options x=false instead of none"),
        ({"draft": "tiny-other"}, "draft model tiny-other instead of tiny-draft"),
        ({"method": "none", "rule": None, "draft": None}, "method No draft instead of Draft model"),
        ({"params": {"k_policy": "heuristic"}}, "draft length heuristic instead of constant"),
        ({"num_speculative_tokens": 3, "seed": 1, "max_new_tokens": 9, "top_k": 2}, " and more."),
    ],
)
def test_what_is_other_is_named(changes, words):
    trace = traces.chain()
    told = share.comparison(Link(REQUEST), replace(REQUEST, **changes), trace)
    assert told.state == "other"
    assert words in told.words[0]
    assert told.words[0].startswith("The run below differs from the shared one: ")
    assert told.words[0].count(" instead of ") <= 3


def test_what_does_not_count_under_a_method_makes_no_other_run(machine):
    plain = replace(REQUEST, method="none", rule=None, draft=None)
    link = machine.link(machine.begun(plain))
    made = machine.begun(replace(plain, draft="tiny-other", num_speculative_tokens=9))
    assert machine.compared({"link": link, "run": made.id}).state == "same"


def test_nothing_is_said_of_the_text_before_there_is_enough_of_it(machine):
    link = machine.link(machine.begun())
    made = machine.begun(max_steps=2)
    assert machine.compared({"link": link, "run": made.id}).state == "waiting"
    made.run.stop()
    list(increments(made, print))
    told = machine.compared({"link": link, "run": made.id})
    assert told.state == "unknown"
    assert "cannot be compared" in told.words[0]


def test_a_stopped_run_is_shared_as_far_as_it_went(machine):
    view = machine.begun(max_steps=2)
    view.run.stop()
    list(increments(view, print))
    link = machine.link(view)
    assert 0 < decode(link).num_tokens < len(machine.begun().trace.tokens)
    whole = machine.begun()
    assert decode(link).digest == hash_of(whole.trace, decode(link).num_tokens)
    assert machine.compared({"link": link, "run": whole.id}).state == "same"


def test_of_a_run_whose_settings_were_changed_only_its_beginning_is_shared(machine):
    view = machine.begun(max_steps=2)
    view.run.controls.set("num_speculative_tokens", 2)
    list(increments(view, print))
    first = sum(len(step.emitted) for step in view.trace.steps[:2])
    link = decode(machine.link(view, step=5, ref="0"))
    assert (link.request.num_speculative_tokens, link.num_tokens, link.selection) == (4, first, None)
    assert decode(machine.link(view, step=1, ref="0")).selection == (1, "0")
    assert f"first {first} tokens of this run" in machine.words(view)
    told = machine.compared({"link": machine.link(machine.begun()), "run": view.id})
    assert told.state == "unknown", "not a word about models or numbers"
    assert "The selected token comes after them" in " ".join(
        machine.offered({"run": view.id, "step": 5, "ref": "0"}).words
    )
    for place in ({"step": 1, "ref": "0"}, {"step": 999, "ref": "0"}, {}):
        assert "The selected token" not in " ".join(machine.offered({"run": view.id, **place}).words)


def test_whoever_follows_the_link_of_a_run_that_was_changed_is_told_how_far_it_leads(machine):
    view = machine.begun(max_steps=2)
    view.run.controls.set("num_speculative_tokens", 2)
    list(increments(view, print))
    first = sum(len(step.emitted) for step in view.trace.steps[:2])
    told = machine.compared({"link": machine.link(view), "run": machine.begun().id})
    assert told.state == "same"
    assert told.words == [
        "",
        f"The first {first} tokens are the same",
        ". After that the shared run continued with other settings: its file holds it.",
    ]


def test_a_run_that_goes_on_with_other_settings_is_not_waited_for(machine):
    link, view = machine.link(machine.begun()), machine.begun(max_steps=1)
    view.run.controls.set("num_speculative_tokens", 2)
    list(increments(view, print, 1))
    assert view.is_live
    assert machine.compared({"link": link, "run": view.id}).state == "unknown"


def test_a_link_made_while_the_run_goes_on_tells_of_the_text_so_far(machine):
    view = machine.begun(max_steps=3)
    link = decode(machine.link(view))
    assert link.num_tokens == sum(len(step.emitted) for step in view.trace.steps)
    assert link.digest == hash_of(view.trace, link.num_tokens)


def opened(machine, trace=None, **request):
    trace = trace or traces.chain()
    header = type(trace.header).from_dict(trace.header.to_dict() | {"request": {**REQUEST.to_dict(), **request}})
    return machine.registry.keep(Trace([header, *list(trace.events())[1:]]))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"target": "somebody-elses"}, "the model 'somebody-elses' is not on offer here"),
        ({"target": "/srv/models/mine"}, "is not on offer here"),
        ({"method": "telepathy"}, "telepathy"),
        ({"rule": "broken:resample_p"}, "rule must be one of"),
        ({"prompt_ids": [1, 2]}, "token ids"),
        ({"prompt": hashlib.shake_256(b"noise").hexdigest(12_000)}, "at most 12,000 characters"),
        ({"k": 99}, "k must be"),
        ({"later": 1}, "no field 'later'"),
        ({"params": {"depth": 3}}, "no parameter 'depth'"),
    ],
)
def test_a_run_that_cannot_be_made_again_here_has_no_link_but_files(machine, request_, words):
    told = machine.offered({"run": opened(machine, **request_).id})
    assert told.link is None
    assert words in " ".join(told.words)
    assert [name for name, *_ in told.files] == ["page", "page-small", "trace", "tokens", "steps"]


def test_every_recorded_run_has_a_link_or_says_why_not(pool, form):
    machine = Machine(pool, form)
    with_link = set()
    for name in shipped_runs():
        view = machine.registry.keep(shipped_trace(name))
        told = machine.offered({"run": view.id})
        assert told.words
        with_link |= {name} if told.link else set()
        assert machine.compared({"link": encode(Link(REQUEST)), "run": view.id}) is None, "nothing was made here"
    assert set(shipped_runs()) - with_link == {name for name, each in shipped_runs().items() if each.broken}


def test_a_folder_of_this_machine_is_in_no_link_and_in_no_word(pool, form, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "allow_any", True)
    folder = tiny_server.tiny_folder(
        tmp_path / "private-one",
        tiny_server.tiny("llama", vocab_size=len(tiny_server.tiny_tokenizer())),
        tiny_server.tiny_tokenizer(),
    )
    machine = Machine(pool, form, any_model=True)
    told = machine.offered({"run": machine.begun(replace(REQUEST, target=str(folder), max_new_tokens=4)).id})
    assert told.link is None
    assert "'private-one' has no public name" in told.words[0]
    assert str(tmp_path) not in dump(told)


def test_before_the_prompt_is_read_there_is_no_link_yet(machine):
    view = machine.registry.add_run("one", session.open_run(REQUEST, bench=machine.bench))
    assert machine.link(view) is None
    assert "not begun yet" in machine.words(view)


def test_on_a_space_the_link_leads_to_the_page_of_the_space(machine, monkeypatch):
    view = machine.begun()
    assert machine.offered({"run": view.id}).page is None
    monkeypatch.setenv("SPACE_ID", "someone/a-space")
    assert machine.offered({"run": view.id}).page == "https://huggingface.co/spaces/someone/a-space"
    monkeypatch.setenv("SPACE_ID", "someone")
    with pytest.raises(SpecvizError, match="SPACE_ID must be owner/name"):
        machine.offered({"run": view.id})


def test_the_link_of_the_first_run_is_short(pool, form):
    machine = Machine(pool, form)
    view = machine.registry.keep(shipped_trace("first-visit"))
    assert len(machine.link(view, step=len(view.trace.steps) - 2, ref="0")) < 450


def test_the_addresses_of_the_files_are_those_of_the_run(machine):
    view = machine.begun()
    run = f"specviz/{{}}/{view.id}"  # beside the page
    files = {name: address for name, _, _, address in machine.offered({"run": view.id}).files}
    assert files == {
        "page": f"{run.format('page')}.html?charts=1",
        "page-small": f"{run.format('page')}.html?charts=0",
        "trace": run.format("trace"),
        "tokens": f"{run.format('tokens')}.csv",
        "steps": f"{run.format('steps')}.csv",
    }


def test_a_saved_page_shows_what_is_selected(machine):
    view = machine.begun(max_steps=2)

    def pages(**place):
        files = {name: address for name, _, _, address in machine.offered({"run": view.id, **place}).files}
        assert not any("?" in files[name] for name in ("trace", "tokens", "steps"))
        return [files[name].split("?")[1] for name in ("page", "page-small")]

    assert pages(step=1, ref="last") == ["charts=1&step=1&ref=last", "charts=0&step=1&ref=last"]
    for step, ref in NO_PLACES:
        assert pages(step=step, ref=ref) == ["charts=1", "charts=0"]


@pytest.mark.parametrize("name", ["checkpoints/run1", "run1", "checkpoints/run1:int8"])
def test_a_link_that_names_a_folder_of_this_machine_is_refused_by_name(pool, form, tmp_path, monkeypatch, name):
    machine = Machine(pool, form, any_model=True)
    monkeypatch.chdir(tmp_path)
    link = {"link": encode(Link(replace(REQUEST, draft=name.removesuffix(":int8"))))}
    assert machine.linked(link).state == "ready", "as far as is known it is a public name"
    (tmp_path / name.removesuffix(":int8")).mkdir(parents=True)
    told = machine.linked(link)
    assert told.state == "refused"
    assert "would be a local folder" in "".join(told.words)
    (tmp_path / "tiny-draft").mkdir()
    (tmp_path / "fable-draft").mkdir()
    for offered in ("tiny-draft", "fable-draft"):
        assert machine.linked({"link": encode(Link(replace(REQUEST, draft=offered)))}).state == "ready"
    with pytest.raises(SpecvizError, match="would be a local folder"):
        share.open_link(machine.frame, link["link"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, " · Draft model with tiny-target, tiny-draft · K 4 · temperature 1"),
        (
            {"num_speculative_tokens": 6, "temperature": 0.25, "rule": "lenience"},
            " · Draft model with tiny-target, tiny-draft · K 6 · temperature 0.25 · Lenience (lossy)",
        ),
        ({"rule": None}, " · Draft model with tiny-target, tiny-draft · K 4 · temperature 1"),
        (
            {"prompt": "The\n\u202efox\x00\u202e"},
            " · Draft model with tiny-target, tiny-draft · K 4 · temperature 1"
            " · its prompt contains invisible characters: ⟨202E⟩ ⟨0000⟩",
        ),
        (
            {"prompt": "a\tb\x01\x02\x03\x04\x05"},
            " · Draft model with tiny-target, tiny-draft · K 4 · temperature 1"
            " · its prompt contains invisible characters: ⟨0001⟩ ⟨0002⟩ ⟨0003⟩ ⟨0004⟩ …",
        ),
        ({"method": "none", "rule": None, "temperature": 0.0}, " · No draft with tiny-target · temperature 0"),
    ],
)
def test_the_line_of_a_link_says_what_would_be_run(machine, changes, words):
    told = machine.linked({"link": encode(Link(replace(REQUEST, **changes)))})
    assert told.words == ["", "A shared run: press Run to see it", words]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": "owner/not-offered"}, "'owner/not-offered' is not on offer here"),
        ({"draft": "not-offered"}, "'not-offered' is not on offer here"),
        ({"method": "telepathy"}, "telepathy"),
        ({"rule": "typical-ish"}, "rule must be one of"),
        ({"method": "staged", "params": {"first": "owner/not-offered"}}, "not"),
        ({"params": {"<script>": 1}}, "no parameter"),
    ],
)
def test_a_link_to_what_is_not_on_offer_is_refused_by_name_and_sets_nothing(machine, form, changes, words):
    request = replace(REQUEST, **changes)
    told = machine.linked({"link": encode(Link(request))})
    assert told.state == "refused"
    assert words in "".join(told.words)
    with pytest.raises(SpecvizError):
        form.fill(request, machine.offer)


@pytest.mark.parametrize(
    "data", [None, 7, [], "text", {}, {"run": []}, {"run": {"a": 1}, "link": []}, {"link": "A" * 99}]
)
def test_whatever_is_asked_gets_an_answer(machine, data):
    assert machine.offered(data) == GoneRun()
    assert machine.compared(data) is None
    assert machine.linked(data).state == "refused"


NO_PLACES = [("1", "0"), (True, "0"), (-1, "0"), (0, None), (0, "4"), (0, "<b>"), (0, "x" * 100), (999, "0")]


@pytest.mark.parametrize("changes", [{"method": "telepathy"}, {"params": {"depth": 3}}, {"rule": "<b>"}])
def test_a_link_that_was_never_accepted_is_compared_with_nothing_or_something_else(machine, changes):
    made = machine.begun(max_steps=1)
    told = machine.compared({"link": encode(Link(replace(REQUEST, **changes))), "run": made.id})
    assert told is None or told.state == "other"


@pytest.mark.parametrize(("step", "ref"), NO_PLACES)
def test_what_is_no_selection_is_not_carried(machine, step, ref):
    view = machine.begun(max_steps=1)
    assert decode(machine.link(view, step=step, ref=ref)).selection is None


WIDE = {"k": 32, "temperature": 4.73, "top_k": 1_000, "top_p": 0.013, "max_new_tokens": 4096, "seed": 2**53 - 1}


def test_values_beyond_a_slider_are_put_in_exactly_and_the_slider_reaches_them(machine, form):
    updates = put(form, Request.from_dict({**REQUEST.to_dict(), **WIDE}), machine.offer)
    for name, value in WIDE.items():
        assert value_of(updates[name]) == value
        if name in form.ranges:
            assert updates[name]["minimum"] <= value <= updates[name]["maximum"]
    again = put(form, REQUEST, machine.offer)
    assert {name: (again[name]["minimum"], again[name]["maximum"]) for name in ("k", "top_p")} == {
        "k": (1, 16),
        "top_p": (0.05, 1),
    }, "and goes as far as before for other values"


def test_what_a_browser_remembers_of_such_values_comes_back(machine, form):
    updates = put(form, REQUEST, machine.offer)
    given = {name: value_of(update) for name, update in updates.items()} | {"pace": "full"} | WIDE
    own = {f"{method.name}.{each.name}": each.default for method in METHODS.values() for each in method.params}
    back = dict(zip(form.names, form.restore({**given, **own}, machine.offer), strict=True))
    assert {name: value_of(back[name]) for name in WIDE} == WIDE
    assert back["k"]["maximum"] == 32


def test_a_target_that_the_list_lacks_can_be_chosen_from_it_afterwards(machine, form):
    request = replace(REQUEST, target="fable-draft", method="none", rule=None, draft=None)
    listed = put(form, request, machine.offer)["target"]
    assert "fable-draft" in [name for _, name in listed["choices"]]


@pytest.mark.parametrize("name", ["prompt-lookup", "eagle", "medusa", "tree", "early-exit", "one-by-one"])
def test_the_link_of_a_recorded_run_fills_in_what_it_was_made_with(pool, form, name):
    machine = Machine(pool, form)
    link = decode(machine.link(machine.registry.keep(shipped_trace(name))))
    fields = put(form, link.request, machine.offer)
    header = shipped_trace(name).header.request
    assert fields["method"] == header["method"]
    assert fields["prompt"] == header["prompt"]
    assert value_of(fields["target"]) == header["target"]
    own = {name: value_of(fields[f"{header['method']}.{name}"]) for name in header["params"]}
    assert {name: value for name, value in own.items() if not isinstance(value, list) and value} == {
        name: value for name, value in header["params"].items() if value and not isinstance(own[name], list)
    }


def test_no_link_leads_to_another_engines_run():
    with pytest.raises(SpecvizError, match="another engine made it, and its request is not recorded"):
        share.link_to(traces.foreign(), None, tiny_server.tiny_offer())
