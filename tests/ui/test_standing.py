"""Laws of the bar while a run stands on the stage: it says how that run was made, and Run says what is missing."""

from dataclasses import replace
from types import SimpleNamespace

import gradio as gr
import pytest

from specviz.drafters import METHODS
from specviz.models.files.hub import is_here
from specviz.models.pool import ModelPool
from specviz.session.workbench import Workbench
from specviz.trace import Header, Trace
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.ui import components
from specviz.ui.choices import make_offer
from specviz.ui.explore.form import Form
from specviz.ui.explore.handlers import Handlers, standing_of
from specviz.ui.explore.standing import OTHERWISE, about_fields, not_followed, request_shown, standing_props
from specviz.ui.registry import Registry
from specviz.ui.view import view_of
from specviz.views.explore.panels import RunButton
from tests.helpers import traces

SESSION = SimpleNamespace(session_hash="one")
OWN = tuple(f"{method.name}.{param.name}" for method in METHODS.values() for param in method.params)


@pytest.fixture(scope="module")
def offer():
    return make_offer()


@pytest.fixture
def page(offer):
    fields = components.setup_fields(offer) | components.drawer_fields(offer.first)
    form = Form.of({"prompt": None, "method": None, "rule": None, **fields, **dict.fromkeys(OWN)})
    return Handlers(Registry(), Workbench(ModelPool()), form, offer)


def shown(page, trace):
    """The values of the fields after the run was put on the stage; None for a field that stays as it was."""
    page._registry.show(view_of(trace), "one")
    updates = page.as_made(SESSION)
    values = [each.get("value") if isinstance(each, dict) else each for each in updates]
    return dict(zip(page.form.names, values, strict=True)), updates


@pytest.mark.parametrize("name", shipped_runs())
def test_the_bar_says_how_each_recorded_run_was_made(page, name):
    trace = shipped_trace(name)
    last, asked = trace.steps[-1].settings, trace.header.request
    fields, _ = shown(page, trace)
    for field in ("prompt", "chat", "seed", "max_new_tokens"):
        assert fields[field] == asked[field]
    for field in ("target", "method", "temperature", "top_k", "top_p"):
        assert fields[field] == getattr(last, field)
    assert fields["draft"] == (last.draft_model or asked["draft"])
    if METHODS[last.method].sets_k and last.k:
        assert fields["k"] == last.k
    if shipped_runs()[name].broken is None:
        assert fields["rule"] == last.rule
    for param, value in last.params.items():
        given = fields[f"{last.method}.{param}"]
        assert ", ".join(given) == value if isinstance(given, list) else given == value


def test_a_model_that_no_list_has_is_in_the_list_that_shows_it(page):
    changed = {"target": "someone/large", "draft_model": "someone/small"}
    fields, updates = shown(page, asked_as(traces.Builder().chain(changed=changed).finish(), **changed))
    assert (fields["target"], fields["draft"]) == ("someone/large", "someone/small")
    for name in ("target", "draft"):
        choices = [value for _, value in updates[page.form.names.index(name)]["choices"]]
        assert fields[name] in choices


def asked_as(trace, **changes):
    """The trace with a request that names a prompt and models."""
    request = {"prompt": "Once", "target": "fable-target", "draft": "fable-draft", "k": 4}
    request |= {"draft" if name == "draft_model" else name: value for name, value in changes.items()}
    events = (replace(each, request=request) if isinstance(each, Header) else each for each in trace.events())
    return Trace(events)


@pytest.mark.parametrize(
    "request_",
    [{}, {"prompt": 5, "target": "x"}, {"prompt": "x", "seed": "<b>"}, {"prompt": "x", "colour": 1}],
)
def test_of_a_run_that_the_bar_cannot_show_no_field_is_touched_and_run_says_so(page, request_):
    trace = traces.chain()
    made = Trace(replace(each, request=request_) if isinstance(each, Header) else each for each in trace.events())
    _, updates = shown(page, made)
    assert all(each == gr.skip() for each in updates)
    props = standing_props(made, page._offer, page._bench.pool)
    assert props.words == OTHERWISE
    assert props.missing.startswith("The bar cannot show how this run was made: ")


def test_run_says_what_is_missing(page):
    def said(trace):
        return standing_props(trace, page._offer, page._bench.pool)

    assert said(shipped_trace("k-8")) == RunButton("Run", missing="", needs=())
    if not is_here("smollm2"):
        props = said(shipped_trace("real-eagle"))
        assert props.words == "Run needs smollm2"
        assert "`python -m specviz get smollm2` fetches it" in props.missing
    far = {"target": "someone/large", "draft_model": "fable-draft"}
    props = said(asked_as(traces.Builder().chain(changed=far).finish(), **far))
    assert (props.words, "Run would look for it" in props.missing) == ("Run needs large", True)
    props = said(shipped_trace("broken-residual"))
    assert props.words == "Run with Speculative sampling"
    assert "not on offer here" in props.missing


def test_on_a_server_with_models_of_its_own_a_strangers_model_is_missing(page):
    far = {"target": "someone/large", "draft_model": "fable-draft"}
    trace = asked_as(traces.Builder().chain(changed=far).finish(), **far)
    props = standing_props(trace, replace(page._offer, any_model=False), page._bench.pool)
    assert props.words == "Run needs large"
    assert "this server offers only its own models" in props.missing


def test_of_a_run_that_has_not_begun_nothing_is_missing(page):
    assert standing_props(Trace(), page._offer, page._bench.pool) == RunButton("Run", missing="", needs=())


def test_a_run_that_left_the_rule_to_its_method_lacks_none(page):
    events = [each for each in traces.chain().events() if isinstance(each, Header)]
    request = {"prompt": "Once", "target": "fable-target", "draft": "fable-draft", "rule": None}
    trace = Trace(replace(each, request=request) for each in events)
    assert not trace.steps
    assert standing_props(trace, page._offer, page._bench.pool).missing == ""


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({"target": "someone/large"}, ["target"]),
        ({"draft_model": "someone/small"}, ["method", "draft"]),
    ],
)
def test_what_is_missing_names_the_fields_that_can_end_the_need(page, changes, needs):
    pair = {"target": "fable-target", "draft_model": "fable-draft"} | changes
    trace = asked_as(traces.Builder().chain(changed=pair).finish(), **pair)
    assert standing_props(trace, page._offer, page._bench.pool).needs == needs


def test_no_file_system_is_asked_for_a_name_that_only_the_trace_has(page, tmp_path):
    """Of a folder that is there the page says the same as of one that is not: it has not looked."""
    said = set()
    for place in (tmp_path, tmp_path / "absent"):
        pair = {"target": str(place), "draft_model": "fable-draft"}
        trace = asked_as(traces.Builder().chain(changed=pair).finish(), **pair)
        props = standing_props(trace, page._offer, page._bench.pool)
        assert props.words == f"Run needs {place.name}"
        said.add(props.missing.replace(str(place), ""))
    assert len(said) == 1


def test_what_no_step_has_followed_is_said_as_the_last_step_was_made(page):
    trace = traces.Builder().chain(changed={"k": 4, "target": "fable-target", "draft_model": "fable-draft"}).finish()
    trace = asked_as(trace)
    told = request_shown(trace).settings
    pool = page._bench.pool
    assert not_followed(trace, told, pool) == {}
    assert not_followed(trace, replace(told, rule=None), pool) == {}
    late = replace(told, num_speculative_tokens=8, draft_temperature=0.5, draft="smol-draft")
    assert not_followed(trace, late, pool) == {"k": 4, "draft": "fable-draft", "draft_temperature": ""}


def test_the_pair_of_the_run_on_the_stage_stays_whatever_else_suits_the_target(offer):
    pair = {"target": "fable-target", "draft_model": "smol-draft"}
    registry = Registry()
    page = Handlers(registry, Workbench(ModelPool()), Form(("prompt",)), offer)
    assert page.fit_target("fable-target", "smol-draft", "draft_model", SESSION)[0]["value"] == "fable-draft"
    registry.show(view_of(asked_as(traces.Builder().chain(changed=pair).finish(), **pair)), "one")
    assert page.fit_target("fable-target", "smol-draft", "draft_model", SESSION)[0]["value"] == "smol-draft"


def test_the_browser_knows_every_field_that_counts_by_a_title(page):
    about = about_fields()
    for method, names in about.counting.items():
        assert set(names) <= {*page.form.names}
        assert {f"{method}.{param.name}" for param in METHODS[method].params} <= set(names)
        assert all(name in about.titles or name in about.whole for name in names)
    assert "k" not in about.counting["none"]
    assert set(about.live) <= set(page.form.names)


def test_a_run_that_is_not_known_tells_nothing(offer):
    for data in (None, 5, {}, {"run": "gone"}, {"run": ["x"]}):
        assert standing_of(Registry(), offer, Workbench(ModelPool()))(data) is None


def test_the_first_fields_of_the_page_come_back(page):
    fields = dict(zip(page.form.names, page.as_at_first(), strict=True))
    assert fields["prompt"] == page._offer.first.prompt
