"""The recorded runs that come with specviz: small, whole, with their scores, and what today's models still make."""

import json

import pytest

from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.trace import Trace
from specviz.trace import shipped as listing
from specviz.trace.metrics import count, metrics
from specviz.trace.shipped import FIRST_VISIT, shipped_file, shipped_runs, shipped_trace
from specviz.views.explore.feed import Feed
from specviz.views.explore.speed import NONE_BESIDE, speed_words
from specviz.zoo import shipped_runs as recording
from specviz.zoo.shipped_runs import main, record_runs

MOST_BYTES = 75_000
NEEDED = {
    "first-visit", "one-by-one", "greedy", "hot", "k-1", "k-8", "tiny-draft", "misaligned-draft", "sum",
    "program", "broken-residual", "right-rule", "prompt-lookup", "early-exit", "tree", "medusa", "eagle", "block",
    "block-bias",
    "real-function", "real-question", "real-eagle", "real-alone", "real-summary", "real-program", "real-story",
}  # fmt: skip
each = pytest.mark.parametrize("name", shipped_runs())


def request_of(name):
    first = recording.base_request()
    return Request.from_dict({**first.to_dict(), **shipped_runs()[name].request})


def test_those_that_others_build_on_are_there_and_the_first_visit_is_the_first():
    assert set(shipped_runs()) == NEEDED
    assert next(iter(shipped_runs())) == FIRST_VISIT


def test_every_file_of_the_folder_is_in_the_list():
    assert {path.name for path in shipped_file("any").parent.glob("*.gz")} == {
        f"{name}.jsonl.gz" for name in shipped_runs()
    }


@each
def test_it_is_small_and_whole(name):
    recorded = shipped_trace(name)
    assert shipped_file(name).stat().st_size <= MOST_BYTES
    assert recorded.footer.reason in ("length", "eos")
    assert 40 <= len(recorded.tokens) <= 128
    (scores,) = recorded.scores
    assert (scores.draft_model is None) == (recorded.models[0].draft_model is None)


@each
def test_it_is_what_the_list_says(name):
    recorded, wanted = shipped_trace(name), request_of(name)
    kept = Request.from_dict(recorded.header.request | {"rule": None})
    assert kept.to_dict() | {"rule": None, "params": {}} == wanted.to_dict() | {"params": {}}
    rules = {step.settings.rule for step in recorded.steps}
    assert rules <= {shipped_runs()[name].broken or "speculative_sampling", None}


@each
def test_its_first_step_read_the_whole_prompt(name):
    num_prompt, first = len(shipped_trace(name).header.prompt.tokens), shipped_trace(name).steps[0]
    num_fed, num_drafted = first.fed["target"], len(first.draft)
    assert num_fed == num_prompt + num_drafted, "recorded with the prompt in memory: record it again"


@each
def test_its_words_fit_a_list_and_its_steps_a_stage(name):
    entry = shipped_runs()[name]
    assert 1 <= len(entry.title) <= 40
    assert entry.about.endswith(".")
    assert len(entry.about) <= 160
    assert json.loads(Feed.from_trace(shipped_trace(name), name).message(0, None))


def test_the_bundled_models_still_write_the_first():
    _is_written_again(FIRST_VISIT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["broken-residual", "program", "tree", "sum", "prompt-lookup"])
def test_the_bundled_models_still_write_the_others(name):
    _is_written_again(name)


def _is_written_again(name):
    again, before = record_runs([shipped_runs()[name]], ModelPool(), repeats=1)[name], shipped_trace(name)
    assert [token.id for token in again.tokens] == [token.id for token in before.tokens]
    assert again.scores[0].p == pytest.approx(before.scores[0].p, rel=1e-3, abs=1e-6)


@each
def test_it_was_measured_beside_the_same_run_without_a_draft(name):
    recorded = shipped_trace(name)
    baseline = recorded.footer.baseline
    assert baseline["environment"] == recorded.header.environment
    assert 0.9 * len(recorded.tokens) <= baseline["num_tokens"] <= 128
    words = speed_words(count(recorded), None, recorded=True).words
    assert NONE_BESIDE not in words
    assert ("measured where it was recorded" in words or "about as fast" in words) == (
        name not in ("one-by-one", "real-alone")
    )


def test_runs_that_differ_in_the_draft_alone_share_one_run_without_it():
    speeds = {name: shipped_trace(name).footer.baseline["tokens_per_s"] for name in shipped_runs()}
    assert len({speeds[name] for name in ("first-visit", "k-1", "k-8", "tiny-draft", "early-exit", "eagle")}) == 1
    assert metrics(shipped_trace("one-by-one"))["tokens_per_s"] == pytest.approx(speeds["one-by-one"], rel=1e-3)
    assert speeds["greedy"] != speeds["first-visit"] != speeds["hot"]


def cut_to(num_steps):
    header, models, *_ = events = list(shipped_trace("one-by-one").events())
    return Trace([header, models, *shipped_trace("one-by-one").steps[:num_steps], events[-1]])


def test_of_the_rounds_the_first_warms_up_and_the_middle_one_by_time_is_kept(monkeypatch):
    taken = iter(map(cut_to, (5, 3, 40, 9)))
    monkeypatch.setattr(recording, "whole_run", lambda active, rule, scored: next(taken))
    monkeypatch.setattr(recording, "activate", lambda request, pool: None)
    made = record_runs([shipped_runs()["one-by-one"]], ModelPool(), repeats=3)["one-by-one"]
    assert len(made.steps) == 9
    speeds = sorted(metrics(cut_to(length))["tokens_per_s"] for length in (3, 40, 9))
    assert made.footer.baseline["tokens_per_s"] == pytest.approx(speeds[1], abs=1e-3)
    assert made.footer.baseline["num_tokens"] == 40


def test_a_run_is_made_in_turn_with_its_run_without_a_draft(monkeypatch):
    made = []
    monkeypatch.setattr(recording, "activate", lambda request, pool: request)
    monkeypatch.setattr(recording, "whole_run", lambda request, rule, scored: made.append(request) or cut_to(4))
    record_runs([shipped_runs()["sum"]], ModelPool(), repeats=2)
    assert [each.method for each in made] == ["draft_model", "none"] * 3
    assert {(each.prompt, each.temperature, each.seed, each.max_new_tokens) for each in made} == {
        ("Sum: 275 + 615\n\n", 0.0, 5, 64)
    }


def test_only_runs_of_the_list_are_recorded():
    with pytest.raises(SystemExit, match=r"must be one of first-visit.*\(got nothing, neither\)"):
        main(["nothing", "neither"])


def test_a_target_stands_for_its_runs_and_where_it_is_not_here_they_are_left_out(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(recording, "record_runs", lambda wanted, pool: asked.append([e.name for e in wanted]) or {})
    monkeypatch.setattr(recording, "is_here", lambda name: name != "smollm2")
    real = [name for name in shipped_runs() if name.startswith("real-")]
    main(["smollm2", "sum"])
    main([])
    assert asked == [["sum", *real], [name for name in shipped_runs() if name not in real]]
    assert capsys.readouterr().out == f"left out, as their target is not on this machine: {', '.join(real)}\n"


def test_a_run_without_a_draft_is_asked_in_the_same_form():
    """What a speed is measured against reads the same prompt."""
    for name in ("real-question", "real-alone", "first-visit"):
        take = recording.Take(request_of(name))
        alone = recording._baseline_take(take.request, recording.base_request()).request
        assert (alone.chat, alone.prompt, alone.target) == (take.request.chat, take.request.prompt, take.request.target)


def test_a_name_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(SpecvizError, match=r"must be one of first-visit, .* \(got '../../etc"):
        shipped_trace("../../etc/passwd")


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"title": "x"}]', '[{"name": "x", "colour": 1}]', "5"])
def test_a_list_that_cannot_be_read_is_said(content, tmp_path, monkeypatch):
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "traces.json").write_text(content, "utf-8")
    monkeypatch.setattr(listing, "assets_dir", lambda: tmp_path)
    with pytest.raises(SpecvizError, match="the list of recorded runs"):
        shipped_runs()
