"""Laws of a run in progress: live changes, pause, single steps, stop, closing at any place, errors."""

import copy
import itertools
import re
from dataclasses import replace

import pytest
import torch

from specviz import trace
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session import recorder
from specviz.session.run import Run, Status, open_run
from specviz.session.workbench import Workbench
from specviz.ui.reports.trace_models import request_of
from tests.helpers.runs import (
    NUM_IDS,
    REQUEST,
    Fails,
    begin,
    finish,
    greedy,
    ids,
    is_free,
    made,
    make_steps,
    statuses,
    timeless,
    whole_text,
)
from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer

PAIR = {"target": "fable-target", "draft": "fable-draft"}


def changed_after(bench, number, changes, **first):
    """A finished run whose controls were set after `number` steps."""
    run = begin(bench, **first)
    make_steps(run, number)
    for name, value in changes.items():
        run.controls.set(name, value)
    return finish(run)


@pytest.fixture
def shown_at_once(monkeypatch):
    """Every step is recorded before the next one is made."""
    monkeypatch.setattr(recorder, "FLUSH_S", 0.0)


# Live changes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_speculative_tokens", 2),
        ("temperature", 0.3),
        ("top_k", 7),
        ("top_p", 0.6),
        ("min_p", 0.2),
        ("draft_temperature", 0.3),
        ("draft_top_k", 7),
        ("draft_top_p", 0.6),
        ("draft_min_p", 0.2),
        ("draft", "far"),
    ],
)
def test_a_change_is_in_force_from_the_next_step_on(bench, name, value):
    recorded = changed_after(bench, 3, {name: value})
    field = {"draft": "draft_model", "num_speculative_tokens": "k"}.get(name, name)
    in_force = [getattr(step.settings, field) for step in recorded.steps]
    assert in_force == [getattr(REQUEST, name)] * 3 + [value] * (len(in_force) - 3)
    assert [step.changed for step in recorded.steps] == [()] * 3 + [(field,)] + [()] * (len(in_force) - 4)


@pytest.mark.parametrize("k", [1, 2, 7])
def test_k_in_force_is_the_depth_drafted(bench, k):
    recorded = changed_after(bench, 2, {"num_speculative_tokens": k})
    end = len(recorded.header.prompt.tokens) + REQUEST.max_new_tokens
    for step in recorded.steps[2:]:
        assert len(step.draft) == min(k, end - step.context_length - 1)


def test_several_changes_at_once_are_all_named(bench):
    recorded = changed_after(bench, 2, {"num_speculative_tokens": 2, "top_p": 0.9, "draft": "far"})
    assert recorded.steps[2].changed == ("k", "top_p", "draft_model")


@pytest.mark.usefixtures("shown_at_once")
def test_a_change_while_steps_are_being_asked_for_counts_too(bench):
    run = begin(bench)
    for event in run.events():
        if isinstance(event, trace.Step) and event.index == 1:
            run.controls.set("num_speculative_tokens", 1)
    assert [step.settings.k for step in run.trace.steps[:4]] == [4, 4, 1, 1]


def test_at_temperature_0_the_text_goes_on_greedily(bench):
    recorded = changed_after(bench, 3, {"temperature": 0.0})
    start = recorded.steps[3].context_length
    text = whole_text(recorded)
    model = bench.pool.load("big").model
    assert text[start:] == greedy(model, text[:start], len(text) - start)


def test_another_target_goes_on_with_the_text_as_it_stands(bench):
    recorded = changed_after(bench, 3, {"target": "padded"}, temperature=0.0)
    start = recorded.steps[3].context_length
    text = whole_text(recorded)
    model = bench.pool.load("padded").model
    assert text[start:] == greedy(model, text[:start], len(text) - start)
    assert [step.settings.target for step in recorded.steps[2:4]] == ["big", "padded"]


def test_changed_models_are_announced_before_the_step_that_uses_them(bench):
    recorded = changed_after(bench, 3, {"draft": "far", "target": "padded"})
    kinds = [type(event).__name__ for event in recorded.events()][:8]
    assert kinds == ["Header", "Models", "Step", "Step", "Step", "Models", "Step", "Step"]
    models = recorded.models[1]
    assert (models.index, models.target.name, models.draft_model.name) == (1, "padded", "far")


def test_a_change_that_leaves_the_models_alone_announces_none(bench):
    assert len(changed_after(bench, 3, {"num_speculative_tokens": 2, "temperature": 0.5}).models) == 1


def test_methods_change_and_change_back(bench):
    run = begin(bench)
    for method in ("draft_model", "none", "prompt_lookup", "draft_model"):
        run.controls.set("method", method)
        make_steps(run, 2)
    recorded = finish(run)
    methods = [step.settings.method for step in recorded.steps[:8]]
    assert methods == ["draft_model"] * 2 + ["none"] * 2 + ["prompt_lookup"] * 2 + ["draft_model"] * 2
    assert [len(step.draft) for step in recorded.steps[2:4]] == [0, 0]
    assert [step.settings.draft_model for step in recorded.steps[:8]] == ["near"] * 2 + [None] * 4 + ["near"] * 2
    assert all(token.q is None for step in recorded.steps[4:6] for token in step.draft)
    drafts = [models.draft_model and models.draft_model.name for models in recorded.models]
    assert drafts == ["near", None, "near"]


def test_what_runs_again_is_what_was_asked_with_the_changes_taken_so_far(bench):
    run = begin(bench, method="prompt_lookup", params={"max_ngram": 5})
    make_steps(run, 1)
    asked = replace(run.request.validate().settings, rule="speculative_sampling")
    own = {"max_ngram": 5, "min_ngram": 1, "k_policy": "constant"}
    assert request_of(run.trace).settings == replace(asked, draft=None, params=own)
    for name, value in {"num_speculative_tokens": 2, "draft": "far", "method": "draft_model"}.items():
        run.controls.set(name, value)
    finish(run)
    changed = {"num_speculative_tokens": 2, "draft": "far", "method": "draft_model"}
    assert request_of(run.trace).settings == replace(asked, **changed, params=METHODS["draft_model"].validate({}))


def test_another_methods_parameters_are_its_defaults(bench):
    recorded = changed_after(bench, 2, {"method": "none"}, method="prompt_lookup", params={"max_ngram": 5})
    assert recorded.steps[1].settings.params == {"max_ngram": 5, "min_ngram": 1, "k_policy": "constant"}
    assert recorded.steps[2].settings.params == {}


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("target", "stranger", "stranger .* big"),
        ("draft", "stranger", "stranger .* big"),
        ("target", "no/such/folder", "no folder or file 'folder'"),
    ],
)
def test_a_change_that_cannot_be_made_is_taken_back_and_said(bench, name, value, told):
    run = begin(bench)
    make_steps(run, 3)
    run.controls.set(name, value)
    said = [status.message for status in statuses(run.events()) if status.state == "running" and status.message]
    assert len(said) == 1
    assert re.search(told, said[0])
    values = run.controls.settings
    assert (values.target, values.draft) == ("big", "near")
    assert timeless(run.trace) == timeless(made(bench))


def test_a_change_of_k_beside_a_refused_one_is_made(bench):
    run = begin(bench)
    make_steps(run, 3)
    run.controls.set("num_speculative_tokens", 2)
    run.controls.set("draft", "stranger")
    finish(run)
    assert [step.settings.k for step in run.trace.steps[2:5]] == [4, 2, 2]
    assert run.trace.steps[3].settings.draft_model == "near"


def test_a_text_that_cannot_be_scored_is_finished_all_the_same(bench, monkeypatch):
    def refuse(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("specviz.session.scorer.Scorer.scores", refuse)
    recorded = made(bench)
    assert (recorded.footer.reason, recorded.scores) == ("length", [])
    assert "not enough memory" in recorded.footer.message


@pytest.mark.slow
def test_models_that_a_run_no_longer_uses_make_room_for_another(tmp_path):
    tokenizer = tiny_tokenizer()
    for number in range(4):
        tiny_folder(tmp_path / f"m{number}", tiny("llama", vocab_size=NUM_IDS, seed=number), tokenizer)
    size = tiny("llama", vocab_size=NUM_IDS).num_parameters() * 4
    run = begin(Workbench(ModelPool(int(3.5 * size))), target=str(tmp_path / "m0"), draft=str(tmp_path / "m1"))
    for number in (2, 3, 1):
        make_steps(run, 1)
        name = str(tmp_path / f"m{number}")
        run.controls.offer("draft", name)
        run.controls.set("draft", name)
    finish(run)
    used = dict.fromkeys(step.settings.draft_model for step in run.trace.steps)
    assert (list(used), run.trace.footer.reason) == (["m1", "m2", "m3"], "length")


def test_only_what_must_be_loaded_is_said_to_be_loading(bench):
    run = begin(bench)
    assert statuses(run.events(1))[0] == Status("loading", "loading big and near")
    for name, value, words in (
        ("num_speculative_tokens", 2, []),
        ("draft", "far", ["loading far"]),
        ("draft", "near", []),
    ):
        run.controls.set(name, value)
        assert [status.message for status in statuses(run.events(1)) if status.state == "loading"] == words
    assert statuses(begin(bench, method="none").events(1))[0] == Status("loading", "loading big")


def test_a_model_of_another_name_than_was_asked_for_is_loaded_once(bench, tmp_path):
    loaded = bench.pool.load("big")
    loaded.model.save_pretrained(tmp_path / "copy")
    loaded.tokenizer.save_pretrained(tmp_path / "copy")
    run = begin(bench, target=str(tmp_path / "copy"))
    make_steps(run, 1)
    run.controls.set("num_speculative_tokens", 2)
    assert [status.state for status in statuses(run.events(1))] == ["running", "paused"]


# Pause, single steps, stop


def test_single_steps_make_the_same_run(bench):
    run = begin(bench)
    while run.state != "finished":
        before = len(run.trace.steps)
        last = list(run.events(max_steps=1))[-1]
        assert len(run.trace.steps) == before + 1
        assert last == (Status("paused") if run.state == "paused" else run.trace.footer)
    assert timeless(run.trace) == timeless(made(bench))


@pytest.mark.usefixtures("shown_at_once")
def test_a_paused_run_goes_on_as_if_nothing_had_been(bench):
    run = begin(bench)
    for expected in (2, 3):
        for event in run.events():
            if isinstance(event, trace.Step) and event.index == expected - 1:
                run.pause()
        assert (run.state, len(run.trace.steps), event) == ("paused", expected, Status("paused"))
    assert timeless(finish(run)) == timeless(made(bench))


def test_a_paused_run_holds_nothing(bench):
    make_steps(begin(bench), 1)
    assert is_free(bench)


@pytest.mark.usefixtures("shown_at_once")
def test_stop_ends_the_run_before_its_next_step(bench):
    run = begin(bench)
    for event in run.events():
        if isinstance(event, trace.Step) and event.index == 2:
            run.stop()
    assert (run.state, len(run.trace.steps)) == ("finished", 3)
    assert (run.trace.footer.reason, run.trace.footer.message) == ("stopped", None)
    assert list(run.events()) == []


def test_a_stopped_pause_ends_without_another_step(bench):
    run = begin(bench)
    make_steps(run, 2)
    assert run.stop()
    assert (run.state, run.trace.footer.reason, len(run.trace.steps)) == ("finished", "stopped", 2)
    assert [*run.events(), *run.events()] == [run.trace.footer]


def test_stopping_what_runs_or_has_ended_ends_nothing_itself(bench):
    run = begin(bench)
    assert [run.stop() for event in run.events() if isinstance(event, trace.Step)] == [False]
    assert not run.stop()


def test_a_run_stopped_while_it_says_that_it_pauses_gives_its_footer_itself(bench):
    run = begin(bench)
    said = [(event, run.stop() if event == Status("paused") else None) for event in run.events(max_steps=1)]
    assert said[-2:] == [(Status("paused"), False), (run.trace.footer, None)]


def test_a_run_stopped_before_it_began_loads_nothing(bench):
    run = begin(bench, target="no/such/folder")
    run.stop()
    assert list(run.events()) == [Status("finished")]
    assert (run.state, run.trace.header) == ("finished", None)


@pytest.mark.parametrize("end", [finish, Run.stop])
def test_a_run_that_has_ended_makes_room_for_other_models(named_models, end):
    big, near, padded = (named_models.load(name) for name in ("big", "near", "padded"))
    pool = ModelPool(big.model.get_memory_footprint() + near.model.get_memory_footprint())
    for known in (big, near):
        pool.load((copy.deepcopy(known.model), known.tokenizer))
    run = begin(Workbench(pool))
    make_steps(run, 1)
    assert pool.loaded_names() == ["big", "near"]
    end(run)
    pool.load((padded.model, padded.tokenizer))
    assert "big" not in pool.loaded_names()


@pytest.mark.usefixtures("shown_at_once")
def test_closing_at_any_event_leaves_a_trace_that_loads(bench, tmp_path):
    num_events = len(list(begin(bench, max_new_tokens=8).events()))
    for number in range(1, num_events + 1):
        run = begin(bench, max_new_tokens=8)
        events = run.events()
        seen = list(itertools.islice(events, number))
        events.close()
        assert run.state == "finished"
        assert is_free(bench)
        if run.trace.header is None:
            assert statuses(seen) == seen
            continue
        run.trace.save(tmp_path / "cut.jsonl")
        loaded = trace.load_trace(tmp_path / "cut.jsonl")
        assert loaded == run.trace
        assert loaded.footer.reason == ("length" if number == num_events else "stopped")
        assert len(loaded.steps) == sum(isinstance(event, trace.Step) for event in seen)
        assert list(run.events()) == []


# Records that come some at once


@pytest.fixture
def shown_late(monkeypatch):
    """Only what must be shown ends the wait for records."""
    monkeypatch.setattr(recorder, "FLUSH_S", 1e6)


def steps_made(run):
    return [step.index for step in run.trace.steps]


def test_the_first_step_is_shown_before_another_is_made(bench):
    run = begin(bench)
    next(event for event in run.events() if isinstance(event, trace.Step))
    assert (steps_made(run), run._num_steps) == ([0], 1)


@pytest.mark.usefixtures("shown_late")
@pytest.mark.parametrize(
    "changes", [{"paused": True}, {"stopped": True}, {"pace": "slow"}, {"temperature": 0.5}], ids=str
)
def test_what_was_made_is_shown_before_anything_else_comes(bench, changes, monkeypatch):
    run = begin(bench)
    make_step = run._step

    def interrupted(*args):
        finish = make_step(*args)
        if run._num_steps == 3:
            for name, value in changes.items():
                run.controls.set(name, value)
        return finish

    monkeypatch.setattr(run, "_step", interrupted)
    events = run.events()
    seen = itertools.islice((event for event in events if isinstance(event, trace.Step)), 3)
    assert ([step.index for step in seen], run._num_steps, run.state) == ([0, 1, 2], 3, "running")
    events.close()
    assert [step.settings.temperature for step in run.trace.steps] == [1.0] * 3


@pytest.mark.usefixtures("shown_late")
def test_a_step_that_fails_leaves_those_before_it(bench):
    run = begin(bench)
    events = run.events()
    next(event for event in events if isinstance(event, trace.Step))
    steps = run._steps

    def failing():
        yield next(steps)
        yield next(steps)
        raise RuntimeError("no more")

    run._steps = failing()
    with pytest.raises(SpecvizError, match="no more"):
        list(events)
    assert (steps_made(run), run.trace.footer.reason) == ([0, 1, 2], "error")


@pytest.mark.usefixtures("shown_late")
def test_closing_keeps_what_nobody_has_seen(bench):
    run = begin(bench)
    events = run.events(max_steps=5)
    seen = list(itertools.islice(events, 6))
    assert len(seen) == 6
    events.close()
    assert steps_made(run) == [0, 1, 2, 3, 4]


def test_a_run_has_one_reader_at_a_time(bench):
    run = begin(bench)
    events = run.events()
    next(events)
    with pytest.raises(ValueError, match="are being read already"):
        next(run.events())
    assert list(events)[-1] == run.trace.footer
    assert timeless(run.trace) == timeless(made(bench))


# Errors


@pytest.fixture
def fragile(named_models):
    """A workbench whose target `fragile` fails at its fourth forward; call it with the error."""

    def make(error):
        known = named_models.load("big")
        model = copy.deepcopy(known.model)
        model.name_or_path = "fragile"
        model.register_forward_pre_hook(lambda *_: None)  # a model with hooks is proved by forwards that do not count
        pool = ModelPool(10**9)
        for other in (named_models.load("near"), known):
            pool.load((other.model, other.tokenizer))
        pool.load((model, known.tokenizer))
        model.register_forward_pre_hook(Fails(4, error))
        return Workbench(pool)

    return make


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SpecvizError("the model says no"), "^the model says no$"),
        (torch.OutOfMemoryError("CUDA out of memory"), "not enough memory .* fragile"),
        (RuntimeError("[enforce fail] can't allocate memory"), "not enough memory .* fragile"),
        (IndexError("index out of range"), "fragile .*IndexError: index out of range"),
    ],
)
def test_an_error_is_recorded_and_raised_in_words(fragile, error, words):
    bench = fragile(error)
    run = begin(bench, target="fragile")
    with pytest.raises(SpecvizError, match=words) as raised:
        finish(run)
    assert (run.trace.footer.reason, run.trace.footer.message) == ("error", str(raised.value))
    assert (run.state, len(run.trace.steps), is_free(bench)) == ("finished", 3, True)
    assert list(run.events()) == []


def test_an_error_leaves_other_runs_alone(fragile):
    bench = fragile(RuntimeError("broken"))
    well, ill = begin(bench), begin(bench, target="fragile")
    make_steps(well, 2)
    with pytest.raises(SpecvizError, match="broken"):
        finish(ill)
    assert timeless(finish(well)) == timeless(made(bench))


def test_a_run_that_failed_can_be_followed_by_another_of_the_same_model(fragile):
    bench = fragile(RuntimeError("broken"))
    with pytest.raises(SpecvizError, match="broken"):
        made(bench, target="fragile")
    assert ids(made(bench, target="fragile")) == ids(made(bench))


@pytest.mark.parametrize("method", ["draft_model", "prompt_lookup", "none"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_target_that_gives_no_numbers_is_said_so(bench, method, temperature):
    run = begin(bench, target="broken", method=method, temperature=temperature)
    with pytest.raises(SpecvizError, match="the target model returned not-a-number"):
        finish(run)
    assert run.trace.footer.reason == "error"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_that_gives_no_numbers_is_said_so(bench, temperature):
    run = begin(bench, temperature=temperature)
    run.controls.offer("draft", "broken")
    make_steps(run, 2)
    run.controls.set("draft", "broken")
    with pytest.raises(SpecvizError, match="the draft model returned not-a-number"):
        finish(run)
    assert (run.trace.footer.reason, len(run.trace.steps)) == ("error", 2)


def test_a_run_of_the_bundled_pair_can_turn_to_a_draft_of_another_vocabulary():
    run = open_run(Request(prompt="Once upon a time", max_new_tokens=12, num_speculative_tokens=2, seed=1, **PAIR))
    make_steps(run, 2)
    run.controls.change(method="cross_vocabulary", draft="fable-draft-othervocab")
    recorded = finish(run)
    assert (recorded.steps[-1].settings.method, recorded.footer.reason) == ("cross_vocabulary", "length")
    assert recorded.steps[-1].settings.draft_model == "fable-draft-othervocab"
