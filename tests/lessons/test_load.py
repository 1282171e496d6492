"""Lessons: what their files may say, that mistakes are named with file and field, and what the page makes of them."""

import json
import re
from dataclasses import replace

import gradio as gr
import pytest

from specviz.errors import SpecvizError
from specviz.lessons.load import MOST_LESSONS, found_lessons, lessons, read_lesson
from specviz.lessons.types import DISTRIBUTION_RULES, PACES
from specviz.request import Request
from specviz.session import controls
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.ui.explore.lessons import GONE, callbacks_of, live_request
from specviz.ui.registry import Registry
from specviz.views.blocks import BarsBlock, WordsBlock, dump
from specviz.views.check import distributions
from specviz.views.explore.panels import PanelRefusal
from specviz.views.learn import lesson as view
from specviz.views.learn import plan as planned
from tests.helpers.lesson_texts import (
    HOSTILE,
    PIN,
    hostile_lesson,
    lesson,
    other_lesson,
    screen,
    stage_lesson,
    task,
    taught,
)

RUNS = shipped_runs()
LONG = "x" * 10_000


def read(value, file="07-first.json"):
    return read_lesson(value if isinstance(value, str) else json.dumps(value), file, RUNS)


def with_screen(**changes):
    return lesson(screens=[{**screen(), **changes}])


def with_done(**done):
    return with_screen(task=task(done))


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_a_lesson_is_read_as_it_stands():
    found = read(stage_lesson())
    assert (found.name, found.minutes, found.teacher) == ("stage", 7, (("Ask first.",), ("Then show.",)))
    assert found.setup == {"k": 2, "temperature": 0.5}
    assert [each.task.done.kind for each in found.screens] == ["guess", "play", "pin", "throw", "choose"]
    pinned = found.screens[2]
    assert (pinned.show.run, pinned.show.pin.step, pinned.show.pin.ref) == ("first-visit", PIN["step"], PIN["ref"])
    assert (pinned.task.done.status, pinned.task.done.times) == (("rejected",), 2)
    assert found.screens[0].words[1] == ("The draft wrote ", "dog", ", the target ", "fox", ".")
    assert [option.right for option in found.screens[4].task.done.options] == [False, True]


def test_the_runs_of_a_lesson_are_named_once_each():
    assert read(other_lesson()).runs() == ["first-visit", "k-1", "sum", "eagle", "broken-residual"]


def test_a_run_of_a_task_may_have_words_of_its_own(tmp_path):
    done = {"kind": "see", "runs": [{"run": "first-visit", "words": "K 4"}, "k-8", {"run": "k-8", "words": "again"}]}
    own = lesson("own", screens=[screen(task=task(done))])
    assert [(seen.run, seen.words) for seen in read(own).screens[0].task.done.runs] == [
        ("first-visit", "K 4"),
        ("k-8", ""),
    ]
    assert read(own).runs() == ["first-visit", "k-8"]
    with taught(tmp_path, own):
        runs = view.lesson_props("own").screens[0].task.runs
    assert [(run.run, run.title) for run in runs] == [("first-visit", "K 4"), ("k-8", RUNS["k-8"].title)]


COSTS = {"target": "fable-target", "tokens": [1, 5, 33], "ms": [2.0, 3.0, 8.0], "machine": "another one"}


@pytest.mark.parametrize(
    ("here", "times", "machine"),
    [
        ((), ["2.00 ms", "3.00 ms", "8.00 ms"], "another one"),
        ([0.5] * 32, ["2.00 ms", "3.00 ms", "8.00 ms"], "another one"),  # not over as many tokens
        ([1.0, *[1.5] * 31, 4.0], ["1.00 ms", "1.50 ms", "4.00 ms"], "this machine"),
    ],
)
def test_costs_are_this_machine_s_where_it_has_measured_them(here, times, machine, tmp_path):
    with taught(tmp_path, lesson("own", screens=[screen(costs=COSTS)])):
        bars = view.lesson_props("own", pass_ms={"fable-target": here, "other": [9.0] * 40}).screens[0].bars
    assert [row.label for row in bars.rows] == ["1 token", "5 tokens", "33 tokens"]
    assert [row.values for row in bars.rows] == [(time,) for time in times]
    lengths = [row.parts[0][1] for row in bars.rows]
    assert lengths[2] == 100
    assert lengths[1] / lengths[0] == pytest.approx(1.5)
    assert bars.key[0][1] == f"one pass of fable-target, measured on {machine}"


def test_a_pace_is_one_that_a_run_can_have():
    assert tuple(controls.PACES) == PACES


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("[", "07-first.json must be JSON"),
        ('{"name": 1, "name": 2}', "twice"),
        ('{"name": NaN}', "NaN is no number"),
        ("[" * 100_000, "07-first.json must"),
        (" " * 200_001, "at most 100,000 characters"),
        ([], "07-first.json must be an object with name, title"),
        (lesson(extra=1), "07-first.json has no field 'extra'"),
        ({key: value for key, value in lesson().items() if key != "question"}, "the field 'question' (got none)"),
        (lesson(name="Has Spaces"), "07-first.json: name must be small letters"),
        (lesson(name="x" * 200), "name must be small letters"),
        (lesson(title=""), "07-first.json: title must be a text of 1 to 160 characters (got '')"),
        (lesson(title=LONG), "title must be a text of 1 to 160"),
        (lesson(title="a\u202eb"), "title must be a text without control characters"),
        (lesson(title="a\nb"), "title must be a text without control characters"),
        (lesson(minutes=True), "minutes must be a whole number from 1 to 30 (got True)"),
        (lesson(minutes=7.5), "minutes must be a whole number"),
        (
            json.dumps(lesson(minutes=1234567)).replace("1234567", "9" * 5000),
            "minutes must be a whole number|must be JSON",
        ),
        (lesson(teacher=[]), "teacher must be a list of 1 to 8 values"),
        (lesson(setup={}), "setup must be null or at least one field"),
        (lesson(setup={"prompt_ids": [1]}), "setup has no field 'prompt_ids'"),
        (lesson(setup={"k": 99}), "setup: k must be a whole number from 1 to 32"),
        (lesson(setup={"prompt": ""}), "setup: the prompt is empty"),
        (lesson(screens=[]), "screens must be a list of 1 to 12 values"),
        (lesson(screens=[screen()] * 13), "screens must be a list of 1 to 12 values"),
        (with_screen(words="One."), "screens[1]: words must be a list of 1 to 8 values"),
        (with_screen(words=[["a"] * 30]), "screens[1]: words[1] must be a list of 1 to 24 values"),
        (with_screen(words=[["x" * 500, "y" * 500]]), "words[1] must be a paragraph of 1 to 800 characters"),
        (with_screen(words=[["a", 1]]), "screens[1]: words[1][2] must be a text of 1 to 800 characters (got 1)"),
        (
            with_screen(picture="x.png"),
            "screens[1] has no field 'picture'; it may have title, words, show, distribution, costs, task",
        ),
        (with_screen(show={}), "screens[1]: show must be a run"),
        (with_screen(show={"run": "nothing"}), "screens[1]: show: run must be one of first-visit"),
        (with_screen(show={"run": ["sum"]}), "show: run must be one of"),
        (with_screen(show={"compare": ["sum"]}), "show: compare must be a list of 2 to 2 values"),
        (with_screen(show={"compare": ["sum", "nothing"]}), "show: compare[2] must be one of"),
        (
            with_screen(show={"compare": ["sum", "hot"], "run": "sum"}),
            "show must be a run, a pin, both of these, or two",
        ),
        (with_screen(show={"pin": {"step": -1, "ref": "1"}}), "show: pin: step must be a whole number from 0"),
        (with_screen(show={"pin": {"step": 1, "ref": 1}}), "show: pin: ref must be a text"),
        (
            with_screen(distribution={"run": "sum", "step": 0, "ref": "0", "rules": []}),
            "distribution: rules must be a list of 1 to 4",
        ),
        (
            with_screen(distribution={"run": "sum", "step": 0, "ref": "0", "rules": ["<b>"]}),
            "rules[1] must be one of speculative_sampling",
        ),
        (
            with_screen(distribution={"run": "sum", "step": 0, "ref": "0", "rules": ["nonsense"]}),
            "distribution: rules[1] must be one of speculative_sampling, broken:resample_p (got 'nonsense')",
        ),
        (with_screen(costs={**COSTS, "ms": [1.5]}), "screens[1]: costs: ms must have one time for each of tokens"),
        (with_screen(costs={**COSTS, "ms": [1.5, 0, 4]}), "costs: ms[2] must be"),
        (with_screen(costs={**COSTS, "tokens": [1, 5, 101]}), "costs: tokens[3] must be"),
        (
            with_screen(
                costs=COSTS, distribution={"run": "sum", "step": 0, "ref": "0", "rules": ["speculative_sampling"]}
            ),
            "costs must not stand beside a distribution",
        ),
        (with_screen(task={"words": "Do.", "done": {"kind": "play"}}), "task must have the field 'praise'"),
        (with_done(kind="dance"), "task: done: kind must be one of play, made, throw"),
        (with_done(kind=["play"]), "task: done: kind must be one of"),
        (with_screen(task=task([])), "task: done must be an object with a kind"),
        (with_done(kind="play", times=2), "task: done has no field 'times'"),
        (with_done(kind="throw", times=0), "done: times must be a whole number from 1 to 100"),
        (with_done(kind="pin", status=["kept"]), "done: status[1] must be one of accepted, rejected"),
        (with_done(kind="pin"), "done must have the field 'status'"),
        (with_done(kind="see", runs=["nothing"]), "done: runs[1] must be one of"),
        (with_done(kind="see", runs=[{"run": "nothing", "words": "K"}]), "done: runs[1]: run must be one of"),
        (with_done(kind="see", runs=[{"run": "sum"}]), "done: runs[1] must have the field 'words'"),
        (with_done(kind="see", runs=[{"run": "sum", "words": LONG}]), "runs[1]: words must be a text of 1 to 160"),
        (lesson(live=""), "live must be a text of 1 to 800 characters"),
        (lesson(pace="fast"), "pace must be one of slow, normal, full (got 'fast')"),
        (with_done(kind="guess", options=["One"], reveal="r"), "done: options must be a list of 2 to 6 values"),
        (
            with_done(kind="guess", options=["One", {"words": "Two", "right": "yes"}], reveal="r"),
            "done: options[2]: right must be true or false",
        ),
        (
            with_done(kind="guess", options=[{"words": each, "right": True} for each in "ab"], reveal="r"),
            "done: options must have at most one right answer",
        ),
        (
            with_done(kind="choose", options=[{"words": "a", "right": False, "why": "b"}] * 2),
            "done: options must have at least one right answer",
        ),
        (
            with_done(kind="choose", options=[{"words": "a", "right": 1, "why": "b"}] * 2),
            "done: options[1]: right must be true or false (got 1)",
        ),
    ],
)
def test_whatever_is_wrong_is_named_with_its_file_and_field(wrong, said):
    with pytest.raises(SpecvizError) as error:
        read(wrong)
    assert any(each in str(error.value) for each in said.split("|"))
    assert "07-first.json" in str(error.value)
    assert len(str(error.value)) < 500


def test_a_guess_may_have_a_right_answer_and_need_not():
    options = ["One", {"words": "Two", "right": True}, {"words": "Three"}]
    (found,) = read(with_done(kind="guess", options=options, reveal="r")).screens
    assert [(each.words, each.right) for each in found.task.done.options] == [
        ("One", False),
        ("Two", True),
        ("Three", False),
    ]


def test_a_distribution_can_be_drawn_of_every_rule_that_a_lesson_may_name():
    row = distributions.TokenRow("", "others", 0.0)
    assert all(
        hasattr(row, distributions.facts_of(rule.removeprefix(distributions.BROKEN)).residual_column)
        for rule in DISTRIBUTION_RULES
    )


@pytest.mark.parametrize(
    ("run", "step", "ref"), [("first-visit", 999, "0"), ("first-visit", 0, "last"), ("first-visit", 0, "3")]
)
def test_a_distribution_of_a_token_without_both_probabilities_is_refused(run, step, ref, tmp_path):
    distribution = {"run": run, "step": step, "ref": ref, "rules": ["speculative_sampling"]}
    run_words = rf"01-first\.json: screens\[1\]: distribution: the run {run}"
    said = rf"{run_words} must have a draft token .*step {step}, ref '{ref}'"
    with (
        taught(tmp_path, lesson("first", screens=[screen(distribution=distribution)])),
        pytest.raises(SpecvizError, match=said),
    ):
        lessons()


def test_a_faulty_file_takes_no_other_lesson_away(tmp_path):
    with taught(tmp_path, lesson("one"), {**lesson("two"), "minutes": 0}, lesson("three")):
        found = found_lessons()
        assert list(found.lessons) == ["one", "three"]
        assert [fault.partition(" must")[0] for fault in found.faults] == ["02-two.json: minutes"]
        with pytest.raises(SpecvizError, match=r"02-two\.json: minutes"):
            lessons()
        section = planned.plan()
        assert section.blocks[0].words[0].startswith(planned.LEFT_OUT)
        assert "02-two.json: minutes must be" in section.blocks[0].words[-1]
        assert [entry.name for entry in lesson_entries(section)] == ["one", "three"]
        assert listed(section).file is None
        assert view.lesson_props("three").place == "Lesson 2 of 2 · 7 min"


def test_no_more_than_so_many_files_are_read_and_that_is_said(tmp_path):
    with taught(tmp_path, *(lesson(f"number-{number:02}") for number in range(MOST_LESSONS + 1))):
        found = found_lessons()
    assert list(found.lessons) == [f"number-{number:02}" for number in range(MOST_LESSONS)]
    assert found.faults == ("assets/lessons must hold at most 40 files of lessons (got 41)",)


def test_a_lesson_is_that_of_the_assets_in_use(tmp_path):
    for title in ("Before", "After"):
        (tmp_path / title).mkdir()
        with taught(tmp_path / title, lesson("same", title=title)):
            assert view.lesson_props("same").title == title


def test_two_lessons_of_one_name_are_refused(tmp_path):
    with taught(tmp_path, lesson("same")) as folder:
        (folder / "99-again.json").write_text(json.dumps(lesson("same")), "utf-8")
        with pytest.raises(SpecvizError, match=r"99-again\.json: name must be used by one lesson alone"):
            lessons()


@pytest.mark.parametrize(
    "show",
    [{"run": "sum", "pin": {"step": 999, "ref": "0"}}, {"run": "sum", "pin": {"step": 0, "ref": "9"}}, {"pin": PIN}],
)
def test_a_pin_on_what_the_run_does_not_have_is_refused(show, tmp_path):
    said = r"01-first\.json: screens\[1\]: the run \S+ must have what is pinned"
    with taught(tmp_path, lesson("first", screens=[screen(show=show)])), pytest.raises(SpecvizError, match=said):
        lessons()


def test_a_pin_counts_in_the_run_of_an_earlier_screen(tmp_path):
    shows = [screen(show={"run": "first-visit"}), screen(show={"pin": {"step": 0, "ref": "last"}})]
    with taught(tmp_path, lesson("first", screens=shows)):
        assert view.lesson_props("first").screens[1].show.run == "first-visit"


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path):
    with taught(tmp_path) as folder:
        (folder / "01-bad.json").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(SpecvizError, match=r"01-bad\.json cannot be read"):
            lessons()


# ---- what the page makes of them -------------------------------------------------------------------------------------


def listed(section):
    return next(block for block in section.blocks if isinstance(block, planned.LessonsBlock))


def lesson_entries(section):
    return [entry for entry in listed(section).entries if isinstance(entry, planned.LessonEntry)]


def at(clock):
    """Minutes since the plan began."""
    hour, minute = clock.split(":")
    return int(hour) * 60 + int(minute)


def test_the_minutes_of_the_plan_add_up_by_the_clock(tmp_path):
    many = [lesson(f"number-{number}", minutes=number) for number in range(1, 8)]
    with taught(tmp_path, *many):
        entries = listed(planned.plan()).entries
        minutes = [int(entry.minutes.removesuffix(" min")) for entry in entries]
        assert [at(entry.clocks[0]) for entry in entries] == [sum(minutes[:place]) for place in range(len(minutes))]
        assert {entry.clocks[1] for entry in entries} == {None}
        assert listed(planned.plan()).ways == []
        assert planned.plan().title == f"The plan: {sum(minutes)} minutes"
        names = [getattr(entry, "name", entry.title) for entry in entries]
    assert names[3] == planned.PREDICT.title
    assert names[7] == planned.BREAK.title
    assert names[-1] == planned.BE_THE_DRAFT.title
    assert [name for name in names if name.startswith("number")] == [each["name"] for each in many]


def test_the_plan_of_the_lessons_that_come_with_specviz_takes_105_minutes():
    assert listed(planned.plan()).ways[0] == "All of it: 105 minutes"
    assert 8 <= len(lessons()) <= 12


def test_the_short_way_is_part_of_the_plan_and_its_minutes_add_up():
    section = planned.plan()
    way = [entry for entry in listed(section).entries if entry.clocks[1] is not None]
    assert [getattr(entry, "number", entry.title) for entry in way] == ["1", "2", "3", planned.PREDICT.title, "4", "8"]
    minutes = [int(entry.minutes.removesuffix(" min")) for entry in way]
    assert [at(entry.clocks[1]) for entry in way] == [sum(minutes[:place]) for place in range(len(way))]
    assert 40 <= sum(minutes) <= 45
    assert listed(section).ways[1] == f"The short way: {sum(minutes)} minutes"
    assert f"{sum(minutes)} minutes" in dump(section.blocks[0])
    assert listed(planned.plan(has_server=False)).ways == listed(section).ways


def test_the_game_that_follows_a_lesson_in_the_plan_is_offered_at_its_end():
    names = list(lessons())
    games = {name: view.lesson_props(name).game for name in names}
    assert games.pop(names[2]) == planned.GameLink("predict", "Play: predict the verdict")
    assert games.pop(names[-1]) == planned.GameLink("be-the-draft", "Play: you are the draft model")
    assert set(games.values()) == {None}
    assert view.lesson_props(names[-1], has_server=False).game.section == "predict"


def test_the_plan_counts_the_tasks_of_a_lesson(tmp_path):
    with taught(tmp_path, other_lesson(), lesson()):
        tasks = [entry.tasks for entry in lesson_entries(planned.plan())]
        assert view.lesson_props("other").tasks == tasks[0]
    assert tasks[0] == planned.LessonTasks([1, 2, 4], ["0 of 3 tasks", "1 of 3 tasks", "2 of 3 tasks"])
    assert tasks[1] == planned.LessonTasks([], [])


def test_the_plan_in_a_file_offers_nothing_that_needs_a_server(tmp_path):
    with taught(tmp_path, lesson()):
        here, away = listed(planned.plan()), listed(planned.plan(has_server=False))
    assert here.file.href == "specviz/lessons.html"
    assert away.file is None
    last = [listing.entries[-1] for listing in (here, away)]
    assert [entry.section for entry in last] == ["be-the-draft", "predict"]
    assert last[0].minutes == last[1].minutes


def test_the_plan_in_a_file_says_nothing_that_is_not_so_there(tmp_path):
    with taught(tmp_path, lesson()):
        here, away = (dump(planned.plan(has_server=each)) for each in (True, False))
    assert ("save the one file below" in here, "two games" in here) == (True, True)
    assert ("below" in away, "two games" in away, "share this file" in away) == (False, False, True)


def test_no_lessons_are_no_error_but_a_word(tmp_path):
    with taught(tmp_path):
        assert planned.plan().blocks == [WordsBlock(planned.NONE_YET)]


def test_a_lesson_for_the_panel_has_everything_in_words(tmp_path):
    with taught(tmp_path, stage_lesson(), other_lesson()):
        first, second = view.lesson_props("stage"), view.lesson_props("other")
    assert (first.place, first.live) == ("Lesson 1 of 2 · 7 min", "K 2, temperature 0.5.")
    assert (first.next, second.next) == (view.NextLesson("other", "The other lesson"), None)
    assert [each.place for each in first.screens] == [f"{number} of 5" for number in range(1, 6)]
    assert first.screens[2].show.id == "shipped:first-visit"
    assert first.screens[2].task.counts == ["0 of 2", "1 of 2", "2 of 2"]
    assert isinstance(second.screens[0].bars, BarsBlock)
    assert [run.run for run in second.screens[1].task.runs] == ["k-1", "sum"]
    assert [run.run for run in second.screens[3].compare.runs] == ["first-visit", "broken-residual"]


def test_what_is_tried_live_may_have_a_sentence_of_its_own(tmp_path):
    with taught(tmp_path, lesson("said", live="Watch the lanes."), lesson("none", live="Nothing.", setup=None)):
        assert [view.lesson_props(name).live for name in ("said", "none")] == ["Watch the lanes.", ""]


def test_every_lesson_that_comes_with_specviz_makes_its_panel():
    for name, found in lessons().items():
        props = view.lesson_props(name)
        assert len(props.screens) == len(found.screens)
        dump(props)
        for run in found.runs():
            assert shipped_trace(run).steps


def test_a_setup_is_tried_with_what_it_says_and_the_page_s_own_rest(tmp_path, monkeypatch):
    first = Request(prompt="Once", target="big", draft="small", seed=7, max_new_tokens=64)
    found = read(lesson(setup={"k": 2, "prompt": "Two", "max_new_tokens": 300}))
    wanted = live_request(found, first)
    assert (wanted.num_speculative_tokens, wanted.prompt, wanted.seed, wanted.draft, wanted.max_new_tokens) == (
        2,
        "Two",
        7,
        "small",
        300,
    )
    monkeypatch.setenv("SPECVIZ_MAX_NEW_TOKENS", "100")
    assert live_request(found, first).max_new_tokens == 100


def test_a_hostile_lesson_is_texts_and_nothing_else(tmp_path):
    with taught(tmp_path, hostile_lesson()):
        props = view.lesson_props("hostile")
        section = planned.plan()
    assert props.title == HOSTILE
    assert HOSTILE in listed(section).entries[0].question
    assert "prompt of its own" in props.live


# ---- the page's half -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frame():
    """As page.build makes it, as far as the lessons use it."""
    from specviz.ui.choices import make_offer
    from specviz.ui.explore.form import Form, Frame

    return Frame(Registry(), make_offer(), Form(("prompt", "target", "draft", "k")), None, None)


class Asked:
    def __init__(self, **data):
        self._data = data


def test_a_recorded_run_is_shown_by_name_as_one_view_for_all(frame):
    (_, show, _), request = callbacks_of(frame, {}), gr.Request(session_hash="one")
    message = json.loads(show(request, Asked(run="sum", play=True)))
    again = json.loads(show(gr.Request(session_hash="two"), Asked(run="sum")))
    assert (message["run"], message["play"], again.get("play")) == ("shipped:sum", True, None)
    assert message["total"] == len(message["steps"]) == len(shipped_trace("sum").steps)
    assert "state" not in message
    assert frame.registry.current("one") is frame.registry.current("two")


@pytest.mark.parametrize("run", ["nothing", "../x", None, 7, ["sum"], HOSTILE])
def test_an_unknown_run_is_refused_by_name(frame, run):
    _, show, _ = callbacks_of(frame, {})
    with pytest.raises(gr.Error, match="a recorded run must be one of first-visit"):
        show(gr.Request(session_hash="x"), Asked(run=run))


@pytest.mark.parametrize("data", [None, [], 5, {}, {"name": None}, {"name": ["x"]}, {"name": HOSTILE}, {"name": {}}])
def test_whoever_asks_for_no_lesson_is_told_so(frame, data):
    assert callbacks_of(frame, {})[0](data) == PanelRefusal(GONE)


def test_what_was_measured_here_since_the_page_was_made_is_shown(frame):
    pass_ms = {}
    lesson_of = callbacks_of(frame, pass_ms)[0]
    before = lesson_of({"name": "why-slow"}).screens[2].bars
    pass_ms["fable-target"] = [2.0] * 33
    after = lesson_of({"name": "why-slow"}).screens[2].bars
    assert [row.values for row in before.rows] == [("3.19 ms",), ("4.00 ms",), ("8.89 ms",)]
    assert {row.values for row in after.rows} == {("2.00 ms",)}


def test_a_setup_sets_the_pace_only_where_the_lesson_has_one(frame, tmp_path):
    from specviz.ui.explore.form import Form

    frame = replace(frame, form=Form(("k", "pace")))
    with taught(tmp_path, lesson("quick", pace="full"), lesson("as-it-is")):
        filled = [callbacks_of(frame, {})[2](Asked(name=name)) for name in ("quick", "as-it-is")]
    assert [fields[0] for fields in filled] == [2, 2]
    assert filled[0][1] == "full"
    assert filled[1][1] != "full"


def test_a_setup_changes_the_bundled_pairs_first_request_whatever_the_page_begins_with(frame, tmp_path):
    from specviz.ui.choices import make_offer
    from specviz.ui.explore.form import Form

    form = Form(("target", "draft", "chat", "temperature", "pace"))
    frame = replace(frame, form=form, offer=make_offer("smollm2"))
    with taught(tmp_path, lesson("weak", setup={"draft": "fable-draft-tiny"})):
        target, draft, chat, temperature, _ = callbacks_of(frame, {})[2](Asked(name="weak"))
    assert (target["value"], draft["value"]) == ("fable-target", "fable-draft-tiny")
    assert (chat, temperature) == (False, 1.0)


def test_a_setup_that_cannot_be_run_here_says_why_and_the_lesson_is_there_all_the_same(frame, tmp_path):
    lesson_of = callbacks_of(frame, {})[0]
    with taught(tmp_path, lesson("far", setup={"draft": "nobody/nothing"}), lesson("near")):
        object.__setattr__(frame.offer, "any_model", False)
        answer = lesson_of({"name": "far"})
        assert re.search("nobody/nothing' is not on offer here", answer.not_live)
        assert answer.screens
        assert lesson_of({"name": "near"}).not_live == ""
