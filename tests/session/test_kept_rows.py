"""Laws of a prompt's rows that a visitor's next run gets: whose they are, what they change, what memory they take."""

import gc
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from specviz import trace
from specviz.bench.waits import _held_bytes
from specviz.decoding import kept_rows
from specviz.decoding.turns import Asker
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session.run import Run, open_run
from specviz.session.whole_run import activate, whole_run
from specviz.session.workbench import Workbench
from tests.helpers.runs import NUM_IDS, PROMPT, REQUEST, finish, ids, make_steps
from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer
from tests.helpers.waits import until

ANN = Asker("ann", keeps_rows=True)
BOB = Asker("bob", keeps_rows=True)
ROUNDING = 1e-5  # of float32: rows that were read in other pieces differ by rounding


@pytest.fixture
def bench(named_models) -> Iterator[Workbench]:
    yield Workbench(named_models)
    named_models.renew_locks()  # which keeps no rows


def begun(bench: Workbench, asker: Asker = ANN, **changes: object) -> Run:
    return open_run(replace(REQUEST, **changes), bench=bench, asker=asker)


def made(bench: Workbench, asker: Asker = ANN, **changes: object) -> trace.Trace:
    return finish(begun(bench, asker, **changes))


def num_read(recorded: trace.Trace) -> int:
    """The tokens of the prompt that the target read in the first step."""
    first = recorded.steps[0]
    return first.fed["target"] - len(first.draft)


def read_whole(recorded: trace.Trace) -> bool:
    return num_read(recorded) == recorded.steps[0].context_length and "read_before" not in recorded.footer.extra


def assert_same(one: trace.Trace, other: trace.Trace) -> None:
    """The same tokens and drafts, and the same numbers up to rounding."""
    assert ids(one) == ids(other)
    for step, again in zip(one.steps, other.steps, strict=True):
        assert [token.id for token in step.draft] == [token.id for token in again.draft]
        assert step.evidence == again.evidence
        pairs = zip((*step.draft, *step.emitted), (*again.draft, *again.emitted), strict=True)
        for token, twin in pairs:
            for name in ("p", "q"):
                assert getattr(token, name) == pytest.approx(getattr(twin, name), abs=ROUNDING)


# Who gets them


def test_another_k_reads_no_more_of_the_prompt_than_its_last_token(bench):
    assert read_whole(made(bench))
    again = made(bench, num_speculative_tokens=2)
    assert (num_read(again), again.steps[0].fed["draft"]) == (1, 2)
    assert again.footer.extra == {"read_before": again.steps[0].context_length - 1}


@pytest.mark.parametrize("asker", [BOB, Asker("ann"), Asker(), Asker("", keeps_rows=True)])
def test_nobody_else_gets_them(bench, asker):
    made(bench)
    for _ in range(2):
        recorded = made(bench, asker)
        assert read_whole(recorded) or asker is BOB
    assert num_read(made(bench)) == 1


def test_two_runs_of_one_visitor_share_no_reader(bench):
    expected = [made(bench, Asker(), seed=seed) for seed in (1, 2)]
    made(bench)
    runs = [begun(bench, seed=seed) for seed in (1, 2)]
    for _ in range(3):
        for run in runs:
            make_steps(run, 1)
    readers = [set(run._active._lms.values()) for run in runs]
    assert readers[0].isdisjoint(readers[1])
    for run, alone in zip(runs, expected, strict=True):
        assert_same(finish(run), alone)
    assert [num_read(run.trace) == 1 for run in runs] == [True, False]


def test_other_models_read_it_themselves(bench):
    made(bench)
    other = made(bench, target="padded", draft="far")
    assert read_whole(other)
    assert num_read(made(bench, target="padded", draft="near")) == 1


def test_a_run_that_failed_leaves_nothing(bench):
    with pytest.raises(SpecvizError):
        made(bench, target="broken")
    after = made(bench)
    assert read_whole(after)
    assert after.steps[0].fed["draft"] == after.steps[0].context_length + REQUEST.num_speculative_tokens - 1


@pytest.mark.parametrize("num_steps", [1, 3])
def test_a_run_that_was_stopped_leaves_them(bench, num_steps):
    run = begun(bench)
    make_steps(run, num_steps)
    run.stop()
    assert num_read(made(bench)) == 1


def test_a_forked_process_has_none(bench):
    made(bench)
    bench.pool.renew_locks()
    assert read_whole(made(bench))


# What they change


def bundled(method: str, **changes: object) -> Request:
    draft = "fable-draft-othervocab" if METHODS[method].foreign else "fable-draft"
    asked = {"target": "fable-target", "max_new_tokens": 20, "num_speculative_tokens": 3, "seed": 3, **changes}
    draft = draft if "draft" in METHODS[method].roles else None
    return Request(prompt="12 + 30 = 42\n15 + 4 =", method=method, draft=draft, **asked)


@pytest.fixture(scope="module")
def bundled_bench() -> Workbench:
    return Workbench(ModelPool())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("mtp", "assistant")])
def test_the_same_seed_gives_the_same_text_after_every_other_run(bundled_bench, name, temperature):
    request = bundled(name, temperature=temperature)
    alone = finish(open_run(request, bench=bundled_bench))
    for before in (request, bundled("draft_model"), bundled("early_exit"), bundled("eagle")):
        bundled_bench.pool.renew_locks()
        finish(open_run(before, bench=bundled_bench, asker=ANN))
        assert_same(finish(open_run(request, bench=bundled_bench, asker=ANN)), alone)


@pytest.mark.parametrize("name", ["none", "draft_model", "prompt_lookup", "early_exit", "tree"])
def test_another_method_of_the_same_models_profits(bundled_bench, name):
    bundled_bench.pool.renew_locks()
    finish(open_run(bundled("draft_model"), bench=bundled_bench, asker=ANN))
    again = finish(open_run(bundled(name, temperature=0.5), bench=bundled_bench, asker=ANN))
    assert num_read(again) == 1


def test_a_common_beginning_is_read_once(bench):
    first = made(bench)
    longer = made(bench, prompt=f"{PROMPT} goodbye")
    ours, theirs = ([token.id for token in each.header.prompt.tokens] for each in (first, longer))
    common = next(place for place in range(len(theirs)) if theirs[place : place + 1] != ours[place : place + 1])
    assert num_read(longer) == len(theirs) - min(common, len(ours) - 1)


def test_only_the_prompts_rows_are_kept(bench):
    first = made(bench)
    prompt = [token.id for token in first.header.prompt.tokens]
    longer = made(bench, prompt_ids=(*prompt, *ids(first)[:10]))
    assert num_read(longer) == 1 + 10


def test_a_run_whose_draft_changed_leaves_the_rows_of_both(bench):
    run = begun(bench, max_new_tokens=48)
    run.controls.offer("draft", "far")
    make_steps(run, 2)
    run.controls.set("draft", "far")
    finish(run)
    (kept,) = bench.pool._rows._kept.values()
    assert len(kept.left) == 3
    assert made(bench, draft="far").steps[0].fed["draft"] == REQUEST.num_speculative_tokens


def test_what_is_measured_reads_its_prompt_again(bench):
    made(bench)
    active = activate(REQUEST, bench.pool)
    for _ in range(2):
        recorded = whole_run(active)
        assert num_read(recorded) == recorded.steps[0].context_length
    assert num_read(made(bench)) == 1


# What memory they take


def folders(tmp_path, number):
    tokenizer = tiny_tokenizer()
    for seed in range(number):
        yield str(tiny_folder(tmp_path / f"{seed}", tiny("llama", vocab_size=len(tokenizer), seed=seed), tokenizer))


def alone(bench: Workbench, target: str) -> int:
    """The bytes of the rows that a run without a draft leaves."""
    made(bench, target=target, draft=None, method="none")
    return bench.pool._rows.num_bytes()


def test_kept_rows_go_before_any_model_and_hold_none(tmp_path):
    one, two, three = folders(tmp_path, 3)
    large = ModelPool(10**9, allow_any=True)
    size = large.load(one).model.get_memory_footprint()
    kept = alone(Workbench(large), one)
    assert kept > 0
    pool = ModelPool(2 * size + kept // 2, allow_any=True)
    assert alone(Workbench(pool), one) == kept
    assert pool._free(()) == size + kept // 2 - kept
    pool.load(two)
    assert (pool.loaded_names(), pool._rows.num_bytes()) == (["0", "1"], 0)
    assert alone(Workbench(pool), two) == 0  # there is no room beside two models
    model = weakref.ref(pool.load(one).model)
    pool.load(two)
    pool.load(three)
    assert pool.loaded_names() == ["1", "2"]
    assert model() is None


def test_without_room_nothing_is_kept(tmp_path):
    (one,) = folders(tmp_path, 1)
    size = ModelPool(10**9).load(one).model.get_memory_footprint()
    bench = Workbench(ModelPool(size, allow_any=True))
    assert alone(bench, one) == 0
    assert read_whole(made(bench, target=one, draft=None, method="none"))


def one_model(pool, model) -> Workbench:
    model.name_or_path = "one"
    pool.load((model, tiny_tokenizer()))
    return Workbench(pool)


def test_rows_in_fewer_bits_are_not_kept(pool):
    bench = one_model(pool, tiny("llama", vocab_size=NUM_IDS).to(torch.bfloat16))
    assert alone(bench, "one") == 0
    assert read_whole(made(bench, target="one", draft=None, method="none"))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("num_tokens", [8, 300])
def test_the_counted_bytes_are_no_fewer_than_those_held(pool, family, num_tokens):
    bench = one_model(pool, tiny(family, vocab_size=NUM_IDS, max_position_embeddings=512, eos_token_id=None))
    made(bench, target="one", draft=None, method="none", max_new_tokens=num_tokens)
    (kept,) = bench.pool._rows._kept.values()
    (reader,) = kept.left
    rows = reader._forward._rows.rows if family == "llama" else reader._forward.cache
    assert 0 < _held_bytes(rows) <= bench.pool._rows.num_bytes()


def test_those_idle_longest_make_room(bench, monkeypatch):
    monkeypatch.setattr(kept_rows, "MOST_VISITORS", 2)
    visitors = [Asker(name, keeps_rows=True) for name in "abc"]
    for visitor in visitors:
        made(bench, visitor)
    assert list(bench.pool._rows._kept) == ["b", "c"]
    monkeypatch.setattr(kept_rows, "MOST_BYTES", bench.pool._rows.num_bytes() * 3 // 4)
    made(bench, visitors[1])
    assert list(bench.pool._rows._kept) == ["b"]


def test_what_lies_idle_is_freed(bench, monkeypatch):
    monkeypatch.setattr(kept_rows, "IDLE_S", 0.4)
    made(bench, ANN)
    (kept,) = bench.pool._rows._kept.values()
    reader = weakref.ref(next(iter(kept.left)))
    del kept
    time.sleep(0.2)
    made(bench, BOB)
    for most in (1, 0):  # on a busy machine the first may be gone before the second has come
        until(lambda most=most: len(bench.pool._rows._kept) <= most)
    gc.collect()
    assert reader() is None
    assert bench.pool._rows._timer is None
    assert read_whole(made(bench, ANN))
