"""What a page does once it is served: its first pair is warm, and its trees are timed for the runs that follow."""

import pytest

from specviz.analysis import costs
from specviz.ui import startup
from tests.helpers import tiny_server as pages

served, _ = pages.fixtures()


@pytest.fixture
def waits(monkeypatch):
    """The pauses before each try."""
    waited = []
    monkeypatch.setattr(startup.time, "sleep", waited.append)
    return waited


def test_the_trees_of_the_first_pair_are_timed_and_its_runs_draft_the_best_size(served, monkeypatch, waits):
    monkeypatch.setattr(costs, "ONE_RUN", 1e9)  # other tests may keep the machine busy
    pool = served.page.bench.pool
    monkeypatch.setattr(pool, "step_ms", {})
    assert served.trace(method="tree").steps[0].settings.by_time is None
    served.page.warm_up()
    assert served.page.is_warm.is_set()
    assert (list(pool.step_ms), waits) == ([("tree", "tiny-target")], [0.0])
    (ms,) = pool.step_ms.values()
    monkeypatch.setitem(pool.step_ms, ("tree", "tiny-target"), {size: size**3 for size in ms})
    drafting = served.trace(method="tree").steps[0]
    assert (len(drafting.draft), drafting.settings.by_time) == (min(ms), ("nodes",))


def test_a_busy_machine_is_asked_again_and_then_left_alone(served, monkeypatch, waits):
    monkeypatch.setattr(costs, "ONE_RUN", -1.0)
    pool = served.page.bench.pool
    monkeypatch.setattr(pool, "step_ms", {})
    served.page.warm_up()
    assert (pool.step_ms, waits) == ({}, list(startup.MEASURED_AFTER_S))


def test_trees_are_not_timed_while_somebody_has_the_engine(served, monkeypatch, waits):
    monkeypatch.setattr(costs, "ONE_RUN", 1e9)
    bench = served.page.bench
    monkeypatch.setattr(bench.pool, "step_ms", {})
    tickets, verify = [], costs._Timer.verify

    def interrupted(timer, num_tokens):
        tickets.append(bench.engine.join("a visitor"))
        return verify(timer, num_tokens)

    monkeypatch.setattr(costs._Timer, "verify", interrupted)
    monkeypatch.setattr(startup, "MEASURED_AFTER_S", (0.0,))
    served.page.warm_up()
    (ticket,) = tickets
    assert ticket.ready.is_set()
    assert bench.pool.step_ms == {}
    bench.engine.leave(ticket)
