"""Answers as vLLM, SGLang, llama.cpp and OpenAI's API log them: what is read, and that none gives way to another."""

import copy
import csv
import json
import re

import pytest

from specviz.alignment.job import align
from specviz.alignment.prompts import from_values, open_prompts
from specviz.alignment.types import Message
from tests.helpers.prompt_values import only, refused

ASKED = [{"role": "user", "content": "Name a river."}]
USER = (Message("user", "Name a river."),)
TEXT = " The Ashwell."
PROMPT_IDS = [5, 9, 12]
IDS = [40, 41, 42, 2]


def token(number, **more):
    return {"token": f" t{number}", "logprob": -0.25, "bytes": [32, 116], "top_logprobs": [], **more}


def vllm(**more):
    """vLLM's RequestOutput, as its fields are dumped."""
    step = [{str(number): {"logprob": -0.25, "rank": 1, "decoded_token": f" t{number}"}} for number in IDS]
    output = {
        "index": 0, "text": TEXT, "token_ids": IDS, "cumulative_logprob": -1.0, "logprobs": step,
        "finish_reason": "stop", "stop_reason": None, "lora_request": None, **more,
    }  # fmt: skip
    return {
        "request_id": "7", "prompt": "Name a river.", "prompt_token_ids": PROMPT_IDS, "prompt_logprobs": None,
        "outputs": [output], "finished": True, "metrics": None, "num_cached_tokens": 0,
    }  # fmt: skip


def chat(usage=4, **more):
    """A response of /v1/chat/completions."""
    choice = {
        "index": 0, "message": {"role": "assistant", "content": TEXT, "refusal": None, "reasoning": None},
        "logprobs": None, "finish_reason": "stop", "stop_reason": None, **more,
    }  # fmt: skip
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
        "usage": {"prompt_tokens": 3, "completion_tokens": usage, "total_tokens": 3 + usage},
    }  # fmt: skip


def text(**more):
    """A response of /v1/completions."""
    choice = {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "length", "stop_reason": None, **more}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}


def sglang(finish="stop", **more):
    """An answer of SGLang's /generate."""
    meta = {
        "id": "r1", "finish_reason": {"type": finish, "matched": 2}, "prompt_tokens": 3, "completion_tokens": 4,
        "cached_tokens": 0, "e2e_latency": 0.5, "output_token_logprobs": [[-0.25, number, None] for number in IDS],
    }  # fmt: skip
    return {"text": TEXT, "output_ids": IDS, "meta_info": meta, **more}


def llama(**more):
    """An answer of llama.cpp's /completion."""
    return {
        "index": 0, "content": TEXT, "tokens": IDS, "id_slot": 0, "stop": True, "model": "m", "tokens_predicted": 4,
        "tokens_evaluated": 3, "generation_settings": {"temperature": 0.8, "stop": []}, "prompt": "Name a river.",
        "has_new_line": False, "truncated": False, "stop_type": "eos", "stopping_word": "", "tokens_cached": 6,
        "timings": {"prompt_n": 3, "predicted_n": 4}, **more,
    }  # fmt: skip


def batch(answered, **more):
    """A line of OpenAI's batch output."""
    response = {"status_code": 200, "request_id": "req-1", "body": answered}
    return {"id": "batch_req_1", "custom_id": "a1", "response": response, "error": None, **more}


CHAT_ASKED = {"model": "m", "messages": ASKED, "temperature": 1.0, "max_tokens": 4}
AS_IDS = {"tokens": [f"token_id:{number}" for number in IDS], "token_logprobs": [-0.25] * 4}
RIGHT = {
    "vLLM": (vllm(), PROMPT_IDS, IDS),
    "vLLM, asked by ids": (vllm() | {"prompt": None}, PROMPT_IDS, IDS),
    "vLLM without ids": (vllm(token_ids=[], logprobs=None), PROMPT_IDS, TEXT),
    "outputs beside messages": ({"messages": ASKED, "outputs": vllm()["outputs"]}, None, IDS),
    "chat": ({"messages": ASKED, **chat()}, None, TEXT),
    "chat with ids": ({"messages": ASKED, **chat(token_ids=IDS), "prompt_token_ids": PROMPT_IDS}, PROMPT_IDS, IDS),
    "chat alone, with ids": (chat(token_ids=IDS) | {"prompt_token_ids": PROMPT_IDS}, PROMPT_IDS, IDS),
    "chat, ids in the logprobs": (
        {"request": CHAT_ASKED, "response": chat(logprobs={"content": [token(n, token=f"token_id:{n}") for n in IDS]})},
        None,
        IDS,
    ),
    "chat of llama.cpp": (
        {"request": CHAT_ASKED, "response": chat(logprobs={"content": [token(number, id=number) for number in IDS]})},
        None,
        IDS,
    ),
    "chat of llama.cpp, a letter of two tokens": (
        {"request": CHAT_ASKED, "response": chat(5, logprobs={"content": [token(n, id=n) for n in IDS]})},
        None,
        TEXT,
    ),
    "chat with logprobs": (
        {"request": CHAT_ASKED, "response": chat(logprobs={"content": [token(number) for number in IDS]})}, None, TEXT
    ),
    "text": ({"request": {"model": "m", "prompt": "Name a river."}, "response": text()}, "Name a river.", TEXT),
    "text with ids": (text(token_ids=IDS, prompt_token_ids=PROMPT_IDS), PROMPT_IDS, IDS),
    "text, ids in the logprobs": ({"prompt": PROMPT_IDS, **text(logprobs=AS_IDS)}, PROMPT_IDS, IDS),
    "SGLang": ({"input_ids": PROMPT_IDS, "sampling_params": {"temperature": 0.8}, **sglang()}, PROMPT_IDS, IDS),
    "SGLang, asked in words": (
        {"text": "Name a river.", "sampling_params": {"temperature": 0.8}, "response": sglang()}, "Name a river.", IDS
    ),
    "SGLang, ids in the logprobs": (
        {"request": {"text": "Name a river."}, "response": [sglang(output_ids=None)]}, "Name a river.", IDS
    ),
    "SGLang, flat": ({"prompt": "Name a river.", **sglang()}, "Name a river.", IDS),
    "llama.cpp": (llama(), "Name a river.", IDS),
    "llama.cpp without ids": ({"request": {"prompt": PROMPT_IDS}, "response": llama(tokens=[])}, PROMPT_IDS, TEXT),
    "batch with its request": (batch(chat(), body=CHAT_ASKED, method="POST", url="/v1"), None, TEXT),
    "batch output with ids": (batch(chat(token_ids=IDS) | {"prompt_token_ids": PROMPT_IDS}), PROMPT_IDS, IDS),
    "a response as JSON": ({"messages": ASKED, "response": json.dumps(chat(token_ids=IDS))}, None, IDS),
    "a response in words": ({"messages": ASKED, "response": TEXT}, None, TEXT),
    "a response of JSON that the model wrote": ({"prompt": "x", "response": '{"choices": 1}'}, "x", '{"choices": 1}'),
    "a response of ids": ({"prompt": PROMPT_IDS, "response": IDS}, PROMPT_IDS, IDS),
    "an output": ({"prompt": "Name a river.", "output": TEXT}, "Name a river.", TEXT),
    "a generated text": ({"prompt": "Name a river.", "generated_text": TEXT}, "Name a river.", TEXT),
    "ids beside words": ({"prompt": "x", "prompt_token_ids": PROMPT_IDS, "token_ids": IDS}, PROMPT_IDS, IDS),
}  # fmt: skip


def plain(value):
    return tuple(value) if isinstance(value, list) else value


# ---- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("values", "prompt", "completion"), RIGHT.values(), ids=RIGHT)
def test_an_answer_is_the_completion_by_its_ids_where_it_has_them(values, prompt, completion):
    row = only(values)
    assert (row.prompt, row.completion) == (plain(prompt), plain(completion))
    assert row.messages == (USER if prompt is None else None)
    assert row.told is None


def test_an_engines_answer_is_known_by_what_it_holds_whatever_its_name():
    assert only({"messages": ASKED, "reply": chat(token_ids=IDS)}).completion == tuple(IDS)
    assert only({"prompt": "x", "raw": [sglang()]}).completion == tuple(IDS)
    assert only({"request": CHAT_ASKED, "result": batch(chat())["response"]}).completion == TEXT


def test_the_format_tells_whose_answers_were_read():
    prompts = from_values([vllm(), llama(), {"request": CHAT_ASKED, "response": chat()}, "x"])
    assert prompts.format == (
        "specviz, vLLM's outputs, specviz, llama.cpp's answers, request, OpenAI's choices, specviz"
    )


def test_rows_are_called_as_the_server_called_them():
    values = [vllm(), batch(chat(), body=CHAT_ASKED), {"custom_id": "a1", "body": CHAT_ASKED}]
    assert [row.id for row in from_values(values).rows()] == ["7", "batch_req_1", "a1"]


def test_what_is_unread_in_an_answer_is_noted():
    prompts = from_values([{"request": CHAT_ASKED | {"user": "u"}, "response": chat(score=1)}])
    assert {"request.user", "response.created", "response.choices.score"} <= set(prompts.ignored)
    assert "response.choices.message" not in prompts.ignored


CALL = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"city": "Lund"}'}}


def test_an_answer_with_reasoning_and_calls_is_kept_for_the_chat_template():
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    row = only({"request": CHAT_ASKED, "response": chat(message=calling, finish_reason="tool_calls")})
    assert row.answer.tool_calls[0]["function"] == {"name": "clock", "arguments": {"city": "Lund"}}
    thinking = {"content": "Lund.", "reasoning_content": "A town."}
    row = only({"request": CHAT_ASKED, "response": chat(message=thinking) | {"prompt_token_ids": PROMPT_IDS}})
    assert (row.messages, row.answer) == (USER, Message("assistant", "Lund.", "A town."))


@pytest.mark.parametrize("message", [{"content": None, "tool_calls": [CALL]}, {"content": "x", "reasoning": "y"}])
def test_what_a_chat_template_writes_needs_ids_behind_token_ids(message):
    message = {"role": "assistant", **message}
    alone = chat(message=message) | {"prompt_token_ids": PROMPT_IDS}
    assert "without its prompt" in refused(batch(alone))
    for values in (alone, {"prompt": PROMPT_IDS, **alone}, {"prompt": PROMPT_IDS, "completion": [message]}):
        assert "reasoning or tool calls behind token ids" in refused(values)
    assert only(chat(message=message, token_ids=IDS) | {"prompt_token_ids": PROMPT_IDS}).completion == tuple(IDS)


def test_an_image_is_not_lost_behind_the_ids_of_a_prompt():
    parts = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}]
    answer = chat(token_ids=IDS) | {"prompt_token_ids": PROMPT_IDS}
    assert "part in message 1" in refused({"request": {"messages": parts}, "response": answer})
    asked = {"input_ids": PROMPT_IDS, "image_data": ["a.png"]}
    assert '"image_data"' in refused({"request": asked, "response": sglang()})


def test_a_completion_and_an_answer_of_the_messages_come_before_other_texts():
    talk = [*ASKED, {"role": "assistant", "content": "The Orm."}]
    assert only({"prompt": "x", "completion": [3, 4], "response": TEXT}).completion == (3, 4)
    assert only({"messages": talk, "response": TEXT, "finish_reason": "stop"}).completion == "The Orm."
    assert "an answer twice" in refused({"messages": talk, **chat()})


def test_what_public_sets_call_choices_or_output_is_no_answer():
    for more in ({"choices": ["A", "B"]}, {"choices": {"text": ["A"], "label": ["a"]}}, {"response": ""}):
        assert only({"question": "Which?", **more}).completion is None
    assert only({"prompt": "Which?", "choices": ["A", "B"]}).completion is None
    assert only({"instruction": "Which?", "output": ""}).completion is None


# ---- other kinds of files --------------------------------------------------------------------------------------------


class Frame:
    """Gives its rows as Polars does: each with all columns."""

    def __init__(self, rows):
        self.columns = [*dict.fromkeys(name for row in rows for name in row)]
        self._rows = rows

    def __iter__(self):
        return iter(self.columns)

    def to_dicts(self):
        return [{name: row.get(name) for name in self.columns} for row in self._rows]


@pytest.fixture(params=["lines", "json", "csv", "parquet", "pandas", "polars"])
def kept(request, tmp_path):
    """Reads rows back from a file or a frame of each kind."""

    def keep(rows):
        path = tmp_path / f"rows.{request.param}"
        if request.param == "pandas":
            return from_values(pytest.importorskip("pandas").DataFrame(rows))
        if request.param == "polars":
            return from_values(Frame(rows))
        if request.param == "lines":
            path.write_text("\n".join(map(json.dumps, rows)))
        elif request.param == "json":
            path.write_text(json.dumps(rows))
        elif request.param == "parquet":
            pyarrow = pytest.importorskip("pyarrow")
            pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
        else:
            with path.open("w", newline="") as stream:
                writer = csv.DictWriter(stream, [*dict.fromkeys(name for row in rows for name in row)])
                writer.writeheader()
                for row in rows:
                    cells = {name: each if isinstance(each, str) else json.dumps(each) for name, each in row.items()}
                    writer.writerow(cells)
        return open_prompts(path)

    return keep


IN_TABLES = (
    "vLLM", "chat with ids", "text, ids in the logprobs", "SGLang", "SGLang, ids in the logprobs", "llama.cpp",
    "batch with its request", "batch output with ids", "a response as JSON", "a response of JSON that the model wrote",
)  # fmt: skip


@pytest.mark.parametrize("name", IN_TABLES)
def test_an_answer_is_the_same_from_every_kind_of_file(kept, name):
    values, prompt, completion = RIGHT[name]
    values = {key: value for key, value in values.items() if value is not None}
    (row,) = kept([values]).rows()
    assert (row.prompt, row.completion) == (plain(prompt), plain(completion))


@pytest.mark.parametrize("frame", [Frame, lambda rows: pytest.importorskip("pandas").DataFrame(rows)])
def test_in_a_frame_a_row_may_lack_the_column_of_the_answers(frame):
    prompts = from_values(frame([{"prompt": "a", "response": TEXT}, {"prompt": "b"}]))
    assert [row.completion for row in prompts.rows()] == [TEXT, None]


# ---- what is refused -------------------------------------------------------------------------------------------------


def asked(response, **more):
    return {"request": {**CHAT_ASKED, **more}, "response": response}


WRONG = {
    "an error": ({"prompt": "x", "error": "timeout"}, "error in the place of an answer .*timeout"),
    "an error in the response": (asked({"error": {"message": "no", "code": 400}}), "error in the place"),
    "an error of vLLM": (asked({"object": "error", "message": "no", "code": 400}), "error in the place"),
    "a failed request": (batch(None, body=CHAT_ASKED, response=None, error={"code": "x"}), "error in the place"),
    "a bad status": (batch(chat(), body=CHAT_ASKED, response={"status_code": 429, "body": chat()}), "got 429"),
    "an abort": (vllm(finish_reason="abort"), "broken off .*'abort'"),
    "an abort of SGLang": (asked(sglang("abort")), "broken off .*'abort'"),
    "a filter": (asked(chat(finish_reason="content_filter")), "broken off .*'content_filter'"),
    "no end": (vllm(finish_reason=None), "piece of a stream"),
    "not finished": (vllm() | {"finished": False}, "piece of a stream"),
    "no end of llama.cpp": (asked(llama(stop=False)), "piece of a stream"),
    "no stop of llama.cpp": (llama(stop_type="none"), "piece of a stream"),
    "a delta": (asked(chat(delta={"content": "a"})), "piece of a stream"),
    "a chunk": (asked(chat() | {"object": "chat.completion.chunk"}), "piece of a stream"),
    "a null": ({"prompt": "x", "outputs": None}, '"outputs" as its answer.*got None'),
    "a null response": ({"request": CHAT_ASKED, "response": None}, '"response" as its answer.*got None'),
    "no choice": (asked(chat() | {"choices": []}), "without a text and without ids"),
    "two choices": (asked(chat() | {"choices": chat()["choices"] * 2}), '2 answers in "response.choices"'),
    "two outputs": (vllm() | {"outputs": vllm()["outputs"] * 3}, '3 answers in "outputs": write a row for each'),
    "two texts": ({"prompt": "x", "outputs": ["a", "b"]}, '2 answers in "outputs"'),
    "an empty answer": (vllm(text="", token_ids=[], logprobs=None), "without a text .*got ''"),
    "an empty response": ({"prompt": "x", "response": ""}, "without a text .*got ''"),
    "a null content": (asked(chat(message={"role": "assistant", "content": None})), "content of message 1"),
    "an empty content": (asked(chat(message={"role": "assistant", "content": ""})), "assistant's answer"),
    "another role": (asked(chat(message={"role": "user", "content": "x"})), "message of the assistant"),
    "a message that is none": (asked(chat(message="x")), "without a text"),
    "a number": ({"prompt": "x", "response": 3}, '"response" as its answer.*got 3'),
    "ids as a text": (vllm(token_ids="array('l', [1])", logprobs=None), "ids as a list"),
    "an id that is none": (vllm(token_ids=[40, "x", 42, 2]), "whole numbers .*got 'x'"),
    "a negative id": (vllm(token_ids=[40, -1, 42, 2]), "whole numbers .*got -1"),
    "fewer ids than logprobs": (vllm(token_ids=IDS[:3]), "other tokens .* 3 ids"),
    "fewer ids than counted": (asked(chat(token_ids=IDS[:3])), "other tokens .* 3 ids"),
    "other ids in the logprobs": (asked(sglang(output_ids=[40, 41, 43, 2])), "other tokens"),
    "an id too few in the logprobs": (
        asked(text(logprobs=AS_IDS | {"tokens": ["token_id:40", "b", "c", "d"]})), "with and without an id"
    ),
    "prompt ids as a text": (vllm() | {"prompt_token_ids": "5 9"}, "prompt_token_ids as a list"),
    "an echo": ({"request": {"prompt": "x", "echo": True}, "response": text()}, '"echo"'),
    "a suffix": ({"request": {"prompt": "x", "suffix": "y"}, "response": text()}, '"suffix"'),
    "no prompt": (batch(chat(token_ids=IDS)), "without its prompt: .*return_token_ids.*OpenAI's batch API"),
    "an embedding": (batch({"object": "list", "data": []}, body=CHAT_ASKED), "without a text"),
    "ids of an unknown name": ({"prompt": "x", "output_token_ids": IDS}, '"output_token_ids", as rows with an answer'),
    "a text beside a prompt": ({"prompt": "x", "text": TEXT}, '"text", as rows with an answer'),
    "an unknown shape": ({"messages": ASKED, "finish_reason": "stop", "said": TEXT}, '"finish_reason", as rows'),
    "a prompt that SGLang's answer overwrote": ({"sampling_params": {"temperature": 0.8}, **sglang()}, "neither"),
}  # fmt: skip


@pytest.mark.parametrize(("values", "words"), WRONG.values(), ids=WRONG)
def test_an_answer_that_cannot_be_used_is_named_and_left_out(values, words):
    assert re.search(words, refused(values))


def paths_of(value, path=()):
    """The places inside a value, outermost first."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from paths_of(item, (*path, key))


def changed(values, path, damage):
    made = copy.deepcopy(values)
    *outer, last = path
    holder = made
    for key in outer:
        holder = holder[key]
    if damage is GONE:
        del holder[last]
    else:
        holder[last] = damage
    return made


WHOLE_ANSWERS = {"outputs", "choices", "response", "output", "generated_text", "token_ids"}
"""Without one of these, a row may be a prompt that was never answered."""
GONE = object()
DAMAGES = (GONE, None, "", [], {}, 0, "x", ["x"], [[1.5]])


@pytest.mark.parametrize("name", RIGHT)
def test_no_damage_to_an_answer_makes_its_row_a_prompt_for_another_text(name):
    values = RIGHT[name][0]
    damaged = [
        changed(values, path, damage)
        for path in paths_of(values)
        for damage in DAMAGES
        if path[1:] or path[0] not in WHOLE_ANSWERS or damage is not GONE
    ]
    prompts = from_values(["good", *damaged])
    assert [row.line for row in prompts.rows() if not row.completion and not row.answer] == [1]
    assert prompts.num_rows + prompts.num_refused == 1 + len(damaged)


# ---- how it was sampled ----------------------------------------------------------------------------------------------

LAW = {"temperature": 0.5, "top_k": -1, "top_p": 1.0, "min_p": 0.0}


def served(response=None, **more):
    request = {"model": "big", "prompt": PROMPT_IDS, "max_tokens": 4, "seed": 1, **LAW, **more}
    request = {name: value for name, value in request.items() if value is not None}
    return {"request": request, "response": response or text(token_ids=IDS) | {"model": "big"}}


def test_a_request_that_names_all_of_its_sampling_says_how_the_answer_was_drawn():
    told = {"target": "big", "temperature": 0.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert only(served()).told == told
    assert only(served(top_p=0.9)).told == told | {"top_p": 0.9}
    assert only(served(presence_penalty=0.0, repetition_penalty=1.0, stop=[], n=1)).told == told
    inside = {"input_ids": PROMPT_IDS, "model": "big", "sampling_params": {**LAW, "max_new_tokens": 4}}
    assert only({"request": inside, "response": sglang()}).told == told


def test_without_temperature_nothing_is_left_to_filter():
    greedy = served(temperature=0, top_k=None, top_p=None, min_p=None)
    assert only(greedy).told == {"target": "big", "temperature": 0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.mark.parametrize(
    "values",
    [
        *(served(**{name: None}) for name in LAW),
        *(
            served(**{name: value})
            for name, value in (
                ("repetition_penalty", 1.1), ("presence_penalty", 0.2), ("frequency_penalty", 0.1), ("n", 2),
                ("logit_bias", {"5": 1}), ("guided_json", {"type": "object"}), ("response_format", {"type": "text"}),
                ("structured_outputs", {"regex": "a"}), ("stop", ["\n"]), ("ignore_eos", True), ("min_tokens", 2),
                ("use_beam_search", True), ("bad_words", ["x"]), ("lora_path", "x"), ("xtc_probability", 0.5),
                ("do_sample", False), ("tools", [{"type": "function"}]), ("temperature", 9), ("top_k", "all"),
                ("prompt", "x"),
            )
        ),
        served(top_p=0.9, top_k=5),  # engines differ in which comes first
        served(text(token_ids=IDS) | {"model": "other"}),
        {**served()["request"], **text(token_ids=IDS)},  # what else was asked is not told from what else was logged
        llama(generation_settings=LAW),
    ],
)  # fmt: skip
def test_a_row_that_leaves_the_sampling_open_does_not_say_how_it_was_drawn(values):
    row = only(values)
    assert (row.completion, row.told) == (tuple(IDS), None)


def test_what_the_row_itself_says_comes_first():
    said = {"target": "mine", "temperature": 1.0}
    assert only({**served(), "sampled": said}).told["target"] == "mine"


# ---- a job -----------------------------------------------------------------------------------------------------------


def test_a_job_measures_the_answers_that_it_is_given_and_writes_none(tmp_path):
    names = [name for name in RIGHT if RIGHT[name][1] == PROMPT_IDS and RIGHT[name][2] == IDS]
    exact = served() | {"id": "exact"}
    exact["request"] |= {"model": "fable-target", "temperature": 1.0}
    exact["response"]["model"] = "fable-target"
    rows = [*({**RIGHT[name][0], "id": name} for name in names), exact, WRONG["an abort"][0], WRONG["a null"][0]]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = align(tmp_path / "rows.jsonl", target="fable-target", draft="fable-draft", costs={}, out=tmp_path / "job")
    assert done.prompts["id"].tolist() == [*names, "exact"]
    assert set(done.prompts["source"]) == {"given"}
    assert done.tokens["token"].tolist() == IDS * (len(names) + 1)
    assert done.prompts["exact"].tolist() == [False] * len(names) + [True]
    assert [line for line, _ in done.summary.refused] == [len(names) + 2, len(names) + 3]
