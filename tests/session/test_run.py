"""Laws of a run from its request to its footer: what it records, what it takes, what it refuses and in which words."""

import json
from dataclasses import replace

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import specviz
from specviz import trace
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session.run import Status, open_run
from specviz.session.workbench import Workbench
from specviz.settings import assets_dir
from tests.helpers.runs import (
    NUM_IDS,
    PROMPT,
    REQUEST,
    begin,
    finish,
    ids,
    is_free,
    made,
    make_steps,
    probabilities,
    statuses,
    timeless,
    whole_text,
)
from tests.helpers.tiny_models import CONTEXT_LIMIT, tiny, tiny_folder, tiny_pair, tiny_tokenizer

# What a finished run has recorded


def test_events_come_in_order_and_are_the_trace(bench):
    run = begin(bench)
    events = [event for event in run.events() if not isinstance(event, Status)]
    assert events == list(run.trace.events())
    kinds = [type(event).__name__ for event in events]
    assert kinds == ["Header", "Models", *["Step"] * len(run.trace.steps), "Scores", "Footer"]
    assert run.trace.footer.reason == "length"
    assert len(run.trace.tokens) == REQUEST.max_new_tokens


def test_states_pass_from_loading_to_running(bench):
    assert [status.state for status in statuses(begin(bench).events())] == ["loading", "running"]


def test_every_event_fits_the_schema(bench):
    schema = Draft202012Validator(json.loads((assets_dir() / "trace.schema.json").read_text("utf-8")))
    for event in made(bench).events():
        assert list(schema.iter_errors(json.loads(trace.dump_event(event)))) == []


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_run_round_trips_through_its_file(bench, tmp_path, suffix):
    recorded = made(bench)
    recorded.save(tmp_path / f"run{suffix}")
    assert trace.load_trace(tmp_path / f"run{suffix}") == recorded


def test_the_headers_request_makes_the_same_run_again(bench):
    recorded = made(bench, temperature=0.8, top_k=30, top_p=0.9, num_speculative_tokens=3)
    again = finish(open_run(Request.from_dict(recorded.header.request), bench=bench))
    assert timeless(again) == timeless(recorded)


def folders(tmp_path):
    """Two models by the paths of their folders, in a library of its own."""
    tokenizer = tiny_tokenizer()
    model = tiny("llama", vocab_size=len(tokenizer))
    names = [str(tiny_folder(tmp_path / "private" / name, model, tokenizer)) for name in ("one", "two")]
    return Workbench(ModelPool(10**9, allow_any=True)), *names


@pytest.mark.parametrize("method", ["draft_model", "none"])
def test_a_folders_path_is_nowhere_in_what_a_run_says(tmp_path, method):
    bench, target, draft = folders(tmp_path)
    run = open_run(replace(REQUEST, target=target, draft=draft, method=method, max_new_tokens=3), bench=bench)
    said = "".join(str(event) for event in run.events())
    request = run.trace.header.request
    assert (request["target"], request["draft"]) == ("one", "two")
    assert "private" not in said


def test_a_path_taken_live_is_said_by_its_base_name(tmp_path):
    bench, target, draft = folders(tmp_path)
    run = open_run(replace(REQUEST, target=target, draft=target), bench=bench)
    make_steps(run, 1)
    run.controls.offer("draft", draft)
    run.controls.set("draft", draft)
    assert Status("loading", "loading two") in [*run.events(max_steps=1)]


def test_same_seed_same_trace_and_another_seed_another(bench):
    assert timeless(made(bench)) == timeless(made(bench))
    assert ids(made(bench)) != ids(made(bench, seed=2))


def test_steps_follow_each_other_in_the_text(bench):
    recorded = made(bench)
    length = len(recorded.header.prompt.tokens)
    for step in recorded.steps:
        assert step.context_length == length
        length += len(step.emitted)
    at = [step.at_ms for step in recorded.steps]
    assert at == sorted(at)


def test_text_is_what_the_tokenizer_decodes(bench):
    recorded = made(bench)
    whole = bench.pool.load("big").tokenizer.decode(ids(recorded), clean_up_tokenization_spaces=False)
    assert whole.rstrip("\ufffd") == recorded.text.rstrip("\ufffd")
    assert "".join(token.text for token in recorded.header.prompt.tokens) == PROMPT == recorded.header.prompt.text


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_are_those_of_plain_forwards(bench, temperature):
    recorded = made(bench, temperature=temperature)
    start = len(recorded.header.prompt.tokens)
    tokens = whole_text(recorded)
    p, q = (probabilities(bench.pool.load(name).model, tokens, temperature)[start - 1 : -1] for name in ("big", "near"))
    places = np.arange(len(p)), tokens[start:]
    scores = recorded.scores[0]
    assert scores.draft_model == "near"
    np.testing.assert_allclose(scores.p, p[places], rtol=1e-4)
    np.testing.assert_allclose(scores.q, q[places], rtol=1e-4)
    np.testing.assert_allclose(scores.overlap, np.minimum(p, q).sum(-1), rtol=1e-4)


def test_scores_are_null_where_no_draft_model_reads_the_text(bench):
    lookup, brief = made(bench, method="prompt_lookup"), made(bench, draft="brief", max_new_tokens=40)
    reach = bench.pool.load("brief").info.context_limit
    before = len(brief.header.prompt.tokens)
    for recorded, num_known in ((lookup, 0), (brief, reach + 1 - before)):
        scores = recorded.scores[0]
        assert None not in scores.p
        for column in (scores.q, scores.overlap):
            assert [value is not None for value in column] == [place < num_known for place in range(len(column))]
    assert 0 < reach + 1 - before < 40


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({}, "length"), ({"target": "ending", "max_new_tokens": 200}, "eos"), ({"max_new_tokens": 400}, "context")],
)
def test_the_footer_says_why_the_text_ended(bench, changes, reason):
    recorded = made(bench, **changes)
    assert recorded.footer.reason == reason
    assert recorded.footer.message is None
    end = bench.pool.load("ending").tokenizer.eos_token_id
    assert (ids(recorded)[-1] == end) == (reason == "eos")
    if reason == "context":
        assert len(recorded.header.prompt.tokens) + len(ids(recorded)) == CONTEXT_LIMIT


# specviz.run and specviz.stream


def test_every_argument_of_run_is_in_force():
    target, draft = tiny_pair(chat=True)
    options = {"method": "prompt_lookup", "rule": "speculative_sampling", "temperature": 0.7, "top_k": 30}
    options |= {"num_speculative_tokens": 3, "top_p": 0.9, "min_p": 0.05, "seed": 5, "max_new_tokens": 10, "chat": True}
    recorded = specviz.run("the fox and the fox", target=target, draft=draft, max_ngram=2, min_ngram=2, **options)
    request, in_force = recorded.header.request, recorded.steps[0].settings
    assert Request.from_dict(request) == replace(Request.from_dict(request), **options)
    assert request["params"] == in_force.params == {"max_ngram": 2, "min_ngram": 2, "k_policy": "constant"}
    assert in_force.k == 3
    for name in ("method", "rule", *Request.SAMPLING):
        assert getattr(in_force, name) == options[name]
    assert recorded.header.prompt.text == "<|user|>the fox and the fox\n<|assistant|>"
    assert len(recorded.tokens) <= 10


def test_run_takes_a_folder_and_names_it_by_its_base_name(tmp_path):
    tokenizer = tiny_tokenizer()
    folder = tiny_folder(tmp_path / "my-model", tiny("gpt2", vocab_size=NUM_IDS), tokenizer)
    recorded = specviz.run(PROMPT, target=str(folder), method="none", max_new_tokens=5)
    assert recorded.models[0].target.name == recorded.steps[0].settings.target == "my-model"
    assert {len(step.draft) for step in recorded.steps} == {0}


def test_run_uses_the_bundled_pair_unless_told_otherwise():
    recorded = specviz.run(PROMPT, max_new_tokens=5)
    assert (recorded.models[0].target.name, recorded.models[0].draft_model.name) == ("fable-target", "fable-draft")


def test_stream_gives_the_events_of_run_as_they_come():
    target, draft = tiny_pair()
    stream = specviz.stream(PROMPT, target=target, draft=draft, max_new_tokens=12)
    header = next(stream)
    rest = list(stream)
    assert timeless(trace.Trace([header, *rest])) == timeless(
        specviz.run(PROMPT, target=target, draft=draft, max_new_tokens=12)
    )


def test_run_takes_token_ids_and_shows_their_text(bench):
    text = bench.pool.load("big").text
    target, draft = tiny_pair()
    recorded = specviz.run(text.encode(PROMPT), target=target, draft=draft, max_new_tokens=5)
    assert [token.id for token in recorded.header.prompt.tokens] == text.encode(PROMPT)
    assert recorded.header.prompt.text == PROMPT


def test_run_knows_the_parameters_of_its_method():
    with pytest.raises(SpecvizError, match=r"prompt_lookup .* 'ngram'"):
        specviz.run(PROMPT, target=tiny_pair()[0], method="prompt_lookup", ngram=2)


# K by its two names

IN_FORCE = {
    specviz.run: ({"max_new_tokens": 4}, lambda made: made.header.request["k"]),
    specviz.prove: ({"tokens": 8}, lambda made: made.about["k"]),
    specviz.align: ({"max_new_tokens": 4, "costs": {}}, lambda made: made.summary.k),
}


SECOND = {"num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("function", "given"),
    [(specviz.run, {"k": 3}), (specviz.run, SECOND | {"k": 3}), *((function, SECOND) for function in IN_FORCE)],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_k_has_a_second_name(function, given):
    (more, read), (target, draft) = IN_FORCE[function], tiny_pair()
    prompt = [PROMPT] if function is specviz.align else PROMPT
    assert read(function(prompt, target=target, draft=draft, **more, **given)) == 3


@pytest.mark.parametrize("function", IN_FORCE, ids=lambda function: function.__name__)
def test_two_numbers_for_k_are_refused(function):
    with pytest.raises(SpecvizError, match=r"got k=3 and num_speculative_tokens=4"):
        function([PROMPT], k=3, num_speculative_tokens=4)


# Refusals in words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "guess"}, "method .* draft_model, prompt_lookup, .*none .got 'guess'"),
        ({"rule": "any"}, "rule .* speculative_sampling, .*got 'any'"),
        ({"method": "none", "params": {"x": 1}}, "none .* 'x'"),
        ({"method": "prompt_lookup", "params": {"max_ngram": 0}}, "max_ngram .* 1 to 16"),
        ({"num_speculative_tokens": 0}, "k .* 1 to 32 .got 0"),
        ({"prompt": ""}, "prompt is empty"),
    ],
)
def test_what_no_model_is_needed_for_is_refused_at_once(bench, changes, words):
    with pytest.raises(SpecvizError, match=words):
        begin(bench, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"draft": "stranger"}, "stranger .* big: .*vocabularies"),
        ({"draft": None}, "draft_model .* draft model .got none"),
        ({"target": "no/such/folder"}, "no folder or file 'folder'"),
        ({"chat": True}, "no chat template"),
        ({"prompt": "", "prompt_ids": (3, NUM_IDS)}, f"vocabulary size {NUM_IDS} .got {NUM_IDS}"),
    ],
)
def test_what_cannot_begin_leaves_no_trace(bench, changes, words):
    run = begin(bench, **changes)
    with pytest.raises(SpecvizError, match=words):
        finish(run)
    assert (run.state, list(run.trace.events()), list(run.events())) == ("finished", [], [])
    assert is_free(bench)


def test_a_prompt_that_leaves_no_room_is_said_in_the_footer(bench):
    run = begin(bench, prompt="", prompt_ids=(5,) * CONTEXT_LIMIT)
    with pytest.raises(SpecvizError, match=f"{CONTEXT_LIMIT} tokens .* {CONTEXT_LIMIT}"):
        finish(run)
    assert run.trace.footer.reason == "error"


@pytest.mark.parametrize("num_tokens", [CONTEXT_LIMIT - 9, CONTEXT_LIMIT - 8, CONTEXT_LIMIT, 3 * CONTEXT_LIMIT])
def test_a_prompt_that_is_too_long_is_cut_at_its_start_where_that_is_allowed(bench, num_tokens):
    prompt = tuple(5 + place % 60 for place in range(num_tokens))
    request = replace(REQUEST, prompt="", prompt_ids=prompt, max_new_tokens=8)
    run = open_run(request, bench=bench, may_cut=True)
    said = [status.message for status in statuses(run.events()) if status.state == "running"]
    kept = [token.id for token in run.trace.header.prompt.tokens]
    assert kept == list(prompt[-(CONTEXT_LIMIT - 8) :])
    assert (said[0] != "") == (len(kept) < num_tokens)
    assert (len(run.trace.tokens), run.trace.footer.reason) == (8, "length")


def test_a_conversation_is_rendered_by_the_models_template(bench):
    recorded = made(bench, target="chatty", prompt="User: Hi\nAssistant: Hello\nUser: Who?\nAssistant:", chat=True)
    tokenizer = bench.pool.load("chatty").tokenizer
    messages = [("user", "Hi"), ("assistant", "Hello"), ("user", "Who?")]
    messages = [{"role": role, "content": content} for role, content in messages]
    expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert recorded.header.prompt.text == expected
