"""The recorded runs that come with specviz: small, whole, with their scores, and what today's models still make."""

import json

import pytest

from specviz import shipped as listing
from specviz.errors import SpecvizError
from specviz.models import Library
from specviz.request import Request
from specviz.shipped import FIRST_VISIT, shipped, shipped_file, shipped_trace
from specviz.ui.offer import make_offer
from specviz.ui.record import main, recorded
from specviz.views.feed import Feed

MOST_BYTES = 50_000
NEEDED = {
    "first-visit", "one-by-one", "greedy", "hot", "k-1", "k-8", "tiny-draft", "misaligned-draft", "sum",
    "broken-residual", "prompt-lookup", "early-exit", "tree", "medusa", "eagle",
}  # fmt: skip
each = pytest.mark.parametrize("name", shipped())


def request_of(name):
    first = make_offer().first
    return Request.from_dict({**first.to_dict(), **shipped()[name].request})


def test_those_that_others_build_on_are_there_and_the_first_visit_is_the_first():
    assert set(shipped()) == NEEDED
    assert next(iter(shipped())) == FIRST_VISIT


def test_every_file_of_the_folder_is_in_the_list():
    assert {path.name for path in shipped_file("any").parent.glob("*.gz")} == {f"{name}.jsonl.gz" for name in shipped()}


@each
def test_it_is_small_and_whole(name):
    recorded = shipped_trace(name)
    assert shipped_file(name).stat().st_size <= MOST_BYTES
    assert recorded.footer.reason in ("length", "eos")
    assert 40 <= len(recorded.tokens) <= 64
    (scores,) = recorded.scores
    assert (scores.draft_model is None) == (recorded.models[0].draft_model is None)


@each
def test_it_is_what_the_list_says(name):
    recorded, wanted = shipped_trace(name), request_of(name)
    kept = Request.from_dict(recorded.header.request | {"rule": None})
    assert kept.to_dict() | {"rule": None, "params": {}} == wanted.to_dict() | {"params": {}}
    rules = {step.settings.rule for step in recorded.steps}
    assert rules <= {shipped()[name].broken or "speculative_sampling", None}


@each
def test_its_first_step_read_the_whole_prompt(name):
    num_prompt, first = len(shipped_trace(name).header.prompt.tokens), shipped_trace(name).steps[0]
    num_fed, num_drafted = first.fed["target"], len(first.draft)
    assert num_fed == num_prompt + num_drafted, "recorded with the prompt in memory: record it again"


@each
def test_its_words_fit_a_list_and_its_steps_a_stage(name):
    entry = shipped()[name]
    assert 1 <= len(entry.title) <= 40
    assert entry.about.endswith(".")
    assert len(entry.about) <= 160
    assert json.loads(Feed.from_trace(shipped_trace(name), name).message(0, None))


@pytest.mark.parametrize("name", ["first-visit", "broken-residual", "tree", "sum", "prompt-lookup"])
def test_the_bundled_models_still_write_it(name):
    again, before = recorded([shipped()[name]], Library(), repeats=1)[name], shipped_trace(name)
    assert [token.id for token in again.tokens] == [token.id for token in before.tokens]
    assert again.scores[0].p == pytest.approx(before.scores[0].p, rel=1e-3, abs=1e-6)


def test_only_runs_of_the_list_are_recorded():
    with pytest.raises(SystemExit, match=r"must be one of first-visit.*\(got nothing, neither\)"):
        main(["nothing", "neither"])


def test_a_name_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(SpecvizError, match=r"must be one of first-visit, .* \(got '../../etc"):
        shipped_trace("../../etc/passwd")


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"title": "x"}]', '[{"name": "x", "colour": 1}]', "5"])
def test_a_list_that_cannot_be_read_is_said(content, tmp_path, monkeypatch):
    (tmp_path / "traces.json").write_text(content, "utf-8")
    monkeypatch.setattr(listing, "_folder", lambda: tmp_path)
    with pytest.raises(SpecvizError, match="the list of recorded runs"):
        shipped()
