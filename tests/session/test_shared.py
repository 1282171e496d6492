"""Laws of runs that share one engine: fairness, places, pace, limits, measured speed."""

import itertools
import threading
import time
from itertools import pairwise

import pytest

from specviz import trace
from specviz.bench import speed
from specviz.errors import SpecvizError
from specviz.models.busy import other_work
from specviz.session import recorder
from specviz.session import run as session
from specviz.session.run import SLICE_S, Status
from specviz.session.workbench import Workbench
from specviz.trace import metrics as measures
from tests.helpers.clocks import Clock
from tests.helpers.runs import begin, finish, is_free, made, make_steps, statuses, timeless
from tests.helpers.waits import until

START_MS = 1e3  # the pace then lets a first step begin at once
SLICE_MS = 1e3 * SLICE_S + 1  # and what looking at the clock takes
LONG_S = 60


def in_threads(jobs):
    """Runs all of them at once and waits for them."""
    ready = threading.Barrier(len(jobs))

    def work(job):
        ready.wait(LONG_S)
        job()

    threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()


@pytest.fixture
def one_place(named_models, monkeypatch):
    monkeypatch.setenv("SPECVIZ_MAX_RUNS", "1")
    return Workbench(named_models)


@pytest.fixture
def many_places(named_models, monkeypatch):
    monkeypatch.setenv("SPECVIZ_MAX_RUNS", "10")
    return Workbench(named_models)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    clock.ms = START_MS
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


@pytest.fixture(autouse=True)
def news_comes_often(monkeypatch):
    """What waits looks and tells more often than for people."""
    monkeypatch.setattr(session, "TELL_S", 0.05)
    monkeypatch.setattr(session, "LOOK_S", 0.01)


# Fairness


@pytest.mark.parametrize("number", [2, 5])
def test_runs_at_once_give_the_same_traces_as_alone(many_places, number):
    runs = [begin(many_places, seed=seed) for seed in range(number)]
    in_threads([lambda run=run: finish(run) for run in runs])
    for seed, run in enumerate(runs):
        alone = timeless(made(many_places, seed=seed))
        shared = timeless(run.trace)
        shared[-1].pop("shared_engine", None)
        assert shared == alone
    assert is_free(many_places)


@pytest.mark.parametrize("number", [2, 5])
def test_no_run_is_more_than_a_few_steps_ahead(many_places, number, monkeypatch):
    monkeypatch.setattr(recorder, "FLUSH_S", 0.0)  # a step is shown before the next one is made
    runs = [begin(many_places, max_new_tokens=48) for _ in range(number)]
    for run in runs:
        make_steps(run, 1)
    order = []
    all_there = threading.Barrier(number)

    def note(name, run):
        all_there.wait()
        for event in run.events():
            if isinstance(event, trace.Step):
                order.append(name)

    in_threads([lambda name=name, run=run: note(name, run) for name, run in enumerate(runs)])
    num_steps = len(runs[0].trace.steps) - 1
    assert len(order) == number * num_steps
    made_by = dict.fromkeys(range(number), 0)
    for name in order:
        made_by[name] += 1
        assert max(made_by.values()) - min(made_by.values()) <= 12  # a thread may be late on a busy machine


def test_the_engine_is_held_in_a_step_only(bench):
    for _ in begin(bench).events():
        assert len(bench.engine) == 0
        assert len(bench.places) == 1


def test_an_abandoned_run_is_in_nobodys_way(bench):
    expected = timeless(made(bench, seed=2))
    abandoned = begin(bench).events()
    list(itertools.islice(abandoned, 5))
    assert timeless(made(bench, seed=2)) == expected
    abandoned.close()
    assert is_free(bench)


def test_a_run_may_be_resumed_on_another_thread(bench):
    run = begin(bench)
    events = run.events()
    while run.state != "finished":
        in_threads([lambda: next(events, None)])
    assert timeless(run.trace) == timeless(made(bench))


def test_a_run_that_shared_the_engine_is_marked(many_places):
    alone = made(many_places)
    runs = [begin(many_places, max_new_tokens=60) for _ in range(4)]
    in_threads([lambda run=run: finish(run) for run in runs])
    assert alone.footer.extra == {}
    assert {"shared_engine": True} in [run.trace.footer.extra for run in runs]


# Places


def test_who_finds_no_place_is_told_how_many_go_first(one_place):
    first, *others = (begin(one_place, seed=seed) for seed in range(3))
    events = first.events()
    next(events)
    waiting = [run.events() for run in others]
    told = [None, None]
    for number, queue in enumerate(waiting):
        in_threads([lambda number=number, queue=queue: told.__setitem__(number, next(queue))])
    assert told == [Status("queued", "waiting for a free place", ahead) for ahead in (1, 2)]
    assert [run.state for run in others] == ["queued", "queued"]
    events.close()
    for run, queue in zip(others, waiting, strict=True):
        assert statuses(queue)[-1] == Status("running")
        assert run.trace.footer.reason == "length"
    assert is_free(one_place)


def test_a_paused_run_gives_its_place_away(one_place):
    paused = begin(one_place)
    make_steps(paused, 2)
    assert made(one_place, seed=2).footer.reason == "length"
    assert timeless(finish(paused)) == timeless(made(one_place))


def test_stopping_in_the_queue_ends_the_wait(one_place):
    holder = one_place.places.join()
    run = begin(one_place)
    events = run.events()
    assert next(events).state == "queued"
    run.stop()
    assert list(events) == [Status("finished")]
    assert (run.state, run.trace.header, len(one_place.places)) == ("finished", None, 1)
    one_place.places.leave(holder)


def test_leaving_the_queue_lets_others_move_up(one_place):
    holder = one_place.places.join()
    gone, patient = begin(one_place).events(), begin(one_place).events()
    assert (next(gone).ahead, next(patient).ahead) == (1, 2)
    gone.close()
    assert next(patient).ahead == 1
    one_place.places.leave(holder)
    assert [type(event) for event in patient][-1] is trace.Footer


@pytest.mark.parametrize("num_steps", [0, 1])
def test_waiting_for_the_engine_is_said_and_can_be_stopped(bench, num_steps):
    run = begin(bench)
    if num_steps:
        make_steps(run, num_steps)
    holder = bench.engine.join()
    told = []
    for event in run.events():
        told.append(event)
        if event == Status("queued", "waiting for the engine", 1):
            run.stop()
    assert run.state == "finished"
    assert (len(run.trace.steps), len(bench.engine)) == (num_steps, 1)
    assert told[-1] == (run.trace.footer if num_steps else Status("finished"))
    bench.engine.leave(holder)


def test_a_run_that_waits_says_so_once_in_a_while(bench, monkeypatch):
    """Sixty that wait would otherwise keep the server busy with their words."""
    monkeypatch.setattr(session, "TELL_S", 0.1)
    holder = bench.engine.join()
    run, said = begin(bench), []
    for event in run.events():
        if event == Status("queued", "waiting for the engine", 1):
            said.append(time.monotonic())
        if len(said) == 3:
            run.stop()
    assert min(late - early for early, late in pairwise(said)) >= 0.09
    bench.engine.leave(holder)


def test_a_waiting_run_that_nobody_reads_on_holds_nobody_up(bench):
    holder = bench.engine.join()
    asleep = begin(bench).events()
    assert Status("queued", "waiting for the engine", 1) in asleep
    bench.engine.leave(holder)
    assert made(bench, seed=2).footer.reason == "length"
    assert [type(event) for event in asleep][-1] is trace.Footer


# Time limits


def test_the_time_limit_ends_a_run(bench, clock):
    recorded = finish(begin(bench, pace="slow", time_limit_s=2.5))
    assert clock.ms - START_MS == pytest.approx(2500, abs=SLICE_MS)
    assert recorded.footer.reason == "time"
    assert len(recorded.steps) == 3


def test_a_pause_does_not_use_up_the_time_limit(bench, clock):
    run = begin(bench, time_limit_s=1, max_new_tokens=8)
    make_steps(run, 1)
    clock.sleep(5)
    assert finish(run).footer.reason == "length"


def test_the_time_limit_counts_all_parts_of_a_run_together(bench, clock):
    run = begin(bench, pace="slow", time_limit_s=2.5)
    while run.state != "finished":
        list(run.events(max_steps=1))
    assert run.trace.footer.reason == "time"
    assert len(run.trace.steps) == 3


def test_the_queue_does_not_use_up_the_time_limit(one_place, clock):
    holder = one_place.places.join()
    run = begin(one_place, time_limit_s=1, max_new_tokens=8)
    events = run.events()
    assert next(events).state == "queued"
    clock.sleep(5)
    one_place.places.leave(holder)
    assert [type(event) for event in events][-1] is trace.Footer
    assert run.trace.footer.reason == "length"


# Pace


def test_pace_waits_between_steps_and_is_no_part_of_their_speed(bench, clock):
    run = begin(bench, pace="normal")
    make_steps(run, 3)
    waits = [step.timing.wait_ms for step in run.trace.steps]
    assert waits == [pytest.approx(wait, abs=1) for wait in (0, 600, 600)]
    own_ms = sum(step.timing.total_ms - step.timing.wait_ms for step in run.trace.steps)
    assert 0 < own_ms <= clock.ms - START_MS - sum(waits) < 1
    num_tokens = len(run.trace.tokens)
    assert measures.metrics(run.trace)["tokens_per_s"] == pytest.approx(1e3 * num_tokens / own_ms, rel=1e-6)


@pytest.mark.parametrize("control", [("pace", "full"), ("paused", True), ("stopped", True)])
def test_a_change_of_mind_ends_the_wait_at_once(bench, clock, control):
    run = begin(bench, pace="slow")
    clock.meanwhile = lambda: clock.ms - START_MS >= 200 and run.controls.set(*control)
    finish(run)
    assert clock.ms - START_MS == pytest.approx(200, abs=SLICE_MS)


def test_a_slow_run_is_in_nobodys_way(bench, clock):
    slow, others = begin(bench, pace="slow"), []
    clock.meanwhile = lambda: others.append(made(bench, seed=2)) or slow.stop()
    in_threads([lambda: finish(slow)])
    assert [other.footer.extra for other in others] == [{}]


# Measured speed


ALMOST_FULL = tuple(1 + number % 200 for number in range(246))


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    monkeypatch.setattr(speed, "ROUNDS", 3)


def measure(request, bench):
    *_, last = bench.in_turns(speed.measure_in_rounds(request, bench))
    return last.speed


def test_a_measurement_says_how_fast_both_sides_were_and_between_what_their_ratio_lies(bench):
    found = measure(begin(bench, prompt="", prompt_ids=ALMOST_FULL).request, bench)
    assert found.baseline_tokens_per_s > 0
    assert found.tokens_per_s > 0
    assert found.num_tokens == 256 - len(ALMOST_FULL)
    assert 1 <= found.tokens_per_call <= 1 + found.num_tokens
    low, high = found.found.between
    assert 0 < low <= found.found.ratio <= high <= found.tokens_per_call
    assert is_free(bench)


def test_what_was_measured_is_no_baseline_of_the_runs_that_follow(bench):
    """It was another moment, under another load."""
    measure(begin(bench, prompt="", prompt_ids=ALMOST_FULL).request, bench)
    later = made(bench)
    assert later.footer.baseline is None
    assert measures.metrics(later)["speedup"] is None


def test_other_work_of_this_process_is_noticed_while_it_measures(bench):
    request = begin(bench, prompt="", prompt_ids=ALMOST_FULL).request
    for news in bench.in_turns(speed.measure_in_rounds(request, bench)):
        if news.round == 2:
            with other_work.work():
                pass  # between two turns: in nobody's way
    assert news.speed.doubt != "shared"
    with other_work.work():
        assert measure(request, bench).doubt == "shared"


def test_what_cannot_be_measured_is_said(bench):
    with pytest.raises(SpecvizError, match="no room"):
        measure(begin(bench, prompt="", prompt_ids=(1,) * 256).request, bench)
    assert is_free(bench)


def test_a_measurement_waits_for_its_turn(bench):
    holder, found = bench.engine.join(), []
    request = begin(bench, prompt="", prompt_ids=ALMOST_FULL).request
    measuring = threading.Thread(target=lambda: found.append(measure(request, bench)))
    measuring.start()
    until(lambda: len(bench.engine) == 2)
    assert found == []
    bench.engine.leave(holder)
    measuring.join(LONG_S)
    assert found[0].tokens_per_s > 0
