"""Laws of the pages of sections: what is sent when, one piece of work at a time, turns at the engine, stopping."""

import gc
import json
import threading
import time
from contextlib import ExitStack
from types import FunctionType, ModuleType

import pytest

from specviz.errors import SpecvizError
from specviz.session.workbench import Workbench
from specviz.trace import Step, Trace
from specviz.ui.registry import Registry
from specviz.ui.reports import report as reports_file
from specviz.ui.reports.report import KEPT_S, MOST_SESSIONS, ReportPage
from specviz.ui.reports.section import Look, Section, StagePlace, one_of, whole_number
from specviz.views import blocks
from tests.helpers import traces
from tests.helpers.tiny_server import tiny_library

PLACE = {"run": None, "step": 3, "ref": "1"}


def words(name, *lines):
    return blocks.PageSection(
        name, name.title(), "", [blocks.ButtonControl("go", "Go")], [blocks.WordsBlock(line) for line in lines]
    )


def counting(name, turns, log=None):
    """Work that says how far it is, one turn at a time."""

    def work(look, values):
        try:
            for turn in range(1, turns + 1):
                yield words(name, f"turn {turn} {values.get('with', '')}".strip())
        finally:
            if log is not None:
                log.append(name)

    return work


def always(name, work):
    """A section that depends on nothing, with one button."""
    return Section(name, lambda look: None, lambda look: words(name, "not yet"), {"go": work})


def fails(look, values):
    yield words("fails", "begun")
    raise SpecvizError("it cannot be done")


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return tiny_library(tmp_path_factory.mktemp("models"))


@pytest.fixture
def bench(pool):
    return Workbench(pool)


@pytest.fixture
def ended():
    return []


@pytest.fixture
def report(bench, ended):
    sections = [
        Section("place", lambda look: look.place, lambda look: words("place", f"step {look.place.step}")),
        always("counts", counting("counts", 3, ended)),
        always("fails", fails),
    ]
    return ReportPage(sections, Registry(), bench)


def messages(stream):
    return [json.loads(text) for text in stream]


def look(report, session="one", tab=None, **place):
    return messages(report.look(session, {"place": {**PLACE, **place}, "tab": tab}))


def act(report, section, does="go", session="one", **values):
    return report.act(session, {"section": section, "do": does, "values": values, "place": PLACE})


def lines(section):
    return [block["words"] for block in section["blocks"]]


def test_a_page_comes_whole_and_in_order(report):
    (whole,) = look(report)
    assert whole["order"] == [section["id"] for section in whole["sections"]] == ["place", "counts", "fails"]
    assert whole["busy"] is None


def test_work_sends_its_own_section_alone_and_ends_idle(report):
    look(report)
    said = messages(act(report, "counts", **{"with": "care"}))
    assert [[section["id"] for section in message["sections"]] for message in said] == [["counts"]] * 4
    assert [message["busy"] for message in said] == ["counts"] * 3 + [None]
    assert lines(said[-1]["sections"][0]) == ["turn 3 care"]


def test_what_was_found_stays_while_the_place_changes(report):
    look(report)
    messages(act(report, "counts"))
    (whole,) = look(report, step=7)
    assert lines(whole["sections"][0]) == ["step 7"]
    assert lines(whole["sections"][1]) == ["turn 3"]


def test_another_browser_sees_nothing_of_it(report):
    look(report)
    messages(act(report, "counts"))
    (whole,) = look(report, session="two")
    assert lines(whole["sections"][1]) == ["not yet"]


TAB = "0123456789abcdef" * 2


@pytest.mark.parametrize("left", [True, False], ids=["left first", "still there"])
def test_a_tab_that_comes_back_as_another_session_finds_what_it_had(report, left):
    look(report, tab=TAB)
    messages(act(report, "counts"))
    if left:
        report.leave("one")
    (whole,) = look(report, session="two", tab=TAB)
    assert lines(whole["sections"][1]) == ["turn 3"]
    (other,) = look(report, session="three", tab=TAB[::-1])
    assert lines(other["sections"][1]) == ["not yet"]


def test_work_that_a_lost_connection_ended_says_where_it_was_left_and_may_be_done_again(bench):
    def counts(look, values):
        for turn in (1, 2):
            yield blocks.PageSection("counts", "Counts", "", [], [blocks.progress(turn, 2, f"{turn} of 2 runs")])

    report = ReportPage([always("counts", counts)], Registry(), bench)
    look(report, tab=TAB)
    working = act(report, "counts")
    next(working)
    report.leave("one")
    (whole,) = look(report, session="two", tab=TAB)
    assert lines(whole["sections"][0]) == ["Stopped at: 1 of 2 runs", "not yet"]
    assert whole["busy"] is None
    assert messages(act(report, "counts", session="two"))[-1]["busy"] is None
    working.close()


def test_what_had_begun_by_itself_begins_anew_in_a_tab_that_comes_back(bench):
    def opening(look):
        yield words("opens", "half")
        yield words("opens", "opened")

    report = ReportPage(
        [Section("opens", lambda look: 1, lambda look: words("opens"), opening=opening)], Registry(), bench
    )
    first = report.look("one", {"place": PLACE, "tab": TAB})
    next(first)
    next(first)
    report.leave("one")
    assert lines(look(report, session="two", tab=TAB)[-1]["sections"][0]) == ["opened"]
    first.close()


def test_a_tab_that_stays_away_is_forgotten(report, monkeypatch):
    look(report, tab=TAB)
    messages(act(report, "counts"))
    report.leave("one")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + KEPT_S + 1)
    (whole,) = look(report, session="two", tab=TAB)
    assert lines(whole["sections"][1]) == ["not yet"]


@pytest.mark.parametrize("tab", [None, 3, "", "x" * 32, TAB + "0", ["a"]])
def test_what_is_no_name_of_a_tab_is_none(report, tab):
    look(report, tab=tab)
    messages(act(report, "counts"))
    (whole,) = look(report, session="two", tab=tab)
    assert lines(whole["sections"][1]) == ["not yet"]


def held_by(thing):
    """All that this object keeps alive, itself included, but no types, functions or modules."""
    seen, left = {}, [thing]
    while left:
        each = left.pop()
        if id(each) not in seen and not isinstance(each, (type, FunctionType, ModuleType)):
            seen[id(each)] = each
            left.extend(gc.get_referents(each))
    return list(seen.values())


def test_a_page_keeps_no_run_that_the_server_has_let_go(bench):
    registry = Registry(most_views=1)
    texts = Section("text", lambda look: look.text, lambda look: words("text", str(look.run and len(look.run.steps))))
    report = ReportPage([texts], registry, bench)
    view = registry.keep(traces.chain())
    assert "7" in next(report.look("one", {"place": {"run": view.id}}))
    assert not [each for each in held_by(report._sessions) if isinstance(each, (Step, Trace))]
    registry.keep(traces.empty())
    assert "None" in next(report.look("one", {"place": {"run": view.id}}))


def test_what_all_sessions_see_has_a_bound(report, monkeypatch):
    monkeypatch.setattr(reports_file, "MOST_CHARACTERS", 1_000)
    for number in range(20):
        assert len(next(report.look(f"one{number}", {"place": PLACE}))) > 100
    assert len(report._sessions) <= 11


def test_one_piece_of_work_at_a_time(report):
    look(report)
    first = act(report, "counts")
    next(first)
    second = act(report, "fails")
    assert json.loads(next(second))["busy"] == "counts"
    with pytest.raises(SpecvizError, match="one task at a time"):
        next(second)
    assert messages(first)[-1]["busy"] is None
    assert messages(act(report, "counts"))[-1]["busy"] is None


def test_a_page_opened_meanwhile_says_who_works(report):
    look(report)
    working = act(report, "counts")
    next(working)
    (whole,) = look(report)
    assert whole["busy"] == "counts"


def test_stopping_ends_the_work_after_its_turn_and_keeps_what_it_found(report, ended):
    look(report)
    working = act(report, "counts")
    next(working)
    report.halt("one")
    said = messages(working)
    assert (len(said), said[-1]["busy"], ended) == (1, None, ["counts"])
    assert lines(look(report)[0]["sections"][1]) == ["turn 1"]


def keeping(bench):
    """A section that finds "result 1", "result 2", ... with a word before of how far it is."""
    results = iter(range(1, 9))

    def work(look, values):
        for done in (1, 2):
            yield blocks.PageSection("finds", "Finds", "", [], [blocks.progress(done, 2, f"{done} of 2")])
        yield words("finds", f"result {next(results)}")

    section = Section("finds", lambda look: None, lambda look: words("finds", "not yet"), {"go": work})
    return ReportPage([section], Registry(), bench)


def test_what_was_found_stays_below_new_work_until_there_is_more(bench):
    report = keeping(bench)
    look(report)
    shown = [
        lines(message["sections"][0]) for message in messages(act(report, "finds")) + messages(act(report, "finds"))
    ]
    first = [["1 of 2", "not yet"], ["2 of 2", "not yet"], ["result 1"], ["result 1"]]
    again = [["1 of 2", "result 1"], ["2 of 2", "result 1"], ["result 2"], ["result 2"]]
    assert shown == first + again


def test_stopped_work_is_called_stopped_and_what_was_found_stays(bench):
    report = keeping(bench)
    look(report)
    assert messages(act(report, "finds"))[-1]["say"] == "Finds: done"
    working = act(report, "finds")
    next(working)
    report.halt("one")
    last = messages(working)[-1]
    assert last["say"] == "Finds: stopped"
    assert lines(last["sections"][0]) == ["Stopped at: 1 of 2", "result 1"]
    assert [block["kind"] for block in last["sections"][0]["blocks"]] == ["words", "words"]
    assert last["sections"][0]["controls"] != []
    again = messages(act(report, "finds"))
    assert lines(again[0]["sections"][0]) == ["1 of 2", "result 1"]
    assert again[-1]["say"] == "Finds: done"


def test_work_that_fails_leaves_no_bar_behind(bench):
    def work(look, values):
        yield blocks.PageSection("finds", "Finds", "", [], [blocks.progress(1, 2, "1 of 2")])
        raise SpecvizError("it cannot be done")

    report = ReportPage([always("finds", work)], Registry(), bench)
    look(report)
    with pytest.raises(SpecvizError):
        messages(act(report, "finds"))
    assert lines(look(report)[0]["sections"][0]) == ["Stopped at: 1 of 2", "not yet"]


def test_work_that_asks_no_model_does_not_wait_for_the_engine(bench):
    free = Section("free", lambda look: None, lambda look: words("free"), {"go": counting("free", 2)}, engine=False)
    report = ReportPage([free], Registry(), bench)
    look(report)
    mine = bench.engine.join()
    seen = [len(bench.engine) for _ in act(report, "free")]
    assert seen == [1, 1, 1]
    bench.engine.leave(mine)


def test_two_looks_at_once_begin_a_section_once(bench):
    begun, inside, go = [], threading.Event(), threading.Event()

    def begin(look):
        begun.append(look)
        inside.set()
        go.wait(5)
        return words("slow", "begun")

    report = ReportPage([Section("slow", lambda look: None, begin)], Registry(), bench)
    seen = []
    looks = [threading.Thread(target=lambda: seen.append(look(report))) for _ in range(2)]
    looks[0].start()
    assert inside.wait(5)
    looks[1].start()
    looks[1].join(0.2)
    assert seen == []  # the second one waits for what the first has begun
    go.set()
    for each in looks:
        each.join(5)
    assert len(begun) == 1
    assert [lines(each[0]["sections"][0]) for each in seen] == [["begun"]] * 2


def test_a_section_may_be_made_from_the_one_that_is_shown(bench):
    def again(look, shown):
        return words("on", *(block.words for block in shown.blocks), f"step {look.place.step}")

    on = Section("on", lambda look: look.place.step, lambda look: words("on", "first"), again=again)
    report = ReportPage([on], Registry(), bench)
    assert [lines(look(report, step=step)[0]["sections"][0]) for step in (3, 4, 4)] == [
        ["first"], ["first", "step 4"], ["first", "step 4"],
    ]  # fmt: skip


def test_a_browser_that_goes_away_ends_its_work(report, ended, bench):
    look(report)
    working = act(report, "counts")
    next(working)
    working.close()
    assert ended == ["counts"]
    assert len(bench.engine) == 0
    assert messages(act(report, "counts"))[-1]["busy"] is None


def test_what_fails_is_said_and_leaves_the_page_idle(report, bench):
    look(report)
    working = act(report, "fails")
    assert [json.loads(next(working))["busy"] for _ in range(2)] == ["fails", None]
    with pytest.raises(SpecvizError, match="it cannot be done"):
        next(working)
    assert len(bench.engine) == 0
    assert messages(act(report, "counts"))[-1]["busy"] is None


def test_an_unforeseen_fault_leaves_the_page_idle_too(bench):
    def breaks(look, values):
        yield words("breaks", "begun")
        raise RuntimeError("unforeseen")

    report = ReportPage(
        [Section("breaks", lambda look: None, lambda look: words("breaks"), {"go": breaks})], Registry(), bench
    )
    look(report)
    with pytest.raises(SpecvizError, match="this could not be done: RuntimeError: unforeseen"):
        messages(act(report, "breaks"))
    assert look(report)[0]["busy"] is None
    assert len(bench.engine) == 0


@pytest.mark.parametrize(("section", "does"), [("counts", "burn"), ("nothing", "go"), (None, None), ({}, [])])
def test_unknown_buttons_are_refused(report, section, does):
    look(report)
    with pytest.raises(SpecvizError, match="this page has changed: load it again"):
        messages(act(report, section, does))


def test_between_two_turns_others_have_the_engine(report, bench):
    look(report)
    working = act(report, "counts")
    next(working)
    other = bench.engine.join()
    assert other.ready.is_set()
    done = []
    thread = threading.Thread(target=lambda: done.append(next(working)))
    thread.start()
    thread.join(0.1)
    assert done == []
    bench.engine.leave(other)
    thread.join(5)
    assert len(done) == 1
    working.close()


def test_sections_that_depend_on_what_was_found_begin_anew(bench):
    known = []

    def learn(look, values):
        known.append("a number")
        yield words("learns", "found")

    sections = [
        always("learns", learn),
        Section("uses", lambda look: len(known), lambda look: words("uses", *known)),
    ]
    report = ReportPage(sections, Registry(), bench)
    look(report)
    said = messages(act(report, "learns"))
    assert [(section["id"], lines(section)) for section in said[-1]["sections"]] == [
        ("learns", ["found"]),
        ("uses", ["a number"]),
    ]


def test_work_that_begins_by_itself_begins_once_per_key(bench):
    def opening(look):
        yield words("opens", f"opened at {look.place.step}")

    begins = Section("opens", lambda look: look.place.step, lambda look: words("opens", "not yet"), opening=opening)
    report = ReportPage([begins], Registry(), bench)
    said = look(report)
    assert [message["busy"] for message in said] == ["opens", "opens", None]
    assert lines(said[-1]["sections"][0]) == ["opened at 3"]
    assert len(look(report)) == 1
    assert lines(look(report, step=4)[-1]["sections"][0]) == ["opened at 4"]


def test_opening_work_that_found_the_desk_taken_begins_at_the_next_look(bench):
    def opening(look):
        yield words("opens", f"opened at {look.place.step}")

    sections = [
        Section("opens", lambda look: look.place.step, lambda look: words("opens", "not yet"), opening=opening),
        always("counts", counting("counts", 3)),
    ]
    report = ReportPage(sections, Registry(), bench)
    look(report)
    working = act(report, "counts")
    next(working)
    assert len(look(report, step=5)) == 1
    messages(working)
    assert lines(look(report, step=5)[-1]["sections"][0]) == ["opened at 5"]


@pytest.mark.parametrize(
    "data", [None, [], "x", {"run": 3, "step": -1, "ref": 5}, {"run": [], "step": True, "ref": {}}]
)
def test_a_place_that_is_none_is_none(data):
    assert StagePlace.from_data(data) == StagePlace()


def test_forgotten_browsers_do_not_pile_up(report):
    for number in range(MOST_SESSIONS + 20):
        look(report, session=f"session {number}")
    assert len(report._sessions) == MOST_SESSIONS
    report.leave(f"session {MOST_SESSIONS}")
    assert len(report._sessions) == MOST_SESSIONS - 1


@pytest.mark.parametrize("text", ["", "7.5", "-1", "0", "11", "1e1", "٣", "9" * 20, "x"])
def test_numbers_from_the_browser_are_checked(text):
    with pytest.raises(SpecvizError, match=r"^most tokens must be a whole number from 1 to 10 .got"):
        whole_number({"most_tokens": text}, "most_tokens", 1, 10)


def test_choices_from_the_browser_are_checked():
    assert one_of({"rule": "a"}, "rule", ["a", "b"]) == "a"
    with pytest.raises(SpecvizError, match=r"rule must be one of a, b .got 'c'."):
        one_of({"rule": "c"}, "rule", ["a", "b"])


def test_a_look_without_a_run_has_no_settings():
    assert Look(StagePlace(), None).settings is None


def test_a_page_from_before_the_server_was_started_works_all_the_same(report):
    said = messages(act(report, "counts"))
    assert lines(said[-1]["sections"][0]) == ["turn 3"]


def test_no_two_messages_are_alike(report):
    look(report)
    said = [
        *report.look("one", {"place": PLACE}),
        *report.look("one", {"place": PLACE}),
        *act(report, "counts"),
        *act(report, "counts"),
    ]
    assert len(set(said)) == len(said)


@pytest.mark.parametrize("turns", [1, 2])
def test_a_page_that_goes_away_while_something_opens_leaves_the_desk_free(bench, turns):
    def opening(look):
        yield words("opens", "opened")

    section = Section(
        "opens",
        lambda look: look.place.step,
        lambda look: words("opens"),
        {"go": counting("opens", 1)},
        opening=opening,
    )
    report = ReportPage([section], Registry(), bench)
    opens = report.look("one", {"place": PLACE})
    for _ in range(turns):
        next(opens)
    opens.close()
    assert messages(act(report, "opens"))[-1]["busy"] is None


def test_what_begins_wrongly_says_so_in_its_own_place(bench):
    def breaks(look):
        raise KeyError("strange")

    report = ReportPage(
        [Section("breaks", lambda look: None, breaks), always("counts", counting("counts", 1))], Registry(), bench
    )
    (whole,) = look(report)
    assert "KeyError" in lines(whole["sections"][0])[0]
    assert lines(whole["sections"][1]) == ["not yet"]


def test_work_on_what_is_no_longer_looked_at_shows_nothing_and_what_is_looked_at_is_opened(bench):
    def opening(look):
        for turn in range(3):
            yield words("opens", f"{turn} at {look.place.step}")

    begins = Section("opens", lambda look: look.place.step, lambda look: words("opens", "not yet"), opening=opening)
    report = ReportPage([begins], Registry(), bench)
    first = report.look("one", {"place": PLACE})
    next(first)
    next(first)
    (second,) = look(report, step=9)
    assert lines(second["sections"][0]) == ["not yet"]
    assert second["busy"] == "opens"
    rest = messages(first)
    assert lines(rest[-1]["sections"][0]) == ["2 at 9"]
    assert all("at 3" not in line for message in rest for section in message["sections"] for line in lines(section))
    assert rest[-1]["busy"] is None


def test_work_that_ends_after_one_has_looked_elsewhere_leaves_that_page_alone(report):
    look(report)
    working = act(report, "counts")
    next(working)
    look(report, step=8)
    messages(working)
    (whole,) = look(report, step=8)
    assert lines(whole["sections"][0]) == ["step 8"]


def test_work_whose_section_can_be_made_from_what_it_shows_ends_as_it_was_begun_wherever_one_looks(bench):
    def again(look, shown):
        return words("on", *(block.words for block in shown.blocks), f"step {look.place.step}")

    work = {"go": counting("on", 2)}
    on = Section("on", lambda look: look.place.step, lambda look: words("on", "first"), work, again=again)
    report = ReportPage([on], Registry(), bench)
    look(report)
    working = act(report, "on")
    next(working)
    (meanwhile,) = look(report, step=9)
    assert (lines(meanwhile["sections"][0]), meanwhile["busy"]) == (["turn 1"], "on")
    *_, last = messages(working)
    assert lines(last["sections"][0]) == ["turn 2", "step 9"]
    assert lines(look(report, step=9)[0]["sections"][0]) == ["turn 2", "step 9"]


def test_work_for_a_place_that_one_has_left_while_its_models_were_loaded_shows_nothing(bench):
    meanwhile = []

    def needs(place):
        meanwhile.append(look(report, step=9)[0])
        return ["tiny-other"]

    def work(place, values):
        yield words("asks", f"found at {place.place.step}")

    asks = Section("asks", lambda look: look.place.step, lambda look: words("asks", "not yet"), {"go": work}, needs)
    report = ReportPage([asks], Registry(), bench)
    look(report)
    said = messages(act(report, "asks"))
    assert [message["busy"] for message in meanwhile] == ["asks"]
    assert lines(said[-1]["sections"][0]) == ["not yet"]
    assert "found" not in json.dumps(said)


def test_models_are_loaded_before_the_work_and_not_with_the_engine(bench):
    seen = []

    def work(look, values):
        yield words("asks", ", ".join(bench.pool.loaded_names()))

    def needs(look):
        seen.append(len(bench.engine))
        return ["tiny-other"]

    asks = Section("asks", lambda look: None, lambda look: words("asks"), {"go": work}, needs)
    report = ReportPage([asks], Registry(), bench)
    look(report)
    assert "tiny-other" in lines(messages(act(report, "asks"))[-1]["sections"][0])[0]
    assert seen == [0]


def test_a_model_that_cannot_be_loaded_is_said(bench):
    asks = Section(
        "asks", lambda look: None, lambda look: words("asks"), {"go": counting("asks", 1)}, lambda look: ["none"]
    )
    report = ReportPage([asks], Registry(), bench)
    look(report)
    with pytest.raises(SpecvizError, match="none"):
        messages(act(report, "asks"))
    assert look(report)[0]["busy"] is None


def test_the_end_is_said_aloud_once(report):
    look(report)
    said = [message["say"] for message in messages(act(report, "counts"))]
    assert said == ["", "", "", "Counts: done"]


@pytest.mark.parametrize("gone", [False, True], ids=["stopped", "left"])
def test_opening_work_that_was_broken_off_begins_again(bench, gone):
    begun = []

    def opening(look):
        begun.append(look)
        yield words("opens", "half")
        yield words("opens", "opened")

    acts = {"go": counting("opens", 1)}
    section = Section("opens", lambda look: 1, lambda look: words("opens"), acts, opening=opening)
    report = ReportPage([section], Registry(), bench)
    first = report.look("one", {"place": PLACE})
    next(first)
    next(first)
    if gone:
        first.close()
    else:
        report.halt("one")
        list(first)
    assert messages(act(report, "opens"))[-1]["busy"] is None
    assert len(begun) == 2
    assert lines(look(report)[-1]["sections"][0]) == ["opened"]


def test_opening_work_counts_as_a_job_and_what_is_left_over_begins_with_another_look(bench, ended):
    section = Section(
        "opens",
        lambda look: None,
        lambda look: words("opens", "not yet"),
        opening=lambda look: counting("opens", 1, ended)(look, {}),
    )
    registry = Registry()
    report = ReportPage([section, always("counts", counting("counts", 3, ended))], registry, bench)
    visitor = "near-one"
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(registry.job(visitor, 48))
        stream = report.look(f"{visitor}.tab", {"place": PLACE})
        whole, idle = json.loads(next(stream)), json.loads(next(stream))
        with pytest.raises(SpecvizError, match="go on already"):
            next(stream)
        pressed = act(report, "counts", session=f"{visitor}.tab")
        idle_again = json.loads(next(pressed))
        with pytest.raises(SpecvizError, match="go on already"):
            next(pressed)
    assert (whole["busy"], idle["busy"], idle_again["busy"], ended) == ("opens", None, None, [])
    *_, last = look(report, f"{visitor}.tab")
    assert ended == ["opens"]
    assert lines(last["sections"][0]) == ["turn 1"]
