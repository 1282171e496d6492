"""A run that another process makes, as a GPU worker does, while this one has the sliders and the buttons."""

import multiprocessing
import time
from contextlib import contextmanager

import pytest
import torch

from specviz.request import Request
from specviz.session import recorder
from specviz.session.controls import Controls, ControlState
from specviz.session.gpu_worker import Block
from specviz.session.run import Run
from specviz.session.workbench import Workbench
from specviz.trace import Step

pytestmark = pytest.mark.slow

REQUEST = Request(prompt="Once upon a time", target="fable-target", draft="fable-draft", max_new_tokens=120, seed=3)
BOTH = pytest.mark.parametrize("method", ["fork", "spawn"])
PATIENCE_S = 120  # a spawned process imports torch first


def generate(block, line):
    """Sends K of each step and goes on when it is told to; sends the state when the events end, the reason at last."""
    torch.set_num_threads(1)
    recorder.FLUSH_S = 0.0  # a step is told before the next one is made
    bench = Workbench()
    request = line.recv()
    controls = Controls(request.settings, store=block)
    run = Run(request, bench, controls)
    while run.state != "finished":
        for event in run.events():
            if isinstance(event, Step):
                line.send(event.settings.k)
                line.recv()
        line.send(run.state)
        while run.state == "paused" and controls.read().paused and not controls.read().stopped:
            time.sleep(0.01)
    line.send(run.trace.footer.reason)


@contextmanager
def generating(method):
    """A worker that was started before the run was asked for; the run's controls, and what hears the worker."""
    context = multiprocessing.get_context(method)
    block, (here, there) = Block(context), context.Pipe()
    worker = context.Process(target=generate, args=(block, there), daemon=True)
    worker.start()
    block.write(ControlState(REQUEST.settings, "full"))
    controls = Controls(REQUEST.settings, store=block)
    here.send(REQUEST)

    def hear():
        assert here.poll(PATIENCE_S)
        return here.recv()

    try:
        yield controls, hear, here
        worker.join(PATIENCE_S)
        assert worker.exitcode == 0
    finally:
        worker.kill()


@BOTH
def test_a_slider_and_pause_resume_and_stop_reach_the_process_that_generates(method):
    with generating(method) as (controls, hear, line):
        assert hear() == 4
        for k in (7, 1, 12):
            controls.set("num_speculative_tokens", k)
            line.send("go on")
            assert hear() == k, "in force from the very next step"
        controls.set("paused", True)
        line.send("go on")
        assert hear() == "paused"
        controls.set("num_speculative_tokens", 2)
        assert not line.poll(0.3), "a paused run makes no step"
        controls.set("paused", False)
        assert hear() == 2
        controls.set("stopped", True)
        line.send("go on")
        assert [hear(), hear()] == ["finished", "stopped"]


@BOTH
def test_a_paused_run_of_another_process_is_stopped_and_a_refused_change_is_taken_back_here(method):
    with generating(method) as (controls, hear, line):
        controls.offer("draft", "no/such/folder")
        assert hear() == 4
        controls.set("draft", "no/such/folder")
        line.send("go on")
        assert hear() == 4
        assert controls.settings.draft == "fable-draft"
        controls.set("paused", True)
        line.send("go on")
        assert hear() == "paused"
        controls.set("stopped", True)
        assert [hear(), hear()] == ["finished", "stopped"]
