"""Laws of the trace and its file: what goes in comes out, cut files load, and hostile ones end in one clear error."""

import gzip
import io
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specviz.trace import (
    Footer,
    Trace,
    TraceError,
    TraceWriter,
    UnknownEvent,
    dump_event,
    event_dict,
    load_trace,
    parse_event,
    read_trace,
    round9,
)
from tests.helpers import traces
from tests.helpers.traces import as_bytes, events_of, lines_of, read_events

every_trace = pytest.mark.parametrize("make", traces.ALL.values(), ids=traces.ALL.keys())


# ---------------------------------------------------------------- round trips


@every_trace
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_saving_what_was_loaded_gives_the_same_bytes(make: Callable[[], Trace], suffix: str, tmp_path: Path) -> None:
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    make().save(first)
    load_trace(first).save(second)
    assert second.read_bytes() == first.read_bytes()


@every_trace
def test_a_loaded_trace_equals_the_one_that_was_saved(make: Callable[[], Trace]) -> None:
    made = make()
    assert read_trace(as_bytes(lines_of(made))) == made


def test_gzip_bytes_do_not_depend_on_time_or_name(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "other.jsonl.gz"):
        traces.chain().save(tmp_path / name)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "other.jsonl.gz").read_bytes()
    assert (tmp_path / "a.jsonl.gz").read_bytes()[4:8] == b"\0\0\0\0"


def test_saving_leaves_no_other_file(tmp_path: Path) -> None:
    traces.chain().save(tmp_path / "runs" / "a.jsonl")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a.jsonl"]


def test_a_step_without_min_p_had_none_and_one_with_it_says_so() -> None:
    *_, before, after, _ = traces.Builder().chain().chain(changed={"min_p": 0.1, "draft_min_p": 0.0}).finish().events()
    assert "min_p" not in json.dumps(event_dict(before))
    assert event_dict(after)["settings"]["min_p"] == 0.1
    assert event_dict(after)["settings"]["draft_min_p"] == 0.0
    assert [parse_event(event_dict(each)) for each in (before, after)] == [before, after]
    assert before.settings.distribution != after.settings.distribution


def test_each_event_is_one_line() -> None:
    assert all("\n" not in line and "\r" not in line for line in lines_of(traces.hostile()))


def test_the_texts_of_emitted_tokens_join_to_the_generated_text() -> None:
    made = traces.halves()
    raw = b"".join(traces.HALVES[token.id] for token in made.tokens)
    complete = raw.decode("utf-8", "replace")
    assert complete.startswith(made.text)
    assert len(complete) - len(made.text) <= 1  # at most one character still waits for its other half


def test_records_survive_pickling() -> None:
    made = traces.tree()
    assert pickle.loads(pickle.dumps(list(made.events()))) == list(made.events())


def test_errors_survive_pickling() -> None:
    error = TraceError("must be a number", "step.p", 3)
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "line 3: step.p must be a number"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e15, 1e15) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(extra=st.dictionaries(st.text(max_size=8).map("x_".__add__), JSON, max_size=3), unknown=JSON)
def test_unknown_fields_and_events_are_kept_in_order(extra: dict, unknown: object) -> None:
    events = events_of(traces.truncated())
    for holder in (
        events[0],
        events[2],
        events[2]["draft"][0],
        events[2]["positions"][0],
        events[2]["timing"],
        events[-1],
    ):
        holder.update(extra)
    events.insert(2, {"event": "note", "value": unknown})
    events.insert(4, {"value": 1, "event": "later", "a": [unknown]})
    assert [json.loads(line) for line in lines_of(read_events(events))] == events


def test_unknown_events_are_listed() -> None:
    made = traces.chain()
    made.append(parse_event({"event": "note", "text": "hello"}))
    assert [event.data["text"] for event in made.events() if isinstance(event, UnknownEvent)] == ["hello"]


@settings(max_examples=100, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_round9_is_stable_and_close(value: float) -> None:
    rounded = round9(value)
    assert round9(rounded) == rounded
    assert abs(rounded - value) <= 1e-8 * abs(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_number_that_is_not_finite_is_ever_written(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        round9(value)
    with pytest.raises(ValueError, match="JSON"):
        dump_event(replace(traces.chain().steps[0], at_ms=value))


def test_round9_keeps_none_and_drops_the_sign_of_zero() -> None:
    assert round9(None) is None
    assert str(round9(-0.0)) == "0.0"


# ---------------------------------------------------------------- cut files


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_file_cut_anywhere_loads_up_to_its_last_whole_line(packed: bool) -> None:
    made = traces.tree()
    content = as_bytes(lines_of(made))
    file = gzip.compress(content) if packed else content
    whole = list(made.events())
    for cut in range(len(file) // 2, len(file), max(1, len(file) // 60)):
        loaded = list(read_trace(file[:cut]).events())
        assert loaded == whole[: len(loaded)]
        if not packed:
            assert len(loaded) in (content[:cut].count(b"\n"), content[:cut].count(b"\n") + 1)


def test_a_last_line_without_its_newline_counts() -> None:
    content = as_bytes(lines_of(traces.chain()))
    assert read_trace(content[:-1]) == traces.chain()


def test_a_trace_without_footer_loads() -> None:
    assert read_trace(as_bytes(lines_of(traces.chain())[:-2])).footer is None


def test_a_file_cut_inside_its_header_is_an_error() -> None:
    with pytest.raises(TraceError, match="no whole line"):
        read_trace(as_bytes(lines_of(traces.chain()))[:40])


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_what_a_writer_has_written_loads_before_it_is_closed(suffix: str, tmp_path: Path) -> None:
    path, made, grown = tmp_path / f"run{suffix}", traces.chain(), Trace()
    with TraceWriter(grown, path) as writer:
        for event in made.events():
            grown.append(event)
            writer.catch_up()
            assert path.exists() == bool(grown.steps)
            assert not grown.steps or load_trace(path) == grown
    assert load_trace(path) == made


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_writer_of_a_trace_without_a_step_leaves_what_was_there(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"run{suffix}"
    traces.tree().save(path)
    header, models, *_ = traces.chain().events()
    with TraceWriter(Trace([header, models, Footer("error", "no memory", None)]), path):
        pass
    assert load_trace(path) == traces.tree()
    assert [*tmp_path.iterdir()] == [path]


def test_several_gzip_members_are_one_file() -> None:
    first, second = as_bytes(lines_of(traces.chain())[:5]), as_bytes(lines_of(traces.chain())[5:])
    assert read_trace(gzip.compress(first) + gzip.compress(second)) == traces.chain()


def test_blank_lines_and_windows_line_ends_do_no_harm() -> None:
    content = as_bytes(lines_of(traces.chain())).replace(b"\n", b"\r\n\r\n")
    assert read_trace(content) == traces.chain()


# ---------------------------------------------------------------- order of events


def test_events_out_of_order_are_refused() -> None:
    header, models, step, *_, scores, footer = traces.chain().events()
    for events in (
        [models],
        [header, header],
        [header, step],
        [header, footer, footer],
        [header, models, footer, step],
    ):
        with pytest.raises(TraceError):
            Trace(events)
    with pytest.raises(TraceError, match="one value per emitted token"):
        Trace([header, models, step, scores])


def test_a_refused_event_changes_nothing() -> None:
    made = traces.chain()
    before = list(made.events())
    with pytest.raises(TraceError):
        made.append(before[2])
    assert list(made.events()) == before
    assert len(made.steps) == 7


def test_scores_may_follow_the_footer() -> None:
    *events, scores, footer = traces.chain().events()
    assert Trace([*events, footer, scores]).scores == [scores]


def test_a_missing_file_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be opened"):
        load_trace(tmp_path / "none.jsonl")


def test_a_text_stream_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="binary"):
        read_trace(io.StringIO("{}"))
