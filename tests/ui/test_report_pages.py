"""Compare and Check over tiny models: every button, every state without a result, and traces that cannot be asked."""

import json
import re
from contextlib import suppress
from functools import partial

import pytest

from specviz.analysis.costs import MOST_TOKENS, Costs, measure_costs
from specviz.bench import waits
from specviz.errors import SpecvizError
from specviz.session import run as session
from specviz.session.workbench import Workbench
from specviz.trace import Trace
from specviz.ui.page import reports
from specviz.ui.registry import Registry
from specviz.ui.reports import compare
from specviz.ui.reports.check import OPTIONS
from specviz.ui.view import view_of
from tests.helpers import tiny_server, traces
from tests.helpers.few_claims import few_claims
from tests.helpers.visits import Visit, made, said


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return tiny_server.tiny_library(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def trace(pool):
    return made(pool)


@pytest.fixture(scope="module", autouse=True)
def one_round():
    """Costs and waits are measured in one round: how well many agree is a law of `tests/analysis/test_costs.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "measure_costs", partial(measure_costs, rounds=1))
        patch.setattr(waits, "FEWEST", 1)
        yield


BUTTONS = {
    "compare": [
        ("costs", "measure", {"context_length": "16"}),
        ("other-drafts", "ask", {}),
        ("draft-temperature", "ask", {}),
        ("waits", "measure", {}),
        ("why-slow", "speed", {}),
    ],
    "check": [
        ("one_step", "redraw", {"rule": "speculative_sampling", "n": "1000", "seed": "0"}),
        ("end_to_end", "write", {"rule": "speculative_sampling", "tokens": "100", "seed": "0"}),
        ("side_by_side", "judge", {}),
        ("self_checks", "self", {}),
    ],
}

NOT_HERE = r"is another model than|no run to look at|not on offer here|name other models than|has written nothing yet"


def kinds(section):
    return [block["kind"] for block in section["blocks"]]


@pytest.mark.parametrize("page", ["compare", "check"])
def test_without_a_run_every_section_says_what_is_missing(pool, page):
    for section in Visit(pool).look(page).values():
        assert "words" in kinds(section), section["id"]
        assert "chart" not in kinds(section)


@pytest.mark.parametrize("page", ["compare", "check"])
def test_without_a_run_every_button_says_so(pool, page):
    visit = Visit(pool)
    for section, does, values in BUTTONS[page]:
        with pytest.raises(SpecvizError, match="there is no run to look at"):
            visit.press(page, section, does, values)
    assert len(visit.bench.engine) == 0


def test_every_k_needs_no_button(pool, trace):
    section = Visit(pool, trace).look("compare")["every-k"]
    assert kinds(section)[:2] == ["words", "segments"]
    assert section["blocks"][1]["by_k"]["4"]["lengths"] == [len(step.emitted) for step in trace.steps]


@pytest.mark.slow
def test_measured_costs_reach_every_section_that_needs_them(pool, trace, monkeypatch):
    visit = Visit(pool, trace)
    assert said(visit.look("compare")["every-k"]).count("to see the speedup for every K") == 1
    monkeypatch.setattr(Costs, "doubt", "")  # a busy machine's costs are shown without a conclusion
    found = visit.press("compare", "costs", "measure", {"context_length": "16"})
    assert set(found) == {"costs", "every-k", "theory", "why-slow"}
    assert len(pool.pass_ms[trace.steps[-1].settings.target]) == MOST_TOKENS
    assert "With the measured costs, the best is" in said(found["every-k"])
    assert "“Measure the speed” here" in said(found["why-slow"])
    found = visit.press("compare", "why-slow", "speed", {})
    assert kinds(found["why-slow"])[:3] == ["words", "chart", "table"]


@pytest.mark.parametrize("section", ["claims", "poor-cases", "lossy"])
def test_what_introductions_claim_is_measured_without_a_run_and_stays_for_the_next_visitor(pool, section, monkeypatch):
    few_claims(monkeypatch)
    visit = Visit(pool)
    assert kinds(visit.look("compare")[section]) == ["words", "example"]
    shown = visit.press("compare", section, "measure", {})[section]
    assert {block["kind"] for block in shown["blocks"]} == {"table"}
    again = visit.pages["compare"].look("another", {"place": {"run": None, "step": None, "ref": None}})
    assert shown in json.loads(next(again))["sections"]


def test_a_claims_own_numbers_can_be_typed_in(pool):
    visit, given = Visit(pool), {"drafted": "5", "draft_ms": "2", "check_ms": "33", "accepted": "4"}
    assert "114 tokens/s" in said(visit.look("compare")["claim-numbers"])
    found = visit.press("compare", "claim-numbers", "work", given | {"accepted": "2", "check_ms": "38"})
    assert "50 tokens/s" in said(found["claim-numbers"])
    with pytest.raises(SpecvizError, match="accepted must be a whole number from 0 to 5"):
        visit.press("compare", "claim-numbers", "work", given | {"accepted": "6"})


def test_other_drafts_are_asked_and_a_stranger_is_refused_in_words(pool, trace):
    found = Visit(pool, trace).press("compare", "other-drafts", "ask", {})["other-drafts"]
    rows = found["blocks"][0]["rows"]
    assert "tiny-draft" in [row[0] for row in rows]


def test_the_identity_is_shown_at_the_pinned_token(pool, trace):
    step = next(step for step in trace.steps if len([t for t in step.draft if t.is_judged]) > 1)
    visit = Visit(pool, trace)
    for node in ("0", "1"):
        section = visit.look("check", step.index, node)["identity"]
        assert f"Step {step.index + 1}, drafted token {int(node) + 1}:" in said(section)
        assert "the pinned token" in said(section)
        assert "exact (enumerated)" in said(section)


def test_both_sections_say_which_place_they_show(pool, trace):
    found = Visit(pool, trace).look("check")
    assert "the first one of the run, as no token with the draft's probabilities is pinned" in said(found["identity"])
    assert "chosen for this rule, whatever is pinned" in said(found["one_step"])


def test_no_section_denies_the_run_that_stands_on_the_stage(pool, trace):
    visit = Visit(pool, trace)
    messages = visit.pages["check"].look("one", {"place": {"run": visit.run, "step": None, "ref": None}})
    begun = {each["id"]: said(each) for each in json.loads(next(messages))["sections"]}
    assert all("models are reading it once more" in begun[name] for name in ("identity", "one_step"))
    assert [*messages]
    plain = Visit(pool, made(pool, method="prompt_lookup", draft=None)).look("check")
    lacking = "no token of this run was drafted by a draft model with its probability"
    assert all(lacking in said(plain[name]) for name in ("identity", "one_step"))
    unwritten = Visit(pool, Trace([*trace.events()][:1])).look("check")
    assert all("has written nothing yet" in said(unwritten[name]) for name in ("identity", "one_step"))


def test_at_the_last_token_the_identity_is_that_of_the_one_it_replaced(pool, trace):
    step = next(step for step in trace.steps if step.emitted[-1].kind == "resampled")
    cut = next(node for node, token in enumerate(step.draft) if token.status == "rejected")
    section = Visit(pool, trace).look("check", step.index, "last")["identity"]
    assert f"Step {step.index + 1}, drafted token {cut + 1}: the pinned token" in said(section)


def test_redraws_end_with_a_verdict(pool, trace):
    """By formula, by enumeration of the rule's program, and by the redraws."""
    visit, found = Visit(pool, trace), {}
    visit.look("check")
    for rule in ("speculative_sampling", "broken:argmax_target"):
        section = visit.press("check", "one_step", "redraw", {"rule": rule, "n": "2000", "seed": "0"})["one_step"]
        found[rule] = [block["state"] for block in section["blocks"] if block["kind"] == "verdict"]
    assert found == {"speculative_sampling": ["exact", "exact", "consistent"], "broken:argmax_target": ["differs"] * 3}


def test_whole_texts_of_a_broken_rule_are_called_out(pool, trace):
    visit = Visit(pool, trace)
    found = visit.press("check", "end_to_end", "write", {"rule": "broken:argmax_target", "tokens": "600", "seed": "0"})
    assert found["end_to_end"]["blocks"][0] | {"words": ""} == {"kind": "verdict", "state": "differs", "words": ""}


def test_at_temperature_0_whole_texts_are_the_targets_own_greedy_ones(pool):
    visit, values = Visit(pool, made(pool, temperature=0.0)), BUTTONS["check"][1][2] | {"tokens": "136"}
    found = visit.press("check", "end_to_end", "write", values)["end_to_end"]
    assert [block["state"] for block in found["blocks"] if block["kind"] == "verdict"] == ["exact"]


def test_all_rules_and_the_pair_are_judged(pool, trace):
    visit = Visit(pool, trace)
    table = visit.press("check", "side_by_side", "judge", {})["side_by_side"]["blocks"][0]
    assert len(table["rows"]) == len(OPTIONS)
    checks = visit.press("check", "self_checks", "self", {})["self_checks"]["blocks"]
    assert {block["state"] for block in checks} <= {"consistent", "unsure"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"method": "none"},
        {"method": "prompt_lookup", "prompt": "a b a b a b a b"},
        {"temperature": 0.0},
        {"top_k": 3, "top_p": 0.8},
    ],
    ids=str,
)
def test_every_kind_of_run_gives_pages_whose_buttons_work_or_say_why_not(pool, changes):
    visit = Visit(pool, made(pool, **changes))
    for page, buttons in BUTTONS.items():
        assert set(visit.look(page)) >= {section for section, _, _ in buttons}
        for section, does, values in buttons:
            with suppress(SpecvizError):  # refused in words
                assert section in visit.press(page, section, does, values)
    assert len(visit.bench.engine) == 0


def test_a_run_of_graded_reasoning_steps_has_nothing_to_check(pool):
    visit = Visit(pool, made(pool, method="reasoning", max_new_tokens=4))
    seen = visit.look("check")
    for section, does, values in BUTTONS["check"][:2]:
        assert "judged by Graded reasoning steps, which is lossy by design" in said(seen[section])
        with pytest.raises(SpecvizError, match="nothing to check"):
            visit.press("check", section, does, values)
    assert seen["end_to_end"]["controls"] == []


def test_end_to_end_names_the_method_and_offers_the_rules_that_can_judge_it(pool, trace):
    seen = Visit(pool, trace).look("check")["end_to_end"]
    assert "tiny-target, Draft model by tiny-draft, K 4, temperature 1" in said(seen)
    tree = Visit(pool, made(pool, method="tree", max_new_tokens=4)).look("check")["end_to_end"]
    names = json.dumps(tree["controls"], ensure_ascii=False)
    assert "Token tree by tiny-draft" in said(tree)
    assert "typical" in names
    assert "block_verification" not in names


@pytest.mark.parametrize("name", sorted(traces.ALL))
def test_any_trace_can_be_looked_at_and_models_that_did_not_make_it_are_refused(pool, name):
    visit = Visit(pool, traces.ALL[name]())
    visit.look("compare")
    assert re.search(NOT_HERE, said(visit.look("check")["identity"]))
    for page, buttons in BUTTONS.items():
        for section, does, values in buttons:
            with pytest.raises(SpecvizError, match=NOT_HERE):
                visit.press(page, section, does, values)


def forged(trace, **changes):
    """The same run with other models events: changes of the target's or, as `draft`, of the draft's record."""
    draft = changes.pop("draft", {})
    events = []
    for event in trace.events():
        if isinstance(event, session.trace.Models):
            own = None if draft is None else tiny_server.replace(event.draft_model, **draft)
            event = tiny_server.replace(event, target=tiny_server.replace(event.target, **changes), draft_model=own)
        events.append(event)
    return session.trace.Trace(events)


def with_settings(trace, **changes):
    """The same run with other settings in every step."""
    return session.trace.Trace(
        tiny_server.replace(event, settings=tiny_server.replace(event.settings, **changes))
        if isinstance(event, session.trace.Step)
        else event
        for event in trace.events()
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda trace: forged(trace, tokenizer_sha="0" * 8), "tiny-target here is another model"),
        (lambda trace: forged(trace, name="nobody/none"), "the steps of this trace name other models than its models"),
        (lambda trace: forged(trace, draft={"name": "tiny-other"}), "the steps of this trace name other models than"),
        (lambda trace: forged(trace, draft=None), "the steps of this trace name other models than its models event"),
        (lambda trace: with_settings(forged(trace, name="a/b"), target="a/b"), "a/b, which is not on offer here"),
        (lambda trace: with_settings(trace, method="no-such"), "the method 'no-such' or its rule is not known here"),
        (lambda trace: with_settings(trace, rule="any"), "the method 'draft_model' or its rule is not known here"),
    ],
)
def test_a_trace_that_its_models_cannot_have_made_is_refused_everywhere(pool, trace, make, words):
    visit = Visit(pool, make(trace))
    assert words in said(visit.look("check")["identity"])
    visit.look("compare")
    for page, buttons in BUTTONS.items():
        for section, does, values in buttons:
            with pytest.raises(SpecvizError, match=re.escape(words)):
                visit.press(page, section, does, values)
    assert len(visit.bench.engine) == 0


def test_ids_that_the_target_lacks_are_refused(pool, trace):
    header, *events = trace.events()
    tokens = (tiny_server.replace(header.prompt.tokens[0], id=10**6), *header.prompt.tokens[1:])
    strange = session.trace.Trace(
        [tiny_server.replace(header, prompt=tiny_server.replace(header.prompt, tokens=tokens)), *events]
    )
    with pytest.raises(SpecvizError, match="tiny-target cannot have read and written"):
        Visit(pool, strange).press("check", "self_checks", "self", {})


def test_one_crafted_trace_breaks_no_other_visitors_page(pool, trace):
    bench, registry = Workbench(pool), Registry()
    pages = reports(registry, bench, tiny_server.tiny_offer())
    crafted = registry.show(view_of(forged(trace, draft={"name": "tiny-other"})), "bad").id
    honest = registry.show(view_of(trace), "good").id
    place = {"place": {"run": crafted}, "section": "costs", "do": "measure", "values": {"context_length": "16"}}
    with pytest.raises(SpecvizError):
        [*pages["compare"].act("bad", place)]
    (whole,) = pages["compare"].look("good", {"place": {"run": honest}})
    assert "segments" in whole


class Empty:
    """A library with nothing in it, which remembers what it is asked for."""

    def __init__(self, asked):
        self._asked = asked

    def loaded_names(self):
        return []

    def load(self, name):
        self._asked.append(name)


def test_models_are_loaded_by_a_button_alone(tmp_path, trace):
    """A page that is opened asks nobody: not the hub, not the disk."""
    pool = tiny_server.tiny_library(tmp_path)
    visit = Visit(pool, trace)
    asked = []
    visit.bench.pool = Empty(asked)
    assert "Press Redraw" in said(visit.look("check")["identity"])
    assert asked == []
    visit.bench.pool = pool
    found = visit.press("check", "one_step", "redraw", {"rule": "speculative_sampling", "n": "1000", "seed": "0"})
    assert "exact" in said(found["identity"])
