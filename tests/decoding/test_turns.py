"""Turns: in order, never more than the capacity, shared by visitors, and nobody is left behind or kept waiting."""

import threading
import time

import pytest

from specviz.decoding import turns
from specviz.decoding.turns import Asker, FairQueue, Turn, Unwanted, aside, clock, give_way, waited_s
from specviz.session.workbench import Workbench
from tests.helpers.waits import PATIENCE_S, until


@pytest.fixture
def short(monkeypatch):
    """Every pause ends a piece."""
    monkeypatch.setattr(turns, "PIECE_S", 0.0)


def test_turns_come_in_the_order_of_joining():
    lock = FairQueue()
    tickets = [lock.join() for _ in range(4)]
    assert [ticket.ready.is_set() for ticket in tickets] == [True, False, False, False]
    assert [lock.ahead(ticket) for ticket in tickets] == [0, 1, 2, 3]
    for i, ticket in enumerate(tickets):
        assert ticket.ready.is_set()
        lock.leave(ticket)
        assert [waiting.ready.is_set() for waiting in tickets[i + 1 :]][:1] in ([True], [])


def test_capacity_counts_holders():
    lock = FairQueue(2)
    one, two, three = lock.join(), lock.join(), lock.join()
    assert (one.ready.is_set(), two.ready.is_set(), three.ready.is_set()) == (True, True, False)
    assert lock.ahead(three) == 1
    lock.leave(two)
    assert three.ready.is_set()


def test_giving_up_a_place_lets_the_next_one_move_up():
    lock = FairQueue()
    holder, quitter, patient = lock.join(), lock.join(), lock.join()
    lock.leave(quitter)
    lock.leave(quitter)
    assert lock.ahead(patient) == 1
    lock.leave(holder)
    assert patient.ready.is_set()
    assert len(lock) == 1


def test_who_stepped_aside_is_passed_over_and_keeps_the_place():
    lock = FairQueue()
    holder, away, patient = lock.join(), lock.join(), lock.join()
    assert lock.step_aside(away)
    assert lock.ahead(away) == 1
    lock.leave(holder)
    assert (away.ready.is_set(), patient.ready.is_set()) == (False, True)
    lock.step_back(away)
    assert not away.ready.is_set()
    lock.leave(patient)
    assert away.ready.is_set()
    assert not lock.step_aside(away)


def test_never_more_holders_than_capacity_and_everyone_gets_a_turn():
    lock, inside, most, turns = FairQueue(3), [0], [0], [0] * 12
    guard = threading.Lock()

    def visit(number):
        for _ in range(20):
            ticket = lock.join()
            assert ticket.ready.wait(10)
            with guard:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                turns[number] += 1
            with guard:
                inside[0] -= 1
            lock.leave(ticket)

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert turns == [20] * 12
    assert 1 <= most[0] <= 3
    assert len(lock) == 0


def served(lock, tickets):
    """The visitors of these tickets in the order in which the engine serves them."""
    order, waiting = [], list(tickets)
    while waiting:
        (now,) = [ticket for ticket in waiting if ticket.ready.is_set()]
        order.append(now.visitor)
        waiting.remove(now)
        lock.leave(now)
    return order


def test_a_visitor_with_many_jobs_has_as_many_turns_as_one_with_a_single_job():
    lock = FairQueue()
    tickets = [lock.join("busy") for _ in range(4)] + [lock.join("patient") for _ in range(2)]
    assert served(lock, tickets) == ["busy", "patient", "busy", "patient", "busy", "busy"]


def test_who_comes_again_at_once_waits_until_all_others_have_had_their_turn():
    lock = FairQueue()
    tickets = [lock.join(visitor) for visitor in "abc"]
    order = []
    for _ in range(9):
        (now,) = [ticket for ticket in tickets if ticket.ready.is_set()]
        order.append(now.visitor)
        lock.leave(now)
        tickets[tickets.index(now)] = lock.join(now.visitor)
    assert order == list("abcabcabc")


def test_who_is_new_does_not_wait_for_a_whole_round():
    lock = FairQueue()
    for visitor in "abc":
        lock.leave(lock.join(visitor))
    tickets = [lock.join(visitor) for visitor in "abc"]
    assert served(lock, [*tickets, lock.join("new")]) == ["a", "new", "b", "c"]


def test_the_queue_forgets_visitors_who_have_gone(monkeypatch):
    monkeypatch.setattr(turns, "MOST_REMEMBERED", 8)
    lock = FairQueue()
    for number in range(100):
        lock.leave(lock.join(f"visitor {number}"))
    assert len(lock._last_turn) <= 9


def pauses(number, log, name):
    """One result of long work that pauses so often."""
    for _ in range(number):
        log.append(name)
        time.sleep(0.002)
        give_way()
    yield name


def test_between_two_pauses_of_one_visitor_another_has_his_turn(short):
    bench, log = Workbench(pool=object()), []
    threads = [
        threading.Thread(target=lambda name=name: list(bench.in_turns(pauses(20, log, name), Asker(name))))
        for name in ("one", "other")
    ]
    holder = bench.engine.join("holder")
    for thread in threads:
        thread.start()
    until(lambda: len(bench.engine) == 3)
    bench.engine.leave(holder)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(log) == 40
    assert max(log[:8].count("one"), log[:8].count("other")) < 8, "one of them had the engine all the time"
    assert bench.engine.pieces.number >= 40
    assert len(bench.engine) == 0


def test_alone_nobody_is_waited_for_and_without_a_turn_nothing_happens(short):
    give_way()
    assert waited_s() == 0.0
    bench = Workbench(pool=object())
    assert list(bench.in_turns(pauses(3, [], "alone"))) == ["alone"]
    assert bench.engine.pieces.number == 3 + 2  # up to each pause, behind the last one, and the end of the work


def test_the_clock_of_work_stands_still_while_others_have_the_engine(short):
    bench, took = Workbench(pool=object()), []

    def work():
        begun, wall = clock(), time.perf_counter()
        give_way()
        took.append((clock() - begun, time.perf_counter() - wall))
        yield

    def hold():
        ticket = bench.engine.join("other")
        ticket.ready.wait(PATIENCE_S)
        time.sleep(0.3)
        bench.engine.leave(ticket)

    mine = bench.engine.join("first")
    thread = threading.Thread(target=lambda: list(bench.in_turns(work(), Asker("mine"))))
    thread.start()
    until(lambda: len(bench.engine) == 2)
    other = threading.Thread(target=hold)
    other.start()
    until(lambda: len(bench.engine) == 3)
    bench.engine.leave(mine)
    thread.join(PATIENCE_S)
    other.join(PATIENCE_S)
    ((worked, passed),) = took
    assert passed >= 0.3
    assert worked < 0.2


def test_work_that_nobody_wants_any_more_ends_at_its_next_pause():
    bench, log, is_gone = Workbench(pool=object()), [], threading.Event()

    def work():
        for number in range(1_000):
            log.append(number)
            if number == 3:
                is_gone.set()
            try:
                give_way()
            except Exception as error:  # as work does that goes on after what cannot be done
                log.append(error)
        yield

    with pytest.raises(Unwanted):
        list(bench.in_turns(work(), Asker("gone", is_gone.is_set)))
    assert log == [0, 1, 2, 3]
    assert len(bench.engine) == 0


def test_who_leaves_while_waiting_gives_up_the_place(monkeypatch):
    monkeypatch.setattr(turns, "LOOK_S", 0.01)
    bench, is_gone = Workbench(pool=object()), threading.Event()
    holder, ended = bench.engine.join("holder"), []

    def wait():
        with pytest.raises(Unwanted):
            list(bench.in_turns(pauses(1, [], "gone"), Asker("gone", is_gone.is_set)))
        ended.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: len(bench.engine) == 2)
    is_gone.set()
    thread.join(PATIENCE_S)
    assert ended
    assert len(bench.engine) == 1
    bench.engine.leave(holder)


def test_work_that_has_a_turn_may_not_wait_for_another_one():
    """Two visitors' work, each with the turn that the other waits for, would never end."""
    outer, inner = Workbench(pool=object()), Workbench(pool=object())

    def work():
        yield from inner.in_turns(pauses(1, [], "inner"))

    with pytest.raises(RuntimeError, match="may not wait for another"):
        list(outer.in_turns(work()))
    assert (len(outer.engine), len(inner.engine)) == (0, 0)


def test_what_waits_for_something_else_leaves_the_engine_to_others():
    bench, loaded, log = Workbench(pool=object()), threading.Event(), []

    def work():
        with aside():
            log.append("waits")
            loaded.wait(PATIENCE_S)
        log.append(len(bench.engine))
        yield

    mine = threading.Thread(target=lambda: list(bench.in_turns(work(), Asker("mine"))))
    mine.start()
    until(lambda: log)
    assert list(bench.in_turns(pauses(2, log, "other"), Asker("other"))) == ["other"]
    loaded.set()
    mine.join(PATIENCE_S)
    assert log == ["waits", "other", "other", 1], "the engine is had again behind the wait"
    assert len(bench.engine) == 0


def test_what_fails_aside_fails_with_the_engine(short):
    bench, log = Workbench(pool=object()), []

    def work():
        try:
            with aside():
                raise ValueError
        except ValueError:
            log.append(len(bench.engine))
            give_way()
        yield

    list(bench.in_turns(work()))
    assert log == [1]


def test_who_has_a_place_waits_for_who_has_none():
    places = FairQueue(2)
    held = [places.join("busy"), places.join("other")]
    waiting = [places.join("busy"), places.join("guest")]
    places.leave(held[1])
    assert [ticket.ready.is_set() for ticket in waiting] == [False, True]
    places.leave(held[0])
    assert waiting[0].ready.is_set()


def test_an_error_inside_a_piece_gives_the_engine_back(short):
    lock = FairQueue()
    turn = Turn(lock)
    with pytest.raises(ZeroDivisionError), turn.at(turn.wait()):
        raise ZeroDivisionError
    assert len(lock) == 0
    give_way()
