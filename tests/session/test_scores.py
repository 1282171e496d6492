"""Laws of a run's scores: gathered step by step, they are those of one reading of the whole text by both models."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from specviz.decoding.sampling import Sampling
from specviz.models.score import score
from specviz.session import recorder, scorer
from specviz.session.controls import Controls
from specviz.session.run import Run
from specviz.session.whole_run import activate, whole_run
from tests.helpers.runs import REQUEST, begin, finish, made, make_steps, timeless, whole_text
from tests.session.test_live import PAIR, changed_after


def assert_read(bench, recorded):
    """The newest models and sampling, asked once over the whole text, give the same numbers."""
    [scores] = recorded.scores
    used = recorded.steps[-1].settings
    draft = None if scores.draft_model is None else bench.pool.load(scores.draft_model)
    tokens, sampling = whole_text(recorded), Sampling.of(used)
    read = score(bench.pool.load(used.target), draft, tokens, len(recorded.tokens), sampling)
    for name in ("p", "q", "overlap"):
        ours, theirs = getattr(scores, name), getattr(read, name)
        assert [value is None for value in ours] == [value is None for value in theirs]
        known = [(one, other) for one, other in zip(ours, theirs, strict=True) if one is not None]
        np.testing.assert_allclose(*np.array(known or [(0, 0)]).T, rtol=2e-4, atol=1e-6)


@pytest.fixture
def steps_alone(monkeypatch):
    """Nothing may be read with both models."""
    monkeypatch.setattr(scorer, "score", None)


CASES = {
    "a chain": {},
    "greedy": {"temperature": 0.0},
    "a bundled pair": PAIR,
    "a bundled pair, greedy": {**PAIR, "temperature": 0.0},
    "a bundled pair, top-k": {**PAIR, "temperature": 0.7, "top_k": 5},
    "a sampling of the draft's own": {"draft_temperature": 0.4, "top_p": 0.9, "min_p": 0.1},
    "K at most 1": {"num_speculative_tokens": 1},
    "a varying K": {**PAIR, "params": {"k_policy": "confidence"}},
    "a tree": {"method": "tree"},
    "a greedy tree": {"method": "tree", "temperature": 0.0},
    "stages": {"method": "staged", "params": {"stages": "far"}},
    "reasoning steps": {"method": "reasoning", "params": {"delimiter": "line"}},
    "no draft": {"method": "none"},
    "prompt lookup": {"method": "prompt_lookup"},
    "another vocabulary": {"method": "cross_vocabulary", "draft": "stranger"},
    "a lossy rule": {"rule": "typical"},
    "a rule for blocks": {"rule": "block_verification"},
    "the same random draws": {"rule": "sample_and_match"},
    "a lenient rule": {"rule": "lenience"},
    "an end token": {"target": "ending", "max_new_tokens": 200},
    "a stop": {"stop": ("e",), "max_new_tokens": 200},
    "beyond the draft's context": {"draft": "brief", "max_new_tokens": 60},
    "beyond the draft's vocabulary": {"target": "padded", "temperature": 2.0, "max_new_tokens": 120},
    "up to the target's context": {"max_new_tokens": 400},
}
each_case = pytest.mark.parametrize("changes", CASES.values(), ids=CASES)


@each_case
@pytest.mark.usefixtures("steps_alone")
def test_the_steps_alone_tell_what_both_models_give(bench, changes):
    recorded = made(bench, **changes)
    assert recorded.scores, recorded.footer.message
    assert_read(bench, recorded)


@pytest.mark.parametrize(
    ("case", "reason", "is_read"),
    [("an end token", "eos", True), ("a stop", "stop", True), ("up to the target's context", "context", True)]
    + [(f"beyond the draft's {what}", "length", False) for what in ("context", "vocabulary")],
)
def test_the_cases_end_as_they_are_called(bench, case, reason, is_read):
    recorded = made(bench, **CASES[case])
    assert (recorded.footer.reason, None not in recorded.scores[0].q) == (reason, is_read)
    assert recorded.scores[0].q[0] is not None


@each_case
@pytest.mark.usefixtures("steps_alone")
def test_few_rows_are_kept_and_no_step_knows_it(bench, changes, monkeypatch):
    monkeypatch.setattr(scorer, "MOST_BYTES", 4 * 4 * 300)
    monkeypatch.setattr(scorer, "AT_ONCE", 3)
    request = replace(REQUEST, **changes).validate()
    recorded = whole_run(activate(request, bench.pool), scored=True)
    assert_read(bench, recorded)
    [*steps, _, end] = timeless(recorded)
    assert [*steps, end] == timeless(whole_run(activate(request, bench.pool)))


@each_case
def test_steps_recorded_together_are_those_recorded_alone(bench, changes, monkeypatch):
    recorded = []
    for seconds in (0.0, 1e6):
        monkeypatch.setattr(recorder, "FLUSH_S", seconds)
        recorded.append(timeless(made(bench, **changes)))
    assert recorded[0] == recorded[1]


@pytest.mark.usefixtures("steps_alone")
def test_k_may_change(bench):
    assert_read(bench, changed_after(bench, 2, {"num_speculative_tokens": 2}))


@pytest.mark.usefixtures("steps_alone")
def test_a_change_that_leaves_the_target_alone_leaves_its_p(bench):
    assert_read(bench, changed_after(bench, 2, {"method": "none"}))


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.5},
        {"draft_temperature": 0.5},
        {"top_k": 3, "draft": "far"},
        {"draft": "far"},
        {"target": "padded"},
        {"method": "none", "temperature": 0.5},
        {"method": "tree"},
    ],
    ids=str,
)
def test_the_newest_models_and_sampling_read_what_was_written_before(bench, changes):
    assert_read(bench, changed_after(bench, 2, changes))


def test_a_sampling_that_comes_back_is_no_other_one(bench):
    run = begin(bench)
    for temperature in (1.0, 0.5, 1.0):
        run.controls.set("temperature", temperature)
        make_steps(run, 2)
    assert_read(bench, finish(run))


@pytest.mark.usefixtures("steps_alone")
def test_a_paused_run_keeps_what_it_knows(bench):
    run = begin(bench)
    make_steps(run, 3)
    assert_read(bench, finish(run))


@pytest.mark.parametrize("method", ["draft_model", "none"])
def test_what_another_process_wrote_is_read(bench, method):
    run = begin(bench, method=method)
    make_steps(run, 3)
    so_far = copy.deepcopy(run.trace)
    request = run.request
    assert_read(bench, finish(Run(request, bench, Controls(request.settings), so_far=so_far)))


def test_a_draft_model_that_fails_meanwhile_is_asked_again_at_the_end(bench, monkeypatch):
    def refuse(self):
        self._rows = {}
        raise RuntimeError("a reader's own failure")

    monkeypatch.setattr(scorer, "MOST_BYTES", 4 * 4 * 300)
    monkeypatch.setattr(scorer.Scorer, "read", refuse)
    recorded = made(bench)
    assert recorded.footer.message is None
    assert_read(bench, recorded)


@pytest.mark.timed
@pytest.mark.parametrize("changes", [{}, {"draft": "fable-draft-tiny"}], ids=str)
def test_nobody_waits_long_for_the_end_of_a_run(bench, changes):
    run = begin(bench, **PAIR, max_new_tokens=160, temperature=0.8)
    make_steps(run, 8)
    for name, value in changes.items():
        run.controls.offer(name, value)
        run.controls.set(name, value)
    assert_read(bench, finish(run))
    assert bench.engine.pieces.longest_cpu_s < 0.3
