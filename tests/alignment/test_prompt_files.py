"""Prompt files: what each row becomes, what is refused and in which words, and that nothing is silent or unbounded."""

import csv
import json
import os
import re
import tracemalloc

import pytest

from specviz.alignment import prompts as prompt_files
from specviz.alignment.prompts import MOST_REFUSED, from_values, open_prompts
from specviz.alignment.prompts import tables as prompt_tables
from specviz.alignment.types import Message, PromptRow
from specviz.errors import SpecvizError
from specviz.request import MAX_PROMPT_CHARACTERS
from tests.helpers.prompt_values import only, refused

USER = {"role": "user", "content": "Hello"}
SAMPLED = {"target": "big", "temperature": 0.5}
MT_BENCH = {"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Now a shorter one."]}
HUMAN_EVAL = {
    "task_id": "HumanEval/0",
    "prompt": "def f(x):\n",
    "entry_point": "f",
    "canonical_solution": " 1",
    "test": "",
}
GSM8K = {"question": "How many apples?", "answer": "#### 12"}


@pytest.fixture
def written(tmp_path):
    """Writes lines (texts, bytes or values) to a file and returns its path."""

    def write(*lines, name="prompts.jsonl"):
        path = tmp_path / name
        path.write_bytes(b"".join(_bytes(line) + b"\n" for line in lines))
        return path

    return write


def _bytes(line):
    return line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()


# ---- what rows become -----------------------------------------------------------------------------------------------


def test_a_prompt_is_a_row_that_is_called_by_its_number():
    assert list(from_values(["a", "b"]).rows()) == [
        PromptRow(number=0, line=1, id="0", prompt="a"),
        PromptRow(number=1, line=2, id="1", prompt="b"),
    ]


def test_every_field_of_a_row_is_read():
    row = only(
        {"messages": [{"role": "system", "content": ""}, USER], "id": 7, "tags": ["a", "b"], "completion": [3, 0]}
    )
    assert row.messages == (Message("system", ""), Message("user", "Hello"))
    assert (row.id, row.tags, row.completion, row.prompt, row.told) == ("7", ("a", "b"), (3, 0), None, None)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("code", ("code",)),
        (["b", "a", "b"], ("b", "a")),
        ({"lang": "en", "hard": True, "level": 3, "none": None}, ("lang:en", "hard:true", "level:3")),
        ("two\n words\u00a0here", ("two words here",)),
        ([], ()),
    ],
)
def test_tags_are_texts_lists_or_pairs(tags, expected):
    assert only({"prompt": "x", "tags": tags}).tags == expected


def test_a_filter_that_is_not_named_did_not_filter():
    row = only({"prompt": "x", "completion": "y", "sampled": {**SAMPLED, "top_k": 40}})
    assert row.told == {"target": "big", "temperature": 0.5, "top_k": 40, "top_p": 1.0, "min_p": 0.0}


def test_null_is_as_good_as_nothing():
    row = only({"prompt": "x", "messages": None, "id": None, "tags": None, "completion": None, "sampled": None})
    assert row == PromptRow(number=0, line=1, id="0", prompt="x")
    assert only({"messages": [{**USER, "tool_calls": None}]}).messages == (Message("user", "Hello"),)


def test_ids_that_come_twice_are_numbered_and_stay_unique():
    def ids_of(*names):
        named = [{"prompt": "x", "id": name} for name in names]
        return [row.id for row in from_values([*named, "without"]).rows()]

    assert ids_of("a", "a (2)", "a", "a", "b") == ["a", "a (2)", "a (3)", "a (4)", "b", "5"]
    assert ids_of("a", "a", "a (2)", 3, "x") == ["a", "a (2)", "a (2) (2)", "3", "x", "5"]


# ---- public sets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "name", "ignored", "expected"),
    [
        (
            MT_BENCH | {"reference": ["-"]},
            "MT-Bench or Spec-Bench, first turns",
            ("reference",),
            {"id": "81", "tags": ("writing",), "messages": (Message("user", "Write a poem."),)},
        ),
        (
            HUMAN_EVAL,
            "HumanEval",
            ("entry_point", "canonical_solution", "test"),
            {"id": "HumanEval/0", "tags": ("code",), "prompt": "def f(x):\n"},
        ),
        (
            GSM8K,
            "GSM8K",
            ("answer",),
            {"id": "0", "tags": ("math",), "messages": (Message("user", "How many apples?"),)},
        ),
    ],
)
def test_public_sets_are_known_by_their_fields(values, name, ignored, expected):
    prompts = from_values([values])
    assert (prompts.format, prompts.ignored) == (name, ignored)
    assert list(prompts.rows()) == [PromptRow(number=0, line=1, **expected)]


def test_served_completions_may_stand_in_a_public_set():
    row = only({**MT_BENCH, "completion": [1, 2], "sampled": SAMPLED})
    assert (row.completion, row.told["target"]) == ((1, 2), "big")


def test_sets_that_were_joined_are_read_row_by_row():
    prompts = from_values([GSM8K, {"prompt": "x", "question": "?", "answer": "!"}, GSM8K])
    assert prompts.format == "GSM8K, specviz"
    assert [row.prompt for row in prompts.rows()] == [None, "x", None]
    assert prompts.ignored == ("answer", "question")


# ---- what is refused ------------------------------------------------------------------------------------------------


def said_by(role, content):
    return {"messages": [{"role": role, "content": content}]}


def answered(**fields):
    return {"prompt": "x", "completion": "y", **fields}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"text": "x"}, '"prompt" nor "messages" .*text'),
        ({"prompt": "x", "messages": [USER]}, "both"),
        ({"prompt": ""}, "prompt .*got ''"),
        ({"prompt": ["x"]}, "ids in the prompt .*got 'x'"),
        ({"prompt": []}, "1 to 100,000 ids .*got 0"),
        ({"prompt": "x" * (MAX_PROMPT_CHARACTERS + 1)}, "prompt .* 200,000 .*got 200,001"),
        ({"messages": []}, "list of 1 to"),
        (said_by("assistant", "x"), "user or the system"),
        ({"messages": [USER, {"role": "assistant", "content": "x"}], "completion": "y"}, "answer twice"),
        ({"messages": [USER, {"role": "assistant", "content": ""}]}, "assistant's answer"),
        (said_by("bot", "x"), "role in message 1 .* developer, tool .got 'bot'"),
        ({"messages": ["x"]}, 'message 1 .* "role" and "content"'),
        (said_by("user", [{"type": "text"}]), "part in message 1"),
        (said_by("user", [{"type": "image_url"}]), "got 'image_url'"),
        (said_by("user", [{"type": "text", "text": "a"}] * 101), "at most 100 parts"),
        (said_by("user", 3), "content of message 1 .*got 3"),
        (said_by("user", ""), "last message"),
        ({"messages": [{"role": "user", "content": "x" * 150_000}] * 2}, "200,000 .*got 300,000"),
        ({"conversations": []}, "1 to 1,000 turns"),
        ({"conversations": [{"from": "tool", "value": "x"}]}, "turn 1 .* human, gpt, .*got 'tool'"),
        ({"conversations": [{"from": "human"}]}, "turn 1 .*got None"),
        ({"custom_id": "a", "body": {"model": "m"}}, 'body .*"messages" or "prompt"'),
        ({"custom_id": "a", "body": 3}, "body .*got 3"),
        (
            {"custom_id": "a", "response": {"body": {"choices": [{"text": "x"}]}}},
            "without its prompt.*OpenAI's batch API",
        ),
        ({"prompt_ids": "x", "ids": "y"}, "prompt_ids .*list"),
        ({"prompt_ids": [1], "ids": [-1]}, "completion .*got -1"),
        ({"instruction": ""}, "instruction"),
        ({"instruction": "x", "input": 3}, "instruction and the input .*got 3"),
        ({"prompt": "x", "id": 1.5}, "id .*got 1.5"),
        ({"prompt": "x", "id": True}, "id .*got True"),
        ({"prompt": "x", "id": " "}, "id .*got ' '"),
        ({"prompt": "x", "id": "a\u001b[2J"}, "id .* control characters"),
        ({"prompt": "x", "id": "x" * 201}, "200 characters .got 201"),
        ({"prompt": "x", "id": 10**5000}, "JSON|digits|number"),
        ({"prompt": "x", "tags": ["t"] * 21}, "20 texts"),
        ({"prompt": "x", "tags": ["t" * 81]}, "80 characters"),
        ({"prompt": "x", "tags": [1]}, "tag .*got 1"),
        ({"prompt": "x", "tags": {"a": [1]}}, "tag 'a' .*got"),
        ({"prompt": "x", "tags": {"a": float("nan")}}, "tag 'a' .*got NaN"),
        ({"prompt": "x", "completion": ""}, "completion .*got ''"),
        ({"prompt": "x", "completion": []}, "1 to 100,000 ids .*got 0"),
        ({"prompt": "x", "completion": [0] * 100_001}, "1 to 100,000 ids .*got 100,001"),
        ({"prompt": "x", "completion": [1, -1]}, "from 0 to .*got -1"),
        ({"prompt": "x", "completion": [True]}, "got True"),
        ({"prompt": "x", "completion": [2**31]}, "got 2147483648"),
        ({"prompt": "x", "sampled": SAMPLED}, '"completion"'),
        (answered(sampled={"target": "big"}), '"sampled" as an object'),
        (answered(sampled={**SAMPLED, "seed": 1}), '"sampled" as an object'),
        (answered(sampled={**SAMPLED, "top_p": 0}), '"sampled": top_p'),
        ({**MT_BENCH, "turns": []}, "turns"),
        ({**MT_BENCH, "turns": [3]}, "first of the turns .*got 3"),
        ({**GSM8K, "question": 3}, "question .*got 3"),
        (3, "got int"),
        (object(), "JSON"),
        ({"prompt": "\ud800"}, "surrogate"),
    ],
)
def test_a_bad_row_is_refused_by_its_field_and_value(values, told):
    assert re.search(told, refused(values))


def test_what_is_said_of_a_bad_row_is_short():
    assert len(refused({"prompt": [["x" * 1_000] * 10] * 10})) < 200
    assert len(refused({f"field {number}": "x" for number in range(1_000)})) < 350


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{", "JSON"),
        (b'{"prompt": "\xff"}', "UTF-8"),
        (b'{"prompt": "x"} {}', "JSON"),
        (b"null", "JSON object"),
        (b"[" * 100_000, "too deeply"),
        (b'{"prompt": "\\ud800"}', "surrogate"),
    ],
)
def test_a_bad_line_is_named_and_passed_over(written, line, told):
    prompts = open_prompts(written({"prompt": "a"}, line, {"prompt": "b"}))
    assert [(row.number, row.line, row.prompt) for row in prompts.rows()] == [(0, 1, "a"), (1, 3, "b")]
    assert [(item.line, bool(re.search(told, item.reason))) for item in prompts.refused] == [(2, True)]


def test_all_bad_lines_are_counted_and_the_first_are_named():
    prompts = from_values(["x", *[{"prompt": ""}] * 50])
    assert (len(prompts), prompts.num_refused) == (1, 50)
    assert [item.line for item in prompts.refused] == list(range(2, 2 + MOST_REFUSED))


def test_a_file_without_a_usable_row_names_the_first_bad_lines(written):
    with pytest.raises(SpecvizError, match=r"prompts\.jsonl .*: line 1 .*; line 2 .*; and 3 more lines"):
        open_prompts(written(*["{"] * 8))
    with pytest.raises(SpecvizError, match='"prompt" or "messages" per line'):
        open_prompts(written("", " \r"))
    with pytest.raises(SpecvizError, match="list of prompts"):
        from_values([])


ANSWER = {"role": "assistant", "content": "Hi."}
TOLD = {"role": "system", "content": "Be brief."}
PARTS = {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "input_text", "text": "you"}]}
TURNS = [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi."}]
ASKED = (Message("system", "Be brief."), Message("user", "Hello"))
MADE = {
    "messages with an answer": ({"messages": [TOLD, USER, ANSWER]}, {"messages": ASKED, "completion": "Hi."}),
    "content parts": ({"messages": [PARTS]}, {"messages": (Message("user", "Hello\nyou"),)}),
    "conversations": ({"conversations": TURNS, "id": 7}, {"id": "7", "messages": ASKED, "completion": "Hi."}),
    "conversations, no answer": ({"conversations": TURNS[:2]}, {"messages": ASKED}),
    "conversations by role": ({"conversations": [TOLD, USER]}, {"messages": ASKED}),
    "OpenAI batch": (
        {"custom_id": "r1", "method": "POST", "url": "/v1", "body": {"model": "m", "messages": [TOLD, USER]}},
        {"id": "r1", "messages": ASKED},
    ),
    "OpenAI batch of ids": ({"custom_id": "r1", "body": {"prompt": [3, 4]}}, {"id": "r1", "prompt": (3, 4)}),
    "ids as prompt": ({"prompt": [3, 4], "completion": [5]}, {"prompt": (3, 4), "completion": (5,)}),
    "rows of prove": ({"prompt_ids": [3], "ids": [4, 5]}, {"prompt": (3,), "completion": (4, 5)}),
    "rows of an engine": ({"prompt_token_ids": [3], "token_ids": [4]}, {"prompt": (3,), "completion": (4,)}),
    "Alpaca": (
        {"instruction": "Add.", "input": "1 2", "output": "3"},
        {"messages": (Message("user", "Add.\n\n1 2"),), "completion": "3"},
    ),
    "Alpaca, bare": ({"instruction": "Add.", "input": "", "output": ""}, {"messages": (Message("user", "Add."),)}),
}


@pytest.mark.parametrize(("values", "expected"), MADE.values(), ids=MADE)
def test_rows_of_training_and_serving_tools_are_read(values, expected):
    assert only(values) == PromptRow(**{"number": 0, "line": 1, "id": "0", **expected})


# ---- other kinds of files -------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """Rows as a file of each kind."""

    def save(rows, kind):
        path = tmp_path / f"prompts.{kind}"
        if kind == "json":
            path.write_text("\ufeff \n" + json.dumps(rows, indent=2))
        elif kind == "parquet":
            parquet = pytest.importorskip("pyarrow.parquet")
            parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), path)
        else:
            with path.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, list(rows[0]), delimiter="," if kind == "csv" else "\t")
                writer.writeheader()
                for row in rows:
                    cells = {name: each if isinstance(each, str) else json.dumps(each) for name, each in row.items()}
                    writer.writerow(cells)
        return path

    return save


ROWS = [
    {"id": "a", "messages": [TOLD, USER, ANSWER], "tags": ["x", "y"]},
    {"id": "b", "messages": [USER], "tags": ["x"]},
]


@pytest.mark.parametrize("kind", ["json", "csv", "tsv", "parquet"])
def test_every_kind_of_file_gives_the_rows_that_json_lines_give(saved, written, kind):
    made, expected = open_prompts(saved(ROWS, kind)), open_prompts(written(*ROWS))
    assert list(made.rows()) == list(expected.rows())
    assert made.fingerprint == expected.fingerprint


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_a_tool_has_its_own_parameters_alone_in_every_kind_of_file(saved, written, kind):
    tools = [[{"name": name, "parameters": {"properties": {key: {"type": "string"}}}}] for name, key in ("ab", "cd")]
    rows = [{"messages": [USER], "tools": each} for each in tools]
    made = open_prompts(saved(rows, kind))
    assert [list(row.tools) for row in made.rows()] == tools
    assert made.fingerprint == open_prompts(written(*rows)).fingerprint


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_a_bad_row_of_any_file_is_named_by_its_number(saved, kind):
    rows = [{"prompt": text, "id": str(number)} for number, text in enumerate(("a", "", "b"))]
    made = open_prompts(saved(rows, kind))
    assert [row.prompt for row in made.rows()] == ["a", "b"]
    assert [item.line for item in made.refused] == [2]


def test_lines_of_a_text_are_prompts(tmp_path):
    (tmp_path / "prompts.txt").write_bytes("\ufeffOnce upon\r\n\n{the} end\n".encode() + b"\xff\n")
    made = open_prompts(tmp_path / "prompts.txt")
    assert [row.prompt for row in made.rows()] == ["Once upon", "{the} end"]
    assert [(item.line, item.reason) for item in made.refused] == [(4, "is not text in UTF-8")]


def test_a_line_of_a_text_is_one_prompt_or_none_however_long_it_is(tmp_path):
    (tmp_path / "prompts.txt").write_text("Once upon\n" + "x" * (prompt_files.MOST_LINE_BYTES + 9) + "\nThe end\n")
    made = open_prompts(tmp_path / "prompts.txt")
    assert [row.prompt for row in made.rows()] == ["Once upon", "The end"]
    assert [(item.line, item.reason.split(":")[0]) for item in made.refused] == [(2, "is too long")]


DAMAGED = {
    "a list that does not end": ("p.json", b'[{"prompt": "x"}', "JSON list"),
    "a deep list": ("p.json", b"[" * 200_000, "JSON list"),
    "no Parquet": ("p.parquet", b"PAR1" + b"\0" * 64, "Parquet"),
    "no CSV": ("p.csv", b'prompt\n"x\n', "CSV"),
    "CSV of other bytes": ("p.csv", b"prompt\n\xff\n", "CSV in UTF-8"),
    "too many cells": ("p.csv", b"prompt\nx,y,z\n", "line 1 has 3 cells; .* 1 columns"),
    "a cell beyond bounds": ("p.csv", b"prompt\n" + b"x" * 200_000 + b"\n", "CSV"),
}


@pytest.mark.parametrize(("name", "content", "told"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused_by_its_kind(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SpecvizError, match=told):
        open_prompts(tmp_path / name)


def test_what_is_held_at_once_is_bounded(saved, monkeypatch):
    monkeypatch.setattr(prompt_tables, "MOST_LIST_BYTES", 10)
    with pytest.raises(SpecvizError, match="at most 10 bytes"):
        open_prompts(saved(ROWS, "json"))
    path = saved(ROWS, "parquet")
    monkeypatch.setattr(prompt_tables, "MOST_UNPACKED", 10)
    with pytest.raises(SpecvizError, match="more than 10 bytes"):
        open_prompts(path)


def test_what_is_no_file_is_refused_without_its_place(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "", "pipe", "a\0b"):
        with pytest.raises(SpecvizError, match="file") as caught:
            open_prompts(tmp_path / name)
        assert str(tmp_path) not in str(caught.value)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "large.jsonl"
    with path.open("wb") as stream:
        stream.truncate(prompt_files.MOST_BYTES + 1)
    with pytest.raises(SpecvizError, match="at most 1,073,741,824 bytes"):
        open_prompts(path)


# ---- lines and memory -----------------------------------------------------------------------------------------------


def test_marks_line_ends_and_blank_lines_mean_nothing(written):
    path = written(b'\xef\xbb\xbf{"prompt": "a"}\r', b"", b" \t\r", b'{"prompt": "b\\r"}')
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    prompts = open_prompts(path)
    assert [(row.line, row.prompt) for row in prompts.rows()] == [(1, "a"), (4, "b\r")]
    assert prompts.num_refused == 0


def test_a_line_that_is_too_long_is_passed_over_whole(written, monkeypatch):
    monkeypatch.setattr(prompt_files, "MOST_LINE_BYTES", 100)
    long = [{"prompt": "x" * size} for size in (80, 88, 100, 1_000)]  # with braces: 94, 102, 114, 1,014 bytes
    prompts = open_prompts(written({"prompt": "a"}, *long, {"prompt": "b"}))
    assert [len(row.prompt) for row in prompts.rows()] == [1, 80, 1]
    assert [(item.line, item.reason) for item in prompts.refused] == [
        (line, "is too long: at most 100 bytes are read") for line in (3, 4, 5)
    ]
    assert from_values(["a", "x" * 100]).refused == (prompt_files.RefusedRow(2, prompts.refused[0].reason),)


def test_a_file_and_a_list_of_the_same_rows_are_the_same_work(written):
    values = [{"prompt": "a", "tags": "t"}, {"prompt": ""}, MT_BENCH]
    assert open_prompts(written(*values)).fingerprint == from_values(values).fingerprint


@pytest.mark.parametrize(
    "change", [{"prompt": "other"}, {"id": "i"}, {"tags": "t"}, {"completion": "c"}, {"completion": [1]}]
)
def test_whatever_decides_a_row_changes_the_fingerprint(change):
    assert from_values([{"prompt": "a"} | change]).fingerprint != from_values([{"prompt": "a"}]).fingerprint


def test_rows_can_be_read_again_and_in_part(written):
    prompts = open_prompts(written(*[{"prompt": str(number)} for number in range(5)]))
    assert next(iter(prompts.rows())).prompt == "0"
    assert list(prompts.rows()) == list(prompts.rows())


def test_a_file_that_changed_meanwhile_is_noticed(written):
    path = written({"prompt": "a"}, {"prompt": "b"})
    prompts = open_prompts(path)
    path.write_text('{"prompt": "a"}\n{"prompt": "c"}\n')
    with pytest.raises(SpecvizError, match=r"prompts\.jsonl has changed"):
        list(prompts.rows())


def test_names_of_fields_that_nothing_reads_are_few_and_short():
    prompts = from_values(
        [{"prompt": "x", **{f"{'long ' * 100}{place} {row}": 1 for place in range(20)}} for row in range(20)]
    )
    assert len(prompts.ignored) == 1  # cut to 80 characters, they are one
    prompts = from_values([{"prompt": "x", **{f"{place} {row}": 1 for place in range(20)}} for row in range(20)])
    assert len(prompts.ignored) == 50


def test_memory_does_not_grow_with_the_texts(written):
    def peak(num_rows):
        path = written(*[{"prompt": "word " * 2_000} for _ in range(num_rows)], name=f"{num_rows}.jsonl")
        tracemalloc.start()
        assert sum(1 for _ in open_prompts(path).rows()) == num_rows
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(400) - peak(100) < 300 * 400  # bytes: the ids and no texts of 10,000 characters


# ---- data frames ----------------------------------------------------------------------------------------------------


def test_a_data_frame_is_its_rows_and_a_cell_without_a_value_is_none():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "prompt": ["a", "b", "c"],
            "id": [7, None, 9],
            "tags": pandas.Series([["x", "y"], None, ["z"]], dtype=object),
            "completion": pandas.Series([None, [3, 1], None], dtype=object),
            "size": pandas.array([1, None, 3], dtype="Int64"),
        }
    )
    got = from_values(frame)
    assert (got.num_rows, got.num_refused, got.ignored) == (3, 0, ("size",))
    rows = list(got.rows())
    assert [(row.prompt, row.id, row.tags) for row in rows] == [
        ("a", "7", ("x", "y")),
        ("b", "1", ()),
        ("c", "9", ("z",)),
    ]
    assert [row.completion for row in rows] == [None, (3, 1), None]


def test_times_of_a_data_frame_are_texts():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"prompt": ["a", "b"], "id": pandas.to_datetime(["2020-01-31", None])})
    assert [row.id for row in from_values(frame).rows()] == ["2020-01-31T00:00:00", "1"]


def test_records_of_a_frame_with_nan_and_numpy_values_are_rows():
    pandas, numpy = pytest.importorskip("pandas"), pytest.importorskip("numpy")
    frame = pandas.DataFrame({"prompt": ["a", "b"], "tags": ["x", None], "id": [1.0, float("nan")]})
    assert [row.id for row in from_values(frame.to_dict("records")).rows()] == ["1", "1 (2)"]
    row = only({"prompt": "a", "id": numpy.int64(4), "completion": numpy.array([1, 2])})
    assert (row.id, row.completion) == ("4", (1, 2))


def test_a_frame_that_gives_its_rows_by_itself_is_asked_for_them():
    class Frame(list):
        columns = ("prompt",)

        def to_dicts(self):
            return [{"prompt": "a"}, {"prompt": "b"}]

    assert [row.prompt for row in from_values(Frame()).rows()] == ["a", "b"]


@pytest.mark.parametrize("value", [0.5, float("inf"), 1e300, True])
def test_an_id_that_is_no_whole_number_is_refused(value):
    assert refused({"prompt": "x", "id": value})


@pytest.mark.parametrize("values", ["a", {"prompt": "a"}, 5, None])
def test_what_is_no_list_is_refused(values):
    with pytest.raises(ValueError, match="list of texts or mappings"):
        from_values(values)


def test_the_home_of_nobody_is_refused_in_words():
    with pytest.raises(SpecvizError, match=r"prompts\.jsonl .* home folder"):
        open_prompts("~nobody-is-called-so/prompts.jsonl")
