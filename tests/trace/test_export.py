"""Tables and lines of a trace, the routes that hand them out, and the command that writes them."""

import csv
import gzip
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from specviz.analysis.rounds import SpeedComparison
from specviz.bench.speed import Speed
from specviz.cli.main import main
from specviz.trace import Trace, TraceError, load_trace, read_trace
from specviz.trace import export as exports
from specviz.trace.frames import STEP_COLUMNS, TOKEN_COLUMNS
from specviz.trace.lines import ordinary_place
from specviz.trace.shipped import shipped_trace
from specviz.ui.view import View
from specviz.views.explore.feed import INCOMPLETE, SO_FAR, Feed
from specviz.views.explore.run_file import stage_page
from tests.helpers import tiny_server as pages
from tests.helpers import traces
from tests.helpers.one_file import held, unpacked

ROOT = Path(__file__).parents[2]
EVIL = ["=cmd|' /C calc'!A1", "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "=\n1"]
HARMLESS = ["=", "-", "+", " = 1", "a=1", "'", '"quoted", and comma', "line\nbreak"]


def rows(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


def written(value):
    return "" if value is None else str(value)


@pytest.mark.parametrize("make", traces.ALL.values(), ids=traces.ALL)
def test_a_line_per_drafted_token_and_per_token_of_the_targets_own(make):
    trace = make()
    table = rows(exports.tokens_csv(trace))
    expected = []
    for step in trace.steps:
        for node, token in enumerate(step.draft):
            numbers = [written(value) for value in (token.p, token.q, token.u, token.accept_prob)]
            expected.append([str(step.index), str(node), str(token.id), token.status, *numbers])
        expected += [
            [str(step.index), "", str(token.id), token.kind, written(token.p), written(token.q), "", ""]
            for token in step.emitted
            if token.node is None
        ]
    names = ("step", "node", "id", "status", "p", "q", "u", "accept_prob")
    assert [[line[name] for name in names] for line in table] == expected
    positions = [int(line["position"]) for line in table if line["position"]]
    assert sorted(positions) == list(range(len(trace.tokens)))


@pytest.mark.parametrize("make", traces.ALL.values(), ids=traces.ALL)
def test_a_line_per_step(make):
    trace = make()
    table = rows(exports.steps_csv(trace))
    assert [int(line["emitted"]) for line in table] == [len(step.emitted) for step in trace.steps]
    assert [int(line["target_calls"]) for line in table] == [step.calls["target"] for step in trace.steps]
    assert [float(line["total_ms"]) for line in table] == [step.timing.total_ms for step in trace.steps]
    assert [line["draft_model"] for line in table] == [step.settings.draft_model or "" for step in trace.steps]


def test_the_columns_are_those_that_are_described():
    columns = [name for column in TOKEN_COLUMNS for name in ((column, "text_json") if column == "text" else (column,))]
    assert exports.tokens_csv(traces.empty()) == ",".join(columns) + "\r\n"
    assert exports.steps_csv(traces.empty()) == ",".join(STEP_COLUMNS) + "\r\n"


def test_texts_come_back_as_they_were_and_no_spreadsheet_runs_them():
    made = traces.Builder([text.encode() for text in [*EVIL, *HARMLESS]], seed=1)
    for _ in range(12):
        made.chain(4, 2)
    made.chain(1, 1, changed={"method": "=1+1", "target": "@x"})
    trace = made.finish()
    for line in rows(exports.tokens_csv(trace)):
        own = [*EVIL, *HARMLESS][int(line["id"])]
        assert line["text"] == (f"'{own}" if own in EVIL else own)
    last = rows(exports.steps_csv(trace))[-1]
    assert (last["method"], last["target"]) == ("'=1+1", "'@x")


READ = {"keep_default_na": False, "na_values": [""]}  # as README says
MISSING = [
    "None",
    "NA",
    "null",
    "nan",
    " ",
    "0012",
    "=1",
    "-",
    "'",
    '"',
    "a, b",
    "\r\n",
    "\u2028",
    "<NA>",
    "TRUE",
    "ü🦊",
]


def test_pandas_reads_back_exactly_the_text_that_was_written(tmp_path):
    made = traces.Builder([text.encode() for text in MISSING], seed=3)
    for num_accepted in (4, 0, 2, 4, 1, 3, 4, 4):
        made.chain(4, num_accepted)
    trace = made.finish()
    (tmp_path / "tokens.csv").write_bytes(exports.tokens_csv(trace).encode())
    table = pandas.read_csv(tmp_path / "tokens.csv", **READ)
    assert "".join(table[table.emitted].text_json.map(json.loads)) == trace.text
    assert [json.loads(text) for text in table.text_json] == [MISSING[token] for token in table.id]
    assert pandas.read_csv(tmp_path / "tokens.csv").text_json.notna().all()  # without a word about missing values, too
    assert table.q.isna().any()


@pytest.mark.parametrize("make", traces.ALL.values(), ids=traces.ALL)
def test_the_tokens_that_are_in_the_text_are_marked_and_no_others(make):
    trace = make()
    lines = rows(exports.tokens_csv(trace))
    inside = [line for line in lines if line["emitted"] == "True"]
    assert "".join(json.loads(line["text_json"]) for line in inside) == trace.text
    assert {line["emitted"] for line in lines} <= {"True", "False"}
    assert [line["position"] for line in inside] == list(map(str, range(len(trace.tokens))))
    assert not any(line["position"] for line in lines if line not in inside)


def test_a_table_of_tokens_says_by_which_rule_they_were_judged():
    made = traces.Builder([b" a", b" b"], seed=2)
    made.chain(2, 1)
    made.chain(2, 1, changed={"rule": "lenience", "lossless": False})
    table = rows(exports.tokens_csv(made.finish()))
    ways = {(line["step"], line["rule"], line["lossless"]) for line in table}
    assert ways == {("0", "speculative_sampling", "True"), ("1", "lenience", "False")}


def test_numbers_are_never_guarded():
    assert "'" not in exports.steps_csv(traces.chain())
    assert all(line["parent"] in ("", *map(str, range(-1, 9))) for line in rows(exports.tokens_csv(traces.tree())))


def test_json_lines_are_the_traces_own_file(tmp_path):
    traces.hostile().save(tmp_path / "one.jsonl")
    assert exports.json_lines(traces.hostile()).encode() == (tmp_path / "one.jsonl").read_bytes()


def test_a_file_name_is_harmless_whatever_the_trace_says():
    header = traces.chain().header
    evil = replace(header, created="2026\r\nX: y", request={"method": '../../a";b' + "c" * 900})
    assert exports.file_name(Trace([evil]), ".csv") == f"specviz-2026Xy-ab{'c' * 58}.csv"
    assert exports.file_name(Trace(), ".csv") == "specviz.csv"


# ---- the routes -----------------------------------------------------------------------------------------------------


served, client = pages.fixtures()


FILES = {
    "/specviz/trace/{}": (".jsonl.gz", "application/gzip"),
    "/specviz/page/{}.html": (".html", "text/html; charset=utf-8"),
    "/specviz/page/{}.html?charts=0": ("-small.html", "text/html; charset=utf-8"),
    "/specviz/tokens/{}.csv": ("-tokens.csv", "text/csv; charset=utf-8"),
    "/specviz/steps/{}.csv": ("-steps.csv", "text/csv; charset=utf-8"),
}


@pytest.mark.parametrize("path", FILES)
def test_a_file_is_saved_by_the_views_id_and_never_kept_or_shown(client, served, path):
    trace = traces.chain()
    view = served.page.registry.keep(trace)
    answer = client.get(path.format(view.id))
    suffix, media_type = FILES[path]
    name = f"specviz-20250101T000000Z{suffix}"
    assert answer.status_code == 200
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == media_type
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_what_is_saved_is_what_the_trace_holds(client, served):
    trace = traces.tree()
    view = served.page.registry.keep(trace)
    assert read_trace(client.get(f"/specviz/trace/{view.id}").content) == trace
    assert client.get(f"/specviz/tokens/{view.id}.csv").text == exports.tokens_csv(trace)
    assert client.get(f"/specviz/steps/{view.id}.csv").text == exports.steps_csv(trace)
    assert 'id="sv-plotly"' in client.get(f"/specviz/page/{view.id}.html").text
    assert 'id="sv-plotly"' not in client.get(f"/specviz/page/{view.id}.html?charts=0").text


def test_a_page_that_is_made_from_the_views_feed_is_the_page_of_its_trace(client, served, monkeypatch):
    trace = traces.tree()
    view = served.page.registry.keep(trace)
    expected = stage_page(trace, charts=False)
    monkeypatch.setattr(Feed, "from_trace", lambda *arguments, **options: pytest.fail("made again"))
    assert client.get(f"/specviz/page/{view.id}.html?charts=0").text == expected
    assert view.id not in expected


def test_a_run_of_ones_own_is_a_recording_in_its_page(client, served):
    trace, feed = traces.chain(), Feed("live")
    for event in trace.events():
        feed.add(event)
    view = served.page.registry.show(View("live", feed, trace), None)
    assert client.get(f"/specviz/page/{view.id}.html?charts=0").text == stage_page(trace, charts=False)


def test_a_page_keeps_what_was_measured_of_its_run_and_with_its_spread(client, served):
    feed, trace = Feed("live"), traces.chain()
    for event in trace.events():
        feed.add(event)
    feed.measured = Speed(10.0, 20.0, 3.3, 23, SpeedComparison((1.9, 2.0, 2.0, 2.0, 2.1, 2.1), most=3.3))
    view = served.page.registry.show(View("live", feed, trace), None)
    page = client.get(f"/specviz/page/{view.id}.html?charts=0").text
    told = unpacked(held(page, "sv-run").splitlines()[0])["speed"]
    assert (told["value"], told["can_measure"]) == ("2.0×", False)
    assert "measured where it was recorded: 10\u00a0→\u00a020 tokens/s (1.9× to 2.1×)" in told["words"]


def test_the_place_that_is_asked_for_is_pinned_in_the_page(client, served):
    view = served.page.registry.keep(traces.chain())
    answer = client.get(f"/specviz/page/{view.id}.html?charts=0&step=1&ref=2")
    assert answer.text == stage_page(traces.chain(), charts=False, selection=(1, "2"))


@pytest.mark.parametrize(
    "place",
    ["step=1", "ref=2", "step=&ref=", "step=-1&ref=0", "step=1e1&ref=0", "step=7&ref=0", "step=1&ref=9",
     "step=\u0661&ref=0", "step=99999999&ref=0", "step=1&ref=%3Cscript%3E", "step=1&ref=2%0A"],
)  # fmt: skip
def test_a_place_that_is_not_in_the_run_is_refused_in_words(client, served, place):
    view = served.page.registry.keep(traces.chain())
    answer = client.get(f"/specviz/page/{view.id}.html?charts=0&{place}")
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/plain")
    assert "must name" in answer.text


@pytest.mark.parametrize("path", FILES)
def test_an_unknown_run_and_one_that_has_not_begun_give_words(client, served, path):
    missing = client.get(path.format("0" * 32))
    assert (missing.status_code, missing.text) == (404, "this run is gone from the server")
    waiting = client.get(path.format(served.page.registry.keep(Trace()).id))
    assert (waiting.status_code, waiting.text) == (404, "this run has not begun yet")


@pytest.mark.parametrize("path", FILES)
def test_a_run_that_goes_on_gives_what_there_is(client, served, path):
    whole = traces.chain()
    view = served.page.registry.keep(Trace(list(whole.events())[:4]))  # header, models, two steps
    assert client.get(path.format(view.id)).status_code == 200
    table = rows(client.get(f"/specviz/steps/{view.id}.csv").text)
    assert [line["step"] for line in table] == ["0", "1"]


def test_what_grows_while_its_file_is_made_is_not_in_it(client, served, monkeypatch):
    header, models, first, second, *_ = traces.chain().events()
    view = served.page.registry.keep(Trace([header, models, first]))
    make = exports.steps_csv

    def grown(trace):
        view.trace.append(second)
        return make(trace)

    monkeypatch.setattr(exports, "steps_csv", grown)
    assert [line["step"] for line in rows(client.get(f"/specviz/steps/{view.id}.csv").text)] == ["0"]
    assert len(view.trace.steps) == 2


def test_the_page_of_a_run_that_goes_on_says_so_and_that_of_a_cut_file_too(client, served):
    registry = served.page.registry
    kept = list(traces.chain().events())[:4]
    live = Feed("live")
    for event in kept:
        live.add(event)
    run = Going()
    run.id, run.trace = "going-on", Trace(kept)
    going_on = registry.add_run("somebody", run)
    going_on.feed = live
    cut = registry.keep(Trace(kept))
    whole = registry.keep(traces.chain())
    pages = [client.get(f"/specviz/page/{view.id}.html?charts=0").text for view in (going_on, cut, whole)]
    assert pages[0] == stage_page(Trace(kept), charts=False, unended=SO_FAR)
    words = (SO_FAR.capitalize(), INCOMPLETE.capitalize())
    assert [[said in page for said in words] for page in pages] == [[True, False], [False, True], [False, False]]


class Going:
    """What a view asks of a run that is not over."""

    state = "running"

    def stop(self) -> bool:
        return True


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def export(capsys):
    """Runs the command in this process: (exit status, standard output, standard error)."""

    def run(*arguments):
        status = main(["export", *map(str, arguments)])
        return status, *capsys.readouterr()

    return run


def test_every_output_is_written(export, tmp_path):
    trace = traces.halves()
    trace.save(tmp_path / "run.jsonl")
    (tmp_path / "out").mkdir()
    wanted = {name: tmp_path / "out" / name for name in ("page.html", "t.csv", "s.csv", "again.jsonl.gz")}
    html, tokens, steps, lines = wanted.values()
    outputs = ("--html", html, "--no-charts", "--tokens", tokens, "--steps", steps, "--jsonl", lines)
    status, said, wrong = export(tmp_path / "run.jsonl", *outputs)
    assert (status, wrong) == (0, "")
    assert said.splitlines() == [f"saved {path}" for path in wanted.values()]
    assert html.read_bytes().startswith(b"<!doctype html>")
    assert b'id="sv-plotly"' not in html.read_bytes()
    assert tokens.read_bytes().decode() == exports.tokens_csv(trace)
    assert steps.read_bytes().decode() == exports.steps_csv(trace)
    assert load_trace(lines) == trace


def test_a_recorded_run_is_exported_by_its_name_and_packed_by_the_name_of_the_file(export, tmp_path):
    assert export("first-visit", "--steps", tmp_path / "s.csv.gz")[0] == 0
    text = gzip.decompress((tmp_path / "s.csv.gz").read_bytes()).decode()
    assert len(rows(text)) == len(shipped_trace("first-visit").steps)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["first-visit"], "--html"),
        (["nowhere", "--html", "{}/a"], " first-visit, "),
        (["first-visit", "--no-charts", "--steps", "{}/a"], "--no-charts needs --html"),
        (["first-visit", "--html", "{}/a", "--steps", "{}/b/../a"], "differ"),
        (["{}/run.jsonl", "--html", "{}/run.jsonl"], "differ"),
        (["{}", "--html", "{}/a"], "cannot be opened"),
        (["{}/bad.jsonl", "--html", "{}/a"], "line 1"),
        (["first-visit", "--steps", "{}/run.jsonl/a"], "OUT must be in an existing folder"),
        (["first-visit", "--steps", "{}/none/of/these/a"], "existing folder"),
        (["first-visit", "--html", "{}/dir/"], "OUT must name a file"),
        (["first-visit", "--html", "{}"], "name a file"),
        (["first-visit", "--html", "-", "--steps", "-"], "standard output"),
        (["first-visit", "--html", ""], "(got '')"),
        (["--lessons", "{}/none/lessons.html"], "existing folder"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(export, tmp_path, arguments, words):
    traces.chain().save(tmp_path / "run.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"event": "header"}\n')
    (tmp_path / "b").mkdir()
    before = sorted(tmp_path.iterdir())
    status, said, wrong = export(*(argument.format(tmp_path) for argument in arguments))
    assert (status, said) == (2, "")
    assert words in wrong
    assert sorted(tmp_path.iterdir()) == before


def test_where_nothing_can_be_written_is_said(export, tmp_path, monkeypatch):
    monkeypatch.setattr("os.replace", refused)
    status, said, wrong = export("first-visit", "--steps", tmp_path / "s.csv")
    assert (status, said) == (2, "")
    assert "s.csv could not be written: No space left" in wrong


NO_FILES = {"pipe": "a pipe", "to-pipe": "a pipe", "ring": "a link to itself"}


@pytest.mark.parametrize(("name", "what"), NO_FILES.items())
def test_what_is_no_ordinary_file_is_refused_and_left_alone(export, tmp_path, name, what):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-pipe").symlink_to("pipe")
    (tmp_path / "ring").symlink_to("ring")
    status, said, wrong = export("first-visit", "--jsonl", tmp_path / "a.jsonl", "--steps", tmp_path / name)
    assert (status, said) == (2, "")
    assert wrong.endswith(f"(got {what})\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe", "ring", "to-pipe"]
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system has no such links")
def test_a_pipe_that_has_no_name_is_refused_where_a_link_leads_to_it():
    """What /dev/stdout is in a pipeline."""
    ends = os.pipe()
    try:
        with pytest.raises(TraceError, match=r"got a pipe"):
            ordinary_place(Path(f"/proc/self/fd/{ends[1]}"), "OUT")
    finally:
        for end in ends:
            os.close(end)


def test_a_link_is_followed_and_its_file_keeps_its_mode(export, tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "old").write_text("old")
    (tmp_path / "far" / "old").chmod(0o604)
    (tmp_path / "s.csv").symlink_to("far/old")
    (tmp_path / "new.csv.gz").symlink_to("far/new")  # packed by the name that was given
    assert export("first-visit", "--steps", tmp_path / "s.csv", "--tokens", tmp_path / "new.csv.gz")[0] == 0
    assert (tmp_path / "far" / "old").read_bytes().decode() == exports.steps_csv(shipped_trace("first-visit"))
    assert (tmp_path / "far" / "old").stat().st_mode & 0o777 == 0o604
    assert gzip.decompress((tmp_path / "far" / "new").read_bytes()).startswith(b"step,")
    assert (tmp_path / "s.csv").is_symlink()
    (tmp_path / "nowhere.csv").symlink_to("none/of/these")
    assert "existing folder" in export("first-visit", "--steps", tmp_path / "nowhere.csv")[2]
    assert sorted(path.name for path in (tmp_path / "far").iterdir()) == ["new", "old"]


def refused(*_):
    raise OSError(28, "No space left on device")


def test_a_file_that_was_cut_off_is_exported_and_named_so(export, tmp_path):
    traces.long(40).save(tmp_path / "whole.jsonl.gz")
    packed = (tmp_path / "whole.jsonl.gz").read_bytes()
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    outputs = ("--html", tmp_path / "page.html", "--no-charts", "--jsonl", tmp_path / "again.jsonl")
    status, said, wrong = export(tmp_path / "cut.jsonl.gz", *outputs)
    assert (status, len(said.splitlines())) == (0, 2)
    assert wrong.startswith("specviz: the recording in FILE stops before the end of the run")
    assert INCOMPLETE.capitalize() in (tmp_path / "page.html").read_text("utf-8")
    assert 0 < len(load_trace(tmp_path / "again.jsonl").steps) < 40
    assert export(tmp_path / "whole.jsonl.gz", *outputs)[2] == ""


def test_exporting_loads_no_torch(tmp_path):
    program = (
        "import sys\nfrom specviz.cli.main import main\n"
        f"assert main(['export', 'first-visit', '--html', {str(tmp_path / 'a.html')!r}, '--no-charts', "
        f"'--tokens', {str(tmp_path / 'a.csv')!r}]) == 0\n"
        "print(sorted({'torch', 'transformers', 'gradio', 'plotly'} & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
