"""Compare is looked at before it is filled in: something to see in each section, short forms, times of this machine."""

import json
import re
from contextlib import closing
from functools import partial
from itertools import pairwise

import pytest

from specviz.analysis.costs import Costs, measure_costs
from specviz.bench import speed
from specviz.errors import SpecvizError
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.ui.page import reports
from specviz.ui.reports import compare
from specviz.ui.reports.examples import EXAMPLES, PAIR, RACED, TABLES, TEXTS
from specviz.ui.reports.report import LAST_RESULT, NOT_TIMED
from specviz.ui.view import view_of
from specviz.views import blocks
from specviz.views.documentation import document_table, documents
from specviz.views.words import duration
from tests.helpers import tiny_server, traces
from tests.helpers.made_costs import made_costs
from tests.helpers.visits import Visit, made

NOTHING_TO_SEE = {"words", "progress", "details", "download", "links"}
MOST_FIELDS = 3
CONSTANT_TIME = re.compile(r"takes? (a |some |few )*(seconds?|minutes?)")
RUNS = {
    "no run": lambda: None,
    "a recorded chain": lambda: shipped_trace("first-visit"),
    "a recorded head": lambda: shipped_trace("real-eagle"),
    "a run without a draft": lambda: shipped_trace("one-by-one"),
    "a tree": traces.tree,
}


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return tiny_server.tiny_library(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", autouse=True)
def one_round():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "measure_costs", partial(measure_costs, rounds=1))
        yield


@pytest.fixture(scope="module", params=RUNS)
def sections(request, pool):
    return Visit(pool, RUNS[request.param]()).look("compare")


def kinds(section):
    return {block["kind"] for block in section["blocks"]}


def fields(controls):
    return [control for control in controls if control["kind"] != "button"]


def example(section):
    (found,) = [block for block in section["blocks"] if block["kind"] == "example"]
    return found


# ---- something to look at --------------------------------------------------------------------------------------------


def test_each_section_opens_on_something_to_look_at(sections):
    assert [name for name, section in sections.items() if not kinds(section) - NOTHING_TO_SEE] == []


def test_an_example_stands_alone_and_says_where_it_comes_from(sections):
    for name, section in sections.items():
        if "example" in kinds(section):
            assert kinds(section) - NOTHING_TO_SEE == {"example"}, name
            assert re.match("Example, from the (recorded runs?|document) ", "".join(example(section)["source"])), name


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_a_picture_of_a_recorded_run_or_of_a_document(name):
    made_example = EXAMPLES[name]()
    assert any(blocks.is_picture(block) for block in made_example.blocks)
    titles = [run.title for run in shipped_runs().values()]
    named = re.findall("“([^”]*)”", "".join(made_example.source))
    if named:
        assert set(named) <= set(titles)
    else:
        assert made_example.source[1].startswith("Measured · ")
        assert "not measured on this machine" in made_example.source[2]


def test_the_numbers_of_examples_are_those_of_the_runs():
    """Counted from the events again."""
    (bars,) = EXAMPLES["race"]().blocks
    assert [row.values[0] for row in bars.rows] == [f"{len(shipped_trace(name).steps)}" for name in RACED]
    longest = max(len(shipped_trace(name).steps) for name in RACED)
    assert [row.parts[0][1] for row in bars.rows] == pytest.approx(
        [100 * len(shipped_trace(name).steps) / longest for name in RACED], abs=0.001
    )
    table, _ = EXAMPLES["two-runs"]().blocks
    assert [row[1] for row in table.rows] == [f"{len(shipped_trace(name).tokens)}" for name in PAIR]
    (agreement,) = EXAMPLES["many-prompts"]().blocks
    for row, name in zip(agreement.rows, TEXTS, strict=True):
        overlaps = shipped_trace(name).scores[-1].overlap
        assert row.parts[0][1] == pytest.approx(100 * sum(overlaps) / len(overlaps), abs=0.001)
    left, _ = EXAMPLES["why-slow"]().blocks
    steps = shipped_trace("first-visit").steps
    drafted = sum(len(step.draft) for step in steps) / len(steps)
    written = sum(len(step.emitted) for step in steps) / len(steps)
    assert [row.values[0] for row in left.rows] == ["5.00", f"{1 + drafted:.2f}", f"{written:.2f}"]


@pytest.mark.parametrize("head", [*TABLES.values(), "tokens in one target forward"])
def test_a_table_of_a_document_is_as_it_stands_there(head):
    heading, table = document_table("docs/measured.md", head)
    text = documents()["docs/measured.md"].read_text("utf-8").replace("`", "")
    lines = [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in (table.columns, *table.rows)]
    where = [text.index(line) for line in lines]
    assert where == sorted(where)
    above = [text.rindex(f"# {words}\n", 0, where[0]) for words in heading.split(" · ")]
    assert above == sorted(above)
    assert all(before < after for before, after in pairwise(above))


def test_an_unknown_table_of_a_document_is_refused():
    with pytest.raises(StopIteration):
        document_table("docs/measured.md", "no such head")


def test_the_last_result_stays_when_another_run_comes_on_explore(pool):
    visit = Visit(pool, made(pool))
    visit.look("compare")
    found = visit.press("compare", "other-drafts", "ask", {})["other-drafts"]
    other = visit.pages["compare"]._registry.show(view_of(made(pool, seed=5)), "one")
    for visit.run in (other.id, None):
        section = visit.look("compare")["other-drafts"]
        assert kinds(section) == {"words", "example"}
        assert example(section)["source"] == LAST_RESULT
        assert example(section)["blocks"] == found["blocks"]


# ---- a form ----------------------------------------------------------------------------------------------------------


def test_a_form_has_few_fields_in_sight_and_no_button_behind_its_fold(sections):
    long = {name: len(fields(section["controls"])) for name, section in sections.items()}
    assert {name: count for name, count in long.items() if count > MOST_FIELDS} == {}
    assert all(fields(section["options"]) == section["options"] for section in sections.values())


def test_a_field_behind_the_fold_counts(pool):
    visit = Visit(pool)
    section = visit.look("compare")["claim-numbers"]
    values = {field["name"]: str(field["value"]) for field in fields(section["controls"] + section["options"])}
    assert [field["name"] for field in section["options"]] == ["draft_ms"]
    found = visit.press("compare", "claim-numbers", "work", values | {"draft_ms": "67"})["claim-numbers"]
    assert "40 tokens/s" in json.dumps(found["blocks"])  # 4 tokens in 67 + 33 ms


# ---- how long it takes -----------------------------------------------------------------------------------------------


def test_work_that_was_never_done_says_so_and_no_section_tells_a_time_from_a_constant(sections):
    texts = json.dumps(list(sections.values()))
    assert CONSTANT_TIME.findall(texts) == []
    for name, section in sections.items():
        waits = [control for control in section["controls"] if control["kind"] == "button" and not control["free"]]
        assert bool(section["takes"]) == bool(waits), name
        assert section["takes"] in ("", NOT_TIMED)


def test_the_words_that_look_for_a_constant_time_would_find_one():
    for words in ("It takes some seconds.", "It takes a few seconds with", "it takes minutes", "It takes a minute"):
        assert CONSTANT_TIME.search(words)


def test_work_that_was_done_tells_everybody_how_long_it_took_here_and_with_which_settings(pool):
    visit = Visit(pool, made(pool))
    assert visit.look("compare")["costs"]["takes"] == NOT_TIMED
    found = visit.press("compare", "costs", "measure", {"context_length": "16"})["costs"]
    words = r"It took (less than 1|\d+)\xa0s the last time on this machine, with tokens of context 16\."
    assert re.fullmatch(words, found["takes"])
    place = {"run": visit.run, "step": None, "ref": None}
    (page,) = map(json.loads, visit.pages["compare"].look("another", {"place": place}))
    takes = {section["id"]: section["takes"] for section in page["sections"]}
    assert takes["costs"] == found["takes"]
    assert takes["race"] == NOT_TIMED


@pytest.mark.parametrize("end", ["stopped", "refused"])
def test_work_that_did_not_end_tells_no_time(pool, end):
    visit = Visit(pool, made(pool))
    visit.look("compare")
    values = {"context_length": "16" if end == "stopped" else "0"}
    data = {"section": "costs", "do": "measure", "values": values, "place": {"run": visit.run}}
    working = visit.pages["compare"].act("one", data)
    if end == "stopped":
        next(working)
        visit.pages["compare"].halt("one")
        list(working)
    else:
        with pytest.raises(SpecvizError, match="must be a whole number from 1"):
            list(working)
    assert visit.look("compare")["costs"]["takes"] == NOT_TIMED


def test_measured_costs_tell_how_long_the_speed_takes(pool):
    """13 runs of 64 tokens without a draft and 13 with it, from the costs of a step of each."""
    trace = shipped_trace("first-visit")
    costs = made_costs("fable-draft", "fable-target")
    alone_ms = costs.verify_ms[0] + costs.plain_overhead_ms
    step_ms = 4 * costs.draft_ms + costs.verify_ms[4] + costs.overhead_ms
    seconds = 13 * (64 * alone_ms + 64 * 23 / 64 * step_ms) / 1000
    assert len(trace.steps) == 23
    assert speed.estimate_seconds(trace, costs) == pytest.approx(seconds)


@pytest.mark.parametrize("name", ["medusa", "one-by-one"])
def test_costs_that_were_not_measured_for_a_method_tell_no_time(name):
    assert speed.estimate_seconds(shipped_trace(name), made_costs("fable-draft", "fable-target")) is None


def test_the_section_says_that_its_time_comes_from_the_measured_costs(pool, monkeypatch):
    monkeypatch.setattr(Costs, "doubt", "")  # a busy machine's costs tell no time
    visit = Visit(pool, made(pool))
    visit.look("compare")
    found = visit.press("compare", "costs", "measure", {"context_length": "16"})["why-slow"]
    assert re.fullmatch(r"By the costs measured on this machine, it takes about .*(s|min)\.", found["takes"])


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "less than 1 s"), (1.4, "1 s"), (99, "99 s"), (101, "2 min"), (1800, "30 min")]
)
def test_a_time_is_said_without_false_digits(seconds, words):
    assert duration(seconds).replace("\xa0", " ") == words


# ---- while a section works -------------------------------------------------------------------------------------------


def test_what_asks_no_model_can_be_done_while_another_section_works(pool):
    visit = Visit(pool, made(pool))
    visit.look("compare")
    data = {"section": "costs", "do": "measure", "values": {"context_length": "16"}, "place": {"run": visit.run}}
    with closing(visit.pages["compare"].act("one", data)) as working:
        next(working)
        pair = {"left": "shipped:right-rule", "right": "shipped:broken-residual"}
        shown = visit.press("compare", "two-runs", "show", pair)["two-runs"]
        assert "side_by_side" in kinds(shown)
        with pytest.raises(SpecvizError, match="this run is gone"):
            visit.press("compare", "two-runs", "show", {"left": "gone", "right": "gone"})
        with pytest.raises(SpecvizError, match="one task at a time"):
            visit.press("compare", "other-drafts", "ask", {})
        assert json.loads(next(working))["busy"] == "costs"
    assert "side_by_side" in kinds(visit.look("compare")["two-runs"])


def test_a_button_is_free_just_where_its_section_asks_no_model(pool):
    bench = Visit(pool).bench
    for page in reports(Visit(pool).pages["compare"]._registry, bench, tiny_server.tiny_offer()).values():
        found = json.loads(next(page.look("one", {"place": {"run": None}})))
        for section in found["sections"]:
            for control in section["controls"]:
                if control["kind"] == "button" and control["free"]:
                    assert not page._sections[section["id"]].engine
