"""Laws of loading: its progress is told, whoever waits may stop waiting, and nothing half-loaded stays.

The hub is a fake at the one place where specviz calls it, `snapshot_download`; its bars and errors are its own.
"""

from __future__ import annotations

import threading

import pytest
import torch

from specviz.errors import SpecvizError
from specviz.models import folder as folders
from specviz.session.run import Status
from specviz.session.workbench import BackgroundTask, Workbench
from tests.helpers.fake_hub import HUB_ID, Hub
from tests.helpers.hub_errors import hub_error
from tests.helpers.runs import Fails, begin, finish, is_free, make_steps, statuses


@pytest.fixture
def hub(folder, monkeypatch):
    hub = Hub(folder.rename(folder.with_name("0123abcd")))
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot_download)
    return hub


@pytest.fixture
def waiting(pool, hub):
    """A run that waits for its target, and what it says; it has said that it is loading."""
    run = begin(Workbench(pool), target=HUB_ID, draft=HUB_ID)
    events = run.events()
    assert next(events) == Status("loading", f"loading {HUB_ID} and {HUB_ID}")
    return run, events


def test_a_download_tells_how_far_it_is_and_the_run_begins_with_it(hub, waiting):
    run, events = waiting
    said = [next(events)]
    for _ in range(3):
        hub.go_on(1)
        said.append(next(events))
    assert [status.fraction for status in said] == [None, 0.25, 0.5, 0.75]
    assert said[-1].message == f"downloading {HUB_ID}"
    hub.go_on(1)
    list(events)
    assert run.trace.footer.reason == "length"


@pytest.mark.parametrize("end", ["stop", "cancel"])
def test_a_run_that_has_not_begun_ends_at_once_and_the_download_at_its_next_part(hub, waiting, pool, end):
    run, events = waiting
    getattr(run, end)()
    assert [status.state for status in statuses(events)][-1] == "finished"
    assert not hub.ended.is_set()
    assert (run.state, list(run.trace.events()), pool.loaded_names()) == ("finished", [], [])
    assert is_free(run.bench)
    hub.go_on(1)
    assert hub.ended.wait(10)
    assert pool.loaded_names() == []


def test_what_was_cancelled_can_be_loaded_again(hub, waiting, pool):
    run, events = waiting
    run.cancel()
    list(events)
    hub.go_on(1)
    assert hub.ended.wait(10)
    hub.go_on(4)
    again = finish(begin(run.bench, target=HUB_ID, draft=HUB_ID))
    assert again.footer.reason == "length"


def test_closing_a_run_that_waits_ends_it(hub, waiting):
    run, events = waiting
    next(events)
    events.close()
    assert run.state == "finished"
    assert is_free(run.bench)
    hub.go_on(1)
    assert hub.ended.wait(10)


def changing(bench):
    """A run in progress that has just begun to wait for a draft model from the hub."""
    run = begin(bench)
    make_steps(run, 2)
    run.controls.offer("draft", HUB_ID)
    run.controls.set("draft", HUB_ID)
    events = run.events()
    while next(events) != Status("loading", f"loading {HUB_ID}"):
        pass
    return run, events


def drafts(run):
    return list(dict.fromkeys(step.settings.draft_model for step in run.trace.steps))


@pytest.fixture
def open_bench(bench, monkeypatch):
    monkeypatch.setattr(bench.pool, "allow_any", True)
    return bench


def test_a_cancelled_change_is_taken_back_and_the_run_goes_on(hub, open_bench):
    run, events = changing(open_bench)
    run.cancel()
    said = [status.message for status in statuses(events)]
    assert any(HUB_ID in words and "cancelled" in words for words in said)
    assert (drafts(run), run.trace.footer.reason) == (["near"], "length")
    assert run.controls.settings.draft == "near"
    hub.go_on(1)


def test_another_model_chosen_meanwhile_is_loaded_instead(hub, open_bench):
    run, events = changing(open_bench)
    run.controls.set("draft", "far")
    list(events)
    assert (drafts(run), run.trace.footer.reason) == (["near", "far"], "length")
    hub.go_on(1)


def test_stop_ends_a_run_that_waits_for_another_model(hub, open_bench):
    run, events = changing(open_bench)
    run.stop()
    list(events)
    assert (len(run.trace.steps), run.trace.footer.reason) == (2, "stopped")
    hub.go_on(1)


ERRORS = [
    ("GatedRepoError", "huggingface.co"),
    ("RepositoryNotFoundError", "spelling"),
    ("not cached", "hub cannot be reached"),
    ("disk full", "disk is full"),
]


@pytest.mark.parametrize(("error", "words"), ERRORS)
def test_a_failed_download_says_what_to_do_and_leaves_nothing(hub, waiting, error, words):
    run, events = waiting
    hub.error = hub_error(error)
    hub.go_on(1)
    with pytest.raises(SpecvizError, match=words):
        list(events)
    assert (run.state, list(run.trace.events())) == ("finished", [])
    assert is_free(run.bench)


def test_a_change_that_fails_is_taken_back_in_words(hub, open_bench):
    run, events = changing(open_bench)
    hub.error = hub_error("GatedRepoError")
    hub.go_on(1)
    said = [status.message for status in statuses(events) if status.state == "running"]
    assert any("huggingface.co" in words for words in said)
    assert (drafts(run), run.trace.footer.reason) == (["near"], "length")


def test_a_model_that_nobody_waits_for_is_not_held():
    go_on = threading.Event()
    loading = BackgroundTask(lambda report: go_on.wait(10) and [1, 2, 3])
    loading.abandon()
    go_on.set()
    assert loading.wait(10)
    assert loading.result() is None


# Out of memory

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_a_change_to_a_model_without_room_is_taken_back_and_the_run_goes_on(open_bench, folder, monkeypatch):
    def fail(*args, **options):
        raise FULL

    monkeypatch.setattr(folders.AutoModelForCausalLM, "from_pretrained", fail)
    run = begin(open_bench)
    make_steps(run, 2)
    run.controls.offer("draft", str(folder))
    run.controls.set("draft", str(folder))
    said = [status.message for status in statuses(run.events()) if status.state == "running"]
    assert any("my-model" in it and "not enough memory" in it for it in said)
    assert str(folder) not in "".join(said)
    assert (drafts(run), run.trace.footer.reason) == (["near"], "length")


def test_a_draft_that_runs_out_of_memory_ends_the_run_in_words_and_leaves_both_models_usable(bench):
    near, target = bench.pool.load("near"), bench.pool.load("big")
    run = begin(bench)
    make_steps(run, 2)
    handle = near.model.get_input_embeddings().register_forward_pre_hook(Fails(2, FULL))
    with pytest.raises(SpecvizError, match=r"not enough memory .* big") as caught:
        list(run.events())
    handle.remove()
    num_tokens = len(run.trace.header.prompt.tokens) + len(run.trace.tokens)
    assert all(loaded.memory_words(num_tokens) in str(caught.value) for loaded in (target, near))
    assert (len(run.trace.steps), run.trace.footer.reason) == (2, "error")
    assert is_free(bench)
    assert finish(begin(bench)).footer.reason == "length"


def test_other_runs_go_on_while_one_runs_out_of_memory(bench):
    other, run = begin(bench, method="none"), begin(bench)
    make_steps(other, 2)
    make_steps(run, 2)
    handle = bench.pool.load("near").model.get_input_embeddings().register_forward_pre_hook(Fails(1, FULL))
    with pytest.raises(SpecvizError, match="not enough memory"):
        list(run.events())
    handle.remove()
    assert finish(other).footer.reason == "length"


def test_what_no_handler_of_exceptions_sees_ends_the_wait_too():
    class Panic(BaseException):
        """As a library in another language raises it."""

    def work(report):
        raise Panic

    task = BackgroundTask(work)
    assert task.wait(60)
    with pytest.raises(Panic):
        task.result()
