"""The live controls: what they take, what they refuse, and that they are one small record in memory."""

import math
import mmap
import multiprocessing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.request import MAX_K, MAX_TEMPERATURE, MAX_TOP_K, Request
from specviz.rules import RULES
from specviz.session.controls import LIVE, PACES, Controls, ControlValues

REQUEST = Request(prompt="a", target="big", draft="near", k=4)
TARGETS, DRAFTS = ("big", "padded"), ("near", "far")
NAMES = {"method": tuple(METHODS), "rule": (None, *RULES), "target": TARGETS, "draft": DRAFTS, "pace": tuple(PACES)}
GOOD = {
    "k": st.integers(1, MAX_K),
    "temperature": st.floats(0, MAX_TEMPERATURE),
    "top_k": st.integers(0, MAX_TOP_K),
    "top_p": st.floats(0, 1, exclude_min=True),
    "paused": st.booleans(),
    "stopped": st.booleans(),
} | {kind: st.sampled_from(names) for kind, names in NAMES.items()}
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()), st.sampled_from(DRAFTS)
)


def controls(**options):
    return Controls(REQUEST, TARGETS, DRAFTS, **options)


def one_change():
    return st.sampled_from(sorted(GOOD)).flatmap(lambda name: st.tuples(st.just(name), GOOD[name]))


def any_change():
    return st.tuples(st.sampled_from(sorted(GOOD)), ANYTHING)


def test_they_begin_with_the_requests_values():
    values = controls(pace="reading").values()
    assert values == ControlValues(4, 1.0, 0, 1.0, "draft_model", None, "big", "near", "reading", False, False)


def test_every_live_setting_is_a_field_of_the_request_too():
    assert all(getattr(controls().values(), name) == getattr(REQUEST, name) for name in LIVE)


@given(st.lists(one_change(), max_size=20))
def test_what_was_set_last_is_what_is_read(changes):
    live = controls()
    for name, value in changes:
        live.set(name, value)
    last = dict(changes)
    values = live.values()
    assert all(getattr(values, name) == value for name, value in last.items())
    untouched = set(GOOD) - set(last)
    assert all(getattr(values, name) == getattr(controls().values(), name) for name in untouched)


@given(st.lists(st.one_of(one_change(), any_change()), max_size=20))
def test_no_value_whatever_corrupts_them(changes):
    live = controls()
    for name, value in changes:
        before = live.values()
        try:
            live.set(name, value)
        except SpecvizError:
            assert live.values() == before
    after = live.values()
    assert 1 <= after.k <= MAX_K
    assert 0 <= after.temperature <= MAX_TEMPERATURE
    assert 0 < after.top_p <= 1
    assert all(getattr(after, kind) in names for kind, names in NAMES.items())


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("k", 0, "k must be a whole number from 1 to 32"),
        ("k", 2.5, "k must be a whole number"),
        ("k", True, "k must be a whole number"),
        ("temperature", math.nan, "temperature must be a number from 0 to 5"),
        ("temperature", -0.1, "temperature must be a number from 0 to 5"),
        ("top_p", 0.0, "top_p must be a number above 0"),
        ("top_k", -1, "top_k must be a whole number from 0"),
        ("method", "guess", "method must be one of draft_model, prompt_lookup, .*none .got 'guess'"),
        ("draft", "unheard-of", "draft must be one of near, far .got 'unheard-of'"),
        ("target", None, "target must be one of big, padded .got None"),
        ("pace", "fast", "pace must be one of slow, reading, full .got 'fast'"),
    ],
)
def test_a_value_that_may_not_be_is_refused_in_words(name, value, words):
    with pytest.raises(SpecvizError, match=words):
        controls().set(name, value)


def test_an_unknown_pace_is_refused_from_the_beginning():
    with pytest.raises(SpecvizError, match="pace must be one of"):
        controls(pace="fast")


def test_an_unknown_control_is_the_callers_mistake():
    with pytest.raises(ValueError, match="no such control: 'seed'"):
        controls().set("seed", 1)


def test_a_refused_change_takes_back_names_only():
    live = controls()
    before = live.values()
    for name, value in (("k", 9), ("draft", "far"), ("pace", "slow"), ("paused", True), ("stopped", True)):
        live.set(name, value)
    live.restore(before, refused=live.values())
    after = live.values()
    assert (after.draft, after.method, after.target) == (before.draft, before.method, before.target)
    assert (after.k, after.pace, after.paused, after.stopped) == (9, "slow", True, True)


def test_a_name_chosen_after_the_refused_one_stays():
    live = controls()
    live.offer("draft", "third")
    before = live.values()
    live.set("draft", "far")
    refused = live.values()
    live.set("draft", "third")
    live.restore(before, refused)
    assert live.values().draft == "third"


def test_a_name_can_be_set_once_it_is_on_offer():
    live = controls()
    live.offer("draft", "own")
    live.offer("draft", "own")
    live.set("draft", "own")
    assert live.values().draft == "own"


def test_offering_a_name_moves_no_other():
    live = controls()
    live.set("draft", "far")
    live.offer("draft", "own")
    assert live.values().draft == "far"


def test_a_request_without_a_draft_may_be_given_one_later():
    live = Controls(Request(prompt="a", target="big", method="none"), TARGETS, DRAFTS)
    assert live.values().draft is None
    live.set("draft", "far")
    assert live.values().draft == "far"


def test_all_of_it_lies_in_the_given_buffer():
    buffer = bytearray(Controls.SIZE)
    live = controls(buffer=buffer)
    copy = bytes(buffer)
    live.set("k", 7)
    assert bytes(buffer) != copy
    buffer[:] = copy
    assert live.values().k == REQUEST.k


def _answer_with_each_k(live, asked, told):
    while asked.recv():
        told.send(live.values().k)


def test_a_forked_worker_sees_changes_through_shared_memory():
    fork = multiprocessing.get_context("fork")
    (asking, asked), (hearing, telling) = fork.Pipe(), fork.Pipe()
    with mmap.mmap(-1, Controls.SIZE) as shared:
        live = controls(buffer=shared)
        worker = fork.Process(target=_answer_with_each_k, args=(live, asked, telling), daemon=True)
        worker.start()
        seen = []
        for k in (4, 9, 2):
            live.set("k", k)
            asking.send(True)
            assert hearing.poll(10)
            seen.append(hearing.recv())
        asking.send(False)
        worker.join(10)
    assert seen == [4, 9, 2]
    assert worker.exitcode == 0
