"""Executors: the same results here and on a real local Ray of two workers, nothing lost with a worker that dies."""

import importlib.util
import os
import signal
import sys
from contextlib import nullcontext
from functools import partial

import pytest

import specviz.session.workbench as session
from specviz.alignment import executors
from specviz.alignment.job import align
from specviz.errors import SpecvizError
from tests.helpers.executor_toys import die_always, die_once, refuse_seven, square, whose
from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer

pytestmark = pytest.mark.slow

has_ray = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not has_ray, reason="Ray is not installed: it is an optional extra")
ITEMS = range(40)


class Counted:
    """Items that tell how many have been drawn."""

    def __init__(self, count):
        self.drawn, self._count = 0, count

    def __iter__(self):
        for item in range(self._count):
            self.drawn += 1
            yield item


def in_order(function, items):
    with executors.local() as each:
        return list(each(function, items))


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


AT_FIRST = handlers()


@pytest.fixture(scope="module")
def two_workers():
    if not has_ray:
        pytest.skip("Ray is not installed: it is an optional extra")
    with executors.on_ray(num_workers=2) as each:
        import ray

        yield each
    assert not ray.is_initialized()


def test_the_local_executor_is_a_plain_loop():
    assert in_order(square, ITEMS) == [(number, (number, number * number)) for number in ITEMS]


def test_the_local_executor_draws_an_item_when_it_is_due():
    items = Counted(9)
    with executors.local() as each:
        results = each(square, items)
        next(results)
        assert items.drawn == 1


def test_ray_gives_the_same_results_with_their_places(two_workers):
    assert sorted(two_workers(square, ITEMS)) == in_order(square, ITEMS)


def test_ray_leaves_the_signals_to_whoever_called_it(two_workers):
    assert handlers() == AT_FIRST


def test_ray_works_in_two_processes_that_are_not_this_one(two_workers):
    processes = {process for _, process in two_workers(whose, ITEMS)}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_ray_draws_items_only_a_few_ahead(two_workers):
    items = Counted(100)
    for done, _ in enumerate(two_workers(square, items), 1):
        assert items.drawn <= done + 2 * executors.IN_FLIGHT
    assert items.drawn == done == 100


def test_a_worker_that_is_killed_loses_nothing(two_workers, tmp_path):
    mark = tmp_path / "killed"
    assert sorted(two_workers(partial(die_once, str(mark)), ITEMS)) == in_order(square, ITEMS)
    assert mark.exists()


def test_what_the_function_raises_comes_out_as_itself(two_workers):
    with pytest.raises(SpecvizError, match=r"^seven is refused$") as raised:
        list(two_workers(refuse_seven, ITEMS))
    assert type(raised.value) is SpecvizError


def test_no_item_is_no_result(two_workers):
    assert list(two_workers(square, [])) == []


def test_a_cluster_that_runs_already_is_used_and_left(two_workers, monkeypatch):
    import ray

    monkeypatch.setattr(executors, "PLACE_S", 0.3)
    with pytest.raises(SpecvizError, match=r"no worker found a free slot"), executors.on_ray(num_workers=1):
        pass  # both places are taken
    assert ray.is_initialized()


def test_the_cluster_listens_to_this_machine_alone(two_workers):
    import ray

    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ


def test_work_that_kills_every_worker_is_an_error_in_words(two_workers):
    with pytest.raises(SpecvizError, match="lost 4 times with its worker"):
        list(two_workers(die_always, [1]))


def test_a_job_on_ray_gives_the_rows_of_a_job_here(two_workers, tmp_path, monkeypatch):
    monkeypatch.setattr(session, "_shared", [])
    tokenizer = tiny_tokenizer()
    folders = [tmp_path / name for name in ("large", "small")]
    for folder, layers in zip(folders, (2, 1), strict=True):
        tiny_folder(folder, tiny("llama", vocab_size=len(tokenizer), layers=layers, seed=layers), tokenizer)
    large, small = map(str, folders)
    settings = {"target": large, "draft": small, "max_new_tokens": 8, "shard_size": 1, "costs": {}}
    prompts = [f"Once upon a time there was a {word}" for word in ("fox", "dog", "cat")]
    here = align(prompts, **settings, out=tmp_path / "here")
    there = align(prompts, **settings, out=tmp_path / "there", executor=lambda: nullcontext(two_workers))
    for name in ("tokens.parquet", "prompts.parquet", "slices.parquet"):
        assert (here.folder / name).read_bytes() == (there.folder / name).read_bytes()


def test_without_ray_the_error_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpecvizError, match=r"pip install \"ray"), executors.on_ray():
        pass


def test_a_number_of_workers_is_checked():
    with pytest.raises(ValueError, match=r"num_workers must be >= 1 \(got 0\)"), executors.on_ray(num_workers=0):
        pass
