"""A job's folder: parts come back as they were, half a part is none, another job is refused, files hold every row."""

import csv
import gzip
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest

from specviz.alignment import job_folder as parts
from specviz.alignment import outputs
from specviz.alignment.aggregate import Aggregator
from specviz.alignment.job_folder import OUTPUTS, OWN_NAMES, Job, JobFolder, Preparation, lock_folder
from specviz.alignment.summary import Finding
from specviz.alignment.tables.columns import COLUMNS, PROMPTS, SLICES, TOKENS
from specviz.alignment.tables.shard_tables import build_tables
from specviz.alignment.types import RefusedRow, ShardTables
from specviz.errors import SpecvizError
from tests.helpers import analysed_texts

DRAFTS = ("one", "two")
FORMULA = '=HYPERLINK("https://example.org","open"),\n"+1"'


def job(**changes):
    values = {
        "request": analysed_texts.request(),
        "models": (("big", "1a"), ("one", "2b"), ("two", "3c")),
        "prompts": "4d",
    }
    return Job(**{**values, "num_rows": 7, "shard_size": 3, "costs": "none", "specviz": "0.1.0", **changes})


@cache
def tables(first=0, count=3):
    texts = [analysed_texts.text(number, drafts=DRAFTS, size=12, tags=("a",)) for number in range(first, first + count)]
    shard = analysed_texts.shard([text.written.row for text in texts], DRAFTS)
    return build_tables(texts, shard, (RefusedRow(9, "is too long"),), ("a warning",))


def same(one, other):
    """Whether two shards' tables hold the same cells, numbers at the width of their columns."""
    for name in parts.PART_TABLES:
        for column, values in getattr(one, name).items():
            kind = COLUMNS[name][column].type.replace("list<float>", "float32").replace("list<int32>", "int32")
            got = getattr(other, name)[column]
            assert len(got) == len(values)
            if not len(values):
                continue
            if kind == "string":
                assert list(values) == list(got)
            else:
                np.testing.assert_array_equal(np.asarray([*values], dtype=kind), np.asarray([*got], dtype=kind))
    assert {name: sums.tolist() for name, sums in one.confidence.items()} == {
        name: sums.tolist() for name, sums in other.confidence.items()
    }
    return (one.refused, one.warnings) == (other.refused, other.warnings)


@pytest.fixture
def folder(tmp_path):
    return JobFolder(tmp_path / "job", job())


def test_a_part_comes_back_as_it_was(folder):
    made = tables()
    assert not folder.has(2)
    folder.write(2, made)
    assert folder.has(2)
    assert same(made, folder.read(2))


def test_a_part_without_a_usable_row_comes_back(folder):
    empty = build_tables([], analysed_texts.shard([], DRAFTS), (RefusedRow(1, "nothing"),))
    folder.write(0, empty)
    assert same(empty, folder.read(0))


def test_texts_of_any_kind_come_back(folder):
    texts = ["\x00", "�", FORMULA, "𝕏 é", "", " "]
    made = tables(count=1)
    size = len(made.tokens["text"])
    odd = replace(made, tokens=made.tokens.assign(text=(texts * size)[:size]))
    folder.write(0, odd)
    assert folder.read(0).tokens["text"].tolist() == (texts * size)[:size]


def test_columns_that_are_not_those_of_the_table_are_refused(folder):
    made = tables()
    with pytest.raises(ValueError, match="columns must be prompt, place"):
        folder.write(0, replace(made, tokens=made.tokens[["prompt"]]))
    assert not folder.has(0)


def test_half_a_part_is_none(folder, monkeypatch):
    monkeypatch.setattr(parts.os, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(SpecvizError, match=r"job .*\(No space left on device\); finished work"):
        folder.write(0, tables())
    monkeypatch.undo()
    assert not folder.has(0)
    again = JobFolder(folder.path, job())
    assert not (folder.path / "parts").exists()
    again.write(0, tables())
    assert again.has(0)


def test_a_damaged_part_is_named(folder):
    folder.write(1, tables())
    (folder.path / "parts" / "part-00001" / "tokens.parquet").write_bytes(b"PAR1")
    with pytest.raises(SpecvizError, match="job/parts/part-00001 is damaged"):
        folder.read(1)


def test_a_job_from_before_the_floors_goes_on(folder, tmp_path):
    known = Preparation((), (), (), created="2026-01-01", costs={})
    folder.save_preparation(known)
    place = folder.path / "job.json"
    values = json.loads(place.read_text())
    for name in ("floors", "agreements"):
        del values["known"][name]
    del values["asks"]["reference"]
    place.write_text(json.dumps(values))
    assert JobFolder(folder.path, folder.job).preparation == known


def test_the_same_job_goes_on(folder):
    folder.write(1, tables())
    known = Preparation(
        (Finding("one", "layer", "bad", {"layer": 2.0}),),
        ("careful",),
        ("a layer",),
        created="2026-01-01",
        costs={"one": {"x": 1.5}},
    )
    folder.save_preparation(known)
    again = JobFolder(folder.path, job())
    assert (again.preparation, again.is_finished) == (known, False)
    assert [again.has(number) for number in range(3)] == [False, True, False]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompts": "other"}, 'prompts was "4d", is "other"'),
        ({"num_rows": 8}, "num_rows was 7, is 8"),
        ({"shard_size": 4}, "shard_size was 3, is 4"),
        ({"costs": "measured"}, 'costs was "none", is "measured"'),
        ({"specviz": "0.2.0"}, 'specviz was "0.1.0", is "0.2.0"'),
        ({"models": (("big", "1a"), ("one", "2b"), ("two", "changed"))}, "models was"),
        ({"models": (("big", "1a"), ("two", "3c"), ("one", "2b"))}, "drafts was"),
        ({"models": (("big", "1a"), ("big", "1a"), ("one", "2b"), ("two", "3c"))}, "drafts was"),
        ({"request": analysed_texts.request(seed=1)}, "seed was 0, is 1"),
        ({"request": analysed_texts.request(temperature=0.5)}, "temperature was 1.0, is 0.5"),
        ({"request": analysed_texts.request(top_k=3)}, "top_k was 0, is 3"),
        ({"request": analysed_texts.request(top_p=0.5)}, "top_p was 1.0, is 0.5"),
        ({"request": analysed_texts.request(min_p=0.5)}, "min_p was 0.0, is 0.5"),
        ({"request": analysed_texts.request(max_new_tokens=9)}, "max_new_tokens was 40, is 9"),
        ({"request": analysed_texts.request(chat=True)}, "chat was false, is true"),
        ({"request": analysed_texts.request(chat_options={"x": True})}, 'chat_options was {}, is {"x": true}'),
        ({"request": analysed_texts.request(num_speculative_tokens=5)}, "k was 4, is 5"),
    ],
)
def test_the_folder_of_another_job_is_refused_with_what_differs(folder, change, words):
    with pytest.raises(SpecvizError) as raised:
        JobFolder(folder.path, job(**change))
    assert "holds another job" in str(raised.value)
    assert words in str(raised.value)


@pytest.mark.parametrize(("name", "value"), [("chat_options", {}), ("min_p", 0.0)])
def test_a_job_that_was_begun_before_there_was_a_setting_goes_on(folder, name, value):
    file = folder.path / "job.json"
    saved = json.loads(file.read_text("utf-8"))
    assert saved["asks"].pop(name) == value
    file.write_text(json.dumps(saved), "utf-8")
    assert JobFolder(folder.path, job()).path == folder.path


def test_overwriting_removes_what_a_job_wrote_and_nothing_else(folder):
    folder.write(0, tables())
    (folder.path / "notes.txt").write_text("mine")
    (folder.path / "report.html").write_text("old")
    again = JobFolder(folder.path, job(num_rows=8), overwrite=True)
    assert not again.has(0)
    assert sorted(path.name for path in folder.path.iterdir()) == ["job.json", "notes.txt"]
    assert JobFolder(folder.path, job(num_rows=8)).job.num_rows == 8


def test_overwriting_keeps_what_else_lies_among_the_parts(folder):
    folder.write(0, tables())
    theirs = ("part-of-mine", ".hidden", "notes.txt", ".part-x")
    for name in theirs:
        (folder.path / "parts" / name).write_text("mine")
    again = JobFolder(folder.path, job(num_rows=8), overwrite=True)
    assert not again.has(0)
    assert sorted(path.name for path in (folder.path / "parts").iterdir()) == sorted(theirs)
    again.write(0, tables())
    again.finish(keep_parts=False)
    assert sorted(path.name for path in (folder.path / "parts").iterdir()) == sorted(theirs)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", [name for name in OWN_NAMES if name != "job.json"])
def test_a_folder_with_a_file_of_somebody_else_is_refused_and_left_alone(tmp_path, name, overwrite):
    (tmp_path / name).write_text("mine")
    with pytest.raises(SpecvizError, match=f"holds {name}, ") as raised:
        JobFolder(tmp_path, job(), overwrite=overwrite)
    assert not (overwrite and "overwrite" in str(raised.value))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


DAMAGED = (
    *("{", "[]", "7", '{"name": "cron"}', '{"asks": {"a": 1}}', '{"asks": "format"}', '{"asks": 3}'),
    '{"asks": {}, "known": {"a": 1}, "finished": false}',
)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("text", DAMAGED)
def test_a_job_file_of_others_or_damaged_is_refused_and_nothing_beside_it_touched(tmp_path, text, overwrite):
    (tmp_path / "job.json").write_text(text)
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(SpecvizError, match=r"job\.json is damaged"):
        JobFolder(tmp_path, job(), overwrite=overwrite)
    assert (tmp_path / "report.html").read_text() == "mine"
    assert (tmp_path / "job.json").read_text() == text


def finished(folder, *, keep_parts=False, without=()):
    """The folder as a job leaves it, but for these outputs."""
    for number in range(folder.job.num_parts):
        folder.write(number, tables(3 * number))
    for name in OUTPUTS:
        (folder.path / name).write_text("whole")
    folder.finish(keep_parts=keep_parts)
    for name in without:
        (folder.path / name).unlink()


def test_a_finished_job_keeps_no_parts_unless_asked(folder):
    finished(folder, keep_parts=True)
    assert JobFolder(folder.path, job()).is_finished
    assert folder.has(0)
    folder.finish(keep_parts=False)
    assert not (folder.path / "parts").exists()
    assert JobFolder(folder.path, job()).is_finished


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_finished_job_that_lacks_something_is_put_together_again_from_its_parts_or_refused(folder, name):
    finished(folder, keep_parts=True, without=[name])
    assert not JobFolder(folder.path, job()).is_finished
    shutil.rmtree(folder.path / "parts")
    with pytest.raises(SpecvizError, match=f"job lacks {name} .*overwrite"):
        JobFolder(folder.path, job())
    assert not JobFolder(folder.path, job(), overwrite=True).is_finished


def test_what_is_done_is_said_to_be_kept_only_where_something_is(folder, tmp_path):
    for place, words in ((folder.path, "(full); finished work is saved: run"), (tmp_path / "new", "(full)")):
        with pytest.raises(SpecvizError) as raised, parts.explain_disk_errors(place):
            raise OSError(28, "full")
        assert words in str(raised.value)
        assert str(raised.value).endswith(")") == (place != folder.path)


def test_a_folder_that_is_called_by_a_dot_is_named(folder, monkeypatch):
    monkeypatch.chdir(folder.path)
    for place in (Path(), Path("..") / "job"):
        with pytest.raises(SpecvizError, match=r"^job holds another job"):
            JobFolder(place, job(num_rows=8))


# one run at a time


def test_a_second_run_in_the_same_folder_is_refused_until_the_first_ends(tmp_path):
    with lock_folder(tmp_path / "job"):
        words = rf"another run works in job \(process {os.getpid()}\)"
        with pytest.raises(SpecvizError, match=words), lock_folder(tmp_path / "job"):
            pass
        with lock_folder(tmp_path / "other"):
            pass
        assert (tmp_path / "job" / "job.lock").exists()
    assert list((tmp_path / "job").iterdir()) == []
    with lock_folder(tmp_path / "job"):
        pass


WAITING = """
import sys, time
from pathlib import Path
from specviz.alignment.job_folder import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_a_process_that_was_killed_is_taken_over(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    started = [sys.executable, "-c", WAITING, str(tmp_path)]
    with subprocess.Popen(started, env=environment, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "held\n"
            with pytest.raises(SpecvizError, match=rf"process {other.pid}\b"), lock_folder(tmp_path):
                pass
        finally:
            other.kill()
    assert (tmp_path / "job.lock").exists()
    with lock_folder(tmp_path):
        assert (tmp_path / "job.lock").read_text() == f"{os.getpid()}\n"


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecvizError, match=r"job cannot be written \(Not a directory\)"):
        JobFolder(tmp_path / "file" / "job", job())


# what a job leaves behind


def read_csv(path):
    packed = gzip.open if path.suffix == ".gz" else open
    with packed(path, "rt", encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_tables_hold_the_rows_of_all_parts_in_order(tmp_path):
    made = [tables(0), tables(3, 1), tables(4)]
    assert [id(part) for part in outputs.write_tables(tmp_path, made)] == [id(part) for part in made]
    for name, columns in (("tokens", TOKENS), ("prompts", PROMPTS)):
        rows = parquet.read_table(tmp_path / f"{name}.parquet")
        assert rows.column_names == [*columns]
        assert rows["prompt"].to_pylist() == [int(each) for part in made for each in getattr(part, name)["prompt"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("prompts.csv", "prompts.parquet", "tokens.csv.gz", "tokens.parquet")
    ]


def test_no_spreadsheet_runs_a_cell_of_csv_and_every_text_stands_there_exactly_too(tmp_path):
    made = tables(count=1)
    evil, harmless = [FORMULA, "-1", "+1", "@x", "\ty", "\ry"], ["-", "b", "", 'a "b",\n']
    size = len(made.tokens["text"])
    texts = [*evil, *harmless] + ["b"] * (size - len(evil) - len(harmless))
    labels = dict.fromkeys(("text", "most_likely_text", "draft_most_likely_text"), texts)
    ids = {"id": [FORMULA] * 2, "tags": ["@x"] * 2, "prompt_text": [FORMULA, "\0"]}
    odd = replace(made, tokens=made.tokens.assign(**labels), prompts=made.prompts.assign(**ids))
    list(outputs.write_tables(tmp_path, [odd]))
    rows, exact = read_csv(tmp_path / "tokens.csv.gz"), parquet.read_table(tmp_path / "tokens.parquet").to_pylist()
    for name in labels:
        assert [row[name] for row in rows] == [f"'{text}" if text in evil else text for text in texts]
        assert [row[name] for row in exact] == texts
    assert [json.loads(row["text_json"]) for row in rows] == texts
    assert [np.float32(row["overlap"]) for row in rows] == [np.float32(row["overlap"]) for row in exact]
    first, second = read_csv(tmp_path / "prompts.csv")
    assert (first["id"], first["tags"], first["prompt_text"]) == (f"'{FORMULA}", "'@x", f"'{FORMULA}")
    assert [json.loads(row["prompt_text_json"]) for row in (first, second)] == ids["prompt_text"]


def test_tables_that_fail_leave_nothing(tmp_path):
    def failing():
        yield tables()
        raise SpecvizError("damaged")

    with pytest.raises(SpecvizError, match="damaged"):
        list(outputs.write_tables(tmp_path, failing()))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def summary():
    aggregator = Aggregator(4, DRAFTS)
    for part in (tables(), tables(3, 4)):
        aggregator.add(part)
    found = (Finding("two", "layer", "layer 3 does harm", {"layer": 3.0}),)
    return aggregator.summary(
        analysed_texts.facts(analysed_texts.request(), "2026-01-01T00:00:00Z", specviz="0.1.0", findings=found)
    )


def plain(value):
    """JSON values, nan as null."""
    return json.loads(json.dumps(value), parse_constant=lambda name: None)


def test_a_summary_comes_back_whole(tmp_path, summary):
    outputs.write_summary(tmp_path, summary)
    back = outputs.read_summary(tmp_path / "summary.json")
    assert plain(back.to_dict()) == plain(summary.to_dict())
    assert type(back.drafts[1].findings[0]) is Finding
    assert isinstance(back.drafts[0].alpha_interval, tuple)
    assert (back.slices, back.comparisons) == (summary.slices, summary.comparisons)


def test_what_is_not_known_is_null_in_the_summary(tmp_path, summary):
    outputs.write_summary(tmp_path, replace(summary, drafts=(replace(summary.drafts[0], mean_acceptance=math.nan),)))
    assert json.loads((tmp_path / "summary.json").read_text())["drafts"][0]["mean_acceptance"] is None
    assert outputs.read_summary(tmp_path / "summary.json").drafts[0].mean_acceptance is None


def test_slices_are_a_table_of_their_own(tmp_path, summary):
    outputs.write_summary(tmp_path, summary)
    rows = parquet.read_table(tmp_path / "slices.parquet").to_pylist()
    assert [*rows[0]] == [*SLICES]
    assert [(row["draft"], row["value"], row["alpha"], tuple(row["alpha_interval"])) for row in rows] == [
        (each.draft, each.value, each.alpha, each.alpha_interval) for each in summary.slices
    ]
    low = [float(row["alpha_interval_low"]) for row in read_csv(tmp_path / "slices.csv")]
    assert low == pytest.approx([each.alpha_interval[0] for each in summary.slices])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[1]", "of version 1 .got None."),
        ("{}", "of version 1 .got None."),
        ('{"version": 2}', "of version 1 .got 2."),
        ('{"version": 1}', "is not a complete summary"),
    ],
)
def test_a_file_that_is_no_summary_is_refused(tmp_path, text, words):
    (tmp_path / "old.json").write_text(text)
    with pytest.raises(SpecvizError, match=words):
        outputs.read_summary(tmp_path / "old.json")


def test_a_summary_that_was_made_before_there_was_min_p_had_none(tmp_path, summary):
    outputs.write_summary(tmp_path, summary)
    values = json.loads((tmp_path / "summary.json").read_text())
    del values["sampling"]["min_p"]
    (tmp_path / "summary.json").write_text(json.dumps(values))
    assert outputs.read_summary(tmp_path / "summary.json") == summary


def test_values_of_another_type_are_refused(tmp_path, summary):
    outputs.write_summary(tmp_path, summary)
    values = json.loads((tmp_path / "summary.json").read_text())
    for name, wrong in (
        ("k", "4"),
        ("drafts", 3),
        ("refused", [[1, 2, 3]]),
        ("target", None),
        ("sampling", ["a"]),
        ("by_prompt", {"a": {"one": True}}),
    ):
        (tmp_path / "wrong.json").write_text(json.dumps({**values, name: wrong}))
        with pytest.raises(SpecvizError, match="is not a complete summary"):
            outputs.read_summary(tmp_path / "wrong.json")


def test_shard_tables_have_three_tables():
    assert set(parts.PART_TABLES) <= set(ShardTables.__dataclass_fields__)
