"""SGLang's record of DSpark's decisions as a trace: what it holds, what stays unknown, and what is refused."""

import copy
import gzip
import html
import json

import pytest
from jsonschema import Draft202012Validator

from specviz.analysis.every_k import what_if
from specviz.cli.main import main
from specviz.errors import SpecvizError
from specviz.trace import TraceError, load_trace, read_trace
from specviz.trace import export as exports
from specviz.trace.engines.dspark import load_run, read_run
from specviz.trace.first_difference import are_of_one_prompt
from specviz.trace.metrics import metrics
from specviz.trace.schema import schema_text
from specviz.ui.view import view_sent
from specviz.views.explore.feed import Feed
from specviz.views.explore.library import entry
from specviz.views.explore.run_file import stage_page
from tests.helpers import dspark_dumps, traces
from tests.helpers.dspark_dumps import ROUNDS, A, B

FORMS = {
    "log": dspark_dumps.log,
    "answer": dspark_dumps.server_info,
    "record alone": lambda rounds=ROUNDS: json.dumps(dspark_dumps.info_record(rounds)).encode(),
}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def shown(trace):
    return list(Feed.from_trace(trace, "run").since(0).steps)


# ---- what is in the record -------------------------------------------------------------------------------------------


@each_form
def test_every_form_gives_the_same_trace(form):
    trace = read_run(form())
    assert trace == read_run(gzip.compress(form())) == traces.foreign()
    assert trace.header.environment["request"] == A
    assert [step.context_length for step in trace.steps] == [101, 103, 105]
    assert [[token.id for token in step.draft] for step in trace.steps] == [[11, 12, 13], [14, 15, 16], [17, 18, 19]]
    statuses = [[token.status for token in step.draft] for step in trace.steps]
    assert statuses == [
        ["accepted", "ignored", "ignored"],
        ["accepted", "rejected", "ignored"],
        ["ignored", "ignored", "ignored"],
    ]
    assert [(token.id, token.kind) for token in trace.tokens] == [
        (11, "accepted"), (7, "bonus"), (14, "accepted"), (9, "resampled"), (10, "plain"),
    ]  # fmt: skip
    assert trace.footer is None
    assert trace.text == " #11 #7 #14 #9 #10"


@each_form
def test_another_request_is_asked_for_by_its_id(form):
    (step,) = read_run(form(), B).steps
    assert [token.kind for token in step.emitted] == ["accepted", "accepted", "accepted", "bonus"]
    assert step.evidence == {"checked": 3}


def test_counts_follow_from_the_record():
    numbers = metrics(traces.foreign())
    assert numbers["tokens_per_target_call"] == pytest.approx(5 / 3)
    assert (numbers["drafted"], numbers["accepted"], numbers["rejected"], numbers["ignored"]) == (9, 2, 1, 6)


def test_a_tokenizer_names_the_tokens():
    trace = read_run(dspark_dumps.log(), spell=lambda token: (chr(96 + token), None))
    assert trace.text == "kgnij"
    assert read_run(dspark_dumps.log(), spell=lambda token: ("", None)).text == traces.foreign().text


def test_what_other_versions_add_is_left_out():
    newer = [[each | {"anchor_token": 5, "prefill_tail_len": 0} for each in reqs] for reqs in ROUNDS]
    assert read_run(dspark_dumps.log(newer)) == traces.foreign()
    assert read_run(dspark_dumps.log() + dspark_dumps.line(ROUNDS[0])[:90].encode()) == traces.foreign()  # cut off


# ---- what is not -----------------------------------------------------------------------------------------------------


def test_nothing_unknown_has_a_value():
    trace = traces.foreign()
    for step in trace.steps:
        used = step.settings
        assert {used.temperature, used.top_k, used.top_p, used.min_p, used.rule, used.lossless} == {None}
        assert all({token.p, token.q, token.p_judged, token.accept_prob, token.u} == {None} for token in step.draft)
        assert all({token.p, token.q} == {None} for token in step.emitted)
        assert step.positions == ()
    reasons = metrics(trace)["reasons"]
    unknown = {"tokens_per_s", "times_ms", "speedup", "alpha", "alpha_judged", "lossy_steps"}
    assert unknown <= reasons.keys()


def test_the_page_says_no_more_than_the_record():
    message = Feed.from_trace(traces.foreign(), "run").since(0)
    text = "".join(message.steps[0].sentence)
    assert "no probabilities and no sampling" in text
    assert dict(message.steps[0].context) == {
        "target": "not recorded",
        "method": "dspark",
        "sampling": "sampling not recorded",
    }
    for step in message.steps:
        assert step.drawless
        assert {look.view for look in step.looks.values()} == {"words"}
        assert all(cell.fill is cell.tick is None or not cell.fill for cell in step.cells)
    times = message.steps[0].points["time_by_step"]["y"]
    assert times == [[None]] * 5
    said = json.dumps([text, message.numbers, exports.steps_csv(traces.foreign())]).lower()
    assert "lossless" not in said.replace("rule,lossless,target", "")
    assert "exact" not in said


def test_a_token_tells_what_became_of_it_and_how_sure_the_draft_was():
    _, step, last = shown(traces.foreign())
    words = {ref: "".join([*look.title, " ", *(look.note or [])]) for ref, look in step.looks.items()}
    assert words["0"].startswith("#14 was accepted. No probabilities")
    assert words["1"].startswith("#15 was rejected, and the target wrote #9.")
    assert "if all before it are: 25\xa0%" in words["1"]
    assert "came after #15, which was rejected: not judged" in words["2"]
    assert words["last"] == "After #15 was rejected, the target wrote #9. "
    assert "".join(last.looks["0"].title) == "The draft wrote #17. The target was to check 0 of this draft: not judged."


def test_a_file_of_it_is_a_trace_that_the_schema_takes(tmp_path):
    trace = traces.foreign()
    trace.save(tmp_path / "run.jsonl.gz")
    assert load_trace(tmp_path / "run.jsonl.gz") == trace
    validator = Draft202012Validator(json.loads(schema_text()))
    for event in traces.events_of(trace):
        validator.validate(event)
    own = traces.events_of(traces.chain())
    number = next(number for number, event in enumerate(own) if event["event"] == "step")
    own[number]["draft"][0]["p"] = None
    assert not validator.is_valid(own[number])
    with pytest.raises(TraceError, match="must be a probability"):
        read_trace(traces.as_bytes([json.dumps(event) for event in own]))


def test_tables_leave_out_what_is_not_known():
    head, *lines = exports.steps_csv(traces.foreign()).splitlines()
    for line in lines:
        cells = dict(zip(head.split(","), line.split(","), strict=True))
        assert {cells[name] for name in ("temperature", "rule", "lossless", "at_ms", "total_ms", "draft_ms")} == {""}


def test_nothing_is_said_of_another_k():
    with pytest.raises(SpecvizError, match="recorded by another engine, without probabilities"):
        what_if(traces.foreign())


def test_two_records_are_not_said_to_have_one_prompt():
    assert not are_of_one_prompt(traces.foreign(), traces.foreign())


@pytest.mark.parametrize(
    ("make", "setting", "value"),
    [(traces.foreign, "temperature", 1.0), (traces.foreign, "lossless", True), (traces.chain, "top_k", None)],
)
def test_a_file_that_tells_half_of_the_sampling_is_refused(make, setting, value):
    events = traces.events_of(make())
    next(event for event in events if event["event"] == "step")["settings"][setting] = value
    with pytest.raises(TraceError, match="must be null exactly where lossless is"):
        traces.read_events(events)


def test_a_file_with_other_evidence_and_scratch_nodes_is_shown_without_them():
    events = traces.events_of(traces.foreign())
    first, second, third = (event for event in events if event["event"] == "step")
    first["evidence"] = {"checked": "x", "confidence": [0.5]}
    second["evidence"] = {"confidence": ["0.5", True, 7]}
    third["draft"][2]["status"] = "scratch"
    steps = shown(traces.read_events(events))
    assert ["".join(look.note or []) for look in steps[0].looks.values()] == ["", "", "", ""]
    assert not any("confidence" in "".join(look.note or []) for look in steps[1].looks.values())
    assert [*steps[2].looks] == ["0", "1", "last"]


# ---- where it is opened ----------------------------------------------------------------------------------------------


@each_form
def test_the_page_the_shell_and_exports_open_it(form, tmp_path, capsys):
    file = tmp_path / "record"
    file.write_bytes(form())
    assert view_sent(form()).trace == load_run(file) == exports.find_trace(file) == traces.foreign()
    page = stage_page(traces.foreign(), charts=True)
    assert "read from another engine's record (SGLang, DSpark's decisions)" in html.unescape(page)
    assert "recorded by specviz" not in page
    assert main(["show", str(file)]) == 0
    printed = capsys.readouterr()
    assert "Another engine drafted with K = 3." in printed.out
    assert "2  _·#14_ ~·#15~ (·#16) [↪·#9]" in printed.out
    assert main(["show", str(file), "--request", B, "--target", "fable-target"]) == 0
    assert "#" not in capsys.readouterr().out


def test_the_library_names_the_request():
    assert entry(traces.foreign()).title == f"SGLang, DSpark's decisions, request {A}"
    assert entry(traces.foreign()).words == ""


# ---- what is refused -------------------------------------------------------------------------------------------------


def changed(**fields):
    rounds = copy.deepcopy(ROUNDS)
    rounds[1][0].update(fields)
    return rounds


FAULTS = {
    "more accepted than checked": ({"correct_drafts": 4, "acc_len": 5}, "correct_drafts.* must be below verify_len, 4"),
    "more checked than drafted": ({"verify_len": 5}, r"verify_len.* must be from 1 to 4 \(got 5\)"),
    "nothing checked at all": ({"verify_len": 0}, "verify_len"),
    "a length that does not follow": ({"acc_len": 4}, r"acc_len.* must be correct_drafts \+ 1, 2"),
    "too few tokens": ({"draft_tokens": [1, 2]}, "draft_tokens.* must be 3 tokens"),
    "a negative id": ({"draft_tokens": [1, 2, -3]}, "draft_tokens"),
    "an id as text": ({"bonus_token": "7"}, "bonus_token"),
    "a confidence above 1": ({"confidence": [0.5, 1.5, 0.5]}, "confidence"),
    "too few confidences": ({"confidence": [0.5]}, r"confidence.* must be 3 numbers \(got 1\)"),
    "no request id": ({"rid": None}, "rid.* is missing"),
    "a gap": ({"prefix": 103}, "step 2 begins behind 103 tokens, but the one before ended behind 102"),
}


@each_form
@pytest.mark.parametrize(("fields", "says"), FAULTS.values(), ids=FAULTS)
def test_numbers_that_cannot_be_are_refused_in_words(form, fields, says):
    with pytest.raises(TraceError, match=says):
        read_run(form(changed(**fields)))


def test_a_fault_names_its_line():
    with pytest.raises(TraceError) as error:
        read_run(dspark_dumps.log(changed(verify_len=9)))
    assert error.value.line == 4


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (dspark_dumps.server_info(simulate_acc_len=3.0), "acceptance was simulated"),
        (dspark_dumps.server_info([]), "holds no requests; record them with SGLANG_DSPARK_DEBUG_DUMP=core,reqs"),
        (b'{"internal_states": [{"dspark_info_record": {"records": NaN}}]}', "no record of DSpark"),
        (b"DSPARK_DEBUG_MAIN_OUTPUT={]\n", "no record of DSpark"),
        (b'DSPARK_DEBUG_MAIN_OUTPUT={"reqs": []}\n', "gamma.* is missing"),
        (dspark_dumps.log()[:30], "is not JSON|no whole line"),
    ],
    ids=["simulated", "no requests", "not a number", "no JSON", "no gamma", "another log"],
)
def test_what_is_no_such_record_is_refused(content, says):
    with pytest.raises(TraceError, match=says):
        read_run(content)


def test_an_unknown_request_and_a_request_of_a_trace_are_refused():
    with pytest.raises(TraceError, match=f"holds 2 requests, such as {A}, {B}"):
        read_run(dspark_dumps.log(), "c")
    with pytest.raises(TraceError, match="no requests to choose from"):
        read_run(traces.as_bytes(traces.lines_of(traces.chain())), A)


def test_a_request_of_more_steps_than_allowed_is_refused():
    with pytest.raises(TraceError, match="more than 2 steps"):
        read_run(dspark_dumps.log(), max_steps=2)


def test_a_record_that_takes_too_much_memory_is_refused(monkeypatch):
    monkeypatch.setattr("specviz.trace.engines.dspark.MAX_HELD_BYTES", 1_000)
    for form in FORMS.values():
        with pytest.raises(TraceError, match="of memory"):
            read_run(form())
