"""Laws of bad trace files: every fault is one clear error with its line, and the JSON Schema refuses them as well."""

import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from specviz.trace import Trace, TraceError, file, read_trace
from specviz.trace.schema import schema_text
from tests.helpers import traces
from tests.helpers.traces import as_bytes, events_of, lines_of, read_events

SCHEMA_PATH = Path(__file__).parents[2] / "assets" / "trace.schema.json"
SCHEMA = json.loads(SCHEMA_PATH.read_text("utf-8"))
every_trace = pytest.mark.parametrize("make", traces.ALL.values(), ids=traces.ALL.keys())

# ---------------------------------------------------------------- hostile files

NAN, HUGE = float("nan"), 10**400


def changed(*path: object, to: object) -> list[dict]:
    """The events of a chain trace with one value replaced, or removed if `to` is Ellipsis."""
    events = events_of(traces.chain())
    holder = events
    for key in path[:-1]:
        holder = holder[key]
    if to is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = to
    return events


STEP = 2  # the first step's event
FIELD_FAULTS = {
    "probability above one": ((STEP, "draft", 0, "p"), 1.5),
    "negative probability": ((STEP, "draft", 1, "q"), -0.1),
    "probability as text": ((STEP, "draft", 0, "u"), "0.5"),
    "boolean as number": ((STEP, "draft", 0, "accept_prob"), True),
    "boolean as id": ((STEP, "draft", 0, "id"), True),
    "no probability for a drafted token": ((STEP, "draft", 0, "p"), None),
    "negative id": ((STEP, "emitted", 0, "id"), -5),
    "id as number with a point": ((STEP, "emitted", 0, "id"), 1.5),
    "list as text": ((STEP, "emitted", 0, "text"), ["a"]),
    "huge number": ((STEP, "at_ms"), 1e300),
    "huge whole number": ((STEP, "context_length"), 2**60),
    "negative time": ((STEP, "timing", "total_ms"), -3),
    "status": ((STEP, "draft", 0, "status"), "Accepted"),
    "kind": ((STEP, "emitted", -1, "kind"), "ghost"),
    "no draft": ((STEP, "draft"), None),
    "draft as object": ((STEP, "draft"), {}),
    "node as text": ((STEP, "positions", 0, "node"), "0"),
    "short row": ((STEP, "positions", 0, "top", 0), [1, "a", 0.5]),
    "row item": ((STEP, "positions", 0, "top", 0), [1, "a", 0.5, 0.5, 0.5, 7, None]),
    "rest lacks a column": ((STEP, "positions", 0, "rest", "p_raw"), ...),
    "bytes": ((STEP, "draft", 0, "bytes"), "XY"),
    "bytes odd": ((STEP, "draft", 0, "bytes"), "abc"),
    "missing field": ((STEP, "settings", "k"), ...),
    "k as boolean": ((STEP, "settings", "k"), False),
    "lossless as number": ((STEP, "settings", "lossless"), 1),
    "params as list": ((STEP, "settings", "params"), []),
    "calls lacks the draft": ((STEP, "calls", "draft"), ...),
    "calls as boolean": ((STEP, "fed", "target"), True),
    "long text": ((STEP, "draft", 0, "text"), "x" * 20_000),
    "prompt as text": ((0, "prompt"), "hello"),
    "request as list": ((0, "request"), []),
    "version as boolean": ((0, "version"), True),
    "models": ((1, "target"), None),
    "reason": ((-1, "reason"), "bored"),
    "baseline lacks its speed": ((-1, "baseline", "tokens_per_s"), ...),
    "score": ((-2, "p", 3), 2.0),
    "event": ((STEP, "event"), 7),
}
MEANING_FAULTS = {
    "parent after the child": ((STEP, "draft", 1, "parent"), 3),
    "parent outside": ((STEP, "draft", 1, "parent"), 99),
    "own parent": ((STEP, "draft", 1, "parent"), 1),
    "parent below root": ((STEP, "draft", 0, "parent"), -2),
    "depth": ((STEP, "draft", 1, "depth"), 5),
    "two accepted beside each other": ((STEP, "draft", 0, "status"), "rejected"),
    "emitted node outside": ((STEP, "emitted", 0, "node"), 44),
    "emitted node not on the path": ((STEP, "emitted", 0, "node"), 1),
    "emitted token is not the drafted one": ((STEP, "emitted", 0, "id"), 999),
    "accepted without node": ((STEP, "emitted", 0, "node"), None),
    "bonus with node": ((STEP, "emitted", -1, "node"), 0),
    "bonus before the end": ((STEP, "emitted", 0, "kind"), "bonus"),
    "position outside": ((STEP, "positions", 0, "node"), 4),
    "child of another node": ((STEP, "positions", 0, "child"), 2),
    "child outside": ((STEP, "positions", 0, "child"), 77),
    "step out of order": ((STEP, "index"), 3),
    "too few scores": ((-2, "p"), [0.5]),
}


@pytest.mark.parametrize(("path", "to"), [*FIELD_FAULTS.values(), *MEANING_FAULTS.values()])
def test_a_bad_value_is_one_error_with_its_line(path: tuple, to: object) -> None:
    with pytest.raises(TraceError) as caught:
        read_events(changed(*path, to=to))
    num_lines = len(events_of(traces.chain()))
    assert caught.value.line == path[0] % num_lines + 1
    assert str(caught.value).startswith(f"line {caught.value.line}: ")
    assert len(str(caught.value)) < 300


def test_an_error_names_the_field_the_fault_and_what_was_got() -> None:
    with pytest.raises(TraceError) as caught:
        read_events(changed(4, "positions", 0, "top", 3, 5, to=1.5))
    assert str(caught.value) == "line 5: step.positions[0].top[3][5] must be a probability from 0 to 1 (got 1.5)"


@pytest.mark.parametrize("version", [0, 2, 99, "1", None])
def test_an_unknown_version_says_what_can_be_read(version: object) -> None:
    with pytest.raises(TraceError, match=r"version .*is not known: this specviz reads version 1"):
        read_events([{"event": "header", "version": version, "new": {}}])


def line_three(text: str) -> bytes:
    return as_bytes([*lines_of(traces.chain())[:2], text, *lines_of(traces.chain())[2:]])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"event":"note","x":NaN}', "NaN"),
        ('{"event":"note","x":-Infinity}', "Infinity"),
        ('{"event":"note","x":1e999}', "finite"),
        ('{"event":"note","x":-1e300}', "finite"),
        (f'{{"event":"note","x":{"9" * 5000}}}', "digits"),
        (f'{{"event":"note","x":{"[" * 20}{"]" * 20}}}', "nested"),
        (f'{{"event":"note","x":{"[" * 200_000}{"]" * 200_000}}}', "nested"),
        (f'{{"event":"note","x":[{",".join(["[]"] * 250_000)}]}}', "values"),
        ('{"event":"note","x":"\\ud800"}', "surrogate"),
        ('{"event":"note"', "not JSON"),
        ("[1, 2]", "JSON object"),
        ("7", "JSON object"),
        ('{"evnt":"note"}', "event"),
        ("hello", "not JSON"),
    ],
)
def test_a_hostile_line_is_one_error_with_its_line(line: str, words: str) -> None:
    with pytest.raises(TraceError, match=words) as caught:
        read_trace(line_three(line))
    assert caught.value.line == 3


def test_bytes_that_are_no_text_are_an_error() -> None:
    with pytest.raises(TraceError, match="UTF-8"):
        read_trace(as_bytes(lines_of(traces.chain())).replace(b" fox", b" f\xffx"))


def packed_zeros(megabytes: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([*(packer.compress(b" " * (1 << 20)) for _ in range(megabytes)), packer.flush()])


def test_a_gzip_bomb_stops_at_its_cap() -> None:
    with pytest.raises(TraceError, match=r"longer than 8 MB|unpacks to more than"):
        read_trace(packed_zeros(70))
    with pytest.raises(TraceError, match="unpacks to more than 1 MB"):
        read_trace(packed_zeros(2), max_unpacked=1 << 20)


def test_an_upload_above_its_cap_is_refused() -> None:
    with pytest.raises(TraceError, match="larger than 8 MB"):
        read_trace(as_bytes([*lines_of(traces.empty()), *['{"event":"x","y":"%s"}' % ("z" * 1_000_000)] * 9]))


def test_an_enormous_line_is_refused() -> None:
    with pytest.raises(TraceError, match="longer than 8 MB"):
        read_trace(b'{"event":"' + b"x" * (9 << 20), max_bytes=None)


def test_a_flood_of_lines_is_refused() -> None:
    with pytest.raises(TraceError, match="lines"):
        read_trace(b"\n" * 100_000)


def test_a_flood_of_empty_lists_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "MAX_HELD_BYTES", 1 << 20)
    with pytest.raises(TraceError, match="takes more than 1 MB of memory"):
        read_events([*events_of(traces.empty()), {"event": "note", "x": [[]] * 10_000}])


def note(*values: object) -> list[dict]:
    return [*events_of(traces.empty()), {"event": "note", "values": list(values)}]


HELD = {
    "a run": events_of(traces.chain()),
    "empty lists": note(*[[]] * 20_000),
    "objects": note(*({f"k{number}": 1.5} for number in range(20_000))),
    "texts": note(*(f"s{number}" for number in range(20_000))),
    "numbers": note(*(number + 0.5 for number in range(20_000))),
    "one wide character": note("x" * 500_000 + "\U0001f600"),
}


@pytest.mark.parametrize("events", HELD.values(), ids=HELD.keys())
def test_what_a_trace_is_said_to_take_is_at_least_what_it_takes_and_of_that_order(events: list[dict]) -> None:
    content = as_bytes([json.dumps(event) for event in events])
    tracemalloc.start()
    try:
        read = read_trace(content)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.95 * taken <= read.num_bytes <= 6 * taken


def test_a_small_file_of_empty_gzip_members_is_refused_at_once() -> None:
    empty = gzip.compress(b"", mtime=0)
    with pytest.raises(TraceError, match="gzip files in a row"):
        read_trace(empty * 10_000)


def test_damaged_gzip_is_an_error() -> None:
    file = bytearray(gzip.compress(as_bytes(lines_of(traces.chain()))))
    file[len(file) // 2] ^= 0xFF
    with pytest.raises(TraceError):
        read_trace(bytes(file))


def test_more_steps_than_allowed_are_refused() -> None:
    content = as_bytes(lines_of(traces.chain()))
    assert len(read_trace(content, max_steps=7).steps) == 7
    with pytest.raises(TraceError, match="more than 6 steps"):
        read_trace(content, max_steps=6)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_file_with_random_damage_loads_or_is_a_trace_error(seed: int) -> None:
    chance = random.Random(seed)
    content = bytearray(DAMAGED)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(content))
        content[place : place + chance.randint(0, 3)] = bytes(
            chance.choices(b'0123456789.,:"{}[]-eE\\unatrl\xff\x00 ', k=2)
        )
    try:
        loaded = read_trace(bytes(content))
    except TraceError:
        return
    read_trace(as_bytes(lines_of(loaded)))


DAMAGED = as_bytes(lines_of(traces.truncated()))


# ---------------------------------------------------------------- the schema says the same

VALIDATOR = Draft202012Validator(SCHEMA)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@every_trace
def test_the_schema_accepts_all_we_write(make: Callable[[], Trace]) -> None:
    for event in events_of(make()):
        VALIDATOR.validate(event)


@pytest.mark.parametrize(("path", "to"), FIELD_FAULTS.values(), ids=FIELD_FAULTS.keys())
def test_the_schema_refuses_bad_values_too(path: tuple, to: object) -> None:
    assert not VALIDATOR.is_valid(changed(*path, to=to)[path[0]])


def test_the_schema_is_the_one_that_the_records_declare() -> None:
    assert SCHEMA_PATH.read_text("utf-8") == schema_text(), "python -m specviz.trace.schema > assets/trace.schema.json"


@pytest.mark.parametrize(("path", "to"), [((STEP, "draft", 0, "p"), -1e-7), ((STEP, "draft", 0, "p"), 1 + 1e-7)])
def test_records_and_schema_allow_the_rounding_of_float32(path: tuple, to: object) -> None:
    events = changed(*path, to=to)
    assert VALIDATOR.is_valid(events[path[0]])
    assert read_events(events).steps[0].draft[0].p == to
