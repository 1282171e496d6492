"""`specviz.show` without a browser: what it takes, what it returns, and that a trace stays inside its frame."""

import html
import re

import pytest
import traces

import specviz
from specviz.errors import SpecvizError
from specviz.shipped import shipped_trace
from specviz.trace import TraceError
from specviz.views.stage_file import stage_page

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
