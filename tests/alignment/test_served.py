"""A job over two servers, which speak as vLLM's and SGLang's do: the numbers of the weights behind them, and words for
everything that a server can do wrong."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch

from specviz.alignment.job import align, align_steps
from specviz.alignment.report.command import command_of
from specviz.alignment.served import endpoint
from specviz.errors import SpecvizError
from tests.helpers.model_servers import Behind, bundled, serve, slow
from tests.helpers.tiny_models import tiny_tokenizer

TARGET, DRAFT = "fable-target", "fable-draft"
PROMPTS = [{"prompt": text} for text in ("Once upon a time", "The cat", "Tom and Mia", "A day at the sea")]
NUMBERS = ["p", "most_likely", "most_likely_p", "q", "keep", "draft_most_likely", "draft_most_likely_q"]


@pytest.fixture(scope="module")
def models():
    return {name: bundled(name) for name in (TARGET, DRAFT)}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(endpoint, "WAITS_S", (0.01, 0.01))


@pytest.fixture
def pair(models):
    """The two servers; their kinds can be chosen, and their behaviour changed."""
    with ExitStack() as stack:

        def make(owner="vllm", draft_owner="vllm"):
            behind = [Behind(name, own, *models[name]) for name, own in ((TARGET, owner), (DRAFT, draft_owner))]
            urls = [stack.enter_context(serve(one)) for one in behind]
            return behind, {"target": urls[0], "draft": urls[1]}

        yield make


def written(done, name=DRAFT):
    """The texts of a job as rows of ids."""
    tokens = done.tokens[done.tokens["draft"] == name]
    prompts = done.prompts[done.prompts["draft"] == name]
    rows = []
    for row in prompts.itertuples():
        ids = tokens.loc[tokens["prompt"] == row.prompt, "token"]
        rows.append({"prompt_ids": list(map(int, row.prompt_ids)), "ids": list(map(int, ids)), "id": row.id})
    return rows


@pytest.mark.parametrize("kinds", [("vllm", "vllm"), ("sglang", "sglang"), ("vllm", "sglang")], ids="-".join)
def test_the_numbers_are_those_of_the_weights(pair, kinds):
    _, urls = pair(*kinds)
    served = align(PROMPTS, **urls, max_new_tokens=48)
    here = align(written(served), target=TARGET, draft=DRAFT, costs={})
    for name in NUMBERS:
        np.testing.assert_allclose(served.tokens[name], here.tokens[name], atol=3e-6, err_msg=name)
    ours, theirs = served.summary.drafts[0], here.summary.drafts[0]
    np.testing.assert_allclose(ours.tokens_per_call, theirs.tokens_per_call, rtol=1e-6)
    np.testing.assert_allclose(ours.by_argmax.tokens_per_call, theirs.by_argmax.tokens_per_call, rtol=1e-6)
    np.testing.assert_allclose(ours.by_position, theirs.by_position, rtol=1e-6)
    assert ours.greedy_agreement == theirs.greedy_agreement
    assert ours.mean_acceptance == pytest.approx(theirs.mean_acceptance, rel=1e-6)
    assert ours.alpha == pytest.approx(theirs.alpha, abs=0.04)  # what no server names counts by the text's own tokens
    assert served.summary.exact
    assert not here.summary.exact
    assert list(served.prompts["source"]) == ["sampled"] * len(PROMPTS)
    assert ours.verdict is None
    assert "--target URL --draft URL" in command_of(served.summary)
    assert not ours.findings
    assert any("faults in their files were not looked for" in words for words in served.summary.warnings)


def test_at_another_temperature_the_truth_lies_inside(pair):
    _, urls = pair()
    served = align(PROMPTS, **urls, max_new_tokens=48, temperature=0.7)
    here = align(written(served), target=TARGET, draft=DRAFT, costs={}, temperature=0.7)
    bounds, true = served.summary.drafts[0].bounds, here.summary.drafts[0]
    for (low, high), value in zip(bounds.tokens_per_call, true.tokens_per_call, strict=True):
        assert low <= value * (1 + 1e-6)
        assert value <= high * (1 + 1e-6)
    assert bounds.mean_acceptance[0] <= true.mean_acceptance <= bounds.mean_acceptance[1]
    assert bounds.argmax_alpha[0] <= true.by_argmax.alpha <= bounds.argmax_alpha[1]
    low, high = bounds.tokens_per_call[3]
    assert 0.005 < high / low - 1 < 0.1
    assert any(f"between {low:.2f} and {high:.2f}" in words for words in served.summary.warnings)
    shown = served.summary.drafts[0].tokens_per_call
    assert all(high <= 1.1 * low for low, high in bounds.tokens_per_call[: len(shown)])


def test_greedy_texts_are_those_of_generate(pair, models):
    _, urls = pair("sglang", "vllm")
    served = align(PROMPTS, **urls, max_new_tokens=24, temperature=0.0)
    model, _tokenizer = models[TARGET]
    for row in written(served):
        ids = torch.tensor([row["prompt_ids"]])
        expected = model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0)
        assert row["ids"] == expected[0, ids.shape[1] :].tolist()
    here = align(written(served), target=TARGET, draft=DRAFT, costs={}, temperature=0.0)
    assert served.summary.drafts[0].tokens_per_call == pytest.approx(here.summary.drafts[0].tokens_per_call)


def test_a_filter_that_leaves_named_tokens_alone_is_exact_at_any_temperature(pair):
    _, urls = pair()
    sampling = {"temperature": 1.3, "top_k": 10}
    rows = written(align(PROMPTS[:2], **urls, max_new_tokens=32))
    served, here = (
        align(rows, **models, **sampling, costs={}) for models in (urls, {"target": TARGET, "draft": DRAFT})
    )
    np.testing.assert_allclose(
        served.summary.drafts[0].tokens_per_call, here.summary.drafts[0].tokens_per_call, rtol=1e-6
    )


def test_what_is_known_too_roughly_is_refused(pair):
    _, urls = pair()
    with pytest.raises(SpecvizError, match=r"between \d\.\d\d and \d+\.\d\d tokens per target call.*--logprobs"):
        align(PROMPTS, **urls, max_new_tokens=32, temperature=1.3)


def test_given_answers_and_chats_are_read(pair):
    behind, urls = pair()
    behind[0].tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}" + "{{ mood or 'sad' }}"
    rows = [
        {"prompt": "Once upon", "completion": " a time there was a dog"},
        {"messages": [{"role": "user", "content": "The cat"}], "chat_template_kwargs": {"mood": "glad"}},
        {"messages": [{"role": "user", "content": "The cat"}, {"role": "assistant", "content": " sat on a mat"}]},
    ]
    served = align(rows, **urls, max_new_tokens=8)
    assert list(served.prompts["prompt_text"]) == ["Once upon", "The cat glad", "The cat sad"]
    assert list(served.prompts["source"]) == ["given", "sampled", "given"]
    assert served.prompts["text"][0] == " a time there was a dog"
    assert served.prompts["text"][2] == " sat on a mat"
    assert not served.summary.exact


def test_a_killed_job_goes_on(pair, tmp_path):
    behind, urls = pair()
    options = {**urls, "out": tmp_path / "job", "shard_size": 1, "max_new_tokens": 8}
    for progress in align_steps(PROMPTS, **options):
        if progress.done == 2:
            break  # the generator is closed, as if the process had ended
    asked = len(behind[1].asked)
    done = align(PROMPTS, **options)
    assert len(behind[1].asked) - asked == len(PROMPTS) - 2
    assert done.summary.num_prompts == len(PROMPTS)
    with pytest.raises(SpecvizError, match="logprobs was 20, is 10"):
        align(PROMPTS, **options, logprobs=10)
    behind[0].context = 512  # another model, by what the server says
    with pytest.raises(SpecvizError, match="holds another job"):
        align(PROMPTS, **options)


def test_as_many_requests_run_at_once_as_asked(pair):
    behind, urls = pair()
    for one in behind:
        one.before = slow(0.02)
    align(PROMPTS * 4, **urls, max_new_tokens=4, batch=3)
    assert 1 < behind[0].most_at_once <= 3


def test_what_passes_is_tried_again(pair):
    behind, urls = pair()
    fails = iter([503, 500, None, 429] + [None] * 100)
    behind[1].before = lambda path: next(fails) if path == "/v1/completions" else None
    assert align(PROMPTS, **urls, max_new_tokens=4, batch=1).summary.num_prompts == len(PROMPTS)


def test_a_draft_with_less_room_drafts_nothing_behind_it(pair):
    behind, urls = pair()
    behind[1].context = 21
    done = align(PROMPTS, **urls, max_new_tokens=30)
    readable = done.tokens["context"] < 20
    assert list(done.tokens["readable"]) == list(readable)
    assert not readable.all()
    here = done.tokens[~readable]
    assert not here["keep"].any()
    assert not here["q"].any()
    assert done.summary.drafts[0].readable == pytest.approx(readable.mean())


def test_a_prompt_that_is_too_long_is_named_and_left_out(pair):
    behind, urls = pair()
    behind[0].context = 20
    done = align([*PROMPTS, {"prompt": "cat " * 30}], **urls, max_new_tokens=4)
    assert done.summary.num_refused == 1
    assert "reads at most 19" in done.summary.refused[0][1]


# ---- one sentence for each mistake -----------------------------------------------------------------------------------


def broken(pair, change, place=0, owner="vllm", **options):
    """The error of a job whose server at this place was changed."""
    behind, urls = pair(owner, owner)
    change(behind[place])
    with pytest.raises(SpecvizError) as caught:
        align(PROMPTS, **urls, max_new_tokens=4, **options)
    words = str(caught.value)
    assert "\n" not in words
    assert "Traceback" not in words
    return words


def changed(**values):
    return lambda behind: [setattr(behind, name, value) for name, value in values.items()]


def with_choice(change):
    """Changes the one choice of vLLM's answers."""

    def of_answer(path, answer):
        if path == "/v1/completions":
            change(answer["choices"][0])
        return answer

    return changed(change=of_answer)


def swap_ids(choice):
    if choice["prompt_logprobs"]:
        choice["prompt_logprobs"] = [
            row and {str(int(token) + 1): entry for token, entry in row.items()} for row in choice["prompt_logprobs"]
        ]


def to_logits(choice):
    for row in choice["prompt_logprobs"] or ():
        for entry in (row or {}).values():
            entry["logprob"] += 12.0


def few_ranks(choice):
    for row in choice["prompt_logprobs"] or ():
        for token in [token for token, entry in (row or {}).items() if entry["rank"] > 3]:
            row[token]["rank"] += 100


def mix_ranks(choice):
    for row in choice["prompt_logprobs"] or ():
        for entry in (row or {}).values():
            entry["rank"] = 21 - entry["rank"] if entry["rank"] < 21 else entry["rank"]


def other_texts(choice):
    for row in choice["prompt_logprobs"] or ():
        for token, entry in (row or {}).items():
            entry["decoded_token"] = f"word {token}"


MISTAKES = [
    (changed(key="secret"), "asks for a key: put it into SPECVIZ_TARGET_KEY"),
    (with_choice(swap_ids), "it tells no log-probability of the token id"),
    (with_choice(to_logits), "these are no log-probabilities"),
    (with_choice(other_texts), "number their tokens differently"),
    (with_choice(lambda choice: choice.update(prompt_token_ids=[1, 2])), "other token ids than it was sent"),
    (with_choice(lambda choice: choice.pop("token_ids")), "it holds no token ids"),
    (with_choice(lambda choice: choice.update(prompt_logprobs=None)), "it holds no prompt_logprobs"),
    (with_choice(lambda choice: choice.update(token_ids=[5] * 9)), "9 tokens where at most 4 were asked"),
    (with_choice(lambda choice: choice.update(token_ids=[2**70])), "cannot be used"),
    (with_choice(lambda choice: choice.update(finish_reason="abort")), "broke the text off"),
    (with_choice(lambda choice: choice["prompt_logprobs"] and choice["prompt_logprobs"].append({})), "it tells of"),
    (with_choice(lambda choice: few_ranks(choice)), "does not name the 20 likeliest tokens"),
    (with_choice(lambda choice: mix_ranks(choice)), "likeliest tokens are not in order"),
    (changed(change=lambda path, answer: {} if path == "/detokenize" else answer), "to /detokenize cannot be used"),
    (changed(page=b"<html>log in</html>"), "it is not JSON as these servers write it"),
    (changed(page=b'{"tokens": ' + b"[" * 100_000), "to /tokenize cannot be used"),
    (with_choice(lambda choice: choice.update(token_ids=["a"])), "cannot be used: Expected `int`"),
    (changed(most_logprobs=5), "start it with a larger --max-logprobs"),
    (changed(owner="llamacpp"), "name its .gguf file"),
    (changed(before=lambda path: 500 if path == "/v1/completions" else None), "answered 500 .out of order., 3 times"),
    (
        changed(before=lambda path: 307 if path == "/tokenize" else None),
        "sends on to 127.0.0.1:9, which is not followed",
    ),
    (changed(before=lambda path: 404 if path == "/tokenize" else None), "refuses /tokenize with 404"),
    (changed(change=lambda path, answer: {"data": []} if path == "/v1/models" else answer), "has 0 models"),
    (changed(change=lambda path, answer: [1] if path == "/v1/models" else answer), "cannot be used"),
]


@pytest.mark.parametrize(("change", "words"), MISTAKES, ids=[words for _, words in MISTAKES])
def test_every_mistake_has_its_words(pair, change, words):
    assert re.search(words, broken(pair, change))


def test_sglangs_mistakes_have_words_too(pair):
    def lie(path, answer):
        if "meta_info" in answer and "input_token_logprobs" in answer["meta_info"]:
            for triple in answer["meta_info"]["input_token_logprobs"]:
                triple[1] += 1
        return answer

    assert "other token ids than it was sent" in broken(pair, changed(change=lie), owner="sglang")

    def drop(path, answer):
        answer.get("meta_info", {}).pop("input_top_logprobs", None)
        return answer

    assert "it holds no input_token_logprobs and input_top_logprobs" in broken(
        pair, changed(change=drop), owner="sglang"
    )


def test_a_slow_server_is_left(pair):
    begun = time.monotonic()
    words = broken(pair, changed(before=slow(4)), timeout_s=1)
    assert "did not answer within 1 s, 3 times in a row" in words
    assert time.monotonic() - begun < 20


def test_nobody_answers():
    with pytest.raises(SpecvizError, match=r"127\.0\.0\.1:9 cannot be reached"):
        align(PROMPTS, target="http://127.0.0.1:9", draft="http://127.0.0.1:9")


@pytest.mark.parametrize("key", ["s\u00e4cret", "sec\nret", "\x1b[31m"])
def test_what_is_no_key_is_not_sent_and_not_shown(pair, monkeypatch, key):
    _, urls = pair()
    monkeypatch.setenv("SPECVIZ_TARGET_KEY", key)
    with pytest.raises(SpecvizError, match="SPECVIZ_TARGET_KEY holds a character that no key has") as caught:
        align(PROMPTS[:1], **urls)
    assert key not in str(caught.value)


def test_a_key_is_stripped_and_never_repeated_from_what_a_server_says(pair, monkeypatch, tmp_path):
    behind, urls = pair()
    behind[0].key = "very-secret"
    monkeypatch.setenv("SPECVIZ_TARGET_KEY", "very-secret\n")
    behind[0].context = 24

    def complain(path, answer):
        if path == "/v1/completions":
            return 400, "bad header Bearer very-secret"
        return answer

    behind[0].change = complain
    with pytest.raises(SpecvizError, match=r"bad header Bearer \*\*\*"):
        align(PROMPTS[:2], **urls, max_new_tokens=4, out=tmp_path / "job")
    for file in (tmp_path / "job").rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert b"very-secret" not in content
            assert b"127.0.0.1" not in content


def test_a_stopped_job_does_not_wait_for_its_servers(pair, tmp_path):
    behind, urls = pair()
    behind[1].before = slow(60)
    code = (
        "import os, signal, sys, threading; from specviz.alignment.job import align\n"
        "threading.Timer(8, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "align(['The cat'] * 3, target=sys.argv[1], draft=sys.argv[2], max_new_tokens=4)"
    )
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, urls["target"], urls["draft"]],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "KeyboardInterrupt" in done.stderr
    assert time.monotonic() - begun < 30


def test_an_answer_that_drips_is_left(pair):
    behind, urls = pair()
    behind[0].drip = 0.3
    with pytest.raises(SpecvizError, match="did not answer within 1 s"):
        align(PROMPTS[:1], **urls, timeout_s=1)


def test_texts_under_two_filters_are_an_estimate(pair):
    _, urls = pair()
    for filters, is_exact in (({"top_k": 8}, True), ({"top_k": 8, "min_p": 0.05}, False)):
        done = align(PROMPTS[:2], **urls, max_new_tokens=4, **filters).summary
        assert done.exact == is_exact
        assert ("in different orders" in done.note) != is_exact


def test_a_row_that_a_server_refuses_is_named_and_left_out(pair):
    behind, urls = pair()
    rows = [*PROMPTS[:2], {"prompt_ids": [5], "ids": [20, 999_999, 7]}]
    behind[0].vocab = 4096
    done = align(rows, **urls, max_new_tokens=4)
    assert done.summary.num_prompts == 2
    assert "Token id 999999 is out of vocabulary" in done.summary.refused[0][1]


def test_keys_come_from_the_environment_and_go_to_their_own_server(pair, monkeypatch):
    behind, urls = pair()
    behind[0].key, behind[1].key = "for target", "for drafts"
    monkeypatch.setenv("SPECVIZ_TARGET_KEY", "for target")
    monkeypatch.setenv("SPECVIZ_DRAFT_KEY", "wrong")
    with pytest.raises(SpecvizError, match="does not take the key in SPECVIZ_DRAFT_KEY"):
        align(PROMPTS[:1], **urls, max_new_tokens=4)
    monkeypatch.setenv("SPECVIZ_DRAFT_KEY", "for drafts")
    done = align(PROMPTS[:1], **urls, max_new_tokens=4)
    assert done.summary.num_prompts == 1
    for file in done.folder.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert b"for target" not in content
            assert b"for drafts" not in content
            assert b"127.0.0.1" not in content


def test_one_of_several_models_is_named_behind_the_address(pair):
    behind, urls = pair()

    def two(path, answer):
        if path == "/v1/models":
            answer["data"] = [*answer["data"], {**answer["data"][0], "id": "other"}]
        return answer

    behind[0].change = two
    with pytest.raises(SpecvizError, match=r"has 2 models: name one behind the address.*fable-target, other"):
        align(PROMPTS[:1], **urls, max_new_tokens=4)
    done = align(PROMPTS[:1], target=f"{urls['target']}/v1#{TARGET}", draft=urls["draft"], max_new_tokens=4)
    assert done.summary.target == TARGET


@pytest.mark.parametrize(
    "url",
    [
        *("http://me:secret@localhost:80", "http://", "https://host/?key=secret", "http://host:99999999/"),
        *("http://[::1", "http://[zz]:80"),
    ],
)
def test_addresses_of_another_form_are_refused_without_being_repeated(url):
    with pytest.raises(SpecvizError) as caught:
        align(PROMPTS, target=url, draft="http://127.0.0.1:9")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://a..b:80", f"http://{'a' * 300}:80", "http://xn--a:80"])
def test_hosts_that_no_host_can_have_are_said_to_be_out_of_reach(url):
    with pytest.raises(SpecvizError, match="cannot be reached"):
        align(PROMPTS, target=url, draft="http://127.0.0.1:9")


def test_servers_and_weights_are_not_mixed(pair):
    _, urls = pair()
    with pytest.raises(SpecvizError, match="all drafts must be addresses of servers, or none"):
        align(PROMPTS, target=urls["target"], draft=DRAFT)
    with pytest.raises(SpecvizError, match="a reference needs the drafts' weights"):
        align(PROMPTS, **urls, reference=DRAFT)


def test_a_pair_with_other_tokens_is_refused(pair, models):
    behind, urls = pair()
    behind[1].tokenizer = tiny_tokenizer(seed=2)
    with pytest.raises(SpecvizError, match="number their tokens differently"):
        align(PROMPTS, **urls, max_new_tokens=32)


def test_two_drafts_of_one_name_are_told_apart(pair, models):
    _, urls = pair()
    with serve(replace(Behind(DRAFT, "vllm", *models[DRAFT]))) as other:
        done = align(PROMPTS[:2], target=urls["target"], draft=[urls["draft"], other], max_new_tokens=8)
    assert [draft.name for draft in done.summary.drafts] == [f"{DRAFT} (1)", f"{DRAFT} (2)"]
    with pytest.raises(SpecvizError, match="address must be named once"):
        align(PROMPTS[:2], target=urls["target"], draft=[urls["draft"]] * 2)


def test_a_pair_that_moves_goes_on(pair, tmp_path, models):
    behind, urls = pair()
    options = {"out": tmp_path / "job", "shard_size": 1, "max_new_tokens": 4}
    for progress in align_steps(PROMPTS, **urls, **options):
        if progress.done == 2:
            break
    with serve(behind[0]) as target:
        done = align(PROMPTS, target=f"{target}/v1", draft=urls["draft"], **options)
    assert done.summary.num_prompts == len(PROMPTS)
