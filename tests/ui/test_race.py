"""The first two sections of the Compare page: what may be raced, what a race shows, and any two known runs."""

import json
from dataclasses import replace

import pytest

from specviz.errors import SpecvizError
from specviz.rules import RULES
from specviz.session import run as session
from specviz.session.workbench import Workbench
from specviz.trace import Models, Step, Trace, event_dict
from specviz.ui.registry import Registry
from specviz.ui.reports import race as racing_module
from specviz.ui.reports.race import PAGE, RaceSection
from specviz.ui.reports.report import ReportPage
from specviz.ui.reports.two_runs import TwoRunsSection
from specviz.ui.view import view_of
from specviz.views.compare import race as view
from specviz.views.explore import library as library_view
from specviz.views.explore.panels import RunEntry
from tests.helpers import tiny_server, traces
from tests.helpers.one_file import unpacked

VALUES = {
    "left": "none", "right": "explore", "k_left": "4", "k_right": "4", "temperature": "0.0", "tokens": "8",
    "prompts": "2",
}  # fmt: skip


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return tiny_server.tiny_library(tmp_path_factory.mktemp("models"))


class Page:
    """The two sections for one visitor."""

    def __init__(self, pool):
        self.bench, self.registry, self.offer = Workbench(pool), Registry(), tiny_server.tiny_offer(max_new_tokens=12)
        self.racing = RaceSection(self.bench, self.offer, self.registry)
        sections = [self.racing.section(), TwoRunsSection(self.registry).section()]
        self.report, self.run = ReportPage(sections, self.registry, self.bench), None

    def made(self, **changes):
        run = session.open_run(replace(self.offer.first, **changes), bench=self.bench)
        for _ in run.events():
            pass
        return self.show(run.trace)

    def show(self, trace):
        self.run = self.registry.show(view_of(trace), "me").id
        return self.run

    def look(self):
        messages = [json.loads(text) for text in self.report.look("me", {"place": {"run": self.run}})]
        return {section["id"]: section for section in messages[0]["sections"]}

    def act(self, section, does, **values):
        data = {"section": section, "do": does, "values": values, "place": {"run": self.run}}
        messages = [json.loads(text) for text in self.report.act("me", data)]
        return messages[-1]["sections"][-1] if messages[-1]["sections"] else None


@pytest.fixture
def page(pool):
    return Page(pool)


def control(section, name):
    return next(each for each in section["controls"] + section["options"] if each.get("name") == name)


def values_of(section, name):
    return [value for _, value in control(section, name)["options"]]


def block(section, kind):
    return next(each for each in section["blocks"] if each["kind"] == kind)


def runs_in(section):
    """The table of the two runs that are replayed."""
    return next(each for each in section["blocks"] if each.get("caption") == "The two runs above")


def prompts_in(section):
    return next(each for each in section["blocks"] if each.get("caption") == "Prompt by prompt")


def player_in(section):
    """The two sides as the browser unpacks them."""
    return unpacked(block(section, "side_by_side")["data"])


def test_what_can_run_here_may_be_raced_and_nothing_that_must_be_loaded_first(page):
    page.made()
    setups = values_of(page.look()["race"], "left")
    assert setups[:4] == ["explore", "none", "draft:tiny-draft", "draft:tiny-other"]
    assert {"method:prompt_lookup", "method:early_exit", "method:tree"} <= set(setups)
    assert {"method:medusa", "method:eagle", "method:none"}.isdisjoint(setups)


def test_a_race_shows_the_clock_the_verdict_and_both_runs(page):
    page.made(num_speculative_tokens=3)
    section = page.act("race", "race", **{**VALUES, "k_right": "3"})
    table, player = runs_in(section), player_in(section)
    assert [row[0] for row in table["rows"]] == ["A · No draft", "B · Draft model, tiny-draft, K 3"]
    assert block(section, "side_by_side")["by"] == "time"
    for row, side in zip(table["rows"], player["sides"], strict=True):
        assert side["said"][-1] == f"{row[3]} tokens · {row[4]} target calls"
        assert row[3] == "8"
    assert [each["state"] for each in section["blocks"] if each["kind"] == "verdict"][1] == "exact"


def test_it_continues_the_prompt_of_the_run_with_its_seed(page):
    run = page.made(prompt="The small fox", seed=9, max_new_tokens=8, temperature=0.5)
    section = page.act("race", "race", **{**VALUES, "temperature": "0.5", "prompts": "1"})
    message = player_in(section)["sides"][1]["message"]
    assert message["head"]["prompt"] == [["The small fox", ""]]
    written = "".join(step["written"] for step in message["steps"])
    assert written == page.registry.get(run).trace.text


def test_a_draft_and_a_method_take_the_place_of_the_runs_own(page):
    page.made(method="none")
    section = page.act("race", "race", **{**VALUES, "left": "draft:tiny-other", "right": "method:early_exit"})
    contexts = [dict(side["message"]["steps"][0]["context"]) for side in player_in(section)["sides"]]
    assert contexts[0]["draft"].startswith("tiny-other")
    assert contexts[1]["method"] == "Early exit"


def test_without_a_run_the_pages_first_setup_is_raced(page):
    section = page.act("race", "race", **{**VALUES, "prompts": "1"})
    assert runs_in(section)["rows"][1][0] == "B · Draft model, tiny-draft, K 4"


def of_a_stranger(trace):
    """The same run by a target that is not on offer."""
    events = []
    for event in trace.events():
        if isinstance(event, Models):
            event = replace(event, target=replace(event.target, name="some/body"))
        if isinstance(event, Step):
            event = replace(event, settings=replace(event.settings, target="some/body"))
        events.append(event)
    return Trace(events)


def test_a_run_of_models_that_are_not_here_is_not_raced_but_said(page):
    page.show(of_a_stranger(traces.chain()))
    section = page.look()["race"]
    assert section["blocks"][0]["words"].startswith("The run on Explore cannot be raced here: ")
    assert control(section, "right")["options"][0][0] == "the page's first setup: Draft model, tiny-draft"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"left": "draft:somebody/else"}, "cannot be run on tiny-target here"),
        ({"right": "method:medusa"}, "cannot be run on tiny-target here"),
        ({"temperature": "nan"}, "temperature must be one of"),
        ({"tokens": "100000"}, "tokens must be a whole number"),
        ({"prompts": "-1"}, "prompts must be a whole number"),
        ({"k_right": "0"}, "k right must be a whole number"),
        ({"k_left": "33"}, "k left must be a whole number"),
        ({"own": "x\n" * 13}, "own prompts must be at most 12"),
        ({"own": "x" * 8001}, "own prompts must be at most 12"),
    ],
)
def test_values_from_outside_are_checked(page, wrong, words):
    with pytest.raises(SpecvizError, match=words):
        page.act("race", "race", **{**VALUES, **wrong})


EQUAL = [("none", "none"), ("explore", "explore"), ("draft:tiny-draft", "explore")]


@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_two_equal_setups_are_refused(page, left, right):
    page.made()
    setup = "No draft" if left == "none" else "Draft model, tiny-draft, K 4"
    with pytest.raises(SpecvizError, match=f"A and B are the same setup, {setup}: choose another one, or another K"):
        page.act("race", "race", **{**VALUES, "left": left, "right": right})


def test_two_ks_of_one_setup_are_raced_and_the_titles_say_them(page):
    page.made(num_speculative_tokens=6)
    section = page.look()["race"]
    assert [control(section, name)["value"] for name in ("k_left", "k_right")] == [6, 6]
    chosen = {"left": "draft:tiny-draft", "right": "explore", "k_left": "2", "k_right": "6", "prompts": "1"}
    section = page.act("race", "race", **{**VALUES, **chosen})
    assert [row[0] for row in runs_in(section)["rows"]] == [
        "A · Draft model, tiny-draft, K 2", "B · Draft model, tiny-draft, K 6",
    ]  # fmt: skip


def test_own_prompts_take_the_place_of_the_ready_ones(page):
    page.made()
    section = page.act("race", "race", **{**VALUES, "own": "The small fox\n\n A dog said \n", "prompts": "5"})
    table = prompts_in(section)
    assert [row[0] for row in table["rows"]] == ["The small fox", "A dog said", "all prompts; median ratio"]
    assert player_in(section)["sides"][0]["message"]["head"]["prompt"] == [["The small fox", ""]]


def test_another_prompt_of_a_race_is_replayed_and_its_runs_can_be_saved(page):
    page.made()
    first = page.act("race", "race", **VALUES)
    does = prompts_in(first)["rows"][1][-1]["does"]
    section = page.act(does["section"], does["do"], **does["values"])
    assert prompts_in(section)["marked"] == 1
    heads = [side["message"]["head"]["prompt"] for shown in (first, section) for side in player_in(shown)["sides"]]
    assert heads[0] == heads[1] != heads[2] == heads[3]
    kept = next(iter(page.racing._races.values()))
    runs = kept.result.heats[1].left, kept.result.heats[1].right
    for (_, href), run in zip(block(section, "links")["entries"], runs, strict=True):
        saved = page.registry.get(href.rpartition("/")[2]).trace
        assert [event_dict(event) for event in saved.events()] == [event_dict(event) for event in run.events()]
    again = page.act(does["section"], does["do"], **does["values"])
    assert block(again, "links") == block(section, "links")
    for wrong in ({"race": "nobody"}, {"heat": "2"}, {"heat": "-1"}):
        with pytest.raises(SpecvizError, match=r"this race is gone|heat must be"):
            page.act(does["section"], does["do"], **{**does["values"], **wrong})


def test_the_runs_of_a_race_under_load_say_so_in_their_files(page, monkeypatch):
    page.made()
    monkeypatch.setattr(page.bench.engine.__class__, "__len__", lambda self: 2)
    section = page.act("race", "race", **{**VALUES, "prompts": "1"})
    for _, href in block(section, "links")["entries"]:
        assert page.registry.get(href.rpartition("/")[2]).trace.footer.extra == {"shared_engine": True}


def test_the_oldest_races_make_room(page, monkeypatch):
    monkeypatch.setattr(racing_module, "MOST_STEPS", 10)
    page.made()
    old = prompts_in(page.act("race", "race", **VALUES))["rows"][0][-1]["does"]
    page.act("race", "race", **VALUES)
    assert len(page.racing._races) == 1
    with pytest.raises(SpecvizError, match="this race is gone"):
        page.act("race", "replay", **old["values"])


def test_a_race_stays_when_another_run_comes_on_explore(page):
    page.made()
    page.look()
    chosen = {**VALUES, "left": "method:early_exit", "k_right": "2", "tokens": "9"}
    found = page.act("race", "race", **chosen)
    page.made(prompt="The small fox", num_speculative_tokens=7)
    section = page.look()["race"]
    assert section["blocks"][0]["words"] == view.BEFORE
    assert section["blocks"][1:] == found["blocks"]
    assert {name: str(control(section, name)["value"]) for name in chosen} == chosen
    assert "The small fox" in "".join(section["lead"])
    does = prompts_in(section)["rows"][1][-1]["does"]
    replayed = page.act(does["section"], does["do"], **does["values"])
    assert replayed["blocks"][0]["words"] == view.BEFORE
    assert page.look()["race"] == replayed
    page.act("race", "race", **VALUES)
    assert view.BEFORE not in [each.get("words") for each in page.look()["race"]["blocks"]]


def test_a_temperature_that_only_the_run_before_had_is_not_chosen_beside_another_run(page):
    page.made(temperature=0.33)
    page.look()
    found = page.act("race", "race", **{**VALUES, "temperature": "0.33", "prompts": "2"})
    page.made(temperature=1.0)
    does = prompts_in(found)["rows"][0][-1]["does"]
    for section in (page.look()["race"], page.act(does["section"], does["do"], **does["values"])):
        assert "0.33" not in values_of(section, "temperature")
        assert control(section, "temperature")["value"] == "0.0"


def test_a_lossy_rule_is_named_wherever_the_setup_is(page):
    page.made(rule="ensemble")
    lossy = f"lossy ({RULES['ensemble'].title})"
    assert lossy in control(page.look()["race"], "left")["options"][0][0]
    section = page.act("race", "race", **{**VALUES, "left": "explore", "right": "none"})
    table = runs_in(section)
    assert table["rows"][0][0].endswith(lossy)
    assert f"A · Draft model, tiny-draft, K 4, {lossy} is lossy: its text is not the target's own." in "".join(
        block(section, "verdict")["words"]
    )


def test_the_prompt_of_the_run_stands_above_the_buttons_whatever_the_form_holds(page):
    page.made(prompt="The small fox")
    section = page.look()["race"]
    assert "“The small fox”" in "".join(section["lead"])
    assert control(section, "left")["options"][0][0].startswith("as the run on Explore: ")


def test_of_a_chat_the_question_is_shown_and_not_the_form_in_which_it_was_read(page):
    page.made(prompt="<|user|>Who?<|answer|>")
    header, *events = page.registry.get(page.run).trace.events()
    asked = {**header.request, "prompt": "User: Who?\nAssistant:", "chat": True}
    page.show(Trace([replace(header, request=asked), *events]))
    assert "“Who?”" in "".join(page.look()["race"]["lead"])


@pytest.mark.parametrize(("most", "tokens", "low"), [(40, 40, 8), (5, 5, 5), (4096, 64, 8)])
def test_as_many_tokens_as_the_server_allows_may_be_raced(page, monkeypatch, most, tokens, low):
    monkeypatch.setenv("SPECVIZ_MAX_NEW_TOKENS", str(most))
    field = control(page.look()["race"], "tokens")
    assert (field["value"], field["low"], field["high"]) == (tokens, low, min(most, 256))
    if most < 8:
        section = page.act("race", "race", **{**VALUES, "tokens": str(most)})
        assert runs_in(section)["rows"][0][3] == str(most)


def test_a_stopped_race_leaves_what_it_has_found_and_no_bar(page):
    page.made()
    page.look()
    data = {"section": "race", "do": "race", "values": {**VALUES, "prompts": "3"}, "place": {"run": page.run}}
    work = page.report.act("me", data)
    seen = 0
    for message in work:
        blocks = json.loads(message)["sections"][-1]["blocks"]
        seen += "table" in [each["kind"] for each in blocks]
        if seen == 1:
            page.report.halt("me")
    assert [each["kind"] for each in blocks] == ["words", "verdict", "table"]
    assert blocks[0]["words"].startswith("Stopped at: 6 of 14 runs")
    (row,) = blocks[2]["rows"]
    section = page.act("race", "replay", **row[-1]["does"]["values"])
    assert section["blocks"][0]["words"].startswith("Stopped after 6 of 14 runs")
    assert player_in(section)


def test_a_race_that_was_stopped_at_once_says_no_more_than_that(page):
    page.made()
    page.look()
    data = {"section": "race", "do": "race", "values": VALUES, "place": {"run": page.run}}
    for message in page.report.act("me", data):
        blocks = [each["kind"] for section in json.loads(message)["sections"] for each in section["blocks"]]
        if "progress" in blocks:
            page.report.halt("me")
    assert blocks == ["words"]


def test_a_run_without_a_draft_is_raced_against_one_with_it(page):
    page.made(method="none")
    assert control(page.look()["race"], "right")["value"] == "draft:tiny-draft"
    page.made()
    assert control(page.look()["race"], "right")["value"] == PAGE


def test_any_two_recorded_runs_stand_side_by_side(page):
    section = page.act("two-runs", "show", left="shipped:first-visit", right="shipped:hot")
    assert block(section, "side_by_side")["by"] == "token"
    assert len(player_in(section)["sides"]) == 2
    assert control(section, "left")["value"] == "shipped:first-visit"


def test_runs_of_the_registry_are_shown_by_their_ids(page):
    first, second = page.made(), page.made(seed=8)
    section = page.act("two-runs", "show", left=first, right=second)
    assert {first, second} <= set(values_of(section, "left"))
    sides = player_in(section)["sides"]
    texts = ["".join(step["written"] for step in side["message"]["steps"]) for side in sides]
    assert texts == [page.registry.get(run).trace.text for run in (first, second)]


def test_two_runs_of_one_prompt_are_told_by_what_differs(page):
    first, second, other = (
        page.made(num_speculative_tokens=2),
        page.made(num_speculative_tokens=5),
        page.made(prompt="The small fox"),
    )
    section = page.act("two-runs", "show", left=first, right=second)
    assert block(section, "side_by_side")["titles"] == [
        "A · Draft model · K 2", "B · Draft model · K 5",
    ]  # fmt: skip
    section = page.act("two-runs", "show", left=first, right=other)
    names = [row[0] for row in block(section, "table")["rows"]]
    assert "K 2 · temperature 1, “Once upon a time" in names[0]
    assert names[1].endswith("“The small fox”")
    section = page.act("two-runs", "show", left=first, right=first)
    assert block(section, "side_by_side")["titles"][0].startswith("A · Draft model · tiny-draft · K 2")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 8}, ["seed 5", "seed 8"]),
        ({"rule": "block_verification"}, ["rule its own", "rule Block verification"]),
        ({"top_p": 0.9, "max_new_tokens": 9}, ["top-p 1.0, tokens 12", "top-p 0.9, tokens 9"]),
        ({"min_p": 0.1, "max_new_tokens": 9}, ["min-p 0.0, tokens 12", "min-p 0.1, tokens 9"]),
    ],
)  # fmt: skip
def test_two_runs_whose_titles_are_equal_are_told_apart(page, monkeypatch, changes, words):
    monkeypatch.setattr(library_view, "entry", lambda trace: RunEntry("the same", "", "", ""))
    section = page.act("two-runs", "show", left=page.made(seed=5), right=page.made(**{"seed": 5, **changes}))
    titles = block(section, "side_by_side")["titles"]
    assert titles == [f"{letter} · the same, {each}" for letter, each in zip("AB", words, strict=True)]


def test_two_runs_that_stand_side_by_side_stay_when_another_is_made(page):
    first, second = page.made(), page.made(seed=8)
    page.look()
    before = page.act("two-runs", "show", left=first, right=second)
    third = page.made(seed=9)
    section = page.look()["two-runs"]
    assert section["blocks"] == before["blocks"]
    assert {first, second, third} <= set(values_of(section, "left"))
    assert [control(section, name)["value"] for name in ("left", "right")] == [first, second]


def test_a_run_of_which_nothing_is_known_any_more_makes_room(page):
    first = page.made()
    page.act("two-runs", "show", left=first, right="shipped:hot")
    page.registry._views.pop(first)
    page.made(seed=9)
    assert [each["kind"] for each in page.look()["two-runs"]["blocks"]] == ["words"]


def test_two_runs_are_shown_while_others_have_the_engine(page):
    mine = page.bench.engine.join()
    assert block(page.act("two-runs", "show", left="shipped:first-visit", right="shipped:hot"), "side_by_side")
    page.bench.engine.leave(mine)


@pytest.mark.parametrize("wrong", ["", "nobody", "shipped:nothing", "shipped:../../secret", "x" * 10_000])
def test_a_run_that_is_not_known_is_refused_in_words(page, wrong):
    with pytest.raises(SpecvizError) as refusal:
        page.act("two-runs", "show", left=wrong, right="shipped:hot")
    assert len(str(refusal.value)) < 500


def test_hostile_names_and_prompts_stay_words(page):
    hostile = traces.Builder(traces.HOSTILE).chain(4, 4).trace
    run = page.show(hostile)
    words = dict(map(reversed, control(page.look()["two-runs"], "left")["options"]))[run]
    assert words.startswith("on Explore: Draft model · fable-draft · K 4 · temperature 1, “Once")
    page.act("two-runs", "show", left=run, right=run)
