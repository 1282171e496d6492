"""`specviz.show` without a browser: what it takes, what it returns, and that a trace stays inside its frame."""

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

import specviz
from specviz.errors import SpecvizError
from specviz.listing import Listing
from specviz.trace import Trace, TraceError
from specviz.trace.shipped import shipped_trace
from specviz.views.explore.run_file import stage_page
from tests.helpers import traces

ROOT = Path(__file__).parent.parent
FRAME = re.compile(
    r'<iframe title="[^"<>]*" srcdoc="([^"]*)" sandbox="([^"]*)" width="100%" height="(\d+)" [^<>]*></iframe>'
)


def test_the_frame_holds_the_page_and_nothing_leaves_it():
    shown = specviz.show(traces.hostile())
    page, sandbox, height = FRAME.fullmatch(shown._repr_html_()).groups()
    assert html.unescape(page) == stage_page(traces.hostile(), charts=False)
    assert sandbox == "allow-scripts allow-downloads"
    assert height == "820"


def test_charts_and_height_are_asked_for():
    shown = specviz.show(traces.chain(), height=500, charts=True)
    assert 'id="sv-plotly"' in shown.page
    assert 'height="500"' in shown._repr_html_()
    assert 'id="sv-plotly"' not in specviz.show(traces.chain()).page


def test_a_file_is_as_good_as_a_trace(tmp_path):
    traces.tree().save(tmp_path / "run.jsonl.gz")
    expected = specviz.show(traces.tree())
    assert specviz.show(tmp_path / "run.jsonl.gz") == expected
    assert specviz.show(str(tmp_path / "run.jsonl.gz")) == expected


def test_what_a_console_prints_is_short():
    assert repr(specviz.show(traces.chain())) == "Shown(height=820)"


@pytest.mark.parametrize("height", [199, 5001, float("nan")])
def test_a_height_out_of_range_is_refused(height):
    with pytest.raises(ValueError, match=r"height must be 200 to 5000 pixels \(got"):
        specviz.show(traces.chain(), height=height)


def test_what_is_no_trace_is_refused(tmp_path):
    with pytest.raises(
        SpecvizError, match=r"a trace must be a file, or one of the recorded runs first-visit, .*missing"
    ):
        specviz.show(tmp_path / "missing.jsonl")
    with pytest.raises(TraceError, match="cannot be opened"):
        specviz.show(tmp_path)


def test_a_recorded_run_is_shown_by_its_name():
    assert specviz.show("tree") == specviz.show(shipped_trace("tree"))


@pytest.mark.parametrize("given", [None, 123, True, b"tree", ["tree"]])
def test_what_names_no_trace_is_refused_by_its_type(given):
    with pytest.raises(ValueError, match=rf"trace must be a Trace, a file or .* \(got {type(given).__name__}\)"):
        specviz.show(given)


# ---- what is looked at bare ---------------------------------------------------------------------------------------

UNTRUSTED = '<img src=x onerror=alert(1)>&"'


@pytest.mark.parametrize("name", traces.ALL)
def test_a_bare_trace_is_one_line_that_steers_nothing(name):
    shown = repr(traces.ALL[name]())
    assert len(shown) < 400
    assert shown.isascii()
    assert shown.isprintable()


def test_a_bare_trace_says_how_it_was_made_and_its_numbers():
    trace = shipped_trace("first-visit")
    judged = [token for step in trace.steps for token in step.draft if token.status in ("accepted", "rejected")]
    accepted = [token for token in judged if token.status == "accepted"]
    numbers = f"{len(trace.steps)} steps, {len(trace.tokens)} tokens, {len(accepted)} accepted of {len(judged)} judged"
    assert repr(trace) == f"<Trace: 'draft_model', draft 'fable-draft', K 4, temperature 1: {numbers}>"
    assert repr(Trace([*trace.events()][:-1])).endswith("; the recording stops before the run ends>")
    assert repr(Trace()) == "<Trace: no step was made>"


@pytest.mark.parametrize("table", [specviz.METHODS, specviz.RULES], ids=["METHODS", "RULES"])
def test_a_bare_table_of_methods_or_rules_has_a_row_each(table):
    heads, *rows = repr(table).splitlines()
    assert heads.startswith("name")
    assert [row.split()[0] for row in rows] == list(table)
    shown = table._repr_html_()
    assert shown.count("<tr>") == 1 + len(table)
    assert all(f"<td>{html.escape(entry.title)}</td>" in shown for entry in table.values())
    assert len(repr(table)) < 3000 > len(shown) / 2


def test_a_table_says_what_a_method_needs():
    rows = {row.split()[0]: row for row in repr(specviz.METHODS).splitlines()}
    assert "  a draft model  " in rows["tree"]
    assert "  draft heads  " in rows["eagle"]
    assert "  the target's own modules for multi-token prediction  " in rows["mtp"]
    assert "  nothing  " in rows["prompt_lookup"]


def test_a_listing_escapes_what_it_is_given():
    listing = Listing([specviz.RULES["typical"]], {"<b>": lambda rule: UNTRUSTED})
    assert listing._repr_html_().count(html.escape(UNTRUSTED)) == 1
    assert not {"<b>", "<img"} & set(re.findall(r"<\w+>?", listing._repr_html_()))


def test_every_module_is_an_attribute_in_a_fresh_process():
    code = "import specviz; assert specviz.trace; assert specviz.views; specviz.no_such"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "AttributeError: module 'specviz' has no attribute 'no_such'"
