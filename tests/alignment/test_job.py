"""align(): the same rows however the work is cut and wherever it is done, killed jobs go on, memory stays flat."""

import gc
import json
import os
import pickle
import shutil
import signal
import tracemalloc
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet as parquet
import pytest

import specviz.session.workbench as session
from specviz import __version__
from specviz.alignment import job as jobs
from specviz.alignment.job import align, align_steps
from specviz.alignment.model_identity import identify
from specviz.alignment.prompts import from_values
from specviz.alignment.shard import analyse
from specviz.alignment.summary import Examined
from specviz.alignment.tables.shard_tables import build_tables
from specviz.alignment.types import KS, PromptRow, Shard
from specviz.analysis import costs as costing
from specviz.analysis import theory
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session.workbench import Workbench
from tests.helpers import analysed_texts, warm_processes
from tests.helpers.made_costs import made_costs
from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer

ROOT = Path(__file__).parents[2]
WORDS = ("ant", "bee", "cat", "dog", "elk", "fox")
PROMPTS = [{"prompt": f"Once upon a time {word}", "id": word, "tags": word[0]} for word in WORDS]
SETTINGS = {"target": "big", "draft": ["near", "far"], "max_new_tokens": 12, "seed": 3, "costs": {}}
BRIEF = {**SETTINGS, "draft": "near", "max_new_tokens": 4}  # where the texts do not matter
WHOLE, BY_ONE = 50, 1  # sizes of shards
TABLES = ("tokens.parquet", "prompts.parquet", "slices.parquet", "tokens.csv.gz", "prompts.csv", "slices.csv")


@pytest.fixture
def bench(named_models, monkeypatch):
    """This process's workbench has the tiny models."""
    made = Workbench(named_models)
    monkeypatch.setattr(session, "_shared", [made])
    return made


@pytest.fixture(scope="module")
def finished(named_models, tmp_path_factory):
    """Finished jobs over all prompts by the size of their shards; nothing changes them."""
    made = {}

    def job(shard_size):
        if shard_size not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(session, "_shared", [Workbench(named_models)])
                out = tmp_path_factory.mktemp("job")
                made[shard_size] = align(PROMPTS, **SETTINGS, shard_size=shard_size, out=out, keep_parts=True)
        return made[shard_size]

    return job


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished job in one shard, with its parts or without."""

    def copy(name, *, with_parts=False):
        left_out = shutil.ignore_patterns(*([] if with_parts else ["parts"]))
        return shutil.copytree(finished(WHOLE).folder, tmp_path / name, ignore=left_out)

    return copy


def test_a_part_without_a_usable_row_is_left_out(bench):
    done = align([PROMPTS[0], {"prompt": [10**6]}, PROMPTS[1]], **BRIEF, shard_size=1)
    assert (done.summary.num_prompts, [line for line, _ in done.summary.refused]) == (2, [2])


def names_of(models):
    return tuple(model.name for model in models)


def contents(folder):
    return {name: (folder / name).read_bytes() for name in TABLES}


def rows_of(done, name):
    return parquet.read_table(done.folder / f"{name}.parquet").to_pylist()


# the same rows


def test_the_rows_are_those_of_the_shards(bench, finished):
    done = finished(4)
    request = Request(target="big", num_speculative_tokens=4, seed=3, max_new_tokens=12)
    rows = [PromptRow(n, n + 1, each["id"], (each["tags"],), each["prompt"]) for n, each in enumerate(PROMPTS)]
    wanted = analyse(Shard(request, ("near", "far"), tuple(rows), {}))
    got = done.tokens
    assert got["token"].tolist() == wanted.tokens["token"].tolist()
    np.testing.assert_allclose(got["overlap"], wanted.tokens["overlap"], atol=1e-5)
    assert done.prompts["id"].tolist() == [each["id"] for each in PROMPTS for _ in range(2)]
    assert done.slices["draft"].unique().tolist() == ["near", "far"]


def test_a_prompt_file_that_is_changed_during_a_job_is_noticed(bench, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("one\ntwo\nthree\n")
    steps = align_steps(file, **BRIEF, shard_size=1)
    next(steps)
    file.write_text("one\nwo!\nthree\n")
    with pytest.raises(SpecvizError, match=r"prompts\.txt has changed"):
        list(steps)


@pytest.mark.parametrize("shard_size", [BY_ONE, 4])
def test_how_the_work_is_cut_changes_no_token(finished, shard_size):
    whole, cut = finished(WHOLE), finished(shard_size)
    assert whole.tokens["token"].tolist() == cut.tokens["token"].tolist()
    np.testing.assert_allclose(whole.tokens["keep"], cut.tokens["keep"], atol=1e-5)
    for one, other in zip(whole.summary.drafts, cut.summary.drafts, strict=True):
        assert one.alpha == pytest.approx(other.alpha, abs=1e-6)


@contextmanager
def backwards():
    """An executor whose last piece is done first."""

    def each(function, items):
        yield from reversed(list(enumerate(map(function, items))))

    yield each


def test_results_may_come_in_any_order(bench, finished):
    other = align(PROMPTS, **SETTINGS, shard_size=BY_ONE, executor=backwards)
    assert contents(finished(BY_ONE).folder) == contents(other.folder)


def test_the_target_may_be_its_own_draft_and_agrees_with_itself(bench):
    summary = align(PROMPTS[:2], **{**SETTINGS, "draft": ["big", "near"]}).summary
    assert [draft.name for draft in summary.drafts] == ["big", "near"]
    assert summary.drafts[0].alpha == pytest.approx(1, abs=1e-6)
    assert summary.drafts[0].tokens_per_call[0] == pytest.approx(2, abs=1e-4)


def test_a_file_and_a_list_give_the_same(bench, finished, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    other = align(file, **SETTINGS, shard_size=WHOLE)
    assert contents(finished(WHOLE).folder) == contents(other.folder)


def test_only_the_first_prompts_are_used_with_a_limit(bench):
    done = align(PROMPTS, **BRIEF, limit=2, shard_size=4)
    assert done.prompts["id"].unique().tolist() == ["ant", "bee"]
    assert done.summary.num_prompts == 2


def test_a_limit_above_the_number_of_prompts_takes_all(bench, tmp_path):
    done = align(PROMPTS[:2], **BRIEF, limit=100, out=tmp_path)
    assert done.summary.num_prompts == 2
    assert align(PROMPTS[:2], **BRIEF, out=tmp_path).summary == done.summary  # the same job


def test_a_data_frame_is_its_rows(bench):
    frame = pandas.DataFrame([*PROMPTS[:2], {"prompt": "The end"}])
    done = align(frame, **BRIEF)
    assert done.prompts["id"].unique().tolist() == [*WORDS[:2], "2"]


def test_the_summary_knows_its_prompts_and_their_form(bench, finished):
    rows = from_values(PROMPTS)
    whole = finished(WHOLE).summary
    assert (whole.prompts, whole.chat) == (rows.fingerprint, False)
    assert "a vocabulary that ends early" in whole.looked_for
    done = align(from_values(PROMPTS[:1]), **BRIEF)
    assert done.summary.prompts == from_values(PROMPTS[:1]).fingerprint not in ("", whole.prompts)


# going on


def test_a_job_that_was_stopped_goes_on_and_ends_the_same(bench, finished, tmp_path):
    whole = finished(BY_ONE)
    steps = align_steps(PROMPTS, **SETTINGS, shard_size=1, out=tmp_path / "cut")
    while next(steps).done < 3:
        pass
    steps.close()
    assert len(list((tmp_path / "cut" / "parts").iterdir())) == 3
    seen = []
    cut = align(PROMPTS, **SETTINGS, shard_size=1, out=tmp_path / "cut", on_progress=seen.append)
    assert [each.done for each in seen if each.words == jobs.READING] == [3, 4, 5, 6]
    assert seen[-1].num_tokens == 3 * 12
    assert contents(whole.folder) == contents(cut.folder)


NAMES = ("large", "small")
KILLED = """
import json, os, signal, sys
from specviz.alignment.job import align
settings = json.loads(sys.argv[1])
def look(progress):
    if progress.done >= 4:
        os.kill(os.getpid(), signal.SIGKILL)
align(settings.pop("prompts"), **settings, costs={}, on_progress=look)
"""


@pytest.mark.slow
def test_a_killed_process_loses_no_part_and_the_job_ends_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "_shared", [])
    tokenizer = tiny_tokenizer()
    models = [tiny("llama", vocab_size=len(tokenizer), layers=layers, seed=layers) for layers in (2, 1)]
    names = [tiny_folder(tmp_path / name, model, tokenizer) for name, model in zip(NAMES, models, strict=True)]
    settings = {"target": str(names[0]), "draft": str(names[1]), "max_new_tokens": 8, "shard_size": 2}
    told = json.dumps({"prompts": PROMPTS, **settings, "out": str(tmp_path / "cut")})
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = warm_processes.run(KILLED, told, env=environment, cwd=tmp_path)
    assert ended.returncode == -signal.SIGKILL
    kept = sorted((tmp_path / "cut" / "parts").iterdir())
    assert [path.name for path in kept] == ["part-00000", "part-00001"]
    whole = align(PROMPTS, **settings, costs={}, out=tmp_path / "whole")
    cut = align(PROMPTS, **settings, costs={}, out=tmp_path / "cut")
    assert contents(whole.folder) == contents(cut.folder)
    assert whole.summary.target == "large"
    assert str(tmp_path) not in "".join((cut.folder / name).read_text() for name in ("summary.json", "job.json"))


def test_a_finished_job_returns_at_once(bench, finished, copied, monkeypatch):
    monkeypatch.setattr(jobs, "analyse", None)
    monkeypatch.setattr(jobs, "look", None)
    again = align(PROMPTS, **SETTINGS, shard_size=WHOLE, out=copied("job"))
    assert again.summary.to_dict() == finished(WHOLE).summary.to_dict()


@pytest.mark.parametrize("name", ["report.html", "tokens.parquet"])
def test_a_finished_job_that_lacks_something_is_not_called_done(bench, finished, copied, monkeypatch, name):
    bare, kept = copied("bare"), copied("kept", with_parts=True)
    for folder in (bare, kept):
        (folder / name).unlink()
    monkeypatch.setattr(jobs, "analyse", None)
    with pytest.raises(SpecvizError, match=f"bare lacks {name} "):
        align(PROMPTS, **SETTINGS, shard_size=WHOLE, out=bare)
    again = align(PROMPTS, **SETTINGS, shard_size=WHOLE, out=kept, keep_parts=True)
    assert contents(again.folder) == contents(finished(WHOLE).folder)
    assert again.report_path.exists()


def test_a_second_run_in_the_folder_waits_outside(bench, tmp_path):
    steps = align_steps(PROMPTS[:4], **BRIEF, shard_size=1, out=tmp_path)
    while next(steps).done < 1:
        pass
    with pytest.raises(SpecvizError, match="another run works in"):
        align(PROMPTS[:4], **BRIEF, shard_size=1, out=tmp_path, overwrite=True)
    assert [next(steps).done for _ in range(2)] == [2, 3]
    steps.close()
    assert align(PROMPTS[:4], **BRIEF, shard_size=1, out=tmp_path).summary.num_prompts == 4
    assert not (tmp_path / "job.lock").exists()


def test_the_same_folder_refuses_other_prompts(bench, copied):
    folder = copied("job")
    with pytest.raises(SpecvizError, match=r"prompts was"):
        align([*PROMPTS[:5], {**PROMPTS[5], "prompt": "other"}], **SETTINGS, shard_size=WHOLE, out=folder)
    done = align(PROMPTS[:1], **BRIEF, out=folder, overwrite=True)
    assert done.summary.num_prompts == 1


def test_other_weights_under_the_same_name_are_another_job(bench):
    names = ("big", "near")
    before = identify(names)
    weights = bench.pool.load("near").model.get_input_embeddings().weight
    kept = weights.data.clone()
    weights.data += 0.01
    after = identify(names)
    weights.data = kept
    assert before[0] == after[0]
    assert before[1].content != after[1].content
    assert identify(names) == before


@pytest.mark.parametrize("name", ["rope_theta", "context", "end"])
def test_another_configuration_of_the_same_weights_is_another_job(bench, monkeypatch, name):
    before = identify(("big", "near"))
    near = bench.pool.load("near")
    if name == "rope_theta":
        monkeypatch.setitem(near.model.config.rope_parameters, "rope_theta", 123.0)
    elif name == "context":
        changed = replace(near, info=replace(near.info, context_limit=near.info.context_limit - 1))
        load = bench.pool.load

        def others(wanted, **how):
            return changed if wanted == "near" else load(wanted, **how)

        monkeypatch.setattr(bench.pool, "load", others)
    else:
        monkeypatch.setattr(near.text, "eos_ids", near.text.eos_ids | {7})
    after = identify(("big", "near"))
    assert before[0] == after[0]
    assert before[1].content != after[1].content


@pytest.mark.parametrize("keep", [False, True])
def test_parts_are_kept_only_when_asked_for(bench, tmp_path, keep):
    align(PROMPTS[:2], **BRIEF, out=tmp_path, shard_size=1, keep_parts=keep)
    assert len([*tmp_path.glob("parts/*")]) == (2 if keep else 0)


# costs


COSTS = {name: made_costs(name) for name in ("near", "far")}


def test_given_costs_make_the_speeds(bench):
    done = align(PROMPTS[:3], **{**SETTINGS, "costs": COSTS})
    for draft in done.summary.drafts:
        own, plain = COSTS[draft.name], theory.step_ms(COSTS[draft.name], 0)
        assert done.summary.costs[draft.name] == own.to_dict()
        rows = [row for row in rows_of(done, "prompts") if row["draft"] == draft.name]
        assert {row["best_k"] for row in rows} <= set(KS)
        for row in rows:  # at best_k no slower than drafting nothing would be at K = 1 with no token kept
            assert row["speedup"] >= plain / theory.step_ms(own, 1) - 1e-6


def test_costs_are_measured_where_none_are_given(bench, monkeypatch):
    asked = []

    def measure(models):
        asked.append(names_of(models))
        return [*map(made_costs, names_of(models)[1:])]

    monkeypatch.setattr(jobs, "measure_models", measure)
    done = align(PROMPTS[:1], **{**SETTINGS, "costs": None})
    assert asked == [("big", "near", "far")]
    assert {name: costs["draft"] for name, costs in done.summary.costs.items()} == {"near": "near", "far": "far"}


def test_the_drafts_of_a_job_are_measured_beside_one_and_the_same_target_where_all_have_room(bench, monkeypatch):
    monkeypatch.setattr(costing, "READ_BYTES", 1 << 20)
    monkeypatch.setattr(jobs, "measure_costs", partial(jobs.measure_costs, rounds=1, most_tokens=4))
    near, brief = jobs.measure_models(identify(("big", "near", "brief")))
    assert [(each.target, each.draft, each.context_length) for each in (near, brief)] == [
        ("big", "near", 7), ("big", "brief", 7),
    ]  # fmt: skip
    assert near.verify_ms == brief.verify_ms


def test_costs_of_a_busy_machine_give_no_speed_and_no_best_k_and_the_job_says_why(bench):
    doubted = COSTS | {"near": replace(COSTS["near"], spread=0.4)}
    done = align(PROMPTS[:2], **{**SETTINGS, "costs": doubted})
    near, far = done.summary.drafts
    assert (near.speedups, near.best_k) == (None, None)
    assert far.speedups
    assert done.summary.costs["near"] == doubted["near"].to_dict()
    (warning,) = done.summary.warnings
    assert warning.startswith("near: ")
    assert warning.endswith(doubted["near"].doubt)
    assert {row["best_k"] for row in rows_of(done, "prompts") if row["draft"] == "near"} == {0}
    assert {each.best_k for each in done.summary.slices if each.draft == "near"} == {None}


def test_a_resumed_job_keeps_the_costs_that_were_measured(bench, tmp_path, monkeypatch):
    times = iter([1.0, 2.0])
    monkeypatch.setattr(jobs, "measure_models", lambda models: [made_costs(models[1].name, draft_ms=next(times))])
    settings = {**BRIEF, "costs": None, "shard_size": 1, "out": tmp_path}
    steps = align_steps(PROMPTS[:2], **settings)
    while next(steps).done < 1:
        pass
    steps.close()
    assert align(PROMPTS[:2], **settings).summary.costs["near"]["draft_ms"] == 1.0


# what is refused


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"k": 17}, "k .* 1 to 16 .got 17"),
        ({"k": 0}, "k .* 1 to 16 .got 0"),
        ({"k": 4.0}, "k .* 1 to 16 .got 4.0"),
        ({"k": "4"}, "k .* 1 to 16 .got '4'"),
        ({"k": True}, "k .* 1 to 16 .got True"),
        ({"temperature": -1}, "temperature .* 0 to 5 .got -1"),
        ({"max_new_tokens": 0}, "max_new_tokens .*got 0"),
        ({"batch": 0}, "batch .* 1 to 4,096 .got 0"),
        ({"shard_size": True}, "shard_size .*got True"),
        ({"limit": 0}, "limit .* 1 to 1,000,000,000 .got 0"),
        ({"limit": 2.0}, "limit .*got 2.0"),
        ({"draft": 5}, "model .*got int"),
        ({"draft": [5]}, "model .*got int"),
        ({"draft": [["near", "far"]]}, "model .*got list"),
        ({"draft": [None, "far"]}, "model .*got NoneType"),
        ({"target": 5}, "model .*got int"),
        ({"target": ["big", "near"]}, "model .*got list"),
        ({"costs": {"near": 5}}, "costs .* mapping of drafts"),
        ({"costs": 5}, "costs .* mapping of drafts"),
        ({"costs": made_costs("near")}, "costs .* mapping of drafts"),
        ({"out": 5}, "out .*got 5"),
        ({"draft": []}, "1 to 16 drafts .*got 0"),
        ({"draft": None}, "at least one draft"),
        ({"draft": ["near", "near"]}, "once .got near 2 times"),
        ({"draft": "stranger"}, "stranger .* big: .*vocabularies"),
        ({"costs": {"other": made_costs("other")}}, "costs .* other, .* near, far"),
        ({"costs": {"near": made_costs("near", "small")}}, "target small, not big"),
    ],
    ids=str,
)
def test_bad_settings_are_refused_by_name_and_value_before_any_work(bench, tmp_path, changes, told):
    with pytest.raises(SpecvizError, match=told):
        align(PROMPTS, **{**SETTINGS, "out": tmp_path / "job", **changes})
    assert not (tmp_path / "job").exists()


def test_a_folder_that_is_called_like_a_bundled_model_is_read_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "_shared", [])
    tokenizer, sizes = tiny_tokenizer(), {"layers": 1, "hidden": 16}
    models = [tiny("llama", vocab_size=len(tokenizer), seed=seed, **sizes) for seed in range(2)]

    def job(target, draft):
        pairs = zip((target, draft), models, strict=True)
        places = [tiny_folder(tmp_path / name, model, tokenizer) for name, model in pairs]
        settings = {"costs": {}, "max_new_tokens": 4, "out": tmp_path / f"of-{draft}"}
        return align(PROMPTS[:1], target=places[0], draft=places[1], **settings).summary

    plain, named = job("my-target", "my-draft"), job("fable-target", "fable-draft")
    assert named.drafts[0].alpha == plain.drafts[0].alpha
    assert (named.target, named.drafts[0].name) == ("fable-target (folder)", "fable-draft (folder)")
    assert sorted(named.models.values()) == sorted(plain.models.values())
    assert str(tmp_path) not in (tmp_path / "of-fable-draft" / "job.json").read_text()


@contextmanager
def elsewhere():
    """Every piece of work in what knows no model yet, as a process of its own would be."""

    def each(function, items):
        for place, item in enumerate(items):
            session._shared[:] = [Workbench(ModelPool(10**9, allow_any=True))]
            yield place, function(pickle.loads(pickle.dumps(item)))

    yield each


def test_work_is_refused_where_a_folder_holds_other_weights_than_the_job_began_with(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "_shared", [])
    tokenizer = tiny_tokenizer()
    first, second = (tiny("llama", vocab_size=len(tokenizer), layers=1, seed=seed) for seed in range(2))
    target, draft = (tiny_folder(tmp_path / name, first, tokenizer) for name in ("target", "draft"))
    settings = {"target": target, "draft": draft, "costs": {}, "max_new_tokens": 4, "executor": elsewhere}
    done = align(PROMPTS[:1], **settings).summary
    assert done.drafts[0].alpha == pytest.approx(1.0)
    work = align_steps(PROMPTS[:2], **settings)
    while next(work).words != jobs.READING:
        continue
    tiny_folder(draft, second, tokenizer)
    with pytest.raises(SpecvizError, match=r"draft has changed .*weights"):
        list(work)


def test_folders_may_be_given_as_paths(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "_shared", [])
    tokenizer = tiny_tokenizer()
    models = [tiny("llama", vocab_size=len(tokenizer), layers=1, seed=seed) for seed in range(3)]
    target, *drafts = (tiny_folder(tmp_path / f"model-{n}", model, tokenizer) for n, model in enumerate(models))
    for draft, names in ((drafts, ["model-1", "model-2"]), (drafts[0], ["model-1"])):
        assert isinstance(drafts[0], Path)
        summary = align(PROMPTS[:1], target=target, draft=draft, costs={}, max_new_tokens=4).summary
        assert [each.name for each in summary.drafts] == names


@pytest.mark.parametrize("kind", [list, tuple])
def test_pairs_in_memory_may_be_lists_or_tuples(bench, kind):
    pairs = [kind((each.model, each.tokenizer)) for each in map(bench.pool.load, ("near", "far"))]
    for draft, names in ((kind(pairs), ["near", "far"]), (pairs[0], ["near"])):
        summary = align(PROMPTS[:1], **BRIEF | {"draft": draft}).summary
        assert [each.name for each in summary.drafts] == names


def test_models_in_memory_stay_in_this_process(bench):
    near = bench.pool.load("near")
    settings = {**BRIEF, "draft": (near.model, near.tokenizer)}
    assert align(PROMPTS[:1], **settings).summary.drafts[0].name == "near"
    with pytest.raises(SpecvizError, match="models in memory"):
        align(PROMPTS, **settings, executor=backwards)


def test_rows_that_cannot_be_used_are_named_and_the_others_go_on(bench):
    rows = [PROMPTS[0], {"prompt": ""}, {"prompt": "a", "completion": [0, 999_999]}, PROMPTS[1]]
    summary = align(rows, **BRIEF).summary
    assert (summary.num_prompts, summary.num_refused) == (2, 2)
    assert [line for line, _ in summary.refused] == [2, 3]


def test_a_job_without_a_usable_text_is_an_error(bench):
    with pytest.raises(SpecvizError, match=r": line 1 .*got 999999"):
        align([{"prompt": "a", "completion": [0, 999_999]}], **BRIEF)


# what comes back


def test_the_summary_says_what_was_asked(bench):
    summary = align(PROMPTS[:1], **BRIEF, temperature=0.8, top_k=9, top_p=0.9, min_p=0.1, k=5).summary
    assert (summary.specviz, summary.target, summary.seed, summary.k) == (__version__, "big", 3, 5)
    assert summary.sampling == {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.1}
    assert summary.exact


def test_a_temporary_folder_lives_as_long_as_its_result(bench):
    done = align(PROMPTS[:1], **BRIEF)
    folder = done.folder
    assert done.report_path.read_text("utf-8").startswith("<!doctype html>")
    assert len(done.tokens) == 4
    del done
    gc.collect()
    assert not folder.exists()


def test_progress_counts_prompts_and_ends_with_the_result(bench):
    seen = []
    done = align(PROMPTS[:3], **BRIEF, shard_size=2, on_progress=seen.append)
    assert [each.done for each in seen if each.tokens_per_s] == [2, 3]
    assert {each.total for each in seen} == {3}
    assert (seen[-1].result, seen[-1].num_tokens) == (done, 3 * 4)
    assert [each.result for each in seen[:-1]] == [None] * (len(seen) - 1)
    left = [each.seconds_left for each in seen if each.tokens_per_s]
    assert left[0] > left[-1] == 0


# memory


STREAMING = (jobs.READING, jobs.TOGETHER)
TEXT = analysed_texts.text(0, drafts=("near",), size=32)


def stand_in(shard):
    """Tables of one random text for every row."""
    return build_tables([replace(TEXT, written=replace(TEXT.written, row=row)) for row in shard.rows], shard)


class EnoughError(Exception):
    pass


def enough(*_):
    raise EnoughError


def peak_of(num_prompts, folder, monkeypatch):
    """Bytes that Python and Arrow held at once, most, while shards are read and while their tables pass by.

    What follows is bounded by itself: an interval needs few numbers per prompt, the report holds 20 MB of texts.
    """
    monkeypatch.setattr(jobs, "analyse", stand_in)
    monkeypatch.setattr(jobs, "steps", lambda shard: iter([Examined((), (), (), None, {})]))
    monkeypatch.setattr(jobs.Aggregator, "summary", enough)
    rows = [f"prompt {number}" for number in range(num_prompts)]
    gc.collect()
    before, highest = pyarrow.total_allocated_bytes(), 0
    tracemalloc.start()
    with suppress(EnoughError):
        for progress in align_steps(rows, **{**SETTINGS, "draft": "near"}, out=folder, shard_size=8):
            if progress.words in STREAMING:
                highest = max(highest, tracemalloc.get_traced_memory()[1] + pyarrow.total_allocated_bytes() - before)
    tracemalloc.stop()
    return highest


@pytest.mark.slow
def test_memory_is_flat_in_the_number_of_prompts(bench, tmp_path, monkeypatch):
    peak_of(16, tmp_path / "first", monkeypatch)
    small, large = (peak_of(count, tmp_path / str(count), monkeypatch) for count in (40, 160))
    assert large < 1.3 * small
