"""Laws of the answers that a visitor's next run may look in: whose they are, what they change, how many there are."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from specviz import trace, what_if
from specviz.decoding import kept_answers, kept_rows
from specviz.decoding.kept_answers import KeptAnswers
from specviz.decoding.turns import Asker
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session.run import open_run
from specviz.session.workbench import Workbench
from tests.helpers.runs import finish, ids, make_steps
from tests.helpers.waits import until

ANN = Asker("ann", keeps_rows=True)
BOB = Asker("bob", keeps_rows=True)
REQUEST = Request(
    prompt="Once upon a time, there was a little fox",
    target="fable-target",
    draft=None,
    method="suffix",
    params={"pool": "answers"},
    temperature=0.0,
    max_new_tokens=32,
)
POOL = ModelPool()


@pytest.fixture
def bench() -> Iterator[Workbench]:
    yield Workbench(POOL)
    POOL.renew_locks()  # which keeps no answers


def made(bench: Workbench, asker: Asker = ANN, **changes: object) -> trace.Trace:
    return finish(open_run(replace(REQUEST, **changes), bench=bench, asker=asker))


def places(recorded: trace.Trace) -> list[int]:
    """How many answers back each draft was found, where it was."""
    return [step.evidence["answers_back"] for step in recorded.steps if "answers_back" in step.evidence]


# Whose they are


def test_the_same_question_again_is_drafted_from_its_answer(bench):
    first, again = made(bench), made(bench)
    assert not places(first)
    assert set(places(again)) == {1}
    assert ids(again) == ids(first)
    assert len(again.steps) < len(first.steps)


def test_the_newest_answer_is_one_back_and_a_stopped_one_counts(bench):
    made(bench)
    run = open_run(replace(REQUEST, prompt="12 + 30 ="), bench=bench, asker=ANN)
    make_steps(run, 2)
    run.stop()
    assert set(places(made(bench))) == {2}


@pytest.mark.parametrize("asker", [BOB, Asker("ann"), Asker(), Asker("", keeps_rows=True)])
def test_nobody_else_gets_them(bench, asker):
    made(bench)
    assert not places(made(bench, asker))


def test_a_run_that_does_not_ask_for_them_is_as_it_was(bench):
    alone = made(bench, Asker(), params={}, temperature=1.0)
    made(bench, temperature=1.0)
    again = made(bench, params={}, temperature=1.0)
    assert ids(again) == ids(alone)
    assert [step.evidence for step in again.steps] == [step.evidence for step in alone.steps]


def test_a_forked_process_has_none(bench):
    made(bench)
    POOL.renew_locks()
    assert not places(made(bench))


def test_nothing_is_said_about_another_k_from_such_a_run_alone(bench):
    assert list(what_if(made(bench, params={}), [1, 2]).k) == [1, 2]
    with pytest.raises(SpecvizError, match="came from earlier answers as well"):
        what_if(made(bench), [1, 2])


# How many there are


def test_the_oldest_answers_make_room_and_the_end_of_a_long_one_stays(monkeypatch):
    monkeypatch.setattr(kept_answers, "MOST_TOKENS", 5)
    answers = KeptAnswers()
    for tokens in ([1, 2], [3, 4], [5]):
        answers.keep("ann", "words", tokens)
    assert answers.of("ann", "words") == ((1, 2), (3, 4), (5,))
    answers.keep("ann", "words", [6])
    assert answers.of("ann", "words") == ((3, 4), (5,), (6,))
    answers.keep("ann", "words", range(9))
    assert answers.of("ann", "words") == ((4, 5, 6, 7, 8),)


def test_only_answers_of_the_same_vocabulary_and_visitor_are_found():
    answers = KeptAnswers()
    answers.keep("ann", "words", [1])
    answers.keep("ann", "letters", [2])
    answers.keep("bob", "words", [3])
    assert answers.of("ann", "words") == ((1,),)
    assert answers.of("bob", "letters") == answers.of("nobody", "words") == ()


def test_those_idle_longest_make_room(monkeypatch):
    monkeypatch.setattr(kept_rows, "MOST_VISITORS", 2)
    answers = KeptAnswers()
    for visitor in ("ann", "bob", "ann", "cy"):
        answers.keep(visitor, "words", [1])
    assert [answers.of(visitor, "words") for visitor in ("ann", "bob", "cy")] == [((1,), (1,)), (), ((1,),)]


def test_what_lies_idle_is_dropped(monkeypatch):
    monkeypatch.setattr(kept_rows, "IDLE_S", 0.1)
    answers = KeptAnswers()
    answers.keep("ann", "words", [1])
    until(lambda: answers.of("ann", "words") == ())
