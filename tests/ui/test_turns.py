"""No visitor holds the engine: whatever an endpoint or a button is asked for is done in short pieces, others have their
turns between them, and work that nobody waits for any more ends."""

import threading
import time
from dataclasses import replace
from itertools import chain

import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from specviz.decoding.turns import Asker, Pieces
from specviz.session import run as session
from specviz.session import workbench
from specviz.ui import registry, visitors
from tests.helpers import heaviest_work
from tests.helpers import tiny_server as pages
from tests.helpers.waits import PATIENCE_S, until

MOST_CPU_S = 0.5
"""Of one piece, on the bundled pair."""
ANSWER_S = 3.0
"""For eight tokens, beside the heaviest work of somebody else."""
GIVEN_S, QUICK_S = 15.0, 0.5
"""How long each piece of work is watched."""


@pytest.fixture(scope="module")
def page():
    page = heaviest_work.bundled_page()
    heaviest_work.finished_run(page, 8)  # loads the pair
    return page


def all_work(page):
    return chain(heaviest_work.heaviest_calls(page), heaviest_work.every_button(page))


def longest_pieces(page, seconds):
    """By what was asked for; each is watched this long at most."""
    found = {}
    for work in all_work(page):
        end = time.monotonic() + seconds
        found[work.name] = heaviest_work.do_until(lambda end=end: time.monotonic() > end, page, work).longest_cpu_s
    return found


@pytest.mark.timed
def test_nothing_that_can_be_asked_for_holds_the_engine_for_long(page):
    too_long = {name: spent for name, spent in longest_pieces(page, QUICK_S).items() if spent > MOST_CPU_S}
    assert not too_long, too_long


@pytest.mark.slow
@pytest.mark.timed
def test_nothing_that_can_be_asked_for_holds_the_engine_for_long_until_its_end(page):
    too_long = {name: spent for name, spent in longest_pieces(page, GIVEN_S).items() if spent > MOST_CPU_S}
    assert not too_long, too_long


HEAVY = ("prove tree", "align", "compare: race, race")


@pytest.mark.timed
@pytest.mark.parametrize("name", HEAVY)
def test_eight_tokens_of_one_visitor_come_soon_beside_the_heaviest_work_of_another(page, name):
    (work,) = [each for each in all_work(page) if each.name == name]
    engine, ended = page.bench.engine, threading.Event()
    engine.pieces = Pieces()
    other = threading.Thread(target=heaviest_work.do_until, args=(ended.is_set, page, work))
    other.start()
    until(lambda: engine.pieces.number > 3)
    took = []
    for seed in range(3):
        begun = time.monotonic()
        run = session.open_run(replace(page.first, max_new_tokens=8, seed=seed), bench=page.bench, asker=Asker("me"))
        assert sum(len(step.emitted) for step in steps_of(run)) == 8
        took.append(time.monotonic() - begun)
    is_beside = other.is_alive()
    ended.set()
    other.join(PATIENCE_S)
    assert is_beside, "the heavy work was over before"
    assert max(took) <= ANSWER_S, took


def steps_of(run):
    for _ in run.events():
        pass
    return run.trace.steps


served, client = pages.fixtures()


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(visitors, "LEFT_S", 0.3)


def engine_of(client):
    return client.get("/healthz").json()["engine"]


LONG_CALLS = {
    "prove": {"tokens": 500},
    "align": {"prompts": ["The fox said"] * 32, "max_new_tokens": 128},
    "run": {"prompt": "The fox said", "k": 1, "max_new_tokens": 400},
}


@pytest.fixture
def long_call(served, client, monkeypatch):
    """The body of a call of this name, with all its values in order. The page's models are those of the process."""
    monkeypatch.setattr(workbench, "_shared", [workbench.Workbench(served.page.bench.pool)])
    told = client.get("/gradio_api/info").json()["named_endpoints"]

    def body(name):
        parameters = told[f"/{name}"]["parameters"]
        return {
            "data": [LONG_CALLS[name].get(each["parameter_name"], each.get("parameter_default")) for each in parameters]
        }

    return body


def works_for(served):
    return sum(served.page.registry._jobs.values())


@pytest.mark.parametrize("name", LONG_CALLS)
def test_the_job_of_a_program_that_goes_away_ends(served, client, soon, long_call, name):
    with httpx.Client(base_url=served.address, timeout=pages.PATIENCE_S) as other:
        event = other.post(f"/gradio_api/call/{name}", json=long_call(name)).json()["event_id"]
        with other.stream("GET", f"/gradio_api/call/{name}/{event}"):
            until(lambda: works_for(served))
    until(lambda: not works_for(served))
    until(lambda: len(served.page.bench.engine) == 0)


def test_a_program_may_do_so_much_at_once_and_is_told(served, client, soon, long_call, monkeypatch):
    monkeypatch.setattr(registry, "MOST_CALLS", 1)
    with httpx.Client(base_url=served.address, timeout=pages.PATIENCE_S) as other:
        event = other.post("/gradio_api/call/prove", json=long_call("prove")).json()["event_id"]
        with other.stream("GET", f"/gradio_api/call/prove/{event}"):
            until(lambda: works_for(served))
            with pytest.raises(AppError, match="1 of your runs and jobs go on already"):
                Client(served.address, verbose=False).predict(tokens=20, api_name="/prove")
    until(lambda: not works_for(served))


def test_health_and_metrics_tell_the_longest_piece_and_who_waits(served, client):
    engine = served.page.bench.engine
    until(lambda: not len(engine))
    holder, waiting = engine.join("one"), engine.join("other")
    told, lines = engine_of(client), client.get("/metrics").text.splitlines()
    for ticket in (waiting, holder):
        engine.leave(ticket)
    assert told["waiting"] == 1
    assert told["longest_piece_seconds"] == engine.pieces.longest_s
    numbers = dict(line.split(" ") for line in lines if not line.startswith("#"))
    assert float(numbers["specviz_engine_waiting"]) == 1
    assert float(numbers["specviz_engine_longest_piece_seconds"]) == pytest.approx(told["longest_piece_seconds"])
    kinds = dict(line.split(" ")[2:] for line in lines if line.startswith("# TYPE"))
    assert kinds.keys() == numbers.keys()
