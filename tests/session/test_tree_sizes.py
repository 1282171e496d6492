"""The size of a token tree that nobody set: the best by time where steps were timed, the usual one elsewhere."""

from itertools import pairwise

import pytest

from specviz.bench.contenders import BenchTask, specviz_contender, tokens_per_call
from specviz.bench.report import prompts_for
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.drafters.params import SizeParam
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session.setup import gather
from specviz.session.whole_run import activate, whole_run
from specviz.trace import read_trace
from specviz.trace.export import json_lines
from specviz.views.explore.evidence.view import show_making
from specviz.views.explore.help import method_help

SIZED = {name: param for name, method in METHODS.items() for param in method.params if isinstance(param, SizeParam)}
TREE = SIZED["tree"]
STEEP = {size: float(size**3) for size in TREE.per_call}  # milliseconds
REQUEST = Request(target="big", draft="near", method="tree", prompt="the cat", max_new_tokens=12, temperature=0.0)
each = pytest.mark.parametrize("param", SIZED.values(), ids=SIZED)


@pytest.fixture
def timed(named_models, monkeypatch):
    """A library where small trees were measured to be far quicker."""
    monkeypatch.setitem(named_models.step_ms, ("tree", "big"), STEEP)
    return named_models


def made(pool, **params):
    return gather(METHODS["tree"], params, pool.load("big"), pool.load("near"), pool)


@each
def test_the_best_size_writes_the_most_tokens_per_time(param):
    sizes = sorted(param.per_call)
    assert param.best(dict.fromkeys(sizes, 5.0)) == sizes[-1]  # tokens that cost nothing
    assert param.best({size: 1e-6 + size for size in sizes}) == sizes[0]  # steps that cost nothing but their tokens
    ms = {size: 4.0 + 0.5 * size for size in sizes}
    best = param.best(ms)
    assert all(param.per_call[size] * 100 / ms[size] <= param.per_call[best] * 100 / ms[best] for size in sizes)


@each
def test_a_larger_tree_gives_more_tokens_and_each_further_token_less(param):
    points = [(0, 1.0), *sorted(param.per_call.items())]
    slopes = [round((y - x) / (n - m), 9) for (m, x), (n, y) in pairwise(points)]
    assert slopes[-1] > 0
    assert slopes == sorted(slopes, reverse=True)


@each
def test_0_is_the_usual_size_where_nothing_was_timed(param):
    assert param.validate(0) == param.validate(param.usual) == param.usual
    with pytest.raises(SpecvizError, match=f"nodes must be a whole number from 0 to {param.high}"):
        param.validate(-1)


def test_a_size_that_nobody_set_is_the_best_by_time(timed):
    for params in ({}, {"nodes": 0}):
        setup = made(timed, **params)
        assert (setup.params["nodes"], setup.by_time) == (min(STEEP), ("nodes",))


def test_a_size_that_was_set_always_stays(timed):
    setup = made(timed, nodes=TREE.usual)
    assert (setup.params["nodes"], setup.by_time) == (TREE.usual, ())


def test_the_times_of_another_target_say_nothing(timed):
    setup = gather(METHODS["tree"], {}, timed.load("padded"), timed.load("near"), timed)
    assert (setup.params["nodes"], setup.by_time) == (TREE.usual, ())


def test_a_chain_of_drawn_tokens_has_no_size():
    pool = ModelPool()
    pool.step_ms["eagle", "fable-target"] = STEEP
    for children, by_time in (("top", ("nodes",)), ("drawn", ())):
        assert (
            gather(METHODS["eagle"], {"children": children}, pool.load("fable-target"), None, pool).by_time == by_time
        )


def test_a_run_says_so_and_its_request_repeats_it_where_nothing_was_timed(timed, monkeypatch):
    first = whole_run(activate(REQUEST, timed))
    assert first.header.request["params"]["nodes"] == min(STEEP)
    assert max(len(step.draft) for step in first.steps) == min(STEEP)
    assert {step.settings.by_time for step in first.steps} == {("nodes",)}
    monkeypatch.delitem(timed.step_ms, ("tree", "big"))
    again = whole_run(activate(Request.from_dict(first.header.request), timed))
    assert [step.draft for step in again.steps] == [step.draft for step in first.steps]
    assert {step.settings.by_time for step in again.steps} == {None}


def test_the_page_tells_it_beside_the_tree_and_in_the_help(timed):
    read = read_trace(json_lines(whole_run(activate(REQUEST, timed))).encode())
    shown = [part for step in read.steps for part in show_making(step, []).parts]
    words = f"{min(STEEP)}: the best by time on this run's device, as measured"
    assert ("size", words) in [tuple(item) for part in shown for item in getattr(part, "items", [])]
    notes = method_help(METHODS["tree"], None, has_k=True, step_ms=STEEP).notes
    assert f"“Most tokens” at 0 drafts {min(STEEP)} here: the best by time on this device, as measured." in notes
    drawn = METHODS["eagle"].under({"children": "drawn"})
    assert not any("by time" in note for note in method_help(drawn, None, has_k=True, step_ms=STEEP).notes)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZED)
def test_the_bundled_models_have_these_tokens_per_call(name):
    """Each size is run by itself; the table's numbers were counted by rank, in trees of 32."""
    pool = ModelPool()
    target, draft = pool.load("fable-target"), pool.load("fable-draft")
    prompts = prompts_for(target)[::2]
    shares = {}
    for size in (3, 8, 24):
        setup = gather(METHODS[name], {"nodes": size}, target, draft, pool)
        rates = [
            tokens_per_call(
                [specviz_contender(setup, 4)(BenchTask(prompt, Sampling(heat), 0, 48)) for prompt in prompts]
            )
            for heat in (0.0, 1.0)
        ]
        shares[size] = sum(rates) / 2 / SIZED[name].per_call[size]
    middle = sum(shares.values()) / 3  # this pair accepts more than both pairs do on average
    assert shares == {size: pytest.approx(middle, rel=0.12) for size in shares}
