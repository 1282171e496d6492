"""The live controls: what they take, what they refuse, and that processes may share them."""

import json
import math
import multiprocessing
import os
import struct
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.request import MAX_K, MAX_TEMPERATURE, MAX_TOP_K, RunSettings
from specviz.rules import RULES
from specviz.session import gpu_worker
from specviz.session.controls import PACES, Controls, ControlState
from specviz.session.gpu_worker import Block

FIRST = RunSettings(target="big", draft="near", num_speculative_tokens=4, params={"k_policy": "heuristic"})
TARGETS, DRAFTS = ("big", "padded"), ("near", "far")
NAMES = {"method": tuple(METHODS), "rule": (None, *RULES), "target": TARGETS, "draft": DRAFTS}
KNOBS = {
    "num_speculative_tokens": st.integers(1, MAX_K),
    "temperature": st.floats(0, MAX_TEMPERATURE),
    "top_k": st.integers(0, MAX_TOP_K),
    "top_p": st.floats(0, 1, exclude_min=True),
    "min_p": st.floats(0, 1),
    "draft_temperature": st.none() | st.floats(0, MAX_TEMPERATURE),
    "draft_top_k": st.none() | st.integers(0, MAX_TOP_K),
    "draft_top_p": st.none() | st.floats(0, 1, exclude_min=True),
    "draft_min_p": st.none() | st.floats(0, 1),
} | {kind: st.sampled_from(names) for kind, names in NAMES.items()}
GOOD = KNOBS | {"paused": st.booleans(), "stopped": st.booleans(), "pace": st.sampled_from(tuple(PACES))}
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()), st.sampled_from(DRAFTS)
)


def controls(**options):
    return Controls(FIRST, TARGETS, DRAFTS, **options)


def shared_block(context):
    """A block that holds the first settings."""
    block = Block(context)
    block.write(ControlState(FIRST, "full"))
    return block


def value_of(state, name):
    return getattr(state.settings if name in KNOBS else state, name)


def one_change():
    return st.sampled_from(sorted(GOOD)).flatmap(lambda name: st.tuples(st.just(name), GOOD[name]))


def any_change():
    return st.tuples(st.sampled_from(sorted(GOOD)), ANYTHING)


def test_they_begin_with_the_settings_of_the_run():
    assert controls(pace="normal").read() == ControlState(FIRST, "normal")


@given(st.lists(one_change(), max_size=20))
def test_what_was_set_last_is_what_is_read(changes):
    live = controls()
    for name, value in changes:
        live.set(name, value)
    last, state, first = dict(changes), live.read(), controls().read()
    assert all(value_of(state, name) == value for name, value in last.items())
    assert all(value_of(state, name) == value_of(first, name) for name in set(GOOD) - set(last))


@settings(max_examples=50)
@given(st.lists(st.one_of(one_change(), any_change()), max_size=12))
def test_no_value_whatever_corrupts_them(changes):
    live = controls()
    for name, value in changes:
        before = live.read()
        try:
            live.set(name, value)
        except SpecvizError:
            assert live.read() == before
    after = live.read().settings
    assert after == after.validate()
    assert all(getattr(after, kind) in names for kind, names in NAMES.items())


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("num_speculative_tokens", 0, "k .* 1 to 32 .got 0"),
        ("num_speculative_tokens", 2.5, "k .*got 2.5"),
        ("num_speculative_tokens", True, "k .*got True"),
        ("temperature", math.nan, "temperature .* 0 to 5 .got nan"),
        ("temperature", -0.1, "temperature .* 0 to 5 .got -0.1"),
        ("top_p", 0.0, "top_p .* above 0 .*got 0.0"),
        ("top_k", -1, "top_k .* 0 .*got -1"),
        ("method", "guess", "method .* draft_model, prompt_lookup, .*none .got 'guess'"),
        ("draft", "unheard-of", "draft .* near, far .got 'unheard-of'"),
        ("target", None, "target .* big, padded .got None"),
        ("pace", "fast", "pace .* slow, normal, full .got 'fast'"),
    ],
)
def test_a_value_that_may_not_be_is_refused_by_name_and_value(name, value, told):
    with pytest.raises(SpecvizError, match=told):
        controls().set(name, value)


def test_an_unknown_pace_is_refused_from_the_beginning():
    with pytest.raises(SpecvizError, match=r"pace .*got 'fast'"):
        controls(pace="fast")


@pytest.mark.parametrize("name", ["seed", "params"])
def test_an_unknown_control_is_the_callers_mistake(name):
    with pytest.raises(ValueError, match=f"no such control: '{name}'"):
        controls().set(name, {})


def test_another_method_has_its_own_parameters_at_their_defaults():
    live = controls()
    live.set("method", "none")
    assert live.settings.params == {}
    live.set("method", FIRST.method)
    assert live.settings == FIRST


def test_a_refused_change_takes_back_names_only():
    live = controls()
    changes = {"num_speculative_tokens": 9, "draft": "far", "method": "none"}
    live.change(**changes, pace="slow", paused=True, stopped=True)
    live.restore(FIRST, refused=live.settings)
    after = live.read()
    assert (after.settings.draft, after.settings.method, after.settings.params) == ("near", FIRST.method, FIRST.params)
    assert (after.settings.num_speculative_tokens, after.pace, after.paused, after.stopped) == (9, "slow", True, True)


def test_a_name_chosen_after_the_refused_one_stays():
    live = controls()
    live.offer("draft", "third")
    live.set("draft", "far")
    refused = live.settings
    live.set("draft", "third")
    live.restore(FIRST, refused)
    assert live.settings.draft == "third"


def test_a_name_can_be_set_once_it_is_on_offer():
    live = controls()
    live.offer("draft", "own")
    live.offer("draft", "own")
    live.set("draft", "own")
    assert live.settings.draft == "own"


def test_a_run_without_a_draft_may_be_given_one_later():
    live = Controls(RunSettings(target="big", method="none"), TARGETS, DRAFTS)
    assert live.settings.draft is None
    live.set("draft", "far")
    assert live.settings.draft == "far"


# ---- shared memory ---------------------------------------------------------------------------------------------------


def test_all_of_it_lies_in_the_block():
    block = shared_block(multiprocessing.get_context("fork"))
    live = controls(store=block)
    copy = bytes(block.memory)
    live.change(num_speculative_tokens=7, stopped=True)
    other = Controls(FIRST, store=block)
    assert (other.read(), other.read().stopped) == (live.read(), True)
    version, size = struct.unpack_from("<QQ", copy)
    assert json.loads(copy[16 : 16 + size])["settings"] == asdict(FIRST)
    assert struct.unpack_from("<QQ", block.memory)[0] == version + 1


def test_settings_that_do_not_fit_are_refused_and_nothing_changes():
    live = controls(store=shared_block(multiprocessing.get_context("fork")))
    live.offer("draft", "x" * Block.SIZE)
    with pytest.raises(SpecvizError, match="too long"):
        live.set("draft", "x" * Block.SIZE)
    assert live.settings == FIRST


def test_a_method_that_is_chosen_again_has_its_first_parameters_whichever_process_writes_next():
    block = shared_block(multiprocessing.get_context("fork"))
    here = controls(store=block)
    here.set("method", "none")
    there = controls(store=block)
    here.set("method", FIRST.method)
    there.set("cancelled", False)
    assert here.settings == FIRST


def test_controls_of_one_process_cannot_be_sent_to_another_one():
    spawn = multiprocessing.get_context("spawn")
    with pytest.raises(TypeError, match="cannot pickle"):
        spawn.Process(target=print, args=(controls(),)).start()


def end_while_holding(block):
    block.lock.acquire()
    os._exit(0)


def test_a_process_that_was_killed_in_a_change_is_an_error_and_no_endless_wait(monkeypatch):
    fork = multiprocessing.get_context("fork")
    block = shared_block(fork)
    live = controls(store=block)
    killed = fork.Process(target=end_while_holding, args=(block,))
    killed.start()
    killed.join(10)
    monkeypatch.setattr(gpu_worker, "PATIENCE_S", 0.1)
    with pytest.raises(SpecvizError, match="was ended"):
        live.set("stopped", True)


def count_up(live, times):
    for _ in range(times):
        k = live.settings.num_speculative_tokens
        live.set("num_speculative_tokens", k % MAX_K + 1)
        assert live.settings.validate()


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_two_processes_that_change_them_at_once_never_tear_them(method):
    context = multiprocessing.get_context(method)
    live = controls(store=shared_block(context))
    worker = context.Process(target=count_up, args=(live, 300))
    worker.start()
    for number in range(300):
        live.change(draft=DRAFTS[number % 2], temperature=float(number % 2))
        now = live.settings
        assert (now.draft, now.temperature) == (DRAFTS[number % 2], number % 2)
    worker.join(120)  # a spawned process imports torch first
    assert worker.exitcode == 0
