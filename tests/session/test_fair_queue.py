"""FairQueue: in order, never more than its capacity, and nobody is left behind."""

import threading

from specviz.session.workbench import FairQueue


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
