"""Rows as training sets, servers and agents write them: what is read, what is noted, what is refused by name."""

import hashlib
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specviz.alignment.prompts import from_values, open_prompts
from specviz.alignment.types import Message, PromptRow
from specviz.errors import SpecvizError
from tests.helpers.prompt_values import only, refused

USER = {"role": "user", "content": "Name a river."}
ANSWER = {"role": "assistant", "content": "The Ashwell."}
CALL = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"city": "Lund"}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "c1", "name": "clock", "content": "14:05"}
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
SPEED_BENCH = {"question_id": "q7", "category": "qa", "sub_category": "short", "multiturn": False, "turns": ["Why?"]}
QUESTION = "When was the mill built?"
PASSAGE = "The mill was built in 1804."


# ---- fields that change no text --------------------------------------------------------------------------------------


def test_fields_of_messages_that_change_no_text_are_noted_once_for_all_rows():
    talk = [{**USER, "name": "ann", "weight": 1}, {**ANSWER, "weight": 0, "annotations": []}]
    prompts = from_values([{"messages": talk}, {"messages": talk, "source": "x"}])
    assert (prompts.num_rows, prompts.num_refused) == (2, 0)
    assert prompts.ignored == ("messages.name", "messages.weight", "messages.annotations", "source")


@pytest.mark.parametrize("name", ["id", "prompt_id", "question_id", "task_id", "custom_id"])
def test_the_id_and_the_category_of_messages_are_kept(name):
    prompts = from_values([{"messages": [USER], name: "a1", "category": "open qa", "tags": ["x"]}])
    (row,) = prompts.rows()
    assert (row.id, row.tags, prompts.ignored) == ("a1", ("x", "open qa"), ())


@pytest.mark.parametrize("value", [{"a": 1}, [1], 1.5, True, "x" * 300, "\x1b[2J", ""])
def test_a_number_or_a_category_that_cannot_name_a_row_is_noted_and_does_not_lose_it(value):
    prompts = from_values([{"prompt": "x", "prompt_id": value, "category": value}])
    (row,) = prompts.rows()
    assert (row.id, row.tags, prompts.ignored) == ("0", (), ("prompt_id", "category"))


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", "9" * 400, '"\\ud800"', '{"\\ud800": [NaN]}'])
def test_a_value_that_is_not_json_is_refused_only_where_it_is_read(tmp_path, value):
    talk = f'[{{"role": "user", "content": "q", "logprobs": [{value}]}}]'
    lines = [f'{{"prompt": "a", "score": [{value}]}}', f'{{"messages": {talk}}}', f'{{"prompt": [{value}]}}']
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    prompts = open_prompts(tmp_path / "rows.jsonl")
    assert ([row.line for row in prompts.rows()], [item.line for item in prompts.refused]) == ([1, 2], [3])
    assert prompts.ignored == ("score", "messages.logprobs")


def test_a_field_that_is_nan_is_missing(tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        '{"prompt": "a", "id": NaN, "completion": NaN}\n{"prompt": "b", "id": Infinity}'
    )
    prompts = open_prompts(tmp_path / "rows.jsonl")
    assert [(row.id, row.completion) for row in prompts.rows()] == [("0", None)]
    assert re.search('Infinity as "id"', prompts.refused[0].reason)


# ---- a prompt beside messages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [[], [{"role": "system", "content": "Be brief."}]])
def test_messages_win_where_their_first_question_is_the_prompt(before):
    row = only({"prompt": USER["content"] + "\n", "prompt_id": "a1", "messages": [*before, USER, ANSWER]})
    assert row.prompt is None
    assert [turn.content for turn in row.messages] == [turn["content"] for turn in [*before, USER]]
    assert (row.id, row.completion) == ("a1", "The Ashwell.")


@pytest.mark.parametrize("prompt", ["Name a hill.", [1, 2], 3])
def test_another_prompt_than_the_first_question_is_refused_by_name(prompt):
    assert re.match('has both "prompt" and "messages"', refused({"prompt": prompt, "messages": [USER, ANSWER]}))


def test_conversations_beside_a_prompt_are_held_to_the_same():
    turns = [{"from": "human", "value": "Name a river."}, {"from": "gpt", "value": "The Ashwell."}]
    assert only({"prompt": "Name a river.", "conversations": turns}).completion == "The Ashwell."
    assert "has both" in refused({"prompt": "Name a hill.", "conversations": turns})
    assert only({"prompt": [1, 2], "conversations": turns}).prompt == (1, 2)  # token ids are exact


@pytest.mark.parametrize("empty", [{"prompt": "Name a river.", "messages": []}, {"prompt": "", "messages": [USER]}])
def test_what_is_empty_in_a_joined_file_does_not_count(empty):
    prompts = from_values([empty])
    (row,) = prompts.rows()
    assert (row.prompt or row.messages[0].content, prompts.ignored) == ("Name a river.", ())


@pytest.mark.parametrize("completion", [[ANSWER], "The Ashwell."])
def test_a_prompt_of_messages_is_a_conversation(completion):
    row = only({"prompt": [USER], "completion": completion})
    assert (row.prompt, row.messages, row.completion) == (None, (Message("user", "Name a river."),), "The Ashwell.")


def test_a_completion_of_messages_behind_a_text_is_its_one_answer():
    assert only({"prompt": "A river:", "completion": [ANSWER]}).completion == "The Ashwell."
    assert "completion as one message" in refused({"prompt": "A river:", "completion": [USER]})
    assert "completion as one message" in refused({"prompt": "A river:", "completion": [ANSWER, ANSWER]})


def test_the_calls_in_a_completion_of_messages_belong_to_the_conversation():
    row = only({"prompt": [USER], "completion": [CALLING, TOLD, ANSWER], "tools": [TOOL]})
    assert [turn.role for turn in row.messages] == ["user", "assistant", "tool"]
    assert row.completion == "The Ashwell."


# ---- tools and reasoning ---------------------------------------------------------------------------------------------


def test_calls_and_answers_of_tools_are_read_with_the_arguments_as_an_object():
    row = only({"messages": [USER, CALLING, TOLD, ANSWER], "tools": [TOOL]})
    called, told = row.messages[1:]
    assert called.to_dict()["tool_calls"] == [CALL | {"function": {"name": "clock", "arguments": {"city": "Lund"}}}]
    assert told.to_dict() == TOLD
    assert (row.tools, row.only_for_templates) == ((TOOL,), "tools, tool calls, answers of tools")


@pytest.mark.parametrize("spelled", [json.dumps([TOOL]), [json.dumps(TOOL)]])
def test_tools_may_be_json_texts(spelled):
    assert only({"messages": [USER], "tools": spelled}).tools == (TOOL,)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_stands_before_the_answer_of_its_turn(name):
    row = only({"messages": [USER, {**ANSWER, name: "A short one."}]})
    assert row.completion == "<think>\nA short one.\n</think>\n\nThe Ashwell."
    assert row.answer == Message("assistant", "The Ashwell.", "A short one.")


def test_reasoning_without_a_word_is_none():
    row = only({"messages": [USER, {**ANSWER, "reasoning_content": "\n\n"}]})
    assert (row.completion, row.answer) == ("The Ashwell.", None)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([USER, {**ANSWER, "function_call": {"name": "f"}}], '"function_call" in message 2'),
        ([{**USER, "images": ["a.png"]}], '"images" in message 1'),
        ([{**USER, "tool_calls": [CALL]}], "tool calls in message 1"),
        ([USER, {**ANSWER, "reasoning_content": {"a": 1}}], "reasoning_content of message 2"),
        ([USER, {"role": "assistant", "tool_calls": "none"}], "tool_calls of message 2"),
        ([USER, {"role": "assistant", "tool_calls": [{"id": "x"}]}], "tool call 1 of message 2"),
        (
            [USER, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}],
            "arguments of tool call 1 of message 2 .*got '{'",
        ),
        ([USER, {**TOLD, "tool_call_id": 3}], "tool_call_id of message 2 .*got 3"),
        ([{"role": "developer"}], "content of message 1 .*got None"),
    ],
)
def test_what_changes_the_text_of_a_message_and_cannot_be_read_is_refused_by_name(messages, words):
    assert re.search(words, refused({"messages": messages}))


# ---- what stands beside the question ---------------------------------------------------------------------------------


@pytest.mark.parametrize("passage", [{"context": PASSAGE}, {"passage": PASSAGE}, {"context": [PASSAGE]}])
@pytest.mark.parametrize("asked", ["instruction", "question", "turns"])
def test_a_passage_stands_before_the_question(passage, asked):
    prompts = from_values([{asked: [QUESTION] if asked == "turns" else QUESTION, **passage}])
    (row,) = prompts.rows()
    assert (row.messages, prompts.ignored) == ((Message("user", f"{PASSAGE}\n\n{QUESTION}"),), ())


def test_a_passage_belongs_to_a_prompt_too_unless_it_holds_it():
    assert only({"prompt": QUESTION, "context": PASSAGE}).prompt == f"{PASSAGE}\n\n{QUESTION}"
    assert only({"prompt": f"{QUESTION} {PASSAGE}", "context": PASSAGE}).prompt == f"{QUESTION} {PASSAGE}"


def test_a_passage_beside_messages_must_stand_in_them():
    assert only({"messages": [{**USER, "content": f"{PASSAGE} {QUESTION}"}], "context": PASSAGE}).messages
    assert "passage beside the messages" in refused({"messages": [USER], "context": PASSAGE})
    assert 'needs "context", which belongs to the prompt' in refused({"question": QUESTION, "context": {"a": 1}})


@pytest.mark.parametrize("asked", ["instruction", "question", "prompt"])
def test_a_response_is_the_completion(asked):
    assert only({asked: QUESTION, "response": "In 1804."}).completion == "In 1804."


@pytest.mark.parametrize("name", ["system", "system_prompt"])
@pytest.mark.parametrize(
    "asked",
    [
        {"messages": [USER]}, {"conversations": [USER]}, {"instruction": USER["content"]},
        {"question": USER["content"]}, {"prompt": USER["content"]}, {"prompt": [USER]},
    ],
)  # fmt: skip
def test_words_of_the_system_beside_the_question_come_first(name, asked):
    assert only({**asked, name: "Be brief."}).messages == (
        Message("system", "Be brief."),
        Message("user", "Name a river."),
    )


def test_other_words_of_the_system_than_in_the_messages_are_refused():
    talk = [{"role": "system", "content": "Be brief."}, USER]
    assert len(only({"messages": talk, "system": "Be brief. "}).messages) == 2
    assert "other words of the system" in refused({"messages": talk, "system": "Be long."})


@pytest.mark.parametrize("name", ["images", "documents", "functions", "history"])
def test_what_belongs_to_the_prompt_and_cannot_be_read_is_refused_by_name(name):
    assert re.match(f'has "{name}", which belongs to the prompt', refused({"messages": [USER], name: ["x"]}))
    prompts = from_values([{"messages": [USER], name: []}])
    assert (prompts.num_rows, prompts.ignored) == (1, ())


# ---- public sets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [["two sisters"], "two sisters", True, "See #### 3 and more"])
def test_a_question_with_any_answer_is_not_called_gsm8k(answer):
    prompts = from_values([{"question": QUESTION, "answer": answer}])
    (row,) = prompts.rows()
    assert (prompts.format, row.tags, row.messages) == ("questions", (), (Message("user", QUESTION),))
    assert prompts.ignored == ("answer",)


@pytest.mark.parametrize("answer", ["#### 12", "3 + 4 = <<3+4=7>>7\n#### 7", "So:\n#### -1,200.5"])
def test_gsm8k_is_known_by_how_its_answers_end(answer):
    prompts = from_values([{"question": "How many?", "answer": answer}])
    assert (prompts.format, [row.tags for row in prompts.rows()]) == ("GSM8K", [("math",)])


def test_speed_bench_is_read_as_it_comes_and_as_it_is_prepared():
    prepared = {name: value for name, value in SPEED_BENCH.items() if name != "turns"}
    both = from_values(
        [SPEED_BENCH, {**prepared, "messages": [{"role": "user", "content": text} for text in ("Why?", "And?")]}]
    )
    assert both.format == "SPEED-Bench, first turns"
    assert [(row.messages, row.tags) for row in both.rows()] == [((Message("user", "Why?"),), ("qa",))] * 2
    assert [row.id for row in both.rows()] == ["q7", "q7 (2)"]


@pytest.mark.parametrize("text", [PLACEHOLDER, f"{PLACEHOLDER}\n\nSolve: {{question}}"])
@pytest.mark.parametrize(
    "shape",
    [
        lambda text: {**SPEED_BENCH, "turns": [text]},
        lambda text: {"prompt": text},
        lambda text: {"messages": [{"role": "user", "content": text}]},
    ],
)
def test_placeholders_are_left_out_by_name(text, shape):
    assert refused(shape(text)).startswith("is a placeholder of SPEED-Bench")


def test_a_batch_request_is_read_like_the_row_that_it_holds():
    body = {"model": "m", "messages": [USER], "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False}}
    prompts = from_values([{"custom_id": "r1", "method": "POST", "url": "/v1", "body": body}])
    (row,) = prompts.rows()
    assert (row.id, row.tools, row.chat_options) == ("r1", (TOOL,), {"enable_thinking": False})
    assert prompts.ignored == ("body.model",)


# ---- switches of the chat template -----------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [{"messages": [USER]}, {"prompt": "x"}])
@pytest.mark.parametrize("spelled", [lambda value: value, json.dumps])
def test_switches_of_the_chat_template_are_kept_with_the_row(asked, spelled):
    switches = {"enable_thinking": False, "effort": "low", "budget": 3, "share": 0.5}
    prompts = from_values([{**asked, "chat_template_kwargs": spelled({**switches, "unset": None})}])
    (row,) = prompts.rows()
    assert (row.chat_options, prompts.ignored) == (switches, ())


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ([1], "at most 32"),
        ({"a b": 1}, "one word"),
        ({"a": [1]}, "chat_template_kwargs.a"),
        ({"a": "x" * 1_001}, "chat_template_kwargs.a is too long"),
        ({f"n{number}": 1 for number in range(33)}, "at most 32"),
    ],
)
def test_what_cannot_be_a_switch_is_refused_by_name(switches, words):
    reason = refused({"messages": [USER], "chat_template_kwargs": switches})
    assert re.search(f"switches .*{words}", reason)


def test_beside_token_ids_nothing_of_a_conversation_counts():
    prompts = from_values([{"prompt": [1, 2], "tools": [TOOL], "system": "x", "chat_template_kwargs": {"a": 1}}])
    (row,) = prompts.rows()
    assert (row.prompt, row.tools, row.chat_options) == ((1, 2), (), {})
    assert prompts.ignored == ("tools", "system", "chat_template_kwargs")


# ---- the fingerprint -------------------------------------------------------------------------------------------------


def test_rows_of_plain_texts_keep_the_fingerprint_of_older_jobs():
    spelled = (
        "PromptRow(number=0, line=1, id='0', tags=(), prompt='a', messages=None, completion=None, told=None)"
        "PromptRow(number=1, line=2, id='1', tags=(), prompt=None, messages=(Message(role='user', content='b'),), "
        "completion='c', told=None)"
    )
    talk = [{"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]
    expected = hashlib.sha256(spelled.encode()).hexdigest()[:16]
    assert from_values(["a", {"messages": talk}]).fingerprint == expected


@pytest.mark.parametrize(
    "change",
    [
        {"tools": [TOOL]},
        {"chat_template_kwargs": {"a": 1}},
        {"messages": [USER, {**CALLING, "content": "The Ashwell."}, USER]},
        {"messages": [USER, {**ANSWER, "reasoning": "Hm."}, USER]},
    ],
)
def test_what_a_template_reads_changes_the_fingerprint(change):
    row = {"messages": [USER, ANSWER, USER]}
    assert from_values([row | change]).fingerprint != from_values([row]).fingerprint


# ---- any row at all --------------------------------------------------------------------------------------------------

NAMES = (
    *("prompt", "messages", "conversations", "instruction", "input", "output", "question", "answer", "turns"),
    *("id", "prompt_id", "question_id", "category", "sub_category", "tags", "completion", "response", "sampled"),
    *("tools", "chat_template_kwargs", "system", "system_prompt", "context", "passage", "images", "history"),
    *("custom_id", "body", "prompt_ids", "ids", "role", "content", "tool_calls", "tool_call_id", "name", "weight"),
    *("reasoning_content", "thinking", "function", "arguments", "type", "text", "from", "value", "target"),
)  # fmt: skip
SERVED = (
    *("outputs", "choices", "meta_info", "token_ids", "tokens", "logprobs", "request", "finish_reason", "usage"),
    *("prompt_token_ids", "input_ids", "output", "sampling_params", "error", "object", "delta", "stop_type"),
)  # fmt: skip
ROLES = ("user", "assistant", "tool", "developer", "system")
PLAIN = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=True) | st.text(max_size=8)
    | st.sampled_from([*ROLES, "human", "text", PLACEHOLDER, "{", '[{"a": '])
)  # fmt: skip
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(ROLES), "content": st.text(max_size=5) | VALUES},
        optional={"tool_calls": st.just([CALL]) | VALUES, "reasoning": VALUES, "name": VALUES},
    ),
    max_size=4,
)  # fmt: skip


READABLE = (
    {"prompt": "x"}, {"prompt": [1, 2], "completion": [3]}, {"prompt": [USER], "completion": [ANSWER]},
    {"messages": [USER, CALLING, TOLD, ANSWER], "tools": [TOOL]}, {"conversations": [{"from": "human", "value": "x"}]},
    {"instruction": "x", "input": "y"}, {"question": "x", "answer": "#### 3"}, SPEED_BENCH,
    {"prompt_ids": [1], "ids": [2]}, {"custom_id": "x", "body": {"messages": [USER]}},
)  # fmt: skip
OTHER_FIELDS = st.dictionaries(st.text(min_size=1, max_size=6).map(lambda name: f"x {name}"), VALUES, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(READABLE), OTHER_FIELDS, OTHER_FIELDS)
def test_a_field_that_nobody_knows_changes_no_row_wherever_it_stands(values, beside, inside):
    more = {**beside, **values}
    for name, held in values.items():
        if name == "tools":
            continue  # every field of a tool is told to the model
        if isinstance(held, dict):
            more[name] = {**inside, **held}
        elif isinstance(held, list) and isinstance(held[0], dict):
            more[name] = [{**inside, **each} for each in held]
    prompts = from_values([more])
    assert [*prompts.rows()] == [*from_values([values]).rows()]
    assert {name for name, value in beside.items() if value is not None and value == value} <= {*prompts.ignored}


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from((*NAMES, *SERVED)), VALUES, max_size=6),
    st.dictionaries(st.sampled_from(("messages", "prompt", "completion")), MESSAGES, max_size=2),
)
def test_any_row_is_read_or_refused_with_its_line_and_each_field_is_used_or_noted(values, talks):
    try:
        prompts = from_values(["good", {**values, **talks}])
    except SpecvizError as error:
        pytest.fail(f"the good row is lost too: {error}")
    rows = list(prompts.rows())
    assert [row.line for row in rows] + [item.line for item in prompts.refused] == [1, 2]
    assert all(item.reason and len(item.reason) < 600 and item.reason.isprintable() for item in prompts.refused)
    assert all(isinstance(row, PromptRow) and (row.prompt or row.messages) for row in rows)
